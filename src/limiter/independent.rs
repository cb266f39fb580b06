//! Many independent decisions in one call.

use crate::clock::Clock;
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::operation::{Operation, Verb};
use crate::limiter::plain::PlainLimit;
use crate::limiter::store_ops::BucketStep;
use crate::limiter::{BoundLimit, Call, Failure, Limiter};
use crate::store::{Bucket, Store};

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
        if let Some(plain) = &bound.plain
            && let Some(hashes) = plain.hashes(ids, costs)
        {
            return self.decide_each_plain(bound, plain, &hashes, ids, costs, each);
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
        let call = |call: usize| {
            let (bucket, limit, cost) = calls[call].1;
            let operation = Operation { verb: Verb::Spend, limit, cost };
            (bucket, BucketStep { operation, clock: self.clock() })
        };
        self.spend_each(bound, &hashes, call, |call, decision| {
            let index = calls[call].0;
            count(decision.allowed, resolved[index].rule.shadow, &resolved[index].id);
            each(index, decision, resolved[index].rule.shadow);
        })
        .map_err(|(call, error)| (calls[call].0, error))
    }

    /// Does the work of [`Limiter::decide_each`] for a plain limit and valid ids and costs. `hashes` are
    /// the hashes of the buckets.
    fn decide_each_plain(
        &self,
        bound: &BoundLimit,
        plain: &PlainLimit,
        hashes: &[u64],
        ids: &[impl AsRef<str>],
        costs: &[i64],
        mut each: impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let (stripe, clock) = (self.stripe(bound), self.clock());
        let rule = |index: usize| plain.rules.rule_for(|| hashes[index]);
        let call = |index: usize| {
            let bucket = Bucket { keyspace: &plain.keyspace, id: ids[index].as_ref() };
            let (limit, cost) = (&rule(index).limit, plain.rules.cost(costs[index]));
            let cost = cost.unwrap_or(Cost::ZERO);
            (bucket, BucketStep { operation: Operation { verb: Verb::Spend, limit, cost }, clock })
        };
        self.spend_each(bound, hashes, call, |index, decision| {
            let (shadow, id) = (rule(index).shadow, ids[index].as_ref());
            bound.counters.count(stripe, Verb::Spend, decision.allowed, shadow, id);
            each(index, decision, shadow);
        })
    }

    /// Runs one step per bucket, all at one instant. `hashes` are the hashes of the buckets.
    #[inline(always)]
    fn spend_each<'a>(
        &'a self,
        bound: &BoundLimit,
        hashes: &[u64],
        call: impl Fn(usize) -> (Bucket<'a>, BucketStep<'a, C>),
        mut each: impl FnMut(usize, &Decision),
    ) -> Result<(), (usize, Failure)> {
        let mut outcome = Ok(());
        self.store().update_each(hashes, call, self.clock().now(), |index, answer| match answer {
            Ok(answer) => each(index, answer),
            Err(error) => outcome = Err((index, bound.store_failed(error))),
        });
        outcome
    }
}
