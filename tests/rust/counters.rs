//! What a limiter counts:
//!
//! 1. Every answer is counted once, by its limit, verb and outcome; a call without an answer is
//!    none.
//! 2. Nothing is lost between threads, however many there are, and no number goes down.
//! 3. A reload and a definition leave the counts as they are.
//! 4. About one call in [`LATENCY_SAMPLE_INTERVAL`] is timed, in real time.
//! 5. An id that is denied much is found among many that are denied little.

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
    CAPACITY, CallError, Counts, LATENCY_SAMPLE_INTERVAL, Limiter, MAX_ID_BYTES, Outcomes,
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
    config::parse(LIMITS, None, None).expect("limits that can be")
}

fn limiter_over<S: Store>(store: S) -> Limiter<S, ManualClock> {
    Limiter::new(registry(), store, ManualClock::new(Timestamp::clamped(1_000_000_000_000)))
}

fn limiter() -> Limiter<MemoryStore, ManualClock> {
    limiter_over(MemoryStore::new(None))
}

fn counts<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str) -> Counts {
    let counts = limiter.counts();
    counts.into_iter().find(|(found, _)| found.as_str() == name).expect("a limit that was there").1
}

fn outcomes(allowed: u64, denied: u64, shadow_denied: u64) -> Outcomes {
    Outcomes { allowed, denied, shadow_denied }
}

fn decide<S: Store>(limiter: &Limiter<S, ManualClock>, name: &str, verb: Verb, id: &str) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit that is there");
    limiter.decide(bound, verb, id, 1, None).expect("an answer").decision.allowed
}

#[test]
fn every_answer_is_counted_once_by_limit_verb_and_outcome() {
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
fn a_call_without_an_answer_is_not_counted() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let orders = snapshot.limit("Orders").expect("a limit that is there");
    for (id, cost) in [("", 1), ("ada", 3), ("ada", -1)] {
        limiter.decide(orders, Verb::Spend, id, cost, None).expect_err("it cannot be");
        limiter
            .decide_each(orders, &["ada", id], &[1, cost], |_, _, _| ())
            .expect_err("it cannot be");
    }
    let counted = counts(&limiter, "Orders");
    assert_eq!(Counts { latencies: Latencies::default(), ..counted }, Counts::default());
}

#[test]
fn each_limit_of_a_transaction_counts_its_own_decision() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let limit = |name| snapshot.limit(name).expect("a limit that is there");
    let one =
        |name, kind| Transaction { limit: limit(name), id: "ada", cost: 2, kind, factor: None };
    let all = [
        one("Free", Kind::Spend),
        one("Orders", Kind::Spend),
        one("Pages", Kind::Check),
        one("Searches", Kind::SpendOnly),
    ];
    // The second time Orders is empty, and what others would have allowed is not taken.
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
fn each_of_many_is_counted_by_either_way() {
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let ids: Vec<String> = (0..500).map(|number| format!("user-{}", number % 200)).collect();
    for name in ["Orders", "Searches", "Pages", "Free"] {
        let bound = snapshot.limit(name).expect("a limit that is there");
        limiter.decide_each(bound, &ids, &vec![1; 500], |_, _, _| ()).expect("answers");
    }
    assert_eq!(counts(&limiter, "Orders").spends, outcomes(400, 100, 0));
    assert_eq!(counts(&limiter, "Searches").spends, outcomes(400, 0, 100));
    assert_eq!(counts(&limiter, "Pages").spends, outcomes(400, 100, 0));
    assert_eq!(counts(&limiter, "Free").spends, outcomes(500, 0, 0));
}

#[test]
fn no_count_is_lost_between_more_threads_than_have_a_place_of_their_own() {
    const THREADS: usize = 80;
    const TURNS: u64 = 2_000;
    let limiter = limiter();
    let begin = Barrier::new(THREADS);
    let work = |number: usize| {
        let id = format!("user-{number}");
        begin.wait();
        (0..TURNS).map(|_| u64::from(decide(&limiter, "Orders", Verb::Spend, &id))).sum::<u64>()
    };
    let work = &work;
    let allowed: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        let mut before = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            let now = counts(&limiter, "Orders").spends.denied;
            assert!(now >= before, "a count went down");
            before = now;
            thread::yield_now();
        }
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(allowed, 2 * THREADS as u64);
    let all = THREADS as u64 * TURNS;
    assert_eq!(counts(&limiter, "Orders").spends, outcomes(allowed, all - allowed, 0));
}

#[test]
fn a_reload_and_a_definition_leave_the_counts_as_they_are() {
    let limiter = limiter();
    let spend = |name: &str| decide(&limiter, name, Verb::Spend, "ada");
    spend("Orders");
    spend("Pages");
    let kept = limiter.snapshot();
    let hour = Limit::token_bucket(5, 1, Nanos::SECOND.saturating_mul(3600)).expect("a limit");
    limiter.define("Defined", hour).expect("a name that is free");
    spend("Defined");
    limiter.reload(Registry::default().with("Orders", hour).expect("a name")).expect("limits");
    spend("Orders");
    spend("Defined");
    // Who still has the limits of before counts at the same place.
    let old = kept.limit("Orders").expect("it was there");
    limiter.decide(old, Verb::Spend, "eve", 1, None).expect("an answer");
    let counted = limiter.counts();
    let counted: Vec<_> =
        counted.iter().map(|(name, counts)| (name.as_str(), counts.spends.allowed)).collect();
    // Pages, Searches and Free are no longer loaded; nothing was counted for the last two.
    assert_eq!(counted, [("Orders", 3), ("Defined", 2), ("Pages", 1)]);
    limiter.reload(registry()).expect("limits");
    spend("Pages");
    assert_eq!(counts(&limiter, "Pages").spends, outcomes(2, 0, 0));
}

#[test]
fn a_store_that_does_not_answer_is_counted_and_its_calls_are_not() {
    let limiter = limiter_over(Scripted::failing(2));
    let snapshot = limiter.snapshot();
    let orders = snapshot.limit("Orders").expect("a limit that is there");
    let failed = |failed: bool| assert!(failed, "every second call fails");
    for turn in 0..6 {
        let answer = limiter.decide(orders, Verb::Check, "ada", 1, None);
        failed(answer.is_err() == (turn % 2 == 1));
    }
    let pages = snapshot.limit("Pages").expect("a limit that is there");
    let one = |limit| Transaction { limit, id: "eve", cost: 1, kind: Kind::Spend, factor: None };
    for turn in 0..2 {
        let answer = limiter.decide_all(Verb::Check, &[one(orders), one(pages)]);
        failed(answer.is_err() == (turn == 1));
    }
    for turn in 0..2 {
        failed(limiter.reset(orders, "ada").is_err() == (turn == 1));
    }
    let each = limiter.decide_each(orders, &["a", "b", "c"], &[1; 3], |_, _, _| ());
    failed(matches!(each, Err((1, error)) if matches!(*error, CallError::Store(_))));
    let counted = counts(&limiter, "Orders");
    assert_eq!((counted.checks, counted.spends), (outcomes(4, 0, 0), outcomes(1, 0, 0)));
    assert_eq!(counted.store_errors, 6);
    let counted = counts(&limiter, "Pages");
    assert_eq!((counted.checks, counted.store_errors), (outcomes(1, 0, 0), 1));
}

#[test]
fn a_share_of_the_calls_is_timed_in_real_time() {
    let limiter = limiter();
    decide(&limiter, "Orders", Verb::Spend, "ada");
    let timed = |name| counts(&limiter, name).latencies.calls.iter().sum::<u64>();
    assert_eq!((timed("Orders"), timed("Pages")), (1, 0), "the first is timed");
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
    let limit = |name| snapshot.limit(name).expect("a limit that is there");
    let one = |name| Transaction {
        limit: limit(name),
        id: "ada",
        cost: 1,
        kind: Kind::Spend,
        factor: None,
    };
    for _ in 0..20 * LATENCY_SAMPLE_INTERVAL {
        limiter.decide_all(Verb::Spend, &[one("Orders"), one("Pages")]).expect("an answer");
    }
    let timed = |name| counts(&limiter, name).latencies.calls.iter().sum::<u64>();
    assert!((14..=28).contains(&timed("Orders")), "timed {}", timed("Orders"));
    assert_eq!(timed("Orders"), timed("Pages"));
}

#[test]
fn lengths_of_time_double_from_place_to_place() {
    let bounds: Vec<Option<u64>> = (0..LATENCIES).map(Latencies::max_ns).collect();
    assert_eq!(bounds[0], Some(32));
    assert!(bounds.windows(2).all(|pair| pair[1].is_none_or(|two| pair[0] == Some(two / 2))));
    assert_eq!((bounds[LATENCIES - 2], bounds[LATENCIES - 1]), (Some(1 << 30), None));
}

#[test]
fn the_ids_denied_most_are_found_among_many() {
    let limiter = limiter();
    // A tenth of all denials is eve's, a twentieth mallory's, and the rest is of thousands.
    let ids = (0..20_000).map(|turn| match turn % 20 {
        0 | 10 => "eve".to_owned(),
        5 => "mallory".to_owned(),
        _ => format!("user-{}", turn % 4_001),
    });
    for id in ids {
        while decide(&limiter, "Orders", Verb::Spend, &id) {}
    }
    let counted = counts(&limiter, "Orders").spends.denied;
    let hottest = limiter.top_denied(None, 3).expect("every limit");
    let shown: Vec<&str> = hottest.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(shown[..2], ["Orders:eve", "Orders:mallory"]);
    assert_eq!(hottest.len(), 3);
    for ((_, name, hot), truly) in hottest.iter().zip([2_000, 1_000]) {
        assert_eq!(name.as_str(), "Orders");
        let mean = counted / CAPACITY as u64;
        assert!(hot.error <= mean + mean / 4, "{hot:?} of {counted}");
        let least = truly - truly / 4;
        assert!((least..=truly + truly / 4 + hot.error).contains(&hot.denied), "{hot:?}");
    }
}

#[test]
fn what_a_shadow_limit_and_a_check_deny_is_noted_with_the_key_of_its_bucket() {
    let limiter = limiter();
    let long = "x".repeat(MAX_ID_BYTES + 1);
    for (name, id, calls) in [("Searches", "ada", 5), ("Pages", long.as_str(), 4)] {
        for _ in 0..calls {
            decide(&limiter, name, Verb::Spend, id);
        }
        decide(&limiter, name, Verb::Check, id);
    }
    let hottest = limiter.top_denied(None, 10).expect("every limit");
    let found: Vec<_> = hottest.iter().map(|(key, _, hot)| (key.as_str(), hot.denied)).collect();
    let cut = format!("Pages:{}", &long[1..]);
    assert_eq!(found, [("Searches:ada", 4), (cut.as_str(), 3)]);
    let of_one = limiter.top_denied(Some("Pages"), 10).expect("a limit");
    assert_eq!(of_one.len(), 1);
    assert_eq!(limiter.top_denied(Some("Orders"), 10).expect("a limit"), []);
    let unknown = limiter.top_denied(Some("Order"), 10).expect_err("no such limit");
    assert!(matches!(*unknown, CallError::UnknownLimit { .. }));
    // A limit that is no longer loaded is found under its name.
    limiter.reload(Registry::default()).expect("limits");
    assert_eq!(limiter.top_denied(Some("Pages"), 10).expect("it was there").len(), 1);
}
