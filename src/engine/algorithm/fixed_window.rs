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
    use crate::engine::algorithm::Algorithm;
    use crate::engine::algorithm::testing::{at, cost, give_backs, numbers};
    use crate::engine::algorithm::window::Phase;

    fn window(count: i64, millis: u64, anchor: Anchor) -> FixedWindow {
        FixedWindow::new(count, Nanos::from_millis(millis), anchor).expect("a window")
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
        let window = window(3, 10_000, Anchor::Aligned(Phase::Fixed(Nanos::ZERO)));
        let full = window.spend(cost(3), None, at(25_000)).after;
        let step = window.spend(cost(1), full, at(9000));
        assert_eq!(numbers(&step.decision), (false, 0, 21_000, 21_000, 21_000));
        assert_eq!(step.after, None);
    }
}
