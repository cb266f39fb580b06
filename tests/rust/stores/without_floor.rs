//! A broken store: it decides at the instant that the caller read, however old.

use penstock::engine::time::Timestamp;
use penstock::store::Bucket;
use penstock::store::memory::MemoryStore;

use super::wrapped::{Around, Wrapped};

/// Undoes the floor of the memory store: a call is decided at the caller's instant even if a
/// bucket was forgotten that ended later. This breaks the second half of guarantee 4.
pub struct NoFloor;

impl Around for NoFloor {
    fn decide<T>(
        &self,
        _: &[Bucket<'_>],
        _: Timestamp,
        asked: Timestamp,
        decide: impl FnOnce(Timestamp) -> T,
    ) -> T {
        decide(asked)
    }
}

/// The memory store without its floor.
pub fn without_floor(store: MemoryStore) -> Wrapped<NoFloor> {
    Wrapped { store, around: NoFloor }
}
