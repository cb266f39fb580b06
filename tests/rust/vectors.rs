//! The golden decisions of `tests/data/vectors`, tested on every store.
//!
//! The README in that folder describes the scenarios. Steps about Python types (`type_error`) cannot be
//! run here. They are skipped and counted.

use std::fs;
use std::path::Path;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::cost::CostError;
use penstock::engine::decision::Decision;
use penstock::engine::factor::Factor;
use penstock::engine::limit_error::LimitError;
use penstock::engine::operation::Verb;
use penstock::engine::registry::Registry;
use penstock::limiter::{Call, CallError, Failure, Limiter, Snapshot, Transaction};
use penstock::store::Store;
use serde_json::Value;

use crate::stores::{at, on_every_store};

on_every_store!(token_bucket, leaky_bucket, windows);

fn token_bucket<S: Store>(fresh: fn() -> S) {
    assert_eq!(
        play_file("token_bucket.json", fresh),
        Played { scenarios: 39, calls: 224, skipped: 3 }
    );
}

fn leaky_bucket<S: Store>(fresh: fn() -> S) {
    assert_eq!(
        play_file("leaky_bucket.json", fresh),
        Played { scenarios: 51, calls: 542, skipped: 0 }
    );
}

fn windows<S: Store>(fresh: fn() -> S) {
    assert_eq!(play_file("windows.json", fresh), Played { scenarios: 20, calls: 135, skipped: 0 });
}

/// The numbers of scenarios and steps in a file, which are asserted so that a missing one is detected.
#[derive(Debug, Default, PartialEq, Eq)]
struct Played {
    scenarios: usize,
    /// Calls on buckets.
    calls: usize,
    /// Steps that only the Python tests can run.
    skipped: usize,
}

fn play_file<S: Store>(file: &str, fresh: fn() -> S) -> Played {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors").join(file);
    let text = fs::read_to_string(path).expect("a file of vectors");
    let scenarios: Value = serde_json::from_str(&text).expect("a file of vectors is JSON");
    let mut played = Played::default();
    for scenario in scenarios.as_array().expect("a list of scenarios") {
        let name = text_of(&scenario["name"]);
        match scenario.get("refused") {
            Some(expected) => check_error(scenario, expected, name),
            None => play_scenario(scenario, name, fresh(), &mut played),
        }
        played.scenarios += 1;
    }
    played
}

fn check_error(scenario: &Value, expected: &Value, name: &str) {
    let error = registry(scenario).expect_err(name).to_string();
    let found = text_of(&expected["found"]);
    // A duration may be in another unit.
    let same = config::duration(found).map_or(found.to_owned(), |duration| duration.to_string());
    let fields = expected["field"].as_array().expect("a list of fields");
    assert!(error.contains(text_of(&expected["limit"])), "{name}: {error}");
    assert!(fields.iter().any(|field| error.contains(text_of(field))), "{name}: {error}");
    assert!(error.contains(found) || error.contains(&same), "{name}: {error}");
    if let Some(mentions) = expected.get("mentions") {
        assert!(error.contains(text_of(mentions)), "{name}: {error}");
    }
}

fn play_scenario<S: Store>(scenario: &Value, name: &str, store: S, played: &mut Played) {
    let clock = ManualClock::new(at(whole(&scenario["start_ns"])));
    let registry = registry(scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
    let limiter = Limiter::new(registry, store, clock);
    for (index, step) in scenario["steps"].as_array().expect("a list of steps").iter().enumerate() {
        let label = format!("{name}, step {index}: {step}");
        match text_of(&step["op"]) {
            "advance" => {
                let to = limiter.clock().now().get() + whole(&step["advance_ns"]);
                limiter.clock().set(to, true).expect(&label);
            }
            "reload" => {
                let registry = self::registry(step).expect(&label);
                limiter.reload(registry).expect(&label);
            }
            _ if step["expect"]["error"] == "type_error" => {
                let is_cost = step["cost"].is_i64();
                let is_id = step["id"].is_string() || step["id"].is_i64();
                assert!(!is_cost || !is_id, "{label}: can be run here");
                played.skipped += 1;
            }
            op => {
                for time in 0..step.get("repeat").map_or(1, whole) {
                    let before = limiter.stats().expect("stats").buckets;
                    let outcome = call(&limiter, op, step);
                    played.calls += 1;
                    if time == step.get("repeat").map_or(1, whole) - 1 {
                        compare(&limiter, step, outcome, before, &label);
                    }
                }
            }
        }
    }
}

/// Makes the call of a step. Returns its decision, or `None` for a reset.
fn call<S: Store>(
    limiter: &Limiter<S, ManualClock>,
    op: &str,
    step: &Value,
) -> Result<Option<Decision>, Failure> {
    let snapshot = limiter.snapshot();
    if let Some(transactions) = step.get("transactions") {
        let prepared = each(transactions).map(|one| transaction(&snapshot, one));
        let prepared: Vec<_> = prepared.collect::<Result<_, _>>()?;
        let verb = if op == "refund_all" { Verb::Refund } else { Verb::Spend };
        return limiter.decide_all(verb, &prepared).map(|all| Some(all.decision));
    }
    let bound = snapshot.limit(text_of(&step["name"]))?;
    let id = id(&step["id"]);
    let verb = match op {
        "reset" => return limiter.reset(bound, &id).map(|_| None),
        "spend" => Verb::Spend,
        "check" => Verb::Check,
        "refund" => Verb::Refund,
        other => panic!("unknown op: {other}"),
    };
    let factor: Option<Factor> = step.get("factor").map(|factor| text_of(factor).parse().unwrap());
    let decided = limiter.decide(
        bound,
        Call { verb, id: &id, cost: whole(&step["cost"]), factor: factor.as_ref() },
    )?;
    Ok(Some(decided.decision))
}

fn transaction(snapshot: &Snapshot, one: &Value) -> Result<Transaction, Failure> {
    let kind = match one.get("kind").map_or("spend", text_of) {
        "spend" => Kind::Spend,
        "check" => Kind::Check,
        "spend_only" => Kind::SpendOnly,
        other => panic!("unknown kind: {other}"),
    };
    let limit = snapshot.limit(text_of(&one["name"]))?;
    Ok(Transaction::new(limit, id(&one["id"]), whole(&one["cost"]), kind))
}

fn compare<S: Store>(
    limiter: &Limiter<S, ManualClock>,
    step: &Value,
    outcome: Result<Option<Decision>, Failure>,
    before: Option<u64>,
    name: &str,
) {
    let Some(expect) = step.get("expect") else {
        outcome.expect(name);
        return;
    };
    if let Some(error) = expect.get("error") {
        let failure = *outcome.expect_err(name);
        let found = match failure {
            CallError::UnknownLimit { .. } => "unknown_limit",
            CallError::InvalidId { .. } => "invalid_id",
            CallError::Cost { source: CostError::Negative { .. }, .. } => "cost_negative",
            CallError::Cost { source: CostError::TooHigh { .. }, .. } => "cost_too_high",
            CallError::Limit { source: LimitError::FactorNegative { .. }, .. } => "factor_negative",
            CallError::DuplicateBucket { .. } => "duplicate_bucket",
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(found, text_of(error), "{name}");
        assert_eq!(limiter.stats().expect("stats").buckets, before, "{name}: a bucket was written");
        return;
    }
    let decision = outcome.expect(name).expect("a decision");
    let found = |field: &str| match field {
        "allowed" => Value::from(decision.allowed),
        "unlimited" => Value::from(decision.unlimited),
        "remaining" => Value::from(decision.remaining),
        "retry_after_ns" => Value::from(decision.retry_after.get()),
        "reset_after_ns" => Value::from(decision.reset_after.get()),
        other => panic!("{name}: unknown field: {other}"),
    };
    for (field, expected) in expect.as_object().expect("an expectation") {
        assert_eq!(found(field), *expected, "{field} of {name}");
    }
    assert!(!decision.unlimited || expect.get("remaining").is_none(), "{name}: a limit applies");
    assert_eq!(decision.now, limiter.clock().now(), "{name}");
}

/// Parses the limits of a scenario or of a reload. JSON is a subset of YAML.
fn registry(limits: &Value) -> Result<Registry, config::ConfigError> {
    let overrides = limits.get("overrides").map(Value::to_string);
    config::parse(&limits["limits"].to_string(), overrides.as_deref(), None)
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().expect("a list").iter()
}

fn text_of(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn whole(value: &Value) -> i64 {
    value.as_i64().expect("a whole number")
}

/// Returns an id as text.
fn id(value: &Value) -> String {
    value.as_str().map_or_else(|| whole(value).to_string(), str::to_owned)
}
