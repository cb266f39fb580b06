//! What a store found and did.

use crate::engine::state::State;
use crate::engine::time::Timestamp;

/// What became of a call.
// As wide as the other fields of an answer: copying padding beside a byte that was just written stalls. With the
// order of fields in `Entry`, `Rule`, `BoundLimit` and `TokenBucket`, it saves 6 of the 83 ns of a spend.
#[repr(u64)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The limit denies it, or a refund found nothing to return.
    #[default]
    Denied,
    /// The limit allows it.
    Allowed,
    /// The limit allows it, but another one of the batch denies, so nothing was taken.
    Spared,
    /// A full store has no space for the bucket before the instant of `found`.
    Refused,
}

/// What a store found and did. Everything else about a decision follows from it and the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The state before the call.
    pub found: Option<State>,
    /// The instant of the decision.
    pub now: Timestamp,
    /// What became of the call.
    pub outcome: Outcome,
}

impl Answer {
    /// Returns the answer to a call that the limit allows or denies.
    #[inline(always)]
    pub fn new(found: Option<State>, now: Timestamp, allowed: bool) -> Answer {
        let outcome = if allowed { Outcome::Allowed } else { Outcome::Denied };
        Answer { found, now, outcome }
    }

    /// Returns the answer for a bucket for which a full store has no space before `until`.
    pub fn refused(until: Timestamp, now: Timestamp) -> Answer {
        let found = Some(State::from_instant(until));
        Answer { found, now, outcome: Outcome::Refused }
    }

    /// Returns whether the limit allows the call.
    #[inline(always)]
    pub fn allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed | Outcome::Spared)
    }
}
