//! The fixed-rate window: a fixed window whose requests are spaced by slots.
//!
//! Source: the fifth document of the project's sources, with its formula mended so that it smooths
//! (one slot opens every period ÷ count, inclusively, and slots not used are forfeited).

use crate::engine::algorithm::window::{Anchor, InForce, Window};
use crate::engine::algorithm::{Algorithm, Step};
use crate::engine::decision::Decision;
use crate::engine::limit::{Cost, LimitError};
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};

/// `count` in each window, one in each slot, `burst` of them allowed early.
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

    /// Slots in each window.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// Extra requests allowed early.
    pub const fn burst(&self) -> i64 {
        self.burst
    }

    /// How long a window is, and where it starts.
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// The slot that is open: 0 to `count - 1`, 0 before the start.
    fn slot(&self, window: &InForce) -> i64 {
        let elapsed = i128::from(window.elapsed.max(0));
        // Below count, as elapsed is below the period.
        (elapsed * i128::from(self.count) / i128::from(self.window.period().get())) as i64
    }

    /// The wait until slot `slot` opens, or until the window's end if it has no such slot; 0 if it
    /// is open.
    fn wait_for(&self, slot: i64, window: &InForce) -> Nanos {
        if slot >= self.count {
            return window.left;
        }
        let period = i128::from(self.window.period().get());
        let count = i128::from(self.count);
        // Rounded up: at the opening instant itself the slot must be open.
        let opens = (i128::from(slot) * period + count - 1) / count;
        // A clock set far back may be as far before the start as time goes.
        Nanos::clamped((opens as i64).saturating_sub(window.elapsed))
    }

    fn decision(
        &self,
        allowed: bool,
        window: &InForce,
        slot: i64,
        cost: i64,
        now: Timestamp,
    ) -> Decision {
        let used = window.used.max(slot);
        let fits = used + cost <= slot + 1 + self.burst;
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.count + self.burst - used).max(0),
            retry_after: if fits {
                Nanos::ZERO
            } else {
                self.wait_for(used + cost - 1 - self.burst, window)
            },
            reset_after: window.left,
            next_token_after: self.wait_for(slot + 1, window),
            now,
        }
    }
}

impl Algorithm for FixedRateWindow {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.burst + 1
    }

    fn spend(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.in_force(state, now);
        let slot = self.slot(&window);
        let cost = cost.get();
        let used = window.used.max(slot);
        let allowed = used + cost <= slot + 1 + self.burst;
        if allowed {
            window.used = used + cost;
        }
        let after = self.window.state(window.start, window.used);
        Step {
            decision: self.decision(allowed, &window, slot, cost, now),
            after: Some(after).filter(|_| allowed && cost > 0),
            mended: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.in_force(state, now);
        let slot = self.slot(&window);
        // Slots that went by unused are forfeited, and no refund brings them back.
        let given_back = cost.get().min(window.used - slot).max(0);
        window.used -= given_back;
        let moved = given_back > 0;
        let after = self.window.state(window.start, window.used);
        Step {
            decision: Decision {
                retry_after: Nanos::ZERO,
                ..self.decision(moved, &window, slot, 0, now)
            },
            after: Some(after).filter(|_| moved),
            mended: None,
            lifetime: self.window.lifetime(),
        }
    }
}
