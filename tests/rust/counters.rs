//! The counters of a limiter:
//!
//! 1. Every decision is counted once, by limit, verb and outcome. Calls without a decision are not
//!    counted.
//! 2. No count is lost with any number of threads, and no count decreases.
//! 3. Reloading and defining limits does not change the counts.
//! 4. About one call in [`LATENCY_SAMPLE_INTERVAL`] is timed, in real time.
//! 5. An id with many denials is found among many ids with few denials.

use std::sync::Barrier;
use std::thread;

use penstock::clock::ManualClock;
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::engine::registry::Registry;
use penstock::engine::time::{Nanos, Timestamp};
use penstock::latencies::{LATENCIES, Latencies};
use penstock::limiter::{
    CAPACITY, Call, CallError, Counts, LATENCY_SAMPLE_INTERVAL, Limiter, MAX_ID_BYTES, Outcomes,
    Transaction,
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
fn decisions_are_counted_once_by_limit_verb_and_outcome() {
    let limiter = limiter();
    for name in ["Orders", "Searches", "Pages", "Free"] {
        for verb in [Verb::Check, Verb::Spend, Verb::Spend, Verb::Spend, Verb::Check, Verb::Refund]
        {
            decide(&limiter, name, verb, "ada");
        }
    }
    for (name, spends, checks) in [
        ("Orders", outcomes(2, 1, 0), outcomes(1, 1, 0)),
        ("Searches", outcomes(2, 0, 1), outcomes(1, 0, 1)),
        ("Pages", outcomes(2, 1, 0), outcomes(1, 1, 0)),
        ("Free", outcomes(3, 0, 0), outcomes(2, 0, 0)),
    ] {
        let counted = counts(&limiter, name);
        assert_eq!((counted.spends, counted.checks), (spends, checks), "{name}");
        assert_eq!((counted.refunds, counted.store_errors), (1, 0), "{name}");
    }
    let names: Vec<String> =
        limiter.counts().iter().map(|(name, _)| name.as_str().to_owned()).collect();
    assert_eq!(names, ["Orders", "Searches", "Pages", "Free"]);
}

#[test]
fn a_call_without_a_decision_is_not_counted() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let orders = snapshot.limit("Orders").expect("a limit");
    for (id, cost) in [("", 1), ("ada", 3), ("ada", -1)] {
        limiter.decide(orders, Call::spend(id, cost)).expect_err("an invalid call");
        limiter
            .decide_each(orders, &["ada", id], &[1, cost], |_, _, _| ())
            .expect_err("an invalid call");
    }
    let counted = counts(&limiter, "Orders");
    assert_eq!(Counts { latencies: Latencies::default(), ..counted }, Counts::default());
}

#[test]
fn each_limit_of_a_transaction_counts_its_own_decision() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let limit = |name| snapshot.limit(name).expect("a limit");
    let one = |name, kind| Transaction::new(limit(name), "ada", 2, kind);
    let all = [
        one("Free", Kind::Spend),
        one("Orders", Kind::Spend),
        one("Pages", Kind::Check),
        one("Searches", Kind::SpendOnly),
    ];
    // In the second call, Orders is empty, so no tokens are taken from the other limits.
    for verb in [Verb::Spend, Verb::Spend, Verb::Check, Verb::Refund] {
        limiter.decide_all(verb, &all).expect("an answer");
    }
    let of = |name| {
        let Counts { spends, checks, refunds, .. } = counts(&limiter, name);
        (spends, checks, refunds)
    };
    assert_eq!(of("Free"), (outcomes(2, 0, 0), outcomes(1, 0, 0), 1));
    assert_eq!(of("Orders"), (outcomes(1, 1, 0), outcomes(0, 1, 0), 1));
    assert_eq!(of("Pages"), (outcomes(0, 0, 0), outcomes(3, 0, 0), 1));
    assert_eq!(of("Searches"), (outcomes(1, 0, 1), outcomes(0, 0, 1), 1));
}

#[test]
fn many_decisions_in_one_call_are_counted_on_both_paths() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let ids: Vec<String> = (0..500).map(|number| format!("user-{}", number % 200)).collect();
    for name in ["Orders", "Searches", "Pages", "Free"] {
        let bound = snapshot.limit(name).expect("a limit");
        limiter.decide_each(bound, &ids, &vec![1; 500], |_, _, _| ()).expect("answers");
    }
    assert_eq!(counts(&limiter, "Orders").spends, outcomes(400, 100, 0));
    assert_eq!(counts(&limiter, "Searches").spends, outcomes(400, 0, 100));
    assert_eq!(counts(&limiter, "Pages").spends, outcomes(400, 100, 0));
    assert_eq!(counts(&limiter, "Free").spends, outcomes(500, 0, 0));
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
fn reloading_and_defining_limits_keeps_the_counts() {
    let limiter = limiter();
    let spend = |name: &str| decide(&limiter, name, Verb::Spend, "ada");
    spend("Orders");
    spend("Pages");
    let previous = limiter.snapshot();
    let hour = Limit::token_bucket(5, 1, Nanos::SECOND.saturating_mul(3600)).expect("a limit");
    limiter.define("Defined", hour).expect("a name that is free");
    spend("Defined");
    limiter.reload(Registry::default().with("Orders", hour).expect("a name")).expect("limits");
    spend("Orders");
    spend("Defined");
    // A call with the previous limits uses the same counters.
    let old = previous.limit("Orders").expect("a limit");
    limiter.decide(old, Call::spend("eve", 1)).expect("an answer");
    let counted = limiter.counts();
    let counted: Vec<_> =
        counted.iter().map(|(name, counts)| (name.as_str(), counts.spends.allowed)).collect();
    // Pages, Searches and Free are no longer loaded, and the last two have no counts.
    assert_eq!(counted, [("Orders", 3), ("Defined", 2), ("Pages", 1)]);
    limiter.reload(registry()).expect("limits");
    spend("Pages");
    assert_eq!(counts(&limiter, "Pages").spends, outcomes(2, 0, 0));
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
    let each = limiter.decide_each(orders, &["a", "b", "c"], &[1; 3], |_, _, _| ());
    check(matches!(each, Err((1, error)) if matches!(*error, CallError::Store(_))));
    let counted = counts(&limiter, "Orders");
    assert_eq!((counted.checks, counted.spends), (outcomes(4, 0, 0), outcomes(1, 0, 0)));
    assert_eq!(counted.store_errors, 6);
    let counted = counts(&limiter, "Pages");
    assert_eq!((counted.checks, counted.store_errors), (outcomes(1, 0, 0), 1));
}

#[test]
fn a_sample_of_calls_is_timed_in_real_time() {
    let limiter = limiter();
    decide(&limiter, "Orders", Verb::Spend, "ada");
    let timed = |name| counts(&limiter, name).latencies.calls.iter().sum::<u64>();
    assert_eq!((timed("Orders"), timed("Pages")), (1, 0), "the first call is timed");
    let calls = 100 * u64::from(LATENCY_SAMPLE_INTERVAL);
    for _ in 0..calls {
        decide(&limiter, "Orders", Verb::Spend, "ada");
    }
    assert!((80..=120).contains(&timed("Orders")), "timed {} of {calls}", timed("Orders"));
    // The limiter's clock has not advanced.
    let latencies = counts(&limiter, "Orders").latencies;
    assert!(latencies.total_ns > 0);
    let longest = latencies.calls.iter().rposition(|&calls| calls > 0).expect("one was timed");
    let bounds = Latencies::max_ns(longest).unwrap_or(u64::MAX);
    assert!(latencies.total_ns <= bounds.saturating_mul(timed("Orders")));
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
    assert!((14..=28).contains(&timed("Orders")), "timed {}", timed("Orders"));
    assert_eq!(timed("Orders"), timed("Pages"));
}

#[test]
fn bounds_of_latency_classes_double() {
    let bounds: Vec<Option<u64>> = (0..LATENCIES).map(Latencies::max_ns).collect();
    assert_eq!(bounds[0], Some(32));
    assert!(bounds.windows(2).all(|pair| pair[1].is_none_or(|two| pair[0] == Some(two / 2))));
    assert_eq!((bounds[LATENCIES - 2], bounds[LATENCIES - 1]), (Some(1 << 30), None));
}

#[test]
fn the_ids_with_the_most_denials_are_found() {
    let limiter = limiter();
    // 10 % of all denials are for eve and 5 % for mallory. The rest is spread over thousands of ids.
    let ids = (0..20_000).map(|call| match call % 20 {
        0 | 10 => "eve".to_owned(),
        5 => "mallory".to_owned(),
        _ => format!("user-{}", call % 4_001),
    });
    for id in ids {
        while decide(&limiter, "Orders", Verb::Spend, &id) {}
    }
    let counted = counts(&limiter, "Orders").spends.denied;
    let top_denied = limiter.top_denied(None, 3).expect("all limits");
    let keys: Vec<&str> = top_denied.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(keys[..2], ["Orders:eve", "Orders:mallory"]);
    assert_eq!(top_denied.len(), 3);
    for ((_, name, hitter), actual) in top_denied.iter().zip([2_000, 1_000]) {
        assert_eq!(name.as_str(), "Orders");
        let mean = counted / CAPACITY as u64;
        assert!(hitter.error <= mean + mean / 4, "{hitter:?} of {counted}");
        let range = actual - actual / 4..=actual + actual / 4 + hitter.error;
        assert!(range.contains(&hitter.denied), "{hitter:?}");
    }
}

#[test]
fn denials_of_shadow_limits_and_checks_are_recorded_with_their_bucket_keys() {
    let limiter = limiter();
    let long = "x".repeat(MAX_ID_BYTES + 1);
    for (name, id, calls) in [("Searches", "ada", 5), ("Pages", long.as_str(), 4)] {
        for _ in 0..calls {
            decide(&limiter, name, Verb::Spend, id);
        }
        decide(&limiter, name, Verb::Check, id);
    }
    let top_denied = limiter.top_denied(None, 10).expect("all limits");
    let found: Vec<_> =
        top_denied.iter().map(|(key, _, hitter)| (key.as_str(), hitter.denied)).collect();
    let truncated = format!("Pages:{}", &long[1..]);
    assert_eq!(found, [("Searches:ada", 4), (truncated.as_str(), 3)]);
    assert_eq!(limiter.top_denied(Some("Pages"), 10).expect("a limit").len(), 1);
    assert_eq!(limiter.top_denied(Some("Orders"), 10).expect("a limit"), []);
    let unknown = limiter.top_denied(Some("Order"), 10).expect_err("an unknown limit");
    assert!(matches!(*unknown, CallError::UnknownLimit { .. }));
    // A limit that is no longer loaded can still be looked up.
    limiter.reload(Registry::default()).expect("limits");
    assert_eq!(limiter.top_denied(Some("Pages"), 10).expect("a removed limit").len(), 1);
}
