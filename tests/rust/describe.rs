//! The description of a limit agrees with the engine.
//!
//! 1. `worst_in` is exact: a greedy client reaches it, and no client exceeds it. A greedy client spends
//!    as soon as it is allowed. Its result depends only on whether it has used the bucket before, and on
//!    when its interval begins within a window, a slot or a tick. The tests try all instants that can
//!    matter, and the nanoseconds before and after them.
//! 2. `facts` agree with `worst_in`, and with the number of tokens that the engine admits in a day.
//! 3. The shares of a limit together admit no more than the limit, except that each process may always
//!    admit one request at a time. They admit less only because of rounding.

use std::num::NonZeroU32;

use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::algorithm::window::{Anchor, Phase};
use penstock::engine::limit::{Limit, Rate};
use penstock::engine::time::Nanos;
use penstock::engine::verb::Verb;
use proptest::prelude::*;

use crate::stores::at;
use crate::strategies::{OfAlgorithm, Scene, any_limit, everyday_limit, nanos, of_algorithms};

const MILLI: i64 = 1_000_000;
/// The time of the first use of a bucket in these tests, which is not a multiple of any period.
const START: i64 = 1_700_000_000_001 * MILLI;

/// Spends as soon as the bucket allows it from `start` on. Returns the tokens taken within `interval`.
fn greedy(scene: Scene, start: i64, interval: Nanos) -> i64 {
    let end = start + interval.get();
    let mut scene = scene.at(at(start));
    let mut taken = 0;
    while scene.now.get() <= end {
        let step = scene.step(Verb::Spend, 1);
        scene = scene.after(&step);
        taken += i64::from(step.decision.allowed);
        let wait = if step.decision.allowed { Nanos::ZERO } else { step.decision.retry_after };
        scene = scene.at(scene.now.saturating_add(wait));
    }
    taken
}

/// Returns the offsets within a window, a slot or a drip at which a greedy client may begin.
fn phases(limit: &Limit) -> Vec<i64> {
    let opens =
        |count: i64, period: i64| (0..=count).map(move |k| (k * period + count - 1) / count);
    let mut phases: Vec<i64> = vec![0, MILLI];
    match limit {
        Limit::Rate(Rate::TokenBucket(bucket)) => phases.push(bucket.emission_interval().get()),
        Limit::Rate(Rate::LeakyBucket(bucket)) => phases.push(bucket.drip_rate().get()),
        Limit::Rate(Rate::FixedWindow(window)) => phases.push(window.window().period().get()),
        Limit::Rate(Rate::FixedRateWindow(window)) => {
            phases.extend(opens(window.count(), window.window().period().get()));
        }
        Limit::Rate(Rate::CalendarWindow(_)) | Limit::Slots(_) | Limit::Unlimited => {}
    }
    phases.iter().flat_map(|phase| [phase - 1, *phase, phase + 1]).filter(|&at| at >= 0).collect()
}

/// Returns the maximum that a greedy client takes, over all ways to begin.
fn worst_found(limit: Limit, interval: Nanos) -> i64 {
    let unused = Scene { limit, state: None, now: at(START) };
    // Aligned windows do not depend on the first use, so the first one may start before it.
    let start = match limit.window().map(|window| (window.anchor(), window.period())) {
        Some((Anchor::Aligned(Phase::Fixed(phase)), period)) => {
            START - (START - phase.get()).rem_euclid(period.get())
        }
        _ => START,
    };
    let used = unused.after(&unused.step(Verb::Spend, 1));
    phases(&limit)
        .into_iter()
        .flat_map(|phase| [unused, used].map(|scene| greedy(scene, start + phase, interval)))
        .max()
        .unwrap_or(0)
}

/// Generates limits that are small enough to try all phases.
fn small_limit() -> impl Strategy<Value = Limit> {
    of_algorithms(small)
}

fn small(algorithm: AlgorithmName) -> OfAlgorithm {
    let anchor = prop_oneof![
        Just(Anchor::First),
        Just(Anchor::Aligned(Phase::Fixed(Nanos::ZERO))),
        Just(Anchor::Aligned(Phase::Fixed(nanos(MILLI)))),
    ];
    let period = (2..20_i64).prop_map(|millis| nanos(millis * MILLI));
    Some(match algorithm {
        AlgorithmName::TokenBucket => (1..8_i64, 1..8_i64, 1..50_i64)
            .prop_map(|(burst, count, period)| {
                Limit::token_bucket(burst, count, nanos(period * 1000 * count)).expect("a bucket")
            })
            .boxed(),
        AlgorithmName::LeakyBucket => (1..8_i64, 1..9_i64, 1..10_i64)
            .prop_map(|(size, drip_size, millis)| {
                Limit::leaky_bucket(size, nanos(millis * MILLI), drip_size).expect("a bucket")
            })
            .boxed(),
        AlgorithmName::FixedWindow => (1..8_i64, period, anchor)
            .prop_map(|(count, period, anchor)| {
                Limit::fixed_window(count, period, anchor).expect("a window")
            })
            .boxed(),
        AlgorithmName::FixedRateWindow => (1..12_i64, period, 0..4_i64, anchor)
            .prop_map(|(count, period, burst, anchor)| {
                Limit::fixed_rate_window(count, period, burst, anchor).expect("a window")
            })
            .boxed(),
        // The windows of a calendar are long, and slots are returned at any time.
        AlgorithmName::CalendarWindow | AlgorithmName::InFlight | AlgorithmName::Unlimited => {
            return None;
        }
    })
}

/// Generates interval lengths, mostly near those at which the worst case changes.
fn interval_for(limit: &Limit) -> impl Strategy<Value = Nanos> + use<> {
    let step = match limit {
        Limit::Rate(Rate::TokenBucket(bucket)) => bucket.emission_interval(),
        Limit::Rate(Rate::LeakyBucket(bucket)) => bucket.drip_rate(),
        Limit::Rate(Rate::FixedWindow(window)) => window.window().period(),
        Limit::Rate(Rate::FixedRateWindow(window)) => window.window().period(),
        Limit::Rate(Rate::CalendarWindow(_)) | Limit::Slots(_) | Limit::Unlimited => Nanos::SECOND,
    };
    let step = step.get();
    let phases = phases(limit);
    let critical = (0..4_i64, prop::sample::select(phases), prop::bool::ANY, -2..=2_i64);
    prop_oneof![
        4 => critical.prop_map(move |(steps, phase, before, offset)| {
            let phase = if before { -phase } else { phase };
            Nanos::clamped(steps * step + phase + offset)
        }),
        1 => (0..4 * step).prop_map(nanos),
    ]
}

proptest! {
    #[test]
    fn a_greedy_client_reaches_worst_in(
        (limit, interval) in small_limit()
            .prop_flat_map(|limit| (Just(limit), interval_for(&limit))),
    ) {
        prop_assert_eq!(limit.worst_in(interval), worst_found(limit, interval));
    }

    #[test]
    fn no_client_exceeds_worst_in(
        (limit, interval) in small_limit()
            .prop_flat_map(|limit| (Just(limit), interval_for(&limit))),
        before in prop::collection::vec((1..4_i64, 0.0..1.2), 0..6),
    ) {
        let mut scene = Scene { limit, state: None, now: at(START) };
        for (cost, share) in before {
            let step = scene.step(Verb::Spend, cost.min(limit.max_cost()));
            scene = scene.after(&step);
            let wait = (step.decision.reset_after.get() as f64 * share) as i64;
            scene = scene.at(scene.now.saturating_add(nanos(wait)));
        }
        prop_assert!(greedy(scene, scene.now.get(), interval) <= limit.worst_in(interval));
    }

    #[test]
    fn per_day_is_the_long_term_average(limit in small_limit()) {
        let facts = limit.facts().expect("a limited limit");
        // Long enough for hundreds of refills.
        let interval = 500 * facts.interval.get();
        let scene = Scene { limit, state: None, now: at(START) };
        let taken = greedy(scene, START, nanos(interval)) as f64;
        let expected = facts.per_day as f64 / 86_400e9 * interval as f64;
        prop_assert!((taken - expected).abs() <= facts.worst_in_interval as f64 + expected / 100.0,
            "{} for {}", taken, expected);
    }

    #[test]
    fn describing_any_limit_does_not_panic(limit in any_limit(), interval in 0..i64::MAX) {
        let Some(facts) = limit.facts() else {
            // Requests in flight may end and begin at any rate.
            prop_assert!(limit.slots().is_some());
            prop_assert_eq!(limit.worst_in(nanos(interval)), i64::MAX);
            prop_assert!(limit.share(NonZeroU32::MAX).is_ok_and(|share| share.max_cost() == 1));
            return Ok(());
        };
        prop_assert_eq!(limit.worst_in(Nanos::ZERO), facts.at_once);
        prop_assert!(facts.worst_in_interval >= facts.at_once && facts.per_day >= 0);
        prop_assert!(limit.worst_in(nanos(interval)) >= facts.at_once);
        if let Ok(share) = limit.share(NonZeroU32::MAX) {
            prop_assert!(share.facts().is_some_and(|part| part.per_day <= facts.per_day));
        }
    }

    #[test]
    fn shares_add_up_to_the_limit(limit in everyday_limit(), processes in 1..9_u32) {
        let share = limit.share(NonZeroU32::new(processes).unwrap()).unwrap();
        let (whole, part) = (limit.facts().unwrap(), share.facts().unwrap());
        prop_assert_eq!(share.algorithm(), limit.algorithm());
        prop_assert!(part.at_once >= 1);
        let processes = i64::from(processes);
        prop_assert!(part.at_once * processes <= whole.at_once + processes);
        prop_assert!(part.per_day * processes <= whole.per_day);
        // Per interval and process, rounding loses less than one request and one early request.
        let intervals = 86_400_000_000_000 / whole.refill.interval.get() + 1;
        prop_assert!(whole.per_day - part.per_day * processes <= 2 * processes * intervals);
    }
}

#[test]
fn the_worst_period_of_a_fixed_rate_window_has_the_count_two_bursts_and_one() {
    // Count, burst, and the worst case in a period of one second.
    for (count, burst, worst) in [(6, 0, 7), (6, 2, 11), (10, 3, 17), (4, 1, 7), (1, 0, 2)] {
        let limit = Limit::fixed_rate_window(count, Nanos::SECOND, burst, Anchor::First).unwrap();
        assert_eq!(limit.worst_in(Nanos::SECOND), worst, "{count}, {burst}");
        assert_eq!(worst_found(limit, Nanos::SECOND), worst, "{count}, {burst}");
    }
}

#[test]
fn the_longest_slot_does_not_increase_the_worst_case() {
    // Of nine slots in 10 ms, the first is the longest, by one nanosecond.
    let limit = Limit::fixed_rate_window(9, nanos(10 * MILLI), 0, Anchor::First).unwrap();
    for (interval, worst) in [(8_888_888, 9), (8_888_889, 9), (8_888_890, 10)] {
        assert_eq!(limit.worst_in(nanos(interval)), worst, "{interval}");
        assert_eq!(worst_found(limit, nanos(interval)), worst, "{interval}");
    }
}
