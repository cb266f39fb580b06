//! Independent implementations of the algorithms, compared with the engine.
//!
//! The engine keeps one word per bucket and rounds; the oracles do not round and keep the whole
//! history. A token bucket is a number of tokens, as an exact fraction; a leaky bucket is a list of
//! the drips in which its content will drain; a window is a list of numbered tickets, each valid from
//! an exact fraction of time. Where the engine rounds a rate, limits are chosen whose rate is whole,
//! and the token bucket is also run with the rounded interval.

use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

use penstock::engine::algorithm::window::{Anchor, Phase};
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::engine::time::Nanos;
use proptest::prelude::*;

use crate::stores::at;
use crate::strategies::{Scene, nanos};

/// An exact fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    above: i128,
    /// At least 1.
    below: i128,
}

impl Fraction {
    fn new(above: i128, below: i128) -> Fraction {
        assert!(below > 0, "a fraction of nothing");
        let (mut one, mut other) = (above.abs(), below);
        while other != 0 {
            (one, other) = (other, one % other);
        }
        Fraction { above: above / one, below: below / one }
    }

    fn whole(number: i64) -> Fraction {
        Fraction::new(number.into(), 1)
    }

    fn floor(self) -> i64 {
        self.above.div_euclid(self.below) as i64
    }

    fn ceil(self) -> i64 {
        -Fraction::new(-self.above, self.below).floor()
    }

    fn min(self, other: Fraction) -> Fraction {
        if self < other { self } else { other }
    }
}

impl Add for Fraction {
    type Output = Fraction;

    fn add(self, other: Fraction) -> Fraction {
        Fraction::new(self.above * other.below + other.above * self.below, self.below * other.below)
    }
}

impl Sub for Fraction {
    type Output = Fraction;

    fn sub(self, other: Fraction) -> Fraction {
        self + Fraction::new(-other.above, other.below)
    }
}

impl Mul for Fraction {
    type Output = Fraction;

    fn mul(self, other: Fraction) -> Fraction {
        Fraction::new(self.above * other.above, self.below * other.below)
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Fraction) -> Option<Ordering> {
        (self.above * other.below).partial_cmp(&(other.above * self.below))
    }
}

/// An oracle's answer; missing values are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    allowed: bool,
    remaining: i64,
    retry_after: i64,
    reset_after: i64,
    next_token_after: i64,
}

impl Said {
    fn by(decision: &Decision) -> Said {
        Said {
            allowed: decision.allowed,
            remaining: decision.remaining,
            retry_after: decision.retry_after.get(),
            reset_after: decision.reset_after.get(),
            next_token_after: decision.next_token_after.get(),
        }
    }
}

/// An algorithm with the history of its calls.
trait Oracle {
    /// Answers a call; `now` never decreases.
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Said;
}

/// A bucket of fractional tokens that fills over time.
struct Tokens {
    burst: i64,
    /// Tokens per nanosecond.
    rate: Fraction,
    held: Fraction,
    since: i64,
}

impl Tokens {
    fn new(burst: i64, count: i64, period: i64) -> Tokens {
        let rate = Fraction::new(count.into(), period.into());
        Tokens { burst, rate, held: Fraction::whole(burst), since: 0 }
    }

    /// The time in which `tokens` are added.
    fn time_for(&self, tokens: Fraction) -> i64 {
        let wait = tokens * Fraction::new(self.rate.below, self.rate.above);
        wait.ceil().max(0)
    }
}

impl Oracle for Tokens {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Said {
        let full = Fraction::whole(self.burst);
        let came = self.rate * Fraction::whole(now - self.since);
        (self.held, self.since) = ((self.held + came).min(full), now);
        let cost = Fraction::whole(cost);
        let (allowed, after, wanted) = match verb {
            Verb::Refund => {
                let after = (self.held + cost).min(full);
                (after != self.held, after, Fraction::whole(0))
            }
            Verb::Charge | Verb::ChargePartial => {
                // The debt can be at most one burst.
                let most = self.held + full;
                if most >= cost {
                    (true, self.held - cost, Fraction::whole(0))
                } else if verb == Verb::ChargePartial {
                    let taken = Fraction::whole(most.floor());
                    (false, self.held - taken, Fraction::whole(0))
                } else {
                    (false, self.held, cost - full)
                }
            }
            _ if self.held >= cost => (true, self.held - cost, cost),
            _ => (false, self.held, cost),
        };
        if verb != Verb::Check {
            self.held = after;
        }
        let remaining = after.floor().max(0);
        let next = Fraction::whole(remaining + 1);
        Said {
            allowed,
            remaining,
            retry_after: if verb == Verb::Refund { 0 } else { self.time_for(wanted - after) },
            reset_after: self.time_for(full - after),
            next_token_after: if next <= full { self.time_for(next - after) } else { 0 },
        }
    }
}

/// A leaky bucket: for each request in it, the drip in which it drains, in order.
struct Drips {
    size: i64,
    rate: i64,
    at_once: i64,
    leaving: Vec<i64>,
}

impl Drips {
    /// When the request at index `place` has drained.
    fn leaves(&self, first: i64, place: usize) -> i64 {
        first + place as i64 / self.at_once * self.rate
    }
}

impl Oracle for Drips {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Said {
        self.leaving.retain(|&leaves| leaves > now);
        // An empty bucket drips from the millisecond of its first request.
        let first = self.leaving.first().copied().unwrap_or(now - now % 1_000_000 + self.rate);
        let mut after = self.leaving.clone();
        let fits = after.len() as i64 + cost <= self.size;
        let (allowed, wanted) = match verb {
            Verb::Refund => {
                after.truncate(after.len().saturating_sub(cost as usize));
                (after.len() < self.leaving.len(), 0)
            }
            Verb::Charge | Verb::ChargePartial => {
                let most = self.size.saturating_mul(2) - after.len() as i64;
                let taken = match verb {
                    _ if cost <= most => cost,
                    Verb::ChargePartial => most,
                    _ => 0,
                };
                for place in after.len()..after.len() + taken as usize {
                    after.push(self.leaves(first, place));
                }
                let is_whole = verb == Verb::Charge && taken < cost;
                (taken == cost, if is_whole { cost - self.size } else { 0 })
            }
            _ => {
                for place in after.len()..after.len() + if fits { cost as usize } else { 0 } {
                    after.push(self.leaves(first, place));
                }
                (fits, cost)
            }
        };
        // This many requests must drain before the cost fits.
        let wait = |wanted: i64| match after.len() as i64 + wanted - self.size {
            must_leave if must_leave > 0 => after[must_leave as usize - 1] - now,
            _ => 0,
        };
        let drips = after.iter().collect::<std::collections::BTreeSet<_>>().len() as i64;
        let said = Said {
            allowed,
            remaining: (self.size - after.len() as i64).max(0),
            retry_after: if verb == Verb::Refund { 0 } else { wait(wanted) },
            reset_after: drips * self.rate,
            next_token_after: if after.is_empty() {
                0
            } else {
                wait((self.size - after.len() as i64).max(0) + 1)
            },
        };
        if verb != Verb::Check {
            self.leaving = after;
        }
        said
    }
}

/// A window's tickets, numbered from 1. A request takes the next ones.
///
/// In a fixed-rate window, each ticket is valid from its own slot, `early` of them sooner. A ticket
/// that is not taken expires when the next slot opens.
struct Tickets {
    count: i64,
    /// In a fixed-rate window: the number of requests allowed early.
    early: Option<i64>,
    period: i64,
    /// The phase of aligned windows.
    phase: Option<i64>,
    /// The start of the window, and the tickets taken.
    window: Option<(i64, Vec<i64>)>,
}

impl Tickets {
    fn start(&self, now: i64) -> i64 {
        match (self.phase, &self.window) {
            (None, Some((start, _))) if now < start + self.period => *start,
            (None, _) => now - now % 1_000_000,
            (Some(phase), _) => {
                let windows = Fraction::new((now - phase).into(), self.period.into()).floor();
                phase + windows * self.period
            }
        }
    }

    /// The slot of the request after `turns` others, from the start of the window.
    fn turn(&self, turns: i64) -> Fraction {
        Fraction::new(self.period.into(), self.count.into()) * Fraction::whole(turns)
    }
}

impl Oracle for Tickets {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Said {
        let start = self.start(now);
        let since = Fraction::whole(now - start);
        let left = start + self.period - now;
        let kept = self.window.take().filter(|(of, _)| *of == start);
        let mut taken = kept.as_ref().map_or(Vec::new(), |(_, taken)| taken.clone());
        let gone_by = match self.early {
            None => 0,
            Some(_) => {
                (1..self.count).take_while(|&ticket| self.turn(ticket) <= since).count() as i64
            }
        };
        let last = |taken: &[i64]| taken.last().map_or(gone_by, |&ticket| ticket.max(gone_by));
        let wait_for = |ticket: i64| match self.early {
            None if ticket <= self.count => 0,
            None => left,
            Some(early) => match self.turn((ticket - 1 - early).max(0)) {
                good if good <= since => 0,
                good => (good - since).ceil().min(left),
            },
        };
        let (allowed, wanted) = match verb {
            Verb::Refund => {
                let before = taken.len();
                let back = taken
                    .iter()
                    .rev()
                    .take(cost as usize)
                    .filter(|&&ticket| ticket > gone_by)
                    .count();
                taken.truncate(before - back);
                (back > 0, 0)
            }
            Verb::Charge | Verb::ChargePartial => {
                let next = last(&taken) + 1;
                // The debt can be at most the tickets of one window.
                let most = 2 * (self.count + self.early.unwrap_or(0)) - (next - 1);
                let charged = match verb {
                    _ if cost <= most => cost,
                    Verb::ChargePartial => most,
                    _ => 0,
                };
                taken.extend(next..next + charged);
                let is_whole = verb == Verb::Charge && charged < cost;
                (
                    charged == cost,
                    if is_whole { self.count + self.early.unwrap_or(0) + 1 } else { 0 },
                )
            }
            _ => {
                let next = last(&taken) + 1;
                let fits = wait_for(next + cost - 1) == 0;
                taken.extend(next..next + if fits { cost } else { 0 });
                (fits, cost)
            }
        };
        let said = Said {
            allowed,
            remaining: (self.count + self.early.unwrap_or(0) - last(&taken)).max(0),
            retry_after: if verb == Verb::Refund { 0 } else { wait_for(last(&taken) + wanted) },
            reset_after: left,
            next_token_after: match self.early {
                None => left,
                Some(_) => (self.turn(gone_by + 1) - since).ceil().min(left),
            },
        };
        let began = kept.is_some() || !taken.is_empty();
        self.window = if verb == Verb::Check { kept } else { began.then_some((start, taken)) };
        said
    }
}

/// A call: a verb, its cost as a share of the maximum, and the time since the previous call, as a
/// share of the limit's own time scale, off by some nanoseconds.
type Call = (Verb, f64, f64, i64);

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let verb = prop_oneof![
        5 => Just(Verb::Spend),
        1 => Just(Verb::Check),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Charge),
        1 => Just(Verb::ChargePartial),
    ];
    let wait = prop_oneof![2 => Just(0.0), 2 => 0.0..0.2_f64, 1 => 0.0..1.2_f64];
    let off = prop_oneof![2 => Just(0), 1 => -2..=2_i64, 1 => -2_000_000..=2_000_000_i64];
    prop::collection::vec((verb, 0.0..1.0_f64, wait, off), 1..60)
}

/// Makes the same calls on the engine and on its oracle; `time` is the limit's own time scale.
fn agree(
    limit: Limit,
    mut oracle: impl Oracle,
    calls: &[Call],
    start: i64,
    time: i64,
) -> Result<(), TestCaseError> {
    let mut scene = Scene { limit, state: None, now: at(start) };
    for (place, &(verb, share, wait, off)) in calls.iter().enumerate() {
        // Small costs more often than large ones, so that buckets are seen in every state.
        let cost = scene.share(share * share);
        // A partial charge can exceed the maximum cost of other calls.
        let cost = if verb == Verb::ChargePartial { 2 * cost } else { cost };
        let step = scene.step(verb, cost);
        let said = oracle.answer(verb, cost, scene.now.get());
        prop_assert_eq!(
            Said::by(&step.decision),
            said,
            "call {}: {:?} {} at {:?}",
            place,
            verb,
            cost,
            scene.now
        );
        let wait = ((time as f64 * wait) as i64 + off).max(0);
        // Sometimes wait for exactly `retry_after`.
        let wait = if off == 0 && wait > 0 { step.decision.retry_after.get().max(1) } else { wait };
        scene = scene.after(&step).at(scene.now.saturating_add(nanos(wait)));
    }
    Ok(())
}

const SECOND: i64 = Nanos::SECOND.get();
const MILLI: i64 = 1_000_000;
/// Start times of sequences: the origin, and an arbitrary time.
fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), 1_700_000_000 * SECOND..1_700_000_003 * SECOND]
}

proptest! {
    #[test]
    fn a_token_bucket_is_a_bucket_of_fractional_tokens(
        (burst, count, interval) in (1..30_i64, 1..30_i64, 1..3 * SECOND),
        start in starts(),
        calls in calls(),
    ) {
        // The emission interval is whole, so nothing is rounded.
        let limit = Limit::token_bucket(burst, count, nanos(interval * count)).expect("a limit");
        agree(
            limit,
            Tokens { since: start, ..Tokens::new(burst, count, interval * count) },
            &calls,
            start,
            interval * burst,
        )?;
    }

    #[test]
    fn a_token_bucket_of_any_period_is_one_with_its_interval_rounded_down(
        (burst, count, period) in (1..30_i64, 1..30_i64, SECOND / 10..10 * SECOND),
        start in starts(),
        calls in calls(),
    ) {
        let limit = Limit::token_bucket(burst, count, nanos(period)).expect("a limit");
        let interval = period / count;
        agree(
            limit,
            Tokens { since: start, ..Tokens::new(burst, 1, interval) },
            &calls,
            start,
            interval * burst,
        )?;
    }

    #[test]
    fn a_leaky_bucket_is_a_list_of_drips(
        (size, rate, at_once) in (1..30_i64, 1..3000_i64, 1..5_i64),
        factor in 1..40_u32,
        start in starts(),
        calls in calls(),
    ) {
        let rate = rate * MILLI;
        let limit = Limit::leaky_bucket(size, nanos(rate), at_once).expect("a limit");
        let limit =
            limit.with_factor(&format!("{factor}/10").parse().expect("a factor")).expect("a limit");
        // The exact size, rounded up, and at least 1.
        let size = Fraction::new(i128::from(size) * 10, factor.into()).ceil().max(1);
        agree(
            limit,
            Drips { size, rate, at_once, leaving: Vec::new() },
            &calls,
            start,
            rate * size / at_once,
        )?;
    }

    #[test]
    fn a_window_is_a_list_of_tickets(
        (count, period) in (1..20_i64, 20..5000_i64),
        spaced in prop::option::of(0..5_i64),
        phase in prop::option::of(0..20_i64),
        start in starts(),
        calls in calls(),
    ) {
        let period = period * MILLI;
        let phase = phase.map(|phase| phase * MILLI);
        let anchor =
            phase.map_or(Anchor::First, |phase| Anchor::Aligned(Phase::Fixed(nanos(phase))));
        let limit = match spaced {
            None => Limit::fixed_window(count, nanos(period), anchor),
            Some(burst) => Limit::fixed_rate_window(count, nanos(period), burst, anchor),
        };
        let oracle = Tickets { count, early: spaced, period, phase, window: None };
        agree(limit.expect("a limit"), oracle, &calls, start, period)?;
    }
}

#[test]
fn fractions_are_exact() {
    let third = Fraction::new(2, 6);
    assert_eq!(third + third + third, Fraction::whole(1));
    assert_eq!((third * Fraction::new(3, 7)).above, 1);
    assert!(third > Fraction::new(333_333, 1_000_000) && third < Fraction::new(333_334, 1_000_000));
    assert_eq!((Fraction::new(-1, 2).floor(), Fraction::new(-1, 2).ceil()), (-1, 0));
    assert_eq!((Fraction::new(7, 2).floor(), Fraction::new(7, 2).ceil()), (3, 4));
}
