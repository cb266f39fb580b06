//! Stress tests with real threads on one store. Each test of a race also asserts that a race occurred.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use penstock::clock::{Clock, ManualClock, SystemClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::operation::Verb;
use penstock::engine::time::Timestamp;
use penstock::limiter::{Call, Limiter, Transaction};
use penstock::store::memory::MemoryStore;
use penstock::store::{Bucket, Store, Write};

use crate::stores::wrapped::{Around, Decide, Wrapped};
use crate::stores::{ONE_SHARD, at};

const MILLI: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;

/// A memory store that provokes contention on the bucket `shared`, and counts it.
struct Contended {
    /// The number of calls in progress.
    calls: AtomicU64,
    /// Whether a call holds the bucket's lock.
    is_locked: AtomicBool,
    steps: AtomicU64,
    /// The number of calls that began while another held the lock.
    collisions: Mutex<u64>,
    is_contended: Condvar,
}

/// The number of collisions that a test requires.
const MIN_COLLISIONS: u64 = 50;
const NO_RACE: &str = "too few calls began while another held the bucket's lock";

impl Contended {
    fn around(store: MemoryStore) -> Wrapped<Contended> {
        let around = Contended {
            calls: 0.into(),
            is_locked: false.into(),
            steps: 0.into(),
            collisions: Mutex::default(),
            is_contended: Condvar::new(),
        };
        Wrapped { store, around }
    }

    /// Runs a call on the bucket.
    fn watch_call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_locked.load(Ordering::SeqCst) {
            *self.collisions.lock().expect("a lock") += 1;
            self.is_contended.notify_all();
        }
        let result = call();
        let steps = self.steps.load(Ordering::SeqCst);
        // A thread that waits for the lock gets it before this thread begins its next call.
        if self.calls.fetch_sub(1, Ordering::SeqCst) > 1 && self.needs_collisions() {
            yield_until(|| self.steps.load(Ordering::SeqCst) > steps);
        }
        result
    }

    /// Returns whether there were too few collisions so far.
    fn needs_collisions(&self) -> bool {
        *self.collisions.lock().expect("a lock") < MIN_COLLISIONS
    }

    /// Waits until there were enough collisions. Returns their number, which is too low after a timeout.
    fn wait_for_a_race(&self) -> u64 {
        let (collisions, timeout) =
            (self.collisions.lock().expect("a lock"), Duration::from_secs(60));
        let is_too_low = |collisions: &mut u64| *collisions < MIN_COLLISIONS;
        *self.is_contended.wait_timeout_while(collisions, timeout, is_too_low).expect("a lock").0
    }

    /// Runs a step, which holds the bucket's lock.
    fn watch_step<T>(&self, step: impl FnOnce() -> T) -> T {
        self.is_locked.store(true, Ordering::SeqCst);
        if self.steps.fetch_add(1, Ordering::SeqCst).is_multiple_of(8) && self.needs_collisions() {
            yield_until(|| self.calls.load(Ordering::SeqCst) > 1);
        }
        let result = step();
        self.is_locked.store(false, Ordering::SeqCst);
        result
    }
}

/// Yields to other threads until a condition holds, but not for long: there may be no other thread.
fn yield_until(condition: impl Fn() -> bool) {
    for _ in 0..20 {
        if condition() {
            return;
        }
        thread::yield_now();
    }
}

impl Around for Contended {
    fn call<T>(&self, buckets: &[Bucket<'_>], call: impl FnOnce() -> T) -> T {
        if is_watched(buckets) { self.watch_call(call) } else { call() }
    }

    fn decide(
        &self,
        buckets: &[Bucket<'_>],
        now: Timestamp,
        _: Timestamp,
        decide: &mut Decide<'_>,
    ) -> Vec<Write> {
        if is_watched(buckets) { self.watch_step(|| decide(now)) } else { decide(now) }
    }
}

fn is_watched(buckets: &[Bucket<'_>]) -> bool {
    buckets.iter().any(|bucket| bucket.id == "shared")
}

fn limiter<S: Store>(limits: &str, store: S) -> Limiter<S, ManualClock> {
    let registry = config::parse(limits, None, None).expect("limits");
    Limiter::new(registry, store, ManualClock::new(at(1_700_000_000 * SECOND)))
}

/// Spends `cost` tokens, and returns whether the request is allowed.
fn spend<S: Store, C: Clock>(limiter: &Limiter<S, C>, name: &str, id: &str, cost: i64) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    limiter.decide(bound, Call::spend(id, cost)).expect("an answer").decision.allowed
}

#[test]
fn two_threads_admit_exactly_the_limit_while_the_table_grows_and_sweeps() {
    for store in [MemoryStore::new(None), MemoryStore::new(Some(ONE_SHARD))] {
        // A token is added each millisecond. The test lasts fewer milliseconds than the bucket has
        // tokens, so it is never full again, and the number of allowed requests is exact.
        let limits = "
            Orders: {burst: 1000, count: 1, period: 1ms}
            Passing: {burst: 1, count: 1, period: 1ms}
        ";
        let limiter = limiter(limits, Contended::around(store));
        assert!(spend(&limiter, "Orders", "shared", 1000));
        let slots = limiter.stats().expect("stats").slots;
        let is_running = AtomicBool::new(true);
        let admitted: i64 = thread::scope(|scope| {
            let spending = || {
                let mut admitted = 0;
                while is_running.load(Ordering::SeqCst) {
                    admitted += i64::from(spend(&limiter, "Orders", "shared", 1));
                }
                admitted
            };
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(spending)).collect();
            // New buckets are added, expire after a millisecond, and are dropped for the next ones.
            // The clock advances with each.
            for number in 0..40_000 {
                assert!(spend(&limiter, "Passing", &format!("passing {number}"), 1));
                limiter.clock().advance(500 * MILLI / 40_000).expect("a time");
            }
            let collisions = limiter.store().around.wait_for_a_race();
            is_running.store(false, Ordering::SeqCst);
            assert!(collisions >= MIN_COLLISIONS, "{NO_RACE}: {collisions}");
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        let last = (0..1000).take_while(|_| spend(&limiter, "Orders", "shared", 1)).count() as i64;
        assert_eq!(admitted + last, 500);
        let stats = limiter.stats().expect("stats");
        assert!(
            stats.forgotten > Some(10_000) && stats.slots > slots && stats.evicted == Some(0),
            "{stats:?}"
        );
    }
}

#[test]
fn batches_that_share_shards_neither_deadlock_nor_take_a_part_of_their_tokens() {
    let limits = "
        Orders: {burst: 1500, count: 1, period: 24h}
        Names: {burst: 2000, count: 1, period: 24h}
    ";
    let limiter = Arc::new(limiter(limits, Contended::around(MemoryStore::new(None))));
    let is_running = Arc::new(AtomicBool::new(true));
    let (done, results) = mpsc::channel();
    for thread in 0..3_usize {
        let (limiter, is_running, done) =
            (Arc::clone(&limiter), Arc::clone(&is_running), done.clone());
        // Not in a scope, which would wait forever for deadlocked threads.
        thread::spawn(move || {
            let snapshot = limiter.snapshot();
            let part = |name: &str, id: &'static str| {
                Transaction::new(snapshot.limit(name).expect("a limit"), id, 1, Kind::Spend)
            };
            let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
            let mut admitted = 0;
            for turn in (0..).take_while(|&turn| turn < 1200 || is_running.load(Ordering::SeqCst)) {
                // The same buckets in each call, in varying orders.
                let mut parts = vec![part("Orders", "shared"), part("Names", "shared")];
                parts.extend(ids.iter().map(|id| part("Names", id)));
                parts.rotate_left((turn * (thread + 1)) % ids.len());
                if thread == 1 {
                    parts.reverse();
                }
                admitted +=
                    limiter.decide_all(Verb::Spend, &parts).expect("an answer").decision.allowed
                        as i64;
            }
            done.send(admitted).expect("the test is waiting");
        });
    }
    let collisions = limiter.store().around.wait_for_a_race();
    is_running.store(false, Ordering::SeqCst);
    let wait =
        || results.recv_timeout(Duration::from_secs(60)).expect("the threads are deadlocked");
    let admitted: i64 = (0..3).map(|_| wait()).sum();
    assert!(collisions >= MIN_COLLISIONS, "{NO_RACE}: {collisions}");
    assert_eq!(admitted, 1500);
    let left = |name: &str, id: &str| {
        let snapshot = limiter.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        limiter.decide(bound, Call::check(id, 0)).expect("an answer").decision.remaining
    };
    // Batches that were denied by the bucket of orders took no tokens from the other buckets.
    assert_eq!(left("Orders", "shared"), 0);
    for id in ["shared", "a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(left("Names", id), 500, "{id}");
    }
}

#[test]
fn limits_can_be_replaced_while_threads_decide() {
    let smaller = "Orders: {burst: 1000, count: 1, period: 1h}";
    let larger =
        "Orders: {burst: 1800, count: 1, period: 1h}\nNames: {burst: 1, count: 1, period: 1h}";
    let limiter = limiter(smaller, Contended::around(MemoryStore::new(None)));
    let is_running = AtomicBool::new(true);
    let (replaced, admitted) = thread::scope(|scope| {
        let spending = || {
            let (mut admitted, mut seen) = (0, 0);
            while is_running.load(Ordering::SeqCst) {
                let generation = limiter.generation();
                assert!(generation >= seen, "the generation decreased");
                seen = generation;
                admitted += i64::from(spend(&limiter, "Orders", "shared", 1));
            }
            admitted
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(spending)).collect();
        for turn in 0..200 {
            let limits = if turn % 2 == 0 { larger } else { smaller };
            limiter.reload(config::parse(limits, None, None).expect("limits")).expect("a reload");
        }
        let collisions = limiter.store().around.wait_for_a_race();
        is_running.store(false, Ordering::SeqCst);
        assert!(collisions >= MIN_COLLISIONS, "{NO_RACE}: {collisions}");
        let admitted: i64 =
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum();
        (limiter.generation(), admitted)
    });
    assert_eq!(replaced, 200);
    // Both limits use the same bucket, so together they admit no more than the larger one.
    limiter.reload(config::parse(larger, None, None).expect("limits")).expect("a reload");
    let last = (0..2000).take_while(|_| spend(&limiter, "Orders", "shared", 1)).count() as i64;
    assert_eq!(admitted + last, 1800);
}

#[test]
fn concurrent_advances_of_a_clock_add_up() {
    let clock = ManualClock::new(at(0));
    thread::scope(|scope| {
        for by in [1, 1000] {
            let clock = &clock;
            scope.spawn(move || (0..20_000).for_each(|_| clock.advance(by).expect("a time")));
        }
    });
    assert_eq!(clock.now(), at(20_000 * 1001));
}

/// A clock that runs a callback after one reading, which is then outdated when it is used.
struct DelayedClock {
    clock: ManualClock,
    after_reading: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for DelayedClock {
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        let callback = self.after_reading.lock().expect("a lock").take();
        if let Some(callback) = callback {
            callback();
        }
        now
    }
}

/// A thread is preempted between its clock reading and its call, while other threads spend. The state
/// is then later than its own reading allows. It must read the clock again before it clamps the state.
/// Otherwise it would admit the tokens of the other threads a second time.
#[test]
fn an_old_clock_reading_does_not_clamp_a_valid_state() {
    let limits = "
        Orders: {burst: 10, count: 1, period: 1s}
        Pages: {burst: 10, count: 1, period: 1s}
    ";
    for is_batch in [false, true] {
        let (clock, after_reading) = (ManualClock::new(at(5 * SECOND)), Mutex::default());
        let clock = DelayedClock { clock, after_reading };
        let registry = config::parse(limits, None, None).expect("limits");
        let limiter = Arc::new(Limiter::new(registry, MemoryStore::new(None), clock));
        let others = Arc::clone(&limiter);
        *limiter.clock().after_reading.lock().expect("a lock") = Some(Box::new(move || {
            others.clock().clock.advance(100 * SECOND).expect("a time");
            assert!(spend(&others, "Orders", "shared", 10));
        }));
        if is_batch {
            let snapshot = limiter.snapshot();
            let parts = ["Orders", "Pages"].map(|name| {
                Transaction::new(snapshot.limit(name).expect("a limit"), "shared", 1, Kind::Spend)
            });
            assert!(!limiter.decide_all(Verb::Spend, &parts).expect("an answer").decision.allowed);
        } else {
            assert!(!spend(&limiter, "Orders", "shared", 1));
        }
        assert!(!spend(&limiter, "Orders", "shared", 1), "tokens were admitted twice");
    }
}

#[test]
fn preempted_threads_admit_no_more_than_the_rate() {
    let limits = "Orders: {burst: 1, count: 1000, period: 1s}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, MemoryStore::new(None), SystemClock::new());
    let start = limiter.clock().now().get();
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        let spending = || {
            // On a busy machine for longer, until enough are allowed to prove something.
            while admitted.load(Ordering::SeqCst) <= 20
                || limiter.clock().now().get() < start + 300 * MILLI
            {
                let allowed = spend(&limiter, "Orders", "shared", 1);
                admitted.fetch_add(u64::from(allowed), Ordering::SeqCst);
            }
        };
        (0..8).for_each(|_| drop(scope.spawn(spending)));
    });
    let bound = 1 + (limiter.clock().now().get() - start) / MILLI;
    let admitted = admitted.into_inner() as i64;
    assert!(admitted <= bound, "{admitted} allowed instead of {bound}");
}
