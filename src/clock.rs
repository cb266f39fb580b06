//! Clocks. Only this file reads the time.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::time::{BeforeOrigin, Nanos, Now, Timeline, Timestamp};
use crate::sync::counting;
use crate::sync::{AtomicI64, Ordering};

/// A source of time. Implementations never panic and never block. The time may stay the same or go
/// backwards.
pub trait Clock: Send + Sync {
    /// Returns the time of the steady clock.
    fn now(&self) -> Timestamp;

    /// Returns the time on both timelines. `timeline` is read; the other one may be the last known.
    fn read(&self, timeline: Timeline) -> Now {
        let _ = timeline;
        self.now().into()
    }
}

/// The clocks of the machine.
///
/// The steady one counts from the start of the machine, suspended time included, so it is the same in all
/// processes. The wall clock is read whenever it is needed, so that it may be set at any time.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(());

/// The wall clock less the steady clock of the machine, when both were last read.
static WALL_OFFSET: counting::AtomicI64 = counting::AtomicI64::new(0);
/// A difference of two readings below this is not a setting of the clock.
const JITTER: i64 = 1_000_000;

impl SystemClock {
    /// Creates a clock.
    pub fn new() -> SystemClock {
        let clock = SystemClock(());
        clock.read(Timeline::Wall);
        clock
    }

    /// Returns the time since 1970 of an instant of the steady clock. As long as the wall clock is not set,
    /// it is always the same.
    pub fn unix_time(self, steady: Timestamp) -> Timestamp {
        shifted(steady, SystemClock::read_both().1)
    }

    /// Reads both clocks. Returns also by how much the wall clock is ahead, which differs from the last
    /// time only if it was set.
    fn read_both() -> (Now, i64) {
        let now = Now { steady: Timestamp::clamped(steady()), wall: Timestamp::clamped(wall()) };
        let offset = now.wall.get() - now.steady.get();
        // Relaxed, here and below: the number orders no other access.
        let known = WALL_OFFSET.load(counting::Ordering::Relaxed);
        if (offset - known).abs() <= JITTER {
            return (now, known);
        }
        WALL_OFFSET.store(offset, counting::Ordering::Relaxed);
        (now, offset)
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
        Timestamp::clamped(steady())
    }

    #[inline(always)]
    fn read(&self, timeline: Timeline) -> Now {
        match timeline {
            Timeline::Steady => {
                let steady = self.now();
                Now { steady, wall: shifted(steady, WALL_OFFSET.load(counting::Ordering::Relaxed)) }
            }
            Timeline::Wall => SystemClock::read_both().0,
        }
    }
}

/// A clock of any kind, chosen at run time.
#[derive(Clone, Debug)]
pub enum AnyClock {
    /// The clocks of the machine.
    System(SystemClock),
    /// A clock that is moved by calls.
    Manual(Arc<ManualClock>),
}

impl AnyClock {
    /// Returns the time since 1970 of an instant of the steady clock.
    pub fn unix_time(&self, steady: Timestamp) -> Timestamp {
        match self {
            AnyClock::System(clock) => clock.unix_time(steady),
            AnyClock::Manual(clock) => shifted(steady, clock.offset()),
        }
    }
}

impl Clock for AnyClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        match self {
            AnyClock::System(clock) => clock.now(),
            AnyClock::Manual(clock) => clock.now(),
        }
    }

    #[inline(always)]
    fn read(&self, timeline: Timeline) -> Now {
        match self {
            AnyClock::System(clock) => clock.read(timeline),
            AnyClock::Manual(clock) => clock.read(timeline),
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
        Stopwatch { started: steady() }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Nanos {
        Nanos::clamped(steady() - self.started)
    }
}

/// Returns the nanoseconds since the machine started.
#[cfg(unix)]
#[inline]
fn steady() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    // On Linux, only this clock includes suspended time; on macOS, it is the monotonic clock.
    #[cfg(not(target_os = "macos"))]
    const SINCE_BOOT: ClockId = ClockId::Boottime;
    #[cfg(target_os = "macos")]
    const SINCE_BOOT: ClockId = ClockId::Monotonic;
    // The processor's counter is faster to read, but quanta, minstant and fastant calibrate it only once,
    // so they drift from the kernel's clock.
    let now = clock_gettime(SINCE_BOOT);
    // Cannot overflow: the clock starts with the machine, so it stays far below 2^63 ns.
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the nanoseconds since the first reading.
#[cfg(not(unix))]
#[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
fn steady() -> i64 {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let first = FIRST.get_or_init(std::time::Instant::now);
    i64::try_from(first.elapsed().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the wall clock in nanoseconds since 1970. A clock before 1970 is taken as 1970.
#[expect(clippy::disallowed_methods, reason = "this file is the one reader of the time")]
fn wall() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns an instant of the steady clock on the wall clock, which is `offset` ahead.
#[inline(always)]
fn shifted(steady: Timestamp, offset: i64) -> Timestamp {
    Timestamp::clamped(steady.get().saturating_add(offset))
}

/// A clock that changes only when it is moved. Its wall clock can be set on its own, as an administrator
/// or a time server sets that of a machine.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    /// The wall clock less the steady clock.
    offset: counting::AtomicI64,
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
        ManualClock { now: AtomicI64::new(start.get()), offset: counting::AtomicI64::new(0) }
    }

    /// Returns the time of the wall clock.
    pub fn wall(&self) -> Timestamp {
        shifted(self.now(), self.offset())
    }

    /// Sets the wall clock to `to`, forwards or backwards. The steady clock is unchanged.
    pub fn set_wall(&self, to: Timestamp) {
        self.offset.store(to.get() - self.now().get(), counting::Ordering::Relaxed);
    }

    fn offset(&self) -> i64 {
        self.offset.load(counting::Ordering::Relaxed)
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

    /// Moves both clocks so that the wall clock shows `to` nanoseconds.
    ///
    /// # Errors
    /// [`ClockError`] if a clock would be before its origin, or before the current time without
    /// `allow_backwards`. The clock is then unchanged.
    pub fn set(&self, to: i64, allow_backwards: bool) -> Result<(), ClockError> {
        let offset = self.offset();
        self.change(|now| {
            let (now, to) = (now.saturating_add(offset), Timestamp::new(to)?.get());
            if to < now && !allow_backwards {
                Err(ClockError::Backwards { now, to })
            } else {
                Ok(Timestamp::new(to.saturating_sub(offset))?.get())
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

    #[inline]
    fn read(&self, _: Timeline) -> Now {
        let steady = self.now();
        Now { steady, wall: shifted(steady, self.offset()) }
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
    fn the_system_clock_is_steady_and_its_wall_clock_is_after_2020() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.read(Timeline::Wall).wall.get() > 1_577_836_800_000_000_000);
        assert_eq!(clock.unix_time(first), clock.unix_time(first));
        assert!(clock.now() >= first);
    }

    #[test]
    fn setting_the_wall_clock_moves_only_the_wall_clock() {
        let clock = ManualClock::new(Timestamp::clamped(100));
        clock.set_wall(Timestamp::clamped(40));
        clock.advance(5).unwrap();
        let now = clock.read(Timeline::Steady);
        assert_eq!((now.steady.get(), now.wall.get()), (105, 45));
        clock.set_wall(Timestamp::clamped(1000));
        assert_eq!((clock.now().get(), clock.wall().get()), (105, 1000));
    }
}
