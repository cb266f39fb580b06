//! What an operator sees of a store that several processes share, and does to it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use crate::engine::time::{Nanos, Timestamp};
use crate::store::{Stats, StoreError};

/// The bounds of [`Inspection::reset_within`], ascending, and their names.
pub const RESET_WITHIN: [(&str, Nanos); 4] = [
    ("1s", Nanos::SECOND),
    ("1m", Nanos::from_millis(60_000)),
    ("1h", Nanos::from_millis(3_600_000)),
    ("1d", Nanos::from_millis(86_400_000)),
];

/// How many buckets are full again within each of [`RESET_WITHIN`] and not within the bound before
/// it. The last number counts those that need longer than all bounds.
pub type ResetWithin = [u64; RESET_WITHIN.len() + 1];

/// A store at one instant. `None` where a store cannot tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The statistics.
    pub stats: Stats,
    /// The file of the store.
    pub file: Option<PathBuf>,
    /// When the store was created.
    pub created: Option<Timestamp>,
    /// How soon the buckets are full again.
    pub reset_within: Option<ResetWithin>,
    /// The buckets that are full again last, in descending order.
    pub slowest: Vec<SlowBucket>,
}

/// A bucket that needs long to be full again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowBucket {
    /// The time until it is full again; for a bucket with a tally, an upper bound.
    pub reset_after: Nanos,
    /// What a window or a leaky bucket has counted; `None` for a token bucket.
    pub tally: Option<u64>,
    /// The bucket's key; `None` if the store keeps hashes of ids.
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

/// A [`SlowBucket`], in an order of its own: the slower is the larger.
type Slow = (Nanos, Option<u64>, Option<String>);

impl Survey {
    /// An empty survey, of at most `max_slowest` slow buckets.
    pub(crate) fn new(max_slowest: usize) -> Survey {
        let (reset_within, slowest) = (ResetWithin::default(), BinaryHeap::new());
        Survey { max_slowest, buckets: 0, reset_within, slowest }
    }

    /// Counts a bucket that is full again at `end`, unless it is full at `now`.
    pub(crate) fn add(
        &mut self,
        end: Timestamp,
        now: Timestamp,
        tally: Option<u64>,
        bucket_key: impl FnOnce() -> Option<String>,
    ) {
        if end <= now {
            return;
        }
        let reset_after = Nanos::clamped(end.get() - now.get());
        self.buckets += 1;
        self.reset_within[RESET_WITHIN.partition_point(|&(_, bound)| bound < reset_after)] += 1;
        let is_full = self.slowest.len() >= self.max_slowest;
        // Among equally slow ones the key decides: the same buckets whatever order a server scans in.
        if is_full && self.slowest.peek().is_none_or(|Reverse(first)| first.0 > reset_after) {
            return;
        }
        self.slowest.push(Reverse((reset_after, tally, bucket_key())));
        if self.slowest.len() > self.max_slowest {
            self.slowest.pop();
        }
    }

    /// The number of buckets, how soon they are full again, and the slowest of them.
    pub(crate) fn finish(self) -> (u64, ResetWithin, Vec<SlowBucket>) {
        let slowest = self.slowest.into_sorted_vec().into_iter();
        let slowest = slowest.map(|Reverse((reset_after, tally, bucket_key))| SlowBucket {
            reset_after,
            tally,
            bucket_key,
        });
        (self.buckets, self.reset_within, slowest.collect())
    }
}

/// A store that an operator can reach from outside the processes that use it.
pub trait Inspect: Send + Sync {
    /// Returns the store at `now`, with at most `slowest` buckets.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    fn inspect(&self, now: Timestamp, slowest: usize) -> Result<Inspection, StoreError>;

    /// Forgets all buckets. Returns how many there were.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    fn clear(&self) -> Result<u64, StoreError>;
}
