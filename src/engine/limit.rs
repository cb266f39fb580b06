//! Limits, which are valid by construction.

pub(crate) use crate::engine::algorithm::dispatch;
pub use crate::engine::algorithm::{Limit, Rate};

use crate::engine::algorithm::calendar::Calendar;
use crate::engine::algorithm::description::Description;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::window::Window;
use crate::engine::algorithm::{Algorithm, RateAlgorithm};
use crate::engine::cost::{Cost, CostError};
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit_error::LimitError;
use crate::engine::state::{Lifetime, State, Write};
use crate::engine::time::{Timeline, Timestamp};
use crate::engine::verb::Verb;

impl Limit {
    /// Returns whether there is no limit.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self, Limit::Unlimited)
    }

    /// Returns the highest cost that can ever be allowed, in tokens; `i64::MAX` if unlimited.
    #[inline]
    pub fn max_cost(&self) -> i64 {
        dispatch!(self, rules => rules.max_cost(), i64::MAX)
    }

    /// Returns the cost of a request that takes `tokens`.
    ///
    /// # Errors
    /// [`CostError`] if it is negative, or above [`Limit::max_cost`].
    #[inline]
    pub fn cost(&self, tokens: i64) -> Result<Cost, CostError> {
        Cost::new(tokens, self.max_cost())
    }

    /// Returns the limit for a caller with `factor`: a leaky bucket of another size, or no limit.
    ///
    /// # Errors
    /// [`LimitError`] if the factor is negative, if it makes the size exceed [`State::MAX_TALLY`],
    /// or if this is another algorithm.
    pub fn with_factor(&self, factor: &Factor) -> Result<Limit, LimitError> {
        match self {
            Limit::Rate(Rate::LeakyBucket(bucket)) => {
                Ok(bucket.with_factor(factor)?.map_or(Limit::Unlimited, Limit::from))
            }
            Limit::Unlimited => Ok(Limit::Unlimited),
            other => Err(LimitError::FactorForOther { algorithm: other.algorithm() }),
        }
    }

    /// Returns the limit for a spend of `cost` tokens that must leave `keep`: the part of each bucket
    /// above them. Its states are those of this limit.
    ///
    /// # Errors
    /// [`CostError`] if a number is negative, or if both together are above [`Limit::max_cost`].
    pub fn keeping(&self, keep: i64, cost: i64) -> Result<Limit, CostError> {
        let most = self.max_cost();
        self.cost(cost)?;
        match keep {
            ..0 => Err(CostError::KeepNegative { found: keep }),
            _ if keep > most - cost => Err(CostError::KeepTooHigh { cost, keep, most }),
            _ => Ok(dispatch!(*self, rules => rules.keeping(keep).into(), Limit::Unlimited)),
        }
    }

    /// Returns the window of a limit that has one with a period and an anchor.
    pub fn window(&self) -> Option<&Window> {
        dispatch!(self, rules => Description::window(rules), None)
    }

    /// Returns the clock by which the limit counts: the wall clock for calendar windows and aligned windows.
    #[inline(always)]
    pub fn timeline(&self) -> Timeline {
        dispatch!(self, rules => rules.timeline(), Timeline::Steady)
    }

    /// Returns the calendar of a limit that has one.
    pub fn calendar(&self) -> Option<&Calendar> {
        dispatch!(self, rules => Description::calendar(rules), None)
    }

    /// Returns the slots of a limit on requests in flight.
    #[inline(always)]
    pub const fn slots(&self) -> Option<&InFlight> {
        if let Limit::Slots(slots) = self { Some(slots) } else { None }
    }

    /// Returns whether the start of the windows depends on the bucket's key.
    #[inline]
    pub fn has_phase_per_key(&self) -> bool {
        self.window().is_some_and(Window::is_per_key)
    }

    /// Returns the limit for the bucket `key`: a phase per key is replaced by that of this key.
    pub fn for_key(&self, key: &str) -> Limit {
        dispatch!(*self, rules => rules.for_key(key).into(), Limit::Unlimited)
    }

    /// Returns the description by its algorithm; `None` if unlimited.
    pub(super) fn rules(&self) -> Option<&dyn Description> {
        dispatch!(self, rules => Some(rules), None)
    }

    /// Applies a spend to a state.
    #[inline]
    pub(super) fn spend_state(
        &self,
        cost: Cost,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        dispatch!(self, rules => rules.spend(cost, found, now), (true, Write::Keep))
    }

    /// Applies an operation to a state: whether it is allowed, and what it writes. A check returns
    /// the write of a spend.
    #[inline]
    pub(super) fn apply(
        &self,
        verb: Verb,
        cost: Cost,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        dispatch!(self, rules => rules.apply(verb, cost, found, now), (true, Write::Keep))
    }

    /// Returns the numbers of a call that left the state `after`.
    #[inline]
    pub(super) fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        dispatch!(
            self,
            rules => rules.numbers(verb, cost, allowed, after, now),
            Decision::unlimited(now)
        )
    }

    /// Returns how long a store must keep `state`.
    #[inline]
    pub fn lifetime(&self, state: Option<State>) -> Lifetime {
        let state = state.unwrap_or(State::from_instant(Timestamp::ORIGIN));
        dispatch!(self, rules => rules.lifetime(state), Lifetime::INSTANT)
    }

    /// Undoes an allowed spend of `cost`, for example one of a batch in which another bucket
    /// denied.
    ///
    /// `charged` is the state that the spend wrote, `found` the state of the bucket now, and `now`
    /// an instant read after `found`. Writes nothing if no token is left to return. The bucket then admits no more than if the spend had never happened. As after a
    /// refund, a window or the ticks that the spend started remain.
    pub fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Write {
        dispatch!(
            self,
            rules => rules.give_back(cost, charged, found, now).map_or(Write::Keep, |state| {
                // The bucket is live, so it already has a lifetime, and lifetimes never shrink.
                Write::Put(state, Lifetime::INSTANT)
            }),
            slots => slots.give_back(cost, charged, found, now),
            Write::Keep
        )
    }

    /// Returns the cost of a partial charge: `tokens`, but at most one more than a full bucket can be
    /// charged.
    pub fn cost_in_parts(&self, tokens: i64) -> Cost {
        Cost(tokens.clamp(0, self.capacity().saturating_mul(2).saturating_add(1)))
    }
}
