//! Counting the decisions of batches, and reading the counters.

use crate::clock::{Clock, Stopwatch};
use crate::engine::batch::Kind;
use crate::engine::decision::Decision;
use crate::engine::key::{LimitName, bucket_key};
use crate::engine::operation::Verb;
use crate::limiter::bound::{BoundLimit, Resolved};
use crate::limiter::counters::{Counts, Stripe};
use crate::limiter::error::{self, Failure, unknown_limit};
use crate::limiter::thread_slot::thread_slot;
use crate::limiter::top_denied::HeavyHitter;
use crate::limiter::{Limiter, Transaction};
use crate::store::{Store, StoreError};

/// The bucket key, the limit's name and the count of a client that is denied often.
pub type DeniedBucket = (String, LimitName, HeavyHitter);

impl<S: Store, C: Clock> Limiter<S, C> {
    /// The counts of each limit since the limiter was made. Limits that a reload has removed come
    /// last. No number ever decreases.
    pub fn counts(&self) -> Vec<(LimitName, Counts)> {
        let loaded = self.loaded.read();
        let all = loaded.counters.all(loaded.snapshot.registry());
        all.into_iter().map(|(name, counters)| (name, counters.read())).collect()
    }

    /// The `n` ids that are denied most often, under one limit or all of them, most denied first.
    ///
    /// # Errors
    /// [`CallError::UnknownLimit`](crate::limiter::CallError::UnknownLimit).
    pub fn top_denied(&self, name: Option<&str>, n: usize) -> Result<Vec<DeniedBucket>, Failure> {
        let loaded = self.loaded.read();
        let registry = loaded.snapshot.registry();
        let mut all = loaded.counters.all(registry);
        if let Some(wanted) = name {
            all.retain(|(name, _)| name.as_str() == wanted);
            if all.is_empty() {
                return Err(unknown_limit(registry, wanted));
            }
        }
        let mut top_denied = Vec::new();
        for (name, counters) in all {
            let prefix =
                registry.entry(name.as_str()).map_or(name.as_str(), |entry| entry.prefix());
            let top = counters.top_denied().top(n).into_iter();
            top_denied.extend(top.map(|hot| (bucket_key(prefix, &hot.id), name.clone(), hot)));
        }
        // Stable, so that equal counts are in the order of their limits.
        top_denied.sort_by_key(|(.., hot)| std::cmp::Reverse(hot.denied));
        top_denied.truncate(n);
        Ok(top_denied)
    }

    /// The stripe in which this thread counts.
    #[inline(always)]
    pub(super) fn stripe<'a>(&self, bound: &'a BoundLimit) -> &'a Stripe {
        // Looking up the thread's slot costs more than counting. Serialized calls can all use the
        // first slot.
        bound.counters.stripe(if self.is_serialized { 0 } else { thread_slot() })
    }

    /// Starts if this batch is timed: the stopwatch of its first limit decides.
    pub(super) fn stopwatch(&self, transactions: &[Transaction<'_>]) -> Option<Stopwatch> {
        self.stripe(transactions.first()?.limit).stopwatch()
    }

    /// Counts each limit's own decision. `decided` has those with a bucket, by ascending index.
    pub(super) fn count_all<'a>(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_>],
        resolved: &[Resolved<'_>],
        decided: impl Iterator<Item = (&'a usize, &'a Decision)>,
    ) {
        let mut decided = decided.peekable();
        for (index, (transaction, one)) in transactions.iter().zip(resolved).enumerate() {
            let decision = decided.next_if(|&(&bucket, _)| bucket == index);
            let allowed = decision.is_none_or(|(_, decision)| decision.allowed);
            let verb = match (verb, transaction.kind) {
                (Verb::Spend, Kind::Check) => Verb::Check,
                _ => verb,
            };
            let (limit, stripe) = (transaction.limit, self.stripe(transaction.limit));
            limit.counters.count(stripe, verb, allowed, one.rule.shadow, &one.id);
        }
    }
}

/// Counts how long a batch took, for each of its limits.
pub(super) fn count_latency(transactions: &[Transaction<'_>], stopwatch: Stopwatch) {
    transactions.iter().for_each(|one| one.limit.counters.count_latency(stopwatch));
}

/// Counts a store error for each of the limits, and returns it.
#[cold]
pub(super) fn store_failed(
    transactions: &[Transaction<'_>],
    error: impl Into<StoreError>,
) -> Failure {
    transactions.iter().for_each(|one| one.limit.counters.count_store_error());
    error::store_failed(error)
}
