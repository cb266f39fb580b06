//! Operations on buckets.

use crate::engine::algorithm::{Algorithm, Overdraft, Step};
use crate::engine::answer::{Answer, Outcome};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit::{Limit, Rate};
use crate::engine::state::{Lease, State, Write};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;

/// An operation on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// The kind of the operation.
    pub verb: Verb,
    /// The limit that applies to this bucket.
    pub limit: &'a Limit,
    /// The cost in tokens.
    pub cost: Cost,
}

impl Operation<'_> {
    /// Applies the operation to a state: whether it is allowed, and what it writes.
    #[inline(always)]
    pub fn apply(&self, found: Option<State>, now: Timestamp) -> (bool, Write) {
        match (self.verb, self.limit) {
            // Inlined into the store, because almost every call is one.
            (Verb::Spend, Limit::Rate(Rate::TokenBucket(bucket))) => {
                bucket.spend(self.cost, found, now)
            }
            _ => self.apply_other(found, now),
        }
    }

    #[inline(never)]
    fn apply_other(&self, found: Option<State>, now: Timestamp) -> (bool, Write) {
        match (self.verb, self.limit) {
            // Most of the others are spends, too, which need none of the code for the other verbs.
            (Verb::Spend, limit) => limit.spend_state(self.cost, found, now),
            (Verb::Reserve | Verb::Release(_), Limit::Slots(slots)) => {
                slots.apply(self.verb, self.cost, found, now)
            }
            (verb, limit) => {
                let (allowed, write) = limit.apply(verb, self.cost, found, now);
                (allowed, if verb == Verb::Check { Write::Keep } else { write })
            }
        }
    }

    /// Computes the decision from what a store found and did.
    #[inline]
    pub fn numbers(&self, answer: &Answer) -> Decision {
        match (self.verb, self.limit, answer.outcome) {
            // Inlined for `spend_each`, which computes the numbers of each id.
            (Verb::Spend, Limit::Rate(Rate::TokenBucket(bucket)), Outcome::Allowed) => {
                let Answer { found, now, .. } = *answer;
                let (allowed, write) = bucket.spend(self.cost, found, now);
                let after = write.state().map(|(state, _)| state).or(found);
                bucket.numbers(self.verb, self.cost, allowed, after, now)
            }
            _ => self.other_numbers(answer),
        }
    }

    #[inline(never)]
    fn other_numbers(&self, answer: &Answer) -> Decision {
        let Answer { found, now, outcome } = *answer;
        let numbers =
            |verb, cost, allowed, after| self.limit.numbers(verb, cost, allowed, after, now);
        match outcome {
            // Denied changes nothing, except that a partial charge takes what it can, and the renewal of
            // expired slots takes them again.
            Outcome::Denied if !(self.verb.is_partial() || matches!(self.verb, Verb::Renew(_))) => {
                numbers(self.verb, self.cost, false, found)
            }
            Outcome::Allowed | Outcome::Denied => {
                let (_, write) = self.limit.apply(self.verb, self.cost, found, now);
                let after = write.state().map(|(state, _)| state).or(found);
                numbers(self.verb, self.cost, outcome == Outcome::Allowed, after)
            }
            // An identical request could be allowed immediately.
            Outcome::Spared => {
                let peek = numbers(Verb::Check, Cost::ZERO, true, found);
                Decision { retry_after: Nanos::ZERO, ..peek }
            }
            // There is nothing to return in a bucket that does not exist.
            Outcome::Refused if self.verb.returns() => numbers(self.verb, self.cost, false, None),
            Outcome::Refused => Decision::refused(found.map_or(now, State::instant), now),
        }
    }

    /// Returns the lease of the slots that the operation has taken or kept: [`Lease::NONE`] if they could
    /// not be counted; `None` if the operation has none.
    pub fn lease(&self, answer: &Answer) -> Option<Lease> {
        let Limit::Slots(slots) = self.limit else { return None };
        let Answer { found, now, outcome } = *answer;
        match (self.verb, outcome) {
            (Verb::Reserve, Outcome::Allowed) => {
                (self.cost != Cost::ZERO).then(|| slots.lease_at(found, now))
            }
            (Verb::Renew(_), Outcome::Refused) => Some(Lease::NONE),
            (Verb::Renew(kept), _) => {
                let (is_held, write) = self.limit.apply(self.verb, self.cost, found, now);
                Some(slots.lease_renewed(kept, is_held, write.state().map(|(state, _)| state)))
            }
            _ => None,
        }
    }

    /// Returns how many of the slots that it releases or renews were not found in the bucket.
    pub fn missing(&self, answer: &Answer) -> Cost {
        match (self.verb, self.limit, answer.outcome) {
            // A release is allowed if it has found at least one.
            (Verb::Release(_), _, Outcome::Allowed) if self.cost.get() == 1 => Cost::ZERO,
            (Verb::Release(lease), Limit::Slots(slots), Outcome::Allowed) => {
                slots.missing(self.cost, lease, answer.found, answer.now)
            }
            (Verb::Release(_) | Verb::Renew(_), _, Outcome::Denied | Outcome::Refused) => self.cost,
            _ => Cost::ZERO,
        }
    }

    /// Applies the operation, with its numbers.
    #[inline]
    pub fn step(&self, found: Option<State>, now: Timestamp) -> Step {
        let (allowed, write) = self.limit.apply(self.verb, self.cost, found, now);
        let after = write.state().map(|(state, _)| state);
        let decision = self.limit.numbers(self.verb, self.cost, allowed, after.or(found), now);
        let lifetime = self.limit.lifetime(after.or(found));
        let after = after.filter(|_| self.verb != Verb::Check);
        Step { decision, after, lifetime }
    }
}

impl Limit {
    /// Takes `cost` tokens from a bucket if it has them. A denied spend changes nothing.
    ///
    /// `state` is the stored state; `None` means a full bucket. `now` must come from the clock that
    /// wrote `state`; if it is earlier than the last spend, the bucket appears emptier.
    #[inline]
    pub fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        Operation { verb: Verb::Spend, limit: self, cost }.step(state, now)
    }

    /// Returns `cost` tokens to a bucket, up to a full one.
    pub fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        Operation { verb: Verb::Refund, limit: self, cost }.step(state, now)
    }

    /// Takes `cost` tokens even if the bucket does not have them yet, overdrawing it by at most the
    /// content of a full one.
    ///
    /// Every spend is denied until the overdraft is repaid, which takes `retry_after`; the
    /// overdraft of a window ends with the window. If the cost would overdraw the bucket too far,
    /// `overdraft` determines how much is taken. `allowed` tells whether all of it was.
    pub fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step {
        let verb = match overdraft {
            Overdraft::AllOrNothing => Verb::Charge,
            Overdraft::Partial => Verb::ChargePartial,
        };
        Operation { verb, limit: self, cost }.step(state, now)
    }
}
