//! Counting what is decided in batches, and reading what was counted.

use crate::clock::{Clock, Stopwatch};
use crate::engine::batch::Kind;
use crate::engine::decision::Decision;
use crate::engine::key::{LimitName, bucket_key};
use crate::engine::operation::Verb;
use crate::limiter::bound::{BoundLimit, Prepared};
use crate::limiter::counters::{Counts, Stripe};
use crate::limiter::error::{self, Failure, unknown_limit};
use crate::limiter::thread_slot::thread_slot;
use crate::limiter::top_denied::HeavyHitter;
use crate::limiter::{Limiter, Transaction};
use crate::store::{Store, StoreError};

/// The key of a bucket that is denied much, the limit's name, and how often.
pub type DeniedBucket = (String, LimitName, HeavyHitter);

impl<S: Store, C: Clock> Limiter<S, C> {
    /// What was decided under each limit since the limiter was made. Limits that a reload has
    /// dropped come last. No number ever goes down.
    pub fn counts(&self) -> Vec<(LimitName, Counts)> {
        let loaded = self.loaded.read();
        let all = loaded.counters.all(loaded.snapshot.registry());
        all.into_iter().map(|(name, counters)| (name, counters.read())).collect()
    }

    /// The `n` ids that are denied most, under one limit or under all; most denied first.
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
        // Stable, so that equals stand in the order of their limits.
        top_denied.sort_by_key(|(.., hot)| std::cmp::Reverse(hot.denied));
        top_denied.truncate(n);
        Ok(top_denied)
    }

    /// Where this call is counted.
    #[inline(always)]
    pub(super) fn stripe<'a>(&self, bound: &'a BoundLimit<S>) -> &'a Stripe {
        // Asking for the thread's own slot costs more than counting. Under one lock the first slot
        // does for all: the lock hands on what was counted from it.
        bound.counters.stripe(if self.is_serialized { 0 } else { thread_slot() })
    }

    /// Runs if these transactions are to be timed: one in so many of those that begin with this
    /// limit.
    pub(super) fn stopwatch(&self, transactions: &[Transaction<'_, S>]) -> Option<Stopwatch> {
        self.stripe(transactions.first()?.limit).stopwatch()
    }

    /// Counts each limit's own decision: `decided` has those with a bucket, by place, in order.
    pub(super) fn count_all<'a>(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_, S>],
        prepared: &[Prepared<'_>],
        decided: impl Iterator<Item = (&'a usize, &'a Decision)>,
    ) {
        let mut decided = decided.peekable();
        for (place, (transaction, one)) in transactions.iter().zip(prepared).enumerate() {
            let decision = decided.next_if(|&(&bucket, _)| bucket == place);
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

/// Counts how long transactions took, for each of their limits.
pub(super) fn count_latency<S: Store>(
    transactions: &[Transaction<'_, S>],
    stopwatch: Option<Stopwatch>,
) {
    if let Some(stopwatch) = stopwatch {
        transactions.iter().for_each(|one| one.limit.counters.count_latency(stopwatch));
    }
}

/// Counts that the store did not answer, for each of the limits, and says so.
#[cold]
pub(super) fn store_failed<S: Store>(
    transactions: &[Transaction<'_, S>],
    error: impl Into<StoreError>,
) -> Failure {
    transactions.iter().for_each(|one| one.limit.counters.count_store_error());
    error::store_failed(error)
}
