//! Models of two threads with two to four operations each, run in every order that the locks and
//! atomics allow (`make loom`).
//!
//! Each claim is a model that runs over any store. The memory store and a small correct store must
//! satisfy it, and the small store with one bug must fail it. This proves that the model can fail.

#![cfg(loom)]

mod faulty;
mod shared;
mod shared_models;
#[path = "../rust/stores/without_floor.rs"]
mod without_floor;
#[path = "../rust/stores/wrapped.rs"]
mod wrapped;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, Limiter, Transaction};
use penstock::store::Store;
use penstock::store::memory::MemoryStore;

use faulty::{Fault, Faulty, TornClock};
use without_floor::without_floor;

/// Runs a model in every possible order.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // The models are small enough for an exhaustive search.
    builder.preemption_bound = None;
    let orders = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&orders);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let orders = orders.load(Ordering::Relaxed);
    assert!(orders >= 13, "a model with {orders} orders proves nothing");
}

/// Runs a model in the orders with at most two preemptions, because it has too many orders to try all.
fn explore_most(model: impl Fn() + Sync + Send + 'static) {
    explore_some(2, model);
}

/// Runs a model in the orders with at most `preemptions` preemptions.
fn explore_some(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A store with one shard.
fn one_shard() -> MemoryStore {
    MemoryStore::new(Some(1000))
}

/// A store with two shards.
fn two_shards() -> MemoryStore {
    MemoryStore::new(Some(2048))
}

/// Creates a limiter whose clock shows 0. Each limit has a name, a burst, and a period in nanoseconds
/// in which one token is added.
fn limiter<S: Store>(store: S, limits: &[(&str, i64, i64)]) -> Arc<Limiter<S, ManualClock>> {
    let limits = limits.iter().map(|&(name, burst, period)| {
        let limit = Limit::token_bucket(burst, 1, Nanos::clamped(period)).expect("a limit");
        (name.to_owned(), limit)
    });
    let registry = config::from_limits(limits).expect("limits");
    Arc::new(Limiter::new(registry, store, ManualClock::new(Timestamp::ORIGIN)))
}

/// Spends one token `times` times, and returns the number of allowed requests.
fn spend<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str, id: &str, times: i64) -> i64 {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    let once = || limiter.decide(bound, Call::spend(id, 1)).expect("an answer");
    (0..times).filter(|_| once().decision.allowed).count() as i64
}

/// Spends a token from each bucket in one batch, in the given order. Returns 1 if it is allowed.
fn spend_all<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str, ids: [&str; 2]) -> i64 {
    let snapshot = limiter.snapshot();
    let limit = snapshot.limit(name).expect("a limit");
    let part = |id| Transaction::new(limit, id, 1, Kind::Spend);
    let decided = limiter.decide_all(Verb::Spend, &ids.map(part)).expect("an answer");
    i64::from(decided.decision.allowed)
}

/// Two threads spend from a new bucket: together they are allowed exactly its burst.
fn new_bucket<S: Store + 'static>(store: S) {
    let limiter = limiter(store, &[("Orders", 3, 1000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", "shared", 2));
    let admitted = spend(&limiter, "Orders", "shared", 2) + thread.join().unwrap();
    assert_eq!(admitted, 3);
}

/// The same with batches over two new buckets, one of which both threads use.
fn new_buckets<S: Store + 'static>(store: S, ids: [&'static str; 2]) {
    let limiter = limiter(store, &[("Orders", 2, 1000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", ids[0], 2));
    let both = spend_all(&limiter, "Orders", ids) + spend_all(&limiter, "Orders", ids);
    let admitted = both + thread.join().unwrap();
    assert_eq!(admitted, 2);
    assert_eq!(spend(&limiter, "Orders", ids[1], 2), 2 - both);
}

/// Between one thread's clock reading and its spend, a bucket becomes full and is dropped for a new one.
/// The thread is allowed no more than a burst and the tokens added since.
fn forgotten_bucket<S: Store + 'static>(store: S) {
    let limiter = limiter(store, &[("Orders", 1, 1000)]);
    // The number of buckets that a table holds before it grows and drops expired buckets.
    for id in ["shared", "2", "3", "4", "5", "6", "7"] {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", "shared", 1));
    limiter.clock().advance(1000).unwrap();
    assert_eq!(spend(&limiter, "Orders", "8", 1), 1);
    let late = thread.join().unwrap();
    let last = spend(&limiter, "Orders", "shared", 1);
    assert!(1 + late + last <= 2, "{} allowed instead of 2", 1 + late + last);
}

/// The same without growth: each new bucket checks two slots for expired buckets. The test tries every
/// bucket, because it does not know which slots these are.
fn swept_bucket<S: Store + 'static>(store: S, id: &'static str) {
    let limiter = limiter(store, &[("Orders", 1, 1000)]);
    for id in EIGHT {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    let slots = limiter.stats().unwrap().slots;
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", id, 1));
    limiter.clock().advance(1000).unwrap();
    assert_eq!(spend(&limiter, "Orders", "9", 1) + spend(&limiter, "Orders", "10", 1), 2);
    let late = thread.join().unwrap();
    let last = spend(&limiter, "Orders", id, 1);
    assert!(1 + late + last <= 2, "{} allowed instead of 2", 1 + late + last);
    assert_eq!(limiter.stats().unwrap().slots, slots, "the table grew instead of sweeping");
}

/// One more bucket than a table holds before it grows.
const EIGHT: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// Two batches use the same two buckets in opposite orders. They do not deadlock, one is allowed, and
/// the denied one takes no token from the bucket that has one left.
fn opposite_batches<S: Store + 'static>(store: S, ids: [&'static str; 2]) {
    let limiter = limiter(store, &[("Orders", 2, 1000)]);
    assert_eq!(spend(&limiter, "Orders", ids[0], 1), 1);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend_all(&other, "Orders", [ids[1], ids[0]]));
    let admitted = spend_all(&limiter, "Orders", ids) + thread.join().unwrap();
    assert_eq!(admitted, 1);
    assert_eq!(spend(&limiter, "Orders", ids[0], 2), 0);
    assert_eq!(spend(&limiter, "Orders", ids[1], 2), 1);
}

/// A table grows for one thread's bucket while another thread spends. The spend is not lost with the old
/// table.
fn grown_table<S: Store + 'static>(store: S) {
    let limiter = limiter(store, &[("Orders", 3, 1000)]);
    for id in ["shared", "2", "3", "4", "5", "6", "7"] {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", "shared", 1));
    assert_eq!(spend(&limiter, "Orders", "8", 1), 1);
    let admitted = 1 + thread.join().unwrap() + spend(&limiter, "Orders", "shared", 3);
    assert_eq!(admitted, 3);
    assert_eq!(limiter.stats().unwrap().buckets, Some(8));
}

/// One thread reads two buckets in a batch while another spends from both in a batch. The reader sees
/// both charges or neither.
fn whole_batches<S: Store + 'static>(store: S, ids: [&'static str; 2]) {
    let limiter = limiter(store, &[("Orders", 9, 1000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || {
        assert_eq!(spend_all(&other, "Orders", ids), 1);
    });
    let snapshot = limiter.snapshot();
    let limit = snapshot.limit("Orders").expect("a limit");
    let part = |id| Transaction::new(limit, id, 0, Kind::Check);
    let seen = limiter.decide_all(Verb::Check, &[part(ids[1]), part(ids[0])]).expect("an answer");
    let [first, second] = [0, 1].map(|index: usize| seen.parts[index].decision.remaining);
    assert_eq!(first, second, "a partial batch was seen");
    thread.join().unwrap();
}

/// Returns two ids whose buckets are in different shards of a store with two shards.
fn ids_in_two_shards() -> [&'static str; 2] {
    const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let limiter = limiter(two_shards(), &[("Orders", 9, 1000)]);
    spend(&limiter, "Orders", IDS[0], 1);
    let slots = limiter.stats().unwrap().slots;
    // A shard allocates its first slots for its first bucket.
    let other = IDS.into_iter().skip(1).find(|id| {
        spend(&limiter, "Orders", id, 1);
        limiter.stats().unwrap().slots > slots
    });
    [IDS[0], other.expect("eight ids are not all in one shard")]
}

#[test]
fn a_new_bucket_is_added_once() {
    explore(|| new_bucket(one_shard()));
    explore(|| new_bucket(Faulty::new(Fault::None)));
}

#[test]
fn a_batch_adds_new_buckets_once() {
    explore(|| {
        let ids = ids_in_two_shards();
        new_buckets(two_shards(), ids);
    });
    explore(|| new_buckets(one_shard(), ["a", "b"]));
    explore(|| new_buckets(Faulty::new(Fault::None), ["a", "b"]));
}

#[test]
#[should_panic(expected = "left: 4")]
fn an_unlocked_write_after_a_read_is_detected() {
    explore(|| new_bucket(Faulty::new(Fault::ReadsThenWrites)));
}

#[test]
fn a_dropped_bucket_is_not_revived_by_an_old_clock_reading() {
    explore(|| forgotten_bucket(one_shard()));
    explore(|| forgotten_bucket(Faulty::new(Fault::None)));
}

#[test]
#[should_panic(expected = "3 allowed instead of 2")]
fn a_store_without_a_floor_is_detected() {
    explore(|| forgotten_bucket(Faulty::new(Fault::NoFloor)));
}

#[test]
#[should_panic(expected = "3 allowed instead of 2")]
fn the_memory_store_without_its_floor_is_detected() {
    explore(|| forgotten_bucket(without_floor(one_shard())));
}

#[test]
fn a_swept_bucket_is_not_revived_by_an_old_clock_reading() {
    for id in EIGHT {
        explore(move || swept_bucket(one_shard(), id));
    }
}

#[test]
#[should_panic(expected = "3 allowed instead of 2")]
fn a_sweep_without_a_floor_is_detected() {
    for id in EIGHT {
        explore(move || swept_bucket(without_floor(one_shard()), id));
    }
}

#[test]
fn batches_in_opposite_orders_do_not_deadlock() {
    explore(|| {
        let ids = ids_in_two_shards();
        opposite_batches(two_shards(), ids);
    });
    explore(|| opposite_batches(one_shard(), ["a", "b"]));
    explore(|| opposite_batches(Faulty::new(Fault::None), ["a", "b"]));
}

#[test]
#[should_panic(expected = "deadlock")]
fn locking_in_the_order_of_the_call_is_detected() {
    explore(|| opposite_batches(Faulty::new(Fault::LocksInCallOrder), ["a", "b"]));
}

#[test]
fn a_batch_is_atomic() {
    explore(|| {
        let ids = ids_in_two_shards();
        whole_batches(two_shards(), ids);
    });
    explore(|| whole_batches(Faulty::new(Fault::None), ["a", "b"]));
}

#[test]
#[should_panic(expected = "a partial batch was seen")]
fn locking_one_shard_at_a_time_is_detected() {
    explore(|| whole_batches(Faulty::new(Fault::OneLockAtATime), ["a", "b"]));
}

#[test]
fn no_charge_is_lost_while_a_table_grows() {
    explore(|| grown_table(one_shard()));
    explore(|| grown_table(Faulty::new(Fault::None)));
}

#[test]
#[should_panic(expected = "left: 4")]
fn a_growing_table_swapped_in_too_late_is_detected() {
    explore(|| grown_table(Faulty::new(Fault::CopiesThenSwaps)));
}

/// Two threads advance a clock, and no advance is lost.
fn concurrent_advances(advance: fn(&TornClock, i64), clock: TornClock) {
    let clock = Arc::new(clock);
    let other = Arc::clone(&clock);
    let thread = thread::spawn(move || {
        advance(&other, 1);
        advance(&other, 10);
    });
    advance(&clock, 100);
    thread.join().unwrap();
    assert_eq!(clock.now(), Timestamp::clamped(111));
}

#[test]
fn concurrent_advances_of_a_clock_add_up() {
    explore(|| {
        let clock = Arc::new(ManualClock::new(Timestamp::ORIGIN));
        let other = Arc::clone(&clock);
        let thread = thread::spawn(move || {
            other.advance(1).unwrap();
            other.advance(10).unwrap();
        });
        clock.advance(100).unwrap();
        thread.join().unwrap();
        assert_eq!(clock.now(), Timestamp::clamped(111));
    });
}

#[test]
#[should_panic(expected = "left: Timestamp")]
fn a_clock_without_atomic_advances_is_detected() {
    explore(|| concurrent_advances(TornClock::advance, TornClock::new()));
}

/// A thread that sees the new generation also sees the new limits.
#[test]
fn limits_are_published_before_their_generation() {
    explore(|| {
        let limiter = limiter(Faulty::new(Fault::None), &[("Old", 1, 1)]);
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || {
            let new = Limit::token_bucket(1, 1, Nanos::SECOND).expect("a limit");
            other.reload(config::from_limits([("New".to_owned(), new)]).expect("limits")).unwrap();
        });
        for _ in 0..3 {
            let seen = limiter.generation();
            let snapshot = limiter.snapshot();
            let is_new = snapshot.limit("New").is_ok();
            assert!(seen == 0 || is_new, "an old limit with a new generation");
        }
        thread.join().unwrap();
        assert_eq!(limiter.generation(), 1);
    });
}

#[test]
#[should_panic(expected = "an old limit with a new generation")]
fn a_generation_published_before_its_limits_is_detected() {
    explore(|| {
        let loaded = Arc::new(faulty::EarlyGeneration::new());
        let other = Arc::clone(&loaded);
        let thread = thread::spawn(move || other.replace(1));
        let seen = loaded.generation();
        assert!(seen == 0 || loaded.snapshot() == 1, "an old limit with a new generation");
        thread.join().unwrap();
    });
}
