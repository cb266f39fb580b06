//! The fixed window: at most `count` tokens per window, in any distribution.
//!
//! The state is the start of the window and the number of tokens used in it.

use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, narrow, wide,
};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::window::{Anchor, Phase, Window, WindowRules};
use crate::engine::algorithm::{Definition, Limit};
use crate::engine::limit_error::LimitError;
use crate::engine::state::{State, StateKind};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;

/// `count` requests per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    count: i64,
    window: Window,
}

impl FixedWindow {
    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("count", ParameterKind::Whole),
                Parameter::required("period", ParameterKind::Time),
                Anchor::PARAMETER,
                Phase::PARAMETER,
            ],
            build: |values| {
                let (count, period) = (values.required("count")?, values.required("period")?);
                FixedWindow::new(count, period, Anchor::build(values)?).map(Limit::from)
            },
        },
        older: None,
        shape: Some(Shape { burst: None, rate: "count", period: Some("period") }),
        state: StateKind::Tally,
    };

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

impl Limit {
    /// Returns a fixed window of `count` requests per `period`.
    ///
    /// # Errors
    /// [`LimitError`] if `count` is below 1 or above [`State::MAX_TALLY`], or `period` or the phase
    /// is not a whole number of milliseconds or out of range.
    pub fn fixed_window(count: i64, period: Nanos, anchor: Anchor) -> Result<Limit, LimitError> {
        FixedWindow::new(count, period, anchor).map(Limit::from)
    }
}

impl Description for FixedWindow {
    fn fields(&self) -> Fields {
        let mut fields = vec![("count", FieldValue::Whole(self.count))];
        fields.extend(self.window.fields());
        fields
    }

    fn wire(&self, _: Verb, cost: i64, _: Timestamp) -> [i64; 6] {
        let (period, phase) = self.window.period_and_phase();
        [cost, self.count, period, phase, 0, 0]
    }

    fn summary(&self) -> &'static str {
        "{count} per {period}"
    }

    #[inline]
    fn capacity(&self) -> i64 {
        self.count
    }

    fn time_to_refill(&self) -> Nanos {
        self.window.period()
    }

    fn refill(&self) -> Refill {
        Refill { count: self.count, interval: self.window.period(), is_evenly_spaced: false }
    }

    /// The end of one window, whole windows, and the beginning of another.
    fn worst_in(&self, interval: Nanos) -> i64 {
        let (windows, rest) = self.window.divide(interval);
        let most = wide(self.count) * (wide(windows) + 1 + i128::from(rest > 0));
        narrow(most - i128::from(rest > 0 && self.window.is_opened_before(rest)))
    }

    fn share(&self, processes: i64) -> Result<FixedWindow, LimitError> {
        let (count, period) = self.window.share(self.count, processes)?;
        FixedWindow::new(count, period, self.window.anchor())
    }

    #[inline(always)]
    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn for_key(self, key: &str) -> FixedWindow {
        FixedWindow { window: self.window.for_key(key), ..self }
    }
}

impl WindowRules for FixedWindow {
    type Series = Window;

    fn series(&self) -> &Window {
        &self.window
    }

    fn at_once(&self) -> i64 {
        self.count
    }

    fn keeping(self, keep: i64) -> FixedWindow {
        FixedWindow { count: self.count - keep, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let limit = crate::engine::limit::Limit::from(window);
        let full = limit.spend(cost(3), None, at(25_000)).after;
        let step = limit.spend(cost(1), full, at(9000));
        assert_eq!(numbers(&step.decision), (false, 0, 21_000, 21_000, 21_000));
        assert_eq!(step.after, None);
    }
}
