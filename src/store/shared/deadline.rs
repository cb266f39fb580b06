//! How long a call waits for locks that other processes hold.

use std::cell::Cell;

use crate::clock::Stopwatch;
use crate::engine::time::Nanos;
use crate::store::Wait;
use crate::store::shared::SharedError;

/// The longest wait of a call, from its first wait on and over all of its locks.
const CALL: Nanos = Nanos::from_millis(200);
/// The longest wait of the opening of a table for another process that creates it.
const OPENING: Nanos = Nanos::from_millis(30_000);
/// Attempts before a waiting thread lets other threads run.
const SPINS: u32 = 20;
/// The longest pause between two attempts.
const MAX_PAUSE_MICROS: u32 = 1_000;

/// The time until which one call waits for locks. It starts with the first wait.
#[derive(Debug)]
pub struct Deadline {
    /// `None` if the call must not wait.
    longest: Option<Nanos>,
    waiting: Cell<Option<Stopwatch>>,
}

impl Deadline {
    /// Returns the deadline of a call.
    pub const fn of_call(wait: Wait) -> Deadline {
        let longest = match wait {
            Wait::Allowed => Some(CALL),
            Wait::Never => None,
        };
        Deadline { longest, waiting: Cell::new(None) }
    }

    /// Returns the deadline of the opening of a table.
    pub(super) const fn of_opening() -> Deadline {
        Deadline { longest: Some(OPENING), waiting: Cell::new(None) }
    }

    /// Returns whether the call may wait at all.
    pub(super) fn may_wait(&self) -> bool {
        self.longest.is_some()
    }

    /// Returns the error of a call that did not get a lock by then.
    #[cold]
    pub(super) fn error(&self) -> SharedError {
        if self.may_wait() { SharedError::Busy } else { SharedError::WouldWait }
    }

    /// Returns whether the deadline has passed.
    fn has_passed(&self) -> bool {
        let Some(longest) = self.longest else { return true };
        let stopwatch = self.waiting.get().unwrap_or_else(Stopwatch::start);
        self.waiting.set(Some(stopwatch));
        stopwatch.elapsed() > longest
    }

    /// Calls `attempt` until it returns a value; returns `None` if the deadline passes before.
    /// There is always one attempt.
    ///
    /// # Errors
    /// The error of an attempt, which ends the wait.
    pub(super) fn retry<T, E>(
        &self,
        attempt: impl Fn() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        for tries in 0_u32.. {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            if self.has_passed() {
                break;
            }
            match tries.checked_sub(SPINS) {
                None => std::hint::spin_loop(),
                Some(pauses) => pause(50 * (pauses + 1)),
            }
        }
        Ok(None)
    }
}

/// Lets other threads and processes run for a moment.
#[expect(clippy::disallowed_methods, reason = "the kernel has no record lock with a deadline")]
fn pause(micros: u32) {
    std::thread::sleep(std::time::Duration::from_micros(micros.min(MAX_PAUSE_MICROS).into()));
}
