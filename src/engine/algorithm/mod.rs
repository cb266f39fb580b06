//! One file for each algorithm. Each says what a limit of its kind is made of, and how it decides.

pub mod fixed_rate_window;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod name;
pub mod window;

use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;

/// What one call makes of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer.
    pub decision: Decision,
    /// The state after the call, where the call changes it; `None` when denied.
    pub after: Option<State>,
    /// The repaired state, if it had to be repaired before use.
    pub repaired: Option<State>,
    /// How long a state of this limit is worth keeping.
    pub lifetime: Lifetime,
}

impl Step {
    /// The step of a call that repairs nothing.
    pub(crate) fn new(decision: Decision, after: Option<State>, lifetime: Lifetime) -> Step {
        Step { decision, after, repaired: None, lifetime }
    }

    /// The step where no limit applies.
    pub const fn unlimited(now: Timestamp) -> Step {
        let decision = Decision::unlimited(now);
        Step { decision, after: None, repaired: None, lifetime: Lifetime::INSTANT }
    }
}

/// What becomes of a charge that a bucket cannot owe as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overdraft {
    /// Nothing is taken.
    AllOrNothing,
    /// As much is taken as the bucket can owe.
    Partial,
}

impl Overdraft {
    /// What is taken of `cost` from a bucket that has or can owe `most`.
    fn taken(self, cost: i64, most: i64) -> i64 {
        match self {
            _ if cost <= most => cost,
            Overdraft::AllOrNothing => 0,
            Overdraft::Partial => most.max(0),
        }
    }
}

/// How a kind of limit decides. Pure: may be called again with the same values and gives the same
/// step.
///
/// An implementer guarantees, for every limit, cost, state and instant:
///
/// 1. A denied call changes nothing (except to repair a state that no call of this limit can have left).
/// 2. One nanosecond before `retry_after` the same call is denied; at it, allowed, if nothing else
///    is spent.
/// 3. Never more than the stated burst is allowed at one instant.
/// 4. A call with cost 0 follows the same rule and never writes.
/// 5. From `lifetime.end_of(state)` on, the state that the step leaves to be written decides as no
///    state does. (One that was written before has the lifetime of the step that left it.)
/// 6. An earlier `now` never gives tokens.
/// 7. Nothing panics: sums that could pass the end saturate.
/// 8. A charge overdraws a bucket by at most what a full one holds, and a bucket that is overdrawn
///    denies every spend, of nothing too.
pub(crate) trait Algorithm {
    /// The highest cost that can ever be allowed, in tokens.
    fn max_cost(&self) -> i64;

    /// Takes `cost` if the bucket has it.
    fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step;

    /// Returns `cost` tokens, never beyond a full bucket.
    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step;

    /// Takes `cost`, though the bucket may not have it yet. `retry_after` is then the wait until
    /// the bucket is no longer overdrawn; if nothing was taken, until the same charge would be.
    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step;

    /// Undoes a spend of `cost` that wrote `charged`, in a bucket whose state is now `found`; returns
    /// the state to write, `None` if there is nothing left to return.
    ///
    /// `now` must be read after `found`. At most what the spend still occupies is returned: the
    /// bucket then admits no more than if the spend had never happened. [`Algorithm::refund`] does
    /// not promise that, because it also returns tokens that have come back since. As after a
    /// refund, the window or the ticks that the spend started stay as they are.
    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State>;

    /// What a bucket remembers whose peek (a check of nothing) was `peek`. Where that does not tell
    /// all, what it remembers is no less used up.
    fn state_of(&self, peek: &Decision) -> State;
}

#[cfg(test)]
mod play {
    //! What the tests of the algorithms share: calls at instants in milliseconds.

    use super::*;
    use crate::engine::limit::Limit;
    use crate::engine::time::Nanos;

    pub(super) const MILLI: i64 = 1_000_000;

    /// Allowed, remaining, retry after, reset after and next token after (ms).
    pub(super) type Numbers = (bool, i64, i64, i64, i64);

    pub(super) fn cost(tokens: i64) -> Cost {
        Limit::Unlimited.cost(tokens).expect("a cost")
    }

    pub(super) fn at(millis: i64) -> Timestamp {
        Timestamp::clamped(millis * MILLI)
    }

    /// A tally, and the instant of it.
    pub(super) fn tally((used, millis): (u64, i64)) -> State {
        State::from_tally(at(millis), used)
    }

    pub(super) fn numbers(decision: &Decision) -> Numbers {
        let millis = |length: Nanos| length.get() / MILLI;
        let Decision { allowed, remaining, .. } = *decision;
        let [retry, reset, next] =
            [decision.retry_after, decision.reset_after, decision.next_token_after].map(millis);
        (allowed, remaining, retry, reset, next)
    }

    /// Plays calls on one bucket: at (ms), a cost with its kind of call, and the expected numbers.
    pub(super) fn calls<C: Copy + std::fmt::Debug>(
        step: impl Fn(C, Option<State>, Timestamp) -> Step,
        calls: &[(i64, C, Numbers)],
    ) -> Option<State> {
        calls.iter().fold(None, |state, &(millis, call, expected)| {
            let step = step(call, state, at(millis));
            assert_eq!(numbers(&step.decision), expected, "{call:?} at {millis} ms");
            step.after.or(state)
        })
    }

    pub(super) fn spends(rules: &impl Algorithm, spends: &[(i64, i64, Numbers)]) {
        calls(|tokens, state, now| rules.spend(cost(tokens), state, now), spends);
    }

    /// Tokens, the tally that a spend of them wrote, the one found, now (ms), and the one to write.
    type GiveBack = (i64, (u64, i64), (u64, i64), i64, Option<(u64, i64)>);

    pub(super) fn give_backs(rules: &impl Algorithm, cases: &[GiveBack]) {
        for &(tokens, charged, found, now, expected) in cases {
            let after = rules.give_back(cost(tokens), tally(charged), tally(found), at(now));
            assert_eq!(after, expected.map(tally), "{tokens} at {now} ms");
        }
    }
}
