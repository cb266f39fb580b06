//! The token bucket. Its state is the TAT, the instant at which the bucket will be full again.
//!
//! Source: GCRA in its virtual scheduling form (ITU-T I.371, annex A), with the increment
//! multiplied by the cost.

use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, Repayment, part, times,
};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::{Algorithm, Definition, Limit, Overdraft, RateAlgorithm};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::divisor::Divisor;
use crate::engine::limit_error::{LimitError, MAX_PERIOD};
use crate::engine::state::{Lifetime, State, StateKind, Write};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::{Effect, Verb};

/// Holds up to `burst` tokens; `count` are added per `period`.
// What a spend reads comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    burst: i64,
    emission_interval: Nanos,
    burst_offset: Nanos,
    count: i64,
    period: Nanos,
    /// Divides by the emission interval: one decision of many takes 5 % less time than with a division.
    divisor: Divisor,
}

impl TokenBucket {
    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("burst", ParameterKind::Whole),
                Parameter::required("count", ParameterKind::Whole),
                Parameter::required("period", ParameterKind::Time),
            ],
            build: |values| {
                let (burst, count) = (values.required("burst")?, values.required("count")?);
                TokenBucket::new(burst, count, values.required("period")?).map(Limit::from)
            },
        },
        older: None,
        shape: Some(Shape { burst: Some("burst"), rate: "count", period: Some("period") }),
        state: StateKind::Instant,
    };

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
}

impl Limit {
    /// Returns a token bucket that holds `burst` tokens and gets `count` more per `period`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, if rounding to whole nanoseconds would change the
    /// rate by more than 0.1 %, or if an empty bucket would take longer than 2^62 ns to refill.
    pub fn token_bucket(burst: i64, count: i64, period: Nanos) -> Result<Limit, LimitError> {
        TokenBucket::new(burst, count, period).map(Limit::from)
    }
}

impl Description for TokenBucket {
    fn fields(&self) -> Fields {
        vec![
            ("burst", FieldValue::Whole(self.burst)),
            ("count", FieldValue::Whole(self.count)),
            ("period", FieldValue::Time(self.period)),
        ]
    }

    fn wire(&self, _: Verb, cost: i64, _: Timestamp) -> [i64; 6] {
        // At most twice the burst offset, which is at most 2^62.
        let time = |tokens| self.emission_interval.get().saturating_mul(tokens);
        let [cost, burst, token] = [cost, self.burst, 1].map(time);
        let (seconds, nanos) = (|time| time / 1_000_000_000, |time| time % 1_000_000_000);
        [seconds(cost), nanos(cost), seconds(burst), nanos(burst), seconds(token), nanos(token)]
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

    fn keeping(self, keep: i64) -> TokenBucket {
        let kept = self.emission_interval.get() * keep;
        let burst_offset = Nanos::clamped(self.burst_offset.get() - kept);
        TokenBucket { burst: self.burst - keep, burst_offset, ..self }
    }

    #[inline(always)]
    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let tat = found.map_or(now, State::instant).max(now);
        // Cannot overflow: the increment is at most B, the burst offset.
        let increment = self.emission_interval.get() * cost.get();
        let allowed = tat.get() - now.get() <= self.burst_offset.get() - increment;
        let after = State::from_instant(tat.saturating_add(Nanos::clamped(increment)));
        (allowed, Write::put_if(allowed && cost > Cost::ZERO, after, Lifetime::INSTANT))
    }

    #[inline]
    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        let missing = after.map_or(now, State::instant).max(now).get() - now.get();
        // Below 0 if the bucket is overdrawn. Cannot overflow, here and below: `missing` is at most
        // 2^63 - 1, and the increment of a cost at most B.
        let left = self.burst_offset.get() - missing;
        let retry_after = match verb.effect() {
            Effect::Take | Effect::Look => self.emission_interval.get() * cost.get() - left,
            Effect::Return => 0,
            // As if the bucket held twice the burst. The cost is at most the burst.
            Effect::Charge if verb == Verb::Charge && !allowed => {
                self.emission_interval.get() * cost.get() - self.burst_offset.get() - left
            }
            Effect::Charge => -left,
        };
        let remaining = if left > 0 { self.divisor.divide(left) } else { 0 };
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

    fn lifetime(&self, _: State) -> Lifetime {
        Lifetime::INSTANT
    }
}

impl RateAlgorithm for TokenBucket {
    fn refund(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let stored = found.map_or(now, State::instant).max(now);
        let increment = self.emission_interval.get() * cost.get();
        let tat = Timestamp::clamped(stored.get() - increment).max(now);
        let moved = tat != stored;
        (moved, Write::put_if(moved, State::from_instant(tat), Lifetime::INSTANT))
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        let latest = now.saturating_add(self.burst_offset.saturating_mul(2));
        let tat = found.map_or(now, State::instant).max(now);
        // Rounded down, because only whole tokens can be overdrawn; below 0 if a limit with a larger
        // burst wrote the TAT.
        let most = (latest.get() - tat.get()) / self.emission_interval.get();
        let taken = overdraft.taken(cost.get(), most.max(0));
        // Cannot overflow: the TAT does not exceed the latest one.
        let increment = Nanos::clamped(taken * self.emission_interval.get());
        let after = State::from_instant(tat.saturating_add(increment));
        (taken == cost.get(), Write::put_if(taken > 0, after, Lifetime::INSTANT))
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::testing::{MILLI, at, cost};

    const SECOND: i64 = 1000 * MILLI;

    fn bucket(burst: i64, count: i64, period: i64) -> Result<TokenBucket, LimitError> {
        TokenBucket::new(burst, count, Nanos::clamped(period))
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
}
