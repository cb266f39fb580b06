//! Clearing of a table while threads use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use penstock::store::Store;

use super::{COUNTED_LIMIT, Shared, fresh_path};

#[test]
fn each_clear_of_a_table_in_use_admits_at_most_one_more_limit() {
    let shared = Shared::open(&fresh_path("used"), 100).expect("a new table");
    let is_over = AtomicBool::new(false);
    let spend = || {
        let mut admitted = [0; 4];
        while !is_over.load(Ordering::Relaxed) {
            for (id, count) in admitted.iter_mut().enumerate() {
                *count += i64::from(shared.spend("Counted", &id.to_string()));
            }
        }
        admitted
    };
    let (clears, admitted) = thread::scope(|scope| {
        let threads = [scope.spawn(spend), scope.spawn(spend)];
        let mut clears = 0;
        // Some clears happen while the limit is exhausted, and some during charges.
        while clears < 20 {
            let used = shared.used("3");
            if used > 1000 * (clears % 10) || used == COUNTED_LIMIT {
                shared.0.stats().expect("the table");
                shared.0.store().clear().expect("the table");
                clears += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let counts = threads.map(|thread| thread.join().expect("a thread"));
        (clears, [0, 1, 2, 3].map(|id| counts.iter().map(|count| count[id]).sum::<i64>()))
    });
    for (id, &admitted) in admitted.iter().enumerate() {
        let used = shared.used(&id.to_string());
        assert!(used <= admitted && admitted <= (clears + 1) * COUNTED_LIMIT, "{id}: {admitted}");
    }
    shared.0.store().clear().expect("the table");
    assert!((0..4).all(|id| shared.used(&id.to_string()) == 0));
}
