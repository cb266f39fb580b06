//! The engine's rules in the shape that a store takes them: as a step, or as numbers.

use crate::engine::algorithm::window::{Anchor, Phase, Window};
use crate::engine::algorithm::{self, Algorithm};
use crate::engine::batch::{self, Kind, Member};
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::store::{Batch, Script, Step, Write};

impl Step for Operation<'_> {
    type Answer = Decision;

    #[inline(always)]
    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Decision) -> Write {
        // As in the limiter: what nearly every call is stands in one piece, and the rest behind a
        // call.
        match (self.verb, self.limit) {
            (Verb::Spend, Limit::TokenBucket(bucket)) => {
                let step = bucket.spend(self.cost, state, now);
                *answer = step.decision;
                written(&step)
            }
            _ => run_otherwise(self, state, now, answer),
        }
    }

    fn script(&self) -> Script {
        script(self, Kind::Spend, false)
    }

    fn read(&self, reply: &[i64]) -> Option<Decision> {
        decision_in(reply)
    }
}

/// Several transactions about buckets, as one.
pub(super) struct BatchStep<'a> {
    pub(super) verb: Verb,
    pub(super) members: &'a [Member<'a>],
}

impl Batch for BatchStep<'_> {
    type Answer = Vec<Decision>;

    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> Vec<Decision> {
        let mut steps = Vec::with_capacity(self.members.len());
        match self.verb {
            Verb::Spend | Verb::Check => {
                batch::spend(self.members, states, now, &mut steps);
            }
            Verb::Refund | Verb::Charge | Verb::ChargePartly => {
                batch::refund(self.members, states, now, &mut steps);
            }
        }
        for (write, step) in writes.iter_mut().zip(&steps) {
            *write = written(step);
        }
        steps.iter().map(|step| step.decision).collect()
    }

    fn scripts(&self) -> Vec<Script> {
        let members = self.members.iter();
        members.map(|member| script(&member.operation, member.kind, member.shadow)).collect()
    }

    fn read(&self, replies: &[Vec<i64>]) -> Option<Vec<Decision>> {
        if replies.len() != self.members.len() {
            return None;
        }
        replies.iter().map(|reply| decision_in(reply)).collect()
    }
}

#[inline(never)]
fn run_otherwise(
    operation: &Operation<'_>,
    state: Option<State>,
    now: Timestamp,
    answer: &mut Decision,
) -> Write {
    let step = operation.step(state, now);
    *answer = step.decision;
    written(&step)
}

#[inline(always)]
fn written(step: &algorithm::Step) -> Write {
    match step.after.or(step.mended) {
        None => Write::Keep,
        Some(state) => Write::Put(state, step.lifetime),
    }
}

/// The numbers of an operation: verb, kind, cost; four that make the limit, times in nanoseconds;
/// and whether the limit only watches.
///
/// The four are burst and emission interval; size, drip rate and drip size; or count, period, burst
/// and phase (-1: from the first request).
fn script(operation: &Operation<'_>, kind: Kind, shadow: bool) -> Script {
    let phase = |window: &Window| match window.anchor() {
        Anchor::First => -1,
        Anchor::Aligned(Phase::Fixed(phase)) => phase.get(),
        Anchor::Aligned(Phase::PerKey) => 0,
    };
    let parameters = match &operation.limit {
        Limit::TokenBucket(bucket) => [bucket.burst(), bucket.emission_interval().get(), 0, 0],
        Limit::LeakyBucket(bucket) => {
            [bucket.size(), bucket.drip_rate().get(), bucket.drip_size(), 0]
        }
        Limit::FixedWindow(window) => {
            [window.count(), window.window().period().get(), 0, phase(window.window())]
        }
        Limit::FixedRateWindow(window) => {
            [window.count(), window.window().period().get(), window.burst(), phase(window.window())]
        }
        Limit::Unlimited => [0; 4],
    };
    let [first, second, third, fourth] = parameters;
    let (verb, kind, cost) = (operation.verb as i64, kind as i64, operation.cost.get());
    let numbers = [verb, kind, cost, first, second, third, fourth, i64::from(shadow)];
    Script { rule: operation.limit.algorithm().as_str(), numbers }
}

/// The decision in a server's reply: allowed, remaining, the three waits, and the instant.
fn decision_in(reply: &[i64]) -> Option<Decision> {
    let &[allowed, remaining, retry_after, reset_after, next_token_after, now] = reply else {
        return None;
    };
    Some(Decision {
        allowed: allowed != 0,
        unlimited: false,
        remaining,
        retry_after: Nanos::new(retry_after)?,
        reset_after: Nanos::new(reset_after)?,
        next_token_after: Nanos::new(next_token_after)?,
        now: Timestamp::new(now).ok()?,
    })
}
