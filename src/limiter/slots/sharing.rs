//! How slots that a process returns are shared between its own waiters and those of other processes.

use crate::engine::time::{Nanos, Timestamp};

/// For how long a process hands all slots that it returns to its own waiters.
const HANDOFF_TIME: Nanos = Nanos::from_millis(200);

/// The releases of one bucket, as the first of its waiters sees them.
#[derive(Debug)]
pub(in crate::limiter) struct Releases {
    /// Whether other processes return slots, too.
    is_shared: bool,
    /// When the first asks without a release, because other processes return slots, too.
    poll_at: Timestamp,
    /// The number of releases for which the store was not asked yet.
    count: u32,
    /// Whether a release was handed to the waiters since the last question without one.
    is_handed: bool,
    /// When a release was last left to other processes, or the queue began.
    left_at: Timestamp,
}

impl Releases {
    pub(in crate::limiter) const fn new(is_shared: bool, now: Timestamp) -> Releases {
        Releases { is_shared, poll_at: now, count: 0, is_handed: false, left_at: now }
    }

    /// Returns when the first asks without a release.
    pub(in crate::limiter) const fn poll_at(&self) -> Timestamp {
        self.poll_at
    }

    /// Returns whether the store was not asked yet for a release.
    pub(in crate::limiter) const fn is_open(&self) -> bool {
        self.count > 0
    }

    /// Notes a release. Returns false if it is left to the waiters of other processes, as one is now and
    /// then.
    pub(in crate::limiter) fn add(&mut self, now: Timestamp) -> bool {
        if self.is_shared && self.is_handed && now >= self.left_at.saturating_add(HANDOFF_TIME) {
            self.left_at = now;
            return false;
        }
        self.is_handed = true;
        self.count = self.count.saturating_add(1);
        true
    }

    /// Notes a question of the first.
    pub(in crate::limiter) fn ask(&mut self, now: Timestamp) {
        self.count = self.count.saturating_sub(1);
        self.is_handed &= now < self.poll_at;
    }

    /// Notes that the first was denied.
    pub(in crate::limiter) fn deny(&mut self) {
        self.count = 0;
    }

    /// Returns when the first, which was denied slots, asks again although nothing is released; `None` if no
    /// other process returns any.
    pub(in crate::limiter) fn poll(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.is_shared && self.poll_at <= now {
            self.poll_at = now.saturating_add(poll_interval(now));
        }
        self.is_shared.then_some(self.poll_at)
    }

    /// Lets the first ask at once.
    pub(in crate::limiter) fn poke(&mut self, now: Timestamp) {
        self.poll_at = now;
    }
}

/// Returns the time after which the first asks again for a slot that another process may have returned:
/// 50 ms, give or take a quarter so that processes do not ask in lockstep.
fn poll_interval(now: Timestamp) -> Nanos {
    const MIN: i64 = 37_500_000;
    const SPREAD: i64 = 25_000_000;
    // The golden ratio spreads the digits of the instant.
    let digits = now.get().cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Nanos::clamped(MIN + digits.cast_signed() % SPREAD)
}
