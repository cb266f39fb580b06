//! The keyed hash that identifies ids: the buckets of a store, and overrides.

use std::fmt;

use crate::sync::counting::OnceBox;

/// The key of a keyed hash. It is secret.
#[derive(Clone, Copy)]
pub struct HashKey(pub(crate) u64, pub(crate) u64);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// Returns a random key.
    pub fn random() -> HashKey {
        if cfg!(loom) {
            // A model runs many times and must use the same slots each time.
            return HashKey(0, 0);
        }
        // The standard library seeds this from the operating system's randomness and cannot fail.
        use std::hash::{BuildHasher, Hasher, RandomState};
        let word = || RandomState::new().build_hasher().finish();
        HashKey(word(), word())
    }

    /// Returns the random key of this process, with which ids are hashed for everything in its memory.
    #[inline]
    pub fn of_process() -> HashKey {
        static KEY: OnceBox<HashKey> = OnceBox::new();
        *KEY.get_or_init(|| Box::new(HashKey::random()))
    }

    /// Returns SipHash-1-3 with 64 bits. Without the key, collisions cannot be constructed.
    ///
    /// It is implemented here because for short ids, calling the hasher of a crate costs as much as
    /// its rounds; this one is inlined.
    ///
    /// # Source
    /// Aumasson and Bernstein, SipHash: a fast short-input PRF (2012), with one round for each word
    /// and three at the end.
    #[inline(always)]
    pub(crate) fn hash(self, bytes: &[u8]) -> u64 {
        let mut state = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        let (chunks, tail) = bytes.as_chunks::<8>();
        for chunk in chunks {
            absorb(&mut state, u64::from_le_bytes(*chunk));
        }
        absorb(&mut state, (bytes.len() as u64) << 56 | number(tail));
        state[2] ^= 0xff;
        for _ in 0..3 {
            round(&mut state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

#[inline(always)]
fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

#[inline(always)]
fn round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    *state = [a, b, c, d];
}

/// Returns up to seven bytes as a little-endian number.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two may overlap, in equal bytes.
        let last = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
        return u64::from(u32::from_le_bytes(*first)) | last;
    }
    match *bytes {
        [] => 0,
        [one] => one.into(),
        [one, two] => u16::from_le_bytes([one, two]).into(),
        [one, two, three, ..] => u32::from_le_bytes([one, two, three, 0]).into(),
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip::SipHasher13;

    use super::*;

    #[test]
    fn random_keys_hash_differently() {
        assert_ne!(HashKey::random().hash(b"id"), HashKey::random().hash(b"id"));
    }

    #[test]
    fn the_inlined_hash_is_siphash_1_3_at_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        let key = HashKey(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        for length in 0..=64 {
            for bytes in [&bytes[..length], &bytes[256 - length..]] {
                let expected = SipHasher13::new_with_keys(key.0, key.1).hash(bytes);
                assert_eq!(key.hash(bytes), expected, "{length} bytes");
            }
        }
    }
}
