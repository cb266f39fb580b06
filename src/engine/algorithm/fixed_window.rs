//! The fixed window: at most `count` tokens per period, at any pace.
//!
//! The state is the start of the window and the number of tokens used in it.

use crate::engine::algorithm::window::{Anchor, OpenWindow, Window};
use crate::engine::algorithm::{Algorithm, Overdraft, Step};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
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

    fn decision(&self, allowed: bool, window: &OpenWindow, cost: i64, now: Timestamp) -> Decision {
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
        let mut window = self.window.open_window(state, now);
        let cost = cost.get();
        let allowed = window.used + cost <= self.count;
        if allowed {
            window.used += cost;
        }
        let after = self.window.state(window.start, window.used);
        Step {
            decision: self.decision(allowed, &window, cost, now),
            after: Some(after).filter(|_| allowed && cost > 0),
            repaired: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.open_window(state, now);
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
            repaired: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        state: Option<State>,
        now: Timestamp,
    ) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.open_window(state, now);
        let taken = window.overdraw(cost, overdraft, self.count);
        let allowed = taken == cost.get();
        let mut decision = self.decision(allowed, &window, 0, now);
        if !allowed && overdraft == Overdraft::AllOrNothing {
            decision.retry_after = window.left;
        }
        let after = self.window.state(window.start, window.used);
        Step {
            decision,
            after: Some(after).filter(|_| taken > 0),
            repaired: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State> {
        self.window.give_back(cost.get(), charged, found, now)
    }

    fn state_of(&self, peek: &Decision) -> State {
        self.window.state_of(peek, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::window::Phase;
    use crate::engine::limit::Limit;

    const MILLI: i64 = 1_000_000;

    fn cost(requests: i64) -> Cost {
        Limit::Unlimited.cost(requests).expect("a cost")
    }

    /// Whether allowed, remaining, retry after and the window's end (ms).
    type Expected = (bool, i64, i64, i64);

    /// Plays spends of a window of ten seconds that allows three: at (ms), requests, the expected numbers.
    fn play(anchor: Anchor, calls: &[(i64, i64, Expected)]) {
        let window = FixedWindow::new(3, Nanos::from_millis(10_000), anchor).expect("a window");
        let millis = |length: Nanos| length.get() / MILLI;
        let mut state = None;
        for &(at, requests, expected) in calls {
            let now = Timestamp::clamped(at * MILLI);
            let step = window.spend(cost(requests), state, now);
            let Decision { allowed, remaining, retry_after, reset_after, .. } = step.decision;
            let result = (allowed, remaining, millis(retry_after), millis(reset_after));
            assert_eq!(result, expected, "{requests} at {at} ms");
            assert_eq!(step.decision.next_token_after, reset_after);
            state = step.after.or(state);
        }
    }

    #[test]
    fn a_window_starts_at_the_first_request_that_is_let_through() {
        play(
            Anchor::First,
            &[
                (4000, 0, (true, 3, 0, 10_000)),
                (7000, 2, (true, 1, 10_000, 10_000)),
                (9000, 2, (false, 1, 8000, 8000)),
                (9000, 1, (true, 0, 8000, 8000)),
                (16_999, 1, (false, 0, 1, 1)),
                (17_000, 1, (true, 2, 0, 10_000)),
                // No requests for a while: the next window starts with the next request.
                (40_500, 3, (true, 0, 10_000, 10_000)),
            ],
        );
    }

    #[test]
    fn aligned_windows_start_by_the_clock() {
        play(
            Anchor::Aligned(Phase::Fixed(Nanos::from_millis(2000))),
            &[
                // The first window began before the clock did.
                (500, 3, (true, 0, 1500, 1500)),
                (1999, 1, (false, 0, 1, 1)),
                (2000, 3, (true, 0, 10_000, 10_000)),
                (11_999, 1, (false, 0, 1, 1)),
                (12_000, 1, (true, 2, 0, 10_000)),
                (55_000, 3, (true, 0, 7000, 7000)),
            ],
        );
    }

    #[test]
    fn what_it_is_owed_is_forgotten_with_the_window() {
        let window = FixedWindow::new(3, Nanos::SECOND, Anchor::First).expect("a window");
        let mut state = None;
        // At (ms), requests, whether in parts; allowed, remaining, retry after (ms).
        for (at, requests, overdraft, expected) in [
            (0, 2, Overdraft::AllOrNothing, (true, 1, 0)),
            (100, 2, Overdraft::AllOrNothing, (true, 0, 900)),
            (200, 3, Overdraft::AllOrNothing, (false, 0, 800)),
            (300, 3, Overdraft::Partial, (false, 0, 700)),
            (999, 1, Overdraft::AllOrNothing, (false, 0, 1)),
            (1000, 1, Overdraft::AllOrNothing, (true, 2, 0)),
        ] {
            let now = Timestamp::clamped(at * MILLI);
            let step = window.charge(cost(requests), overdraft, state, now);
            let Decision { allowed, remaining, retry_after, .. } = step.decision;
            assert_eq!((allowed, remaining, retry_after.get() / MILLI), expected, "at {at} ms");
            state = step.after.or(state);
        }
    }

    #[test]
    fn a_spend_is_given_back_within_its_window() {
        let window = FixedWindow::new(9, Nanos::SECOND, Anchor::First).expect("a window");
        let state =
            |used: u64, start: i64| State::from_tally(Timestamp::clamped(start * MILLI), used);
        // Requests, what the spend wrote (used, start in ms), what is found, now; what to write.
        for (requests, charged, found, now, expected) in [
            (3, (5, 0), (5, 0), 999, Some((2, 0))),
            (3, (5, 0), (7, 0), 999, Some((4, 0))),
            (3, (5, 0), (2, 0), 999, Some((0, 0))),
            (3, (5, 0), (5, 0), 1000, None),
            (3, (5, 0), (5, 1100), 1200, None),
            (0, (5, 0), (5, 0), 0, None),
        ] {
            let at = Timestamp::clamped(now * MILLI);
            let [charged, found] = [charged, found].map(|(used, start)| state(used, start));
            let after = window.give_back(cost(requests), charged, found, at);
            let expected = expected.map(|(used, start)| state(used, start));
            assert_eq!(after, expected, "{requests} at {now} ms");
        }
    }

    #[test]
    fn a_clock_that_goes_back_stays_in_the_window() {
        play(
            Anchor::Aligned(Phase::Fixed(Nanos::ZERO)),
            &[
                (25_000, 3, (true, 0, 5000, 5000)),
                (9000, 1, (false, 0, 21_000, 21_000)),
                (29_999, 1, (false, 0, 1, 1)),
                (30_000, 1, (true, 2, 0, 10_000)),
            ],
        );
    }
}
