//! The counters of a limiter, where Python cannot see them: threads that run at the same time, failures
//! of the store, and times. What is counted of decisions is tested through Python.

use std::hint::black_box;
use std::slice;
use std::sync::Barrier;
use std::thread;

use penstock::clock::ManualClock;
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::registry::Registry;
use penstock::engine::time::Timestamp;
use penstock::engine::verb::Verb;
use penstock::latencies::{LATENCIES, Latencies};
use penstock::limiter::{
    Call, CallError, Counts, LATENCY_SAMPLE_INTERVAL, Limiter, Outcomes, Transaction,
};
use penstock::store::Store;
use penstock::store::memory::MemoryStore;

use crate::stores::Scripted;

const LIMITS: &str = "
Orders: {burst: 2, count: 1, period: 1h}
Searches: {burst: 2, count: 1, period: 1h, mode: shadow}
Pages: {algorithm: fixed-window, count: 2, period: 1h}
Free: {algorithm: unlimited}
";

fn registry() -> Registry {
    config::parse(LIMITS, None, None).expect("valid limits")
}

fn limiter_over<S: Store>(store: S) -> Limiter<S, ManualClock> {
    Limiter::new(registry(), store, ManualClock::new(Timestamp::clamped(1_000_000_000_000)))
}

fn limiter() -> Limiter<MemoryStore, ManualClock> {
    limiter_over(MemoryStore::new(None))
}

fn counts<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str) -> Counts {
    let counts = limiter.counts();
    counts.into_iter().find(|(found, _)| found.as_str() == name).expect("a limit").1
}

fn outcomes(allowed: u64, denied: u64, shadow_denied: u64) -> Outcomes {
    Outcomes { allowed, denied, shadow_denied }
}

fn decide<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str, verb: Verb, id: &str) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    limiter.decide(bound, Call::new(verb, id, 1)).expect("an answer").decision.allowed
}

#[test]
fn no_count_is_lost_with_more_threads_than_slots() {
    const THREADS: usize = 80;
    const CALLS: u64 = 2_000;
    let limiter = limiter();
    let begin = Barrier::new(THREADS);
    let work = |number: usize| {
        let id = format!("user-{number}");
        begin.wait();
        (0..CALLS).map(|_| u64::from(decide(&limiter, "Orders", Verb::Spend, &id))).sum::<u64>()
    };
    let work = &work;
    let allowed: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        let mut before = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            let now = counts(&limiter, "Orders").spends.denied;
            assert!(now >= before, "a count decreased");
            before = now;
            thread::yield_now();
        }
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(allowed, 2 * THREADS as u64);
    let all = THREADS as u64 * CALLS;
    assert_eq!(counts(&limiter, "Orders").spends, outcomes(allowed, all - allowed, 0));
}

#[test]
fn store_errors_are_counted_instead_of_decisions() {
    let limiter = limiter_over(Scripted::failing(2));
    let snapshot = limiter.snapshot();
    let orders = snapshot.limit("Orders").expect("a limit");
    let check = |is_as_expected: bool| assert!(is_as_expected, "every second call fails");
    for call in 0..6 {
        let answer = limiter.decide(orders, Call::check("ada", 1));
        check(answer.is_err() == (call % 2 == 1));
    }
    let pages = snapshot.limit("Pages").expect("a limit");
    let one = |limit| Transaction::new(limit, "eve", 1, Kind::Spend);
    for call in 0..2 {
        let answer = limiter.decide_all(Verb::Check, &[one(orders), one(pages)]);
        check(answer.is_err() == (call == 1));
    }
    for call in 0..2 {
        check(limiter.reset(orders, "ada").is_err() == (call == 1));
    }
    let each = limiter.decide_each(orders, &["a", "b", "c"][..], &[1; 3], None, |_, _, _| ());
    check(matches!(each, Err((1, error)) if matches!(*error, CallError::Store(_))));
    let counted = counts(&limiter, "Orders");
    assert_eq!((counted.checks, counted.spends), (outcomes(4, 0, 0), outcomes(1, 0, 0)));
    assert_eq!(counted.store_errors, 6);
    let counted = counts(&limiter, "Pages");
    assert_eq!((counted.checks, counted.store_errors), (outcomes(1, 0, 0), 1));
}

#[test]
fn transactions_are_timed_for_each_of_their_limits() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let limit = |name| snapshot.limit(name).expect("a limit");
    let one = |name| Transaction::new(limit(name), "ada", 1, Kind::Spend);
    for _ in 0..20 * LATENCY_SAMPLE_INTERVAL {
        limiter.decide_all(Verb::Spend, &[one("Orders"), one("Pages")]).expect("an answer");
    }
    let timed = |name| counts(&limiter, name).latencies.calls.iter().sum::<u64>();
    let times = timed("Orders");
    assert!((14..=28).contains(&times), "timed {times}");
    assert_eq!(timed("Orders"), timed("Pages"));
}

/// Calls `call` from several frames shortly before the stack crosses a multiple of a megabyte. Calls itself
/// until then; `is_near` is whether the previous frame was near.
fn before_a_megabyte(is_near: bool, call: &impl Fn()) {
    let frame = black_box([0_u8; 64]);
    // The stack grows towards lower addresses.
    let left = frame.as_ptr().addr() % (1 << 20);
    if left < 4096 {
        call();
        before_a_megabyte(true, call);
    } else if !is_near {
        before_a_megabyte(false, call);
    }
}

#[test]
fn calls_are_timed_equally_often_wherever_their_stack_lies() {
    let call = || {
        let limiter = limiter();
        let snapshot = limiter.snapshot();
        let one =
            Transaction::new(snapshot.limit("Orders").expect("a limit"), "ada", 1, Kind::Spend);
        for _ in 0..20 * LATENCY_SAMPLE_INTERVAL {
            limiter.decide_all(Verb::Spend, slice::from_ref(&one)).expect("an answer");
        }
        let times: u64 = counts(&limiter, "Orders").latencies.calls.iter().sum();
        assert!((14..=28).contains(&times), "timed {times}");
    };
    let thread = thread::Builder::new().stack_size(4 << 20);
    let run = thread.spawn(move || before_a_megabyte(false, &call)).expect("a thread");
    run.join().expect("no panic");
}

#[test]
fn bounds_of_latency_classes_double() {
    let bounds: Vec<Option<u64>> = (0..LATENCIES).map(Latencies::max_ns).collect();
    assert_eq!(bounds[0], Some(32));
    assert!(bounds.windows(2).all(|pair| pair[1].is_none_or(|two| pair[0] == Some(two / 2))));
    assert_eq!((bounds[LATENCIES - 2], bounds[LATENCIES - 1]), (Some(1 << 30), None));
}
