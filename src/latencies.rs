//! Latency histograms.

use std::array;

use crate::clock::Stopwatch;
use crate::sync::counting::{AtomicU64, Ordering};

/// The number of latency classes. The first is at most 32 ns, each bound is twice the previous one, and
/// the last class is above 2^30 ns.
pub const LATENCIES: usize = 27;
const SHORTEST_BITS: u32 = 5;

/// The latencies of timed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// The number of calls per class; [`Latencies::max_ns`] is the upper bound of a class.
    pub calls: [u64; LATENCIES],
    /// The sum of all latencies, in nanoseconds.
    pub total_ns: u64,
}

impl Latencies {
    /// Returns the upper bound of the class `index` in nanoseconds, or `None` for the last class.
    pub fn max_ns(index: usize) -> Option<u64> {
        (index + 1 < LATENCIES).then(|| 1 << (index as u32 + SHORTEST_BITS))
    }
}

/// A latency histogram that several threads update.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    calls: [AtomicU64; LATENCIES],
    total_ns: AtomicU64,
}

impl Histogram {
    /// Counts a call with the elapsed time of a stopwatch.
    pub(crate) fn count(&self, stopwatch: Stopwatch) {
        let latency = stopwatch.elapsed().get().max(0) as u64;
        // Relaxed: counts order no other access.
        self.calls[class_of(latency)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(latency, Ordering::Relaxed);
    }

    /// Returns the counts. Concurrent calls may be missing; no number ever decreases.
    pub(crate) fn read(&self) -> Latencies {
        Latencies {
            calls: array::from_fn(|index| self.calls[index].load(Ordering::Relaxed)),
            total_ns: self.total_ns.load(Ordering::Relaxed),
        }
    }
}

/// Returns the class of a latency in nanoseconds.
fn class_of(latency: u64) -> usize {
    let bits = u64::BITS - latency.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SHORTEST_BITS) as usize).min(LATENCIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_first_class_with_a_sufficient_bound() {
        for (latency, index) in
            [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (1 << 30, 25), ((1 << 30) + 1, 26)]
        {
            assert_eq!(class_of(latency), index, "{latency} ns");
            assert!(Latencies::max_ns(index).is_none_or(|max| latency <= max));
        }
        assert_eq!(class_of(u64::MAX), LATENCIES - 1);
    }
}
