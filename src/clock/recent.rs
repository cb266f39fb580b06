//! A reading of the kernel's clock that is shared by calls in quick succession.
//!
//! Reading that clock takes about as long as a decision: it waits for all earlier instructions, and
//! then reads and scales the processor's counter. The counter alone, read without waiting, tells
//! whether the last reading is recent.
//!
//! A returned time was read from the kernel's clock before, so it is never ahead of that clock,
//! regardless of the counter, and it never goes back. It is behind by less than [`MAX_AGE`]. The
//! counter is never converted to time, so its rate does not matter. If it jumps, for example after
//! a suspend or a migration to another machine, the last reading does not count as recent.
//!
//! Uses `unsafe` because the intrinsic has no safe wrapper.

use once_cell::race::OnceBool;

use crate::clock::Kernel;
use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// The maximum age of a shared reading, in cycles of the counter: a microsecond at 2 GHz.
const MAX_AGE: u64 = 2048;

/// The last reading of one of the kernel's clocks in this process.
#[derive(Debug)]
pub(super) struct Recent {
    /// The counter at the reading or shortly before.
    cycles: AtomicU64,
    nanos: AtomicI64,
}

/// Returns the reading of a clock that the process shares; `None` if the counter cannot tell its age.
pub(super) fn of(kernel: Kernel) -> Option<&'static Recent> {
    static MONOTONIC: Recent = Recent::new();
    static SINCE_BOOT: Recent = Recent::new();
    is_trusted().then_some(match kernel {
        Kernel::Monotonic => &MONOTONIC,
        Kernel::SinceBoot => &SINCE_BOOT,
    })
}

/// Returns whether the kernel derives its own clock from the counter, which then runs steadily and
/// is the same on all processors.
#[expect(clippy::disallowed_methods, reason = "this file of the kernel's holds no limits")]
fn is_trusted() -> bool {
    static TRUSTED: OnceBool = OnceBool::new();
    TRUSTED.get_or_init(|| {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        std::fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
    })
}

impl Recent {
    const fn new() -> Recent {
        Recent { cycles: AtomicU64::new(0), nanos: AtomicI64::new(0) }
    }

    /// Returns the last reading of `kernel`, which is always the same clock, or a new one if that is
    /// not recent.
    #[inline(always)]
    pub(super) fn reading(&self, kernel: Kernel) -> i64 {
        // SAFETY: every x86-64 processor has the instruction, and a kernel that trusts the counter lets
        // programs use it.
        let cycles = unsafe { std::arch::x86_64::_rdtsc() };
        // Acquire pairs with the Release in `read`: the reading is at least as recent as the stored
        // counter.
        if cycles.wrapping_sub(self.cycles.load(Ordering::Acquire)) < MAX_AGE {
            return self.nanos.load(Ordering::Relaxed);
        }
        self.read(kernel, cycles)
    }

    #[inline(never)]
    fn read(&self, kernel: Kernel, cycles: u64) -> i64 {
        let read = kernel.read();
        // Another thread may have read the clock later and stored that already.
        let nanos = self.nanos.fetch_max(read, Ordering::Relaxed).max(read);
        self.cycles.store(cycles, Ordering::Release);
        nanos
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_shared_reading_is_recent_and_neither_ahead_nor_going_back() {
        for kernel in [Kernel::Monotonic, Kernel::SinceBoot] {
            let Some(recent) = of(kernel) else { return };
            check(recent, kernel);
        }
    }

    fn check(recent: &Recent, kernel: Kernel) {
        let shared = || {
            let (mut last, mut shared) = (0, 0);
            for _ in 0..100_000 {
                let before = kernel.read();
                let shown = recent.reading(kernel);
                let after = kernel.read();
                assert!(shown >= last && shown <= after, "{last} {shown} {after}");
                // No counter that a kernel trusts is slower than 500 MHz.
                assert!(before - shown < 2 * MAX_AGE as i64, "{before} {shown}");
                shared += usize::from(shown < before);
                last = shown;
            }
            shared
        };
        let threads = thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(shared));
            threads.map(|thread| thread.join().expect("a count"))
        });
        assert!(threads.iter().sum::<usize>() > 1000, "{threads:?} readings are shared");
    }
}
