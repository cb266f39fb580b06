//! One decision over several buckets, all or nothing.

use crate::engine::algorithm::Step;
use crate::engine::answer::{Answer, Outcome};
use crate::engine::decision::Decision;
use crate::engine::operation::Operation;
use crate::engine::state::{State, Write};
use crate::engine::time::{Now, Timestamp};
use crate::engine::verb::Verb;

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
    /// Does not take part in the decision, and is charged whatever it is: the tokens were used already.
    Charge,
}

impl Kind {
    /// Returns whether a transaction of this kind takes part in the decision.
    #[inline(always)]
    pub const fn decides(self) -> bool {
        matches!(self, Kind::Spend | Kind::Check)
    }

    /// Returns the verb of a transaction of this kind in a batch of `verb`.
    #[inline(always)]
    pub const fn verb(self, verb: Verb) -> Verb {
        match (self, verb) {
            (Kind::Charge, Verb::Spend) => Verb::ChargeAfter,
            _ => verb,
        }
    }
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
        self.kind.decides() && !self.shadow
    }
}

/// Decides a batch at one instant: fills the answers and the writes, which are `Keep` before. `full`
/// holds, for each bucket for which a full store has no space, the instant of its timeline until which
/// that is so; it may be empty. Returns whether the batch is allowed.
///
/// Spends and checks are all or nothing: if a member that decides is denied, none of them is written.
/// Refunds and charges are independent of the others.
pub fn decide(
    members: &[Member<'_>],
    found: &[Option<State>],
    full: &[Option<Timestamp>],
    now: Now,
    answers: &mut [Answer],
    writes: &mut [Write],
) -> bool {
    let mut allowed = true;
    for (index, (member, &state)) in members.iter().zip(found).enumerate() {
        let verb = member.operation.verb;
        let now = now.on(member.operation.limit.timeline());
        answers[index] = match full.get(index) {
            Some(&Some(until)) => Answer::refused(until, now),
            _ => {
                let (allowed, write) = member.operation.apply(state, now);
                if member.kind != Kind::Check || verb.returns() {
                    writes[index] = write;
                }
                Answer::new(state, now, allowed)
            }
        };
        let decides = verb.decides() && member.decides();
        allowed &= answers[index].allowed() || !decides;
    }
    if !allowed {
        let dependent = members.iter().enumerate();
        for (index, member) in dependent.filter(|(_, member)| member.operation.verb.decides()) {
            writes[index] = Write::Keep;
            if member.kind != Kind::Check && answers[index].allowed() {
                // Nothing was taken from this bucket.
                answers[index].outcome = Outcome::Spared;
            }
        }
    }
    allowed
}

/// Decides a batch as [`decide`] does, with each member's step in `steps`.
pub fn steps(
    members: &[Member<'_>],
    states: &[Option<State>],
    now: Now,
    steps: &mut Vec<Step>,
) -> bool {
    let mut answers = vec![Answer::default(); members.len()];
    let mut writes = vec![Write::Keep; members.len()];
    let allowed = decide(members, states, &[], now, &mut answers, &mut writes);
    steps.clear();
    let outcomes = answers.iter().zip(&writes);
    steps.extend(members.iter().zip(outcomes).map(|(member, (answer, write))| {
        let operation = &member.operation;
        let after = write.state().map(|(state, _)| state);
        let lifetime = operation.limit.lifetime(after.or(answer.found));
        Step { decision: operation.numbers(answer), after, lifetime }
    }));
    allowed
}

/// Returns the index of the strictest decision among those that decide, the last of equal ones;
/// `None` if none decides.
pub fn strictest(decisions: impl Iterator<Item = (bool, Decision)>) -> Option<usize> {
    let mut found: Option<(usize, Decision)> = None;
    for (index, (decides, decision)) in decisions.enumerate() {
        if decides && found.is_none_or(|(_, strictest)| !strictest.is_stricter_than(&decision)) {
            found = Some((index, decision));
        }
    }
    found.map(|(index, _)| index)
}
