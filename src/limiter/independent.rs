//! Many independent decisions in one call.

use crate::clock::Clock;
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::operation::{Operation, Verb};
use crate::limiter::store_ops::BucketStep;
use crate::limiter::{BoundLimit, Call, Failure, Limiter};
use crate::prefetch::{DISTANCE, prefetch};
use crate::store::{Bucket, Store};

/// The ids of a call, which are as many as its costs.
pub trait Ids {
    /// Returns the id at an index; empty if it is not a valid id.
    fn id(&self, index: usize) -> &str;

    /// Calls `visit` with each id in order, until it returns `None`.
    fn try_for_each(&self, visit: impl FnMut(&str) -> Option<()>) -> Option<()>;
}

impl<T: AsRef<str>> Ids for [T] {
    #[inline(always)]
    fn id(&self, index: usize) -> &str {
        self[index].as_ref()
    }

    #[inline(always)]
    fn try_for_each(&self, mut visit: impl FnMut(&str) -> Option<()>) -> Option<()> {
        self.iter().enumerate().try_for_each(|(index, id)| {
            if let Some(ahead) = self.get(index + DISTANCE) {
                prefetch(ahead.as_ref().as_ptr());
            }
            visit(id.as_ref())
        })
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Spends for many ids independently, at one instant. `costs` has one element per id. `each`
    /// receives an index, its decision, and whether the limit is in shadow mode.
    ///
    /// # Errors
    /// The same as [`Limiter::decide`], with the index of the failing id. All ids and costs are
    /// validated first. So tokens are spent only if the error is a store error, and exactly for the
    /// decisions passed to `each`.
    pub fn decide_each(
        &self,
        bound: &BoundLimit,
        ids: &[impl AsRef<str>],
        costs: &[i64],
        mut each: impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let each: &mut dyn FnMut(usize, &Decision, bool) = &mut each;
        if let Some(outcome) = self.try_decide_each(bound, ids, costs, &mut *each) {
            return outcome;
        }
        let stripe = self.stripe(bound);
        let count = |allowed, shadow, id: &str| {
            bound.counters.count(stripe, Verb::Spend, allowed, shadow, id);
        };
        let resolved = ids.iter().zip(costs).enumerate().map(|(index, (id, &cost))| {
            bound.resolve(Call::spend(id.as_ref(), cost)).map_err(|error| (index, error))
        });
        let resolved = resolved.collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::with_capacity(resolved.len());
        for (index, one) in resolved.iter().enumerate() {
            match bound.keyspace(one.limit()) {
                Some(keyspace) => {
                    calls.push((index, (Bucket { keyspace, id: &one.id }, one.limit(), one.cost)));
                }
                None => {
                    count(true, one.rule.shadow, &one.id);
                    each(index, &Decision::unlimited(self.clock().now()), one.rule.shadow);
                }
            }
        }
        let hashes: Vec<u64> = calls.iter().map(|(_, (bucket, ..))| bucket.hash()).collect();
        let bucket = |call: usize| calls[call].1.0;
        let operation = |call: usize| {
            let (_, limit, cost) = calls[call].1;
            Operation { verb: Verb::Spend, limit, cost }
        };
        self.spend_each(bound, &hashes, bucket, operation, |call, decision| {
            let index = calls[call].0;
            count(decision.allowed, resolved[index].rule.shadow, &resolved[index].id);
            each(index, decision, resolved[index].rule.shadow);
        })
        .map_err(|(call, error)| (calls[call].0, error))
    }

    /// Does the same as [`Limiter::decide_each`] if the limit is plain and the ids and costs are valid.
    /// Otherwise writes nothing and returns `None`.
    pub fn try_decide_each(
        &self,
        bound: &BoundLimit,
        ids: &(impl Ids + ?Sized),
        costs: &[i64],
        mut each: impl FnMut(usize, &Decision, bool),
    ) -> Option<Result<(), (usize, Failure)>> {
        let plain = bound.plain.as_ref()?;
        let hashes = plain.hashes(ids, costs)?;
        let stripe = self.stripe(bound);
        let rule = |index: usize| plain.rules.rule_for(|| hashes[index]);
        let bucket = |index: usize| Bucket { keyspace: &plain.keyspace, id: ids.id(index) };
        let operation = |index: usize| {
            let cost = plain.rules.cost(costs[index]).unwrap_or(Cost::ZERO);
            Operation { verb: Verb::Spend, limit: &rule(index).limit, cost }
        };
        // Each of the closures is called in one loop for each kind of store.
        Some(self.spend_each(
            bound,
            &hashes,
            bucket,
            operation,
            #[inline(always)]
            |index, decision| {
                let shadow = rule(index).shadow;
                // Only the ids of denied calls are counted.
                let id = if decision.allowed { "" } else { ids.id(index) };
                bound.counters.count(stripe, Verb::Spend, decision.allowed, shadow, id);
                each(index, decision, shadow);
            },
        ))
    }

    /// Runs one operation per bucket, all at one instant. `hashes` are the hashes of the buckets.
    #[inline(always)]
    fn spend_each<'a>(
        &'a self,
        bound: &BoundLimit,
        hashes: &[u64],
        bucket: impl Fn(usize) -> Bucket<'a>,
        operation: impl Fn(usize) -> Operation<'a>,
        mut each: impl FnMut(usize, &Decision),
    ) -> Result<(), (usize, Failure)> {
        let mut outcome = Ok(());
        let step = |index| BucketStep { operation: operation(index), clock: self.clock() };
        let now = self.clock().now();
        self.store().update_each(
            hashes,
            bucket,
            step,
            now,
            #[inline(always)]
            |index, answer| match answer {
                Ok(answer) => each(index, answer),
                Err(error) => outcome = Err((index, bound.store_failed(error))),
            },
        );
        outcome
    }
}
