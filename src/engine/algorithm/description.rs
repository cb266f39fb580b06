//! The description of a limit by its algorithm: parameters, worst case, and values for clients.

use crate::engine::algorithm::calendar::Calendar;
use crate::engine::algorithm::window::Window;
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::Verb;

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

/// The parameters of a limit by their names in limits files.
pub type Fields = Vec<(&'static str, FieldValue)>;

/// How a bucket gets tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Tokens added per `interval`.
    pub count: i64,
    /// Time in which `count` tokens are added.
    pub interval: Nanos,
    /// Whether the tokens of an interval are added one by one rather than together.
    pub is_evenly_spaced: bool,
}

/// How a bucket that is in debt gets tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repayment {
    /// The time per token; `None` if the gain is not proportional to the tokens.
    pub interval: Option<Nanos>,
}

/// The description of one limit by its algorithm.
pub(crate) trait Description {
    /// Returns the parameters. The default anchor, and a `max_hold` of none, are omitted.
    fn fields(&self) -> Fields;

    /// Returns a short English description, with the names of the fields in braces in place of
    /// their values.
    fn summary(&self) -> &'static str;

    /// Returns the numbers of a call for its script, which doubles hold exactly: at most 2^53.
    fn wire(&self, verb: Verb, cost: i64, now: Timestamp) -> [i64; 6];

    /// Returns the tokens that a client can get from one full bucket or in one window.
    fn capacity(&self) -> i64;

    /// Returns the time in which an empty bucket fills, or the period of a window.
    fn time_to_refill(&self) -> Nanos;

    /// Returns the length of the window at `now`, for limits whose windows differ in length.
    fn window_length(&self, _now: Timestamp) -> Nanos {
        self.time_to_refill()
    }

    /// Returns whether its windows differ in length.
    fn window_varies(&self) -> bool {
        false
    }

    /// Returns how a bucket gets tokens.
    fn refill(&self) -> Refill;

    /// Returns the tokens that can be spent per interval of the refill in the long run.
    fn long_run(&self) -> i64 {
        self.refill().count
    }

    /// Returns a typical interval for the limit.
    fn interval(&self) -> Nanos {
        self.time_to_refill()
    }

    /// Returns the maximum number of tokens that can be spent from one bucket within any interval
    /// of this length, both ends included.
    fn worst_in(&self, interval: Nanos) -> i64;

    /// Returns the limit for each of `processes` processes.
    fn share(&self, processes: i64) -> Result<Self, LimitError>
    where
        Self: Sized;

    /// Returns the remaining tokens to show to the client.
    fn shown_remaining(&self, decision: &Decision) -> i64 {
        decision.remaining
    }

    /// Returns the wait to show to the client.
    fn shown_wait(&self, decision: &Decision) -> Nanos {
        decision.next_token_after
    }

    /// Returns the wait of a client that was denied, at least that of [`shown_wait`].
    ///
    /// [`shown_wait`]: Description::shown_wait
    fn shown_retry(&self, decision: &Decision) -> Nanos {
        decision.retry_after.max(self.shown_wait(decision))
    }

    /// Returns the time until the bucket is full, to show to the client.
    fn shown_reset(&self, decision: &Decision) -> Nanos {
        decision.reset_after
    }

    /// Returns how a bucket repays a charge of `cost` taken before the tokens are there. `None` if a
    /// waiter must not be charged early.
    fn repayment(&self, _cost: i64) -> Option<Repayment> {
        None
    }

    /// Returns its windows, if it has some with a period and an anchor.
    #[inline(always)]
    fn window(&self) -> Option<&Window> {
        None
    }

    /// Returns its calendar, if it has one.
    fn calendar(&self) -> Option<&Calendar> {
        None
    }

    /// Returns the clock by which it counts: the wall clock for calendar windows and aligned windows.
    #[inline(always)]
    fn timeline(&self) -> Timeline {
        self.window().map_or(Timeline::Steady, Window::timeline)
    }

    /// Returns the limit for the bucket `key`: a phase per key is replaced by that of this key.
    fn for_key(self, _key: &str) -> Self
    where
        Self: Sized,
    {
        self
    }
}

/// Returns one of `processes` equal parts, at least 1.
pub(super) fn part(tokens: i64, processes: i64) -> i64 {
    (tokens / processes).max(1)
}

/// Returns `time * factor / divisor`, rounded up.
pub(super) fn times(
    field: &'static str,
    time: Nanos,
    factor: i64,
    divisor: i64,
) -> Result<Nanos, LimitError> {
    let product = wide(time.get()) * wide(factor) + wide(divisor) - 1;
    let too_long = LimitError::TooLong { field, found: Nanos::MAX };
    i64::try_from(product / wide(divisor)).map(Nanos::clamped).map_err(|_| too_long)
}

pub(crate) fn wide(number: i64) -> i128 {
    i128::from(number)
}

pub(crate) fn narrow(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
