//! One decision in pure Rust on one thread, compared with governor: rows 7, 8 and 9 of the targets.
//!
//! governor keeps GCRA states by key in a `DashMap` (its default) or a `HashMap` with a mutex; the faster of the two
//! counts. All calls are allowed. A penstock decision has all values for headers; governor returns only success.

mod harness;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::{Quota, RateLimiter};
use penstock::clock::SystemClock;
use penstock::engine::limit::Limit;
use penstock::engine::registry::Registry;
use penstock::engine::time::Nanos;
use penstock::limiter::{Call, Limiter};
use penstock::store::memory::MemoryStore;

use harness::{Run, Sides, Table, alternate, ids, median, quick, ratio, seconds};

/// Burst, and seconds per token: large enough that no id is denied and no bucket drains during a run.
const BURST: u32 = 40_000_000;
const PERIOD: u64 = 100;

fn limiter() -> Limiter<MemoryStore, SystemClock> {
    let period = Nanos::SECOND.saturating_mul(PERIOD);
    let limit = Limit::token_bucket(BURST.into(), 1, period).expect("a valid limit");
    let registry = Registry::default().with("Orders", limit).expect("a valid name");
    Limiter::new(registry, MemoryStore::new(None), SystemClock::new())
}

fn quota() -> Quota {
    let quota = Quota::with_period(Duration::from_secs(PERIOD)).expect("not zero");
    quota.allow_burst(NonZeroU32::new(BURST).expect("not zero"))
}

fn beside_governor(table: &Table, buckets: usize, calls: usize, rounds: usize) {
    let (names, drawn) = ids(buckets, calls);
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit that is there");
    let dash = RateLimiter::dashmap(quota());
    let hash = RateLimiter::hashmap(quota());
    for name in &names {
        limiter.decide(bound, Call::spend(name, 1)).expect("an answer");
        dash.check_key(name).expect("allowed");
        hash.check_key(name).expect("allowed");
    }
    let each = |ask: &dyn Fn(&String) -> bool| {
        assert!(drawn.iter().all(|&place| black_box(ask(&names[place]))))
    };
    let spend = |name: &String| {
        limiter.decide(bound, Call::spend(name, 1)).is_ok_and(|result| result.decision.allowed)
    };
    let mut runs: [Run<'_>; 3] = [
        ("penstock", Box::new(|| each(&spend))),
        ("governor, dashmap", Box::new(|| each(&|name| dash.check_key(name).is_ok()))),
        ("governor, hashmap", Box::new(|| each(&|name| hash.check_key(name).is_ok()))),
    ];
    let took = alternate(&mut runs, calls, rounds);
    for ((name, _), times) in runs.iter().zip(&took) {
        table.seen(&format!("{name}, {buckets} buckets, one thread"), median(times), " ns");
    }
    let theirs = if median(&took[1]) < median(&took[2]) { &took[1] } else { &took[2] };
    let sides = Sides { ours: Some(median(&took[0])), peer: Some(median(theirs)) };
    if buckets <= 1_000 {
        let what = format!("time against the faster governor, {buckets} buckets, one thread");
        table.at_most("9", &what, 1.3, ratio(&took[0], theirs), " x", sides);
    } else {
        let what = format!("times as fast as the faster governor, {buckets} buckets, one thread");
        table.at_least("9", &what, 1.8, ratio(theirs, &took[0]), " x", sides);
    }
}

/// Grows a store bucket by bucket; returns the longest insert in milliseconds, and the maximum memory per bucket from
/// `from` buckets on.
fn grow(names: &[String], from: usize) -> (f64, f64) {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit that is there");
    let (mut longest, mut heaviest) = (0.0, 0.0);
    for (made, name) in names.iter().enumerate() {
        let took = seconds(|| drop(black_box(limiter.decide(bound, Call::spend(name, 1)))));
        longest = f64::max(longest, took * 1e3);
        if made >= from && made.is_multiple_of(from / 4) {
            heaviest = f64::max(
                heaviest,
                limiter.stats().expect("figures").bytes.expect("bytes") as f64 / made as f64,
            );
        }
    }
    (longest, heaviest)
}

fn growth(table: &Table, buckets: usize, turns: usize) {
    let (names, _) = ids(buckets, 0);
    let grown: Vec<(f64, f64)> = (0..turns).map(|_| grow(&names, buckets / 10)).collect();
    let most = grown.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
    let what =
        format!("most bytes a bucket, by the store's count, {} to {buckets} buckets", buckets / 10);
    table.at_most("7", &what, 32.0, most, " bytes", Sides::default());
    // The store's own pause occurs in every round, a pause of the machine does not: the minimum is the store's.
    let longest = grown.iter().map(|&(longest, _)| longest).fold(f64::INFINITY, f64::min);
    let what = format!("longest insert while growing to {buckets}");
    table.at_most("8", &what, 5.0, longest, " ms", Sides::default());
}

fn main() {
    let table = Table::new("In Rust, one thread", !quick());
    if quick() {
        beside_governor(&table, 1_000, 10_000, 3);
        growth(&table, 50_000, 1);
        return;
    }
    beside_governor(&table, 1_000, 1_000_000, 21);
    beside_governor(&table, 100_000, 1_000_000, 15);
    beside_governor(&table, 1_000_000, 2_000_000, 9);
    growth(&table, 10_000_000, 5);
}
