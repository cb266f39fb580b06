//! Parsing of the times in logs.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{Offset, TimeZone};

use crate::log::fault::LineFault;

const SECOND: i64 = 1_000_000_000;

/// The unit of an epoch timestamp.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EpochUnit {
    /// 10^9 ns.
    Seconds,
    /// 10^6 ns.
    Millis,
    /// 1000 ns.
    Micros,
    /// 1 ns.
    Nanos,
}

impl EpochUnit {
    fn nanos(self) -> i64 {
        match self {
            EpochUnit::Seconds => SECOND,
            EpochUnit::Millis => 1_000_000,
            EpochUnit::Micros => 1000,
            EpochUnit::Nanos => 1,
        }
    }

    /// Returns the unit in which a number is a plausible time: seconds below 10^11, and so on.
    fn of(number: i64) -> EpochUnit {
        match number {
            ..100_000_000_000 => EpochUnit::Seconds,
            100_000_000_000..100_000_000_000_000 => EpochUnit::Millis,
            100_000_000_000_000..100_000_000_000_000_000 => EpochUnit::Micros,
            100_000_000_000_000_000.. => EpochUnit::Nanos,
        }
    }

    /// Returns the bit of this unit in a set of units.
    #[must_use]
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Parses a time. Returns nanoseconds since 1970 and, for an epoch timestamp, its unit.
///
/// Accepts `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123Z` with its usual variants, and epoch
/// timestamps with or without a fraction. Times without a zone are in `zone`. Epochs are in `unit`, or in
/// the unit in which they are plausible. Digits beyond nanoseconds are truncated. A leap second is
/// treated as the second before it.
///
/// # Errors
/// [`LineFault::Time`] for text that is not a time, [`LineFault::Beyond`] for a time before 1970 or
/// after 2262.
///
/// # Source
/// Log formats of Apache and nginx; ISO 8601 in the profile of RFC 3339, section 5.6.
pub fn timestamp(
    text: &[u8],
    zone: &TimeZone,
    unit: Option<EpochUnit>,
) -> Result<(i64, Option<EpochUnit>), LineFault> {
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    let invalid = || LineFault::Time { found: text.to_vec() };
    let utf8 = std::str::from_utf8(bare).map_err(|_| invalid())?;
    let (nanos, unit) = match bare {
        [_, _, b'/', ..] => (server_time(utf8, zone).ok_or_else(invalid)?, None),
        [_, _, _, _, b'-' | b'/', ..] => (iso(utf8, zone).ok_or_else(invalid)?, None),
        _ => {
            let (nanos, unit) = epoch(bare, unit).ok_or_else(invalid)?;
            (nanos, Some(unit))
        }
    };
    match i64::try_from(nanos) {
        Ok(nanos) if nanos >= 0 => Ok((nanos, unit)),
        _ => Err(LineFault::Beyond { found: text.to_vec() }),
    }
}

/// Parses `10/Oct/2000:13:55:36 -0700`, also with a space before the time of day.
fn server_time(text: &str, zone: &TimeZone) -> Option<i128> {
    let (date, rest) = text.split_at_checked(11)?;
    let rest = rest.strip_prefix([':', ' '])?;
    let (clock, offset) = match rest.split_once(' ') {
        Some((clock, offset)) => (clock, Some(BrokenDownTime::parse("%z", offset).ok()?.offset()?)),
        None => (rest, None),
    };
    let found = BrokenDownTime::parse("%d/%b/%Y %H:%M:%S%.f", format!("{date} {clock}")).ok()?;
    instant(found.to_datetime().ok()?, offset, zone)
}

/// Parses `2000-10-10T13:55:36.123-07:00`, also with a space or slashes.
fn iso(text: &str, zone: &TimeZone) -> Option<i128> {
    let (date, rest) = text.split_at_checked(11)?;
    if date.as_bytes()[7] != date.as_bytes()[4] {
        return None;
    }
    let mut normalized = date.replace('/', "-").replace('_', "T");
    let is_clock = |character: &char| character.is_ascii_digit() || *character == ':';
    let (clock, rest) = rest.split_at(rest.chars().take_while(is_clock).count());
    let is_fraction =
        |character: &char| character.is_ascii_digit() || matches!(character, '.' | ',');
    let (fraction, offset) = rest.split_at(rest.chars().take_while(is_fraction).count());
    normalized.push_str(clock);
    normalized.push_str(&fraction[..fraction.len().min(10)]);
    match offset.trim_start_matches(' ') {
        "UTC" | "GMT" => normalized.push('Z'),
        offset => normalized.push_str(offset),
    }
    let found = Pieces::parse(&normalized).ok()?;
    let own = found.to_time_zone().ok()?;
    let zone = own.as_ref().unwrap_or(zone);
    instant(found.date().to_datetime(found.time()?), found.to_numeric_offset(), zone)
}

/// Returns the instant of a local time, and the first one if it occurs twice.
fn instant(local: DateTime, offset: Option<Offset>, zone: &TimeZone) -> Option<i128> {
    let found = match offset {
        Some(offset) => offset.to_timestamp(local),
        None => zone.to_ambiguous_timestamp(local).compatible(),
    };
    found.ok().map(|found| found.as_nanosecond())
}

/// Parses a number of units since 1970. Returns nanoseconds and the unit.
fn epoch(text: &[u8], unit: Option<EpochUnit>) -> Option<(i128, EpochUnit)> {
    let length = text.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let (whole, rest) = text.split_at(length);
    if length == 0 || length > 19 {
        return None;
    }
    let fraction = match rest {
        [] => &[][..],
        [b'.', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => digits,
        // Exponent notation of a float. Parsing as a float is exact enough, because it was a float before.
        _ => return float(text, unit),
    };
    let whole: i64 = std::str::from_utf8(whole).ok()?.parse().ok()?;
    let unit = unit.unwrap_or_else(|| EpochUnit::of(whole));
    // Digits beyond nanoseconds are truncated.
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let billionths = digits.fold(0, |sum, digit| 10 * sum + i64::from(digit - b'0'));
    let nanos = i128::from(whole) * i128::from(unit.nanos());
    Some((nanos + i128::from(billionths) * i128::from(unit.nanos()) / i128::from(SECOND), unit))
}

fn float(text: &[u8], unit: Option<EpochUnit>) -> Option<(i128, EpochUnit)> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let unit = unit.unwrap_or_else(|| EpochUnit::of(number as i64));
    number.is_finite().then(|| ((number * unit.nanos() as f64).round() as i128, unit))
}
