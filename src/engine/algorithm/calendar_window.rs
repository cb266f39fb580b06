//! The calendar window: at most `count` tokens per day, week, month or year of a time zone.
//!
//! The state is the end of the window in whole seconds, times 10^9, plus the tokens used in it. A
//! store reads it as an instant and forgets it less than a second after the window's end. So a
//! window that is in use keeps its end, even if the time zone data of two processes differ.

use crate::engine::algorithm::calendar::{Calendar, CalendarUnit, MAX_SECOND, Zone};
use crate::engine::algorithm::description::{
    Description, FieldValue, Fields, Refill, narrow, wide,
};
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::{Algorithm, Overdraft};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
use crate::engine::operation::Verb;
use crate::engine::state::{Lifetime, State, Write};
use crate::engine::time::{Nanos, Timestamp};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// The tokens of a state are below the nanoseconds of a second.
const MAX_USED: i64 = NANOS_PER_SECOND - 1;

/// `count` requests per calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    count: i64,
    calendar: Calendar,
}

/// The open window of a bucket at one instant.
struct OpenCalendarWindow {
    /// Its end, in seconds.
    end: i64,
    /// Tokens used in it.
    used: i64,
    /// Time until its end.
    left: Nanos,
}

impl OpenCalendarWindow {
    fn write_if(&self, changes: bool) -> Write {
        Write::put_if(changes, state(self.end, self.used), Lifetime::INSTANT)
    }
}

fn state(end: i64, used: i64) -> State {
    let word = end.saturating_mul(NANOS_PER_SECOND).saturating_add(used);
    State::from_instant(Timestamp::clamped(word))
}

/// Returns the window's end in seconds, and the tokens used.
fn end_and_used(state: State) -> (i64, i64) {
    let word = state.instant().get();
    (word / NANOS_PER_SECOND, word % NANOS_PER_SECOND)
}

impl CalendarWindow {
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

    /// Returns the window of a call at `now`: the stored one, or a new one if that has ended.
    #[inline]
    fn open(&self, found: Option<State>, now: Timestamp) -> OpenCalendarWindow {
        // Time does not advance beyond the last instant of the last window.
        let now = now.get().min(MAX_SECOND * NANOS_PER_SECOND - 1);
        let stored = found.map(end_and_used);
        // Taken at its word, even if this calendar has no window with this end: another limit may
        // have opened it.
        let stored = stored.filter(|&(end, _)| now < end.saturating_mul(NANOS_PER_SECOND));
        let (end, used) =
            stored.unwrap_or_else(|| (self.calendar.end_of(now / NANOS_PER_SECOND), 0));
        OpenCalendarWindow {
            end,
            used,
            left: Nanos::clamped(end.saturating_mul(NANOS_PER_SECOND) - now),
        }
    }
}

impl Description for CalendarWindow {
    fn name(&self) -> AlgorithmName {
        AlgorithmName::CalendarWindow
    }

    fn fields(&self) -> Fields {
        vec![
            ("count", FieldValue::Whole(self.count)),
            ("period", FieldValue::Word(self.calendar.unit.as_str())),
            ("zone", FieldValue::Word(self.calendar.zone.name())),
        ]
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

    fn window_varies(&self) -> bool {
        true
    }

    fn window_length(&self, now: Timestamp) -> Nanos {
        let (start, end) = self.calendar.window_of(now.get() / NANOS_PER_SECOND);
        Nanos::SECOND.saturating_mul(end.saturating_sub(start).unsigned_abs())
    }
}

impl Algorithm for CalendarWindow {
    fn max_cost(&self) -> i64 {
        self.count
    }

    fn keeping(self, keep: i64) -> CalendarWindow {
        CalendarWindow { count: self.count - keep, ..self }
    }

    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut window = self.open(found, now);
        window.used += cost.get();
        let allowed = window.used <= self.count;
        (allowed, window.write_if(allowed && cost > Cost::ZERO))
    }

    fn refund(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut window = self.open(found, now);
        let given_back = cost.get().min(window.used);
        window.used -= given_back;
        (given_back > 0, window.write_if(given_back > 0))
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        let mut window = self.open(found, now);
        let most = self.count.saturating_mul(2).min(MAX_USED);
        let taken = overdraft.taken(cost.get(), most - window.used);
        window.used += taken;
        (taken == cost.get(), window.write_if(taken > 0))
    }

    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        let window = self.open(after, now);
        let wait = |used: i64| if used <= self.count { Nanos::ZERO } else { window.left };
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.count - window.used).max(0),
            retry_after: match verb {
                Verb::Spend | Verb::Reserve | Verb::Check => wait(window.used + cost.get()),
                Verb::Refund | Verb::Release(_) | Verb::Renew(_) => Nanos::ZERO,
                Verb::Charge if !allowed => window.left,
                Verb::Charge | Verb::ChargePartial => wait(window.used),
            },
            reset_after: window.left,
            next_token_after: window.left,
            now,
        }
    }

    fn lifetime(&self, _: State) -> Lifetime {
        Lifetime::INSTANT
    }

    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State> {
        let mut window = self.open(Some(found), now);
        window.used -= cost.get().min(window.used);
        let after = state(window.end, window.used);
        let is_same = window.end == end_and_used(charged).0;
        Some(after).filter(|&after| is_same && after != found)
    }

    // The size of an overdraft is unknown but irrelevant: nothing is admitted before the window's
    // end.
    fn state_of(&self, peek: &Decision) -> State {
        let is_overdrawn = peek.remaining == 0 && !peek.allowed;
        let used = (self.count - peek.remaining + i64::from(is_overdrawn)).min(MAX_USED);
        state(peek.now.saturating_add(peek.reset_after).get() / NANOS_PER_SECOND, used)
    }
}
