//! One decision in pure Rust on one thread, compared with governor: rows 7, 8 and 9 of the targets.
//!
//! All calls are allowed. A penstock decision has all values for headers; governor returns only success.

mod harness;

use std::cmp::Ordering;
use std::hint::black_box;

use penstock::limiter::Call;

use harness::{Table, Times, compare_with_governor, ids, limiter, quick, seconds};

fn compare(table: &Table, buckets: usize, calls: usize, rounds: usize) {
    let size = format!("{buckets} buckets, one thread");
    let found =
        compare_with_governor(table, &size, (buckets, calls, rounds), |names, drawn, ask| {
            assert!(drawn.iter().all(|&index| black_box(ask(&names[index]))));
        });
    found.show(table, &size, buckets >= 100_000);
}

/// Adds buckets to a store one by one. Returns the time of the longest insert in milliseconds, and the
/// maximum memory per bucket from `from` buckets on.
fn grow(names: &[String], from: usize) -> (f64, f64) {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let (mut longest, mut most) = (0.0, 0.0);
    for (count, name) in names.iter().enumerate() {
        let time = seconds(|| drop(black_box(limiter.decide(bound, Call::spend(name, 1)))));
        longest = f64::max(longest, time * 1e3);
        if count >= from && count.is_multiple_of(from / 4) {
            most = f64::max(
                most,
                limiter.stats().expect("figures").bytes.expect("bytes") as f64 / count as f64,
            );
        }
    }
    (longest, most)
}

fn growth(table: &Table, buckets: usize, turns: usize) {
    let (names, _) = ids(buckets, 0);
    let grown: Vec<(f64, f64)> = (0..turns).map(|_| grow(&names, buckets / 10)).collect();
    let most = grown.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
    let what =
        format!("most bytes a bucket, by the store's count, {} to {buckets} buckets", buckets / 10);
    table.target("11", &what, (Ordering::Less, 32.0), most, " bytes", Times::default());
    // A pause of the store occurs in every round, a pause of the machine does not, so the minimum is the store's.
    let longest = grown.iter().map(|&(longest, _)| longest).fold(f64::INFINITY, f64::min);
    let what = format!("longest insert while growing to {buckets}");
    table.target("11", &what, (Ordering::Less, 2.0), longest, " ms", Times::default());
}

fn main() {
    let table = Table::new("In Rust, one thread", !quick());
    if quick() {
        compare(&table, 1_000, 10_000, 3);
        growth(&table, 50_000, 1);
        return;
    }
    compare(&table, 1_000, 1_000_000, 21);
    compare(&table, 100_000, 1_000_000, 15);
    compare(&table, 1_000_000, 2_000_000, 9);
    growth(&table, 10_000_000, 5);
}
