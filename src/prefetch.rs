//! Asking the processor to fetch memory that is about to be read.
//!
//! The one `unsafe` of the stores: the instruction has no safe name.

/// Asks for the cache line at `address` to be fetched. Only a hint: nothing is read, whatever the address is.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program could observe, also at an address that is not mapped; and every
    // processor of this kind has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
