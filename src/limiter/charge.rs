//! Charging and turn times of waiters.

use crate::clock::Clock;
use crate::engine::answer::{Answer, Outcome};
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::batch::Timing;
use crate::limiter::counters::StripeIndex;
use crate::limiter::error::store_failed;
use crate::limiter::queue::{Demand, Estimate, Pace, Placing};
use crate::limiter::{
    Answered, AnsweredAll, BoundLimit, Call, Decided, Failure, Limiter, Prepared, Transaction,
};
use crate::store::{Store, StoreError, Wait};

/// What a question on behalf of a waiter is counted as: nothing. The waiter is counted once, as a spend,
/// when it is served or refused.
const UNCOUNTED: Verb = Verb::Charge;

impl Prepared<'_> {
    /// Makes the call of a caller that waits if it is denied count only if it is allowed.
    pub(super) fn count_if_allowed(&mut self, answer: &Answer) {
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
        let call = bound.prepare(call)?;
        let answer = self.ask_within(&call, wait);
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

    /// Charges the cost of a call for a waiter, so that no other call can take these tokens. The call is a
    /// spend, or a reservation, which alone may take slots. It is not counted before the waiter is
    /// [served](Limiter::count_served).
    ///
    /// Token and leaky buckets may go into debt. A window forgets its debt when it ends, so it is
    /// charged only when it has room. So is any bucket for a waiter that must leave tokens, which
    /// a debt would take.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn place(&self, bound: &BoundLimit, call: Call<'_>) -> Result<Placing, Failure> {
        let canonical = bound.canonical(call.id)?;
        let limit = &bound.entry().rule_for(&canonical).limit;
        let repayment = limit.repayment(call.cost);
        let keeps = call.adjustment.is_some();
        let verb = if repayment.is_some() && !keeps { Verb::Charge } else { call.verb };
        let interval = repayment.and_then(|repayment| repayment.interval);
        let pace = Pace { algorithm: limit.algorithm(), interval };
        let call = bound.prepare(Call { verb, id: &canonical, ..call })?;
        let answer = self.ask(&call)?;
        let lease = call.operation().and_then(|(_, operation)| operation.lease(&answer));
        let decided = self.decided(call, answer, UNCOUNTED);
        // The `retry_after` of an allowed spend is the wait for the next one.
        let is_served = decided.shadow || verb != Verb::Charge && decided.decision.allowed;
        let wait = if is_served { Nanos::ZERO } else { decided.decision.retry_after };
        Ok(Placing { decided, wait, pace, lease, is_polled: false })
    }

    /// Counts a waiter that is served, under the limit that was charged.
    pub fn count_served(&self, bound: &BoundLimit, id: &str, charged: &Decided) {
        let Decided { decision, shadow, .. } = charged;
        let stripe = bound.counters.stripe(StripeIndex::choose());
        bound.counters.count(stripe, Verb::Spend, decision.allowed, *shadow, id);
    }

    /// Checks a call on behalf of a waiter, without counting it.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn peek(&self, bound: &BoundLimit, check: Call<'_>) -> Result<Decided, Failure> {
        let call = bound.prepare(check)?;
        let answer = self.ask(&call)?;
        Ok(self.decided(call, answer, UNCOUNTED))
    }

    /// Returns the decision of a waiter that is served: what is left in the bucket, and when the same call
    /// could be allowed again.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn served(&self, bound: &BoundLimit, check: Call<'_>) -> Result<Decided, Failure> {
        let call = bound.prepare(check)?;
        let answer = self.ask(&call)?;
        // The numbers without the cost.
        let spared = Answer { outcome: Outcome::Spared, ..answer };
        let current = call.operation().map(|(_, operation)| operation.numbers(&spared));
        let mut decided = self.decided(call, answer, UNCOUNTED);
        let next = decided.decision;
        let retry_after = if next.allowed { Nanos::ZERO } else { next.retry_after };
        decided.decision = Decision { allowed: true, retry_after, ..current.unwrap_or(next) };
        Ok(decided)
    }

    /// Returns the decision of a waiter that leaves without what it wanted, and counts a denial.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`].
    pub fn refuse(&self, bound: &BoundLimit, check: Call<'_>) -> Result<Decided, Failure> {
        let call = bound.prepare(check)?;
        let (answer, shadow) = (self.ask(&call)?, call.resolved.rule.shadow);
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
        let call = bound.prepare(Call::check(id, 0))?;
        let limit = call.resolved.limit();
        if limit.is_unlimited() {
            return Ok(None);
        }
        let Estimate { now, turn } = match after {
            Some(estimate) => estimate,
            None => {
                let Answer { found, now, outcome } = self.ask(&call)?;
                let turn = match (outcome, found) {
                    // A full store has no space before this instant, and the bucket is new then.
                    (Outcome::Refused, Some(until)) => (until.instant(), None),
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
