//! Many ids in one call, each decided on its own.

use crate::clock::Clock;
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::limiter::plain_rules::PlainRule;
use crate::limiter::store_ops::BucketStep;
use crate::limiter::{BoundLimit, Failure, Limiter};
use crate::prefetch::prefetch;
use crate::store::{Bucket, Store};

/// How many ids ahead the text of an id is fetched: ids lie scattered in memory.
const PREFETCH_DISTANCE: usize = 64;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Spends for many ids, each on its own, at one instant; `costs` has one element for each id.
    /// `each` receives an index, its decision, and whether the limit is in shadow mode.
    ///
    /// # Errors
    /// As [`Limiter::decide`], with the index of the failing id. All ids and costs are validated
    /// first, so only after a store error are tokens spent: those of the decisions in `each`.
    pub fn decide_each(
        &self,
        bound: &BoundLimit,
        ids: &[impl AsRef<str>],
        costs: &[i64],
        mut each: impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let stripe = self.stripe(bound);
        let count = |allowed, shadow, id: &str| {
            bound.counters.count(stripe, Verb::Spend, allowed, shadow, id);
        };
        if let Some(plain) = &bound.plain
            && let Some(&PlainRule { shadow, .. }) = plain.only_rule()
        {
            let (limit, keyspace) = (&bound.entry.default_rule().limit, &plain.keyspace);
            for (index, (id, &cost)) in ids.iter().zip(costs).enumerate() {
                if id.as_ref().is_empty() || limit.cost(cost).is_err() {
                    bound.resolve(id.as_ref(), cost, None).map_err(|error| (index, error))?;
                }
            }
            let call = |index: usize| {
                if let Some(ahead) = ids.get(index + PREFETCH_DISTANCE) {
                    prefetch(ahead.as_ref().as_ptr());
                }
                let cost = limit.cost(costs[index]).unwrap_or(Cost::ZERO);
                (Bucket { keyspace, id: ids[index].as_ref() }, limit, cost)
            };
            return self.spend_each(bound, ids.len(), call, |index, decision| {
                count(decision.allowed, shadow, ids[index].as_ref());
                each(index, decision, shadow);
            });
        }
        let resolved = ids.iter().zip(costs).enumerate().map(|(index, (id, &cost))| {
            bound.resolve(id.as_ref(), cost, None).map_err(|error| (index, error))
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
        let spent = self.spend_each(
            bound,
            calls.len(),
            |call| calls[call].1,
            |call, decision| {
                let index = calls[call].0;
                count(decision.allowed, resolved[index].rule.shadow, &resolved[index].id);
                each(index, decision, resolved[index].rule.shadow);
            },
        );
        spent.map_err(|(call, error)| (calls[call].0, error))
    }

    /// Spends at one instant.
    #[inline(always)]
    fn spend_each<'a>(
        &self,
        bound: &BoundLimit,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, &'a Limit, Cost),
        mut each: impl FnMut(usize, &Decision),
    ) -> Result<(), (usize, Failure)> {
        let mut outcome = Ok(());
        let call = |index| {
            let (bucket, limit, cost) = call(index);
            let operation = Operation { verb: Verb::Spend, limit, cost };
            (bucket, BucketStep { operation, clock: self.clock() })
        };
        self.store().update_each(count, call, self.clock().now(), |index, answer| match answer {
            Ok(decision) => each(index, decision),
            Err(error) => outcome = Err((index, bound.store_failed(error))),
        });
        outcome
    }
}
