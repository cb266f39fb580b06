//! Descriptions of limits: their parameters, how much they admit, and the share of one process.
//!
//! Summaries, limits files, pickles and the fallback in an outage are derived from it, so that no
//! other code distinguishes the algorithms.

use std::num::NonZeroU32;

use crate::engine::algorithm::fixed_rate_window::FixedRateWindow;
use crate::engine::algorithm::fixed_window::FixedWindow;
use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::algorithm::leaky_bucket::LeakyBucket;
use crate::engine::algorithm::window::{Anchor, Phase, Window};
use crate::engine::limit::Limit;
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

const DAY: Nanos = Nanos::clamped(86_400_000_000_000);
const MILLI: i64 = 1_000_000;

/// The value of one parameter of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A number of tokens or requests.
    Whole(i64),
    /// A duration.
    Time(Nanos),
    /// A keyword.
    Word(&'static str),
}

/// How much a limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens that a full bucket admits at one instant.
    pub at_once: i64,
    /// Tokens added per `refill_interval`.
    pub refill_count: i64,
    /// Time in which `refill_count` tokens are added.
    pub refill_interval: Nanos,
    /// Whether the tokens of an interval are added one by one rather than together.
    pub is_evenly_spaced: bool,
    /// Tokens per day in the long run, rounded down.
    pub per_day: i64,
    /// A typical interval for the limit: its period, or the time in which a full leaky bucket
    /// drains.
    pub interval: Nanos,
    /// The maximum in any `interval`; see [`Limit::worst_in`].
    pub worst_in_interval: i64,
}

impl Limit {
    /// Returns the parameters by their names in limits files. The default anchor is omitted.
    pub fn fields(&self) -> Vec<(&'static str, FieldValue)> {
        use FieldValue::{Time, Whole};
        match self {
            Limit::TokenBucket(bucket) => vec![
                ("burst", Whole(bucket.burst())),
                ("count", Whole(bucket.count())),
                ("period", Time(bucket.period())),
            ],
            Limit::LeakyBucket(bucket) => vec![
                ("size", Whole(bucket.size())),
                ("drip_rate", Time(bucket.drip_rate())),
                ("drip_size", Whole(bucket.drip_size())),
            ],
            Limit::FixedWindow(window) => {
                let mut fields = vec![("count", Whole(window.count()))];
                fields.extend(window_fields(window.window()));
                fields
            }
            Limit::FixedRateWindow(window) => {
                let mut fields = vec![("count", Whole(window.count()))];
                fields.extend(window_fields(window.window()));
                // After the period, as in the constructor.
                fields.insert(2, ("burst", Whole(window.burst())));
                fields
            }
            Limit::Unlimited => Vec::new(),
        }
    }

    /// Returns a short English description, with the names of [`fields`](Limit::fields) in braces
    /// in place of their values.
    pub const fn summary(&self) -> &'static str {
        match self {
            Limit::TokenBucket(bucket) if bucket.burst() == bucket.count() => {
                "{count} per {period}"
            }
            Limit::TokenBucket(_) => "{count} per {period}, {burst} at once",
            Limit::LeakyBucket(_) => "{size} at once, {drip_size} more every {drip_rate}",
            Limit::FixedWindow(_) => "{count} per {period}",
            Limit::FixedRateWindow(window) if window.burst() == 0 => {
                "{count} per {period}, evenly spaced"
            }
            Limit::FixedRateWindow(_) => "{count} per {period}, evenly spaced, {burst} early",
            Limit::Unlimited => "no limit",
        }
    }

    /// Returns how much the limit admits; `None` if it is unlimited.
    pub fn facts(&self) -> Option<Facts> {
        let (refill_count, refill_interval, interval) = match self {
            Limit::TokenBucket(bucket) => (1, bucket.emission_interval(), bucket.period()),
            Limit::LeakyBucket(bucket) => {
                // A drip larger than the bucket empties it.
                let drip = bucket.drip_size().min(bucket.size());
                (drip, bucket.drip_rate(), bucket.time_to_drain())
            }
            Limit::FixedWindow(window) => {
                (window.count(), window.window().period(), window.window().period())
            }
            Limit::FixedRateWindow(window) => {
                (window.count(), window.window().period(), window.window().period())
            }
            Limit::Unlimited => return None,
        };
        let (in_the_long_run, is_evenly_spaced) = match self {
            Limit::FixedRateWindow(window) => (window.count() + window.burst(), true),
            _ => (refill_count, false),
        };
        let per_day = wide(in_the_long_run) * wide(DAY.get()) / wide(refill_interval.get());
        Some(Facts {
            at_once: self.max_cost(),
            refill_count,
            refill_interval,
            is_evenly_spaced,
            per_day: narrow(per_day),
            interval,
            worst_in_interval: self.worst_in(interval),
        })
    }

    /// Returns the maximum number of tokens that can be spent from one bucket within any interval
    /// of this length, both ends included. The number is exact: a greedy client reaches it.
    ///
    /// `i64::MAX` if the limit is unlimited or allows more than that.
    pub fn worst_in(&self, interval: Nanos) -> i64 {
        match self {
            Limit::TokenBucket(bucket) => worst_in_token_bucket(bucket, interval),
            Limit::LeakyBucket(bucket) => worst_in_leaky_bucket(bucket, interval),
            Limit::FixedWindow(window) => worst_in_fixed_window(window, interval),
            Limit::FixedRateWindow(window) => worst_in_fixed_rate_window(window, interval),
            Limit::Unlimited => i64::MAX,
        }
    }

    /// Returns the limit for each of `processes` processes that together admit about as much as
    /// this limit. A share admits at least one request at once.
    ///
    /// # Errors
    /// [`LimitError`] if the share would be slower than the slowest valid limit.
    pub fn share(&self, processes: NonZeroU32) -> Result<Limit, LimitError> {
        let processes = i64::from(processes.get());
        let part = |tokens: i64| (tokens / processes).max(1);
        match self {
            Limit::TokenBucket(bucket) => {
                let period = times("period", bucket.period(), processes, 1)?;
                Limit::token_bucket(part(bucket.burst()), bucket.count(), period)
            }
            Limit::LeakyBucket(bucket) => {
                let drip_rate = times("drip_rate", bucket.drip_rate(), processes, 1)?;
                Limit::leaky_bucket(part(bucket.size()), drip_rate, bucket.drip_size())
            }
            Limit::FixedWindow(window) => {
                let (count, period) = (window.count(), window.window().period());
                let (count, period) = share_of_window(count, period, processes)?;
                Limit::fixed_window(count, period, window.window().anchor())
            }
            Limit::FixedRateWindow(window) => {
                let (count, period) = (window.count(), window.window().period());
                let (count, period) = share_of_window(count, period, processes)?;
                let burst = window.burst() / processes;
                Limit::fixed_rate_window(count, period, burst, window.window().anchor())
            }
            Limit::Unlimited => Ok(Limit::Unlimited),
        }
    }
}

fn window_fields(window: &Window) -> impl Iterator<Item = (&'static str, FieldValue)> {
    let period = [("period", FieldValue::Time(window.period()))];
    let aligned = ("anchor", FieldValue::Word("aligned"));
    let anchor: [Option<_>; 2] = match window.anchor() {
        Anchor::First => [None; 2],
        Anchor::Aligned(Phase::Fixed(Nanos::ZERO)) => [Some(aligned), None],
        Anchor::Aligned(Phase::Fixed(phase)) => {
            [Some(aligned), Some(("phase", FieldValue::Time(phase)))]
        }
        Anchor::Aligned(Phase::PerKey) => {
            [Some(aligned), Some(("phase", FieldValue::Word("per-key")))]
        }
    };
    period.into_iter().chain(anchor.into_iter().flatten())
}

/// A full bucket, plus the tokens added during the interval.
fn worst_in_token_bucket(bucket: &TokenBucket, interval: Nanos) -> i64 {
    bucket.burst().saturating_add(interval.get() / bucket.emission_interval().get())
}

/// A full bucket, plus one drip after the other.
///
/// One request before the interval lets the first drip occur at its start, at the cost of one
/// place. If a bucket that is first used within the interval drips equally often, that request is
/// not needed. Ticks are stored in whole milliseconds, so the first drip may be up to 1 ms early.
fn worst_in_leaky_bucket(bucket: &LeakyBucket, interval: Nanos) -> i64 {
    let rate = bucket.drip_rate().get();
    let (drips, rest) = (interval.get() / rate, interval.get() % rate);
    let drip = wide(bucket.drip_size().min(bucket.size()));
    let one_more = if rest == 0 { 0 } else { drip - i128::from(rate - rest >= MILLI) };
    narrow(wide(bucket.size()) + wide(drips) * drip + one_more)
}

/// The end of one window, whole windows, and the beginning of another.
fn worst_in_fixed_window(window: &FixedWindow, interval: Nanos) -> i64 {
    let (windows, rest) = window.window().divide(interval);
    let most = wide(window.count()) * (wide(windows) + 1 + i128::from(rest > 0));
    narrow(most - i128::from(rest > 0 && window.window().is_opened_before(rest)))
}

/// The end of one window, whole windows, and the beginning of another. Each has the burst, and one
/// request for each slot that opens.
fn worst_in_fixed_rate_window(window: &FixedRateWindow, interval: Nanos) -> i64 {
    let (count, period) = (window.count(), window.window().period().get());
    let (windows, rest) = window.window().divide(interval);
    // The slots that open within the rest, at most.
    let slots = (wide(rest) * wide(count) + wide(period) - 1) / wide(period);
    let bursts = wide(windows) + 1 + i128::from(rest > 0);
    let most = 1 + wide(windows) * wide(count) + slots + wide(window.burst()) * bursts;
    // If all slots open within the rest, it begins in the first slot, which was used by the request
    // that opened the window, unless it fits into a later slot that is equally long.
    let longest_later_slot = if count > 1 { (period + count - 2) / count } else { 0 };
    let is_taken = slots == wide(count)
        && longest_later_slot <= period - rest
        && window.window().is_opened_before(rest);
    narrow(most - i128::from(is_taken))
}

impl Window {
    /// Returns how many windows fit into an interval, and the rest.
    fn divide(&self, interval: Nanos) -> (i64, i64) {
        (interval.get() / self.period().get(), interval.get() % self.period().get())
    }

    /// Returns whether an interval with this rest can only begin in a window that an earlier
    /// request opened. Windows start at whole milliseconds, so one that is opened within the
    /// interval may have started up to 1 ms before it.
    fn is_opened_before(&self, rest: i64) -> bool {
        self.anchor() == Anchor::First && self.period().get() - rest >= MILLI
    }
}

/// Returns the count and period of a share: fewer requests, or one per longer window.
fn share_of_window(count: i64, period: Nanos, processes: i64) -> Result<(i64, Nanos), LimitError> {
    if count >= processes {
        return Ok((count / processes, period));
    }
    let longer = times("period", period, processes, count)?;
    let whole = longer.get().checked_add(MILLI - 1).unwrap_or(i64::MAX) / MILLI * MILLI;
    Ok((1, Nanos::clamped(whole)))
}

/// Returns `time * factor / divisor`, rounded up.
fn times(field: &'static str, time: Nanos, factor: i64, divisor: i64) -> Result<Nanos, LimitError> {
    let product = wide(time.get()) * wide(factor) + wide(divisor) - 1;
    let too_long = LimitError::TooLong { field, found: Nanos::MAX };
    i64::try_from(product / wide(divisor)).map(Nanos::clamped).map_err(|_| too_long)
}

fn wide(number: i64) -> i128 {
    i128::from(number)
}

fn narrow(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
