//! The fixed-rate window: a fixed window whose requests are spaced by slots.
//!
//! One slot opens every period ÷ count, starting with the window. Unused slots are forfeited.

use crate::engine::algorithm::window::{Anchor, OpenWindow, Window, WindowRules};
use crate::engine::limit_error::LimitError;
use crate::engine::state::State;
use crate::engine::time::Nanos;

/// `count` requests per window, one per slot, plus `burst` extra requests that may come early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedRateWindow {
    count: i64,
    burst: i64,
    /// The window.
    pub(crate) window: Window,
}

impl FixedRateWindow {
    pub(crate) fn new(
        count: i64,
        period: Nanos,
        burst: i64,
        anchor: Anchor,
    ) -> Result<FixedRateWindow, LimitError> {
        for (field, least, found) in [("count", 1, count), ("burst", 0, burst)] {
            if found < least {
                return Err(LimitError::TooSmall { field, least, found });
            }
        }
        for (field, found) in
            [("count", count), ("burst", burst), ("count + burst", count.saturating_add(burst))]
        {
            if found > State::MAX_TALLY as i64 {
                return Err(LimitError::BeyondTally { field, found });
            }
        }
        Ok(FixedRateWindow { count, burst, window: Window::new(period, anchor)? })
    }

    /// Number of slots per window.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// Number of extra requests allowed early.
    pub const fn burst(&self) -> i64 {
        self.burst
    }

    /// The period of the windows and where they start.
    pub const fn window(&self) -> &Window {
        &self.window
    }
}

impl WindowRules for FixedRateWindow {
    fn window(&self) -> &Window {
        &self.window
    }

    fn admitted(&self) -> i64 {
        self.count + self.burst
    }

    fn at_once(&self) -> i64 {
        self.burst + 1
    }

    fn slot(&self, window: &OpenWindow) -> i64 {
        let elapsed = i128::from(window.elapsed.max(0));
        // Below `count`, because `elapsed` is below the period.
        (elapsed * i128::from(self.count) / i128::from(self.window.period().get())) as i64
    }

    fn wait_for(&self, slot: i64, window: &OpenWindow) -> Nanos {
        if slot >= self.count {
            return window.left;
        }
        let period = i128::from(self.window.period().get());
        let count = i128::from(self.count);
        // Rounded up, so that the slot is open at the returned instant.
        let opens = (i128::from(slot) * period + count - 1) / count;
        // Saturating, because the clock may have been set back to its origin.
        Nanos::clamped((opens as i64).saturating_sub(window.elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::Algorithm;
    use crate::engine::algorithm::testing::{MILLI, cost, give_backs};
    use crate::engine::time::Timestamp;

    fn window(count: i64, millis: u64, burst: i64) -> FixedRateWindow {
        let period = Nanos::from_millis(millis);
        FixedRateWindow::new(count, period, burst, Anchor::First).expect("a window")
    }

    #[test]
    fn giving_back_a_spend_returns_only_future_slots() {
        // One slot every 200 ms.
        give_backs(
            &window(5, 1000, 4),
            &[
                // No other call: the state before the spend.
                (3, (4, 0), (4, 0), 0, Some((1, 0))),
                (3, (4, 0), (4, 0), 399, Some((1, 0))),
                // Slots 2 and 3 have opened, so two of the four used are in the future.
                (3, (4, 0), (4, 0), 400, Some((2, 0))),
                (3, (4, 0), (4, 0), 800, None),
                // Later spends are kept.
                (3, (4, 0), (7, 0), 600, Some((6, 0))),
                // Another window.
                (3, (4, 0), (4, 0), 1000, None),
                (3, (4, 0), (4, 1100), 1200, None),
                (0, (4, 0), (4, 0), 0, None),
            ],
        );
    }

    #[test]
    fn after_the_clock_jumps_to_its_origin_the_wait_lasts_until_the_window_ends() {
        let window = window(2, 1000, 0);
        let full = State::from_tally(State::MAX_INSTANT, 2);
        let step = window.spend(cost(1), Some(full), Timestamp::ORIGIN);
        assert!(!step.decision.allowed);
        let end = State::MAX_INSTANT.get() + 1000 * MILLI;
        assert_eq!(step.decision.retry_after.get(), end);
        assert_eq!(step.decision.next_token_after.get(), end - 500 * MILLI);
    }
}
