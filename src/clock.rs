//! The only file that reads the time.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::time::{BeforeOrigin, Nanos, Timestamp};
use crate::sync::{AtomicI64, Ordering};

/// A source of time. Implementations never panic and never block; the time may stay the same or go
/// backwards.
pub trait Clock: Send + Sync {
    /// The time, in nanoseconds since the clock's origin.
    fn now(&self) -> Timestamp;
}

/// The machine's monotonic clock, on the scale of the Unix epoch.
///
/// The wall clock is read once, when the clock is made: a wall clock that is set later is not
/// followed, so setting it neither adds nor removes tokens.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The difference between the wall clock and the monotonic clock, in nanoseconds.
    offset: i64,
    #[cfg(not(unix))]
    started: std::time::Instant,
}

impl SystemClock {
    /// Reads the wall clock, only here. A wall clock before 1970 counts as 1970.
    #[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
    pub fn new() -> SystemClock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX);
        let mut clock = SystemClock {
            offset: 0,
            #[cfg(not(unix))]
            started: std::time::Instant::now(),
        };
        clock.offset = wall.saturating_sub(clock.monotonic());
        clock
    }

    /// Nanoseconds on a clock that cannot be set.
    #[cfg(unix)]
    #[inline]
    fn monotonic(&self) -> i64 {
        monotonic()
    }

    /// Nanoseconds on a clock that cannot be set.
    #[cfg(not(unix))]
    #[inline]
    fn monotonic(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::clamped(self.offset.saturating_add(self.monotonic()))
    }
}

/// The clock of a limiter that is configured at run time.
#[derive(Clone, Debug)]
pub enum AnyClock {
    /// The machine's monotonic clock.
    System(SystemClock),
    /// The clock of a shared table.
    #[cfg(unix)]
    Boot(BootClock),
    /// A clock that a program moves.
    Manual(Arc<ManualClock>),
}

impl Clock for AnyClock {
    #[inline]
    fn now(&self) -> Timestamp {
        match self {
            AnyClock::System(clock) => clock.now(),
            #[cfg(unix)]
            AnyClock::Boot(clock) => clock.now(),
            AnyClock::Manual(clock) => clock.now(),
        }
    }
}

/// Measures real time, whichever clock decides.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    #[cfg(unix)]
    started: i64,
    #[cfg(not(unix))]
    started: std::time::Instant,
}

impl Stopwatch {
    /// Starts.
    #[cfg_attr(
        not(unix),
        expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")
    )]
    pub fn start() -> Stopwatch {
        #[cfg(unix)]
        let started = monotonic();
        #[cfg(not(unix))]
        let started = std::time::Instant::now();
        Stopwatch { started }
    }

    /// The time since the start.
    #[cfg_attr(
        not(unix),
        expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")
    )]
    pub fn elapsed(&self) -> Nanos {
        #[cfg(unix)]
        let elapsed = monotonic() - self.started;
        #[cfg(not(unix))]
        let elapsed = i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX);
        Nanos::clamped(elapsed)
    }
}

/// Nanoseconds on a clock that cannot be set.
#[cfg(unix)]
#[inline]
fn monotonic() -> i64 {
    // Not the processor's counter, which is read in less time: quanta, minstant and fastant measure its
    // rate once and never compare it with the kernel's clock again, so they run ahead of it in time.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // It counts from the machine's start, so it stays far below 2^63 ns.
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Nanoseconds since the machine booted, the time it was suspended included.
#[cfg(unix)]
#[inline]
fn since_boot() -> i64 {
    // macOS calls the clock that counts suspended time CLOCK_MONOTONIC.
    #[cfg(target_os = "macos")]
    const BOOT: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    #[cfg(not(target_os = "macos"))]
    const BOOT: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    let now = rustix::time::clock_gettime(BOOT);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// What the wall clock is ahead of [`since_boot`], in nanoseconds.
#[cfg(unix)]
#[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
pub(crate) fn wall_offset_of_boot_time() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX);
    wall.saturating_sub(since_boot())
}

/// The machine's boot-time clock plus an offset that all its readers share.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    offset: i64,
}

#[cfg(unix)]
impl BootClock {
    /// A clock that shows the time since boot plus `offset` nanoseconds.
    pub fn new(offset: i64) -> BootClock {
        BootClock { offset }
    }
}

#[cfg(unix)]
impl Clock for BootClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::clamped(self.offset.saturating_add(since_boot()))
    }
}

/// A clock that moves only on request.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
}

/// A move that a manual clock does not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ClockError {
    #[error(transparent)]
    BeforeOrigin(#[from] BeforeOrigin),
    #[error(
        "the clock shows {now} ns and would go back to {to} ns; allow_backwards=True would let it"
    )]
    Backwards {
        /// The time shown, in nanoseconds.
        now: i64,
        /// The time asked for, in nanoseconds.
        to: i64,
    },
    #[error("the clock shows {now} ns and cannot be advanced by {by} ns: it ends at 2^63 - 1 ns")]
    PastTheEnd {
        /// The time shown, in nanoseconds.
        now: i64,
        /// The length asked for, in nanoseconds.
        by: i64,
    },
}

impl ManualClock {
    /// Shows `start` until it is moved.
    pub fn new(start: Timestamp) -> ManualClock {
        ManualClock { now: AtomicI64::new(start.get()) }
    }

    /// Advances by a number of nanoseconds.
    ///
    /// # Errors
    /// [`ClockError`] if `by` is negative or the end of time would be passed; the clock is then
    /// left alone.
    pub fn advance(&self, by: i64) -> Result<(), ClockError> {
        self.change(|now| {
            if by < 0 {
                return Err(ClockError::Backwards { now, to: now.saturating_add(by) });
            }
            now.checked_add(by).ok_or(ClockError::PastTheEnd { now, by })
        })
    }

    /// Sets the time, in nanoseconds; back only with leave.
    ///
    /// # Errors
    /// [`ClockError`] if `to` is before the origin, or before the time shown without leave; the
    /// clock is then left alone.
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
        // Relaxed suffices: the clock orders nothing but itself, and a thread that learned of a
        // move sees it.
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
    fn a_manual_clock_goes_back_only_with_leave() {
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
    fn the_system_clock_is_after_2020_and_does_not_go_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first.get() > 1_577_836_800_000_000_000);
        assert!(clock.now() >= first);
    }
}
