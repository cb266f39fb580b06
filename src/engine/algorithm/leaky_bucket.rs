//! The leaky bucket: requests fill it, and at every drip some of them leave.
//!
//! The stored tick advances by whole drips, so idle time earns no credit.

use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, Repayment, narrow, part, times, wide,
};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::{Algorithm, Definition, Limit, Overdraft, RateAlgorithm};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit_error::{LimitError, MAX_PERIOD};
use crate::engine::state::{Lifetime, State, StateKind, Write};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::{Effect, Verb};

/// Holds up to `size` requests; `drip_size` leave every `drip_rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    size: i64,
    drip_rate: Nanos,
    drip_size: i64,
    lifetime: Lifetime,
}

/// The content of a bucket at one instant, and the time of its last drip.
struct Content {
    level: i64,
    tick: Timestamp,
    /// Time since the last drip; negative if the clock went back.
    since: i64,
}

impl LeakyBucket {
    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("size", ParameterKind::Whole),
                Parameter::optional("drip_rate", ParameterKind::Time),
                Parameter::optional("drip_size", ParameterKind::Whole),
            ],
            build: |values| {
                let drip_rate = values.get("drip_rate").unwrap_or(Nanos::SECOND);
                let drip_size = values.get("drip_size").unwrap_or(1);
                LeakyBucket::new(values.required("size")?, drip_rate, drip_size).map(Limit::from)
            },
        },
        older: Some(LeakyBucket::OLDER),
        shape: Some(Shape { burst: Some("size"), rate: "drip_size", period: Some("drip_rate") }),
        state: StateKind::Tally,
    };

    /// The older form, which may mean no limit.
    pub(crate) const OLDER: LimitForm = LimitForm {
            parameters: &[
                Parameter::optional("max", ParameterKind::Whole),
                Parameter::optional("duration", ParameterKind::Time),
                Parameter::optional("min_interval", ParameterKind::Time),
            ],
            build: |values| {
                let (duration, interval) = (values.get("duration"), values.get("min_interval"));
                let bucket = LeakyBucket::from_older_form(values.get("max"), duration, interval)?;
                Ok(bucket.map_or(Limit::Unlimited, Limit::from))
            },
    };

    pub(crate) fn new(
        size: i64,
        drip_rate: Nanos,
        drip_size: i64,
    ) -> Result<LeakyBucket, LimitError> {
        for (field, found) in [("size", size), ("drip_size", drip_size)] {
            if found < 1 {
                return Err(LimitError::TooSmall { field, least: 1, found });
            }
        }
        if drip_rate == Nanos::ZERO {
            return Err(LimitError::NoTime { field: "drip_rate" });
        }
        if !drip_rate.is_whole_millis() {
            return Err(LimitError::PartOfMillisecond { field: "drip_rate", found: drip_rate });
        }
        if size > State::MAX_TALLY as i64 {
            return Err(LimitError::BeyondTally { field: "size", found: size });
        }
        let drains =
            drip_rate.saturating_mul(size.unsigned_abs().div_ceil(drip_size.unsigned_abs()));
        if drains > MAX_PERIOD {
            return Err(LimitError::DrainsTooSlowly { size, drip_rate, drip_size });
        }
        Ok(LeakyBucket { size, drip_rate, drip_size, lifetime: Lifetime::of_tally(drains) })
    }

    /// Converts the older form; returns `None` if it means no limit.
    fn from_older_form(
        max: Option<i64>,
        duration: Option<Nanos>,
        min_interval: Option<Nanos>,
    ) -> Result<Option<LeakyBucket>, LimitError> {
        if let Some(found) = max.filter(|&max| max < 1) {
            return Err(LimitError::TooSmall { field: "max", least: 1, found });
        }
        match (max, duration, min_interval) {
            (None, None, None) => Err(LimitError::OlderFormEmpty),
            (_, Some(Nanos::ZERO), _) => Ok(None),
            (Some(max), Some(duration), interval) => {
                LeakyBucket::combined(max, duration, interval).map(Some)
            }
            (_, _, Some(Nanos::ZERO) | None) => Ok(None),
            (_, _, Some(interval)) => {
                LeakyBucket::new(1, whole_millis(wide(interval.get()), NANOS_PER_MILLI), 1)
                    .map(Some)
            }
        }
    }

    /// Converts `max` per `duration`: the minimum interval determines the drip size, and the drip
    /// rate is then fitted to the average rate.
    fn combined(
        max: i64,
        duration: Nanos,
        min_interval: Option<Nanos>,
    ) -> Result<LeakyBucket, LimitError> {
        if max > State::MAX_TALLY as i64 {
            return Err(LimitError::BeyondTally { field: "max", found: max });
        }
        let (wide_max, duration) = (wide(max), wide(duration.get()));
        let interval = match min_interval {
            // Together with `max` and `duration`, an interval of 0 is the same as no interval.
            None | Some(Nanos::ZERO) => round_half_up(duration, wide_max * NANOS_PER_MILLI),
            Some(interval) => round_half_up(wide(interval.get()), NANOS_PER_MILLI),
        };
        let drip_size =
            round_half_up(wide_max * interval.max(1) * NANOS_PER_MILLI, duration).max(1);
        let drip_rate =
            whole_millis(duration.saturating_mul(drip_size), wide_max * NANOS_PER_MILLI);
        LeakyBucket::new(max, drip_rate, i64::try_from(drip_size).unwrap_or(i64::MAX))
    }

    /// Number of requests that a full bucket holds.
    pub const fn size(&self) -> i64 {
        self.size
    }

    /// Time between drips.
    pub const fn drip_rate(&self) -> Nanos {
        self.drip_rate
    }

    /// Number of requests that leave at each drip.
    pub const fn drip_size(&self) -> i64 {
        self.drip_size
    }

    /// Returns the bucket for a caller with `factor`, or `None` if the factor lifts the limit.
    pub(crate) fn with_factor(&self, factor: &Factor) -> Result<Option<LeakyBucket>, LimitError> {
        if factor.is_zero() {
            return Ok(None);
        }
        if factor.is_negative() {
            return Err(LimitError::FactorNegative { found: factor.to_string() });
        }
        let size = self.size as u64;
        let divided = factor.divide(size, State::MAX_TALLY)?;
        let divided = divided
            .ok_or_else(|| LimitError::FactorTooSmall { found: factor.to_string(), size })?;
        LeakyBucket::new(divided.max(1) as i64, self.drip_rate, self.drip_size).map(Some)
    }

    fn content(&self, state: Option<State>, now: Timestamp) -> Content {
        if let Some(state) = state {
            let (level, tick) = (state.tally() as i64, state.tally_instant());
            let since = now.get() - tick.get();
            let drips = (since / self.drip_rate.get()).max(0);
            let level = level.saturating_sub(drips.saturating_mul(self.drip_size)).max(0);
            if level > 0 {
                let dripped = drips * self.drip_rate.get();
                let tick = tick.saturating_add(Nanos::clamped(dripped));
                return Content { level, tick, since: since - dripped };
            }
        }
        // A tick is stored in whole milliseconds, rounded down.
        let since = now.get() % 1_000_000;
        Content { level: 0, tick: Timestamp::clamped(now.get() - since), since }
    }

    /// Returns the maximum level of an overdrawn bucket.
    fn max_level(&self) -> i64 {
        self.size.saturating_mul(2).min(State::MAX_TALLY as i64)
    }

    /// Returns how long to keep a bucket with this level. An overdrawn one takes longer to drain.
    fn lifetime_of(&self, level: i64) -> Lifetime {
        if level <= self.size {
            self.lifetime
        } else {
            self.lifetime.max(Lifetime::of_tally(self.time_for(level)))
        }
    }

    /// Returns the time in which `leaving` requests leave, in whole drips.
    fn time_for(&self, leaving: i64) -> Nanos {
        self.drip_rate
            .saturating_mul(leaving.unsigned_abs().div_ceil(self.drip_size.unsigned_abs()))
    }

    /// Returns the wait until `leaving` requests have left, counted from the last drip.
    fn wait_for(&self, leaving: i64, content: &Content) -> Nanos {
        if leaving <= 0 {
            return Nanos::ZERO;
        }
        let drips = self.time_for(leaving);
        Nanos::clamped(drips.get().saturating_sub(content.since))
    }

    /// Returns the write of this content if something changes.
    fn put_if(&self, changes: bool, content: &Content) -> Write {
        if !changes {
            return Write::Keep;
        }
        let after = State::from_tally(content.tick, content.level as u64);
        Write::Put(after, self.lifetime_of(content.level))
    }
}

impl Limit {
    /// Returns a leaky bucket that holds `size` requests, of which `drip_size` leave every
    /// `drip_rate`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, `drip_rate` is not a whole number of milliseconds,
    /// `size` is above [`State::MAX_TALLY`], or a full bucket would take longer than 2^62 ns to
    /// drain.
    pub fn leaky_bucket(size: i64, drip_rate: Nanos, drip_size: i64) -> Result<Limit, LimitError> {
        LeakyBucket::new(size, drip_rate, drip_size).map(Limit::from)
    }
}

impl Description for LeakyBucket {
    fn fields(&self) -> Fields {
        vec![
            ("size", FieldValue::Whole(self.size)),
            ("drip_rate", FieldValue::Time(self.drip_rate)),
            ("drip_size", FieldValue::Whole(self.drip_size)),
        ]
    }

    fn wire(&self, _: Verb, cost: i64, _: Timestamp) -> [i64; 6] {
        // No bucket holds more than the largest tally, so larger drips have no further effect.
        let drip_size = self.drip_size.min(State::MAX_TALLY.cast_signed());
        [cost, self.size, self.drip_rate.millis().cast_signed(), drip_size, 0, 0]
    }

    fn summary(&self) -> &'static str {
        "{size} at once, {drip_size} more every {drip_rate}"
    }

    fn capacity(&self) -> i64 {
        self.size
    }

    fn time_to_refill(&self) -> Nanos {
        self.time_for(self.size)
    }

    fn refill(&self) -> Refill {
        // A drip larger than the bucket empties it.
        let count = self.drip_size.min(self.size);
        Refill { count, interval: self.drip_rate, is_evenly_spaced: false }
    }

    /// A full bucket, plus one drip after the other.
    ///
    /// One request before the interval lets the first drip occur at its start, at the cost of one
    /// place. If a bucket that is first used within the interval drips equally often, that request
    /// is not needed. Ticks are stored in whole milliseconds, so the first drip may be up to 1 ms
    /// early.
    fn worst_in(&self, interval: Nanos) -> i64 {
        let rate = self.drip_rate.get();
        let (drips, rest) = (interval.get() / rate, interval.get() % rate);
        let drip = wide(self.refill().count);
        let is_one_lost = i128::from(rate - rest) >= NANOS_PER_MILLI;
        let one_more = if rest == 0 { 0 } else { drip - i128::from(is_one_lost) };
        narrow(wide(self.size) + wide(drips) * drip + one_more)
    }

    fn share(&self, processes: i64) -> Result<LeakyBucket, LimitError> {
        let drip_rate = times("drip_rate", self.drip_rate, processes, 1)?;
        LeakyBucket::new(part(self.size, processes), drip_rate, self.drip_size)
    }

    fn shown_wait(&self, decision: &Decision) -> Nanos {
        if decision.remaining > 0 { Nanos::ZERO } else { decision.next_token_after }
    }

    fn repayment(&self, cost: i64) -> Option<Repayment> {
        // A drip larger than the level would also drain part of the charge, which would then be
        // admitted twice.
        let fits = cost.saturating_add(self.drip_size) <= self.size.saturating_add(1);
        let interval = Some(self.drip_rate).filter(|_| self.drip_size == 1);
        fits.then_some(Repayment { interval })
    }
}

impl Algorithm for LeakyBucket {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.size
    }

    fn keeping(self, keep: i64) -> LeakyBucket {
        LeakyBucket { size: self.size - keep, ..self }
    }

    #[inline]
    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut content = self.content(found, now.min(State::MAX_INSTANT));
        let cost = cost.get();
        let allowed = content.level + cost <= self.size;
        content.level += cost;
        (allowed, self.put_if(allowed && cost > 0, &content))
    }

    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        let now = now.min(State::MAX_INSTANT);
        let content = self.content(after, now);
        let level = content.level;
        let excess = match verb.effect() {
            Effect::Take | Effect::Look => level + cost.get() - self.size,
            Effect::Return => 0,
            Effect::Charge if verb == Verb::Charge && !allowed => {
                level + cost.get() - self.max_level()
            }
            Effect::Charge => level - self.size,
        };
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.size - level).max(0),
            retry_after: self.wait_for(excess, &content),
            reset_after: self.time_for(level),
            next_token_after: self
                .wait_for(if level == 0 { 0 } else { (level - self.size).max(0) + 1 }, &content),
            now,
        }
    }

    fn lifetime(&self, state: State) -> Lifetime {
        self.lifetime_of(state.tally() as i64)
    }
}

impl RateAlgorithm for LeakyBucket {
    fn refund(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut content = self.content(found, now.min(State::MAX_INSTANT));
        let given_back = cost.get().min(content.level);
        content.level -= given_back;
        (given_back > 0, self.put_if(given_back > 0, &content))
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        let mut content = self.content(found, now.min(State::MAX_INSTANT));
        let taken = overdraft.taken(cost.get(), self.max_level() - content.level);
        content.level += taken;
        (taken == cost.get(), self.put_if(taken > 0, &content))
    }

    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State> {
        let now = now.min(State::MAX_INSTANT);
        let written = self.content(Some(charged), now);
        // Earlier content leaves first, so this spend occupies the last part of the level.
        let left = cost.get().min(written.level);
        let mut content = self.content(Some(found), now);
        let returned = left.min(content.level);
        content.level -= returned;
        let after = State::from_tally(content.tick, content.level as u64);
        Some(after).filter(|_| returned > 0)
    }
}

const NANOS_PER_MILLI: i128 = 1_000_000;

/// Returns a fraction rounded to the nearest integer, halves up.
fn round_half_up(numerator: i128, denominator: i128) -> i128 {
    (numerator.saturating_mul(2).saturating_add(denominator)).div_euclid(2 * denominator)
}

/// Returns a fraction in milliseconds, rounded to whole milliseconds, at least 1 ms.
fn whole_millis(numerator: i128, denominator: i128) -> Nanos {
    let millis = round_half_up(numerator, denominator).max(1);
    Nanos::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::testing::{MILLI, at, cost, give_backs, numbers};

    fn bucket(size: i64, drip_millis: u64, drip_size: i64) -> LeakyBucket {
        LeakyBucket::new(size, Nanos::from_millis(drip_millis), drip_size).expect("a bucket")
    }

    #[test]
    fn giving_back_a_spend_returns_only_what_has_not_dripped_away() {
        give_backs(
            &bucket(9, 1000, 2),
            &[
                // No other call: the state before the spend.
                (3, (5, 0), (5, 0), 999, Some((2, 0))),
                (3, (5, 0), (5, 0), 1000, Some((0, 1000))),
                (3, (5, 0), (5, 0), 2500, Some((0, 2000))),
                // All requests have dripped away.
                (3, (5, 0), (5, 0), 3000, None),
                // Later spends are kept.
                (3, (5, 0), (7, 0), 999, Some((4, 0))),
                (3, (5, 0), (7, 0), 2500, Some((2, 2000))),
                (3, (5, 0), (5, 1000), 1950, Some((2, 1000))),
                (3, (5, 0), (4, 2000), 3000, None),
                // After refunds by others.
                (3, (5, 0), (1, 0), 0, Some((0, 0))),
                (0, (5, 0), (5, 0), 0, None),
            ],
        );
    }

    #[test]
    fn nothing_drips_when_the_clock_goes_back() {
        let bucket = bucket(3, 1000, 1);
        let limit = crate::engine::limit::Limit::from(bucket);
        let full = limit.spend(cost(3), None, at(10_000)).after;
        let step = limit.spend(cost(1), full, at(4000));
        assert_eq!(numbers(&step.decision), (false, 0, 7000, 3000, 7000));
        assert_eq!(step.after, None);
    }

    #[test]
    fn a_bucket_must_drain_within_2_to_the_62_nanoseconds() {
        let made =
            |size, millis, drip_size| LeakyBucket::new(size, Nanos::from_millis(millis), drip_size);
        let most = (1 << 62) / MILLI as u64;
        assert!(made(1, most, 1).is_ok() && made(7, most, 7).is_ok());
        assert!(made(1, most + 1, 1).is_err() && made(8, most, 7).is_err());
        assert!(made(State::MAX_TALLY as i64, 1000, i64::MAX).is_ok());
    }
}
