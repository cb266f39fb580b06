//! Durations and timestamps in whole nanoseconds.

use std::fmt;

const NANOS_PER_MILLI: i64 = 1_000_000;

/// A duration from 0 to 2^63 - 1 nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(i64);

impl Nanos {
    /// Zero.
    pub const ZERO: Nanos = Nanos(0);
    /// The longest duration, about 292 years.
    pub const MAX: Nanos = Nanos(i64::MAX);
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);

    /// Returns a duration in nanoseconds; `None` if it is negative.
    pub const fn new(nanos: i64) -> Option<Nanos> {
        if nanos < 0 { None } else { Some(Nanos(nanos)) }
    }

    /// Returns a duration in nanoseconds; negative numbers become 0.
    pub const fn clamped(nanos: i64) -> Nanos {
        if nanos < 0 { Nanos(0) } else { Nanos(nanos) }
    }

    /// Returns a duration in milliseconds, at most [`Nanos::MAX`].
    pub const fn from_millis(millis: u64) -> Nanos {
        if millis > (i64::MAX / NANOS_PER_MILLI) as u64 {
            Nanos::MAX
        } else {
            Nanos(millis as i64 * NANOS_PER_MILLI)
        }
    }

    /// The number of nanoseconds, at least 0.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The number of milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        (self.0 / NANOS_PER_MILLI) as u64
    }

    /// Returns whether this is a whole number of milliseconds.
    pub const fn is_whole_millis(self) -> bool {
        self.0 % NANOS_PER_MILLI == 0
    }

    /// Returns the time in milliseconds, rounded up, for messages.
    pub fn to_whole_millis(self) -> Nanos {
        let rest = self.0 % NANOS_PER_MILLI;
        if rest == 0 { self } else { Nanos(self.0.saturating_add(NANOS_PER_MILLI - rest)) }
    }

    /// Returns the product, at most [`Nanos::MAX`].
    pub fn saturating_mul(self, times: u64) -> Nanos {
        let product = i128::from(self.0) * i128::from(times);
        Nanos(i64::try_from(product).unwrap_or(i64::MAX))
    }
}

/// Formats a duration as in limits files: `1h30m`, `250ms`, `0s`. Hours are the largest unit, so
/// that every text parses back.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(i64, &str); 6] = [
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (nanos, unit) in UNITS {
            if rest >= nanos {
                write!(f, "{}{unit}", rest / nanos)?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

/// An instant: nanoseconds since the clock's origin, at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The instant is before the clock's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a clock cannot be before its origin: the time must be at least 0 ns, found {found} ns")]
pub struct BeforeOrigin {
    /// The given time in nanoseconds.
    pub found: i64,
}

impl Timestamp {
    /// The clock's origin.
    pub const ORIGIN: Timestamp = Timestamp(0);
    /// The latest instant.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// Returns an instant, in nanoseconds since the clock's origin.
    ///
    /// # Errors
    /// [`BeforeOrigin`] if the number is negative.
    pub const fn new(nanos: i64) -> Result<Timestamp, BeforeOrigin> {
        if nanos < 0 { Err(BeforeOrigin { found: nanos }) } else { Ok(Timestamp(nanos)) }
    }

    /// Returns an instant, in nanoseconds since the clock's origin; negative numbers become 0.
    pub const fn clamped(nanos: i64) -> Timestamp {
        if nanos < 0 { Timestamp(0) } else { Timestamp(nanos) }
    }

    /// Nanoseconds since the clock's origin, at least 0.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Returns the instant later by `by`, at most [`Timestamp::MAX`].
    pub const fn saturating_add(self, by: Nanos) -> Timestamp {
        Timestamp(self.0.saturating_add(by.0))
    }
}

/// The clock by which a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timeline {
    /// A clock that only runs forwards and that cannot be set.
    #[default]
    Steady,
    /// The time since 1970, which follows the machine's wall clock when that is set.
    Wall,
}

/// One instant on both timelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The time of the steady clock.
    pub steady: Timestamp,
    /// The time since 1970.
    pub wall: Timestamp,
}

impl Now {
    /// Returns the time on one timeline.
    #[inline(always)]
    pub fn on(self, timeline: Timeline) -> Timestamp {
        match timeline {
            Timeline::Steady => self.steady,
            Timeline::Wall => self.wall,
        }
    }

    /// Returns the later time on each timeline.
    #[inline(always)]
    #[must_use]
    pub fn max(self, other: Now) -> Now {
        Now { steady: self.steady.max(other.steady), wall: self.wall.max(other.wall) }
    }
}

/// The instant of a clock on which both timelines are the same.
impl From<Timestamp> for Now {
    fn from(at: Timestamp) -> Now {
        Now { steady: at, wall: at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_duration_parses_back() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (250_000_000, "250ms"),
            (5_400_000_000_000, "1h30m"),
            (604_800_000_000_000, "168h"),
            (1_000_001_001, "1s1us1ns"),
        ] {
            assert_eq!(Nanos(nanos).to_string(), text);
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Nanos::from_millis(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos(i64::MAX / 2).saturating_mul(3), Nanos::MAX);
        assert_eq!(Timestamp::MAX.saturating_add(Nanos(1)), Timestamp::MAX);
        assert_eq!(Timestamp::new(-1), Err(BeforeOrigin { found: -1 }));
    }
}
