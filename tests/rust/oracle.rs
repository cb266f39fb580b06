//! Independent implementations of the algorithms, compared with the engine.
//!
//! The engine stores one word per bucket and rounds. The oracles do not round, and they store the whole
//! history: a token bucket is an exact fraction of tokens, a leaky bucket is a list of the drips in
//! which its requests drain, and a window is a list of numbered tickets, each valid from an exact
//! fraction of time. Where the engine rounds a rate, the tests use limits with whole rates, and also run
//! the token bucket with the rounded interval.

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
    numerator: i128,
    /// At least 1.
    denominator: i128,
}

impl Fraction {
    fn new(numerator: i128, denominator: i128) -> Fraction {
        assert!(denominator > 0, "the denominator must be positive");
        let (mut divisor, mut rest) = (numerator.abs(), denominator);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Fraction { numerator: numerator / divisor, denominator: denominator / divisor }
    }

    fn whole(number: i64) -> Fraction {
        Fraction::new(number.into(), 1)
    }

    fn floor(self) -> i64 {
        self.numerator.div_euclid(self.denominator) as i64
    }

    fn ceil(self) -> i64 {
        -Fraction::new(-self.numerator, self.denominator).floor()
    }

    fn min(self, other: Fraction) -> Fraction {
        if self < other { self } else { other }
    }
}

impl Add for Fraction {
    type Output = Fraction;

    fn add(self, other: Fraction) -> Fraction {
        Fraction::new(
            self.numerator * other.denominator + other.numerator * self.denominator,
            self.denominator * other.denominator,
        )
    }
}

impl Sub for Fraction {
    type Output = Fraction;

    fn sub(self, other: Fraction) -> Fraction {
        self + Fraction::new(-other.numerator, other.denominator)
    }
}

impl Mul for Fraction {
    type Output = Fraction;

    fn mul(self, other: Fraction) -> Fraction {
        Fraction::new(self.numerator * other.numerator, self.denominator * other.denominator)
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Fraction) -> Option<Ordering> {
        (self.numerator * other.denominator).partial_cmp(&(other.numerator * self.denominator))
    }
}

/// The numbers of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    allowed: bool,
    remaining: i64,
    retry_after: i64,
    reset_after: i64,
    next_token_after: i64,
}

impl Answer {
    fn of(decision: &Decision) -> Answer {
        Answer {
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
    /// Answers a call. `now` never decreases.
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Answer;
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

    /// Returns the time in which `tokens` are added.
    fn time_for(&self, tokens: Fraction) -> i64 {
        let wait = tokens * Fraction::new(self.rate.denominator, self.rate.numerator);
        wait.ceil().max(0)
    }
}

impl Oracle for Tokens {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Answer {
        let full = Fraction::whole(self.burst);
        let added = self.rate * Fraction::whole(now - self.since);
        (self.held, self.since) = ((self.held + added).min(full), now);
        let cost = Fraction::whole(cost);
        let (allowed, after, needed) = match verb {
            Verb::Refund => {
                let after = (self.held + cost).min(full);
                (after != self.held, after, Fraction::whole(0))
            }
            Verb::Charge | Verb::ChargePartial => {
                // The debt is at most one burst.
                let max = self.held + full;
                if max >= cost {
                    (true, self.held - cost, Fraction::whole(0))
                } else if verb == Verb::ChargePartial {
                    let taken = Fraction::whole(max.floor());
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
        Answer {
            allowed,
            remaining,
            retry_after: if verb == Verb::Refund { 0 } else { self.time_for(needed - after) },
            reset_after: self.time_for(full - after),
            next_token_after: if next <= full { self.time_for(next - after) } else { 0 },
        }
    }
}

/// A leaky bucket: for each request in it, the time of the drip in which it drains, in order.
struct Drips {
    size: i64,
    rate: i64,
    drip_size: i64,
    drains_at: Vec<i64>,
}

impl Drips {
    /// Returns the time at which the request at `index` has drained.
    fn drain_time(&self, first: i64, index: usize) -> i64 {
        first + index as i64 / self.drip_size * self.rate
    }
}

impl Oracle for Drips {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Answer {
        self.drains_at.retain(|&drains_at| drains_at > now);
        // The drips of an empty bucket begin at the millisecond of its first request.
        let first = self.drains_at.first().copied().unwrap_or(now - now % 1_000_000 + self.rate);
        let mut after = self.drains_at.clone();
        let fits = after.len() as i64 + cost <= self.size;
        let (allowed, needed) = match verb {
            Verb::Refund => {
                after.truncate(after.len().saturating_sub(cost as usize));
                (after.len() < self.drains_at.len(), 0)
            }
            Verb::Charge | Verb::ChargePartial => {
                let max = self.size.saturating_mul(2) - after.len() as i64;
                let taken = match verb {
                    _ if cost <= max => cost,
                    Verb::ChargePartial => max,
                    _ => 0,
                };
                for index in after.len()..after.len() + taken as usize {
                    after.push(self.drain_time(first, index));
                }
                let is_whole = verb == Verb::Charge && taken < cost;
                (taken == cost, if is_whole { cost - self.size } else { 0 })
            }
            _ => {
                for index in after.len()..after.len() + if fits { cost as usize } else { 0 } {
                    after.push(self.drain_time(first, index));
                }
                (fits, cost)
            }
        };
        // The time until enough requests have drained for `needed` more.
        let wait = |needed: i64| match after.len() as i64 + needed - self.size {
            excess if excess > 0 => after[excess as usize - 1] - now,
            _ => 0,
        };
        let drips = after.iter().collect::<std::collections::BTreeSet<_>>().len() as i64;
        let answer = Answer {
            allowed,
            remaining: (self.size - after.len() as i64).max(0),
            retry_after: if verb == Verb::Refund { 0 } else { wait(needed) },
            reset_after: drips * self.rate,
            next_token_after: if after.is_empty() {
                0
            } else {
                wait((self.size - after.len() as i64).max(0) + 1)
            },
        };
        if verb != Verb::Check {
            self.drains_at = after;
        }
        answer
    }
}

/// The tickets of a window, numbered from 1. A request takes the next ones.
///
/// In a fixed-rate window, each ticket is valid from `early` slots before its own slot. A ticket that is
/// not taken expires when the next slot opens.
struct Tickets {
    count: i64,
    /// The number of requests allowed early; `None` for a fixed window.
    early: Option<i64>,
    period: i64,
    /// The phase; `None` if windows are not aligned.
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

    /// Returns when the slot at `index` opens, from the start of the window.
    fn slot(&self, index: i64) -> Fraction {
        Fraction::new(self.period.into(), self.count.into()) * Fraction::whole(index)
    }
}

impl Oracle for Tickets {
    fn answer(&mut self, verb: Verb, cost: i64, now: i64) -> Answer {
        let start = self.start(now);
        let since = Fraction::whole(now - start);
        let left = start + self.period - now;
        let current = self.window.take().filter(|(window_start, _)| *window_start == start);
        let mut taken = current.as_ref().map_or(Vec::new(), |(_, taken)| taken.clone());
        let expired = match self.early {
            None => 0,
            Some(_) => {
                (1..self.count).take_while(|&ticket| self.slot(ticket) <= since).count() as i64
            }
        };
        let last = |taken: &[i64]| taken.last().map_or(expired, |&ticket| ticket.max(expired));
        let wait_for = |ticket: i64| match self.early {
            None if ticket <= self.count => 0,
            None => left,
            Some(early) => match self.slot((ticket - 1 - early).max(0)) {
                valid_from if valid_from <= since => 0,
                valid_from => (valid_from - since).ceil().min(left),
            },
        };
        let (allowed, needed) = match verb {
            Verb::Refund => {
                let before = taken.len();
                let returned = taken
                    .iter()
                    .rev()
                    .take(cost as usize)
                    .filter(|&&ticket| ticket > expired)
                    .count();
                taken.truncate(before - returned);
                (returned > 0, 0)
            }
            Verb::Charge | Verb::ChargePartial => {
                let next = last(&taken) + 1;
                // The debt is at most the tickets of one window.
                let max = 2 * (self.count + self.early.unwrap_or(0)) - (next - 1);
                let charged = match verb {
                    _ if cost <= max => cost,
                    Verb::ChargePartial => max,
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
        let answer = Answer {
            allowed,
            remaining: (self.count + self.early.unwrap_or(0) - last(&taken)).max(0),
            retry_after: if verb == Verb::Refund { 0 } else { wait_for(last(&taken) + needed) },
            reset_after: left,
            next_token_after: match self.early {
                None => left,
                Some(_) => (self.slot(expired + 1) - since).ceil().min(left),
            },
        };
        let began = current.is_some() || !taken.is_empty();
        self.window = if verb == Verb::Check { current } else { began.then_some((start, taken)) };
        answer
    }
}

/// A call: a verb, its cost as a share of the maximum, and the time since the previous call as a share
/// of the limit's time scale, plus an offset in nanoseconds.
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
    let offset = prop_oneof![2 => Just(0), 1 => -2..=2_i64, 1 => -2_000_000..=2_000_000_i64];
    prop::collection::vec((verb, 0.0..1.0_f64, wait, offset), 1..60)
}

/// Checks that the engine and the oracle agree on a sequence of calls. `time` is the limit's time scale.
fn check_agreement(
    limit: Limit,
    mut oracle: impl Oracle,
    calls: &[Call],
    start: i64,
    time: i64,
) -> Result<(), TestCaseError> {
    let mut scene = Scene { limit, state: None, now: at(start) };
    for (index, &(verb, share, wait, offset)) in calls.iter().enumerate() {
        // Small costs are more frequent than large ones, so that buckets reach every state.
        let cost = scene.share(share * share);
        // A partial charge can exceed the maximum cost of other calls.
        let cost = if verb == Verb::ChargePartial { 2 * cost } else { cost };
        let step = scene.step(verb, cost);
        let answer = oracle.answer(verb, cost, scene.now.get());
        prop_assert_eq!(
            Answer::of(&step.decision),
            answer,
            "call {}: {:?} {} at {:?}",
            index,
            verb,
            cost,
            scene.now
        );
        let wait = ((time as f64 * wait) as i64 + offset).max(0);
        // Some waits are exactly `retry_after`.
        let wait =
            if offset == 0 && wait > 0 { step.decision.retry_after.get().max(1) } else { wait };
        scene = scene.after(&step).at(scene.now.saturating_add(nanos(wait)));
    }
    Ok(())
}

const SECOND: i64 = Nanos::SECOND.get();
const MILLI: i64 = 1_000_000;
/// Generates start times: the origin or an arbitrary time.
fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), 1_700_000_000 * SECOND..1_700_000_003 * SECOND]
}

proptest! {
    #[test]
    fn a_token_bucket_agrees_with_fractional_tokens(
        (burst, count, interval) in (1..30_i64, 1..30_i64, 1..3 * SECOND),
        start in starts(),
        calls in calls(),
    ) {
        // The emission interval is whole, so nothing is rounded.
        let limit = Limit::token_bucket(burst, count, nanos(interval * count)).expect("a limit");
        check_agreement(
            limit,
            Tokens { since: start, ..Tokens::new(burst, count, interval * count) },
            &calls,
            start,
            interval * burst,
        )?;
    }

    #[test]
    fn a_token_bucket_of_any_period_has_its_interval_rounded_down(
        (burst, count, period) in (1..30_i64, 1..30_i64, SECOND / 10..10 * SECOND),
        start in starts(),
        calls in calls(),
    ) {
        let limit = Limit::token_bucket(burst, count, nanos(period)).expect("a limit");
        let interval = period / count;
        check_agreement(
            limit,
            Tokens { since: start, ..Tokens::new(burst, 1, interval) },
            &calls,
            start,
            interval * burst,
        )?;
    }

    #[test]
    fn a_leaky_bucket_agrees_with_a_list_of_drips(
        (size, rate, drip_size) in (1..30_i64, 1..3000_i64, 1..5_i64),
        factor in 1..40_u32,
        start in starts(),
        calls in calls(),
    ) {
        let rate = rate * MILLI;
        let limit = Limit::leaky_bucket(size, nanos(rate), drip_size).expect("a limit");
        let limit =
            limit.with_factor(&format!("{factor}/10").parse().expect("a factor")).expect("a limit");
        // The exact size, rounded up, and at least 1.
        let size = Fraction::new(i128::from(size) * 10, factor.into()).ceil().max(1);
        check_agreement(
            limit,
            Drips { size, rate, drip_size, drains_at: Vec::new() },
            &calls,
            start,
            rate * size / drip_size,
        )?;
    }

    #[test]
    fn a_window_agrees_with_a_list_of_tickets(
        (count, period) in (1..20_i64, 20..5000_i64),
        early in prop::option::of(0..5_i64),
        phase in prop::option::of(0..20_i64),
        start in starts(),
        calls in calls(),
    ) {
        let period = period * MILLI;
        let phase = phase.map(|phase| phase * MILLI);
        let anchor =
            phase.map_or(Anchor::First, |phase| Anchor::Aligned(Phase::Fixed(nanos(phase))));
        let limit = match early {
            None => Limit::fixed_window(count, nanos(period), anchor),
            Some(burst) => Limit::fixed_rate_window(count, nanos(period), burst, anchor),
        };
        let oracle = Tickets { count, early, period, phase, window: None };
        check_agreement(limit.expect("a limit"), oracle, &calls, start, period)?;
    }
}

#[test]
fn fractions_are_exact() {
    let third = Fraction::new(2, 6);
    assert_eq!(third + third + third, Fraction::whole(1));
    assert_eq!((third * Fraction::new(3, 7)).numerator, 1);
    assert!(third > Fraction::new(333_333, 1_000_000) && third < Fraction::new(333_334, 1_000_000));
    assert_eq!((Fraction::new(-1, 2).floor(), Fraction::new(-1, 2).ceil()), (-1, 0));
    assert_eq!((Fraction::new(7, 2).floor(), Fraction::new(7, 2).ceil()), (3, 4));
}
