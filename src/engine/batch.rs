//! Several buckets in one decision: all or nothing.

use crate::engine::algorithm::Step;
use crate::engine::decision::Decision;
use crate::engine::operation::Operation;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// What a transaction's part in the decision is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Decides, and is spent when all that decide allow.
    #[default]
    Spend,
    /// Decides, and is never spent.
    Check,
    /// Does not decide; is spent if it has room when the others allow, else skipped.
    SpendOnly,
}

/// One transaction about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// What is done to the bucket.
    pub operation: Operation<'a>,
    /// Its part in the decision.
    pub kind: Kind,
    /// Whether the limit only watches: it is counted, and never decides.
    pub shadow: bool,
}

impl Member<'_> {
    /// Whether its denial denies all.
    pub fn decides(&self) -> bool {
        self.kind != Kind::SpendOnly && !self.shadow
    }
}

/// Decides several spends at one instant; gives each member's decision, and puts into `steps` what
/// each may write.
///
/// If one that decides is denied, nothing is spent: the decisions of the others show their buckets
/// as they stand.
pub fn spend(
    members: &[Member<'_>],
    states: &[Option<State>],
    now: Timestamp,
    steps: &mut Vec<Step>,
) -> bool {
    steps.clear();
    steps.extend(
        members.iter().zip(states).map(|(member, &state)| member.operation.step(state, now)),
    );
    all_or_nothing(members, states, now, steps)
}

/// Completes the steps of a batch: if one that decides is denied, nothing is spent. Returns whether
/// the batch is allowed.
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
                // Nothing was taken from this bucket, so an identical request could be allowed at
                // once.
                let peek = member.operation.peek(state, now);
                step.decision = Decision { allowed: true, retry_after: Nanos::ZERO, ..peek };
            }
        }
    }
    allowed
}

/// Refunds several buckets independently; a check-only member counts as a refund of
/// nothing.
pub fn refund(
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

/// The place of the strictest of the decisions, among those that decide; the later of equals;
/// `None` if none decides.
pub fn strictest<'a>(decisions: impl Iterator<Item = (bool, &'a Decision)>) -> Option<usize> {
    let mut found: Option<(usize, &Decision)> = None;
    for (place, (decides, decision)) in decisions.enumerate() {
        if decides && found.is_none_or(|(_, strictest)| !strictest.is_stricter_than(decision)) {
            found = Some((place, decision));
        }
    }
    found.map(|(place, _)| place)
}
