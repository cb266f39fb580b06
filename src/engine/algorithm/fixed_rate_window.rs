//! The fixed-rate window: a fixed window whose requests are spaced by slots.
//!
//! One slot opens every period ÷ count, inclusively, and unused slots are forfeited.

use crate::engine::algorithm::window::{Anchor, OpenWindow, Window};
use crate::engine::algorithm::{Algorithm, Overdraft, Step};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
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
    fn slot(&self, window: &OpenWindow) -> i64 {
        let elapsed = i128::from(window.elapsed.max(0));
        // Below count, as elapsed is below the period.
        (elapsed * i128::from(self.count) / i128::from(self.window.period().get())) as i64
    }

    /// The wait until slot `slot` opens, or until the window's end if it has no such slot; 0 if it
    /// is open.
    fn wait_for(&self, slot: i64, window: &OpenWindow) -> Nanos {
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
        window: &OpenWindow,
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
        let mut window = self.window.open_window(state, now);
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
            repaired: None,
            lifetime: self.window.lifetime(),
        }
    }

    fn refund(&self, cost: Cost, state: Option<State>, now: Timestamp) -> Step {
        let now = now.min(State::MAX_INSTANT);
        let mut window = self.window.open_window(state, now);
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
        let slot = self.slot(&window);
        window.used = window.used.max(slot);
        let taken = window.overdraw(cost, overdraft, self.count + self.burst);
        let allowed = taken == cost.get();
        let mut decision = self.decision(allowed, &window, slot, 0, now);
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
        let now = now.min(State::MAX_INSTANT);
        let slot = self.slot(&self.window.open_window(Some(found), now));
        // Slots that have opened since the spend would have been forfeited without it.
        let left = cost.get().min(charged.tally() as i64 - slot).max(0);
        self.window.give_back(left, charged, found, now)
    }

    fn state_of(&self, peek: &Decision) -> State {
        self.window.state_of(peek, self.count + self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::Limit;

    const MILLI: i64 = 1_000_000;

    fn window(count: i64, millis: u64, burst: i64) -> FixedRateWindow {
        let period = Nanos::from_millis(millis);
        FixedRateWindow::new(count, period, burst, Anchor::First).expect("a window")
    }

    fn cost(requests: i64) -> Cost {
        Limit::Unlimited.cost(requests).expect("a cost")
    }

    #[test]
    fn five_a_second_are_two_hundred_milliseconds_apart() {
        let window = window(5, 1000, 0);
        let mut state = None;
        let mut allowed = Vec::new();
        for millis in 0..2000 {
            let step = window.spend(cost(1), state, Timestamp::clamped(millis * MILLI));
            if step.decision.allowed {
                allowed.push(millis);
            }
            state = step.after.or(state);
        }
        assert_eq!(allowed, [0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800]);
    }

    #[test]
    fn three_a_second_open_when_a_third_has_passed_and_two_may_come_early() {
        let window = window(3, 1000, 1);
        let third = 333_333_333;
        let mut state = None;
        // At (ns), requests; allowed, remaining, retry after, next slot after (ns).
        for (at, requests, expected) in [
            (0, 2, (true, 2, third + 1 + third, third + 1)),
            (0, 1, (false, 2, third + 1, third + 1)),
            // A third of a second is no whole number of nanoseconds: the slot opens after it.
            (third, 1, (false, 2, 1, 1)),
            (third + 1, 1, (true, 1, third, third)),
            // Slot 2 went by unused, and is lost.
            (700 * MILLI, 0, (true, 1, 0, 300 * MILLI)),
            (700 * MILLI, 1, (true, 0, 300 * MILLI, 300 * MILLI)),
            (999 * MILLI, 1, (false, 0, MILLI, MILLI)),
            (1000 * MILLI, 1, (true, 3, 0, third + 1)),
        ] {
            let step = window.spend(cost(requests), state, Timestamp::clamped(at));
            let Decision { allowed, remaining, retry_after, next_token_after, .. } = step.decision;
            let result = (allowed, remaining, retry_after.get(), next_token_after.get());
            assert_eq!(result, expected, "{requests} at {at} ns");
            state = step.after.or(state);
        }
    }

    #[test]
    fn what_is_owed_takes_the_slots_to_come() {
        let window = window(5, 1000, 1);
        let mut state = None;
        // At (ms), requests, whether in parts; allowed, remaining, retry after (ms).
        for (at, requests, overdraft, expected) in [
            (0, 2, Overdraft::AllOrNothing, (true, 4, 0)),
            (0, 2, Overdraft::AllOrNothing, (true, 2, 400)),
            (400, 0, Overdraft::AllOrNothing, (true, 2, 0)),
            (400, 9, Overdraft::AllOrNothing, (false, 2, 600)),
            (400, 9, Overdraft::Partial, (false, 0, 600)),
            (1000, 1, Overdraft::AllOrNothing, (true, 5, 0)),
        ] {
            let now = Timestamp::clamped(at * MILLI);
            let step = window.charge(cost(requests), overdraft, state, now);
            let Decision { allowed, remaining, retry_after, .. } = step.decision;
            let result = (allowed, remaining, retry_after.get() / MILLI);
            assert_eq!(result, expected, "{requests} at {at} ms");
            state = step.after.or(state);
        }
    }

    #[test]
    fn a_slot_that_went_by_is_not_given_back() {
        let window = window(5, 1000, 4);
        let taken = window.spend(cost(5), None, Timestamp::ORIGIN).after;
        // By now two slots have gone by, so of five requests three can be taken back.
        let now = Timestamp::clamped(400 * MILLI);
        let step = window.refund(cost(5), taken, now);
        assert_eq!((step.decision.allowed, step.decision.remaining), (true, 7));
        assert_eq!(window.refund(cost(5), step.after, now).after, None);
    }

    #[test]
    fn a_spend_is_given_back_as_far_as_its_slots_are_still_to_come() {
        // A slot every 200 ms.
        let window = window(5, 1000, 4);
        let state =
            |used: u64, start: i64| State::from_tally(Timestamp::clamped(start * MILLI), used);
        // Requests, what the spend wrote (used, start in ms), what is found, now; what to write.
        for (requests, charged, found, now, expected) in [
            // Nothing else happened: as before the spend.
            (3, (4, 0), (4, 0), 0, Some((1, 0))),
            (3, (4, 0), (4, 0), 399, Some((1, 0))),
            // Slots 2 and 3 have opened: of the four used, two are still to come.
            (3, (4, 0), (4, 0), 400, Some((2, 0))),
            (3, (4, 0), (4, 0), 800, None),
            // Others came since: theirs stays.
            (3, (4, 0), (7, 0), 600, Some((6, 0))),
            // Another window.
            (3, (4, 0), (4, 0), 1000, None),
            (3, (4, 0), (4, 1100), 1200, None),
            (0, (4, 0), (4, 0), 0, None),
        ] {
            let at = Timestamp::clamped(now * MILLI);
            let [charged, found] = [charged, found].map(|(used, start)| state(used, start));
            let after = window.give_back(cost(requests), charged, found, at);
            let expected = expected.map(|(used, start)| state(used, start));
            assert_eq!(after, expected, "{requests} at {now} ms");
        }
    }

    #[test]
    fn a_clock_set_back_by_all_of_time_waits_for_the_window() {
        let window = window(2, 1000, 0);
        let full = State::from_tally(State::MAX_INSTANT, 2);
        let step = window.spend(cost(1), Some(full), Timestamp::ORIGIN);
        assert!(!step.decision.allowed);
        let end = State::MAX_INSTANT.get() + 1000 * MILLI;
        assert_eq!(step.decision.retry_after.get(), end);
        assert_eq!(step.decision.next_token_after.get(), end - 500 * MILLI);
    }
}
