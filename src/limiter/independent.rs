//! Many ids in one call, each decided on its own.

use std::ops::Range;

use crate::clock::Clock;
use crate::engine::decision::Decision;
use crate::engine::id::IdFormat;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::engine::time::Timestamp;
use crate::limiter::bound::Prepared;
use crate::limiter::{BoundLimit, Failure, Limiter};
use crate::prefetch::prefetch;
use crate::store::{Bucket, Store};

/// So many calls go to the store at a time: enough to fetch ahead, few enough to stay at hand.
const CHUNK: usize = 64;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Spends for many ids, each on its own, at one instant; `costs` has one for each id.
    ///
    /// `answer` gets an index, the decision, and whether its limit is in shadow mode.
    ///
    /// # Errors
    /// As [`Limiter::decide`], with the place of the id at fault. All ids and costs are looked at
    /// before anything is spent, so only a store that fails midway leaves something spent.
    pub fn decide_each(
        &self,
        bound: &BoundLimit<S>,
        ids: &[impl AsRef<str>],
        costs: &[i64],
        mut answer: impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let plain = plain_limit(bound);
        for (place, (id, &cost)) in ids.iter().zip(costs).enumerate() {
            let id = id.as_ref();
            if plain.is_none_or(|limit| id.is_empty() || limit.cost(cost).is_err()) {
                bound.prepared(id, cost, None).map_err(|error| (place, error))?;
            }
        }
        let now = self.clock().now();
        for first in (0..ids.len()).step_by(CHUNK) {
            // Ids lie scattered, and with many of them the wait for memory is most of a call.
            for id in ids.iter().skip(first + CHUNK).take(CHUNK) {
                prefetch(id.as_ref().as_ptr());
            }
            let chunk = first..ids.len().min(first + CHUNK);
            match plain {
                Some(limit) => {
                    self.decide_plain(bound, limit, ids, costs, chunk, now, &mut answer)?
                }
                None => self.decide_chunk(bound, ids, costs, chunk, now, &mut answer)?,
            }
        }
        Ok(())
    }

    /// Decides for ids that are canonical as they stand, under one limit.
    #[expect(clippy::too_many_arguments, reason = "the parts of one loop, which only reads them")]
    #[inline(always)]
    fn decide_plain(
        &self,
        bound: &BoundLimit<S>,
        limit: &Limit,
        ids: &[impl AsRef<str>],
        costs: &[i64],
        chunk: Range<usize>,
        now: Timestamp,
        answer: &mut impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let first = chunk.start;
        let mut calls = Vec::with_capacity(CHUNK);
        for (id, &cost) in ids[chunk.clone()].iter().zip(&costs[chunk]) {
            if let (Some(space), Ok(cost)) = (bound.space(limit), limit.cost(cost)) {
                let operation = Operation { verb: Verb::Spend, limit, cost };
                calls.push((Bucket { space, id: id.as_ref() }, operation));
            }
        }
        let (stripe, shadow) = (self.stripe(bound), bound.entry().default_rule().shadow);
        let mut done = 0;
        let outcome = self.store().update_each(&calls, now, |call, decision| {
            done = call + 1;
            let (Bucket { id, .. }, _) = calls[call];
            bound.counters.count(stripe, Verb::Spend, decision.allowed, shadow, id);
            answer(first + call, decision, shadow);
        });
        outcome.map_err(|error| (first + done, bound.store_failed(error)))
    }

    /// Decides for ids of any format, each under the limit of its own rule.
    fn decide_chunk(
        &self,
        bound: &BoundLimit<S>,
        ids: &[impl AsRef<str>],
        costs: &[i64],
        chunk: Range<usize>,
        now: Timestamp,
        answer: &mut impl FnMut(usize, &Decision, bool),
    ) -> Result<(), (usize, Failure)> {
        let first = chunk.start;
        let prepared = chunk.map(|place| {
            let prepared = bound.prepared(ids[place].as_ref(), costs[place], None);
            prepared.map_err(|error| (place, error))
        });
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::with_capacity(prepared.len());
        let mut places = Vec::with_capacity(prepared.len());
        let stripe = self.stripe(bound);
        let count = |one: &Prepared<'_>, allowed| {
            bound.counters.count(stripe, Verb::Spend, allowed, one.rule.shadow, &one.id);
        };
        for (place, one) in (first..).zip(&prepared) {
            let (limit, cost) = (one.limit(), one.cost);
            match bound.space(limit) {
                None => {
                    count(one, true);
                    answer(place, &Decision::unlimited(now), one.rule.shadow);
                }
                Some(space) => {
                    let operation = Operation { verb: Verb::Spend, limit, cost };
                    calls.push((Bucket { space, id: &one.id }, operation));
                    places.push(place);
                }
            }
        }
        let mut done = 0;
        let outcome = self.store().update_each(&calls, now, |call, decision| {
            done = call + 1;
            let one = &prepared[places[call] - first];
            count(one, decision.allowed);
            answer(places[call], decision, one.rule.shadow);
        });
        let at = |done: usize| places.get(done).copied().unwrap_or(first);
        outcome.map_err(|error| (at(done), bound.store_failed(error)))
    }
}

/// The one limit of ids that need no spelling: of any format, without overrides, a token bucket.
fn plain_limit<S: Store>(bound: &BoundLimit<S>) -> Option<&Limit> {
    let entry = bound.entry();
    let limit = &entry.default_rule().limit;
    let is_plain = entry.id_format() == IdFormat::Any
        && entry.overrides().is_empty()
        && matches!(limit, Limit::TokenBucket(_));
    is_plain.then_some(limit)
}
