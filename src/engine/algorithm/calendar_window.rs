//! The calendar window: at most `count` tokens per day, week, month or year of a time zone.
//!
//! The state is the end of the window in whole seconds, times 10^9, plus the tokens used in it. A
//! store reads it as an instant and forgets it less than a second after the window's end. So a
//! window that is in use keeps its end, even if the time zone data of two processes differ.
//!
//! It ends when the wall clock shows its end. While a clock that was set back shows an earlier window, the
//! stored one stays open: an earlier window may have been used too, and its tokens are not known.

use crate::engine::algorithm::calendar::{Calendar, CalendarUnit, MAX_SECOND, Zone};
use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, narrow, wide,
};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::window::{OpenWindow, WindowRules, WindowSeries};
use crate::engine::algorithm::{Definition, Limit};
use crate::engine::limit_error::LimitError;
use crate::engine::state::{Lifetime, State, StateKind};
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::Verb;

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// The tokens of a state are below the nanoseconds of a second.
const MAX_USED: i64 = NANOS_PER_SECOND - 1;

/// `count` requests per calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    count: i64,
    calendar: Calendar,
}

impl CalendarWindow {
    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("count", ParameterKind::Whole),
                Parameter::required("period", ParameterKind::Word(CalendarUnit::NAMES)),
                Parameter::optional("zone", ParameterKind::Zone),
            ],
            build: |values| {
                let (count, period) = (values.required("count")?, values.required("period")?);
                let unit = CalendarUnit::named(period).ok_or(LimitError::Missing { field: "period" })?;
                let zone = Zone::named(values.get("zone").unwrap_or("UTC"));
                let zone = zone.ok_or(LimitError::Missing { field: "zone" })?;
                CalendarWindow::new(count, unit, zone).map(Limit::from)
            },
        },
        older: None,
        shape: Some(Shape { burst: None, rate: "count", period: None }),
        state: StateKind::Instant,
    };

    pub(crate) fn new(
        count: i64,
        unit: CalendarUnit,
        zone: Zone,
    ) -> Result<CalendarWindow, LimitError> {
        match count {
            ..1 => Err(LimitError::TooSmall { field: "count", least: 1, found: count }),
            1..=MAX_USED => Ok(CalendarWindow { count, calendar: Calendar { unit, zone } }),
            _ => Err(LimitError::TooLarge { field: "count", most: MAX_USED, found: count }),
        }
    }

    /// Number of requests allowed per window.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The windows.
    pub const fn calendar(&self) -> &Calendar {
        &self.calendar
    }
}

impl Limit {
    /// Returns a window of `count` requests per day, week, month or year of a time zone.
    ///
    /// # Errors
    /// [`LimitError`] if `count` is below 1 or above 999,999,999.
    pub fn calendar_window(
        count: i64,
        unit: CalendarUnit,
        zone: Zone,
    ) -> Result<Limit, LimitError> {
        CalendarWindow::new(count, unit, zone).map(Limit::from)
    }
}

impl Description for CalendarWindow {
    fn fields(&self) -> Fields {
        vec![
            ("count", FieldValue::Whole(self.count)),
            ("period", FieldValue::Word(self.calendar.unit.as_str())),
            ("zone", FieldValue::Word(self.calendar.zone.name())),
        ]
    }

    // A server's clock, if it decides, may be in the window before or after that of `now`.
    fn wire(&self, _: Verb, cost: i64, now: Timestamp) -> [i64; 6] {
        let second = now.get() / NANOS_PER_SECOND;
        let [before, start, finish, after] = self.calendar.windows_around(second);
        [cost, self.count, before, start, finish, after]
    }

    fn summary(&self) -> &'static str {
        match self.calendar.unit {
            CalendarUnit::Day => "{count} per calendar day ({zone})",
            CalendarUnit::Week => "{count} per calendar week ({zone})",
            CalendarUnit::Month => "{count} per calendar month ({zone})",
            CalendarUnit::Year => "{count} per calendar year ({zone})",
        }
    }

    fn capacity(&self) -> i64 {
        self.count
    }

    fn time_to_refill(&self) -> Nanos {
        self.calendar.unit.mean_length()
    }

    fn refill(&self) -> Refill {
        let interval = self.calendar.unit.mean_length();
        Refill { count: self.count, interval, is_evenly_spaced: false }
    }

    fn interval(&self) -> Nanos {
        self.calendar.unit.usual_length()
    }

    fn worst_in(&self, interval: Nanos) -> i64 {
        narrow(wide(self.count) * wide(self.calendar.most_within(interval)))
    }

    fn share(&self, processes: i64) -> Result<CalendarWindow, LimitError> {
        let Calendar { unit, zone } = self.calendar;
        if self.count >= processes {
            return CalendarWindow::new(self.count / processes, unit, zone);
        }
        // One request in the shortest windows that have as many as there are processes.
        let mean = |unit: CalendarUnit| wide(unit.mean_length().get());
        let admits = |other| wide(self.count) * mean(other) >= wide(processes) * mean(unit);
        let longer = CalendarUnit::ALL.into_iter().find(|&other| admits(other));
        CalendarWindow::new(1, longer.unwrap_or(CalendarUnit::Year), zone)
    }

    fn calendar(&self) -> Option<&Calendar> {
        Some(&self.calendar)
    }

    #[inline(always)]
    fn timeline(&self) -> Timeline {
        Timeline::Wall
    }

    fn window_varies(&self) -> bool {
        true
    }

    fn window_length(&self, now: Timestamp) -> Nanos {
        let (start, end) = self.calendar.window_of(now.get() / NANOS_PER_SECOND);
        Nanos::SECOND.saturating_mul(end.saturating_sub(start).unsigned_abs())
    }
}

impl WindowRules for CalendarWindow {
    type Series = Calendar;

    fn series(&self) -> &Calendar {
        &self.calendar
    }

    fn at_once(&self) -> i64 {
        self.count
    }

    fn keeping(self, keep: i64) -> CalendarWindow {
        CalendarWindow { count: self.count - keep, ..self }
    }
}

impl WindowSeries for Calendar {
    const LATEST: Timestamp = Timestamp::clamped(MAX_SECOND * NANOS_PER_SECOND - 1);
    const MAX_USED: i64 = MAX_USED;

    #[inline]
    fn open(&self, found: Option<State>, now: Timestamp) -> OpenWindow {
        let now = now.get();
        let stored = found.map(Calendar::mark_and_used);
        // Taken at its word, even if this calendar has no window with this end: another limit may
        // have opened it.
        let stored = stored.filter(|&(end, _)| now < end.saturating_mul(NANOS_PER_SECOND));
        let (end, used) = stored.unwrap_or_else(|| (self.end_of(now / NANOS_PER_SECOND), 0));
        let left = end.saturating_mul(NANOS_PER_SECOND) - now;
        OpenWindow { mark: end, used, elapsed: 0, left: Nanos::clamped(left) }
    }

    fn state(end: i64, used: i64) -> State {
        let word = end.saturating_mul(NANOS_PER_SECOND).saturating_add(used);
        State::from_instant(Timestamp::clamped(word))
    }

    fn mark_and_used(state: State) -> (i64, i64) {
        let word = state.instant().get();
        (word / NANOS_PER_SECOND, word % NANOS_PER_SECOND)
    }

    fn lifetime(&self) -> Lifetime {
        Lifetime::INSTANT.on(Timeline::Wall)
    }
}
