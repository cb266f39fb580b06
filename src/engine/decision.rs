//! The answer.

use crate::engine::time::{Nanos, Timestamp};

/// The answer to one call about one bucket, with every number that a response header needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the limit allows the request (of a refund: whether anything was given back).
    pub allowed: bool,
    /// Whether no limit applies.
    pub unlimited: bool,
    /// Tokens left after this decision, 0 or more.
    pub remaining: i64,
    /// The wait until an identical request could be allowed, if nothing else is spent; 0 if now.
    pub retry_after: Nanos,
    /// The wait until the bucket is full, if nothing else is spent.
    pub reset_after: Nanos,
    /// The wait until one token more than `remaining` can be spent; 0 when none is to come. For a
    /// fixed window its end.
    pub next_token_after: Nanos,
    /// The instant at which it was decided.
    pub now: Timestamp,
}

impl Decision {
    /// The decision where no limit applies.
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

    /// The decision on a bucket that a full store has no room for before `until`.
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

    /// Whether this decision goes before `other` when several are answered as one.
    ///
    /// Denied before allowed, then the longer `retry_after`, then the fewer `remaining`; equals do
    /// not go before each other.
    pub fn is_stricter_than(&self, other: &Decision) -> bool {
        let key = |decision: &Decision| {
            (!decision.allowed, decision.retry_after, -i128::from(decision.remaining))
        };
        key(self) > key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_then_the_longer_wait_then_the_fewer_left() {
        let base = Decision::unlimited(Timestamp::ORIGIN);
        let denied = Decision { allowed: false, ..base };
        let waits = Decision { retry_after: Nanos::SECOND, ..base };
        let fewer = Decision { remaining: 3, ..base };
        let ordered = [denied, waits, fewer, base];
        for (place, decision) in ordered.iter().enumerate() {
            for (other_place, other) in ordered.iter().enumerate() {
                assert_eq!(decision.is_stricter_than(other), place < other_place);
            }
        }
    }
}
