//! Stress tests with real threads on one store. Each test of a race also asserts that a race occurred.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use penstock::clock::{Clock, ManualClock, SystemClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::time::{Now, Timestamp};
use penstock::engine::verb::Verb;
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
        now: Now,
        _: Now,
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
