//! The algorithms, one file each: the parameters of a limit and how it decides.

pub mod calendar;
pub mod description;
pub mod name;
pub mod parameter;
pub mod window;

use std::iter;

use crate::engine::algorithm::description::Description;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::parameter::{LimitForm, Shape};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::named_enum::named_enum;
use crate::engine::state::{Lifetime, State, StateKind, Write};
use crate::engine::time::Timestamp;
use crate::engine::verb::Verb;

/// Expands to the script of an algorithm.
#[cfg(feature = "redis")]
macro_rules! script {
    ($module:ident) => {
        concat!(
            "do\n",
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/engine/algorithm/",
                stringify!($module),
                ".lua"
            )),
            "end\n",
        )
    };
}
#[cfg(feature = "redis")]
pub(crate) use script;

/// Declares the algorithms: the file, the type and the name of each.
macro_rules! algorithms {
    (
        ($d:tt)
        rates { $($(#[$doc:meta])* $module:ident::$Algorithm:ident = $name:literal,)+ }
        slots { $(#[$slots_doc:meta])* $slots_module:ident::$Slots:ident = $slots_name:literal }
    ) => {
        $(pub mod $module;)+
        pub mod $slots_module;

        /// A limit on tokens, which are added with time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rate {
            $($(#[$doc])* $Algorithm($module::$Algorithm),)+
        }

        $(impl From<$module::$Algorithm> for Limit {
            fn from(rules: $module::$Algorithm) -> Limit {
                Limit::Rate(Rate::$Algorithm(rules))
            }
        })+

        /// Evaluates `$call` with the algorithm of `$limit` as `$rules`, or `$unlimited` if there is none. If
        /// slots differ, `$for_slots` is evaluated for them.
        macro_rules! dispatch {
            ($d limit:expr, $d rules:ident => $d call:expr, $d unlimited:expr) => {
                dispatch!($d limit, $d rules => $d call, $d rules => $d call, $d unlimited)
            };
            (
                $d limit:expr,
                $d rules:ident => $d call:expr,
                $d slots:pat => $d for_slots:expr,
                $d unlimited:expr
            ) => {
                match $d limit {
                    $(Limit::Rate($crate::engine::algorithm::Rate::$Algorithm($d rules)) => $d call,)+
                    Limit::Slots($d slots) => $d for_slots,
                    Limit::Unlimited => $d unlimited,
                }
            };
        }
        pub(crate) use dispatch;

        /// Expands to the scripts that decide as the algorithms do on a server, in this order.
        #[cfg(feature = "redis")]
        macro_rules! scripts {
            () => {
                concat!(
                    $($crate::engine::algorithm::script!($module),)+
                    $crate::engine::algorithm::script!($slots_module)
                )
            };
        }
        #[cfg(feature = "redis")]
        pub(crate) use scripts;

        named_enum! {
            /// The algorithms by their names in limits files.
            pub enum AlgorithmName {
                $($Algorithm = $name,)+
                $Slots = $slots_name,
                /// No limit.
                Unlimited = "unlimited",
            }
        }

        impl Limit {
            /// Returns the algorithm's name.
            pub const fn algorithm(&self) -> AlgorithmName {
                match self {
                    $(Limit::Rate(Rate::$Algorithm(_)) => AlgorithmName::$Algorithm,)+
                    Limit::Slots(_) => AlgorithmName::$Slots,
                    Limit::Unlimited => AlgorithmName::Unlimited,
                }
            }
        }

        impl AlgorithmName {
            /// Returns the algorithm as data.
            pub const fn definition(self) -> &'static Definition {
                match self {
                    $(AlgorithmName::$Algorithm => &$module::$Algorithm::DEFINITION,)+
                    AlgorithmName::$Slots => &$slots_module::$Slots::DEFINITION,
                    AlgorithmName::Unlimited => &UNLIMITED,
                }
            }
        }
    };
}

algorithms! {
    ($)
    rates {
        /// Tokens are added one by one.
        gcra::TokenBucket = "token-bucket",
        /// Requests fill the bucket and leave at every drip.
        leaky_bucket::LeakyBucket = "leaky-bucket",
        /// A number of requests per window.
        fixed_window::FixedWindow = "fixed-window",
        /// A number of requests per window, evenly spaced.
        fixed_rate_window::FixedRateWindow = "fixed-rate-window",
        /// A number of requests per day, week, month or year.
        calendar_window::CalendarWindow = "calendar-window",
    }
    slots {
        /// A number of requests at once.
        in_flight::InFlight = "in-flight"
    }
}

/// A limit: its algorithm and parameters, which are always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Tokens per time.
    Rate(Rate),
    /// A number of requests at once.
    Slots(InFlight),
    /// No limit.
    Unlimited,
}

impl From<InFlight> for Limit {
    fn from(slots: InFlight) -> Limit {
        Limit::Slots(slots)
    }
}

/// An algorithm as data.
#[derive(Debug)]
pub struct Definition {
    /// The parameters of its limits.
    pub form: LimitForm,
    /// The parameters of an older form of its limits.
    pub older: Option<LimitForm>,
    /// What a recommendation varies; `None` if there is nothing to recommend.
    pub shape: Option<Shape>,
    /// What its states are.
    pub state: StateKind,
}

const UNLIMITED: Definition = Definition {
    form: LimitForm { parameters: &[], build: |_| Ok(Limit::Unlimited) },
    older: None,
    shape: None,
    state: StateKind::Instant,
};

impl Definition {
    /// Returns the forms of its limits.
    pub fn forms(&self) -> impl Iterator<Item = &LimitForm> {
        iter::once(&self.form).chain(&self.older)
    }
}

/// The outcome of one call on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The decision.
    pub decision: Decision,
    /// The state after the call; `None` if the call does not change it.
    pub after: Option<State>,
    /// The time for which a store must keep the state.
    pub lifetime: Lifetime,
}

impl Step {
    /// Returns the step of a call without a limit.
    pub const fn unlimited(now: Timestamp) -> Step {
        let decision = Decision::unlimited(now);
        Step { decision, after: None, lifetime: Lifetime::INSTANT }
    }
}

/// How to treat a charge that would overdraw a bucket too far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overdraft {
    /// Take nothing.
    AllOrNothing,
    /// Take as much as the bucket can be overdrawn by.
    Partial,
}

impl Overdraft {
    /// Returns the tokens taken for `cost` if at most `available` can be taken.
    fn taken(self, cost: i64, available: i64) -> i64 {
        match self {
            _ if cost <= available => cost,
            Overdraft::AllOrNothing => 0,
            Overdraft::Partial => available.max(0),
        }
    }
}

/// How a kind of limit decides. All methods are pure.
///
/// Implementations guarantee, for every limit, cost, state and instant:
///
/// 1. A denied call changes nothing. A state is taken at its word, however late it is.
/// 2. If nothing else is spent, the same call is denied one nanosecond before `retry_after` has
///    passed, and allowed once it has.
/// 3. At one instant, no more than the burst is allowed.
/// 4. A call with cost 0 follows the same rules and never writes.
/// 5. From `lifetime.end_of(state)` on, the written state has the same effect as no state.
/// 6. An earlier `now` never adds tokens.
/// 7. Nothing panics: arithmetic that could overflow saturates.
/// 8. A charge overdraws a bucket by at most the content of a full one. An overdrawn bucket denies
///    every spend, including spends of 0.
pub(crate) trait Algorithm: Description {
    /// Returns the highest cost that can ever be allowed, in tokens.
    fn max_cost(&self) -> i64;

    /// Returns the limit for a spend that must leave `keep` tokens, which are at most the maximum cost:
    /// the part of each bucket above these tokens. Its states are those of this limit.
    fn keeping(self, keep: i64) -> Self
    where
        Self: Sized;

    /// Takes `cost` tokens if the bucket has them.
    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write);

    /// Returns the numbers of a call that left the state `after`. For a charge, `retry_after` is the
    /// wait until the bucket is no longer overdrawn or, if nothing was taken, until the same charge
    /// would be allowed.
    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision;

    /// Returns how long a store must keep `state`.
    fn lifetime(&self, state: State) -> Lifetime;
}

/// How a rate adds tokens and takes them back.
pub(crate) trait RateAlgorithm: Algorithm {
    /// Returns `cost` tokens to the bucket, up to a full one.
    fn refund(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write);

    /// Takes `cost` tokens even if the bucket does not have them yet.
    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write);

    /// Applies an operation to a state. A check returns the write of a spend.
    #[inline(always)]
    fn apply(&self, verb: Verb, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        match verb {
            Verb::Spend | Verb::Reserve | Verb::Check => self.spend(cost, found, now),
            Verb::Refund => self.refund(cost, found, now),
            Verb::Charge => self.charge(cost, Overdraft::AllOrNothing, found, now),
            Verb::ChargePartial => self.charge(cost, Overdraft::Partial, found, now),
            // An overdrawn bucket denies a spend of 0.
            Verb::ChargeAfter => match self.spend(Cost::ZERO, found, now) {
                (true, _) => self.charge(cost, Overdraft::Partial, found, now),
                denied => denied,
            },
            // Only slots have leases.
            Verb::Release(_) | Verb::Renew(_) => (false, Write::Keep),
        }
    }

    /// Undoes a spend of `cost` that wrote `charged`, in a bucket whose state is now `found`.
    /// Returns the state to write, or `None` if no token is left to return.
    ///
    /// `now` must be read after `found`. Only tokens that have not refilled since are returned, so
    /// the bucket admits no more than if the spend had never happened. [`RateAlgorithm::refund`] does
    /// not guarantee that. As after a refund, a window or ticks that the spend started remain.
    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State>;
}

#[cfg(test)]
mod testing {
    //! Shared by the tests of the algorithms: series of calls, with times in milliseconds.

    use super::*;
    use crate::engine::limit::Limit;
    use crate::engine::time::Nanos;

    pub(super) const MILLI: i64 = 1_000_000;

    /// The numbers of a decision: allowed, remaining, retry_after, reset_after and next_token_after
    /// (ms).
    pub(super) type Numbers = (bool, i64, i64, i64, i64);

    pub(super) fn cost(tokens: i64) -> Cost {
        Limit::Unlimited.cost(tokens).expect("a cost")
    }

    pub(super) fn at(millis: i64) -> Timestamp {
        Timestamp::clamped(millis * MILLI)
    }

    /// Returns a state from its tally and its instant (ms).
    pub(super) fn tally((used, millis): (u64, i64)) -> State {
        State::from_tally(at(millis), used)
    }

    pub(super) fn numbers(decision: &Decision) -> Numbers {
        let millis = |length: Nanos| length.get() / MILLI;
        let Decision { allowed, remaining, .. } = *decision;
        let [retry, reset, next] =
            [decision.retry_after, decision.reset_after, decision.next_token_after].map(millis);
        (allowed, remaining, retry, reset, next)
    }

    /// Tokens, the tally written by their spend, the tally found, now (ms), and the tally to write.
    type GiveBack = (i64, (u64, i64), (u64, i64), i64, Option<(u64, i64)>);

    pub(super) fn give_backs(rules: &impl RateAlgorithm, cases: &[GiveBack]) {
        for &(tokens, charged, found, now, expected) in cases {
            let after = rules.give_back(cost(tokens), tally(charged), tally(found), at(now));
            assert_eq!(after, expected.map(tally), "{tokens} at {now} ms");
        }
    }
}
