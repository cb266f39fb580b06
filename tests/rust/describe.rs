//! What is said of a limit is what it does.
//!
//! 1. `worst_in` is exact: some greedy client takes as many, and none takes more. A client that
//!    wants as much as possible spends as soon as it may; what it chooses is whether it used the
//!    bucket before, and when in a window, a slot or a tick its interval begins. All instants at
//!    which that can matter are tried, and the nanosecond before and after each.
//! 2. `facts` agree with it, and with what the engine admits in a day.
//! 3. Shares of a limit together admit no more than the limit, except for the one request at once that
//!    each process may always have, and less only by rounding.

use std::num::NonZeroU32;

use penstock::engine::algorithm::window::{Anchor, Phase};
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::engine::time::Nanos;
use proptest::prelude::*;

use crate::stores::at;
use crate::strategies::{Scene, any_limit, everyday_limit, nanos};

const MILLI: i64 = 1_000_000;
/// When clients of these tests first use their bucket; a multiple of no period.
const START: i64 = 1_700_000_000_001 * MILLI;

/// Spends as soon as the bucket allows it from `start` on; how many it got within `interval`.
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

/// Times within a window, a slot or between drips at which an interval may best begin.
fn phases(limit: &Limit) -> Vec<i64> {
    let opens =
        |count: i64, period: i64| (0..=count).map(move |k| (k * period + count - 1) / count);
    let mut phases: Vec<i64> = vec![0, MILLI];
    match limit {
        Limit::TokenBucket(bucket) => phases.push(bucket.emission_interval().get()),
        Limit::LeakyBucket(bucket) => phases.push(bucket.drip_rate().get()),
        Limit::FixedWindow(window) => phases.push(window.window().period().get()),
        Limit::FixedRateWindow(window) => {
            phases.extend(opens(window.count(), window.window().period().get()));
        }
        Limit::Unlimited => {}
    }
    phases.iter().flat_map(|phase| [phase - 1, *phase, phase + 1]).filter(|&at| at >= 0).collect()
}

/// The most that a greedy client gets, however it used the bucket before and whenever it begins.
fn worst_found(limit: Limit, interval: Nanos) -> i64 {
    let unused = Scene { limit, state: None, now: at(START) };
    // Aligned windows start by the clock, so the first may start before the bucket is used.
    let origin = match limit {
        Limit::FixedWindow(window) => (window.window().anchor(), window.window().period()),
        Limit::FixedRateWindow(window) => (window.window().anchor(), window.window().period()),
        _ => (Anchor::First, Nanos::SECOND),
    };
    let start = match origin {
        (Anchor::Aligned(Phase::Fixed(phase)), period) => {
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

/// A limit small enough that all its phases can be tried.
fn small_limit() -> impl Strategy<Value = Limit> {
    let anchor = prop_oneof![
        Just(Anchor::First),
        Just(Anchor::Aligned(Phase::Fixed(Nanos::ZERO))),
        Just(Anchor::Aligned(Phase::Fixed(nanos(MILLI)))),
    ];
    let period = (2..20_i64).prop_map(|millis| nanos(millis * MILLI));
    prop_oneof![
        (1..8_i64, 1..8_i64, 1..50_i64).prop_map(|(burst, count, period)| {
            Limit::token_bucket(burst, count, nanos(period * 1000 * count)).expect("a bucket")
        }),
        (1..8_i64, 1..9_i64, 1..10_i64).prop_map(|(size, drip_size, millis)| {
            Limit::leaky_bucket(size, nanos(millis * MILLI), drip_size).expect("a bucket")
        }),
        (1..8_i64, period.clone(), anchor.clone()).prop_map(|(count, period, anchor)| {
            Limit::fixed_window(count, period, anchor).expect("a window")
        }),
        (1..12_i64, period, 0..4_i64, anchor).prop_map(|(count, period, burst, anchor)| {
            Limit::fixed_rate_window(count, period, burst, anchor).expect("a window")
        }),
    ]
}

/// Lengths around those at which the worst case changes, and any other.
fn interval_for(limit: &Limit) -> impl Strategy<Value = Nanos> + use<> {
    let step = match limit {
        Limit::TokenBucket(bucket) => bucket.emission_interval(),
        Limit::LeakyBucket(bucket) => bucket.drip_rate(),
        Limit::FixedWindow(window) => window.window().period(),
        Limit::FixedRateWindow(window) => window.window().period(),
        Limit::Unlimited => Nanos::SECOND,
    };
    let step = step.get();
    let phases = phases(limit);
    let near = (0..4_i64, prop::sample::select(phases), prop::bool::ANY, -2..=2_i64);
    prop_oneof![
        4 => near.prop_map(move |(steps, phase, before, off)| {
            let phase = if before { -phase } else { phase };
            Nanos::clamped(steps * step + phase + off)
        }),
        1 => (0..4 * step).prop_map(nanos),
    ]
}

proptest! {
    #[test]
    fn worst_in_is_what_the_greediest_client_gets(
        (limit, interval) in small_limit()
            .prop_flat_map(|limit| (Just(limit), interval_for(&limit))),
    ) {
        prop_assert_eq!(limit.worst_in(interval), worst_found(limit, interval));
    }

    #[test]
    fn no_client_gets_more_than_worst_in(
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
    fn per_day_is_what_a_client_gets_in_the_long_run(limit in small_limit()) {
        let facts = limit.facts().expect("a limit is drawn");
        // Long enough for hundreds of refills.
        let interval = 500 * facts.interval.get();
        let scene = Scene { limit, state: None, now: at(START) };
        let taken = greedy(scene, START, nanos(interval)) as f64;
        let expected = facts.per_day as f64 / 86_400e9 * interval as f64;
        prop_assert!((taken - expected).abs() <= facts.worst_in_interval as f64 + expected / 100.0,
            "{} for {}", taken, expected);
    }

    #[test]
    fn nothing_said_of_a_limit_panics(limit in any_limit(), interval in 0..i64::MAX) {
        let facts = limit.facts().expect("a limit is drawn");
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
        // In each interval rounding takes less than one request, and one early, from each process.
        let intervals = 86_400_000_000_000 / whole.refill_interval.get() + 1;
        prop_assert!(whole.per_day - part.per_day * processes <= 2 * processes * intervals);
    }
}

#[test]
fn a_fixed_rate_window_admits_its_count_two_bursts_and_one_in_any_period() {
    // Count, burst; at worst in a period of one second.
    for (count, burst, worst) in [(6, 0, 7), (6, 2, 11), (10, 3, 17), (4, 1, 7), (1, 0, 2)] {
        let limit = Limit::fixed_rate_window(count, Nanos::SECOND, burst, Anchor::First).unwrap();
        assert_eq!(limit.worst_in(Nanos::SECOND), worst, "{count}, {burst}");
        assert_eq!(worst_found(limit, Nanos::SECOND), worst, "{count}, {burst}");
    }
}

#[test]
fn an_interval_that_only_the_first_slot_fits_finds_its_request_taken() {
    // Of nine slots in 10 ms the first is the longest, by one nanosecond.
    let limit = Limit::fixed_rate_window(9, nanos(10 * MILLI), 0, Anchor::First).unwrap();
    for (interval, worst) in [(8_888_888, 9), (8_888_889, 9), (8_888_890, 10)] {
        assert_eq!(limit.worst_in(nanos(interval)), worst, "{interval}");
        assert_eq!(worst_found(limit, nanos(interval)), worst, "{interval}");
    }
}
