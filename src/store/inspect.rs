//! What an operator sees of a store that several processes share, and does to it.

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
    /// The buckets that are full again last, in descending order. Stores keep hashes of ids, so a
    /// bucket's client is unknown.
    pub slowest: Vec<SlowBucket>,
}

/// A bucket that needs long to be full again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowBucket {
    /// The time until it is full again; for a bucket with a tally, an upper bound.
    pub reset_after: Nanos,
    /// What a window or a leaky bucket has counted; `None` for a token bucket.
    pub tally: Option<u64>,
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
