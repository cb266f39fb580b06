//! Counters of one limit, at a cost that is small against a decision.

use std::array;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::clock::Stopwatch;
use crate::engine::key::LimitName;
use crate::engine::operation::Verb;
use crate::engine::registry::Registry;
use crate::latencies::{Histogram, Latencies};
use crate::limiter::thread_slot::SLOTS;
use crate::limiter::top_denied::TopDenied;
use crate::sync::Ordering;
use crate::sync::counting::{AtomicU32, AtomicU64, OnceLock};

/// The sampling interval for times: about one call in this many per thread.
pub const TIMED_ONE_IN: u32 = 256;

/// Numbers of decisions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Allowed.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Denied by a limit in shadow mode.
    pub shadow_denied: u64,
}

/// The counts of one limit since the limiter was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Outcomes of spends.
    pub spends: Outcomes,
    /// Outcomes of checks.
    pub checks: Outcomes,
    /// Refunds.
    pub refunds: u64,
    /// Calls that the store did not answer.
    pub store_errors: u64,
    /// Times of calls.
    pub latencies: Latencies,
}

impl Counts {
    /// Whether all counts are zero.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Counts::default()
    }
}

/// The indices of a stripe's counts: spends and checks by outcome, and refunds.
const SPENDS: usize = 0;
const CHECKS: usize = 3;
const REFUNDS: usize = 6;
const COUNTS: usize = 7;

/// The counts of the threads with one slot, on a cache line of its own.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Stripe {
    /// Calls until the next timed one.
    untimed: AtomicU32,
    /// Whether only one thread counts here.
    is_own: bool,
    counts: [AtomicU64; COUNTS],
}

impl Stripe {
    fn new(is_own: bool) -> Stripe {
        Stripe { untimed: AtomicU32::new(0), is_own, counts: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Returns a running stopwatch if this call is timed. The first is; the gaps vary, so that no
    /// rhythm of calls coincides with them.
    #[inline(always)]
    pub(super) fn stopwatch(&self) -> Option<Stopwatch> {
        let left = self.untimed.load(Ordering::Relaxed);
        // If threads share the stripe, a step of another may be lost: the gap is then longer.
        self.untimed.store(left.wrapping_sub(1), Ordering::Relaxed);
        if left == 0 { Some(self.begin_gap()) } else { None }
    }

    #[cold]
    fn begin_gap(&self) -> Stopwatch {
        let made: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        // From half to one and a half of the mean, by well-mixed bits of a product.
        let spread = (made.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % TIMED_ONE_IN;
        self.untimed.store(TIMED_ONE_IN / 2 + spread, Ordering::Relaxed);
        Stopwatch::start()
    }

    /// Adds one to the count at `index`. Returns the new count.
    #[inline(always)]
    fn add(&self, index: usize) -> u64 {
        let count = &self.counts[index];
        // Relaxed: counts order nothing else.
        if self.is_own {
            // No other thread writes here, so no count is lost between the load and the store, and
            // no locked instruction is needed.
            let next = count.load(Ordering::Relaxed) + 1;
            count.store(next, Ordering::Relaxed);
            next
        } else {
            count.fetch_add(1, Ordering::Relaxed) + 1
        }
    }
}

/// The counters of one limit.
#[derive(Debug)]
pub struct Counters {
    /// The stripe of the first slot, the only one if calls are serialized.
    first: Stripe,
    /// The stripe of each other slot that has counted.
    others: [OnceLock<Box<Stripe>>; SLOTS - 1],
    shared: Stripe,
    /// Rare events have one counter for all threads.
    store_errors: AtomicU64,
    latencies: Histogram,
    top_denied: TopDenied,
}

impl Counters {
    pub(super) fn new() -> Counters {
        Counters {
            first: Stripe::new(true),
            others: array::from_fn(|_| OnceLock::new()),
            shared: Stripe::new(false),
            store_errors: AtomicU64::new(0),
            latencies: Histogram::new(),
            top_denied: TopDenied::new(),
        }
    }

    /// The stripe of a slot.
    #[inline(always)]
    pub(super) fn stripe(&self, slot: usize) -> &Stripe {
        if slot == 0 {
            return &self.first;
        }
        let Some(stripe) = self.others.get(slot - 1) else { return &self.shared };
        stripe.get_or_init(|| Box::new(Stripe::new(true)))
    }

    /// Counts a decision on a canonical id in this thread's stripe.
    #[inline(always)]
    pub(super) fn count(&self, stripe: &Stripe, verb: Verb, allowed: bool, shadow: bool, id: &str) {
        let first = match verb {
            Verb::Spend => SPENDS,
            Verb::Check => CHECKS,
            Verb::Refund => {
                stripe.add(REFUNDS);
                return;
            }
            // A waiter whose charge is allowed will be served; otherwise it waits and is not denied yet.
            Verb::Charge if allowed => SPENDS,
            Verb::Charge | Verb::ChargePartial => return,
        };
        if allowed {
            stripe.add(first);
        } else {
            self.top_denied.note(id, stripe.add(first + 1 + usize::from(shadow)));
        }
    }

    /// Counts a call that the store did not answer.
    pub(super) fn count_store_error(&self) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts how long a timed call took.
    #[cold]
    pub(super) fn count_latency(&self, stopwatch: Stopwatch) {
        self.latencies.count(stopwatch);
    }

    /// The ids with the most denials.
    pub(super) fn top_denied(&self) -> &TopDenied {
        &self.top_denied
    }

    /// The counts. Those of concurrent calls may be missing; no number ever decreases.
    pub(super) fn read(&self) -> Counts {
        let mut sums = [0_u64; COUNTS];
        let others = self.others.iter().filter_map(|stripe| stripe.get().map(|stripe| &**stripe));
        for stripe in others.chain([&self.first, &self.shared]) {
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
            latencies: self.latencies.read(),
        }
    }
}

/// The counters of all limits that a limiter has or had, so that no count decreases.
#[derive(Debug, Default)]
pub(super) struct ByName(HashMap<LimitName, Arc<Counters>>);

impl ByName {
    /// The counters of the limit of this name. A reload keeps them.
    pub(super) fn of(&mut self, name: &LimitName) -> Arc<Counters> {
        let counters = self.0.entry(name.clone()).or_insert_with(|| Arc::new(Counters::new()));
        Arc::clone(counters)
    }

    /// Drops limits that are no longer active and have no counts.
    pub(super) fn retain(&mut self, registry: &Registry) {
        self.0.retain(|name, counters| {
            registry.entry(name.as_str()).is_some() || !counters.read().is_nothing()
        });
    }

    /// All of them: the active ones in their order, then the others by name.
    pub(super) fn all(&self, registry: &Registry) -> Vec<(LimitName, Arc<Counters>)> {
        let known = registry.entries().iter().map(|entry| entry.name());
        let mut gone: Vec<_> =
            self.0.keys().filter(|name| registry.entry(name.as_str()).is_none()).collect();
        gone.sort_unstable_by_key(|name| name.as_str());
        let names = known.chain(gone);
        names.filter_map(|name| Some((name.clone(), Arc::clone(self.0.get(name)?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_stripe_that_threads_share_loses_nothing() {
        const TURNS: u64 = 300_000;
        let stripe = Stripe::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..TURNS).for_each(|_| {
                        stripe.add(REFUNDS);
                    })
                });
            }
        });
        assert_eq!(stripe.counts[REFUNDS].load(Ordering::Relaxed), 4 * TURNS);
    }

    #[test]
    fn gaps_between_timed_calls_are_uneven_and_of_the_right_mean() {
        let stripe = Stripe::new(true);
        let mut gaps = Vec::new();
        let mut gap = 0_u32;
        for _ in 0..1000 * TIMED_ONE_IN {
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
