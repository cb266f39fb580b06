//! Two threads in pure Rust, compared with governor: row 9 of the targets, with different ids and with one id.

mod harness;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::thread;
use std::time::Duration;

use governor::{Quota, RateLimiter};
use penstock::clock::SystemClock;
use penstock::engine::limit::Limit;
use penstock::engine::registry::Registry;
use penstock::engine::time::Nanos;
use penstock::limiter::{Call, Limiter};
use penstock::store::memory::MemoryStore;

use harness::{Run, Sides, Table, alternate, ids, median, quick, ratio};

/// Burst, and seconds per token: large enough that no id is denied and no bucket drains during a run.
const BURST: u32 = 40_000_000;
const PERIOD: u64 = 100;
const THREADS: usize = 2;

/// Calls the limiter for each drawn name; each thread handles its own part.
fn shared(names: &[String], drawn: &[usize], ask: &(dyn Fn(&String) -> bool + Sync)) {
    thread::scope(|scope| {
        for part in drawn.chunks(drawn.len().div_ceil(THREADS)) {
            scope.spawn(move || assert!(part.iter().all(|&place| black_box(ask(&names[place])))));
        }
    });
}

fn beside_governor(table: &Table, buckets: usize, calls: usize, rounds: usize) {
    let (names, drawn) = ids(buckets, calls);
    let period = Nanos::SECOND.saturating_mul(PERIOD);
    let limit = Limit::token_bucket(BURST.into(), 1, period).expect("a valid limit");
    let registry = Registry::default().with("Orders", limit).expect("a valid name");
    let limiter = Limiter::new(registry, MemoryStore::new(None), SystemClock::new());
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit that is there");
    let quota = Quota::with_period(Duration::from_secs(PERIOD)).expect("not zero");
    let quota = quota.allow_burst(NonZeroU32::new(BURST).expect("not zero"));
    let dash = RateLimiter::dashmap(quota);
    let hash = RateLimiter::hashmap(quota);
    for name in &names {
        limiter.decide(bound, Call::spend(name, 1)).expect("an answer");
        dash.check_key(name).expect("allowed");
        hash.check_key(name).expect("allowed");
    }
    let spend = |name: &String| {
        limiter.decide(bound, Call::spend(name, 1)).is_ok_and(|result| result.decision.allowed)
    };
    let mut runs: [Run<'_>; 3] = [
        ("penstock", Box::new(|| shared(&names, &drawn, &spend))),
        (
            "governor, dashmap",
            Box::new(|| shared(&names, &drawn, &|name| dash.check_key(name).is_ok())),
        ),
        (
            "governor, hashmap",
            Box::new(|| shared(&names, &drawn, &|name| hash.check_key(name).is_ok())),
        ),
    ];
    let took = alternate(&mut runs, calls, rounds);
    let size = if buckets == 1 { "one bucket".to_owned() } else { format!("{buckets} buckets") };
    for ((name, _), times) in runs.iter().zip(&took) {
        table.seen(
            &format!("{name}, {size}, {THREADS} threads, wall time a decision"),
            median(times),
            " ns",
        );
    }
    let theirs = if median(&took[1]) < median(&took[2]) { &took[1] } else { &took[2] };
    let sides = Sides { ours: Some(median(&took[0])), peer: Some(median(theirs)) };
    match buckets {
        1 => {
            let what = format!("times as fast as the faster governor, {size}, {THREADS} threads");
            table.seen(&what, ratio(theirs, &took[0]), " x");
        }
        2..100_000 => {
            let what = format!("time against the faster governor, {size}, {THREADS} threads");
            table.at_most("9", &what, 1.3, ratio(&took[0], theirs), " x", sides);
        }
        _ => {
            let what = format!("times as fast as the faster governor, {size}, {THREADS} threads");
            table.at_least("9", &what, 1.4, ratio(theirs, &took[0]), " x", sides);
        }
    }
}

fn main() {
    let table = Table::new("In Rust, two threads", !quick());
    if quick() {
        beside_governor(&table, 1_000, 10_000, 3);
        return;
    }
    beside_governor(&table, 1, 1_000_000, 15);
    beside_governor(&table, 1_000, 1_000_000, 15);
    beside_governor(&table, 100_000, 2_000_000, 15);
    beside_governor(&table, 1_000_000, 2_000_000, 9);
}
