//! The token bucket. Its state is the TAT, the instant at which the bucket will be full again.
//!
//! Source: GCRA in its virtual scheduling form (ITU-T I.371, annex A), with the increment
//! multiplied by the cost.

use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, Repayment, part, times,
};
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::{Algorithm, Overdraft, Step};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::divisor::Divisor;
use crate::engine::limit_error::{LimitError, MAX_PERIOD};
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timestamp};

/// Holds up to `burst` tokens; `count` are added per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    burst: i64,
    count: i64,
    period: Nanos,
    emission_interval: Nanos,
    burst_offset: Nanos,
    /// The furthest that a TAT can be ahead of the clock: a full spend, plus as much again by
    /// overdrafts. A later one is clamped.
    max_lead: Nanos,
    /// Divides by the emission interval, as every decision does.
    divisor: Divisor,
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
        // Rounded down: the limit may be looser than requested by less than a nanosecond per token,
        // but never stricter.
        let emission_interval = period.get() / count;
        let kept = i128::from(emission_interval) * i128::from(count);
        if (i128::from(period.get()) - kept) * 1000 > kept {
            return Err(LimitError::TooFast { count, period });
        }
        let burst_offset = emission_interval
            .checked_mul(burst)
            .filter(|&offset| offset <= MAX_PERIOD.get())
            .ok_or(LimitError::TooSlow { burst, count, period })?;
        Ok(TokenBucket {
            burst,
            count,
            period,
            emission_interval: Nanos::clamped(emission_interval),
            burst_offset: Nanos::clamped(burst_offset),
            max_lead: Nanos::clamped(burst_offset).saturating_mul(2),
            divisor: Divisor::new(emission_interval),
        })
    }

    /// Number of tokens in a full bucket.
    pub const fn burst(&self) -> i64 {
        self.burst
    }

    /// Number of tokens added per period.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// Time in which `count` tokens are added.
    pub const fn period(&self) -> Nanos {
        self.period
    }

    /// Time to add one token.
    pub const fn emission_interval(&self) -> Nanos {
        self.emission_interval
    }

    /// Time for an empty bucket to refill.
    pub const fn burst_offset(&self) -> Nanos {
        self.burst_offset
    }

    /// Returns the latest TAT that is valid at `now`.
    #[inline(always)]
    fn latest_tat(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(self.max_lead)
    }

    /// Returns whether [`Algorithm::spend`] would allow the cost, and the state it would write,
    /// without computing a decision. `None` if the stored TAT is later than valid at `now`.
    #[inline(always)]
    pub(crate) fn admit(
        &self,
        cost: Cost,
        state: Option<State>,
        now: Timestamp,
    ) -> Option<(bool, State)> {
        let stored = state.map_or(now, State::instant);
        if stored > self.latest_tat(now) {
            return None;
        }
        let tat = stored.max(now);
        // Cannot overflow; see `spend`.
        let increment = self.emission_interval.get() * cost.get();
        let allowed = tat.get() - now.get() <= self.burst_offset.get() - increment;
        Some((allowed, State::from_instant(tat.saturating_add(Nanos::clamped(increment)))))
    }

    /// Returns the decision for a bucket that is full in `missing` nanoseconds and has `room`
    /// nanoseconds' worth of tokens left.
    #[inline(always)]
    fn decision(
        &self,
        allowed: bool,
        room: i64,
        missing: i64,
        retry_after: i64,
        now: Timestamp,
    ) -> Decision {
        let remaining = if room > 0 { self.divisor.divide(room) } else { 0 };
        // The next token is there once only `burst - remaining - 1` intervals are missing.
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

impl Description for TokenBucket {
    #[inline]
    fn name(&self) -> AlgorithmName {
        AlgorithmName::TokenBucket
    }

    fn fields(&self) -> Fields {
        vec![
            ("burst", FieldValue::Whole(self.burst)),
            ("count", FieldValue::Whole(self.count)),
            ("period", FieldValue::Time(self.period)),
        ]
    }

    fn summary(&self) -> &'static str {
        if self.burst == self.count {
            "{count} per {period}"
        } else {
            "{count} per {period}, {burst} at once"
        }
    }

    fn capacity(&self) -> i64 {
        self.burst
    }

    fn time_to_refill(&self) -> Nanos {
        self.burst_offset
    }

    fn refill(&self) -> Refill {
        Refill { count: 1, interval: self.emission_interval, is_evenly_spaced: false }
    }

    fn interval(&self) -> Nanos {
        self.period
    }

    /// A full bucket, plus the tokens added during the interval.
    fn worst_in(&self, interval: Nanos) -> i64 {
        self.burst.saturating_add(interval.get() / self.emission_interval.get())
    }

    fn share(&self, processes: i64) -> Result<TokenBucket, LimitError> {
        let period = times("period", self.period, processes, 1)?;
        TokenBucket::new(part(self.burst, processes), self.count, period)
    }

    fn repayment(&self, _cost: i64) -> Option<Repayment> {
        Some(Repayment { interval: Some(self.emission_interval) })
    }
}

impl Algorithm for TokenBucket {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.burst
    }

    #[inline(always)]
    fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let mut repaired = None;
        let tat = match state {
            None => now,
            Some(state) => {
                let latest = self.latest_tat(now);
                let tat = state.instant();
                if tat > latest {
                    repaired = Some(State::from_instant(latest)).filter(|_| cost > Cost::ZERO);
                    latest
                } else {
                    tat.max(now)
                }
            }
        };
        // Cannot overflow: `missing` is at most 2B <= 2^63 - 1, the maximum TAT, and the increment
        // is at most B, the burst offset.
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
            repaired,
            lifetime: Lifetime::INSTANT,
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let stored = state.map_or(now, State::instant).max(now);
        let increment = self.emission_interval.get() * cost.get();
        // Subtracted from the TAT as stored: time beyond the latest valid TAT is returned first.
        let tat = Timestamp::clamped(stored.get() - increment).max(now);
        let missing = tat.min(self.latest_tat(now)).get() - now.get();
        let moved = tat != stored;
        Step {
            decision: self.decision(moved, self.burst_offset.get() - missing, missing, 0, now),
            after: Some(State::from_instant(tat)).filter(|_| moved),
            repaired: None,
            lifetime: Lifetime::INSTANT,
        }
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step {
        let (latest, stored) = (self.latest_tat(now), state.map_or(now, State::instant));
        let tat = stored.max(now).min(latest);
        // Rounded down, because only whole tokens can be overdrawn.
        let most = (latest.get() - tat.get()) / self.emission_interval.get();
        let taken = overdraft.taken(cost.get(), most);
        let allowed = taken == cost.get();
        // Cannot overflow: the TAT does not exceed the latest valid one.
        let increment = Nanos::clamped(taken * self.emission_interval.get());
        let after = tat.saturating_add(increment);
        let missing = after.get() - now.get();
        let owed = missing - self.burst_offset.get();
        let retry_after = if allowed || overdraft == Overdraft::Partial {
            owed
        } else {
            // The cost of an all-or-nothing charge is at most the burst.
            owed - self.burst_offset.get() + self.emission_interval.get() * cost.get()
        };
        let repaired = Some(State::from_instant(latest)).filter(|_| stored > latest);
        Step {
            decision: self.decision(
                allowed,
                self.burst_offset.get() - missing,
                missing,
                retry_after,
                now,
            ),
            after: Some(State::from_instant(after)).filter(|_| taken > 0),
            repaired: repaired.filter(|_| cost > Cost::ZERO),
            lifetime: Lifetime::INSTANT,
        }
    }

    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State> {
        // Tokens refill in the order in which they were spent, so this spend occupies the last part
        // of the time before the TAT that it wrote.
        let increment = self.emission_interval.get() * cost.get();
        let left = charged.instant().get().saturating_sub(now.get()).clamp(0, increment);
        let found = found.instant();
        let tat = Timestamp::clamped(found.get() - left).max(now);
        Some(State::from_instant(tat)).filter(|_| tat < found)
    }

    fn state_of(&self, peek: &Decision) -> State {
        State::from_instant(peek.now.saturating_add(peek.reset_after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithm::testing::{MILLI, at, cost, numbers};

    const SECOND: i64 = 1000 * MILLI;

    fn bucket(burst: i64, count: i64, period: i64) -> Result<TokenBucket, LimitError> {
        TokenBucket::new(burst, count, Nanos::clamped(period))
    }

    #[test]
    fn an_invalid_state_is_clamped_to_two_bursts() {
        let bucket = bucket(4, 2, SECOND).unwrap();
        let now = Timestamp::clamped(10 * SECOND);
        let word = |seconds: i64| Some(State::from_instant(Timestamp::clamped(seconds * SECOND)));
        // Two bursts ahead is the latest TAT that calls of this limit can write.
        let step = bucket.spend(cost(1), word(14), now);
        assert_eq!((step.after, step.repaired), (None, None));
        assert_eq!(numbers(&step.decision), (false, 0, 2500, 4000, 2500));
        // A year ahead gives the same numbers, and is repaired by a spend of at least one token.
        let later = word(31_557_600);
        assert_eq!(bucket.spend(Cost::ZERO, later, now).repaired, None);
        let step = bucket.spend(cost(1), later, now);
        assert_eq!((step.after, step.repaired), (None, word(14)));
        assert_eq!(numbers(&step.decision), (false, 0, 2500, 4000, 2500));
        // With the repaired state, `retry_after` is exact.
        let early = Timestamp::clamped(12_500 * MILLI - 1);
        assert!(!bucket.spend(cost(1), step.repaired, early).decision.allowed);
        let on_time = at(12_500);
        assert!(bucket.spend(cost(1), step.repaired, on_time).decision.allowed);
    }

    #[test]
    fn giving_back_a_spend_returns_only_tokens_that_have_not_refilled() {
        // One token every 500 ms.
        let bucket = bucket(4, 2, SECOND).unwrap();
        let state = |millis: i64| State::from_instant(at(millis));
        // Tokens, the TAT written by the spend, the TAT found, now, and the TAT to write (ms).
        for (tokens, charged, found, now, expected) in [
            // No other call: the state before the spend.
            (2, 1500, 1500, 0, Some(500)),
            (2, 1500, 1500, 700, Some(700)),
            (1, 1500, 1500, 1499, Some(1499)),
            // All tokens have refilled.
            (2, 1500, 1500, 1500, None),
            (2, 1500, 1500, 9000, None),
            // Later spends are kept.
            (2, 1500, 2500, 500, Some(1500)),
            (2, 1500, 2500, 1200, Some(2200)),
            (2, 1500, 2500, 1600, None),
            // After refunds by others the bucket fills up first.
            (2, 1500, 1000, 200, Some(200)),
            (2, 1500, 500, 600, None),
            (0, 1500, 1500, 0, None),
        ] {
            let now = self::at(now);
            let after = bucket.give_back(cost(tokens), state(charged), state(found), now);
            assert_eq!(after, expected.map(state), "{tokens} of {charged} at {now:?}");
        }
    }

    #[test]
    fn rounding_the_interval_may_change_the_rate_by_at_most_a_thousandth() {
        assert_eq!(bucket(1, 1000, 1001).unwrap().emission_interval().get(), 1);
        assert!(matches!(bucket(1, 1000, 1002), Err(LimitError::TooFast { .. })));
        // Less than a nanosecond per token.
        assert!(matches!(bucket(1, 1000, 999), Err(LimitError::TooFast { .. })));
        assert!(matches!(bucket(1, i64::MAX, 1), Err(LimitError::TooFast { .. })));
        assert!(matches!(bucket(1, 1, 0), Err(LimitError::NoTime { field: "period" })));
    }

    #[test]
    fn a_bucket_must_refill_within_2_to_the_62_nanoseconds() {
        assert_eq!(bucket(1, 1, 1 << 62).unwrap().burst_offset(), MAX_PERIOD);
        assert_eq!(bucket(1 << 62, 1, 1).unwrap().burst_offset(), MAX_PERIOD);
        for (burst, period) in [(1, (1 << 62) + 1), ((1 << 62) + 1, 1), (i64::MAX, i64::MAX)] {
            let refused = bucket(burst, 1, period);
            assert!(matches!(refused, Err(LimitError::TooSlow { .. })), "{burst} in {period}");
        }
    }

    proptest! {
        #[test]
        fn admit_agrees_with_spend(
            (burst, count) in (1_i64..100, 1_i64..100),
            tokens in 0_i64..100,
            now in any::<i64>(),
            lead in -1_000_000_i64..250_000_000,
        ) {
            let bucket = bucket(burst, count, 1_000_000).unwrap();
            let (cost, now) = (cost(tokens.min(burst)), Timestamp::clamped(now));
            let tat = Timestamp::clamped(now.get().saturating_add(lead));
            let state = Some(State::from_instant(tat)).filter(|_| lead != 0);
            let step = bucket.spend(cost, state, now);
            let Some((allowed, after)) = bucket.admit(cost, state, now) else {
                prop_assert!(step.repaired.is_some() || cost == Cost::ZERO);
                return Ok(());
            };
            prop_assert_eq!(step.repaired, None);
            prop_assert_eq!(allowed, step.decision.allowed);
            let written = allowed && cost > Cost::ZERO;
            prop_assert_eq!(step.after, written.then_some(after));
        }
    }
}
