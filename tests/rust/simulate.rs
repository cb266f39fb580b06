//! A simulation decides like a limiter.
//!
//! 1. For each event, every number of the decision equals that of a limiter called at that instant:
//!    for every algorithm, overrides, ids without a limit, costs, equal times, up to the latest time.
//! 2. The results do not depend on how events are split into runs, or which columns are requested.
//!
//! Events that cannot be evaluated are reported through Python, and tested there.

use std::sync::Arc;

use penstock::clock::ManualClock;
use penstock::engine::key::LimitName;
use penstock::engine::limit::Limit;
use penstock::engine::registry::{Builder, Registry, Rule};
use penstock::engine::time::Timestamp;
use penstock::limiter::{Call, Limiter};
use penstock::simulate::{Columns, Events, Simulator};
use proptest::prelude::*;

use crate::stores::memory;
use crate::strategies::{any_instant, any_rate, any_token_bucket, everyday_limit, magnitude};

const IDS: [&str; 5] = ["ada", "grace", "alan", "edsger", "barbara"];
const NANOS_PER_MILLI: i64 = 1_000_000;

/// The numbers of a decision: allowed, remaining, retry_after and reset_after.
type Numbers = (bool, i64, i64, i64);

#[derive(Clone, Debug)]
struct Trace {
    times: Vec<i64>,
    clients: Vec<u32>,
    costs: Vec<i64>,
}

/// Creates a registry with the limit `Limit`: its default, if there is one, and overrides for the first
/// ids.
fn registry(default: Option<Limit>, overrides: &[Limit]) -> Registry {
    let name = LimitName::new("Limit").expect("a name");
    let mut builder = Builder::new();
    if let Some(limit) = default {
        builder.set_default(&name, None, None, Rule::plain(limit)).expect("a default");
    }
    for (id, limit) in IDS.iter().zip(overrides) {
        builder.add_override(&name, id, None, Rule::plain(*limit)).expect("an override");
    }
    builder.declare(&name, None, None).expect("a name");
    builder.build()
}

fn simulator(registry: &Registry, ids: &[&str]) -> Simulator {
    let mut simulator = Simulator::new(Arc::clone(registry.entry("Limit").expect("the limit")));
    for id in ids {
        simulator.add(id).expect("an id");
    }
    simulator
}

/// Returns the simulator's results for all events, in runs that end at the indices `cuts`. All costs are
/// 1 if `ones`. A trace without clients has no client column.
fn simulated(mut simulator: Simulator, trace: &Trace, ones: bool, cuts: &[usize]) -> Vec<Numbers> {
    let events = trace.times.len();
    let mut allowed = vec![false; events];
    let [mut remaining, mut retry_after, mut reset_after] = [(); 3].map(|()| vec![0; events]);
    let mut first = 0;
    for end in cuts.iter().copied().chain([events]) {
        let range = first..end.clamp(first, events);
        first = range.end;
        let events = Events {
            times: &trace.times[range.clone()],
            clients: trace.clients.get(range.clone()),
            costs: (!ones).then_some(&trace.costs[range.clone()]),
        };
        let mut columns = Columns {
            allowed: &mut allowed[range.clone()],
            remaining: Some(&mut remaining[range.clone()]),
            retry_after: Some(&mut retry_after[range.clone()]),
            reset_after: Some(&mut reset_after[range]),
        };
        simulator.run(&events, &mut columns).expect("valid events");
    }
    (0..events)
        .map(|index| (allowed[index], remaining[index], retry_after[index], reset_after[index]))
        .collect()
}

/// Returns the results of a limiter that is called at the times of the trace.
fn limited(registry: &Registry, ids: &[&str], trace: &Trace, ones: bool) -> Vec<Numbers> {
    let limiter = Limiter::new(registry.clone(), memory(), ManualClock::new(Timestamp::ORIGIN));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Limit").expect("the limit");
    (0..trace.times.len())
        .map(|index| {
            limiter.clock().set(trace.times[index], false).expect("a later time");
            let id = ids[trace.clients[index] as usize];
            let cost = if ones { 1 } else { trace.costs[index] };
            let decided = limiter.decide(bound, Call::spend(id, cost)).expect("a decision");
            let decision = decided.decision;
            (
                decision.allowed,
                decision.remaining,
                decision.retry_after.get(),
                decision.reset_after.get(),
            )
        })
        .collect()
}

/// The time until the next event, its client, and its cost as a share of the maximum.
type Event = (i64, u32, f64);

fn any_event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![
        3 => Just(0),
        4 => (0..3000_i64).prop_map(|millis| millis * NANOS_PER_MILLI),
        2 => magnitude(1 << 33),
        1 => magnitude(1 << 60),
    ];
    (wait, 0..IDS.len() as u32, 0.0..1.0)
}

fn trace(registry: &Registry, start: Timestamp, events: &[Event]) -> Trace {
    let entry = registry.entry("Limit").expect("the limit");
    let mut time = start.get();
    let mut trace = Trace { times: vec![], clients: vec![], costs: vec![] };
    for &(wait, client, share) in events {
        time = time.saturating_add(wait);
        let max = entry.rule_for(IDS[client as usize]).limit.max_cost();
        trace.times.push(time);
        trace.clients.push(client);
        // Cubed, so that small costs are frequent.
        let cost = (share * share * share * (max as f64 + 1.0)) as i64;
        trace.costs.push(cost.min(max));
    }
    trace
}

proptest! {
    #[test]
    fn a_simulation_equals_a_limiter_called_at_the_same_times(
        default in prop_oneof![
            1 => Just(None),
            3 => any_rate().prop_map(Some),
            4 => everyday_limit().prop_map(Some),
            2 => any_token_bucket().prop_map(Some),
        ],
        overrides in prop_oneof![
            2 => Just(vec![]),
            1 => prop::collection::vec(prop_oneof![any_rate(), everyday_limit()], 1..4),
        ],
        start in any_instant(),
        events in prop::collection::vec(any_event(), 0..60),
        cuts in prop::collection::vec(0..60_usize, 0..3),
        ones: bool,
    ) {
        let registry = registry(default, &overrides);
        let trace = trace(&registry, start, &events);
        let expected = limited(&registry, &IDS, &trace, ones);
        let result = simulated(simulator(&registry, &IDS), &trace, ones, &cuts);
        prop_assert_eq!(result, expected);
    }

    #[test]
    fn a_single_client_needs_no_client_column(
        limit in prop_oneof![any_rate(), everyday_limit()],
        start in any_instant(),
        events in prop::collection::vec(any_event(), 1..60),
        ones: bool,
    ) {
        let registry = registry(Some(limit), &[]);
        let mut trace = trace(&registry, start, &events);
        trace.clients.fill(0);
        let expected = simulated(simulator(&registry, &IDS), &trace, ones, &[]);
        trace.clients.clear();
        let result = simulated(simulator(&registry, &IDS[..1]), &trace, ones, &[]);
        prop_assert_eq!(&result, &expected);
        // `allowed` alone is computed in a separate loop.
        let mut allowed = vec![false; trace.times.len()];
        let mut columns =
            Columns { allowed: &mut allowed[..], remaining: None::<&mut [i64]>, retry_after: None, reset_after: None };
        let costs = (!ones).then_some(&trace.costs[..]);
        let events = Events { times: &trace.times[..], clients: None::<&[u32]>, costs };
        simulator(&registry, &IDS[..1]).run(&events, &mut columns).expect("valid events");
        prop_assert_eq!(allowed, expected.iter().map(|result| result.0).collect::<Vec<_>>());
    }
}
