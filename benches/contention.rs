//! Two threads in pure Rust, compared with governor: row 9 of the targets, with different ids and with one id.

mod harness;

use std::hint::black_box;
use std::thread;

use harness::{Table, compare_with_governor, quick};

const THREADS: usize = 2;

/// Calls the limiter for each drawn name. Each thread handles its own part.
fn shared(names: &[String], drawn: &[usize], ask: &(dyn Fn(&String) -> bool + Sync)) {
    thread::scope(|scope| {
        for part in drawn.chunks(drawn.len().div_ceil(THREADS)) {
            scope.spawn(move || assert!(part.iter().all(|&index| black_box(ask(&names[index])))));
        }
    });
}

fn compare(table: &Table, buckets: usize, calls: usize, rounds: usize) {
    let size = if buckets == 1 { "one bucket".to_owned() } else { format!("{buckets} buckets") };
    let size = format!("{size}, {THREADS} threads");
    let what = format!("{size}, wall time a decision");
    let found = compare_with_governor(table, &what, (buckets, calls, rounds), shared);
    found.show(table, &size, buckets >= 100_000);
}

fn main() {
    let table = Table::new("In Rust, two threads", !quick());
    if quick() {
        compare(&table, 1_000, 10_000, 3);
        return;
    }
    compare(&table, 1, 1_000_000, 15);
    compare(&table, 1_000, 1_000_000, 15);
    compare(&table, 100_000, 2_000_000, 15);
    compare(&table, 1_000_000, 2_000_000, 9);
}
