//! The ids with the most denials, estimated with a fixed number of entries.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::sync::TryLock;

/// The number of ids recorded for each limit.
pub const CAPACITY: usize = 64;
/// The maximum length of a stored id in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// The number of denials per stripe that are recorded before sampling begins.
const UNSAMPLED: u64 = 1024;
/// The sampling interval of later denials, and the weight of each sample.
const SAMPLE_INTERVAL: u64 = 16;

/// An id with many denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyHitter {
    /// The id in canonical form, truncated to [`MAX_ID_BYTES`] bytes.
    pub id: String,
    /// An upper bound of its denials.
    pub denied: u64,
    /// The number of these denials that may belong to other ids.
    pub error: u64,
}

/// Returns the weight of the `nth` denial of a stripe (from 1), or 0 if it is not recorded.
#[inline]
fn weight(nth: u64) -> u64 {
    // Multiples of the golden ratio are spread evenly, so sampling does not synchronize with a periodic
    // pattern of calls.
    if nth <= UNSAMPLED {
        1
    } else if nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / SAMPLE_INTERVAL {
        SAMPLE_INTERVAL
    } else {
        0
    }
}

/// The sketch of one limit. Sampling and `try_lock` keep it cheap during an attack.
#[derive(Default)]
pub(super) struct TopDenied {
    sketch: TryLock<Sketch>,
    /// Randomly seeded, so that colliding ids cannot be constructed.
    hasher: DefaultHashBuilder,
}

impl fmt::Debug for TopDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Ids may be personal data and must not appear in debug output.
        f.write_str("TopDenied(..)")
    }
}

impl TopDenied {
    /// Records the `nth` denial of a stripe, unless it is not sampled or the sketch is locked.
    #[inline(always)]
    pub(super) fn record(&self, id: &str, nth: u64) {
        let weight = weight(nth);
        if weight > 0 {
            self.record_sample(id, weight);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_sample(&self, id: &str, weight: u64) {
        if let Some(mut sketch) = self.sketch.try_lock() {
            sketch.add(self.hasher.hash_one(id), id, weight);
        }
    }

    /// Returns at most `n` ids in descending order of denials.
    pub(super) fn top(&self, n: usize) -> Vec<HeavyHitter> {
        let sketch = self.sketch.lock();
        sketch.entries.iter().take(n).map(|entry| entry.hitter.clone()).collect()
    }
}

/// The space-saving sketch: a new id evicts the smallest entry and inherits its count.
///
/// 1. The count of an entry is at least the true number of denials, and exceeds it by at most the
///    error.
/// 2. Every id with more than 1 / [`CAPACITY`] of all denials has an entry.
///
/// # Source
/// Metwally, Agrawal and El Abbadi: Efficient computation of frequent and top-k elements in data
/// streams (2005).
#[derive(Default)]
struct Sketch {
    /// In descending order of denials: a frequent id is found quickly, and the smallest entry is last.
    entries: Vec<RankedHitter>,
}

struct RankedHitter {
    hash: u64,
    hitter: HeavyHitter,
}

impl Sketch {
    fn add(&mut self, hash: u64, id: &str, weight: u64) {
        let id = truncate_id(id);
        let found =
            self.entries.iter().position(|entry| entry.hash == hash && entry.hitter.id == id);
        let index = match found {
            Some(index) => index,
            None if self.entries.len() < CAPACITY => {
                let hitter = HeavyHitter { id: id.to_owned(), denied: 0, error: 0 };
                self.entries.push(RankedHitter { hash, hitter });
                self.entries.len() - 1
            }
            None => {
                let last = &mut self.entries[CAPACITY - 1];
                last.hash = hash;
                last.hitter.error = last.hitter.denied;
                // Reuses the allocation of the evicted id.
                last.hitter.id.clear();
                last.hitter.id.push_str(id);
                CAPACITY - 1
            }
        };
        let denied = self.entries[index].hitter.denied.saturating_add(weight);
        self.entries[index].hitter.denied = denied;
        let before = &self.entries[..index];
        let to = before.partition_point(|entry| entry.hitter.denied >= denied);
        self.entries[to..=index].rotate_right(1);
    }
}

/// Truncates an id to [`MAX_ID_BYTES`] bytes.
fn truncate_id(id: &str) -> &str {
    &id[..id.floor_char_boundary(MAX_ID_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sketch_of(stream: &[(u16, u64)]) -> (Sketch, BTreeMap<String, u64>) {
        let (mut sketch, mut exact) = (Sketch::default(), BTreeMap::new());
        for &(id, weight) in stream {
            let text = format!("user-{id}");
            sketch.add(u64::from(id), &text, weight);
            *exact.entry(text).or_insert(0) += weight;
        }
        (sketch, exact)
    }

    proptest! {
        #[test]
        fn counts_are_upper_bounds_within_their_error(
            stream in prop::collection::vec((0..300_u16, 1..9_u64), 0..2000),
        ) {
            let (sketch, exact) = sketch_of(&stream);
            let total: u64 = exact.values().sum();
            for RankedHitter { hitter, .. } in &sketch.entries {
                let actual = exact[&hitter.id];
                prop_assert!(actual <= hitter.denied && hitter.denied <= actual + hitter.error);
                prop_assert!(hitter.error <= total / CAPACITY as u64);
            }
            let denied = |entry: &RankedHitter| entry.hitter.denied;
            prop_assert!(sketch.entries.is_sorted_by(|left, right| denied(left) >= denied(right)));
            let counted: u64 = sketch.entries.iter().map(denied).sum();
            prop_assert_eq!(counted, total);
        }

        #[test]
        fn an_id_with_a_large_share_of_denials_has_an_entry(
            stream in prop::collection::vec((0..300_u16, 1..9_u64), 0..2000),
            attacker in 0..300_u16,
            weight in 1..200_u64,
        ) {
            let attack = stream.iter().flat_map(|&one| [one, (attacker, weight)]);
            let (sketch, exact) = sketch_of(&attack.collect::<Vec<_>>());
            let total: u64 = exact.values().sum();
            for (id, &actual) in exact.iter().filter(|&(_, &count)| count > total / CAPACITY as u64) {
                let found = sketch.entries.iter().find(|entry| entry.hitter.id == *id);
                prop_assert!(found.is_some_and(|entry| entry.hitter.denied >= actual), "{}", id);
            }
        }
    }

    #[test]
    fn later_denials_are_sampled_evenly_at_any_stride() {
        assert!((1..=UNSAMPLED).all(|nth| weight(nth) == 1));
        for stride in [1, 2, 3, 5, 8, 13, 64, 100] {
            let recorded: u64 = (0..20_000).map(|call| weight(UNSAMPLED + 1 + call * stride)).sum();
            assert!((19_000..=21_000).contains(&recorded), "{recorded} for stride {stride}");
        }
    }

    #[test]
    fn long_ids_with_a_common_prefix_are_separate_and_truncated() {
        let top_denied = TopDenied::default();
        let long = "é".repeat(MAX_ID_BYTES);
        for (nth, end) in (1..).zip(["a", "b", "b"]) {
            top_denied.record(&format!("{long}{end}"), nth);
        }
        let top = top_denied.top(9);
        assert_eq!(top.iter().map(|hitter| hitter.denied).collect::<Vec<_>>(), [2, 1]);
        assert!(
            top.iter().all(|entry| entry.id.len() == MAX_ID_BYTES && long.starts_with(&entry.id))
        );
        assert_eq!(format!("{top_denied:?}"), "TopDenied(..)");
    }

    #[test]
    fn a_locked_sketch_does_not_block_recording() {
        let top_denied = TopDenied::default();
        let guard = top_denied.sketch.try_lock();
        top_denied.record("ada", 1);
        drop(guard);
        assert_eq!(top_denied.top(9), []);
    }
}
