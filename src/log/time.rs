//! Parsing of the times in logs.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{Offset, TimeZone};

use crate::log::fault::LineFault;

const SECOND: i64 = 1_000_000_000;

/// Returns the nanoseconds of the unit in which an epoch is a plausible time: seconds below 10^11, and so on.
fn unit_of(epoch: i64) -> i64 {
    match epoch {
        ..100_000_000_000 => SECOND,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1000,
        100_000_000_000_000_000.. => 1,
    }
}

/// Parses a time. Returns nanoseconds since 1970.
///
/// Accepts `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123Z` with its usual variants, and epoch
/// timestamps with or without a fraction, in the unit in which they are plausible. Times without a zone
/// are in `zone`. Digits beyond nanoseconds are truncated. A leap second is
/// treated as the second before it.
///
/// # Errors
/// [`LineFault::Time`] for text that is not a time, [`LineFault::Beyond`] for a time before 1970 or
/// after 2262.
///
/// # Source
/// Log formats of Apache and nginx; ISO 8601 in the profile of RFC 3339, section 5.6.
pub fn timestamp(text: &[u8], zone: &TimeZone) -> Result<i64, LineFault> {
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    let invalid = || LineFault::Time { found: text.to_vec() };
    let utf8 = std::str::from_utf8(bare).map_err(|_| invalid())?;
    let nanos = match bare {
        [_, _, b'/', ..] => server_time(utf8, zone),
        [_, _, _, _, b'-' | b'/', ..] => iso(utf8, zone),
        _ => epoch(bare),
    };
    match i64::try_from(nanos.ok_or_else(invalid)?) {
        Ok(nanos) if nanos >= 0 => Ok(nanos),
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

/// Parses a number of units since 1970. Returns nanoseconds.
fn epoch(text: &[u8]) -> Option<i128> {
    let length = text.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let (whole, rest) = text.split_at(length);
    if length == 0 || length > 19 {
        return None;
    }
    let fraction = match rest {
        [] => &[][..],
        [b'.', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => digits,
        _ => return None,
    };
    let whole: i64 = std::str::from_utf8(whole).ok()?.parse().ok()?;
    let unit = i128::from(unit_of(whole));
    // Digits beyond nanoseconds are truncated.
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let billionths = digits.fold(0, |sum, digit| 10 * sum + i64::from(digit - b'0'));
    Some(i128::from(whole) * unit + i128::from(billionths) * unit / i128::from(SECOND))
}
