//! The fixed window: at most `count` tokens per window, in any distribution.
//!
//! The state is the start of the window and the number of tokens used in it.

use crate::engine::algorithm::window::{Anchor, OpenWindow, Window, WindowRules};
use crate::engine::limit_error::LimitError;
use crate::engine::state::State;
use crate::engine::time::Nanos;

/// `count` requests per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    count: i64,
    /// The window.
    pub(crate) window: Window,
}

impl FixedWindow {
    pub(crate) fn new(
        count: i64,
        period: Nanos,
        anchor: Anchor,
    ) -> Result<FixedWindow, LimitError> {
        if count < 1 {
            return Err(LimitError::TooSmall { field: "count", least: 1, found: count });
        }
        if count > State::MAX_TALLY as i64 {
            return Err(LimitError::BeyondTally { field: "count", found: count });
        }
        Ok(FixedWindow { count, window: Window::new(period, anchor)? })
    }

    /// Number of requests allowed per window.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The period of the windows and where they start.
    pub const fn window(&self) -> &Window {
        &self.window
    }
}

impl WindowRules for FixedWindow {
    fn window(&self) -> &Window {
        &self.window
    }

    fn admitted(&self) -> i64 {
        self.count
    }

    fn at_once(&self) -> i64 {
        self.count
    }

    fn slot(&self, _: &OpenWindow) -> i64 {
        0
    }

    fn wait_for(&self, _: i64, window: &OpenWindow) -> Nanos {
        window.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::testing::{give_backs, spends};
    use crate::engine::algorithm::window::Phase;

    fn window(count: i64, millis: u64, anchor: Anchor) -> FixedWindow {
        FixedWindow::new(count, Nanos::from_millis(millis), anchor).expect("a window")
    }

    #[test]
    fn a_window_starts_at_the_first_allowed_request() {
        spends(
            &window(3, 10_000, Anchor::First),
            &[
                (4000, 0, (true, 3, 0, 10_000, 10_000)),
                (7000, 2, (true, 1, 10_000, 10_000, 10_000)),
                (9000, 2, (false, 1, 8000, 8000, 8000)),
                (9000, 1, (true, 0, 8000, 8000, 8000)),
                (16_999, 1, (false, 0, 1, 1, 1)),
                (17_000, 1, (true, 2, 0, 10_000, 10_000)),
                // After an idle time the next window starts with the next request.
                (40_500, 3, (true, 0, 10_000, 10_000, 10_000)),
            ],
        );
    }

    #[test]
    fn aligned_windows_start_at_multiples_of_the_period() {
        spends(
            &window(3, 10_000, Anchor::Aligned(Phase::Fixed(Nanos::from_millis(2000)))),
            &[
                // The first window began before the clock's origin.
                (500, 3, (true, 0, 1500, 1500, 1500)),
                (1999, 1, (false, 0, 1, 1, 1)),
                (2000, 3, (true, 0, 10_000, 10_000, 10_000)),
                (11_999, 1, (false, 0, 1, 1, 1)),
                (12_000, 1, (true, 2, 0, 10_000, 10_000)),
                (55_000, 3, (true, 0, 7000, 7000, 7000)),
            ],
        );
    }

    #[test]
    fn a_spend_is_given_back_within_its_window() {
        give_backs(
            &window(9, 1000, Anchor::First),
            &[
                (3, (5, 0), (5, 0), 999, Some((2, 0))),
                (3, (5, 0), (7, 0), 999, Some((4, 0))),
                (3, (5, 0), (2, 0), 999, Some((0, 0))),
                (3, (5, 0), (5, 0), 1000, None),
                (3, (5, 0), (5, 1100), 1200, None),
                (0, (5, 0), (5, 0), 0, None),
            ],
        );
    }

    #[test]
    fn after_the_clock_goes_back_the_window_stays_open() {
        spends(
            &window(3, 10_000, Anchor::Aligned(Phase::Fixed(Nanos::ZERO))),
            &[
                (25_000, 3, (true, 0, 5000, 5000, 5000)),
                (9000, 1, (false, 0, 21_000, 21_000, 21_000)),
                (29_999, 1, (false, 0, 1, 1, 1)),
                (30_000, 1, (true, 2, 0, 10_000, 10_000)),
            ],
        );
    }
}
