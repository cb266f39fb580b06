//! Inspection of shared stores by an operator.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use crate::engine::state::{State, StateKind};
use crate::engine::time::{Nanos, Now, Timestamp};
use crate::store::{Stats, StoreError};

/// The bounds of [`Inspection::reset_within`], ascending, and their names.
pub const RESET_WITHIN: [(&str, Nanos); 4] = [
    ("1s", Nanos::SECOND),
    ("1m", Nanos::from_millis(60_000)),
    ("1h", Nanos::from_millis(3_600_000)),
    ("1d", Nanos::from_millis(86_400_000)),
];

/// A histogram of the times until buckets are full: one count per bound of [`RESET_WITHIN`], and
/// one for longer times.
pub type ResetWithin = [u64; RESET_WITHIN.len() + 1];

/// The state of a store at one instant. `None` where a store does not know a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The statistics.
    pub stats: Stats,
    /// The file of the store.
    pub file: Option<PathBuf>,
    /// The time at which the store was created.
    pub created: Option<Timestamp>,
    /// Histogram of the times until the buckets are full.
    pub reset_within: Option<ResetWithin>,
    /// The buckets with the longest times until they are full, in descending order.
    pub slowest: Vec<SlowBucket>,
}

/// A bucket with a long time until it is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowBucket {
    /// Time until it is full, or its slots have expired; with a tally or slots, an upper bound.
    pub reset_after: Nanos,
    /// The tally of a window or a leaky bucket; `None` for other buckets.
    pub tally: Option<u64>,
    /// The slots that requests in flight hold, an upper bound; `None` for other buckets.
    pub slots: Option<i64>,
    /// The bucket key; `None` if the store keeps only hashes of ids.
    pub bucket_key: Option<String>,
}

/// Collects the buckets of a store for its [`Inspection`].
#[derive(Debug)]
pub(crate) struct Survey {
    max_slowest: usize,
    buckets: u64,
    reset_within: ResetWithin,
    slowest: BinaryHeap<Reverse<Slow>>,
}

/// A [`SlowBucket`], ordered by the time until it is full.
type Slow = (Nanos, Option<u64>, Option<i64>, Option<String>);

impl Survey {
    /// Returns an empty survey that keeps at most `max_slowest` slow buckets.
    pub(crate) fn new(max_slowest: usize) -> Survey {
        let (reset_within, slowest) = (ResetWithin::default(), BinaryHeap::new());
        Survey { max_slowest, buckets: 0, reset_within, slowest }
    }

    /// Counts a bucket that will be full at `end`, unless it is full at `now`.
    pub(crate) fn add(
        &mut self,
        end: Timestamp,
        now: Timestamp,
        (kind, state): (StateKind, State),
        bucket_key: impl FnOnce() -> Option<String>,
    ) {
        if end <= now {
            return;
        }
        let reset_after = Nanos::clamped(end.get() - now.get());
        self.buckets += 1;
        self.reset_within[RESET_WITHIN.partition_point(|&(_, bound)| bound < reset_after)] += 1;
        let is_full = self.slowest.len() >= self.max_slowest;
        // Ties are broken by key, so that the result does not depend on the scan order of a server.
        if is_full && self.slowest.peek().is_none_or(|Reverse(first)| first.0 > reset_after) {
            return;
        }
        let (tally, slots) = (kind.tally_in(state), kind.slots_in(state));
        self.slowest.push(Reverse((reset_after, tally, slots, bucket_key())));
        if self.slowest.len() > self.max_slowest {
            self.slowest.pop();
        }
    }

    /// Returns the number of buckets, the histogram, and the slowest buckets.
    pub(crate) fn finish(self) -> (u64, ResetWithin, Vec<SlowBucket>) {
        let slowest = self.slowest.into_sorted_vec().into_iter();
        let slowest = slowest.map(|Reverse((reset_after, tally, slots, bucket_key))| SlowBucket {
            reset_after,
            tally,
            slots,
            bucket_key,
        });
        (self.buckets, self.reset_within, slowest.collect())
    }
}

/// A store that can be inspected from outside the processes that use it.
pub trait Inspect: Send + Sync {
    /// Returns the state of the store at `now`, with at most `slowest` buckets.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    fn inspect(&self, now: Now, slowest: usize) -> Result<Inspection, StoreError>;
}
