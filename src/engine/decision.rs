//! The outcome of a call.

use crate::engine::time::{Nanos, Timestamp};

/// The outcome of one call on one bucket, with every number that its response headers need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the limit allows the request; for a refund, whether any token was returned.
    pub allowed: bool,
    /// Whether no limit applies.
    pub unlimited: bool,
    /// Tokens left after this decision, at least 0.
    pub remaining: i64,
    /// Time until an identical request could be allowed, if nothing else is spent; 0 if now.
    pub retry_after: Nanos,
    /// Time until the bucket is full, if nothing else is spent.
    pub reset_after: Nanos,
    /// Time until `remaining` rises by one; 0 if the bucket is full. For a fixed window, the time
    /// until it ends.
    pub next_token_after: Nanos,
    /// The instant of the decision.
    pub now: Timestamp,
}

impl Decision {
    /// Returns the decision for a request without a limit.
    pub const fn unlimited(now: Timestamp) -> Decision {
        Decision {
            allowed: true,
            unlimited: true,
            remaining: i64::MAX,
            retry_after: Nanos::ZERO,
            reset_after: Nanos::ZERO,
            next_token_after: Nanos::ZERO,
            now,
        }
    }

    /// Returns the denial of a new bucket for which a full store has no space before `until`.
    pub fn refused(until: Timestamp, now: Timestamp) -> Decision {
        let wait = Nanos::clamped(until.get().saturating_sub(now.get()).max(1));
        Decision {
            allowed: false,
            unlimited: false,
            remaining: 0,
            retry_after: wait,
            reset_after: wait,
            next_token_after: wait,
            now,
        }
    }

    /// Returns whether this decision is stricter than `other`: denied rather than allowed, then the
    /// longer `retry_after`, then the smaller `remaining`.
    pub fn is_stricter_than(&self, other: &Decision) -> bool {
        let key = |decision: &Decision| {
            (!decision.allowed, decision.retry_after, -i128::from(decision.remaining))
        };
        key(self) > key(other)
    }
}
