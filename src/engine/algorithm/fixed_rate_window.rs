//! The fixed-rate window: a fixed window whose requests are spaced by slots.
//!
//! One slot opens every period ÷ count, starting with the window. Unused slots are forfeited.

use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, narrow, wide,
};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::window::{Anchor, OpenWindow, Phase, Window, WindowRules};
use crate::engine::algorithm::{Definition, Limit};
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
use crate::engine::state::{State, StateKind};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;

/// `count` requests per window, one per slot, plus `burst` extra requests that may come early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedRateWindow {
    count: i64,
    burst: i64,
    window: Window,
}

impl FixedRateWindow {
    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("count", ParameterKind::Whole),
                Parameter::required("period", ParameterKind::Time),
                Parameter::optional("burst", ParameterKind::Whole),
                Anchor::PARAMETER,
                Phase::PARAMETER,
            ],
            build: |values| {
                let (count, period) = (values.required("count")?, values.required("period")?);
                let burst = values.get("burst").unwrap_or(0);
                FixedRateWindow::new(count, period, burst, Anchor::build(values)?).map(Limit::from)
            },
        },
        older: None,
        shape: Some(Shape { burst: Some("burst"), rate: "count", period: Some("period") }),
        state: StateKind::Tally,
    };

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

    /// Returns the index of the slot that is open after this time of a window.
    #[inline]
    fn slot_after(&self, elapsed: i64) -> i64 {
        let period = self.window.period().get();
        let elapsed = wide(elapsed.clamp(0, period - 1));
        // Below `count`, because `elapsed` is below the period.
        (elapsed * wide(self.count) / wide(period)) as i64
    }

    /// The period of the windows and where they start.
    pub const fn window(&self) -> &Window {
        &self.window
    }
}

impl Limit {
    /// Returns a fixed window with evenly spaced requests and `burst` extra requests.
    ///
    /// # Errors
    /// As [`Limit::fixed_window`]; also if `burst` is negative or `count + burst` is above
    /// [`State::MAX_TALLY`].
    pub fn fixed_rate_window(
        count: i64,
        period: Nanos,
        burst: i64,
        anchor: Anchor,
    ) -> Result<Limit, LimitError> {
        FixedRateWindow::new(count, period, burst, anchor).map(Limit::from)
    }
}

impl Description for FixedRateWindow {
    fn fields(&self) -> Fields {
        let mut fields = vec![("count", FieldValue::Whole(self.count))];
        fields.extend(self.window.fields());
        // After the period, as in the constructor.
        fields.insert(2, ("burst", FieldValue::Whole(self.burst)));
        fields
    }

    fn wire(&self, _: Verb, cost: i64, _: Timestamp) -> [i64; 6] {
        let (period, phase) = self.window.period_and_phase();
        [cost, self.count, period, phase, self.burst, 0]
    }

    fn summary(&self) -> &'static str {
        if self.burst == 0 {
            "{count} per {period}, evenly spaced"
        } else {
            "{count} per {period}, evenly spaced, {burst} early"
        }
    }

    #[inline]
    fn capacity(&self) -> i64 {
        self.count + self.burst
    }

    fn time_to_refill(&self) -> Nanos {
        self.window.period()
    }

    fn refill(&self) -> Refill {
        Refill { count: self.count, interval: self.window.period(), is_evenly_spaced: true }
    }

    fn long_run(&self) -> i64 {
        self.capacity()
    }

    /// The end of one window, whole windows, and the beginning of another. Each has the burst, and
    /// one request for each slot that opens.
    fn worst_in(&self, interval: Nanos) -> i64 {
        let (count, period) = (self.count, self.window.period().get());
        let (windows, rest) = self.window.divide(interval);
        // The slots that open within the rest, at most.
        let slots = (wide(rest) * wide(count) + wide(period) - 1) / wide(period);
        let bursts = wide(windows) + 1 + i128::from(rest > 0);
        let most = 1 + wide(windows) * wide(count) + slots + wide(self.burst) * bursts;
        // If all slots open within the rest, it begins in the first slot, which was used by the
        // request that opened the window, unless it fits into a later slot that is equally long.
        let longest_later_slot = if count > 1 { (period + count - 2) / count } else { 0 };
        let is_taken = slots == wide(count)
            && longest_later_slot <= period - rest
            && self.window.is_opened_before(rest);
        narrow(most - i128::from(is_taken))
    }

    fn share(&self, processes: i64) -> Result<FixedRateWindow, LimitError> {
        let (count, period) = self.window.share(self.count, processes)?;
        FixedRateWindow::new(count, period, self.burst / processes, self.window.anchor())
    }

    fn shown_remaining(&self, decision: &Decision) -> i64 {
        let elapsed = self.window.period().get() - decision.reset_after.get();
        let used = self.capacity() - decision.remaining;
        let open = self.slot_after(elapsed) + self.at_once() - used;
        open.clamp(0, decision.remaining.max(0))
    }

    #[inline(always)]
    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn for_key(self, key: &str) -> FixedRateWindow {
        FixedRateWindow { window: self.window.for_key(key), ..self }
    }
}

impl WindowRules for FixedRateWindow {
    type Series = Window;

    fn series(&self) -> &Window {
        &self.window
    }

    fn at_once(&self) -> i64 {
        self.burst + 1
    }

    // The slots stay where they are.
    fn keeping(self, keep: i64) -> FixedRateWindow {
        FixedRateWindow { burst: self.burst - keep, ..self }
    }

    fn slot(&self, window: &OpenWindow) -> i64 {
        self.slot_after(window.elapsed)
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
        let limit = crate::engine::limit::Limit::from(window);
        let step = limit.spend(cost(1), Some(full), Timestamp::ORIGIN);
        assert!(!step.decision.allowed);
        let end = State::MAX_INSTANT.get() + 1000 * MILLI;
        assert_eq!(step.decision.retry_after.get(), end);
        assert_eq!(step.decision.next_token_after.get(), end - 500 * MILLI);
    }
}
