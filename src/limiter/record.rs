//! Counting of batch decisions, and reading of the counters.

use crate::clock::{Clock, Stopwatch};
use crate::engine::answer::Answer;
use crate::engine::batch::Kind;
use crate::engine::key::{LimitName, bucket_key};
use crate::engine::operation::Verb;
use crate::limiter::bound::Resolved;
use crate::limiter::counters::{Counts, StripeIndex};
use crate::limiter::error::{self, Failure, unknown_limit};
use crate::limiter::top_denied::HeavyHitter;
use crate::limiter::{Limiter, Transaction};
use crate::store::{Store, StoreError};

/// A client that is denied often: its bucket key, the limit's name and the estimated count.
pub type DeniedBucket = (String, LimitName, HeavyHitter);

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Returns the counts of each limit since the limiter was created. Limits removed by a reload come
    /// last. No number ever decreases.
    pub fn counts(&self) -> Vec<(LimitName, Counts)> {
        let loaded = self.loaded.read();
        let all = loaded.counters.all(loaded.snapshot.registry());
        all.into_iter().map(|(name, counters)| (name, counters.read())).collect()
    }

    /// Returns the `n` ids with the most denials, under one limit or all of them, in descending order.
    ///
    /// # Errors
    /// [`CallError::UnknownLimit`](crate::limiter::CallError::UnknownLimit) if no limit has this name.
    pub fn top_denied(&self, name: Option<&str>, n: usize) -> Result<Vec<DeniedBucket>, Failure> {
        let loaded = self.loaded.read();
        let registry = loaded.snapshot.registry();
        let mut all = loaded.counters.all(registry);
        if let Some(selected) = name {
            all.retain(|(name, _)| name.as_str() == selected);
            if all.is_empty() {
                return Err(unknown_limit(registry, selected));
            }
        }
        let mut top_denied = Vec::new();
        for (name, counters) in all {
            let prefix =
                registry.entry(name.as_str()).map_or(name.as_str(), |entry| entry.prefix());
            let top = counters.top_denied().top(n).into_iter();
            top_denied
                .extend(top.map(|hitter| (bucket_key(prefix, &hitter.id), name.clone(), hitter)));
        }
        // A stable sort: equal counts keep the order of their limits.
        top_denied.sort_by_key(|(.., hitter)| std::cmp::Reverse(hitter.denied));
        top_denied.truncate(n);
        Ok(top_denied)
    }

    /// Counts the decision of each transaction. `decided` contains those with a bucket, by ascending
    /// index.
    pub(super) fn count_all<'a>(
        &self,
        verb: Verb,
        transactions: &[Transaction],
        stripe: StripeIndex,
        resolved: &[Resolved<'_>],
        decided: impl Iterator<Item = (&'a usize, &'a Answer)>,
    ) {
        let mut decided = decided.peekable();
        for (index, (transaction, one)) in transactions.iter().zip(resolved).enumerate() {
            let decision = decided.next_if(|&(&bucket, _)| bucket == index);
            let allowed = decision.is_none_or(|(_, answer)| answer.allowed());
            let verb = match (verb, transaction.kind) {
                (Verb::Spend | Verb::Reserve, Kind::Check) => Verb::Check,
                _ => verb,
            };
            let counters = &transaction.limit.counters;
            counters.count(counters.stripe(stripe), verb, allowed, one.rule.shadow, &one.id);
        }
    }
}

/// Counts the latency of a batch for each of its limits.
pub(super) fn count_latency(transactions: &[Transaction], stopwatch: Stopwatch) {
    transactions.iter().for_each(|transaction| transaction.limit.counters.count_latency(stopwatch));
}

/// Counts a store error for each limit of a batch, and returns the error.
#[cold]
pub(super) fn store_failed(transactions: &[Transaction], error: impl Into<StoreError>) -> Failure {
    let error = error.into();
    // A call that may not wait is repeated where it may.
    if error != StoreError::WouldWait {
        transactions.iter().for_each(|transaction| transaction.limit.counters.count_store_error());
    }
    error::store_failed(error)
}
