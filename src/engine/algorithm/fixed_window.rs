//! The fixed window: so many in each period, at whatever pace.
//!
//! Source: the fifth document of the project's sources, with the start of the window kept beside
//! what was used.

use crate::engine::algorithm::window::{Anchor, InForce, Window};
use crate::engine::algorithm::{Algorithm, Step};
use crate::engine::decision::Decision;
use crate::engine::limit::{Cost, LimitError};
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// `count` in each window.
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

    /// Requests allowed in each window.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// How long a window is, and where it starts.
    pub const fn window(&self) -> &Window {
        &self.window
    }

    fn decision(&self, allowed: bool, window: &InForce, cost: i64, now: Timestamp) -> Decision {
        let fits = window.used + cost <= self.count;
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.count - window.used).max(0),
            retry_after: if fits { Nanos::ZERO } else { window.left },
            reset_after: window.left,
            next_token_after: window.left,
            now,
        }
    }
}

impl Algorithm for FixedWindow {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.count
    }

    fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.in_force(state, now);
        let cost = cost.get();
        let allowed = window.used + cost <= self.count;
        if allowed {
            window.used += cost;
        }
        let after = self.window.state(window.start, window.used);
        Step {
            decision: self.decision(allowed, &window, cost, now),
            after: Some(after).filter(|_| allowed && cost > 0),
            mended: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.in_force(state, now);
        let given_back = cost.get().min(window.used);
        window.used -= given_back;
        let moved = given_back > 0;
        let after = self.window.state(window.start, window.used);
        Step {
            decision: Decision {
                retry_after: Nanos::ZERO,
                ..self.decision(moved, &window, 0, now)
            },
            after: Some(after).filter(|_| moved),
            mended: None,
            lifetime: self.window.lifetime(),
        }
    }
}
