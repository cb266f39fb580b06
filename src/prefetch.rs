//! Prefetching of memory that is about to be read.
//!
//! Uses `unsafe`, because the intrinsic has no safe wrapper.

/// The number of elements by which the prefetch of an element of a long list precedes its use.
pub(crate) const DISTANCE: usize = 32;

/// Prefetches the cache line at `address`. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no observable effect, even at an unmapped address, and every x86-64 processor supports
    // the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
