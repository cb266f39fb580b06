//! Clocks. Only this file reads the time.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::time::{BeforeOrigin, Nanos, Timestamp};
use crate::sync::{AtomicI64, Ordering};

/// A source of time. Implementations never panic and never block. The time may stay the same or go
/// backwards.
pub trait Clock: Send + Sync {
    /// Returns the time in nanoseconds since the clock's origin.
    fn now(&self) -> Timestamp;
}

/// A steady clock of the machine, shifted to the Unix epoch.
///
/// The wall clock is read only on creation. Later changes of the wall clock are ignored, so they
/// neither add nor remove tokens.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    kernel: Kernel,
    /// The difference between the wall clock and the kernel's clock, in nanoseconds.
    offset: i64,
}

impl SystemClock {
    /// Creates a clock. A wall clock before 1970 is treated as 1970.
    pub fn new() -> SystemClock {
        SystemClock {
            kernel: Kernel::Monotonic,
            offset: wall().saturating_sub(Kernel::Monotonic.read()),
        }
    }

    /// Returns a clock that shows the time since boot plus `offset` nanoseconds, which is the same in
    /// all processes.
    #[cfg(unix)]
    #[must_use]
    pub fn since_boot(self, offset: i64) -> SystemClock {
        SystemClock { kernel: Kernel::SinceBoot, offset }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        Timestamp::clamped(self.offset.saturating_add(self.kernel.read()))
    }
}

/// A clock of any kind, chosen at run time.
#[derive(Clone, Debug)]
pub enum AnyClock {
    /// A steady clock of the machine.
    System(SystemClock),
    /// A clock that is moved by calls.
    Manual(Arc<ManualClock>),
}

impl Clock for AnyClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        match self {
            AnyClock::System(clock) => clock.now(),
            AnyClock::Manual(clock) => clock.now(),
        }
    }
}

/// A measurement of real time, independent of the limiter's clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: i64,
}

impl Stopwatch {
    /// Starts a stopwatch.
    pub fn start() -> Stopwatch {
        Stopwatch { started: Kernel::Monotonic.read() }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Nanos {
        Nanos::clamped(Kernel::Monotonic.read() - self.started)
    }
}

/// A clock of the kernel that no program can set.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Monotonic,
    /// Includes the time that the machine was suspended.
    #[cfg(unix)]
    SinceBoot,
}

impl Kernel {
    /// Returns nanoseconds since an instant that is the same for all processes.
    #[cfg(unix)]
    #[inline]
    fn read(self) -> i64 {
        use rustix::time::{ClockId, clock_gettime};
        // The processor's counter is faster to read, but quanta, minstant and fastant calibrate it only
        // once, so they drift from the kernel's clock.
        let now = clock_gettime(match self {
            // On macOS, CLOCK_MONOTONIC includes suspended time.
            #[cfg(not(target_os = "macos"))]
            Kernel::SinceBoot => ClockId::Boottime,
            _ => ClockId::Monotonic,
        });
        // Cannot overflow: the clock starts with the machine, so it stays far below 2^63 ns.
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    }

    /// Returns nanoseconds since the first reading.
    #[cfg(not(unix))]
    #[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
    fn read(self) -> i64 {
        static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let first = FIRST.get_or_init(std::time::Instant::now);
        i64::try_from(first.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }
}

/// Returns the wall clock in nanoseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
fn wall() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the wall clock minus the time since boot, in nanoseconds.
#[cfg(unix)]
pub(crate) fn wall_offset_of_boot_time() -> i64 {
    wall().saturating_sub(Kernel::SinceBoot.read())
}

/// A clock that changes only when it is moved.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
}

/// An invalid move of a manual clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ClockError {
    #[error(transparent)]
    BeforeOrigin(#[from] BeforeOrigin),
    #[error(
        "the clock shows {now} ns and would go back to {to} ns; allow_backwards=True would let it"
    )]
    Backwards {
        /// The current time in nanoseconds.
        now: i64,
        /// The requested time in nanoseconds.
        to: i64,
    },
    #[error("the clock shows {now} ns and cannot be advanced by {by} ns: it ends at 2^63 - 1 ns")]
    PastTheEnd {
        /// The current time in nanoseconds.
        now: i64,
        /// The requested advance in nanoseconds.
        by: i64,
    },
}

impl ManualClock {
    /// Creates a clock that shows `start`.
    pub fn new(start: Timestamp) -> ManualClock {
        ManualClock { now: AtomicI64::new(start.get()) }
    }

    /// Advances the clock by `by` nanoseconds.
    ///
    /// # Errors
    /// [`ClockError`] if `by` is negative or the time would exceed 2^63 - 1 ns. The clock is then
    /// unchanged.
    pub fn advance(&self, by: i64) -> Result<(), ClockError> {
        self.change(|now| {
            if by < 0 {
                return Err(ClockError::Backwards { now, to: now.saturating_add(by) });
            }
            now.checked_add(by).ok_or(ClockError::PastTheEnd { now, by })
        })
    }

    /// Sets the time to `to` nanoseconds.
    ///
    /// # Errors
    /// [`ClockError`] if `to` is before the origin, or before the current time without
    /// `allow_backwards`. The clock is then unchanged.
    pub fn set(&self, to: i64, allow_backwards: bool) -> Result<(), ClockError> {
        self.change(|now| {
            let to = Timestamp::new(to)?.get();
            if to < now && !allow_backwards {
                Err(ClockError::Backwards { now, to })
            } else {
                Ok(to)
            }
        })
    }

    fn change(&self, next: impl Fn(i64) -> Result<i64, ClockError>) -> Result<(), ClockError> {
        // Relaxed: the clock orders no other access.
        let mut now = self.now.load(Ordering::Relaxed);
        loop {
            match self.now.compare_exchange(now, next(now)?, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(found) => now = found,
            }
        }
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::clamped(self.now.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_goes_back_only_if_allowed() {
        let clock = ManualClock::new(Timestamp::clamped(5));
        clock.advance(3).unwrap();
        assert_eq!(clock.set(7, false), Err(ClockError::Backwards { now: 8, to: 7 }));
        assert_eq!(clock.advance(-1), Err(ClockError::Backwards { now: 8, to: 7 }));
        assert_eq!(clock.now().get(), 8);
        clock.set(7, true).unwrap();
        assert_eq!(clock.now().get(), 7);
        assert!(matches!(clock.set(-1, true), Err(ClockError::BeforeOrigin(_))));
        assert!(matches!(clock.advance(i64::MAX), Err(ClockError::PastTheEnd { .. })));
    }

    #[test]
    fn a_stopwatch_measures_real_time() {
        let stopwatch = Stopwatch::start();
        let first = stopwatch.elapsed();
        while stopwatch.elapsed() == first {}
        assert!(stopwatch.elapsed() > first);
        assert!(first >= Nanos::ZERO);
    }

    #[test]
    fn the_system_clock_is_after_2020_and_monotonic() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first.get() > 1_577_836_800_000_000_000);
        assert!(clock.now() >= first);
    }
}
