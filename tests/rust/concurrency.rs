//! Real threads on one store. Their results are counted, and a test of a race counts that there
//! was one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use penstock::clock::{Clock, ManualClock, SystemClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::operation::Verb;
use penstock::engine::time::Timestamp;
use penstock::limiter::{Limiter, Transaction};
use penstock::store::memory::MemoryStore;
use penstock::store::{Bucket, Store};

use crate::stores::wrapped::{Around, Wrapped};
use crate::stores::{ONE_SHARD, at, without_floor};

const MILLI: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;

/// A memory store that brings threads together at the bucket `shared`, and counts how often it did.
struct Counting {
    /// Calls that have come and are not done.
    here: AtomicU64,
    /// Whether one of them has the bucket.
    inside: AtomicBool,
    steps: AtomicU64,
    /// Calls that came while another had the bucket.
    met: Mutex<u64>,
    enough: Condvar,
}

/// So many meetings make a race.
const ENOUGH: u64 = 50;
const NO_RACE: &str = "too few calls came while another was in the bucket: nothing was shown";

impl Counting {
    fn around(store: MemoryStore) -> Wrapped<Counting> {
        let around = Counting {
            here: 0.into(),
            inside: false.into(),
            steps: 0.into(),
            met: Mutex::default(),
            enough: Condvar::new(),
        };
        Wrapped { store, around }
    }

    /// A call at the bucket.
    fn watch_call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.here.fetch_add(1, Ordering::SeqCst);
        if self.inside.load(Ordering::SeqCst) {
            *self.met.lock().expect("a lock") += 1;
            self.enough.notify_all();
        }
        let done = call();
        let steps = self.steps.load(Ordering::SeqCst);
        // Who has waited at the lock is let in before this thread comes again.
        if self.here.fetch_sub(1, Ordering::SeqCst) > 1 && self.gathers() {
            give_way_until(|| self.steps.load(Ordering::SeqCst) > steps);
        }
        done
    }

    /// Whether threads are still to be brought together.
    fn gathers(&self) -> bool {
        *self.met.lock().expect("a lock") < ENOUGH
    }

    /// Waits until there was a race; gives how often calls met, which is too few if it never came
    /// to one.
    fn wait_for_a_race(&self) -> u64 {
        let (met, long) = (self.met.lock().expect("a lock"), Duration::from_secs(60));
        *self.enough.wait_timeout_while(met, long, |met| *met < ENOUGH).expect("a lock").0
    }

    /// What is done with the lock held.
    fn watch_step<T>(&self, step: impl FnOnce() -> T) -> T {
        self.inside.store(true, Ordering::SeqCst);
        if self.steps.fetch_add(1, Ordering::SeqCst).is_multiple_of(8) && self.gathers() {
            give_way_until(|| self.here.load(Ordering::SeqCst) > 1);
        }
        let done = step();
        self.inside.store(false, Ordering::SeqCst);
        done
    }
}

/// Lets other threads run until something has happened, if it does soon: there may be no other
/// thread any more.
fn give_way_until(happened: impl Fn() -> bool) {
    for _ in 0..20 {
        if happened() {
            return;
        }
        thread::yield_now();
    }
}

impl Around for Counting {
    fn call<T>(&self, buckets: &[Bucket<'_>], call: impl FnOnce() -> T) -> T {
        if is_watched(buckets) { self.watch_call(call) } else { call() }
    }

    fn decide<T>(
        &self,
        buckets: &[Bucket<'_>],
        now: Timestamp,
        _: Timestamp,
        decide: impl FnOnce(Timestamp) -> T,
    ) -> T {
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

/// Whether one request was let through.
fn spend<S: Store, C: Clock>(limiter: &Limiter<S, C>, name: &str, id: &str, cost: i64) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    limiter.decide(bound, Verb::Spend, id, cost, None).expect("an answer").decision.allowed
}

#[test]
fn two_threads_on_one_bucket_admit_exactly_the_limit() {
    for limit in [
        "burst: 3000, count: 1, period: 24h",
        "algorithm: leaky-bucket, size: 3000, drip_rate: 24h",
        "algorithm: fixed-window, count: 3000, period: 24h",
        "algorithm: fixed-window, count: 3000, period: 24h, anchor: aligned, phase: per-key",
        "algorithm: fixed-rate-window, count: 1, burst: 2999, period: 24h",
    ] {
        let limits = format!("Orders: {{{limit}}}");
        let limiter = limiter(&limits, Counting::around(MemoryStore::new(None)));
        let goes_on = AtomicBool::new(true);
        let admitted: usize = thread::scope(|scope| {
            let spending = || {
                let tries =
                    (0..).take_while(|&tries| tries < 2500 || goes_on.load(Ordering::SeqCst));
                tries.filter(|_| spend(&limiter, "Orders", "shared", 1)).count()
            };
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(spending)).collect();
            let met = limiter.store().around.wait_for_a_race();
            goes_on.store(false, Ordering::SeqCst);
            assert!(met >= ENOUGH, "{NO_RACE}: {met}");
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        assert_eq!(admitted, 3000, "{limit}");
    }
}

#[test]
fn nor_do_they_while_the_table_grows_and_buckets_are_forgotten() {
    for store in [MemoryStore::new(None), MemoryStore::new(Some(ONE_SHARD))] {
        // A token comes back each millisecond, and there are more tokens than milliseconds: once
        // the bucket has been empty it never fills, so exactly so many can be let through.
        let limits = "
            Orders: {burst: 1000, count: 1, period: 1ms}
            Passing: {burst: 1, count: 1, period: 1ms}
        ";
        let limiter = limiter(limits, Counting::around(store));
        assert!(spend(&limiter, "Orders", "shared", 1000));
        let slots = limiter.stats().expect("stats").slots;
        let goes_on = AtomicBool::new(true);
        let admitted: i64 = thread::scope(|scope| {
            let spending = || {
                let mut admitted = 0;
                while goes_on.load(Ordering::SeqCst) {
                    admitted += i64::from(spend(&limiter, "Orders", "shared", 1));
                }
                admitted
            };
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(spending)).collect();
            // Others come, stay for a millisecond, and are dropped as more come. The clock moves
            // with them.
            for number in 0..40_000 {
                assert!(spend(&limiter, "Passing", &format!("passing {number}"), 1));
                limiter.clock().advance(500 * MILLI / 40_000).expect("a time");
            }
            let met = limiter.store().around.wait_for_a_race();
            goes_on.store(false, Ordering::SeqCst);
            assert!(met >= ENOUGH, "{NO_RACE}: {met}");
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
fn batches_that_share_shards_neither_deadlock_nor_take_a_part() {
    let limits = "
        Orders: {burst: 1500, count: 1, period: 24h}
        Names: {burst: 2000, count: 1, period: 24h}
    ";
    let limiter = Arc::new(limiter(limits, Counting::around(MemoryStore::new(None))));
    let goes_on = Arc::new(AtomicBool::new(true));
    let (done, results) = mpsc::channel();
    for thread in 0..3_usize {
        let (limiter, goes_on, done) = (Arc::clone(&limiter), Arc::clone(&goes_on), done.clone());
        // Not in a scope, which would wait for threads in a deadlock.
        thread::spawn(move || {
            let snapshot = limiter.snapshot();
            let part = |name: &str, id: &'static str| Transaction {
                limit: snapshot.limit(name).expect("a limit"),
                id,
                cost: 1,
                kind: Kind::Spend,
                factor: None,
            };
            let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
            let mut admitted = 0;
            for turn in (0..).take_while(|&turn| turn < 1200 || goes_on.load(Ordering::SeqCst)) {
                // Everyone's own, then the others', beginning anywhere: in all orders that there
                // are.
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
            done.send(admitted).expect("the test waits");
        });
    }
    let met = limiter.store().around.wait_for_a_race();
    goes_on.store(false, Ordering::SeqCst);
    let wait =
        || results.recv_timeout(Duration::from_secs(60)).expect("the threads are in a deadlock");
    let admitted: i64 = (0..3).map(|_| wait()).sum();
    assert!(met >= ENOUGH, "{NO_RACE}: {met}");
    assert_eq!(admitted, 1500);
    let left = |name: &str, id: &str| {
        let snapshot = limiter.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        limiter.decide(bound, Verb::Check, id, 0, None).expect("an answer").decision.remaining
    };
    // Whatever the bucket of orders denied was taken from no other.
    assert_eq!(left("Orders", "shared"), 0);
    for id in ["shared", "a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(left("Names", id), 500, "{id}");
    }
}

#[test]
fn the_limits_are_replaced_while_threads_decide() {
    let smaller = "Orders: {burst: 1000, count: 1, period: 1h}";
    let larger =
        "Orders: {burst: 1800, count: 1, period: 1h}\nNames: {burst: 1, count: 1, period: 1h}";
    let limiter = limiter(smaller, Counting::around(MemoryStore::new(None)));
    let goes_on = AtomicBool::new(true);
    let (replaced, admitted) = thread::scope(|scope| {
        let spending = || {
            let (mut admitted, mut seen) = (0, 0);
            while goes_on.load(Ordering::SeqCst) {
                let generation = limiter.generation();
                assert!(generation >= seen, "a number that was seen is never taken back");
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
        let met = limiter.store().around.wait_for_a_race();
        goes_on.store(false, Ordering::SeqCst);
        assert!(met >= ENOUGH, "{NO_RACE}: {met}");
        let admitted: i64 =
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum();
        (limiter.generation(), admitted)
    });
    assert_eq!(replaced, 200);
    // The bucket stayed under both limits: together they admit no more than the larger.
    limiter.reload(config::parse(larger, None, None).expect("limits")).expect("a reload");
    let last = (0..2000).take_while(|_| spend(&limiter, "Orders", "shared", 1)).count() as i64;
    assert_eq!(admitted + last, 1800);
}

#[test]
fn a_clock_is_moved_by_two_threads_at_once() {
    let clock = ManualClock::new(at(0));
    thread::scope(|scope| {
        for by in [1, 1000] {
            let clock = &clock;
            scope.spawn(move || (0..20_000).for_each(|_| clock.advance(by).expect("a time")));
        }
    });
    assert_eq!(clock.now(), at(20_000 * 1001));
}

/// A clock with one late reading: other threads take their turn between the reading and its use.
struct Late {
    clock: ManualClock,
    after_reading: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for Late {
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        let turn = self.after_reading.lock().expect("a lock").take();
        if let Some(turn) = turn {
            turn();
        }
        now
    }
}

/// Two threads at one bucket, in the one order that matters: A reads the clock; B lets ten seconds
/// pass, in which the bucket drains and is forgotten as others come; A, with its reading of ten
/// seconds ago, spends. Gives what was let through from the first second to the tenth, of which at
/// most 20 may be.
fn admitted_in_ten_seconds<S: Store>(store: S) -> i64 {
    let limits = "
        Orders: {burst: 10, count: 1, period: 1s}
        Passing: {burst: 1, count: 1, period: 1s}
    ";
    let clock = Late { clock: ManualClock::new(at(5 * SECOND)), after_reading: Mutex::default() };
    let limiter = Limiter::new(config::parse(limits, None, None).expect("limits"), store, clock);
    let limiter = &limiter;
    let mut admitted = 10 * i64::from(spend(limiter, "Orders", "shared", 10));
    assert_eq!(admitted, 10);
    let (has_read, a_has_read) = mpsc::channel();
    let (go_on, a_goes_on) = mpsc::channel();
    let wait: Box<dyn FnOnce() + Send> = Box::new(move || {
        has_read.send(()).expect("B waits");
        a_goes_on.recv().expect("B has its turn");
    });
    *limiter.clock().after_reading.lock().expect("a lock") = Some(wait);
    let late = thread::scope(|scope| {
        let a = scope.spawn(|| spend(limiter, "Orders", "shared", 10));
        a_has_read.recv().expect("A reads the clock");
        limiter.clock().clock.advance(10 * SECOND).expect("a time");
        for number in 0..40 {
            assert!(spend(limiter, "Passing", &number.to_string(), 1));
        }
        assert_eq!(
            limiter.stats().expect("stats").forgotten,
            Some(1),
            "the drained bucket, and no other"
        );
        go_on.send(()).expect("A waits");
        a.join().expect("A")
    });
    admitted += 10 * i64::from(late);
    admitted + (0..30).filter(|_| spend(limiter, "Orders", "shared", 1)).count() as i64
}

#[test]
fn a_late_reading_of_the_clock_revives_no_forgotten_bucket() {
    assert_eq!(admitted_in_ten_seconds(MemoryStore::new(Some(100))), 20);
}

#[test]
fn without_the_floor_a_late_reading_lets_a_whole_burst_more_through() {
    assert_eq!(admitted_in_ten_seconds(without_floor(MemoryStore::new(Some(100)))), 30);
}

/// A thread is preempted between its reading of the clock and its call, while others spend: the
/// state it finds is later than its own reading allows. It must read the clock again before it
/// takes that state for damaged, or it hands out the others' tokens.
#[test]
fn a_late_reading_of_the_clock_clamps_no_valid_state() {
    let limits = "
        Orders: {burst: 10, count: 1, period: 1s}
        Pages: {burst: 10, count: 1, period: 1s}
    ";
    for is_batch in [false, true] {
        let clock =
            Late { clock: ManualClock::new(at(5 * SECOND)), after_reading: Mutex::default() };
        let registry = config::parse(limits, None, None).expect("limits");
        let limiter = Arc::new(Limiter::new(registry, MemoryStore::new(None), clock));
        let others = Arc::clone(&limiter);
        *limiter.clock().after_reading.lock().expect("a lock") = Some(Box::new(move || {
            others.clock().clock.advance(100 * SECOND).expect("a time");
            assert!(spend(&others, "Orders", "shared", 10));
        }));
        if is_batch {
            let snapshot = limiter.snapshot();
            let parts = ["Orders", "Pages"].map(|name| Transaction {
                limit: snapshot.limit(name).expect("a limit"),
                id: "shared",
                cost: 1,
                kind: Kind::Spend,
                factor: None,
            });
            assert!(!limiter.decide_all(Verb::Spend, &parts).expect("an answer").decision.allowed);
        } else {
            assert!(!spend(&limiter, "Orders", "shared", 1));
        }
        assert!(!spend(&limiter, "Orders", "shared", 1), "tokens were handed out twice");
        // What is beyond belief by the clock as it is now is still clamped.
        limiter.clock().clock.set(SECOND, true).expect("a time");
        assert!(!spend(&limiter, "Orders", "shared", 1));
        limiter.clock().clock.advance(11 * SECOND).expect("a time");
        assert!(spend(&limiter, "Orders", "shared", 1));
    }
}

#[test]
fn threads_that_are_preempted_admit_no_more_than_the_rate() {
    let limits = "Orders: {burst: 1, count: 1000, period: 1s}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, MemoryStore::new(None), SystemClock::new());
    let start = limiter.clock().now().get();
    let admitted: i64 = thread::scope(|scope| {
        let spending = || {
            let tries = (0..).take_while(|_| limiter.clock().now().get() < start + 300 * MILLI);
            tries.filter(|_| spend(&limiter, "Orders", "shared", 1)).count() as i64
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(spending)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    let bound = 1 + (limiter.clock().now().get() - start) / MILLI;
    assert!(admitted <= bound, "{admitted} let through, of {bound}");
    assert!(admitted > 20, "only {admitted} let through: nothing was shown");
}
