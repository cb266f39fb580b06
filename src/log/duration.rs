//! The time that a request took.

use crate::log::fault::LineFault;

/// The longest duration in nanoseconds, a hundred days; more is a number in another unit.
const MAX: f64 = 8.64e15;

/// Parses a duration to nanoseconds: a number of `unit`, unless it is 0 for none, or numbers with units such as `42ms`, `0.250s` and
/// `1m2.5s`. Several with blanks between them are added.
///
/// An absent duration is 0: no text, `-`, or a negative number, which load balancers write if a request
/// has no answer.
///
/// # Errors
/// [`LineFault::Duration`] for other text, and for more than a hundred days.
///
/// # Source
/// AWS, access log entries of load balancers; Go, `time.Duration.String`.
pub fn duration(text: &[u8], unit: i64) -> Result<i64, LineFault> {
    let invalid = || LineFault::Duration { found: text.to_vec() };
    let words = std::str::from_utf8(text).map_err(|_| invalid())?.split_ascii_whitespace();
    let parts = words.map(|word| nanos(word, unit as f64).ok_or_else(invalid));
    let sum = parts.sum::<Result<f64, _>>()?.round();
    if sum <= MAX { Ok(sum as i64) } else { Err(invalid()) }
}

fn nanos(word: &str, unit: f64) -> Option<f64> {
    if let Ok(number) = word.parse::<f64>() {
        // Without a unit, only 0 is known.
        let is_known = number.is_finite() && (unit > 0.0 || number <= 0.0);
        return is_known.then(|| (number * unit).max(0.0));
    }
    let mut rest = if word == "-" { "" } else { word };
    let mut sum = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|next| !is_digit(next))?);
        let (unit, next) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        sum += number.parse::<f64>().ok()? * nanos_in(unit)?;
        rest = next;
    }
    Some(sum)
}

fn is_digit(character: char) -> bool {
    character.is_ascii_digit() || character == '.'
}

fn nanos_in(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 6e10,
        "h" => 3.6e12,
        _ => return None,
    })
}
