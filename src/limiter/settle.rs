//! Settling: the actual cost of a call in place of the estimate it was charged.

use std::cmp::Ordering;

use crate::clock::Clock;
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit::{Cost, CostError};
use crate::engine::operation::{Operation, Verb};
use crate::limiter::store_ops::BucketStep;
use crate::limiter::{BoundLimit, CallError, Decided, Failure, Limiter};
use crate::store::{Bucket, Store};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Replaces a charge of `taken` by one of `actual`: refunds or charges the difference.
    ///
    /// `taken` must have been spent under this same `bound`, with this factor. A charge may
    /// overdraw the bucket by at most its burst: what exceeds that is not taken, and the decision
    /// is then not allowed. `actual` may be of any size.
    ///
    /// # Errors
    /// [`CallError`] if `actual` is negative or the store does not answer; nothing is then written.
    pub fn settle(
        &self,
        bound: &BoundLimit,
        id: &str,
        taken: i64,
        actual: i64,
        factor: Option<&Factor>,
    ) -> Result<Decided, Failure> {
        if actual < 0 {
            let (limit, found) = (bound.entry().name().to_string(), actual);
            let source = CostError::Negative { found };
            return Err(Box::new(CallError::Cost { limit, source }));
        }
        let resolved = bound.resolve(id, 0, factor)?;
        let limit = resolved.limit();
        let more = actual - taken;
        let (verb, cost) = match more.cmp(&0) {
            Ordering::Less => (Verb::Refund, bound.cost(limit, -more)?),
            Ordering::Equal => (Verb::Check, Cost::ZERO),
            Ordering::Greater => (Verb::ChargePartly, limit.cost_in_parts(more)),
        };
        let now = self.clock().now();
        let mut decision = Decision::unlimited(now);
        if let Some(keyspace) = bound.keyspace(limit) {
            let bucket = Bucket { keyspace, id: &resolved.id };
            let operation = Operation { verb, limit, cost };
            let step = BucketStep { operation, clock: self.clock() };
            self.store()
                .update(bucket, &step, now, &mut decision)
                .map_err(|error| bound.store_failed(error))?;
            decision.allowed = match verb {
                Verb::ChargePartly => decision.allowed && cost.get() == more,
                _ => true,
            };
        }
        let shadow = resolved.rule.shadow;
        let effective_limit = resolved.effective_limit.filter(|_| factor.is_some());
        Ok(Decided { decision, shadow, effective_limit })
    }
}
