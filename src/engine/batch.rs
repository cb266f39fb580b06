//! One decision over several buckets, all or nothing.

use crate::engine::algorithm::Step;
use crate::engine::decision::Decision;
use crate::engine::operation::Operation;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// The role of a transaction in the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Takes part in the decision, and is spent if the batch is allowed.
    #[default]
    Spend,
    /// Takes part in the decision, and is never spent.
    Check,
    /// Does not take part in the decision. If the batch is allowed, it is spent where the bucket
    /// has enough tokens, and skipped otherwise.
    SpendOnly,
}

/// One transaction of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// The operation on the bucket.
    pub operation: Operation<'a>,
    /// Its role in the decision.
    pub kind: Kind,
    /// Whether the limit is in shadow mode: it is counted and never denies.
    pub shadow: bool,
}

impl Member<'_> {
    /// Returns whether its denial denies the batch.
    pub fn decides(&self) -> bool {
        self.kind != Kind::SpendOnly && !self.shadow
    }
}

/// Decides a batch of spends; returns whether it is allowed, and each member's step in `steps`.
pub fn spend(
    members: &[Member<'_>],
    states: &[Option<State>],
    now: Timestamp,
    steps: &mut Vec<Step>,
) -> bool {
    apply(members, states, now, steps);
    all_or_nothing(members, states, now, steps)
}

/// Applies the operations independently of each other, as for refunds.
pub fn apply(
    members: &[Member<'_>],
    states: &[Option<State>],
    now: Timestamp,
    steps: &mut Vec<Step>,
) {
    steps.clear();
    steps.extend(
        members.iter().zip(states).map(|(member, &state)| member.operation.step(state, now)),
    );
}

/// Revises the steps of a batch: if a member that decides is denied, nothing is spent, and the
/// decisions of the others show their unchanged buckets. Returns whether the batch is allowed.
pub fn all_or_nothing(
    members: &[Member<'_>],
    states: &[Option<State>],
    now: Timestamp,
    steps: &mut [Step],
) -> bool {
    let allowed = members
        .iter()
        .zip(&*steps)
        .all(|(member, step)| step.decision.allowed || !member.decides());
    for ((member, &state), step) in members.iter().zip(states).zip(steps.iter_mut()) {
        if member.kind == Kind::Check {
            (step.after, step.repaired) = (None, None);
        } else if !allowed {
            step.after = None;
            if step.decision.allowed {
                // Nothing was taken from this bucket, so an identical request could be allowed
                // immediately.
                let peek = member.operation.peek(state, now);
                step.decision = Decision { allowed: true, retry_after: Nanos::ZERO, ..peek };
            }
        }
    }
    allowed
}

/// Returns the index of the strictest decision among those that decide, the last of equal ones;
/// `None` if none decides.
pub fn strictest<'a>(decisions: impl Iterator<Item = (bool, &'a Decision)>) -> Option<usize> {
    let mut found: Option<(usize, &Decision)> = None;
    for (index, (decides, decision)) in decisions.enumerate() {
        if decides && found.is_none_or(|(_, strictest)| !strictest.is_stricter_than(decision)) {
            found = Some((index, decision));
        }
    }
    found.map(|(index, _)| index)
}
