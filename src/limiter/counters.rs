//! What was decided under one limit, counted so that a call hardly notices.

use std::array;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::clock::Stopwatch;
use crate::engine::key::LimitName;
use crate::engine::operation::Verb;
use crate::engine::registry::Registry;
use crate::limiter::thread_slot::SLOTS;
use crate::limiter::top_denied::TopDenied;
use crate::sync::Ordering;
use crate::sync::counting::{AtomicU32, AtomicU64, OnceLock};

/// The sampling interval for times: about one call in this many per thread.
pub const TIMED_ONE_IN: u32 = 256;
/// The lengths of time that calls are counted by: at most 32 ns, then twice as much each time, and
/// what is longer than 2^30 ns.
pub const LATENCIES: usize = 27;
const SHORTEST_BITS: u32 = 5;

/// How decisions fell out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Allowed.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Denied by a limit that only watches.
    pub shadow_denied: u64,
}

/// How long the timed calls took: those of each length, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Calls by length; [`Latencies::most`] says what the places mean.
    pub calls: [u64; LATENCIES],
    /// Nanoseconds of all of them.
    pub total_ns: u64,
}

impl Latencies {
    /// The longest time that is counted at `place`, in nanoseconds; `None` for the last, which has
    /// no end.
    pub fn most(place: usize) -> Option<u64> {
        (place + 1 < LATENCIES).then(|| 1 << (place as u32 + SHORTEST_BITS))
    }
}

/// What was decided under one limit since the limiter was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of spends.
    pub spends: Outcomes,
    /// Of checks.
    pub checks: Outcomes,
    /// Refunds.
    pub refunds: u64,
    /// Calls that the store did not answer.
    pub store_errors: u64,
    /// How long calls took.
    pub latencies: Latencies,
}

impl Counts {
    /// Whether nothing was counted.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Counts::default()
    }
}

/// Where a stripe has its counts: spends and checks by outcome, and refunds.
const SPENDS: usize = 0;
const CHECKS: usize = 3;
const REFUNDS: usize = 6;
const COUNTS: usize = 7;

/// What the threads at one slot have counted, on a cache line of its own.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Stripe {
    /// Calls until the next that is timed.
    untimed: AtomicU32,
    /// Whether one thread alone counts here.
    is_own: bool,
    counts: [AtomicU64; COUNTS],
}

impl Stripe {
    fn new(is_own: bool) -> Stripe {
        Stripe { untimed: AtomicU32::new(0), is_own, counts: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Runs if this call is to be timed. The first is; the gaps are uneven, so that no rhythm of
    /// callers falls in step.
    #[inline(always)]
    pub(super) fn stopwatch(&self) -> Option<Stopwatch> {
        let left = self.untimed.load(Ordering::Relaxed);
        // Where threads share the stripe, one count of another may be lost: a gap is then longer.
        self.untimed.store(left.wrapping_sub(1), Ordering::Relaxed);
        if left == 0 { Some(self.begin_gap()) } else { None }
    }

    #[cold]
    fn begin_gap(&self) -> Stopwatch {
        let made: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        // From half to one and a half of the mean, by bits of a product that jump about.
        let spread = (made.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % TIMED_ONE_IN;
        self.untimed.store(TIMED_ONE_IN / 2 + spread, Ordering::Relaxed);
        Stopwatch::start()
    }

    /// Counts one more at `place`; how many there are now.
    #[inline(always)]
    fn add(&self, place: usize) -> u64 {
        let count = &self.counts[place];
        // Relaxed: a count orders nothing but itself.
        if self.is_own {
            // No other thread writes here, so nothing is lost between the two, and no line has to
            // be locked.
            let next = count.load(Ordering::Relaxed) + 1;
            count.store(next, Ordering::Relaxed);
            next
        } else {
            count.fetch_add(1, Ordering::Relaxed) + 1
        }
    }
}

/// What was decided under one limit.
#[derive(Debug)]
pub struct Counters {
    /// One for each slot that has counts.
    stripes: [OnceLock<Box<Stripe>>; SLOTS],
    shared: Stripe,
    /// What is rare is counted in one place by all.
    store_errors: AtomicU64,
    latencies: [AtomicU64; LATENCIES],
    total_ns: AtomicU64,
    top_denied: TopDenied,
}

impl Counters {
    pub(super) fn new() -> Counters {
        Counters {
            stripes: array::from_fn(|_| OnceLock::new()),
            shared: Stripe::new(false),
            store_errors: AtomicU64::new(0),
            latencies: array::from_fn(|_| AtomicU64::new(0)),
            total_ns: AtomicU64::new(0),
            top_denied: TopDenied::new(),
        }
    }

    /// Where the threads at a slot count.
    #[inline(always)]
    pub(super) fn stripe(&self, slot: usize) -> &Stripe {
        let Some(stripe) = self.stripes.get(slot) else { return &self.shared };
        stripe.get_or_init(|| Box::new(Stripe::new(true)))
    }

    /// Counts a decision about a canonical id, in the stripe of this thread.
    #[inline(always)]
    pub(super) fn count(&self, stripe: &Stripe, verb: Verb, allowed: bool, shadow: bool, id: &str) {
        let first = match verb {
            Verb::Spend => SPENDS,
            Verb::Check => CHECKS,
            Verb::Refund => {
                stripe.add(REFUNDS);
                return;
            }
            // Who takes a place in line is served; who finds none waits, and is not refused yet.
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
        let took = stopwatch.elapsed().get().max(0) as u64;
        self.latencies[place_of(took)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// Who is denied most.
    pub(super) fn top_denied(&self) -> &TopDenied {
        &self.top_denied
    }

    /// All that was counted. What is counted meanwhile may be in it or not; no number ever goes
    /// down.
    pub(super) fn read(&self) -> Counts {
        let mut sums = [0_u64; COUNTS];
        let own = self.stripes.iter().filter_map(|stripe| stripe.get().map(|stripe| &**stripe));
        for stripe in own.chain([&self.shared]) {
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
            latencies: Latencies {
                calls: array::from_fn(|place| self.latencies[place].load(Ordering::Relaxed)),
                total_ns: self.total_ns.load(Ordering::Relaxed),
            },
        }
    }
}

/// The place among [`LATENCIES`] of a length of time in nanoseconds.
fn place_of(took: u64) -> usize {
    let bits = u64::BITS - took.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SHORTEST_BITS) as usize).min(LATENCIES - 1)
}

/// The counters of all limits that a limiter has or had, so that none goes down.
#[derive(Debug, Default)]
pub(super) struct ByName(HashMap<LimitName, Arc<Counters>>);

impl ByName {
    /// The counters of the limit of this name, which a reload leaves as they are.
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
    fn a_lane_that_threads_share_loses_nothing() {
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
    fn a_length_of_time_is_counted_where_it_is_at_most() {
        for (took, place) in
            [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (1 << 30, 25), ((1 << 30) + 1, 26)]
        {
            assert_eq!(place_of(took), place, "{took} ns");
            assert!(Latencies::most(place).is_none_or(|most| took <= most));
        }
        assert_eq!(place_of(u64::MAX), LATENCIES - 1);
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
