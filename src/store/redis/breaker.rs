//! The circuit breaker: after several consecutive failures, calls fail immediately, and one
//! call at a time probes whether the server is available again.

use crate::clock::Stopwatch;
use crate::engine::time::Nanos;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// Consecutive failures that open the breaker.
const THRESHOLD: u32 = 3;
/// The maximum pause before the first probe, doubled after each failed probe.
const FIRST_PAUSE: Nanos = Nanos::from_millis(100);
/// The maximum pause.
const MAX_PAUSE: Nanos = Nanos::from_millis(2000);

/// Whether calls are made.
#[derive(Debug)]
pub(super) struct Breaker {
    since: Stopwatch,
    /// Consecutive failures, so that checking a closed breaker is one load.
    failures: AtomicU32,
    /// The number of times it opened.
    opened: AtomicU64,
    /// Increased with each change, so that calls that were sent before a change are known.
    period: AtomicU64,
    open: Mutex<Open>,
}

/// The time between two changes of a breaker, in which a call was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period(u64);

/// The change that a call caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Calls fail immediately from now on.
    Opened,
    /// Calls are made again, after this time.
    Closed(Nanos),
}

#[derive(Debug, Default)]
struct Open {
    /// The time at which it opened.
    at: Nanos,
    /// The time of the next probe.
    until: Nanos,
    /// The maximum pause after the next failure.
    pause: Nanos,
    /// The state of the random numbers.
    random: u64,
}

impl Breaker {
    /// Creates a closed breaker with a seed for its jitter.
    pub(super) fn new(seed: u64) -> Breaker {
        let open = Open { random: seed | 1, pause: FIRST_PAUSE, ..Open::default() };
        Breaker {
            since: Stopwatch::start(),
            failures: AtomicU32::new(0),
            opened: AtomicU64::new(0),
            period: AtomicU64::new(0),
            open: Mutex::new(open),
        }
    }

    /// Checks whether a call may be made: any call while closed, one probe at a time while open.
    ///
    /// # Errors
    /// The time to the next probe.
    #[inline]
    pub(super) fn admit(&self) -> Result<(), Nanos> {
        // Relaxed, as everywhere here: an early or late call is harmless.
        if self.failures.load(Ordering::Relaxed) < THRESHOLD { Ok(()) } else { self.probe() }
    }

    #[cold]
    fn probe(&self) -> Result<(), Nanos> {
        let mut open = self.open.lock();
        let now = self.since.elapsed();
        if now < open.until {
            return Err(Nanos::clamped(open.until.get() - now.get()));
        }
        // Others wait for this probe.
        open.until = Nanos::clamped(now.get() + open.pause.get());
        Ok(())
    }

    /// Returns the current period; must be read before a call is sent.
    pub(super) fn period(&self) -> Period {
        Period(self.period.load(Ordering::Relaxed))
    }

    fn change(&self) {
        self.period.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a call was answered. `note` receives a change before any other change is made.
    #[inline]
    pub(super) fn on_success(&self, note: impl FnOnce(Change)) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.close(note);
        }
    }

    #[cold]
    fn close(&self, note: impl FnOnce(Change)) {
        let mut open = self.open.lock();
        let failures = self.failures.swap(0, Ordering::Relaxed);
        open.pause = FIRST_PAUSE;
        if failures >= THRESHOLD {
            self.change();
            note(Change::Closed(Nanos::clamped(self.since.elapsed().get() - open.at.get())));
        }
    }

    /// Records that a call that was sent in `sent` was not answered. `note` receives a change before
    /// any other change is made. Returns whether calls fail immediately from now on.
    ///
    /// Only the failure of a probe extends the pause: a stall of the server fails all calls that were
    /// sent before the breaker opened, which says nothing about the time since.
    #[cold]
    pub(super) fn on_failure(&self, sent: Period, note: impl FnOnce(Change)) -> bool {
        let mut open = self.open.lock();
        if sent != self.period() {
            return false;
        }
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        if failures < THRESHOLD {
            return false;
        }
        self.change();
        if failures == THRESHOLD {
            self.opened.fetch_add(1, Ordering::Relaxed);
            open.at = self.since.elapsed();
            note(Change::Opened);
        }
        // Between half and all of the pause, so that processes do not probe simultaneously.
        open.random ^= open.random << 13;
        open.random ^= open.random >> 7;
        open.random ^= open.random << 17;
        let half = open.pause.get() / 2;
        let wait = half + (open.random >> 1).cast_signed() % (half + 1);
        open.until = Nanos::clamped(self.since.elapsed().get() + wait);
        open.pause = Nanos::clamped((open.pause.get() * 2).min(MAX_PAUSE.get()));
        true
    }

    /// Returns whether calls fail immediately.
    pub(super) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= THRESHOLD
    }

    /// Returns the number of times it opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker) {
        breaker.on_failure(breaker.period(), |_| ());
    }

    #[test]
    fn it_opens_after_three_failures_in_a_row_and_closes_at_the_first_answer() {
        let breaker = Breaker::new(7);
        fail(&breaker);
        fail(&breaker);
        breaker.on_success(|_| ());
        fail(&breaker);
        fail(&breaker);
        assert_eq!(breaker.admit(), Ok(()));
        fail(&breaker);
        let wait = breaker.admit().expect_err("it is open");
        assert!(wait <= FIRST_PAUSE);
        assert_eq!((breaker.is_open(), breaker.opened()), (true, 1));
        breaker.on_success(|_| ());
        assert_eq!(breaker.admit(), Ok(()));
    }

    #[test]
    fn each_change_is_noted_once() {
        let (breaker, mut noted) = (Breaker::new(7), Vec::new());
        for _ in 0..2 {
            breaker.on_success(|change| noted.push(change));
            for _ in 0..2 * THRESHOLD {
                breaker.on_failure(breaker.period(), |change| noted.push(change));
            }
            for _ in 0..2 {
                breaker.on_success(|change| noted.push(change));
            }
        }
        let shown = [Change::Opened, Change::Closed(Nanos::ZERO)].repeat(2);
        let untimed = noted.into_iter().map(|change| match change {
            Change::Closed(_) => Change::Closed(Nanos::ZERO),
            opened => opened,
        });
        assert_eq!(untimed.collect::<Vec<_>>(), shown);
    }

    #[test]
    fn calls_that_were_sent_before_a_change_do_not_count() {
        let breaker = Breaker::new(7);
        let before = breaker.period();
        for _ in 0..100 {
            breaker.on_failure(before, |_| ());
        }
        assert!(breaker.admit().expect_err("it is open") <= FIRST_PAUSE);
        let probe = breaker.period();
        breaker.on_success(|_| ());
        for _ in 0..THRESHOLD {
            breaker.on_failure(before, |_| ());
            breaker.on_failure(probe, |_| ());
        }
        assert_eq!((breaker.admit(), breaker.opened()), (Ok(()), 1));
    }

    #[test]
    fn one_call_at_a_time_probes() {
        let breaker = Breaker::new(7);
        for _ in 0..THRESHOLD {
            fail(&breaker);
        }
        while breaker.admit().is_err() {}
        assert!(breaker.admit().is_err(), "another call probes already");
        // The pause grows, within its bounds.
        for _ in 0..20 {
            fail(&breaker);
            assert!(breaker.open.lock().pause <= MAX_PAUSE);
        }
        assert!(breaker.admit().expect_err("it is open").get() >= MAX_PAUSE.get() / 4);
        assert_eq!(breaker.opened(), 1);
    }
}
