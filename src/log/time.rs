//! When, as a log says it.

use crate::log::fault::Fault;

const SECOND: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

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

/// What a time that names no zone is short of: from which local second on, how many seconds east.
///
/// Before the first entry the first holds; there is always one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Zone {
    first: i32,
    changes: Vec<(i64, i32)>,
}

impl Zone {
    /// Greenwich.
    pub const UTC: Zone = Zone { first: 0, changes: Vec::new() };

    /// A zone that is `first` seconds east of Greenwich until the first of its changes, which
    /// ascend.
    #[must_use]
    pub fn new(first: i32, changes: Vec<(i64, i32)>) -> Zone {
        Zone { first, changes }
    }

    fn offset(&self, local: i64) -> i64 {
        let after = self.changes.partition_point(|&(from, _)| from <= local);
        let offset = if after == 0 { self.first } else { self.changes[after - 1].1 };
        i64::from(offset)
    }
}

/// Reads a time, as nanoseconds since 1970, and says which unit an epoch was taken to be in.
///
/// Takes `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123Z` with its usual variants, and
/// epochs with or without a fraction. What has no zone is in `zone`; an epoch is in `unit`, or in
/// the one in which it is a time of our days. Digits beyond the nanosecond are cut. A leap second
/// is the second after it, as in POSIX.
///
/// # Errors
/// [`Fault::Time`] for a text that is no time, [`Fault::Beyond`] for one before 1970 or after 2262.
///
/// # Source
/// Apache's and nginx's log formats; ISO 8601 as RFC 3339, section 5.6, profiles it.
pub fn timestamp(
    text: &[u8],
    zone: &Zone,
    unit: Option<Unit>,
) -> Result<(i64, Option<Unit>), Fault> {
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    let wrong = || Fault::Time { found: text.to_vec() };
    let (nanos, unit) = match bare {
        [_, _, b'/', _, _, _, b'/', ..] => (clf(bare, zone).ok_or_else(wrong)?, None),
        [_, _, _, _, b'-' | b'/', ..] => (iso(bare, zone).ok_or_else(wrong)?, None),
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

/// `10/Oct/2000:13:55:36 -0700`
fn clf(text: &[u8], zone: &Zone) -> Option<i128> {
    let (date, rest) = text.split_at_checked(12)?;
    let month = MONTHS.iter().position(|name| name[..] == date[3..6])?;
    if date[11] != b':' {
        return None;
    }
    let year = number(&date[7..11])?;
    let days = days(year, month as i64 + 1, number(&date[..2])?)?;
    of_day(days, rest, zone)
}

/// `2000-10-10T13:55:36.123-07:00`, also with a space or slashes.
fn iso(text: &[u8], zone: &Zone) -> Option<i128> {
    let (date, rest) = text.split_at_checked(11)?;
    if date[7] != date[4] || !matches!(date[10], b'T' | b't' | b' ' | b'_') {
        return None;
    }
    let days = days(number(&date[..4])?, number(&date[5..7])?, number(&date[8..10])?)?;
    of_day(days, rest, zone)
}

/// `13:55:36`, with or without a fraction and a zone.
fn of_day(days: i64, text: &[u8], zone: &Zone) -> Option<i128> {
    let (clock, rest) = text.split_at_checked(8)?;
    if clock[2] != b':' || clock[5] != b':' {
        return None;
    }
    let (hour, minute, second) =
        (number(&clock[..2])?, number(&clock[3..5])?, number(&clock[6..])?);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let local = days * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    let (fraction, rest) = match rest {
        [b'.' | b',', digits @ ..] => {
            let length = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
            let (digits, rest) = digits.split_at(length);
            (if length == 0 { None } else { Some(nanos_of(digits)) }?, rest)
        }
        _ => (0, rest),
    };
    let offset = match rest.strip_prefix(b" ").unwrap_or(rest) {
        [] => zone.offset(local),
        b"Z" | b"z" | b"UTC" | b"GMT" => 0,
        offset => offset_of(offset)?,
    };
    Some(i128::from(local - offset) * i128::from(SECOND) + i128::from(fraction))
}

/// `-0330`, `+05:30` or `+01`, in seconds east of Greenwich.
fn offset_of(text: &[u8]) -> Option<i64> {
    let (hours, minutes) = match &text[1..] {
        [hours @ .., b':', a, b] if hours.len() == 2 => (hours, number(&[*a, *b])?),
        [hours @ .., a, b] if hours.len() == 2 => (hours, number(&[*a, *b])?),
        hours if hours.len() == 2 => (hours, 0),
        _ => return None,
    };
    let hours = number(hours)?;
    if hours > 23 || minutes > 59 {
        return None;
    }
    match text[0] {
        b'+' => Some(hours * 3600 + minutes * 60),
        b'-' => Some(-(hours * 3600 + minutes * 60)),
        _ => None,
    }
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

/// Days since 1970 of a day that there is.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day last, and months of 153 days in five.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468)
}
