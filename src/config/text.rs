//! Parses limits written as a line of text: `100/minute`, `10 per 5 minutes, burst 20`, `5 in flight`.

use std::fmt;

use crate::config::duration::{DurationError, duration};
use crate::config::fields;
use crate::engine::algorithm::calendar::{CalendarUnit, Zone};
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::window::{Anchor, Phase};
use crate::engine::limit::Limit;
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

/// The maximum length of the text of a limit.
const MAX_LENGTH: usize = 200;
/// The maximum number of characters of a string that a message shows.
const SHOWN: usize = 72;

/// The rate string is invalid. The message has three lines: the fault, the text, and a caret below the
/// fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The fault.
    pub fault: TextFault,
    /// Its position, in characters from 0.
    pub column: usize,
    width: usize,
    text: String,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TextFault {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: &'static str, found: String },
    #[error("this is one limit, with one rate; write the other rate as a limit of its own")]
    SecondRate,
    #[error("there is no sliding window; leave it out for a token bucket, or write fixed window")]
    SlidingWindow,
    #[error(
        "a rate string cannot be unlimited; write {{algorithm: unlimited}} in a file, Limit.unlimited() in \
         Python"
    )]
    Unlimited,
    #[error("a limit counts requests; leave {found} out, as in 100/minute")]
    Requests { found: String },
    #[error("a limit on requests at the same time is written as 5 in flight")]
    AtTheSameTime,
    /// A burst as a limit is described, such as `4 at once`.
    #[error("write burst {found}, as in 100/minute, burst 20")]
    AtOnce { found: String },
    #[error("{unit}s vary in length; write {count} per calendar {unit}, or use days or weeks")]
    Calendar { count: i64, unit: &'static str },
    /// A number of months or years, such as `3 months`.
    #[error("months and years vary in length; use days or weeks")]
    Calendars,
    /// `M`, which is ambiguous: a minute or a month.
    #[error("M is ambiguous (minute or month); use m or minute")]
    MinuteOrMonth,
    #[error("a number must be at most {}", i64::MAX)]
    TooLarge,
    #[error("a period must be below {}", Nanos::MAX)]
    TooLong,
    #[error("no option follows; leave it out")]
    TrailingSeparator,
    #[error("a rate string must be at most {MAX_LENGTH} bytes long, found {found}")]
    LongText { found: usize },
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.width.max(1);
        // Show only the part of a long string around the fault.
        let skipped = (self.column + width.min(SHOWN)).saturating_sub(SHOWN);
        let visible = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
        let text: String = self.text.chars().skip(skipped).take(SHOWN).map(visible).collect();
        let indent = " ".repeat(self.column - skipped);
        let carets = "^".repeat(width.min(SHOWN));
        write!(f, "{}\n  {text}\n  {indent}{carets}", self.fault)
    }
}

impl std::error::Error for TextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// Parses a limit such as `100/minute`, `10 per 5 minutes, burst 20` or
/// `5 per minute, fixed window`.
///
/// The format is a number, `/` or `per`, and a unit that may have a number before it. Options
/// follow after `,` or `;` in this order: `burst` with a number (the default is the count, or 0 for
/// a window), `fixed window` or `fixed-rate window`, and `aligned`. A fixed window has no burst.
/// The units are second, minute, hour, day and week, their plurals, and the abbreviations ms, s, sec,
/// m, min, h, hr, d and w. Case is ignored, except that `M` is refused.
///
/// A limit on requests in flight is a number and `in flight`, and the options `lease` and `max hold`, each
/// with a duration.
///
/// `per calendar` and day, week, month or year is a calendar window, after which a time zone may
/// follow: `10000 per calendar month, Europe/Berlin`.
///
/// # Errors
/// [`TextError`] if the text has another format or its numbers are invalid.
pub fn limit_text(text: &str) -> Result<Limit, TextError> {
    // A block of YAML ends with a line end.
    let mut reader = Reader { text: text.trim_end_matches(['\r', '\n']), at: 0 };
    if text.len() > MAX_LENGTH {
        return Err(reader.error(0..0, TextFault::LongText { found: text.len() }));
    }
    let (count, count_at) = reader.number("a number, as in 100/minute")?;
    if reader.in_flight()? {
        return reader.slots(count, count_at);
    }
    reader.per()?;
    if let Some((unit, zone)) = reader.calendar()? {
        let limit = Limit::calendar_window(count, unit, zone);
        return limit.map_err(|error| reader.error(count_at, TextFault::Limit(error)));
    }
    let (times, times_at) = match reader.peek_digit() {
        true => reader.number("a number")?,
        false => (1, reader.at..reader.at),
    };
    let (unit, unit_at) = reader.unit(count, times_at.is_empty())?;
    let options = reader.options()?;
    let period_at = if times_at.is_empty() { unit_at.clone() } else { times_at.start..unit_at.end };
    let period = Nanos::new(times)
        .and_then(|times| times.get().checked_mul(unit.get()))
        .and_then(Nanos::new)
        .ok_or_else(|| reader.error(period_at.clone(), TextFault::TooLong))?;
    if count < 1 {
        // A number that is both count and burst was written as the count.
        let fault = LimitError::TooSmall { field: "count", least: 1, found: count };
        return Err(reader.error(count_at, TextFault::Limit(fault)));
    }
    let (burst, burst_at) = options.burst.unzip();
    let burst_at = burst_at.unwrap_or_else(|| count_at.clone());
    let limit = match options.window {
        None => Limit::token_bucket(burst.unwrap_or(count), count, period),
        Some(WindowWord::Fixed(anchor)) => Limit::fixed_window(count, period, anchor),
        Some(WindowWord::FixedRate(anchor)) => {
            Limit::fixed_rate_window(count, period, burst.unwrap_or(0), anchor)
        }
    };
    limit.map_err(|error| {
        let at = match error.field() {
            Some("burst") => burst_at,
            Some("period") => period_at,
            _ => count_at,
        };
        reader.error(at, TextFault::Limit(error))
    })
}

type At = std::ops::Range<usize>;

/// A window named in a rate string.
#[derive(Clone, Copy)]
enum WindowWord {
    Fixed(Anchor),
    FixedRate(Anchor),
}

impl WindowWord {
    /// Returns the window that `aligned` makes of this one; `None` if the word may not follow.
    fn aligned(self) -> Option<WindowWord> {
        let aligned = Anchor::Aligned(Phase::Fixed(Nanos::ZERO));
        match self {
            WindowWord::Fixed(Anchor::First) => Some(WindowWord::Fixed(aligned)),
            WindowWord::FixedRate(Anchor::First) => Some(WindowWord::FixedRate(aligned)),
            WindowWord::Fixed(_) | WindowWord::FixedRate(_) => None,
        }
    }
}

/// The options after the rate.
#[derive(Default)]
struct Options {
    burst: Option<(i64, At)>,
    window: Option<WindowWord>,
}

/// A rate string and the current position in it, in bytes.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Returns the next characters for which `belongs` is true, and their position. Skips the
    /// spaces after them.
    fn take(&mut self, belongs: impl Fn(char) -> bool) -> (&'t str, At) {
        self.skip_blanks();
        let rest = self.rest();
        let end = rest.find(|letter| !belongs(letter)).unwrap_or(rest.len());
        let at = self.at..self.at + end;
        self.at = at.end;
        self.skip_blanks();
        (&rest[..end], at)
    }

    fn peek_digit(&mut self) -> bool {
        self.skip_blanks();
        self.rest().starts_with(|letter: char| letter.is_ascii_digit())
    }

    fn number(&mut self, expected: &'static str) -> Result<(i64, At), TextError> {
        let (digits, at) = self.take(|letter| letter.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.unexpected(at.start, expected));
        }
        let number = digits.parse().map_err(|_| self.error(at.clone(), TextFault::TooLarge))?;
        Ok((number, at))
    }

    /// Returns whether `in flight` follows, and skips it.
    fn in_flight(&mut self) -> Result<bool, TextError> {
        let start = self.at;
        let (word, _) = self.take(|letter| letter.is_alphabetic() || letter == '-');
        match word.to_ascii_lowercase().as_str() {
            "in-flight" => Ok(true),
            "in" => self.keyword("flight", "`flight`").map(|()| true),
            _ => {
                self.at = start;
                Ok(false)
            }
        }
    }

    /// Parses the options of a limit on requests in flight, up to the end of the text.
    fn slots(&mut self, count: i64, count_at: At) -> Result<Limit, TextError> {
        let (mut lease, mut max_hold) = (None, None);
        while self.rest().starts_with([',', ';']) && max_hold.is_none() {
            self.separator()?;
            let (word, at) = self.take(char::is_alphabetic);
            match word.to_ascii_lowercase().as_str() {
                "lease" if lease.is_none() => lease = Some(self.time()?),
                "max" => {
                    self.keyword("hold", "`hold` and a time")?;
                    max_hold = Some(self.time()?);
                }
                _ if lease.is_some() => {
                    return Err(self.unexpected(at.start, "`max hold` and a time"));
                }
                _ => {
                    return Err(self.unexpected(at.start, "`lease` or `max hold`, and a time"));
                }
            }
        }
        if !self.rest().is_empty() {
            let expected = match max_hold {
                Some(_) => "the end",
                None => "the end or `,` and `lease` or `max hold`",
            };
            return Err(self.unexpected(self.at, expected));
        }
        let (lease, lease_at) = lease.unwrap_or((InFlight::LEASE, count_at.clone()));
        let (max_hold, max_hold_at) = max_hold.unzip();
        let limit = Limit::in_flight(count, lease, InFlight::RETRY_AFTER, max_hold);
        limit.map_err(|error| {
            let at = match (error.field(), max_hold_at) {
                (Some("max_hold"), Some(at)) => at,
                (Some("lease"), _) => lease_at,
                _ => count_at,
            };
            self.error(at, error.into())
        })
    }

    /// Skips the `,` or `;` in front of an option.
    fn separator(&mut self) -> Result<(), TextError> {
        let at = self.at..self.at + 1;
        self.at = at.end;
        self.skip_blanks();
        if self.rest().is_empty() {
            return Err(self.error(at, TextFault::TrailingSeparator));
        }
        Ok(())
    }

    /// Parses a time with units, up to the next option.
    fn time(&mut self) -> Result<(Nanos, At), TextError> {
        let (text, at) = self.take(|letter| !matches!(letter, ',' | ';'));
        let time = duration(text).map_err(|error| self.error(at.clone(), error.into()))?;
        Ok((time, at))
    }

    fn keyword(&mut self, word: &str, expected: &'static str) -> Result<(), TextError> {
        let (found, at) = self.take(char::is_alphabetic);
        match found.eq_ignore_ascii_case(word) {
            true => Ok(()),
            false => Err(self.unexpected(at.start, expected)),
        }
    }

    fn per(&mut self) -> Result<(), TextError> {
        let start = self.at;
        if self.rest().starts_with('/') {
            self.at += 1;
            return Ok(());
        }
        let (word, _) = self.take(char::is_alphabetic);
        if word.eq_ignore_ascii_case("per") {
            return Ok(());
        }
        Err(self.unexpected(start, "`/` or `per`"))
    }

    /// Parses `calendar month` and the time zone after it; returns `None` if the text is another.
    fn calendar(&mut self) -> Result<Option<(CalendarUnit, Zone)>, TextError> {
        let start = self.at;
        let (word, _) = self.take(char::is_alphabetic);
        if !word.eq_ignore_ascii_case("calendar") {
            self.at = start;
            return Ok(None);
        }
        let (word, at) = self.take(char::is_alphabetic);
        let unit = CalendarUnit::named(&word.to_ascii_lowercase());
        let unit = unit.ok_or_else(|| self.unexpected(at.start, "day, week, month or year"))?;
        let mut zone = Zone::utc();
        if self.rest().starts_with([',', ';']) {
            self.separator()?;
            let is_of_name = |letter: char| letter.is_alphanumeric() || "/_+-".contains(letter);
            let (name, at) = self.take(is_of_name);
            zone = fields::zone(name).map_err(|error| self.error(at, error.into()))?;
        }
        match self.rest() {
            "" => Ok(Some((unit, zone))),
            _ => Err(self.unexpected(self.at, "the end or `,` and a time zone")),
        }
    }

    /// Parses a unit. `count` is the number before it, and `is_single` whether it is a single one.
    fn unit(&mut self, count: i64, is_single: bool) -> Result<(Nanos, At), TextError> {
        let (word, at) = self.take(char::is_alphabetic);
        if word == "M" {
            return Err(self.error(at, TextFault::MinuteOrMonth));
        }
        let seconds = match word.to_ascii_lowercase().as_str() {
            "ms" => return Ok((Nanos::from_millis(1), at)),
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            "w" | "week" | "weeks" => 604_800,
            "month" | "months" | "y" | "yr" | "yrs" | "year" | "years" => {
                let unit = if word.starts_with(['m', 'M']) { "month" } else { "year" };
                let fault = TextFault::Calendar { count, unit };
                return Err(self.error(at, if is_single { fault } else { TextFault::Calendars }));
            }
            _ => return Err(self.unexpected(at.start, "second, minute, hour, day or week")),
        };
        Ok((Nanos::SECOND.saturating_mul(seconds), at))
    }

    /// Parses the options up to the end of the text.
    fn options(&mut self) -> Result<Options, TextError> {
        let mut options = Options::default();
        while !self.rest().is_empty() {
            if !self.rest().starts_with([',', ';']) {
                return Err(self.unexpected(self.at, "the end or `,` and an option"));
            }
            self.separator()?;
            if self.peek_digit() && self.rest().contains(['/', 'p']) {
                return Err(self.error(self.at..self.text.len(), TextFault::SecondRate));
            }
            let (word, at) = self.take(|letter| letter.is_alphabetic() || letter == '-');
            let (no_burst, no_window) = (options.burst.is_none(), options.window.is_none());
            let aligned = options.window.and_then(WindowWord::aligned);
            match word.to_ascii_lowercase().as_str() {
                "burst" if no_burst && no_window => {
                    options.burst = Some(self.number("a number behind `burst`")?);
                }
                "fixed" if no_burst && no_window => {
                    options.window = Some(self.window(WindowWord::Fixed(Anchor::First))?);
                }
                "fixed-window" if no_burst && no_window => {
                    options.window = Some(WindowWord::Fixed(Anchor::First));
                }
                "fixed-rate-window" if no_window => {
                    options.window = Some(WindowWord::FixedRate(Anchor::First));
                }
                "fixed-rate" if no_window => {
                    options.window = Some(self.window(WindowWord::FixedRate(Anchor::First))?);
                }
                "aligned" if aligned.is_some() => options.window = aligned,
                _ => {
                    let expected = match (no_burst, no_window) {
                        (true, true) => "`burst` and a number, or `fixed window`",
                        (false, true) => "the end or `fixed-rate window`",
                        _ if aligned.is_some() => "the end or `aligned`",
                        _ => "the end",
                    };
                    return Err(self.unexpected(at.start, expected));
                }
            }
        }
        Ok(options)
    }

    /// Parses the word `window` after its kind.
    fn window(&mut self, kind: WindowWord) -> Result<WindowWord, TextError> {
        self.keyword("window", "`window`").map(|()| kind)
    }

    /// Returns the fault that the text at `start` is not `expected`.
    fn unexpected(&self, start: usize, expected: &'static str) -> TextError {
        let rest = &self.text[start..];
        let word = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
        let end = if word > 0 { word } else { rest.chars().next().map_or(0, char::len_utf8) };
        let found = match &rest[..end] {
            "" => "the end".to_owned(),
            found => format!("`{}`", found.escape_debug()),
        };
        let fault = match rest[..end].to_ascii_lowercase().as_str() {
            "sliding" => TextFault::SlidingWindow,
            "unlimited" => TextFault::Unlimited,
            "request" | "requests" | "req" | "reqs" | "call" | "calls" | "hit" | "hits" => {
                TextFault::Requests { found }
            }
            "at" | "concurrent" | "parallel" | "simultaneous" | "inflight" => {
                TextFault::AtTheSameTime
            }
            number if rest[end..].trim_start().starts_with("at once") => {
                TextFault::AtOnce { found: number.to_owned() }
            }
            _ => TextFault::Unexpected { expected, found },
        };
        self.error(start..start + end, fault)
    }

    fn error(&self, at: At, fault: TextFault) -> TextError {
        TextError {
            fault,
            column: self.text[..at.start].chars().count(),
            width: self.text[at].chars().count(),
            text: self.text.chars().take(MAX_LENGTH).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: i64, count: i64, seconds: u64) -> Limit {
        Limit::token_bucket(burst, count, Nanos::SECOND.saturating_mul(seconds)).unwrap()
    }

    #[test]
    fn texts_have_a_count_a_period_and_a_burst() {
        for (text, burst, count, seconds) in [
            ("100/minute", 100, 100, 60),
            ("100/m", 100, 100, 60),
            ("5/s", 5, 5, 1),
            ("10/5 minutes", 10, 10, 300),
            ("10/5m", 10, 10, 300),
            ("10 per 5 minutes, burst 20", 20, 10, 300),
            ("1000 per day; burst 50", 50, 1000, 86_400),
            ("1 PER Week", 1, 1, 604_800),
            (" 3 / 2 HR ,Burst 4 ", 4, 3, 7200),
            ("7 per 1 hours", 7, 7, 3600),
            ("7\tper\t2\tday", 7, 7, 172_800),
            ("007/second", 7, 7, 1),
            ("7/1000ms", 7, 7, 1),
            ("10/s\n", 10, 10, 1),
        ] {
            assert_eq!(limit_text(text), Ok(bucket(burst, count, seconds)), "{text}");
        }
    }

    #[test]
    fn texts_can_limit_requests_in_flight() {
        for (text, count, lease, max_hold) in [
            ("5 in flight", 5, 30, None),
            ("5 In-Flight", 5, 30, None),
            ("16383 in  flight, lease 2m", 16_383, 120, None),
            ("1 in flight; LEASE 1m30s; Max Hold 90s", 1, 90, Some(90)),
            ("1 in flight, max hold 10m", 1, 30, Some(600)),
        ] {
            let time = |seconds| Nanos::SECOND.saturating_mul(seconds);
            let limit =
                Limit::in_flight(count, time(lease), Nanos::SECOND, max_hold.map(time)).unwrap();
            assert_eq!(limit_text(text), Ok(limit), "{text}");
        }
        for (text, message) in [
            ("5 in", "expected `flight`, found the end\n  5 in\n      ^"),
            (
                "5 in flight, burst 2",
                "expected `lease` or `max hold`, and a time, found `burst`\n  5 in flight, burst 2\n               ^^^^^",
            ),
            (
                "16384 in flight",
                "count must be at most 16383 for requests in flight, found 16384\n  16384 in flight\n  ^^^^^",
            ),
            (
                "5 in flight, lease 1s",
                "lease must be from 2s to 24h, found 1s; slots that are held for longer are renewed, so a \
                 lease need not be as long as a request\n  5 in flight, lease 1s\n                     ^^",
            ),
            (
                "5 in flight, max hold 20s",
                "max_hold must be at least the lease of 30s, found 20s; use a longer max_hold, or a shorter \
                 lease\n  5 in flight, max hold 20s\n                        ^^^",
            ),
            (
                "5 in flight, lease 5s, lease 6s",
                "expected `max hold` and a time, found `lease`\n  5 in flight, lease 5s, lease 6s\n                         ^^^^^",
            ),
            (
                "5 in flight, max hold 1m, lease 5s",
                "expected the end, found `,`\n  5 in flight, max hold 1m, lease 5s\n                          ^",
            ),
            (
                "5 in flight, lease 90",
                "a duration must have a unit, found \"90\"; use 90s or 90ms\n  5 in flight, lease 90\n                     ^^",
            ),
        ] {
            assert_eq!(limit_text(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn texts_can_name_a_window() {
        let minute = Nanos::SECOND.saturating_mul(60);
        let aligned = Anchor::Aligned(Phase::Fixed(Nanos::ZERO));
        for (text, limit) in [
            ("5 per minute, fixed window", Limit::fixed_window(5, minute, Anchor::First)),
            ("5/m; Fixed  Window; Aligned", Limit::fixed_window(5, minute, aligned)),
            ("5/m, fixed-rate window", Limit::fixed_rate_window(5, minute, 0, Anchor::First)),
            (
                "5/m, burst 2, fixed-rate window, aligned",
                Limit::fixed_rate_window(5, minute, 2, aligned),
            ),
            ("5/calendar day", Limit::calendar_window(5, CalendarUnit::Day, Zone::utc())),
            (
                "5 Per Calendar Month; america/Argentina/Buenos_Aires",
                Limit::calendar_window(
                    5,
                    CalendarUnit::Month,
                    Zone::named("America/Argentina/Buenos_Aires").unwrap(),
                ),
            ),
        ] {
            assert_eq!(limit_text(text), Ok(limit.unwrap()), "{text}");
        }
    }

    #[test]
    fn the_caret_is_under_the_error() {
        for (text, message) in [
            (
                "10/month",
                "months vary in length; write 10 per calendar month, or use days or weeks\n  \
                 10/month\n     ^^^^^",
            ),
            (
                "10/3 years",
                "months and years vary in length; use days or weeks\n  \
                 10/3 years\n       ^^^^^",
            ),
            (
                "10/calendar hour",
                "expected day, week, month or year, found `hour`\n  \
                 10/calendar hour\n              ^^^^",
            ),
            (
                "10 per calendar month, Europe/Berln",
                "zone must be a time zone such as Europe/Berlin, found \"Europe/Berln\"; did you mean Europe/Berlin?\n  \
                 10 per calendar month, Europe/Berln\n                         ^^^^^^^^^^^^",
            ),
            ("0 per calendar day", "count must be at least 1, found 0\n  0 per calendar day\n  ^"),
            ("", "expected a number, as in 100/minute, found the end\n  \n  ^"),
            ("0/s", "count must be at least 1, found 0\n  0/s\n  ^"),
            ("5/s, burst 0", "burst must be at least 1, found 0\n  5/s, burst 0\n             ^"),
            ("5/0 s", "period must be longer than 0s, found 0s\n  5/0 s\n    ^^^"),
            ("5 s", "expected `/` or `per`, found `s`\n  5 s\n    ^"),
            ("5/s 7", "expected the end or `,` and an option, found `7`\n  5/s 7\n      ^"),
            ("５/s", "expected a number, as in 100/minute, found `５`\n  ５/s\n  ^"),
            (
                "5/größe",
                "expected second, minute, hour, day or week, found `größe`\n  \
                 5/größe\n    ^^^^^",
            ),
            (
                "5/s\u{1b}[2J",
                "expected the end or `,` and an option, found `\\u{1b}`\n  5/s\u{fffd}[2J\n     ^",
            ),
            ("9/s;", "no option follows; leave it out\n  9/s;\n     ^"),
            ("9/s , ", "no option follows; leave it out\n  9/s , \n      ^"),
            ("9 in flight;", "no option follows; leave it out\n  9 in flight;\n             ^"),
            (
                "9/calendar day,",
                "no option follows; leave it out\n  9/calendar day,\n                ^",
            ),
            (
                "9/s; 50/h",
                "this is one limit, with one rate; write the other rate as a limit of its own\n  \
                 9/s; 50/h\n       ^^^^",
            ),
            (
                "5 at once",
                "a limit on requests at the same time is written as 5 in flight\n  5 at once\n    ^^",
            ),
            (
                "5 concurrent",
                "a limit on requests at the same time is written as 5 in flight\n  \
                 5 concurrent\n    ^^^^^^^^^^",
            ),
            (
                "10 per minute, 4 at once",
                "write burst 4, as in 100/minute, burst 20\n  \
                 10 per minute, 4 at once\n                 ^",
            ),
            ("5/M", "M is ambiguous (minute or month); use m or minute\n  5/M\n    ^"),
            (
                "5/s, fixed window, 3",
                "expected the end or `aligned`, found `3`\n  5/s, fixed window, 3\n                     ^",
            ),
            (
                "5/s, fixed window, aligned, 3",
                "expected the end, found `3`\n  5/s, fixed window, aligned, 3\n                              ^",
            ),
        ] {
            assert_eq!(limit_text(text).unwrap_err().to_string(), message, "{text:?}");
        }
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in [
            "10",
            "10/",
            "/s",
            "10//s",
            "10 per",
            "per s",
            "10/s,",
            "10/s, burst",
            "10/s, 20",
            "10/s burst 20",
            "10/s, burst 20.",
            "10/s, burst 20, burst 30",
            "10/s, burst 20, fixed window",
            "10/s, fixed window, burst 20",
            "10/s, fixed",
            "10/s, window",
            "10/s, aligned",
            "10/s, fixed window, aligned, aligned",
            "2000000/s, fixed window",
            "10/s;",
            "1.5/s",
            "10/1.5s",
            "-1/s",
            "+1/s",
            "1_0/s",
            "1e3/s",
            "10/year",
            "10/calendar",
            "10/calendar hour",
            "10/calendar months",
            "10/2 calendar month",
            "10/calendar month,",
            "10/calendar month, burst 20",
            "10/calendar month, Europe/Berlin, UTC",
            "10/calendar month Europe/Berlin",
            "1000000000/calendar month",
            "10/fortnight",
            "10/1h30m",
            "10 pers",
            "10/s\0",
            "ten/s",
            "99999999999999999999/s",
            "1/9223372036854775807 weeks",
            "1000000000/s, burst 9223372036854775807",
            "10000000000/s",
        ] {
            let error = limit_text(text).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 3, "{text:?}: {error}");
        }
    }

    #[test]
    fn overlong_texts_are_refused_and_shown_in_part() {
        let text = format!("5/{}", "é".repeat(1_000_000));
        let error = limit_text(&text).unwrap_err().to_string();
        assert!(error.len() < 500 && error.starts_with("a rate string must be at most"), "{error}");
        let text = format!("5/s,{}bust", " ".repeat(150));
        let error = limit_text(&text).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[1].find("bust"), lines[2].find('^'), "{error}");
    }
}
