//! Parses durations: `1s`, `180m`, `1h30m`, `250ms`.

use std::time::Duration;

use crate::engine::id::Excerpt;
use crate::engine::time::Nanos;

/// The maximum length of a duration.
const MAX_LENGTH: usize = 100;
const UNITS: &str = "ns, us, ms, s, m, h, d and w";

/// The string is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DurationError {
    #[error("a duration must be a number with a unit, as in 1s, 180m or 1h30m, found {found}")]
    NotATime { found: Excerpt },
    #[error("a duration must have a unit, found {found}; use {number}s or {number}ms")]
    NoUnit { found: Excerpt, number: String },
    #[error("the units of a duration are {UNITS}, found {unit} in {found}")]
    UnknownUnit { unit: Excerpt, found: Excerpt },
    #[error("months and years vary in length, found {found}; use days or hours")]
    Calendar { found: Excerpt },
    #[error("a fraction must come to whole nanoseconds, found {found}; use a smaller unit")]
    Uneven { found: Excerpt },
    #[error("a duration must be below {}, found {found}", Nanos::MAX)]
    TooLong { found: Excerpt },
}

/// Parses a duration with units, such as `1s`, `180m`, `1h30m`, `1.5h` or `2 days`.
///
/// The units are those of the `humantime` crate except months and years.
///
/// # Errors
/// [`DurationError`] if the string is not a duration, has a number without a unit, is not a whole
/// number of nanoseconds, or is longer than [`Nanos::MAX`].
pub fn duration(text: &str) -> Result<Nanos, DurationError> {
    let found = || Excerpt::new(text);
    if text.len() > MAX_LENGTH {
        return Err(DurationError::NotATime { found: found() });
    }
    let mut rest = text.trim();
    let mut sum = Nanos::ZERO;
    loop {
        let (number, after) =
            number(rest).ok_or_else(|| DurationError::NotATime { found: found() })?;
        let after = after.trim_start();
        let end = after.find(|letter: char| !letter.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let length = if unit.is_empty() {
            return Err(if after.is_empty() && number.len() == text.trim().len() {
                DurationError::NoUnit { found: found(), number: number.to_owned() }
            } else {
                DurationError::NotATime { found: found() }
            });
        } else {
            span(number, unit, text)?
        };
        sum = added(sum, length).ok_or_else(|| DurationError::TooLong { found: found() })?;
        rest = after.trim_start();
        if rest.is_empty() {
            return Ok(sum);
        }
    }
}

/// Splits a string after the number at its start, which may have a decimal point.
fn number(text: &str) -> Option<(&str, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    if let Some(part) = text[end..].strip_prefix('.') {
        let more = digits(part);
        if more == 0 {
            return None;
        }
        end += 1 + more;
    }
    (end > 0 && !text.starts_with('.')).then(|| text.split_at(end))
}

/// Parses one number with its unit. Humantime gets each one separately, because it also accepts
/// digits with spaces between them and panics if some sums overflow.
fn span(number: &str, unit: &str, text: &str) -> Result<Duration, DurationError> {
    let found = || Excerpt::new(text);
    if matches!(unit, "M" | "y" | "yr" | "yrs" | "month" | "months" | "year" | "years") {
        return Err(DurationError::Calendar { found: found() });
    }
    humantime::parse_duration(&format!("{number}{unit}")).map_err(|error| match error {
        humantime::DurationError::UnknownUnit { .. } => {
            DurationError::UnknownUnit { unit: Excerpt::new(unit), found: found() }
        }
        humantime::DurationError::NumberOverflow if number.contains('.') => {
            DurationError::Uneven { found: found() }
        }
        humantime::DurationError::NumberOverflow => DurationError::TooLong { found: found() },
        _ => DurationError::NotATime { found: found() },
    })
}

fn added(sum: Nanos, length: Duration) -> Option<Nanos> {
    let nanos = i64::try_from(length.as_nanos()).ok()?;
    sum.get().checked_add(nanos).and_then(Nanos::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_sum_of_numbers_with_units() {
        for (text, nanos) in [
            ("1s", 1_000_000_000),
            ("180m", 10_800_000_000_000),
            ("168h", 604_800_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1h 30m", 5_400_000_000_000),
            (" 2 days ", 172_800_000_000_000),
            ("1w", 604_800_000_000_000),
            ("250ms", 250_000_000),
            ("1500us", 1_500_000),
            ("1500µs", 1_500_000),
            ("7ns", 7),
            ("0s", 0),
            ("1.5h", 5_400_000_000_000),
            ("0.25ms", 250_000),
            ("007s", 7_000_000_000),
        ] {
            assert_eq!(duration(text).unwrap().get(), nanos, "{text}");
        }
        assert_eq!(duration(&Nanos::MAX.to_string()), Ok(Nanos::MAX));
    }

    #[test]
    fn months_and_years_are_refused() {
        for text in ["1M", "1month", "2 months", "1y", "1yr", "2yrs", "1year", "3 years", "1h 1M"] {
            let error = duration(text).unwrap_err();
            assert!(matches!(error, DurationError::Calendar { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "", " ", "s", "1", "-1s", "+1s", "1s2", "1 0s", "1,5s", "1.s", ".5s", "1s,", "1s;1m",
            "1_0s", "1e3s", "٣s", "1s\n#", "1/s", "per", "1h-30m", "1s.", "1..5s",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        for text in ["1x", "1S", "1H", "1Ms", "1secondss"] {
            let error = duration(text).unwrap_err();
            assert!(matches!(error, DurationError::UnknownUnit { .. }), "{text}: {error}");
        }
        for text in ["0.5ns", "0.0000000001s", "0.3333333333h"] {
            let error = duration(text).unwrap_err();
            assert!(matches!(error, DurationError::Uneven { .. }), "{text}: {error}");
        }
        for text in [
            "9223372036854775808ns",
            "99999999999999999999s",
            "293y".replace('y', "w").repeat(60).as_str(),
            "18446744073709551615s1000ms",
            "9999999999999999999s 8446744073709551616s 1000ms",
            "2562047h47m16s854ms775us808ns",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(duration(&"1".repeat(10_000_000)).is_err());
    }
}
