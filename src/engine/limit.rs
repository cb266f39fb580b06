//! A limit, valid by construction.

use crate::engine::algorithm::fixed_rate_window::FixedRateWindow;
use crate::engine::algorithm::fixed_window::FixedWindow;
use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::algorithm::leaky_bucket::LeakyBucket;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::window::Anchor;
use crate::engine::algorithm::{Algorithm, Overdraft, Step};
use crate::engine::cost::{Cost, CostError};
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit_error::LimitError;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// How much, how fast, and by which algorithm. A value of this type is always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Tokens that come back one by one.
    TokenBucket(TokenBucket),
    /// Requests that drip away at ticks.
    LeakyBucket(LeakyBucket),
    /// A number of requests per window.
    FixedWindow(FixedWindow),
    /// A number of requests per window, spaced evenly.
    FixedRateWindow(FixedRateWindow),
    /// No limit.
    Unlimited,
}

impl Limit {
    /// Makes a token bucket: `burst` tokens at most, `count` more in each `period`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, if the rate is too fast for whole nanoseconds (beyond
    /// 0.1 %), or if an empty bucket would take longer than 2^62 ns to fill.
    pub fn token_bucket(burst: i64, count: i64, period: Nanos) -> Result<Limit, LimitError> {
        TokenBucket::new(burst, count, period).map(Limit::TokenBucket)
    }

    /// Makes a leaky bucket: room for `size`, of which `drip_size` leave every `drip_rate`.
    ///
    /// # Errors
    /// [`LimitError`] if a number is below 1, `drip_rate` is not a whole number of milliseconds,
    /// `size` is above [`State::MAX_TALLY`], or a full bucket would take longer than 2^62 ns to
    /// drain.
    pub fn leaky_bucket(size: i64, drip_rate: Nanos, drip_size: i64) -> Result<Limit, LimitError> {
        LeakyBucket::new(size, drip_rate, drip_size).map(Limit::LeakyBucket)
    }

    /// Makes a leaky bucket from the older form, times in nanoseconds; unlimited where the form
    /// says no limit.
    ///
    /// # Errors
    /// [`LimitError`] if all three are missing, `max` is below 1, a time is negative, or the
    /// translated numbers are refused.
    pub fn leaky_bucket_from(
        max: Option<i64>,
        duration: Option<i64>,
        min_interval: Option<i64>,
    ) -> Result<Limit, LimitError> {
        let bucket = LeakyBucket::from_older_form(max, duration, min_interval)?;
        Ok(bucket.map_or(Limit::Unlimited, Limit::LeakyBucket))
    }

    /// Makes a fixed window: `count` in each `period`.
    ///
    /// # Errors
    /// [`LimitError`] if `count` is below 1 or above [`State::MAX_TALLY`], or `period` or the phase
    /// is no whole number of milliseconds or out of range.
    pub fn fixed_window(count: i64, period: Nanos, anchor: Anchor) -> Result<Limit, LimitError> {
        FixedWindow::new(count, period, anchor).map(Limit::FixedWindow)
    }

    /// Makes a fixed window that spaces its requests, `burst` of them allowed early.
    ///
    /// # Errors
    /// As [`Limit::fixed_window`]; also if `burst` is negative or `count + burst` is above
    /// [`State::MAX_TALLY`].
    pub fn fixed_rate_window(
        count: i64,
        period: Nanos,
        burst: i64,
        anchor: Anchor,
    ) -> Result<Limit, LimitError> {
        FixedRateWindow::new(count, period, burst, anchor).map(Limit::FixedRateWindow)
    }

    /// The algorithm's name.
    pub const fn algorithm(&self) -> AlgorithmName {
        match self {
            Limit::TokenBucket(_) => AlgorithmName::TokenBucket,
            Limit::LeakyBucket(_) => AlgorithmName::LeakyBucket,
            Limit::FixedWindow(_) => AlgorithmName::FixedWindow,
            Limit::FixedRateWindow(_) => AlgorithmName::FixedRateWindow,
            Limit::Unlimited => AlgorithmName::Unlimited,
        }
    }

    /// Whether this is no limit at all.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self, Limit::Unlimited)
    }

    /// The highest cost that can ever be allowed, in tokens; `i64::MAX` if unlimited.
    #[inline]
    pub fn max_cost(&self) -> i64 {
        match self {
            Limit::TokenBucket(bucket) => bucket.max_cost(),
            Limit::LeakyBucket(bucket) => bucket.max_cost(),
            Limit::FixedWindow(window) => window.max_cost(),
            Limit::FixedRateWindow(window) => window.max_cost(),
            Limit::Unlimited => i64::MAX,
        }
    }

    /// Takes a number of tokens as the cost of a request under this limit.
    ///
    /// # Errors
    /// [`CostError`] if it is negative, or above [`Limit::max_cost`].
    #[inline]
    pub fn cost(&self, tokens: i64) -> Result<Cost, CostError> {
        if tokens < 0 {
            return Err(CostError::Negative { found: tokens });
        }
        let most = self.max_cost();
        if tokens > most {
            return Err(CostError::TooHigh { found: tokens, most });
        }
        Ok(Cost(tokens))
    }

    /// The limit as it applies to a caller with `factor`: a leaky bucket of another size, or none
    /// at all.
    ///
    /// # Errors
    /// [`LimitError`] if the factor is negative, makes a size beyond [`State::MAX_TALLY`], or this
    /// is another algorithm.
    pub fn with_factor(&self, factor: &Factor) -> Result<Limit, LimitError> {
        match self {
            Limit::LeakyBucket(bucket) => {
                Ok(bucket.with_factor(factor)?.map_or(Limit::Unlimited, Limit::LeakyBucket))
            }
            Limit::Unlimited => Ok(Limit::Unlimited),
            other => Err(LimitError::FactorForOther { algorithm: other.algorithm() }),
        }
    }

    /// Whether the windows of this limit start at an instant that depends on the bucket's key.
    #[inline]
    pub fn has_phase_per_key(&self) -> bool {
        match self {
            Limit::FixedWindow(window) => window.window.is_per_key(),
            Limit::FixedRateWindow(window) => window.window.is_per_key(),
            _ => false,
        }
    }

    /// The limit as it applies to the bucket whose key's text is `key`: a phase per key becomes
    /// that key's phase.
    pub fn for_key(&self, key: &str) -> Limit {
        match *self {
            Limit::FixedWindow(mut window) => {
                window.window = window.window.for_key(key);
                Limit::FixedWindow(window)
            }
            Limit::FixedRateWindow(mut window) => {
                window.window = window.window.for_key(key);
                Limit::FixedRateWindow(window)
            }
            other => other,
        }
    }

    /// How this limit decides; `None` if unlimited. Most calls are spends, which avoid the
    /// indirection.
    fn rules(&self) -> Option<&dyn Algorithm> {
        match self {
            Limit::TokenBucket(bucket) => Some(bucket),
            Limit::LeakyBucket(bucket) => Some(bucket),
            Limit::FixedWindow(window) => Some(window),
            Limit::FixedRateWindow(window) => Some(window),
            Limit::Unlimited => None,
        }
    }

    /// Takes `cost` from a bucket if the bucket has it; a denied spend changes nothing but a TAT
    /// too late to be true.
    ///
    /// `state` is what the bucket remembers; `None` means a full bucket. `now` must be on
    /// the clock that wrote `state`; if it is earlier than the last spend, the bucket simply looks
    /// emptier.
    pub fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        match self {
            Limit::TokenBucket(bucket) => bucket.spend(cost, state, now),
            Limit::LeakyBucket(bucket) => bucket.spend(cost, state, now),
            Limit::FixedWindow(window) => window.spend(cost, state, now),
            Limit::FixedRateWindow(window) => window.spend(cost, state, now),
            Limit::Unlimited => Step::unlimited(now),
        }
    }

    /// Returns `cost` tokens to a bucket; never beyond a full one, and never to one that was not used.
    pub fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let rules = self.rules();
        rules.map_or(Step::unlimited(now), |rules| rules.refund(cost, state, now))
    }

    /// Undoes an allowed spend of `cost` that is no longer wanted, such as one of a batch in which
    /// another bucket denied.
    ///
    /// `charged` is the state that the spend wrote, `found` the state of the bucket now, and `now`
    /// an instant read after `found`. Returns the state to write, or `None` if nothing is left to
    /// return. The bucket then admits no more than if the spend had never happened; only a window or
    /// the ticks of a leaky bucket that the spend started stay, as after a refund.
    pub fn give_back(
        &self,
        cost: Cost,
        charged: State,
        found: State,
        now: Timestamp,
    ) -> Option<State> {
        self.rules()?.give_back(cost, charged, found, now)
    }

    /// Takes `cost` from a bucket that need not have it yet, overdrawing it by at most what a full
    /// one holds.
    ///
    /// Until the overdraft is made good every spend is denied; `retry_after` says how long that is.
    /// In a window it is forgotten with the window. If the bucket cannot owe all of it, `overdraft`
    /// says what is taken; `allowed` whether all of it was.
    pub fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step {
        let rules = self.rules();
        rules.map_or(Step::unlimited(now), |rules| rules.charge(cost, overdraft, state, now))
    }

    /// Takes a number of tokens as the cost of a charge in parts: as many as there can be in a
    /// bucket that is full and then overdrawn.
    pub fn cost_in_parts(&self, tokens: i64) -> Cost {
        let most = match self {
            Limit::FixedRateWindow(window) => window.count() + window.burst(),
            limit => limit.max_cost(),
        };
        Cost(tokens.clamp(0, most.saturating_mul(2)))
    }

    /// What a bucket remembers whose peek was `peek`, or something no less used up; `None` where
    /// there is no bucket.
    pub fn state_of(&self, peek: &Decision) -> Option<State> {
        self.rules().map(|rules| rules.state_of(peek))
    }
}
