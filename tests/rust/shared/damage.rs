//! Bits flipped in the slots of a table in use.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use penstock::clock::{AnyClock, ManualClock};
use penstock::engine::operation::Verb;
use penstock::engine::time::Timestamp;
use penstock::store::memory::Overflow;
use penstock::store::shared::{MappedFile, SharedStore};
use proptest::prelude::*;

use super::{Shared, fresh_path};

const HEADER: u64 = 4096;
const SECOND: i64 = 1_000_000_000;
const LIMITS: [&str; 2] = ["Tokens", "Counted"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the slots are made to say, calls answer, and a bucket is full again after one
    /// refill more than the longest memory that a limit has.
    #[test]
    fn damage_lasts_no_longer_than_a_limit_remembers(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..200),
    ) {
        let path = fresh_path("damage");
        let memory = MappedFile::open(&path, Some(40)).expect("a new table");
        let start = Timestamp::clamped(1_800_000_000 * SECOND);
        let clock = Arc::new(ManualClock::new(start));
        let any = AnyClock::Manual(Arc::clone(&clock));
        let shared = Shared::new(SharedStore::in_file(memory, Overflow::Share), any);
        let ids: Vec<String> = (0..30).map(|id| id.to_string()).collect();
        let spend_all = || {
            for name in LIMITS {
                for id in &ids {
                    shared.call(Verb::Spend, name, id).expect("an answer");
                }
            }
        };
        spend_all();
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("the table");
        let slots = file.metadata().expect("its length").len() - HEADER;
        for (index, bit) in flips {
            let at = HEADER + index.index(slots as usize) as u64;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("a byte");
            file.write_all_at(&[byte[0] ^ 1 << bit], at).expect("a damaged byte");
        }
        spend_all();
        // The longest that any limit of this table remembers: a window of a day, rounded up.
        clock.advance(2 * 86_400 * SECOND).expect("forwards");
        for name in LIMITS {
            for id in &ids {
                prop_assert!(shared.spend(name, id), "{} is locked out of {}", id, name);
            }
        }
    }
}
