//! A limit, valid by construction, and the costs it can be asked for.

use crate::engine::algorithm::fixed_rate_window::FixedRateWindow;
use crate::engine::algorithm::fixed_window::FixedWindow;
use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::algorithm::leaky_bucket::LeakyBucket;
use crate::engine::algorithm::window::Anchor;
use crate::engine::algorithm::{Algorithm, AlgorithmName, Overdraft, Step};
use crate::engine::decision::Decision;
use crate::engine::factor::{Factor, FactorError};
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// The longest time that a bucket may take to fill or to drain, and the longest window: 2^62 ns,
/// about 146 years.
pub(crate) const LONGEST: Nanos = Nanos::clamped(1 << 62);
const MAX_PERIOD_TEXT: &str = "146 years";

/// How much, how fast, and by which algorithm. A value of this type is always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Tokens that come back one by one.
    TokenBucket(TokenBucket),
    /// Requests that drip away at ticks.
    LeakyBucket(LeakyBucket),
    /// A number of requests per window.
    FixedWindow(FixedWindow),
    /// A number of requests per window, spaced evenly.
    FixedRateWindow(FixedRateWindow),
    /// No limit.
    Unlimited,
}

/// Why a limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A number below its minimum.
    #[error("{field} must be at least {least}, found {found}")]
    TooSmall {
        /// The parameter.
        field: &'static str,
        /// The minimum.
        least: i64,
        /// What was given.
        found: i64,
    },
    /// A length of time of zero.
    #[error("{field} must be longer than 0s, found 0s")]
    NoTime {
        /// The parameter.
        field: &'static str,
    },
    /// A length of time too long to compute with.
    #[error("{field} must be at most {most}, found {found}", most = MAX_PERIOD_TEXT)]
    TooLong {
        /// The parameter.
        field: &'static str,
        /// What was given.
        found: Nanos,
    },
    /// A negative length of time.
    #[error("{field} must not be negative, found -{}", Nanos::clamped(found.saturating_neg()))]
    NegativeTime {
        /// The parameter.
        field: &'static str,
        /// What was given, in nanoseconds.
        found: i64,
    },
    /// A rate too fast for whole nanoseconds.
    #[error(
        "count {count} in a period of {period} is too fast: rounded to whole nanoseconds, the time to add one token \
         would change the rate by more than 0.1 %; use a smaller count or a longer period"
    )]
    TooFast {
        /// Tokens added in each period.
        count: i64,
        /// The period.
        period: Nanos,
    },
    /// A bucket that would take too long to fill to compute with.
    #[error(
        "burst {burst} at count {count} per period of {period} would take longer than {most} to fill; use a smaller burst \
         or a faster rate",
        most = MAX_PERIOD_TEXT
    )]
    TooSlow {
        /// Tokens a full bucket holds.
        burst: i64,
        /// Tokens added in each period.
        count: i64,
        /// The period.
        period: Nanos,
    },
    /// A bucket that would take too long to drain to compute with.
    #[error(
        "size {size} with drip_size {drip_size} every drip_rate of {drip_rate} would take longer than {most} to \
         drain; use a smaller size or a faster drip",
        most = MAX_PERIOD_TEXT
    )]
    DrainsTooSlowly {
        /// Requests there is room for.
        size: i64,
        /// The time between drips.
        drip_rate: Nanos,
        /// Requests that leave at each drip.
        drip_size: i64,
    },
    /// A length of time finer than this algorithm keeps.
    #[error(
        "{field} must be a whole number of milliseconds for this algorithm, found {found}; the token bucket takes any \
         period"
    )]
    PartOfMillisecond {
        /// The parameter.
        field: &'static str,
        /// What was given.
        found: Nanos,
    },
    /// A number above the largest tally.
    #[error(
        "{field} must be at most {most} for this algorithm, found {found}; the token bucket takes larger numbers",
        most = State::MAX_TALLY
    )]
    BeyondTally {
        /// The parameter, or the sum of parameters.
        field: &'static str,
        /// What was given.
        found: i64,
    },
    /// A phase that reaches into the next window.
    #[error("phase must be shorter than the period of {period}, found {found}")]
    PhaseTooLong {
        /// What was given.
        found: Nanos,
        /// The window.
        period: Nanos,
    },
    /// A phase for windows that are not aligned.
    #[error(
        "phase is for windows with the anchor `aligned`; with `first` a window starts at its first request"
    )]
    PhaseWithoutAlignment,
    /// The older form of the leaky bucket without any field.
    #[error("give at least one of max, duration and min_interval")]
    OlderFormEmpty,
    /// A factor for a limit that is not a leaky bucket.
    #[error("factor applies to leaky buckets only, and this limit is a {algorithm}")]
    FactorForOther {
        /// What the limit is.
        algorithm: AlgorithmName,
    },
    /// A factor below 0.
    #[error("factor must be at least 0, found {found}")]
    FactorNegative {
        /// The factor as given.
        found: String,
    },
    /// A factor that makes a size above the largest tally.
    #[error(
        "factor {found} makes the size {size} larger than {most}; use a larger factor",
        most = State::MAX_TALLY
    )]
    FactorTooSmall {
        /// The factor as given.
        found: String,
        /// The size it was applied to.
        size: u64,
    },
    /// A factor that is not a number.
    #[error(transparent)]
    Factor(#[from] FactorError),
}

impl LimitError {
    /// The parameter at fault, where it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            LimitError::BeyondTally { field, .. } if field.contains('+') => None,
            LimitError::TooSmall { field, .. }
            | LimitError::NoTime { field }
            | LimitError::TooLong { field, .. }
            | LimitError::NegativeTime { field, .. }
            | LimitError::PartOfMillisecond { field, .. }
            | LimitError::BeyondTally { field, .. } => Some(field),
            LimitError::TooFast { .. } => Some("count"),
            LimitError::TooSlow { .. } => Some("burst"),
            LimitError::DrainsTooSlowly { .. } => Some("size"),
            LimitError::PhaseTooLong { .. } | LimitError::PhaseWithoutAlignment => Some("phase"),
            LimitError::FactorForOther { .. }
            | LimitError::FactorNegative { .. }
            | LimitError::FactorTooSmall { .. }
            | LimitError::Factor(_) => Some("factor"),
            LimitError::OlderFormEmpty => None,
        }
    }
}

/// Tokens that one request takes. Made by [`Limit::cost`], so it is never above what the limit can
/// allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(i64);

impl Cost {
    /// No token: a peek.
    pub const ZERO: Cost = Cost(0);

    /// The number of tokens, 0 or more.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Why a cost is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    /// Below 0.
    #[error("cost must be at least 0, found {found}")]
    Negative {
        /// What was given.
        found: i64,
    },
    /// Above what can ever be allowed, so that waiting would not help.
    #[error(
        "cost must be at most {most}, which is all this limit can ever allow at once, found {found}"
    )]
    TooHigh {
        /// What was given.
        found: i64,
        /// The highest cost that can be allowed.
        most: i64,
    },
}

impl Limit {
    /// Makes a token bucket: `burst` tokens at most, `count` more in each `period`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, if the rate is too fast for whole nanoseconds (beyond
    /// 0.1 %), or if an empty bucket would take longer than 2^62 ns to fill.
    pub fn token_bucket(burst: i64, count: i64, period: Nanos) -> Result<Limit, LimitError> {
        TokenBucket::new(burst, count, period).map(Limit::TokenBucket)
    }

    /// Makes a leaky bucket: room for `size`, of which `drip_size` leave every `drip_rate`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, `drip_rate` is not a whole number of milliseconds,
    /// `size` is above [`State::MAX_TALLY`], or a full bucket would take longer than 2^62 ns to
    /// drain.
    pub fn leaky_bucket(size: i64, drip_rate: Nanos, drip_size: i64) -> Result<Limit, LimitError> {
        LeakyBucket::new(size, drip_rate, drip_size).map(Limit::LeakyBucket)
    }

    /// Makes a leaky bucket from the older form, times in nanoseconds; unlimited where the form
    /// says no limit.
    ///
    /// # Errors
    /// [`LimitError`] if all three are missing, `max` is below 1, a time is negative, or the
    /// translated numbers are refused.
    pub fn leaky_bucket_from(
        max: Option<i64>,
        duration: Option<i64>,
        min_interval: Option<i64>,
    ) -> Result<Limit, LimitError> {
        let bucket = LeakyBucket::from_older_form(max, duration, min_interval)?;
        Ok(bucket.map_or(Limit::Unlimited, Limit::LeakyBucket))
    }

    /// Makes a fixed window: `count` in each `period`.
    ///
    /// # Errors
    /// [`LimitError`] if `count` is below 1 or above [`State::MAX_TALLY`], or `period` or the phase
    /// is no whole number of milliseconds or out of range.
    pub fn fixed_window(count: i64, period: Nanos, anchor: Anchor) -> Result<Limit, LimitError> {
        FixedWindow::new(count, period, anchor).map(Limit::FixedWindow)
    }

    /// Makes a fixed window that spaces its requests, `burst` of them allowed early.
    ///
    /// # Errors
    /// As [`Limit::fixed_window`]; also if `burst` is negative or `count + burst` is above
    /// [`State::MAX_TALLY`].
    pub fn fixed_rate_window(
        count: i64,
        period: Nanos,
        burst: i64,
        anchor: Anchor,
    ) -> Result<Limit, LimitError> {
        FixedRateWindow::new(count, period, burst, anchor).map(Limit::FixedRateWindow)
    }

    /// The algorithm's name.
    pub const fn algorithm(&self) -> AlgorithmName {
        match self {
            Limit::TokenBucket(_) => AlgorithmName::TokenBucket,
            Limit::LeakyBucket(_) => AlgorithmName::LeakyBucket,
            Limit::FixedWindow(_) => AlgorithmName::FixedWindow,
            Limit::FixedRateWindow(_) => AlgorithmName::FixedRateWindow,
            Limit::Unlimited => AlgorithmName::Unlimited,
        }
    }

    /// Whether this is no limit at all.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self, Limit::Unlimited)
    }

    /// The highest cost that can ever be allowed, in tokens; `i64::MAX` if unlimited.
    #[inline]
    pub fn max_cost(&self) -> i64 {
        match self {
            Limit::TokenBucket(bucket) => bucket.max_cost(),
            Limit::LeakyBucket(bucket) => bucket.max_cost(),
            Limit::FixedWindow(window) => window.max_cost(),
            Limit::FixedRateWindow(window) => window.max_cost(),
            Limit::Unlimited => i64::MAX,
        }
    }

    /// Takes a number of tokens as the cost of a request under this limit.
    ///
    /// # Errors
    /// [`CostError`] if it is negative, or above [`Limit::max_cost`].
    #[inline]
    pub fn cost(&self, tokens: i64) -> Result<Cost, CostError> {
        if tokens < 0 {
            return Err(CostError::Negative { found: tokens });
        }
        let most = self.max_cost();
        if tokens > most {
            return Err(CostError::TooHigh { found: tokens, most });
        }
        Ok(Cost(tokens))
    }

    /// The limit as it applies to a caller with `factor`: a leaky bucket of another size, or none
    /// at all.
    ///
    /// # Errors
    /// [`LimitError`] if the factor is negative, makes a size beyond [`State::MAX_TALLY`], or this
    /// is another algorithm.
    pub fn with_factor(&self, factor: &Factor) -> Result<Limit, LimitError> {
        match self {
            Limit::LeakyBucket(bucket) => {
                Ok(bucket.with_factor(factor)?.map_or(Limit::Unlimited, Limit::LeakyBucket))
            }
            Limit::Unlimited => Ok(Limit::Unlimited),
            other => Err(LimitError::FactorForOther { algorithm: other.algorithm() }),
        }
    }

    /// Whether the windows of this limit start at an instant that depends on the bucket's key.
    #[inline]
    pub fn has_phase_per_key(&self) -> bool {
        match self {
            Limit::FixedWindow(window) => window.window.is_per_key(),
            Limit::FixedRateWindow(window) => window.window.is_per_key(),
            _ => false,
        }
    }

    /// The limit as it applies to the bucket whose key's text is `key`: a phase per key becomes
    /// that key's phase.
    pub fn for_key(&self, key: &str) -> Limit {
        match *self {
            Limit::FixedWindow(mut window) => {
                window.window = window.window.for_key(key);
                Limit::FixedWindow(window)
            }
            Limit::FixedRateWindow(mut window) => {
                window.window = window.window.for_key(key);
                Limit::FixedRateWindow(window)
            }
            other => other,
        }
    }

    /// Takes `cost` from a bucket if the bucket has it; a denied spend changes nothing but a TAT
    /// too late to be true.
    ///
    /// `state` is what the bucket remembers; `None` means a full bucket. `now` must be on
    /// the clock that wrote `state`; if it is earlier than the last spend, the bucket simply looks
    /// emptier.
    pub fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        match self {
            Limit::TokenBucket(bucket) => bucket.spend(cost, state, now),
            Limit::LeakyBucket(bucket) => bucket.spend(cost, state, now),
            Limit::FixedWindow(window) => window.spend(cost, state, now),
            Limit::FixedRateWindow(window) => window.spend(cost, state, now),
            Limit::Unlimited => Step::unlimited(now),
        }
    }

    /// Returns `cost` tokens to a bucket; never beyond a full one, and never to one that was not used.
    pub fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        match self {
            Limit::TokenBucket(bucket) => bucket.refund(cost, state, now),
            Limit::LeakyBucket(bucket) => bucket.refund(cost, state, now),
            Limit::FixedWindow(window) => window.refund(cost, state, now),
            Limit::FixedRateWindow(window) => window.refund(cost, state, now),
            Limit::Unlimited => Step::unlimited(now),
        }
    }

    /// Undoes an allowed spend of `cost` that is no longer wanted, such as one of a batch in which
    /// another bucket denied.
    ///
    /// `charged` is the state that the spend wrote, `found` the state of the bucket now, and `now`
    /// an instant read after `found`. Returns the state to write, or `None` if nothing is left to
    /// return. The bucket then admits no more than if the spend had never happened; only a window or
    /// the ticks of a leaky bucket that the spend started stay, as after a refund.
    pub fn give_back(
        &self,
        cost: Cost,
        charged: State,
        found: State,
        now: Timestamp,
    ) -> Option<State> {
        match self {
            Limit::TokenBucket(bucket) => bucket.give_back(cost, charged, found, now),
            Limit::LeakyBucket(bucket) => bucket.give_back(cost, charged, found, now),
            Limit::FixedWindow(window) => window.give_back(cost, charged, found, now),
            Limit::FixedRateWindow(window) => window.give_back(cost, charged, found, now),
            Limit::Unlimited => None,
        }
    }

    /// Takes `cost` from a bucket that need not have it yet, overdrawing it by at most what a full
    /// one holds.
    ///
    /// Until the overdraft is made good every spend is denied; `retry_after` says how long that is.
    /// In a window it is forgotten with the window. If the bucket cannot owe all of it, `overdraft`
    /// says what is taken; `allowed` whether all of it was.
    pub fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step {
        match self {
            Limit::TokenBucket(bucket) => bucket.charge(cost, overdraft, state, now),
            Limit::LeakyBucket(bucket) => bucket.charge(cost, overdraft, state, now),
            Limit::FixedWindow(window) => window.charge(cost, overdraft, state, now),
            Limit::FixedRateWindow(window) => window.charge(cost, overdraft, state, now),
            Limit::Unlimited => Step::unlimited(now),
        }
    }

    /// Takes a number of tokens as the cost of a charge in parts: as many as there can be in a
    /// bucket that is full and then overdrawn.
    pub fn cost_in_parts(&self, tokens: i64) -> Cost {
        let most = match self {
            Limit::FixedRateWindow(window) => window.count() + window.burst(),
            limit => limit.max_cost(),
        };
        Cost(tokens.clamp(0, most.saturating_mul(2)))
    }

    /// What a bucket remembers whose peek was `peek`, or something no less used up; `None` where
    /// there is no bucket.
    pub fn state_of(&self, peek: &Decision) -> Option<State> {
        match self {
            Limit::TokenBucket(bucket) => Some(bucket.state_of(peek)),
            Limit::LeakyBucket(bucket) => Some(bucket.state_of(peek)),
            Limit::FixedWindow(window) => Some(window.state_of(peek)),
            Limit::FixedRateWindow(window) => Some(window.state_of(peek)),
            Limit::Unlimited => None,
        }
    }
}
