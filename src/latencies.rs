//! Histograms of how long calls took.

use std::array;

use crate::clock::Stopwatch;
use crate::sync::counting::{AtomicU64, Ordering};

/// The number of latency classes: at most 32 ns, doubled for each class, and over 2^30 ns.
pub const LATENCIES: usize = 27;
const SHORTEST_BITS: u32 = 5;

/// How long the timed calls took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Calls by class; [`Latencies::max_ns`] is the longest time of a class.
    pub calls: [u64; LATENCIES],
    /// The sum of their times, in nanoseconds.
    pub total_ns: u64,
}

impl Latencies {
    /// The longest time in the class `index`, in nanoseconds; `None` for the last class.
    pub fn max_ns(index: usize) -> Option<u64> {
        (index + 1 < LATENCIES).then(|| 1 << (index as u32 + SHORTEST_BITS))
    }
}

/// Latencies that threads count together.
#[derive(Debug)]
pub(crate) struct Histogram {
    calls: [AtomicU64; LATENCIES],
    total_ns: AtomicU64,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { calls: array::from_fn(|_| AtomicU64::new(0)), total_ns: AtomicU64::new(0) }
    }

    /// Counts a call that took as long as the stopwatch shows.
    pub(crate) fn count(&self, stopwatch: Stopwatch) {
        let took = stopwatch.elapsed().get().max(0) as u64;
        // Relaxed: counts order nothing else.
        self.calls[class_of(took)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// The counts. Those of concurrent calls may be missing; no number ever decreases.
    pub(crate) fn read(&self) -> Latencies {
        Latencies {
            calls: array::from_fn(|index| self.calls[index].load(Ordering::Relaxed)),
            total_ns: self.total_ns.load(Ordering::Relaxed),
        }
    }
}

/// The latency class of a time in nanoseconds.
fn class_of(took: u64) -> usize {
    let bits = u64::BITS - took.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SHORTEST_BITS) as usize).min(LATENCIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_class_that_it_does_not_exceed() {
        for (took, index) in
            [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (1 << 30, 25), ((1 << 30) + 1, 26)]
        {
            assert_eq!(class_of(took), index, "{took} ns");
            assert!(Latencies::max_ns(index).is_none_or(|max| took <= max));
        }
        assert_eq!(class_of(u64::MAX), LATENCIES - 1);
    }
}
