//! The keyed hash that places buckets in the stores that live in memory.

use std::fmt;

use siphasher::sip128::SipHasher13;

/// A key of a keyed hash. It is never shown.
#[derive(Clone, Copy)]
pub struct HashKey(pub(crate) u64, pub(crate) u64);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// A key that cannot be guessed.
    pub fn random() -> HashKey {
        if cfg!(loom) {
            // A model runs many times and must use the same places each time.
            return HashKey(0, 0);
        }
        // The standard library seeds this from the operating system's randomness and cannot fail.
        use std::hash::{BuildHasher, Hasher, RandomState};
        let word = || RandomState::new().build_hasher().finish();
        HashKey(word(), word())
    }

    /// SipHash-1-3 with 128 bits out: without the key, no two colliding texts can be found.
    #[inline(always)]
    pub(crate) fn hash(self, bytes: &[u8]) -> (u64, u64) {
        let hash = SipHasher13::new_with_keys(self.0, self.1).hash(bytes);
        (hash.h1, hash.h2)
    }
}
