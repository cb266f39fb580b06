//! Many independent decisions in one call.

use std::ops::Range;

use crate::clock::Clock;
use crate::engine::decision::Decision;
use crate::engine::factor::Adjustment;
use crate::engine::operation::Operation;
use crate::engine::verb::Verb;
use crate::limiter::bound::Resolved;
use crate::limiter::counters::StripeIndex;
use crate::limiter::{BoundLimit, Call, Failure, Limiter};
use crate::prefetch::{DISTANCE, prefetch};
use crate::store::{Bucket, Keyspace, Store};

/// The ids of a call, which are as many as its costs.
pub trait IdList {
    /// Calls `visit` with the indices and ids of a range, in order, until it fails. An invalid id is
    /// empty. The memory of later ids is prefetched.
    ///
    /// # Errors
    /// That of `visit`.
    fn try_for_each<'a, E>(
        &'a self,
        range: Range<usize>,
        visit: impl FnMut(usize, &'a str) -> Result<(), E>,
    ) -> Result<(), E>;
}

impl<T: AsRef<str>> IdList for [T] {
    #[inline(always)]
    fn try_for_each<'a, E>(
        &'a self,
        mut range: Range<usize>,
        mut visit: impl FnMut(usize, &'a str) -> Result<(), E>,
    ) -> Result<(), E> {
        range.try_for_each(|index| {
            if let Some(ahead) = self.get(index + DISTANCE) {
                prefetch(ahead.as_ref().as_ptr());
            }
            visit(index, self[index].as_ref())
        })
    }
}

/// The number of buckets that a store without waits is asked for at a time.
const BLOCK: usize = 256;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Spends for many ids independently, at one instant. `costs` has one element per id. `each`
    /// receives an index, its decision, and whether the limit is in shadow mode.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`], with the index of the failing id. All ids and costs are
    /// validated first. So tokens are spent only if the error is a store error, and exactly for the
    /// decisions passed to `each`.
    #[inline(always)]
    pub fn decide_each(
        &self,
        bound: &BoundLimit,
        ids: &(impl IdList + ?Sized),
        costs: &[i64],
        adjustment: Option<&Adjustment>,
        mut each: impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        ids.try_for_each(0..costs.len(), |index, id| {
            let call = Call { adjustment, ..Call::spend(id, costs[index]) };
            bound.validate(call).map_err(|error| (index, error))
        })?;
        let stripe = bound.counters.stripe(StripeIndex::choose());
        let (now, mut outcome) = (self.clock().read(bound.timeline), Ok(()));
        // Few at a time, which stay in the processor's cache. A store that waits gets them all at once.
        let len = if self.store().may_wait() { costs.len().max(1) } else { BLOCK };
        let mut block = Vec::with_capacity(len.min(costs.len()));
        for first in (0..costs.len()).step_by(len) {
            block.clear();
            ids.try_for_each(first..costs.len().min(first + len), |index, id| {
                let one = bound.resolve(Call { adjustment, ..Call::spend(id, costs[index]) });
                let one = one.map_err(|error| (index, error))?;
                if let Some(keyspace) = bound.keyspace(one.limit()) {
                    block.push((index, keyspace, one));
                } else {
                    bound.counters.count(stripe, Verb::Spend, true, one.rule.shadow, &one.id);
                    each(index, &Decision::unlimited(now.steady), one.rule.shadow);
                }
                Ok(())
            })?;
            let call = |at: usize| {
                let (_, keyspace, one): &(usize, &Keyspace, Resolved<'_>) = &block[at];
                let operation = Operation { verb: Verb::Spend, limit: one.limit(), cost: one.cost };
                let bucket = Bucket::new(keyspace, &one.id).on(one.limit().timeline());
                (bucket.hashed(one.id_hash), operation)
            };
            let mut allowed = 0;
            self.store().update_each(
                block.len(),
                call,
                now,
                #[inline(always)]
                |at, answer| match answer {
                    Ok(answer) => {
                        let (index, _, Resolved { id, rule, .. }) = &block[at];
                        let decision = call(at).1.numbers(answer);
                        if decision.allowed {
                            allowed += 1;
                        } else {
                            bound.counters.count(stripe, Verb::Spend, false, rule.shadow, id);
                        }
                        each(*index, &decision, rule.shadow);
                    }
                    Err(error) => outcome = Err((block[at].0, bound.store_failed(error))),
                },
            );
            bound.counters.count_allowed_spends(stripe, allowed);
            if outcome.is_err() {
                break;
            }
        }
        outcome
    }
}
