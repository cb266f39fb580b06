//! Asynchronous calls, which are submitted to a server and concluded when its reply arrives.
//!
//! - Their decisions and counts equal those of a store in this process.
//! - Failed calls and contradictory replies are counted as store errors.

use std::sync::mpsc;
use std::thread;

use penstock::clock::ManualClock;
use penstock::config;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::answer::Answer;
use penstock::engine::batch::Kind;
use penstock::engine::factor::{Adjustment, Factor};
use penstock::engine::limit::Limit;
use penstock::engine::time::Nanos;
use penstock::engine::verb::Verb;
use penstock::limiter::{
    Answered, Call, CallError, Counts, Decided, DecidedAll, Failure, Limiter, Transaction,
};
use penstock::store::memory::MemoryStore;
use penstock::store::remote::{RemoteCall, RemoteStore};
use penstock::store::{Store, StoreError};

use crate::stores::{Scripted, at};
use crate::strategies::nanos;

const SECOND: i64 = Nanos::SECOND.get();
const NAMES: [&str; 5] = ["Tokens", "Leaky", "Window", "Slots", "All"];

fn limiter<S: Store>(store: S) -> Limiter<S, ManualClock> {
    let period = nanos(10 * SECOND);
    let limits = [
        Limit::token_bucket(5, 1, nanos(2 * SECOND)),
        Limit::leaky_bucket(5, nanos(2 * SECOND), 1),
        Limit::fixed_window(5, period, Anchor::First),
        Limit::fixed_rate_window(5, period, 2, Anchor::First),
        Ok(Limit::Unlimited),
    ];
    let limits = NAMES.iter().zip(limits);
    let limits = limits.map(|(name, limit)| ((*name).to_owned(), limit.expect("a limit")));
    let registry = config::from_limits(limits).expect("limits");
    Limiter::new(registry, store, ManualClock::new(at(1_000_000 * SECOND)))
}

type Remote = Limiter<Scripted, ManualClock>;

/// Submits a call and returns the replies, which arrive on another thread.
fn replies(limiter: &Remote, call: RemoteCall) -> Result<Vec<Answer>, StoreError> {
    let (done, arrived) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let done = Box::new(move |reply| done.send(reply).expect("the test is waiting"));
            limiter.store().submit(call, done);
        });
    });
    arrived.recv().expect("a completion")
}

fn submit(
    limiter: &Remote,
    name: &str,
    verb: Verb,
    cost: i64,
    adjustment: Option<&Adjustment>,
) -> Result<Decided, Failure> {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    let (call, submitted) =
        limiter.submission(bound, Call { verb, id: "ada", cost, adjustment })?;
    let replies = if call.ops.is_empty() { Ok(Vec::new()) } else { replies(limiter, call) };
    let answered = limiter.conclude_reply(submitted, replies)?;
    let limit = answered.effective_limit.as_deref();
    let decision = bound.entry().numbers(verb, "ada", cost, limit, &answered.answer);
    let Answered { shadow, effective_limit, .. } = answered;
    Ok(Decided { decision, shadow, effective_limit })
}

/// Returns transactions of the client `grace`.
fn transactions<S: Store>(
    limiter: &Limiter<S, ManualClock>,
    parts: &[(&str, i64, Kind)],
) -> Vec<Transaction> {
    let snapshot = limiter.snapshot();
    let transaction = |&(name, cost, kind): &(&str, i64, Kind)| {
        Transaction::new(snapshot.limit(name).expect("a limit"), "grace", cost, kind)
    };
    parts.iter().map(transaction).collect()
}

fn submit_all(
    limiter: &Remote,
    verb: Verb,
    parts: &[(&str, i64, Kind)],
) -> Result<DecidedAll, Failure> {
    let (call, submitted) = limiter.submission_of_all(verb, transactions(limiter, parts))?;
    let replies = if call.ops.is_empty() { Ok(Vec::new()) } else { replies(limiter, call) };
    let answered = limiter.conclude_replies(&submitted, replies)?;
    Ok(answered.decided(&transactions(limiter, parts)))
}

/// Returns the counts without latencies.
fn counts<S: Store>(limiter: &Limiter<S, ManualClock>) -> Vec<Counts> {
    let counts = limiter.counts().into_iter();
    counts.map(|(_, counts)| Counts { latencies: Default::default(), ..counts }).collect()
}

#[test]
fn submitted_calls_have_the_decisions_and_counts_of_local_calls() {
    let (local, remote) = (limiter(MemoryStore::new(None)), limiter(Scripted::new()));
    let factor: Factor = "1/2".parse().expect("a factor");
    let half = Adjustment { factor: Some(Box::new(factor)), keep: 0 };
    let calls = [
        (Verb::Spend, 3, None),
        (Verb::Check, 2, None),
        (Verb::Spend, 3, None),
        (Verb::Refund, 2, None),
        (Verb::ChargeAfter, 99, None),
        (Verb::ChargeAfter, 1, None),
        (Verb::Spend, 1, None),
        (Verb::Check, 0, None),
    ];
    for round in 0..3 {
        for name in NAMES {
            let snapshot = local.snapshot();
            let bound = snapshot.limit(name).expect("a limit");
            for (verb, cost, adjustment) in calls {
                let expected = local
                    .decide(bound, Call { verb, id: "ada", cost, adjustment })
                    .expect("an answer");
                let found = submit(&remote, name, verb, cost, adjustment).expect("an answer");
                assert_eq!(found, expected, "{name} {verb:?} {cost}, round {round}");
            }
            if name == "Leaky" {
                let expected =
                    local.decide(bound, Call { adjustment: Some(&half), ..Call::spend("ada", 1) });
                let found = submit(&remote, name, Verb::Spend, 1, Some(&half));
                assert_eq!(found.expect("an answer"), expected.expect("an answer"));
            }
        }
        for verb in [Verb::Spend, Verb::Check, Verb::Spend, Verb::Refund] {
            let parts = [
                ("Tokens", 3, Kind::Spend),
                ("Window", 1, Kind::Check),
                ("Slots", 2, Kind::SpendOnly),
                ("Leaky", 2, Kind::Charge),
                ("All", 1, Kind::Spend),
            ];
            let expected =
                local.decide_all(verb, &transactions(&local, &parts)).expect("an answer");
            assert_eq!(submit_all(&remote, verb, &parts).expect("an answer"), expected);
        }
        for clock in [local.clock(), remote.clock()] {
            clock.advance(SECOND).expect("forwards");
        }
    }
    assert_eq!(counts(&remote), counts(&local));
}

#[test]
fn invalid_calls_fail_before_they_are_submitted() {
    let remote = limiter(Scripted::new());
    let error = submit(&remote, "Tokens", Verb::Spend, 6, None).expect_err("too high");
    assert!(matches!(*error, CallError::Cost { .. }));
    let duplicates = [("Tokens", 1, Kind::Spend), ("Tokens", 1, Kind::Spend)];
    let error = submit_all(&remote, Verb::Spend, &duplicates).expect_err("a duplicate bucket");
    assert!(matches!(*error, CallError::DuplicateBucket { .. }));
}

#[test]
fn failed_calls_are_counted_for_each_limit() {
    let remote = limiter(Scripted::failing(1));
    let error = submit(&remote, "Tokens", Verb::Spend, 1, None).expect_err("no reply");
    assert!(matches!(*error, CallError::Store(_)));
    let parts = [("Tokens", 1, Kind::Spend), ("Window", 1, Kind::Spend)];
    let error = submit_all(&remote, Verb::Spend, &parts).expect_err("no reply");
    assert!(matches!(*error, CallError::Store(_)));
    let errors: Vec<_> = counts(&remote).iter().map(|counts| counts.store_errors).collect();
    assert_eq!(errors.iter().sum::<u64>(), 3);
}

#[test]
fn a_reply_that_contradicts_the_engine_is_an_error() {
    let remote = limiter(Scripted::new());
    let snapshot = remote.snapshot();
    let bound = snapshot.limit("Tokens").expect("a limit");
    let submission = || remote.submission(bound, Call::spend("ada", 1)).expect("a call");
    let valid = Answer::new(None, at(SECOND), true);
    let invalid = [vec![Answer::new(None, at(SECOND), false)], vec![], vec![valid; 2]];
    for replies in invalid {
        let error = remote.conclude_reply(submission().1, Ok(replies)).expect_err("a mismatch");
        assert!(matches!(*error, CallError::Store(_)));
    }
    let decided = remote.conclude_reply(submission().1, Ok(vec![valid])).expect("an answer");
    assert_eq!((decided.answer.allowed(), decided.answer.now), (true, at(SECOND)));
}
