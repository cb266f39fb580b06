//! The ids with the most denials, estimated with a fixed number of entries.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::sync::counting::Mutex;

/// The number of ids recorded for each limit.
pub const CAPACITY: usize = 64;
/// The maximum length of a stored id in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// The number of denials of a stripe that are all recorded.
const ALL: u64 = 1024;
/// Later ones are sampled at this interval, with this weight.
const ONE_IN: u64 = 16;

/// An id with many denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyHitter {
    /// The id in canonical spelling, cut to [`MAX_ID_BYTES`] bytes.
    pub id: String,
    /// An upper bound of its denials.
    pub denied: u64,
    /// The number of these denials that may belong to other ids.
    pub error: u64,
}

/// The weight with which the `nth` denial of a stripe (from 1) is recorded; 0 if it is not.
#[inline]
fn weight(nth: u64) -> u64 {
    // Multiples of the golden ratio are spread so evenly that no rhythm of calls coincides with them.
    if nth <= ALL {
        1
    } else if nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / ONE_IN {
        ONE_IN
    } else {
        0
    }
}

/// The sketch of one limit. It stays cheap under an attack.
pub(super) struct TopDenied {
    sketch: Mutex<Sketch>,
    /// Random, so that colliding ids cannot be constructed.
    hasher: DefaultHashBuilder,
}

impl fmt::Debug for TopDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Ids may be personal data, which does not belong in debug output.
        f.write_str("TopDenied(..)")
    }
}

impl TopDenied {
    pub(super) fn new() -> TopDenied {
        TopDenied { sketch: Mutex::new(Sketch::new()), hasher: DefaultHashBuilder::default() }
    }

    /// Records the `nth` denial of a stripe, unless it is not sampled or the sketch is locked.
    #[inline(always)]
    pub(super) fn note(&self, id: &str, nth: u64) {
        let weight = weight(nth);
        if weight > 0 {
            self.note_sampled(id, weight);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_sampled(&self, id: &str, weight: u64) {
        if let Some(mut sketch) = self.sketch.try_lock() {
            sketch.add(self.hasher.hash_one(id), id, weight);
        }
    }

    /// At most `n` ids, most denied first.
    pub(super) fn top(&self, n: usize) -> Vec<HeavyHitter> {
        let sketch = self.sketch.lock();
        sketch.entries.iter().take(n).map(|entry| entry.shown.clone()).collect()
    }
}

/// The space-saving sketch: a new id replaces the one with the fewest denials and inherits its
/// count.
///
/// 1. No entry counts less than its id was denied, nor more than that and its error.
/// 2. An id that was denied more than one part in [`CAPACITY`] of all times has an entry.
///
/// # Source
/// Metwally, Agrawal and El Abbadi: Efficient computation of frequent and top-k elements in data
/// streams (2005).
struct Sketch {
    /// Most denied first, so that an attacker is found quickly and the smallest entry is last.
    entries: Vec<Entry>,
}

struct Entry {
    hash: u64,
    shown: HeavyHitter,
}

impl Sketch {
    fn new() -> Sketch {
        Sketch { entries: Vec::new() }
    }

    fn add(&mut self, hash: u64, id: &str, weight: u64) {
        let id = shown(id);
        let found =
            self.entries.iter().position(|entry| entry.hash == hash && entry.shown.id == id);
        let index = match found {
            Some(index) => index,
            None if self.entries.len() < CAPACITY => {
                let shown = HeavyHitter { id: id.to_owned(), denied: 0, error: 0 };
                self.entries.push(Entry { hash, shown });
                self.entries.len() - 1
            }
            None => {
                let last = &mut self.entries[CAPACITY - 1];
                last.hash = hash;
                last.shown.error = last.shown.denied;
                // Reuses the memory of the id that is replaced.
                last.shown.id.clear();
                last.shown.id.push_str(id);
                CAPACITY - 1
            }
        };
        let denied = self.entries[index].shown.denied.saturating_add(weight);
        self.entries[index].shown.denied = denied;
        let before = &self.entries[..index];
        let to = before.partition_point(|entry| entry.shown.denied >= denied);
        self.entries[to..=index].rotate_right(1);
    }
}

/// The part of an id that is stored.
fn shown(id: &str) -> &str {
    &id[..id.floor_char_boundary(MAX_ID_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sketch_of(stream: &[(u16, u64)]) -> (Sketch, BTreeMap<String, u64>) {
        let (mut sketch, mut exact) = (Sketch::new(), BTreeMap::new());
        for &(id, weight) in stream {
            let text = format!("user-{id}");
            sketch.add(u64::from(id), &text, weight);
            *exact.entry(text).or_insert(0) += weight;
        }
        (sketch, exact)
    }

    proptest! {
        #[test]
        fn no_count_is_too_low_nor_higher_than_its_error_allows(
            stream in prop::collection::vec((0..300_u16, 1..9_u64), 0..2000),
        ) {
            let (sketch, exact) = sketch_of(&stream);
            let total: u64 = exact.values().sum();
            for Entry { shown, .. } in &sketch.entries {
                let truly = exact[&shown.id];
                prop_assert!(truly <= shown.denied && shown.denied <= truly + shown.error);
                prop_assert!(shown.error <= total / CAPACITY as u64);
            }
            prop_assert!(sketch.entries.is_sorted_by(|one, two| one.shown.denied >= two.shown.denied));
            let counted: u64 = sketch.entries.iter().map(|entry| entry.shown.denied).sum();
            prop_assert_eq!(counted, total);
        }

        #[test]
        fn an_id_with_a_large_share_of_denials_is_never_missed(
            stream in prop::collection::vec((0..300_u16, 1..9_u64), 0..2000),
            attacker in 0..300_u16,
            often in 1..200_u64,
        ) {
            let attack = stream.iter().flat_map(|&one| [one, (attacker, often)]);
            let (sketch, exact) = sketch_of(&attack.collect::<Vec<_>>());
            let total: u64 = exact.values().sum();
            for (id, &truly) in exact.iter().filter(|&(_, &count)| count > total / CAPACITY as u64) {
                let found = sketch.entries.iter().find(|entry| entry.shown.id == *id);
                prop_assert!(found.is_some_and(|entry| entry.shown.denied >= truly), "{}", id);
            }
        }
    }

    #[test]
    fn later_denials_are_sampled_evenly_whatever_their_rhythm() {
        assert!((1..=ALL).all(|nth| weight(nth) == 1));
        for rhythm in [1, 2, 3, 5, 8, 13, 64, 100] {
            let noted: u64 = (0..20_000).map(|turn| weight(ALL + 1 + turn * rhythm)).sum();
            assert!((19_000..=21_000).contains(&noted), "{noted} for every {rhythm}th");
        }
    }

    #[test]
    fn ids_that_begin_alike_are_kept_apart_and_are_cut() {
        let top_denied = TopDenied::new();
        let long = "é".repeat(MAX_ID_BYTES);
        for (nth, end) in (1..).zip(["a", "b", "b"]) {
            top_denied.note(&format!("{long}{end}"), nth);
        }
        let top = top_denied.top(9);
        assert_eq!(top.iter().map(|hot| hot.denied).collect::<Vec<_>>(), [2, 1]);
        assert!(top.iter().all(|hot| hot.id.len() == MAX_ID_BYTES && long.starts_with(&hot.id)));
        assert_eq!(format!("{top_denied:?}"), "TopDenied(..)");
    }

    #[test]
    fn a_busy_sketch_blocks_no_thread() {
        let top_denied = TopDenied::new();
        let held = top_denied.sketch.lock();
        top_denied.note("ada", 1);
        drop(held);
        assert_eq!(top_denied.top(9), []);
    }
}
