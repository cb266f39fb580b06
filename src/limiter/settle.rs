//! Settling of reservations: replaces the estimated cost of a call by the actual cost.

use std::cmp;

use crate::clock::Clock;
use crate::engine::cost::{Cost, CostError};
use crate::engine::decision::Decision;
use crate::engine::verb::Verb;
use crate::limiter::{BoundLimit, Call, CallError, Decided, Failure, Limiter};
use crate::store::{Store, Wait};
use crate::sync::{AtomicU8, Ordering};

/// The stage of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The estimate is charged.
    Open,
    /// The actual cost is charged.
    Settled,
    /// Nothing is charged.
    Cancelled,
    /// The store's reply was lost while the reservation was settled or cancelled. It is unknown what is
    /// charged, and a retry could charge or refund twice.
    Unknown,
}

/// The current stage of a reservation, which can end only once.
#[derive(Debug)]
pub struct Progress(AtomicU8);

impl Progress {
    const STAGES: [Stage; 4] = [Stage::Open, Stage::Settled, Stage::Cancelled, Stage::Unknown];

    /// Creates the progress of an open reservation.
    pub fn new() -> Progress {
        Progress(AtomicU8::new(Stage::Open as u8))
    }

    /// Returns the stage.
    pub fn stage(&self) -> Stage {
        Progress::STAGES[usize::from(self.0.load(Ordering::Relaxed))]
    }

    /// Ends an open reservation. Must be called before the store is asked.
    ///
    /// # Errors
    /// The current stage, if the reservation is not open.
    pub fn end(&self, stage: Stage) -> Result<(), Stage> {
        // Relaxed: this orders no other access. The tokens were charged under the store's locks.
        let ended = self.0.compare_exchange(
            Stage::Open as u8,
            stage as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        ended.map(|_| ()).map_err(|found| Progress::STAGES[usize::from(found)])
    }

    /// Reverts the end of a reservation after an error. The stage is then open, or unknown if the store
    /// may have executed the operation.
    pub fn fail(&self, error: &CallError) {
        let is_unknown = matches!(error, CallError::Store(error) if error.is_outcome_unknown());
        let stage = if is_unknown { Stage::Unknown } else { Stage::Open };
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    /// Reverts the end of a reservation because the store was not asked.
    pub fn reopen(&self) {
        self.0.store(Stage::Open as u8, Ordering::Relaxed);
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Replaces the cost of `spend` by `actual` tokens: refunds or charges the difference.
    ///
    /// `spend` must have been allowed under the same `bound`. `actual` may exceed the burst.
    /// The charge overdraws the bucket by at most its burst; the rest is not taken, and the decision is
    /// then denied.
    ///
    /// # Errors
    /// [`CallError`] if `actual` is negative or the store does not answer. Nothing is then written.
    pub fn settle(
        &self,
        bound: &BoundLimit,
        spend: Call<'_>,
        actual: i64,
    ) -> Result<Decided, Failure> {
        if actual < 0 {
            let (limit, found) = (bound.entry().name().to_string(), actual);
            let source = CostError::Negative { found };
            return Err(Box::new(CallError::Cost { limit, source }));
        }
        let now = self.clock().read(bound.timeline);
        let mut resolved = bound.resolve(Call { cost: 0, ..spend })?;
        let limit = resolved.limit();
        let more = actual - spend.cost;
        let (verb, cost) = match more.cmp(&0) {
            cmp::Ordering::Less => (Verb::Refund, bound.cost(limit, -more)?),
            cmp::Ordering::Equal => (Verb::Check, Cost::ZERO),
            cmp::Ordering::Greater => (Verb::ChargePartial, limit.cost_in_parts(more)),
        };
        resolved.cost = cost;
        let mut decision = Decision::unlimited(now.steady);
        if let Some((bucket, operation)) = resolved.operation(verb) {
            let answer = self.store().update(bucket, &operation, now, Wait::Allowed);
            decision = operation.numbers(&answer.map_err(|error| bound.store_failed(error))?);
            decision.allowed |= verb != Verb::ChargePartial;
        }
        let shadow = resolved.rule.shadow;
        let effective_limit = resolved.effective_limit.filter(|_| spend.adjustment.is_some());
        Ok(Decided { decision, shadow, effective_limit })
    }
}
