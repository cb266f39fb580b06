//! A store with a deliberate bug: it decides at the caller's clock reading, however old it is.

use penstock::engine::time::Now;
use penstock::store::memory::MemoryStore;
use penstock::store::{Bucket, Write};

use super::wrapped::{Around, Decide, Wrapped};

/// Disables the floor of the memory store: a call is decided at the caller's instant even if a bucket
/// that ended later was forgotten. This violates the second half of guarantee 4.
pub struct NoFloor;

impl Around for NoFloor {
    fn decide(&self, _: &[Bucket<'_>], _: Now, asked: Now, decide: &mut Decide<'_>) -> Vec<Write> {
        decide(asked)
    }
}

/// Returns the memory store without its floor.
pub fn without_floor(store: MemoryStore) -> Wrapped<NoFloor> {
    Wrapped { store, around: NoFloor }
}
