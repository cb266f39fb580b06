//! Counters of one limit. Counting costs little compared with a decision.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::clock::{Clock, Stopwatch};
use crate::engine::key::{LimitName, bucket_key};
use crate::engine::registry::Registry;
use crate::engine::verb::{Effect, Verb};
use crate::latencies::{Histogram, Latencies};
use crate::limiter::Limiter;
use crate::limiter::error::{Failure, unknown_limit};
use crate::limiter::top_denied::{HeavyHitter, TopDenied};
use crate::store::Store;
use crate::sync::Ordering;
use crate::sync::counting::{AtomicU32, AtomicU64};

/// The mean sampling interval of latencies, in calls per thread.
pub const LATENCY_SAMPLE_INTERVAL: u32 = 256;

/// Numbers of decisions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Allowed requests.
    pub allowed: u64,
    /// Denied requests.
    pub denied: u64,
    /// Requests that a limit in shadow mode would have denied.
    pub shadow_denied: u64,
}

/// The counts of one limit since the limiter was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Outcomes of spends.
    pub spends: Outcomes,
    /// Outcomes of checks.
    pub checks: Outcomes,
    /// The number of refunds.
    pub refunds: u64,
    /// Calls that the store did not answer.
    pub store_errors: u64,
    /// Slots that had expired when they were given back.
    pub expired: u64,
    /// Slots that had expired when they were renewed: for a while they were not counted.
    pub renewed_late: u64,
    /// The latencies of sampled calls.
    pub latencies: Latencies,
}

impl Counts {
    pub(super) fn is_zero(&self) -> bool {
        *self == Counts::default()
    }
}

/// Indices of a stripe's counts. Spends and checks have three outcomes each.
const SPENDS: usize = 0;
const CHECKS: usize = 3;
const REFUNDS: usize = 6;
const COUNTS: usize = 7;

/// The number of stripes; a power of two. Threads share them.
const STRIPES: usize = 8;

/// The counts of some threads, on a separate cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// The number of calls before the next timed one.
    untimed: AtomicU32,
    counts: [AtomicU64; COUNTS],
}

impl Stripe {
    /// Returns a running stopwatch if this call is timed. The first call is. The gaps vary, so that
    /// sampling does not synchronize with a periodic pattern of calls.
    #[inline(always)]
    pub(super) fn stopwatch(&self) -> Option<Stopwatch> {
        let left = self.untimed.load(Ordering::Relaxed);
        // If threads share the stripe, another thread's decrement may be lost, which lengthens the gap.
        self.untimed.store(left.wrapping_sub(1), Ordering::Relaxed);
        if left == 0 { Some(self.begin_gap()) } else { None }
    }

    #[cold]
    fn begin_gap(&self) -> Stopwatch {
        let calls: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        // Between 0.5 and 1.5 times the mean interval; the high bits of the product are well mixed.
        let offset =
            (calls.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % LATENCY_SAMPLE_INTERVAL;
        self.untimed.store(LATENCY_SAMPLE_INTERVAL / 2 + offset, Ordering::Relaxed);
        Stopwatch::start()
    }

    /// Adds one to the count at `index`. Returns the new count.
    #[inline(always)]
    fn add(&self, index: usize) -> u64 {
        // Relaxed: counts order nothing else.
        self.counts[index].fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The index of the stripe in which a call counts, for all of its limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct StripeIndex(usize);

impl StripeIndex {
    /// Chooses a stripe for a call of this thread. Two choices of one call may differ.
    #[inline(always)]
    pub(super) fn choose() -> StripeIndex {
        // The place of its stack tells threads apart without a look-up.
        let here = 0_u8;
        let megabyte = (std::ptr::from_ref(&here).addr() >> 20) as u64;
        let mixed = megabyte.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        StripeIndex(mixed as usize)
    }
}

/// The counters of one limit.
#[derive(Debug, Default)]
pub struct Counters {
    stripes: [Stripe; STRIPES],
    /// One counter for all threads, because these are rare.
    store_errors: AtomicU64,
    expired: AtomicU64,
    renewed_late: AtomicU64,
    latencies: Histogram,
    top_denied: TopDenied,
}

impl Counters {
    /// Returns a stripe.
    #[inline(always)]
    pub(super) fn stripe(&self, index: StripeIndex) -> &Stripe {
        &self.stripes[index.0 % STRIPES]
    }

    /// Counts a decision on a canonical id.
    #[inline(always)]
    pub(super) fn count(&self, stripe: &Stripe, verb: Verb, allowed: bool, shadow: bool, id: &str) {
        let first = match verb.effect() {
            Effect::Take => SPENDS,
            Effect::Look => CHECKS,
            Effect::Return if verb == Verb::Refund => {
                stripe.add(REFUNDS);
                return;
            }
            // A waiter is counted when it is served or refused, a settled reservation when it was made, and
            // what was used already is no decision.
            Effect::Return | Effect::Charge => return,
        };
        if allowed {
            stripe.add(first);
        } else {
            self.top_denied.record(id, stripe.add(first + 1 + usize::from(shadow)));
        }
    }

    /// Counts spends that were allowed.
    pub(super) fn count_allowed_spends(&self, stripe: &Stripe, calls: u64) {
        stripe.counts[SPENDS].fetch_add(calls, Ordering::Relaxed);
    }

    /// Counts a call that the store did not answer.
    pub(super) fn count_store_error(&self) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts slots that had expired when they were given back.
    pub(super) fn count_expired(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts slots that had expired when they were renewed.
    pub(super) fn count_renewed_late(&self) {
        self.renewed_late.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts how long a timed call took.
    #[cold]
    pub(super) fn count_latency(&self, stopwatch: Stopwatch) {
        self.latencies.count(stopwatch);
    }

    /// Returns the sketch of the ids with the most denials.
    pub(super) fn top_denied(&self) -> &TopDenied {
        &self.top_denied
    }

    /// Returns the counts. Concurrent calls may be missing; no number ever decreases.
    pub(super) fn read(&self) -> Counts {
        let mut sums = [0_u64; COUNTS];
        for stripe in &self.stripes {
            for (sum, count) in sums.iter_mut().zip(&stripe.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let outcomes = |first: usize| Outcomes {
            allowed: sums[first],
            denied: sums[first + 1],
            shadow_denied: sums[first + 2],
        };
        Counts {
            spends: outcomes(SPENDS),
            checks: outcomes(CHECKS),
            refunds: sums[REFUNDS],
            store_errors: self.store_errors.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            renewed_late: self.renewed_late.load(Ordering::Relaxed),
            latencies: self.latencies.read(),
        }
    }
}

/// The counters of all limits that a limiter has or had. Removed limits are kept, so that no count
/// ever decreases.
#[derive(Debug, Default)]
pub(super) struct CountersByName(HashMap<LimitName, Arc<Counters>>);

impl CountersByName {
    /// Returns the counters of the limit with this name, which survive a reload.
    pub(super) fn get_or_insert(&mut self, name: &LimitName) -> Arc<Counters> {
        Arc::clone(self.0.entry(name.clone()).or_default())
    }

    /// Drops the counters of inactive limits whose counts are all zero.
    pub(super) fn retain(&mut self, registry: &Registry) {
        self.0.retain(|name, counters| {
            registry.entry(name.as_str()).is_some() || !counters.read().is_zero()
        });
    }

    /// Returns all counters: of the active limits in registry order, then of the removed limits by
    /// name.
    pub(super) fn all(&self, registry: &Registry) -> Vec<(LimitName, Arc<Counters>)> {
        let active = registry.entries().iter().map(|entry| entry.name());
        let mut removed: Vec<_> =
            self.0.keys().filter(|name| registry.entry(name.as_str()).is_none()).collect();
        removed.sort_unstable_by_key(|name| name.as_str());
        let names = active.chain(removed);
        names.filter_map(|name| Some((name.clone(), Arc::clone(self.0.get(name)?)))).collect()
    }
}

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
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_shared_stripe_loses_no_counts() {
        const CALLS: u64 = 300_000;
        let stripe = Stripe::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..CALLS).for_each(|_| {
                        stripe.add(REFUNDS);
                    })
                });
            }
        });
        assert_eq!(stripe.counts[REFUNDS].load(Ordering::Relaxed), 4 * CALLS);
    }

    #[test]
    fn gaps_between_timed_calls_vary_and_have_the_right_mean() {
        let stripe = Stripe::default();
        let mut gaps = Vec::new();
        let mut gap = 0_u32;
        for _ in 0..1000 * LATENCY_SAMPLE_INTERVAL {
            gap += 1;
            if stripe.stopwatch().is_some() {
                gaps.push(gap);
                gap = 0;
            }
            stripe.add(SPENDS);
        }
        assert_eq!(gaps[0], 1);
        assert!((950..=1050).contains(&gaps.len()), "{} are timed", gaps.len());
        gaps.sort_unstable();
        gaps.dedup();
        assert!(gaps.len() > 100, "only {} different gaps", gaps.len());
    }
}
