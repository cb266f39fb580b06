//! The token bucket, kept as one instant: the TAT, at which the bucket will be full again.
//!
//! Source: GCRA in its virtual scheduling form (ITU-T I.371, annex A), with the increment
//! multiplied by the cost.

use crate::engine::algorithm::{Algorithm, Step};
use crate::engine::decision::Decision;
use crate::engine::limit::{Cost, LONGEST, LimitError};
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timestamp};

/// `burst` tokens at most, `count` more in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    burst: i64,
    count: i64,
    period: Nanos,
    emission_interval: Nanos,
    burst_offset: Nanos,
}

impl TokenBucket {
    pub(crate) fn new(burst: i64, count: i64, period: Nanos) -> Result<TokenBucket, LimitError> {
        for (field, found) in [("burst", burst), ("count", count)] {
            if found < 1 {
                return Err(LimitError::TooSmall { field, least: 1, found });
            }
        }
        if period == Nanos::ZERO {
            return Err(LimitError::NoTime { field: "period" });
        }
        // Rounded down: a limit may be looser than asked by under a nanosecond a token, never
        // stricter.
        let emission_interval = period.get() / count;
        let kept = i128::from(emission_interval) * i128::from(count);
        if (i128::from(period.get()) - kept) * 1000 > kept {
            return Err(LimitError::TooFast { count, period });
        }
        let burst_offset = emission_interval
            .checked_mul(burst)
            .filter(|&offset| offset <= LONGEST.get())
            .ok_or(LimitError::TooSlow { burst, count, period })?;
        Ok(TokenBucket {
            burst,
            count,
            period,
            emission_interval: Nanos::clamped(emission_interval),
            burst_offset: Nanos::clamped(burst_offset),
        })
    }

    /// Tokens a full bucket holds.
    pub const fn burst(&self) -> i64 {
        self.burst
    }

    /// Tokens added in each period.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The time in which `count` tokens are added.
    pub const fn period(&self) -> Nanos {
        self.period
    }

    /// The time to add one token.
    pub const fn emission_interval(&self) -> Nanos {
        self.emission_interval
    }

    /// The time for an empty bucket to fill.
    pub const fn burst_offset(&self) -> Nanos {
        self.burst_offset
    }

    /// The latest TAT that a call at `now` believes: a full spend, and as much again that settling
    /// may overdraw.
    #[inline(always)]
    fn latest_tat(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(Nanos::clamped(self.burst_offset.get().saturating_mul(2)))
    }

    /// The decision about a bucket that lacks `missing` of being full, `room` of which could still
    /// be spent.
    #[inline(always)]
    fn decision(
        &self,
        allowed: bool,
        room: i64,
        missing: i64,
        retry_after: i64,
        now: Timestamp,
    ) -> Decision {
        let remaining = if room > 0 { room / self.emission_interval.get() } else { 0 };
        // With `remaining` tokens left, all but `burst - remaining - 1` intervals of what is
        // missing must pass.
        let next = missing - (self.burst - remaining - 1) * self.emission_interval.get();
        Decision {
            allowed,
            unlimited: false,
            remaining,
            retry_after: Nanos::clamped(retry_after),
            reset_after: Nanos::clamped(missing),
            next_token_after: if missing > 0 { Nanos::clamped(next) } else { Nanos::ZERO },
            now,
        }
    }
}

impl Algorithm for TokenBucket {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.burst
    }

    #[inline(always)]
    fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let mut mended = None;
        let tat = match state {
            None => now,
            Some(state) => {
                let latest = self.latest_tat(now);
                let tat = state.instant();
                if tat > latest {
                    mended = Some(State::from_instant(latest)).filter(|_| cost > Cost::ZERO);
                    latest
                } else {
                    tat.max(now)
                }
            }
        };
        // No overflow: missing is at most 2B <= 2^63 - 1 (a TAT ends there), and the increment is
        // at most B.
        let missing = tat.get() - now.get();
        let increment = self.emission_interval.get() * cost.get();
        let room = self.burst_offset.get() - missing - increment;
        let allowed = room >= 0;
        let (left, missing, retry_after) = if allowed {
            (room, missing + increment, increment - room)
        } else {
            (self.burst_offset.get() - missing, missing, -room)
        };
        let after = State::from_instant(tat.saturating_add(Nanos::clamped(increment)));
        Step {
            decision: self.decision(allowed, left, missing, retry_after, now),
            after: if allowed && cost > Cost::ZERO { Some(after) } else { None },
            mended,
            lifetime: Lifetime::INSTANT,
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let stored = state.map_or(now, State::instant).max(now);
        let increment = self.emission_interval.get() * cost.get();
        // On the TAT as stored: what is beyond belief is given back first.
        let tat = Timestamp::clamped(stored.get() - increment).max(now);
        let missing = tat.min(self.latest_tat(now)).get() - now.get();
        let moved = tat != stored;
        Step {
            decision: self.decision(moved, self.burst_offset.get() - missing, missing, 0, now),
            after: Some(State::from_instant(tat)).filter(|_| moved),
            mended: None,
            lifetime: Lifetime::INSTANT,
        }
    }
}
