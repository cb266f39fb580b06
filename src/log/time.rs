//! When, as a log says it.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{Offset, TimeZone};

use crate::log::fault::Fault;

const SECOND: i64 = 1_000_000_000;

/// What one counts in an epoch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// 10^9 ns.
    Seconds,
    /// 10^6 ns.
    Millis,
    /// 1000 ns.
    Micros,
    /// 1 ns.
    Nanos,
}

impl Unit {
    fn nanos(self) -> i64 {
        match self {
            Unit::Seconds => SECOND,
            Unit::Millis => 1_000_000,
            Unit::Micros => 1000,
            Unit::Nanos => 1,
        }
    }

    /// The unit in which a number is a time of our days: seconds below 10^11, and so on.
    fn of(number: i64) -> Unit {
        match number {
            ..100_000_000_000 => Unit::Seconds,
            100_000_000_000..100_000_000_000_000 => Unit::Millis,
            100_000_000_000_000..100_000_000_000_000_000 => Unit::Micros,
            100_000_000_000_000_000.. => Unit::Nanos,
        }
    }

    /// Its bit in a set of units.
    #[must_use]
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Reads a time, as nanoseconds since 1970, and says which unit an epoch was taken to be in.
///
/// Takes `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123Z` with its usual variants, and
/// epochs with or without a fraction. What has no zone is in `zone`; an epoch is in `unit`, or in
/// the one in which it is a time of our days. Digits beyond the nanosecond are cut. A leap second
/// is the second before it.
///
/// # Errors
/// [`Fault::Time`] for a text that is no time, [`Fault::Beyond`] for one before 1970 or after 2262.
///
/// # Source
/// Apache's and nginx's log formats; ISO 8601 as RFC 3339, section 5.6, profiles it.
pub fn timestamp(
    text: &[u8],
    zone: &TimeZone,
    unit: Option<Unit>,
) -> Result<(i64, Option<Unit>), Fault> {
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    let wrong = || Fault::Time { found: text.to_vec() };
    let spelled = std::str::from_utf8(bare).map_err(|_| wrong())?;
    let (nanos, unit) = match bare {
        [_, _, b'/', ..] => (server_time(spelled, zone).ok_or_else(wrong)?, None),
        [_, _, _, _, b'-' | b'/', ..] => (iso(spelled, zone).ok_or_else(wrong)?, None),
        _ => {
            let (nanos, unit) = epoch(bare, unit).ok_or_else(wrong)?;
            (nanos, Some(unit))
        }
    };
    match i64::try_from(nanos) {
        Ok(nanos) if nanos >= 0 => Ok((nanos, unit)),
        _ => Err(Fault::Beyond { found: text.to_vec() }),
    }
}

/// `10/Oct/2000:13:55:36 -0700`, also with a space before the time of day.
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

/// `2000-10-10T13:55:36.123-07:00`, also with a space or slashes.
fn iso(text: &str, zone: &TimeZone) -> Option<i128> {
    let (date, rest) = text.split_at_checked(11)?;
    if date.as_bytes()[7] != date.as_bytes()[4] {
        return None;
    }
    let mut spelled = date.replace('/', "-").replace('_', "T");
    let is_clock = |sign: &char| sign.is_ascii_digit() || *sign == ':';
    let (clock, rest) = rest.split_at(rest.chars().take_while(is_clock).count());
    let is_fraction = |sign: &char| sign.is_ascii_digit() || matches!(sign, '.' | ',');
    let (fraction, offset) = rest.split_at(rest.chars().take_while(is_fraction).count());
    spelled.push_str(clock);
    spelled.push_str(&fraction[..fraction.len().min(10)]);
    match offset.trim_start_matches(' ') {
        "UTC" | "GMT" => spelled.push('Z'),
        offset => spelled.push_str(offset),
    }
    let found = Pieces::parse(&spelled).ok()?;
    instant(found.date().to_datetime(found.time()?), found.to_numeric_offset(), zone)
}

/// The instant of a local time. One that occurs twice is the first of both.
fn instant(local: DateTime, offset: Option<Offset>, zone: &TimeZone) -> Option<i128> {
    let found = match offset {
        Some(offset) => offset.to_timestamp(local),
        None => zone.to_ambiguous_timestamp(local).compatible(),
    };
    found.ok().map(|found| found.as_nanosecond())
}

/// A number of units since 1970, and what was taken for the unit.
fn epoch(text: &[u8], unit: Option<Unit>) -> Option<(i128, Unit)> {
    let length = text.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let (whole, rest) = text.split_at(length);
    if length == 0 || length > 19 {
        return None;
    }
    let fraction = match rest {
        [] => &[][..],
        [b'.', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => digits,
        // As a float is shown when it is long: exact enough, since it was a float before.
        _ => return float(text, unit),
    };
    let whole = number(whole)?;
    let unit = unit.unwrap_or_else(|| Unit::of(whole));
    let nanos = i128::from(nanos_of(fraction)) * i128::from(unit.nanos()) / i128::from(SECOND);
    Some((i128::from(whole) * i128::from(unit.nanos()) + nanos, unit))
}

fn float(text: &[u8], unit: Option<Unit>) -> Option<(i128, Unit)> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let unit = unit.unwrap_or_else(|| Unit::of(number as i64));
    number.is_finite().then(|| ((number * unit.nanos() as f64).round() as i128, unit))
}

/// The digits of a fraction of a second, cut after nine.
fn nanos_of(digits: &[u8]) -> i64 {
    let mut nanos = 0;
    for place in 0..9 {
        nanos = nanos * 10 + digits.get(place).map_or(0, |digit| i64::from(digit - b'0'));
    }
    nanos
}

/// Digits alone, at most 19 of them.
fn number(digits: &[u8]) -> Option<i64> {
    let mut number = 0_i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(number)
}
