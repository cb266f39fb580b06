//! Bit flips in a table in use. The fixed part of its header is read only when it is opened.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use penstock::clock::{AnyClock, ManualClock};
use penstock::engine::time::Timestamp;
use penstock::engine::verb::Verb;
use penstock::store::memory::Overflow;
use penstock::store::shared::{MappedFile, SharedStore};
use proptest::prelude::*;

use super::{Shared, fresh_path};

const HEADER: u64 = 4096;
const SECOND: i64 = 1_000_000_000;
const LIMITS: [&str; 3] = ["Tokens", "Counted", "Drips"];
/// The words of the header that all processes write, and the unused bytes after them.
const SHARED_WORDS: std::ops::Range<u64> = 128..1024;

fn flip(file: &File, at: u64, bit: u8) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1 << bit], at).expect("a damaged byte");
}

/// Returns a limiter in a new table, its clock, and its file.
fn damaged_scene(path: &Path) -> (Shared<MappedFile>, Arc<ManualClock>, File) {
    let memory = MappedFile::open(path, Some(40)).expect("a new table");
    let clock = Arc::new(ManualClock::new(Timestamp::clamped(1_800_000_000 * SECOND)));
    let any = AnyClock::Manual(Arc::clone(&clock));
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the table");
    (Shared::new(SharedStore::in_file(memory, Overflow::Share), any), clock, file)
}

#[test]
fn a_bit_flip_in_the_shared_words_costs_at_most_one_burst_and_one_refill() {
    for at in SHARED_WORDS {
        // Every bit of the words, and one bit of each unused byte.
        for bit in 0..if at % 64 < 8 { 8 } else { 1 } {
            let path = fresh_path("words");
            let (shared, clock, file) = damaged_scene(&path);
            let exhaust = |id: &str| (0..20).filter(|_| shared.spend("Tokens", id)).count();
            assert_eq!(exhaust("ada"), 5);
            assert!(shared.spend("Counted", "ada"));
            flip(&file, at, bit);
            // The bucket may be treated as damaged once, and is then full again.
            let again = exhaust("ada") + exhaust("ada");
            assert!(again <= 5, "{again} admitted after a flip of {at}, bit {bit}");
            for id in 0..8 {
                shared.call(Verb::Spend, "Counted", &id.to_string()).expect("an answer");
                assert!(exhaust(&id.to_string()) <= 5, "{at}, bit {bit}");
            }
            clock.advance(2 * 86_400 * SECOND).expect("forwards");
            for id in ["ada", "3", "new"] {
                assert!(LIMITS.iter().all(|name| shared.spend(name, id)), "{at}, bit {bit}");
            }
            drop(fs::remove_file(&path));
        }
    }
}

#[test]
fn a_damaged_level_is_forgotten_at_the_end_of_its_lifetime() {
    // The bits of the tally in a state word.
    for bit in 0..20 {
        let path = fresh_path("level");
        let (shared, clock, file) = damaged_scene(&path);
        assert!(shared.spend("Drips", "ada"));
        let slots = file.metadata().expect("its length").len() - HEADER;
        let mut bytes = vec![0; slots as usize];
        file.read_exact_at(&mut bytes, HEADER).expect("the slots");
        let slot = bytes.chunks(16).position(|slot| slot != [0; 16]).expect("the bucket");
        flip(&file, HEADER + 16 * slot as u64 + 8 + bit / 8, (bit % 8) as u8);
        let _ = shared.call(Verb::Spend, "Drips", "ada").expect("an answer");
        // A level of 1,200 requests drains in 20 hours. Lifetimes may be rounded up.
        clock.advance(2 * 20 * 3600 * SECOND).expect("forwards");
        assert!(shared.spend("Drips", "ada"), "bit {bit}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// With any contents of the slots, calls return an answer, and all buckets are full again after the
    /// longest lifetime of a limit plus one refill.
    #[test]
    fn damage_lasts_no_longer_than_the_longest_lifetime(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..200),
    ) {
        let path = fresh_path("damage");
        let (shared, clock, file) = damaged_scene(&path);
        let ids: Vec<String> = (0..30).map(|id| id.to_string()).collect();
        let spend_all = || {
            for name in LIMITS {
                for id in &ids {
                    shared.call(Verb::Spend, name, id).expect("an answer");
                }
            }
        };
        spend_all();
        let slots = file.metadata().expect("its length").len() - HEADER;
        for (index, bit) in flips {
            flip(&file, HEADER + index.index(slots as usize) as u64, bit);
        }
        spend_all();
        // The longest lifetime of a limit in this table: a window of a day, rounded up.
        clock.advance(2 * 86_400 * SECOND).expect("forwards");
        for name in LIMITS {
            for id in &ids {
                prop_assert!(shared.spend(name, id), "{} is locked out of {}", id, name);
            }
        }
    }
}
