//! Descriptions of limits: their parameters, how much they admit, and the share of one process.
//!
//! Summaries, limits files, pickles, header fields and the fallback in an outage are derived from
//! it. Each algorithm describes itself, so that no other code distinguishes them.

use std::num::NonZeroU32;

use crate::engine::algorithm::description::{Description, Fields, Refill, Repayment, narrow, wide};
use crate::engine::decision::Decision;
use crate::engine::limit::{Limit, dispatch};
use crate::engine::limit_error::LimitError;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;

const DAY: Nanos = Nanos::clamped(86_400_000_000_000);

/// How much a limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens that a full bucket admits at one instant.
    pub at_once: i64,
    /// How a bucket gets tokens.
    pub refill: Refill,
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
    pub fn fields(&self) -> Fields {
        self.rules().map_or_else(Vec::new, |rules| rules.fields())
    }

    /// Returns the numbers of a call for the script of a server.
    pub fn wire(&self, verb: Verb, cost: i64, now: Timestamp) -> [i64; 6] {
        self.rules().map_or([0; 6], |rules| rules.wire(verb, cost, now))
    }

    /// Returns a short English description, with the names of [`fields`](Limit::fields) in braces
    /// in place of their values.
    pub fn summary(&self) -> &'static str {
        self.rules().map_or("no limit", |rules| rules.summary())
    }

    /// Returns how much the limit admits; `None` if it is unlimited or limits requests in flight, which
    /// may end and begin at any rate.
    pub fn facts(&self) -> Option<Facts> {
        let Limit::Rate(_) = self else { return None };
        let rules = self.rules()?;
        let (refill, interval) = (rules.refill(), rules.interval());
        let per_day = wide(rules.long_run()) * wide(DAY.get()) / wide(refill.interval.get());
        Some(Facts {
            at_once: self.max_cost(),
            refill,
            per_day: narrow(per_day),
            interval,
            worst_in_interval: rules.worst_in(interval),
        })
    }

    /// Returns the maximum number of tokens that can be spent from one bucket within any interval
    /// of this length, both ends included. The number is exact: a greedy client reaches it.
    ///
    /// `i64::MAX` if the limit is unlimited or allows more than that.
    pub fn worst_in(&self, interval: Nanos) -> i64 {
        self.rules().map_or(i64::MAX, |rules| rules.worst_in(interval))
    }

    /// Returns the limit for each of `processes` processes that together admit about as much as
    /// this limit. A share admits at least one request at once.
    ///
    /// # Errors
    /// [`LimitError`] if the share would be slower than the slowest valid limit.
    pub fn share(&self, processes: NonZeroU32) -> Result<Limit, LimitError> {
        let processes = i64::from(processes.get());
        dispatch!(self, rules => rules.share(processes).map(Limit::from), Ok(Limit::Unlimited))
    }

    /// Returns the tokens that a client can get from one full bucket or in one window; `i64::MAX`
    /// if unlimited.
    pub fn capacity(&self) -> i64 {
        self.rules().map_or(i64::MAX, |rules| rules.capacity())
    }

    /// Returns the time in which an empty bucket fills or a full leaky bucket drains, or the period
    /// of a window; 0 if unlimited.
    pub fn time_to_refill(&self) -> Nanos {
        self.rules().map_or(Nanos::ZERO, |rules| rules.time_to_refill())
    }

    /// Returns the length of the window at `now`, or the time to refill of other limits.
    pub fn window_length(&self, now: Timestamp) -> Nanos {
        self.rules().map_or(Nanos::ZERO, |rules| rules.window_length(now))
    }

    /// Returns whether its windows differ in length.
    pub fn window_varies(&self) -> bool {
        self.rules().is_some_and(|rules| rules.window_varies())
    }

    /// Returns the remaining tokens to show to the client.
    ///
    /// For a fixed-rate window, only the tokens that can be spent now. The others wait for their
    /// slots, and a denied client must not read that it has tokens left.
    pub fn shown_remaining(&self, decision: &Decision) -> i64 {
        self.rules().map_or(decision.remaining, |rules| rules.shown_remaining(decision))
    }

    /// Returns the wait to show to the client: the time until one more token can be spent, or 0 if
    /// the bucket is full.
    ///
    /// For a leaky bucket, the wait is shown only if no tokens remain.
    pub fn shown_wait(&self, decision: &Decision) -> Nanos {
        self.rules().map_or(decision.next_token_after, |rules| rules.shown_wait(decision))
    }

    /// Returns the wait of a client that was denied: `retry_after`, but at least the shown wait. For
    /// slots, a hint.
    pub fn shown_retry(&self, decision: &Decision) -> Nanos {
        self.rules().map_or(decision.retry_after, |rules| rules.shown_retry(decision))
    }

    /// Returns the time until the bucket is full, to show to the client. For slots, a hint.
    pub fn shown_reset(&self, decision: &Decision) -> Nanos {
        self.rules().map_or(decision.reset_after, |rules| rules.shown_reset(decision))
    }

    /// Returns how a bucket repays a charge of `cost` taken before the tokens are there. `None` if
    /// a waiter must not be charged early.
    pub fn repayment(&self, cost: i64) -> Option<Repayment> {
        self.rules()?.repayment(cost)
    }
}
