//! Lengths and points of time, in whole nanoseconds.

use std::fmt;

const NANOS_PER_MILLI: i64 = 1_000_000;

/// A length of time: 0 or more nanoseconds, below 2^63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(i64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);
    /// The longest time there is, about 292 years.
    pub const MAX: Nanos = Nanos(i64::MAX);
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);

    /// Takes a number of nanoseconds; `None` if it is negative.
    pub const fn new(nanos: i64) -> Option<Nanos> {
        if nanos < 0 { None } else { Some(Nanos(nanos)) }
    }

    /// Takes a number of nanoseconds, where less than none counts as none.
    pub const fn clamped(nanos: i64) -> Nanos {
        if nanos < 0 { Nanos(0) } else { Nanos(nanos) }
    }

    /// Takes a number of milliseconds; what is beyond the end counts as the end.
    pub const fn from_millis(millis: u64) -> Nanos {
        if millis > (i64::MAX / NANOS_PER_MILLI) as u64 {
            Nanos::MAX
        } else {
            Nanos(millis as i64 * NANOS_PER_MILLI)
        }
    }

    /// The number of nanoseconds, 0 or more.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The number of milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        (self.0 / NANOS_PER_MILLI) as u64
    }

    /// Whether it is a whole number of milliseconds.
    pub const fn is_whole_millis(self) -> bool {
        self.0 % NANOS_PER_MILLI == 0
    }

    /// So many times as long; what is beyond the end counts as the end.
    pub fn saturating_mul(self, times: u64) -> Nanos {
        let product = i128::from(self.0) * i128::from(times);
        Nanos(i64::try_from(product).unwrap_or(i64::MAX))
    }
}

/// Spelled as a limits file spells it: `1h30m`, `250ms`, `0s`. Hours are the longest unit, so that
/// every text reads back.
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

/// A point in time: 0 or more nanoseconds since its clock's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A point in time that no clock may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a clock cannot be before its origin: the time must be at least 0 ns, found {found} ns")]
pub struct BeforeOrigin {
    /// The time asked for, in nanoseconds.
    pub found: i64,
}

impl Timestamp {
    /// The clock's origin.
    pub const ORIGIN: Timestamp = Timestamp(0);
    /// The end of time.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// Takes nanoseconds since the clock's origin.
    ///
    /// # Errors
    /// [`BeforeOrigin`] if they are negative.
    pub const fn new(nanos: i64) -> Result<Timestamp, BeforeOrigin> {
        if nanos < 0 { Err(BeforeOrigin { found: nanos }) } else { Ok(Timestamp(nanos)) }
    }

    /// Takes nanoseconds since the clock's origin, where a time before it counts as the origin.
    pub const fn clamped(nanos: i64) -> Timestamp {
        if nanos < 0 { Timestamp(0) } else { Timestamp(nanos) }
    }

    /// Nanoseconds since the clock's origin, 0 or more.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Later by `by`; what is beyond the end counts as the end.
    pub const fn saturating_add(self, by: Nanos) -> Timestamp {
        Timestamp(self.0.saturating_add(by.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_spelled_in_units_that_read_back() {
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
    fn nothing_passes_the_end() {
        assert_eq!(Nanos::from_millis(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos(i64::MAX / 2).saturating_mul(3), Nanos::MAX);
        assert_eq!(Timestamp::MAX.saturating_add(Nanos(1)), Timestamp::MAX);
        assert_eq!(Timestamp::new(-1), Err(BeforeOrigin { found: -1 }));
    }
}
