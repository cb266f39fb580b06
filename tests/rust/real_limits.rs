//! Real limits on every store: compared with a model that never drops buckets, and with failing calls.

use std::collections::BTreeMap;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Operation;
use penstock::engine::state::State;
use penstock::engine::time::{Now, Timeline};
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, CallError, Limiter, Progress, Stage, Transaction};
use penstock::store::memory::MemoryStore;
use penstock::store::{Store, StoreError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::stores::{Scripted, at, on_every_store};
use crate::strategies::{any_verb, everyday_limit};

on_every_store!(
    decisions_equal_those_of_a_store_that_never_forgets,
    batches_handle_shadow_mode_and_checks,
    a_charge_in_a_batch_is_taken_whatever_the_others_decide,
    many_ids_in_one_call_equal_single_calls,
    estimated_turns_are_exact,
);

/// The names of the generated limits.
const NAMES: [&str; 4] = ["one", "two", "three", "four"];

/// A call and the time since the previous one, in nanoseconds.
#[derive(Clone, Debug)]
struct Draw {
    verb: Verb,
    is_single: bool,
    parts: Vec<PartDraft>,
    later: i64,
}

/// The index of a limit, an id, the cost as a share of the maximum, and a kind.
type PartDraft = (usize, usize, f64, Kind);

/// One bucket of a call.
struct Part {
    name: &'static str,
    id: String,
    limit: Limit,
    cost: i64,
    kind: Kind,
}

fn any_draw() -> impl Strategy<Value = Draw> {
    let kind = prop_oneof![
        4 => Just(Kind::Spend),
        1 => Just(Kind::Check),
        1 => Just(Kind::SpendOnly),
        1 => Just(Kind::Charge),
    ];
    let part = (0..NAMES.len(), 0..12_usize, 0.0..1.0, kind);
    let later = prop_oneof![
        3 => Just(0_i64),
        3 => 0..3_000_000_000_i64,
        // Threads may reach the store in a different order from their clock readings.
        1 => -4_000_000_000_i64..0,
        1 => 0..90_000_000_000_i64,
    ];
    (any_verb(), any::<bool>(), prop::collection::vec(part, 1..5), later).prop_map(
        |(verb, is_single, parts, later)| {
            // Charges of several buckets are not supported.
            let verb = if is_single || verb == Verb::Refund { verb } else { Verb::Spend };
            Draw { verb, is_single, parts, later }
        },
    )
}

/// Every decision equals that of a model that never forgets, evaluated at the decision's `now`. This
/// instant, one on each timeline, is between the clock's current reading and its latest reading.
fn decisions_equal_those_of_a_store_that_never_forgets<S: Store>(fresh: fn() -> S) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let config = ProptestConfig { cases: config.cases / 6, ..config };
    let limits = prop::collection::vec(everyday_limit(), NAMES.len());
    let strategy = (limits, prop::collection::vec(any_draw(), 1..150));
    let run = TestRunner::new(config).run(&strategy, |(limits, calls)| {
        let named = NAMES.iter().zip(&limits).map(|(name, limit)| (name.to_string(), *limit));
        let start = at(1_700_000_000_000_000_000);
        let registry = config::from_limits(named).expect("limits");
        let limiter = Limiter::new(registry, fresh(), ManualClock::new(start));
        let (mut model, mut latest) = (Model::default(), start);
        for call in &calls {
            limiter.clock().set(limiter.clock().now().get() + call.later, true).expect("a time");
            let now = limiter.clock().now();
            latest = latest.max(now);
            let parts = parts(call, &limits);
            let (all, decisions) = ask(&limiter, call, &parts);
            let mut decided = Now::default();
            for (part, decision) in parts.iter().zip(&decisions) {
                prop_assert!(decision.now >= now && decision.now <= latest, "{:?}", decision);
                // Buckets were forgotten at different times on the two timelines.
                match part.limit.timeline() {
                    Timeline::Steady => decided.steady = decision.now,
                    Timeline::Wall => decided.wall = decision.now,
                }
            }
            let (expected, strictest) = model.answer(call, &parts, decided);
            prop_assert_eq!(&decisions, &expected, "{:?}", call);
            if let Some(strictest) = strictest {
                prop_assert_eq!(all, expected[strictest]);
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

fn parts(call: &Draw, limits: &[Limit]) -> Vec<Part> {
    let mut drawn = call.parts.clone();
    // Each bucket occurs at most once.
    drawn.sort_by_key(|&(limit, id, ..)| (limit, id));
    drawn.dedup_by_key(|&mut (limit, id, ..)| (limit, id));
    drawn.truncate(if call.is_single { 1 } else { drawn.len() });
    let part = |(index, id, share, kind): PartDraft| {
        let (name, id) = (NAMES[index], format!("id {id}"));
        let limit = limits[index].for_key(&format!("{name}:{id}"));
        let cost = (share * share * (limit.max_cost() + 1) as f64) as i64;
        Part { name, id, limit, cost, kind: if call.is_single { Kind::Spend } else { kind } }
    };
    drawn.into_iter().map(part).collect()
}

/// Returns the store's decision on the whole call, and on each part.
fn ask<S: Store>(
    limiter: &Limiter<S, ManualClock>,
    call: &Draw,
    parts: &[Part],
) -> (Decision, Vec<Decision>) {
    let snapshot = limiter.snapshot();
    let bound = |part: &Part| snapshot.limit(part.name).expect("a limit");
    if call.is_single {
        let part = &parts[0];
        let decided = limiter.decide(bound(part), Call::new(call.verb, &part.id, part.cost));
        let decision = decided.expect("an answer").decision;
        return (decision, vec![decision]);
    }
    let transactions = parts.iter().map(|part| {
        let &Part { ref id, cost, kind, .. } = part;
        Transaction::new(bound(part), id, cost, kind)
    });
    let transactions: Vec<_> = transactions.collect();
    let decided = limiter.decide_all(call.verb, &transactions).expect("an answer");
    (decided.decision, decided.parts.iter().map(|part| part.decision).collect())
}

/// The states of all buckets that were ever written.
#[derive(Default)]
struct Model(BTreeMap<(&'static str, String), State>);

impl Model {
    /// Returns the engine's decision for each bucket, and the index of the strictest one.
    fn answer(&mut self, call: &Draw, parts: &[Part], now: Now) -> (Vec<Decision>, Option<usize>) {
        let key = |part: &Part| (part.name, part.id.clone());
        let states: Vec<_> = parts.iter().map(|part| self.0.get(&key(part)).copied()).collect();
        let members = parts.iter().map(|part| {
            let &Part { ref limit, cost, kind, .. } = part;
            let is_ignored = call.verb == Verb::Refund && kind == Kind::Check;
            let cost = limit.cost(if is_ignored { 0 } else { cost }).expect("a cost");
            let operation = Operation { verb: kind.verb(call.verb), limit, cost };
            Member { operation, kind, shadow: false }
        });
        let members: Vec<_> = members.collect();
        let mut steps = Vec::new();
        batch::steps(&members, &states, now, &mut steps);
        for (part, step) in parts.iter().zip(&steps) {
            if let Some(state) = step.after {
                self.0.insert(key(part), state);
            }
        }
        let decides = |part: &Part| {
            call.verb == Verb::Refund || matches!(part.kind, Kind::Spend | Kind::Check)
        };
        let deciding = parts.iter().zip(&steps).map(|(part, step)| (decides(part), step.decision));
        let strictest = batch::strictest(deciding);
        (steps.iter().map(|step| step.decision).collect(), strictest)
    }
}

fn batches_handle_shadow_mode_and_checks<S: Store>(fresh: fn() -> S) {
    let limits = r#"
        Orders: {burst: 2, count: 1, period: 1h}
        Shadow: {burst: 1, count: 1, period: 1h, mode: shadow}
    "#;
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, fresh(), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let spend = |orders: Kind, shadow: Kind| {
        let transaction = |name: &str, kind| {
            Transaction::new(snapshot.limit(name).expect("a limit"), "a", 1, kind)
        };
        let both = [transaction("Orders", orders), transaction("Shadow", shadow)];
        let decided = limiter.decide_all(Verb::Spend, &both).expect("an answer");
        let left = ["Orders", "Shadow"].map(|name| {
            let bound = snapshot.limit(name).expect("a limit");
            limiter.decide(bound, Call::check("a", 0)).expect("an answer").decision.remaining
        });
        (decided.decision.allowed, left)
    };
    // A check of a limit in shadow mode does not affect the decision and takes no tokens.
    assert_eq!(spend(Kind::Check, Kind::Check), (true, [2, 1]));
    assert_eq!(spend(Kind::Spend, Kind::Check), (true, [1, 1]));
    // A limit in shadow mode takes tokens, but does not deny when it is empty.
    assert_eq!(spend(Kind::Check, Kind::Spend), (true, [1, 0]));
    assert_eq!(spend(Kind::SpendOnly, Kind::Spend), (true, [0, 0]));
    assert_eq!(spend(Kind::Check, Kind::Spend), (false, [0, 0]));
    assert_eq!(spend(Kind::SpendOnly, Kind::Check), (true, [0, 0]));
}

fn a_charge_in_a_batch_is_taken_whatever_the_others_decide<S: Store>(fresh: fn() -> S) {
    let limits =
        "{Orders: {burst: 2, count: 1, period: 1h}, Tokens: {burst: 5, count: 1, period: 1h}}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, fresh(), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let bound = |name: &str| snapshot.limit(name).expect("a limit");
    let transaction = |name, cost, kind| Transaction::new(bound(name), "a", cost, kind);
    let owed = || {
        let peek = limiter.decide(bound("Tokens"), Call::check("a", 0)).expect("an answer");
        (peek.decision.remaining, peek.decision.reset_after.get() / 3_600_000_000_000)
    };
    let ask = |orders| {
        // In both orders: a store writes the buckets one after another.
        let mut all = vec![
            transaction("Orders", orders, Kind::Spend),
            transaction("Tokens", 3, Kind::Charge),
        ];
        if orders == 2 {
            all.reverse();
        }
        limiter.decide_all(Verb::Spend, &all).expect("an answer").decision.allowed
    };
    assert_eq!((ask(2), owed()), (true, (2, 3)));
    // Denied, and charged nevertheless, below zero; an overdrawn bucket takes nothing more.
    assert_eq!((ask(1), owed()), (false, (0, 6)));
    assert_eq!((ask(2), owed()), (false, (0, 6)));
}

fn many_ids_in_one_call_equal_single_calls<S: Store>(fresh: fn() -> S) {
    let limits = "
        token: {burst: 3, count: 1, period: 1h}
        leaky: {algorithm: leaky-bucket, size: 3}
        fixed: {algorithm: fixed-window, count: 3, period: 1h, anchor: aligned, phase: per-key}
        spaced: {algorithm: fixed-rate-window, count: 3, period: 1h, burst: 2}
    ";
    let overrides = "
        - token: {algorithm: unlimited, ids: [id 5]}
        - spaced: {algorithm: token-bucket, burst: 9, count: 1, period: 1h, ids: [id 7]}
    ";
    let limiter = || {
        let registry = config::parse(limits, Some(overrides), None).expect("limits");
        Limiter::new(registry, fresh(), ManualClock::new(at(1_700_000_000_000_000_000)))
    };
    let (together, one_by_one) = (limiter(), limiter());
    // More ids than fit in one block, and each of them several times.
    let ids: Vec<String> = (0..200).map(|number| format!("id {}", number % 41)).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut costs: Vec<i64> = (0..200).map(|number| number % 3).collect();
    for name in ["token", "leaky", "fixed", "spaced"] {
        let mut found = Vec::new();
        let snapshot = together.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        let outcome = together.decide_each(bound, &ids[..], &costs, None, |index, decision, _| {
            found.push((index, *decision));
        });
        outcome.expect("an answer");
        // Unlimited ids need no bucket, so their decisions come first.
        found.sort_by_key(|&(index, _)| index);
        let snapshot = one_by_one.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        let expected = ids.iter().zip(&costs).map(|(id, &cost)| {
            one_by_one.decide(bound, Call::spend(id, cost)).expect("an answer").decision
        });
        assert_eq!(found, expected.enumerate().collect::<Vec<_>>(), "{name}");
    }
    // If one cost is invalid, no tokens are spent.
    let buckets = together.stats().map(|stats| stats.buckets);
    let snapshot = together.snapshot();
    let bound = snapshot.limit("token").expect("a limit");
    let others: Vec<String> = (0..200).map(|number| format!("another {number}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    costs[150] = 4;
    let (index, failure) = together
        .decide_each(bound, &others[..], &costs, None, |_, _, _| panic!("no decision is returned"))
        .expect_err("a cost that is too high");
    assert!(index == 150 && matches!(*failure, CallError::Cost { .. }), "{failure}");
    assert_eq!(together.stats().map(|stats| stats.buckets), buckets);
}

/// The turns that are estimated from one check of the store are exact.
fn estimated_turns_are_exact<S: Store>(fresh: fn() -> S) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let config = ProptestConfig { cases: config.cases / 4, ..config };
    let shares = prop::collection::vec(0.0..1.0_f64, 1..20);
    let strategy = (everyday_limit(), shares, 0..3_000_000_000_i64);
    let run = TestRunner::new(config).run(&strategy, |(limit, shares, later)| {
        let named = [("one".to_owned(), limit)];
        let start = at(1_700_000_000_000_000_000);
        let registry = config::from_limits(named).expect("limits");
        let limiter = Limiter::new(registry, fresh(), ManualClock::new(start));
        let snapshot = limiter.snapshot();
        let bound = snapshot.limit("one").expect("a limit");
        let decide = |verb, cost| {
            limiter.decide(bound, Call::new(verb, "id", cost)).expect("an answer").decision
        };
        decide(Verb::Spend, limit.max_cost());
        limiter.clock().advance(later).expect("a time");
        if decide(Verb::Check, 1).allowed {
            // There is nothing to wait for.
            return Ok(());
        }
        let costs: Vec<(i64, i64)> =
            shares.iter().map(|share| ((share * limit.max_cost() as f64) as i64 + 1, 0)).collect();
        let mut turns = Vec::new();
        let mut last = None;
        let now = limiter.clock().now();
        for index in 0..costs.len() {
            let all = limiter.estimate(bound, "id", &costs[..=index], None).expect("an answer");
            last = limiter.estimate(bound, "id", &costs[index..=index], last).expect("an answer");
            let (all, last) = (all.expect("a limit").wait(), last.expect("a limit").wait());
            prop_assert_eq!(all, last, "estimated one by one and all at once");
            turns.push(now.saturating_add(all));
        }
        for ((cost, _), turn) in costs.into_iter().zip(turns) {
            let wait = turn.get() - limiter.clock().now().get();
            if wait > 0 {
                limiter.clock().advance(wait - 1).expect("a time");
                prop_assert!(!decide(Verb::Check, cost).allowed);
                limiter.clock().advance(1).expect("a time");
            }
            prop_assert!(decide(Verb::Spend, cost).allowed);
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn store_failures_are_errors_of_every_call() {
    let limits = "Orders: {burst: 100, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    // Every call fails, alternating between a lost reply and an immediate failure.
    let limiter = Limiter::new(registry, Scripted::failing(1), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    for _ in 0..2 {
        for verb in [Verb::Spend, Verb::Check, Verb::Refund] {
            let failure = limiter.decide(bound, Call::new(verb, "a", 1)).expect_err("it fails");
            assert!(matches!(*failure, CallError::Store(_)), "{failure}");
            let one = Transaction::new(bound, "a", 1, Kind::Spend);
            let failure = limiter.decide_all(verb, &[one]).expect_err("it fails");
            assert!(matches!(*failure, CallError::Store(_)), "{failure}");
        }
        let (index, failure) = limiter
            .decide_each(bound, &["a", "b"][..], &[1, 1], None, |_, _, _| {})
            .expect_err("it fails");
        assert!(index == 0 && matches!(*failure, CallError::Store(_)), "{failure}");
        assert!(matches!(*limiter.reset(bound, "a").expect_err("it fails"), CallError::Store(_)));
        limiter.stats().expect_err("it fails");
    }
}

/// A reservation is never settled twice, even if the store loses replies.
#[test]
fn a_reservation_with_a_lost_reply_cannot_be_settled_again() {
    let limits = "Orders: {burst: 100, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    // The reply to the second call is lost, and the fourth call is not executed.
    let limiter = Limiter::new(registry, Scripted::failing(2), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let settle = |progress: &Progress, actual| {
        progress.end(Stage::Settled).expect("an open reservation");
        let settled = limiter.settle(bound, Call::spend("a", 10), actual);
        settled.inspect_err(|error| progress.fail(error)).is_ok()
    };
    // The first failure is a lost reply.
    let lost = Progress::new();
    limiter.decide(bound, Call::spend("a", 10)).expect("an answer");
    assert!(!settle(&lost, 30));
    assert_eq!(lost.stage(), Stage::Unknown);
    assert_eq!(lost.end(Stage::Settled), Err(Stage::Unknown));
    assert_eq!(lost.end(Stage::Cancelled), Err(Stage::Unknown));
    let remaining = limiter.decide(bound, Call::spend("a", 10)).expect("an answer");
    assert_eq!(remaining.decision.remaining, 100 - 30 - 10, "the actual cost is charged once");
    // The next failure is immediate: the call was not executed and can be repeated.
    let open = Progress::new();
    assert!(!settle(&open, 20));
    assert_eq!(open.stage(), Stage::Open);
    assert!(settle(&open, 20));
    assert_eq!(open.end(Stage::Settled), Err(Stage::Settled));
}

/// After a reload to a slower limit, a bucket is kept for the longer time, regardless of other traffic.
#[test]
fn a_reload_raises_the_lifetimes_of_buckets() {
    for (fast, slow) in [
        ("fixed-window, count: 5, period: 1s", "fixed-window, count: 5, period: 1h"),
        ("leaky-bucket, size: 5, drip_rate: 10ms", "leaky-bucket, size: 5, drip_rate: 1h"),
        ("leaky-bucket, size: 500, drip_rate: 10ms", "leaky-bucket, size: 5, drip_rate: 1m"),
        (
            "fixed-rate-window, count: 1, burst: 4, period: 1s",
            "fixed-rate-window, count: 1, burst: 4, period: 1h",
        ),
    ] {
        let limits = |limit: &str| {
            let text = format!(
                "Orders: {{algorithm: {limit}}}\nOther: {{algorithm: fixed-window, count: 1, period: 1ms}}"
            );
            config::parse(&text, None, None).expect("limits")
        };
        // Whether the bucket has already expired at the reload, and whether other buckets are added.
        for (is_old, is_busy) in [(false, false), (false, true), (true, false), (true, true)] {
            let start = at(1_700_000_000_000_000_000);
            let clock = ManualClock::new(start);
            let limiter = Limiter::new(limits(fast), MemoryStore::new(None), clock);
            let spend = |name: &str, id: &str, cost: i64| {
                let snapshot = limiter.snapshot();
                let bound = snapshot.limit(name).expect("a limit");
                limiter.decide(bound, Call::spend(id, cost)).expect("an answer").decision
            };
            let all = limiter.snapshot().limit("Orders").expect("a limit").entry().clone();
            assert!(spend("Orders", "ada", all.default_rule().limit.max_cost()).allowed);
            let second = 1_000_000_000;
            limiter.clock().advance(if is_old { 60 * second } else { 1 }).expect("a time");
            limiter.reload(limits(slow)).expect("a reload");
            limiter.clock().advance(240 * second).expect("a time");
            if is_busy {
                (0..20_000).for_each(|number| {
                    spend("Other", &number.to_string(), 1);
                });
            }
            assert_eq!(spend("Orders", "ada", 5).allowed, is_old, "{slow}, busy: {is_busy}");
        }
    }
}

#[test]
fn a_call_that_may_not_wait_does_not_ask_a_store_that_would() {
    let limits = "Orders: {burst: 1, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, Scripted::new(), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    for allowed in [true, false] {
        let mut answered = Default::default();
        assert_eq!(limiter.try_answer(bound, Call::spend("a", 1), &mut answered), None);
        let part = Transaction::new(bound, "b", 1, Kind::Spend);
        assert_eq!(limiter.try_answer_all(Verb::Spend, &[part]).expect("no failure"), None);
        let answered = limiter.answer(bound, Call::spend("a", 1)).expect("an answer");
        assert_eq!(answered.answer.allowed(), allowed);
    }
    let (_, counts) = &limiter.counts()[0];
    assert_eq!(counts.store_errors, 0);
    assert_eq!((counts.spends.allowed, counts.spends.denied), (1, 1));
}

/// The calls before the failing one are executed, and the error has its index.
#[test]
fn many_calls_stop_at_the_first_failure() {
    let limits = "Orders: {burst: 100, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, Scripted::failing(101), ManualClock::new(at(0)));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let ids: Vec<String> = (0..150).map(|number| format!("id {number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    let outcome =
        limiter.decide_each(bound, &ids[..], &[1; 150], None, |index, _, _| found.push(index));
    let (index, failure) = outcome.expect_err("the 101st call fails");
    assert!(matches!(*failure, CallError::Store(StoreError::Timeout { millis: 50 })), "{failure}");
    assert_eq!((index, found), (100, (0..100).collect::<Vec<_>>()));
    assert_eq!(limiter.stats().expect("stats").buckets, Some(101));
}
