//! Strategies for limits, states and instants: typical ones, and all possible ones.

use penstock::engine::algorithm::calendar::{CalendarUnit, Zone};
use penstock::engine::algorithm::in_flight::InFlight;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::algorithm::window::{Anchor, Phase};
use penstock::engine::cost::Cost;
use penstock::engine::decision::Decision;
use penstock::engine::factor::Factor;
use penstock::engine::limit::{Limit, Rate};
use penstock::engine::operation::Operation;
use penstock::engine::state::{State, StateKind};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use proptest::prelude::*;

use crate::stores::at;

/// The longest duration in a limit.
pub const MAX_PERIOD: i64 = 1 << 62;
const MILLI: i64 = 1_000_000;
const MAX_TALLY: i64 = State::MAX_TALLY as i64;

/// Generates a number from 1 to `max`, with each magnitude equally likely.
pub fn magnitude(max: i64) -> impl Strategy<Value = i64> + Clone {
    (any::<u64>(), 1_u32..64).prop_map(move |(bits, shift)| 1 + (bits >> shift) as i64 % max)
}

/// Generates limits of one algorithm; `None` if a property does not apply to the algorithm.
pub type OfAlgorithm = Option<BoxedStrategy<Limit>>;

/// Generates a limit of any algorithm for which `of` has a strategy.
pub fn of_algorithms(of: fn(AlgorithmName) -> OfAlgorithm) -> impl Strategy<Value = Limit> {
    prop::strategy::Union::new(AlgorithmName::ALL.into_iter().filter_map(of))
}

/// Generates a limit of any algorithm with any valid parameters.
pub fn any_limit() -> impl Strategy<Value = Limit> {
    of_algorithms(|algorithm| match algorithm {
        AlgorithmName::TokenBucket => Some(any_token_bucket().boxed()),
        AlgorithmName::LeakyBucket => Some(any_leaky_bucket().boxed()),
        AlgorithmName::FixedWindow => Some(any_fixed_window().boxed()),
        AlgorithmName::FixedRateWindow => Some(any_fixed_rate_window().boxed()),
        AlgorithmName::CalendarWindow => Some(any_calendar_window().boxed()),
        AlgorithmName::InFlight => Some(any_in_flight().boxed()),
        AlgorithmName::Unlimited => None,
    })
}

fn any_token_bucket() -> impl Strategy<Value = Limit> {
    let numbers = (magnitude(MAX_PERIOD), magnitude(i64::MAX), magnitude(i64::MAX), 0..i64::MAX);
    numbers.prop_map(|(interval, burst, count, part)| {
        let burst = 1 + (burst - 1) % (MAX_PERIOD / interval);
        let count = 1 + (count - 1) % (i64::MAX / interval);
        let whole = interval * count;
        // The part of the period lost by rounding: below a nanosecond per token, and below 0.1 %.
        let part = part % count.min(whole / 1000 + 1).min((i64::MAX - whole).saturating_add(1));
        let limit = Limit::token_bucket(burst, count, nanos(whole + part)).expect("a token bucket");
        let Limit::Rate(Rate::TokenBucket(bucket)) = &limit else { unreachable!("a token bucket") };
        assert_eq!(bucket.emission_interval().get(), interval);
        limit
    })
}

fn any_leaky_bucket() -> impl Strategy<Value = Limit> {
    let numbers = (magnitude(MAX_TALLY), magnitude(MAX_PERIOD / MILLI), magnitude(i64::MAX));
    (numbers, any_factor()).prop_map(|((size, drip_rate, drip_size), factor)| {
        let drip_rate = drip_rate * MILLI;
        let max = drip_size.saturating_mul(MAX_PERIOD / drip_rate);
        let size = 1 + (size - 1) % max;
        let limit = Limit::leaky_bucket(size, nanos(drip_rate), drip_size).expect("a leaky bucket");
        limit.with_factor(&factor).unwrap_or(limit)
    })
}

/// Generates a factor above 0.
fn any_factor() -> impl Strategy<Value = Factor> {
    (1..2000_u32, 1..2000_u32)
        .prop_map(|(numerator, denominator)| format!("{numerator}/{denominator}"))
        .prop_map(|text| text.parse().expect("a factor"))
}

fn any_in_flight() -> impl Strategy<Value = Limit> {
    let leases = InFlight::MIN_LEASE.get()..=InFlight::MAX_LEASE.get();
    let lease = prop_oneof![leases, Just(InFlight::MIN_LEASE.get()), Just(InFlight::LEASE.get())];
    let more = prop::option::of(0..InFlight::MAX_LEASE.get());
    (magnitude(InFlight::MAX_COUNT), lease, more).prop_map(|(count, lease, more)| {
        let max_hold = more.map(|more| nanos(lease + more));
        Limit::in_flight(count, nanos(lease), Nanos::SECOND, max_hold).expect("slots")
    })
}

fn any_fixed_window() -> impl Strategy<Value = Limit> {
    (magnitude(MAX_TALLY), any_window())
        .prop_map(|(count, (period, anchor))| fixed_window(count, period, anchor))
}

fn any_fixed_rate_window() -> impl Strategy<Value = Limit> {
    (magnitude(MAX_TALLY), magnitude(MAX_TALLY), any_window()).prop_map(
        |(count, burst, (period, anchor))| {
            let burst = (burst - 1) % (MAX_TALLY - count + 1);
            Limit::fixed_rate_window(count, period, burst, anchor).expect("a window").for_key(KEY)
        },
    )
}

fn any_calendar_window() -> impl Strategy<Value = Limit> {
    (magnitude(999_999_999), any_calendar()).prop_map(|(count, (unit, zone))| {
        Limit::calendar_window(count, unit, zone).expect("a window")
    })
}

fn any_calendar() -> impl Strategy<Value = (CalendarUnit, Zone)> {
    const ZONES: &[&str] =
        &["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Beirut"];
    let zone = prop::sample::select(ZONES).prop_map(|name| Zone::named(name).expect("a zone"));
    (prop::sample::select(&CalendarUnit::ALL[..]), zone)
}

/// The bucket key for a per-key phase.
const KEY: &str = "Calls:ada";

fn fixed_window(count: i64, period: Nanos, anchor: Anchor) -> Limit {
    Limit::fixed_window(count, period, anchor).expect("a window").for_key(KEY)
}

fn any_window() -> impl Strategy<Value = (Nanos, Anchor)> {
    magnitude(MAX_PERIOD / MILLI).prop_flat_map(|period| {
        let anchor = prop_oneof![
            2 => Just(Anchor::First),
            1 => Just(Anchor::Aligned(Phase::Fixed(Nanos::ZERO))),
            1 => (0..period).prop_map(|phase| Anchor::Aligned(Phase::Fixed(nanos(phase * MILLI)))),
            1 => Just(Anchor::Aligned(Phase::PerKey)),
        ];
        anchor.prop_map(move |anchor| (nanos(period * MILLI), anchor))
    })
}

/// Generates a limit of any algorithm whose tokens refill, with typical parameters.
pub fn everyday_limit() -> impl Strategy<Value = Limit> {
    of_algorithms(everyday)
}

fn everyday(algorithm: AlgorithmName) -> OfAlgorithm {
    let count = 1..20_i64;
    let period = (1000..5000_i64).prop_map(|millis| nanos(millis * MILLI));
    let anchor = prop_oneof![
        Just(Anchor::First),
        (0..1000_i64).prop_map(|phase| Anchor::Aligned(Phase::Fixed(nanos(phase * MILLI)))),
        Just(Anchor::Aligned(Phase::PerKey)),
    ];
    Some(match algorithm {
        AlgorithmName::TokenBucket => (1..20_i64, count, 1..10_i64)
            .prop_map(|(burst, count, seconds)| {
                Limit::token_bucket(burst, count, nanos(seconds * 1000 * MILLI)).expect("a bucket")
            })
            .boxed(),
        AlgorithmName::LeakyBucket => (1..20_i64, 1..3000_i64, 1..4_i64)
            .prop_map(|(size, millis, drip_size)| {
                Limit::leaky_bucket(size, nanos(millis * MILLI), drip_size).expect("a bucket")
            })
            .boxed(),
        AlgorithmName::FixedWindow => (count, period, anchor)
            .prop_map(|(count, period, anchor)| {
                Limit::fixed_window(count, period, anchor).expect("a window")
            })
            .boxed(),
        AlgorithmName::FixedRateWindow => (count, period, 0..4_i64, anchor)
            .prop_map(|(count, period, burst, anchor)| {
                Limit::fixed_rate_window(count, period, burst, anchor).expect("a window")
            })
            .boxed(),
        AlgorithmName::CalendarWindow => (count, any_calendar())
            .prop_map(|(count, (unit, zone))| {
                Limit::calendar_window(count, unit, zone).expect("a window")
            })
            .boxed(),
        AlgorithmName::InFlight | AlgorithmName::Unlimited => return None,
    })
}

/// Generates any instant of a clock: near the origin, in the present, near the end, and in between.
pub fn any_instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        2 => magnitude(i64::MAX).prop_map(|nanos| at(nanos - 1)),
        4 => (0..MAX_PERIOD / 2).prop_map(|nanos| at(1_700_000_000_000_000_000 + nanos)),
        1 => magnitude(i64::MAX).prop_map(|nanos| at(i64::MAX - nanos)),
        1 => (-2 * MILLI..2 * MILLI).prop_map(|nanos| at(State::MAX_INSTANT.get() + nanos)),
    ]
}

/// Generates any word that a store can contain.
pub fn any_word() -> impl Strategy<Value = State> {
    any::<u64>().prop_map(|bits| State::from_word(bits >> 1).expect("below 2^63"))
}

/// A bucket at one time: its limit, its state, and the instant.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub limit: Limit,
    pub state: Option<State>,
    pub now: Timestamp,
}

/// An earlier call: a verb, its cost as a share of the maximum, and a wait.
type Before = (Verb, f64, Wait);

/// The time until the next call.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    No,
    Nanos(i64),
    /// A share of the time until the bucket is full.
    Share(f64),
    /// The decision's `retry_after` plus an offset in nanoseconds.
    RetryAfter(i64),
}

impl Wait {
    /// Returns the wait after a decision.
    pub fn after(self, decision: &Decision) -> Nanos {
        Nanos::clamped(match self {
            Wait::No => 0,
            Wait::Nanos(nanos) => nanos,
            Wait::Share(share) => (decision.reset_after.get() as f64 * share) as i64,
            Wait::RetryAfter(offset) => decision.retry_after.get().saturating_add(offset),
        })
    }
}

pub fn any_wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        3 => Just(Wait::No),
        1 => magnitude(10 * MILLI).prop_map(Wait::Nanos),
        2 => (0.0..1.5).prop_map(Wait::Share),
        1 => (-1..=1_i64).prop_map(Wait::RetryAfter),
    ]
}

pub fn any_verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        4 => Just(Verb::Spend),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Charge),
        1 => Just(Verb::ChargePartial),
        1 => Just(Verb::ChargeAfter),
    ]
}

/// Generates a bucket whose state was reached by calls of its own limit.
pub fn reached(limit: impl Strategy<Value = Limit>) -> impl Strategy<Value = Scene> {
    let before = prop::collection::vec((any_verb(), 0.0..1.0, any_wait()), 0..8);
    (limit, any_instant(), before).prop_map(|(limit, start, before)| {
        let mut scene = Scene { limit, state: None, now: start };
        for call in before {
            scene.call(call);
        }
        scene
    })
}

/// Generates a bucket in any state, including states that its limit cannot reach.
pub fn any_scene() -> impl Strategy<Value = Scene> {
    let near =
        (any_limit(), any_instant(), -MAX_PERIOD..MAX_PERIOD, 1..63_u32, 0..=State::MAX_TALLY);
    prop_oneof![
        3 => reached(any_limit()),
        1 => reached(everyday_limit()).prop_map(|scene| {
            Scene { limit: scene.limit.for_key(KEY), ..scene }
        }),
        2 => (any_limit(), any_word(), any_instant()).prop_map(|(limit, word, now)| {
            Scene { limit, state: Some(word), now }
        }),
        2 => near.prop_map(|(limit, now, away, shift, tally)| {
            let instant = Timestamp::clamped(now.get().saturating_add(away >> shift));
            let state = match limit.algorithm().definition().state {
                StateKind::Instant => State::from_instant(instant),
                StateKind::Tally | StateKind::Slots => State::from_tally(instant, tally),
            };
            Scene { limit, state: Some(state), now }
        }),
    ]
}

impl Scene {
    /// Returns the step of one call, without storing its state.
    pub fn step(&self, verb: Verb, cost: i64) -> penstock::engine::algorithm::Step {
        let cost = match verb {
            verb if verb.is_partial() => self.limit.cost_in_parts(cost),
            _ => self.cost(cost),
        };
        Operation { verb, limit: &self.limit, cost }.step(self.state, self.now)
    }

    pub fn cost(&self, tokens: i64) -> Cost {
        self.limit.cost(tokens).expect("a cost that the limit can allow")
    }

    /// Returns a share of the maximum cost.
    pub fn share(&self, share: f64) -> i64 {
        ((share * (self.limit.max_cost() as f64 + 1.0)) as i64).min(self.limit.max_cost())
    }

    /// Returns the bucket after a step.
    pub fn after(self, step: &penstock::engine::algorithm::Step) -> Scene {
        Scene { state: step.after.or(self.state), ..self }
    }

    /// Returns the same bucket at another time.
    pub fn at(self, now: Timestamp) -> Scene {
        Scene { now, ..self }
    }

    fn call(&mut self, (verb, share, wait): Before) {
        // Cubed, so that small costs are frequent even if the maximum is large.
        let cost = self.share(share * share * share);
        let step = self.step(verb, cost);
        *self = self.after(&step);
        self.now = self.now.saturating_add(wait.after(&step.decision));
    }
}

pub fn nanos(nanos: i64) -> Nanos {
    Nanos::new(nanos).expect("a non-negative duration")
}
