//! What a call that waits asks of the limiter. It is counted once, when it is served or refused.

use crate::clock::Clock;
use crate::engine::answer::{Answer, Outcome as Found};
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::batch::Timing;
use crate::limiter::counters::StripeIndex;
use crate::limiter::error::store_failed;
use crate::limiter::{
    Answered, AnsweredAll, BoundLimit, Call, Decided, Failure, Limiter, Prepared, Transaction,
};
use crate::store::{Store, StoreError, Wait};

/// What a question is counted as that is not counted.
const UNCOUNTED: Verb = Verb::Charge;

/// The cost of a call that waits, and the tokens that it must leave.
pub type Demand = (i64, i64);

/// The estimated turn of the last call in a queue, on the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The instant at which the bucket was read.
    now: Timestamp,
    /// The turn, and the bucket's state after it.
    turn: (Timestamp, Option<State>),
}

impl Estimate {
    /// Returns the time from reading the bucket to the turn.
    pub fn wait(&self) -> Nanos {
        Nanos::clamped(self.turn.0.get() - self.now.get())
    }
}

impl Prepared<'_> {
    /// Makes the call of a caller that waits if it is denied count only if it is allowed.
    pub(in crate::limiter) fn count_if_allowed(&mut self, answer: &Answer) {
        if !answer.allowed() && !self.resolved.rule.shadow {
            self.call.verb = UNCOUNTED;
        }
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Returns the id in canonical form, after checking that a waiter for a call can be served.
    ///
    /// # Errors
    /// [`CallError`](crate::limiter::CallError) if the id, the cost or the tokens to keep are invalid.
    pub fn waiter_id(&self, bound: &BoundLimit, call: Call<'_>) -> Result<String, Failure> {
        Ok(bound.resolve(call)?.id.into_owned())
    }

    /// Makes a call of a caller that waits if it is denied. Returns whether it is allowed; only then is it
    /// counted, and `answered` written.
    ///
    /// # Errors
    /// The same as [`Limiter::answer`]; with [`Wait::Never`], also that the store would have to wait.
    #[inline(always)]
    pub fn take(
        &self,
        bound: &BoundLimit,
        call: Call<'_>,
        wait: Wait,
        answered: &mut Answered,
    ) -> Result<bool, Failure> {
        let now = self.clock().read(bound.timeline);
        let call = bound.prepare(call)?;
        let answer = self.ask_within(&call, now, wait);
        let answer = answer.map_err(|error| match error.into() {
            StoreError::WouldWait => store_failed(StoreError::WouldWait),
            error => bound.store_failed(error),
        })?;
        let is_allowed = answer.allowed() || call.resolved.rule.shadow;
        if is_allowed {
            self.conclude(call, answer, answered);
        }
        Ok(is_allowed)
    }

    /// Returns the decision of a waiter that leaves without what it wanted, and counts a denial.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn refuse(&self, bound: &BoundLimit, check: Call<'_>) -> Result<Decided, Failure> {
        let now = self.clock().read(bound.timeline);
        let call = bound.prepare(check)?;
        let (answer, shadow) = (self.ask(&call, now)?, call.resolved.rule.shadow);
        bound.counters.count(call.stripe, Verb::Reserve, false, shadow, &call.resolved.id);
        let mut decided = self.decided(call, answer, UNCOUNTED);
        decided.decision.allowed = false;
        Ok(decided)
    }

    /// Decides a call of a waiter about several buckets. Counts it only if it is allowed, because a waiter
    /// that is not served yet is not denied.
    ///
    /// # Errors
    /// The same as [`Limiter::answer_all`].
    pub fn place_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<AnsweredAll, Failure> {
        self.ask_all(
            verb,
            transactions,
            Timing::None,
            |allowed| allowed.then_some(verb),
            Wait::Allowed,
        )
    }

    /// Charges the cost of a call before its tokens are there, so that no other call can take them: the bucket
    /// goes into debt. The call is counted when it is [served](Limiter::count_served).
    ///
    /// # Errors
    /// The same as [`Limiter::answer_all`].
    pub fn charge(&self, transactions: &[Transaction]) -> Result<AnsweredAll, Failure> {
        self.ask_all(Verb::Charge, transactions, Timing::None, |_| None, Wait::Allowed)
    }

    /// Counts a call that is served by a charge under this limit.
    pub fn count_served(&self, bound: &BoundLimit, id: &str) {
        let stripe = bound.counters.stripe(StripeIndex::choose());
        bound.counters.count(stripe, Verb::Spend, true, false, id);
    }

    /// Returns the decision of a call that is served by a charge: what is left in the bucket, and when the
    /// same call could be allowed again.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn served(&self, bound: &BoundLimit, check: Call<'_>) -> Result<Decided, Failure> {
        let now = self.clock().read(bound.timeline);
        let call = bound.prepare(check)?;
        let answer = self.ask(&call, now)?;
        // The numbers without the cost.
        let spared = Answer { outcome: Found::Spared, ..answer };
        let current = call.operation().map(|(_, operation)| operation.numbers(&spared));
        let mut decided = self.decided(call, answer, UNCOUNTED);
        let next = decided.decision;
        let retry_after = if next.allowed { Nanos::ZERO } else { next.retry_after };
        decided.decision = Decision { allowed: true, retry_after, ..current.unwrap_or(next) };
        Ok(decided)
    }

    /// Checks a call of a waiter about several buckets that leaves without it, and counts each decision as
    /// one of `verb`.
    ///
    /// # Errors
    /// The same as [`Limiter::answer_all`].
    pub fn refuse_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<AnsweredAll, Failure> {
        self.ask_all(Verb::Check, transactions, Timing::None, |_| Some(verb), Wait::Allowed)
    }

    /// Estimates when the last of `demands` will be served, if each is spent as soon as possible and no
    /// other call spends. The first is served after `after`, or from now on. Returns `None` if the id is not
    /// limited.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn estimate(
        &self,
        bound: &BoundLimit,
        id: &str,
        demands: &[Demand],
        after: Option<Estimate>,
    ) -> Result<Option<Estimate>, Failure> {
        let read = self.clock().read(bound.timeline);
        let call = bound.prepare(Call::check(id, 0))?;
        let limit = call.resolved.limit();
        if limit.is_unlimited() {
            return Ok(None);
        }
        let Estimate { now, turn } = match after {
            Some(estimate) => estimate,
            None => {
                let Answer { found, now, outcome } = self.ask(&call, read)?;
                let turn = match (outcome, found) {
                    // A full store has no space before this instant, and the bucket is new then.
                    (Found::Refused, Some(until)) => (until.instant(), None),
                    _ => (now, found),
                };
                Estimate { now, turn }
            }
        };
        let turn = demands.iter().fold(turn, |turn, &demand| next(limit, turn, demand));
        Ok(Some(Estimate { now, turn }))
    }
}

/// Returns the turn of the waiter after the one at `now`, and the bucket's state after its turn.
fn next(
    limit: &Limit,
    (now, state): (Timestamp, Option<State>),
    (cost, keep): Demand,
) -> (Timestamp, Option<State>) {
    // If the limit was lowered, it may never allow the original cost.
    let cost = cost.clamp(0, limit.max_cost());
    let limit = limit.keeping(keep.min(limit.max_cost() - cost), cost).unwrap_or(*limit);
    let Ok(cost) = limit.cost(cost) else { return (now, state) };
    let step = limit.spend(cost, state, now);
    if step.decision.allowed {
        return (now, step.after.or(state));
    }
    let now = now.saturating_add(step.decision.retry_after);
    let step = limit.spend(cost, state, now);
    // Still denied only if the turn lies past the largest timestamp.
    (if step.decision.allowed { now } else { Timestamp::MAX }, step.after.or(state))
}
