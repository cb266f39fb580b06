//! The parser of one thread.

use std::borrow::Cow;
use std::mem;

use memchr::{memchr, memchr_iter};

use crate::log::MAX_LINE;
use crate::log::duration::duration;
use crate::log::fault::LineFault;
use crate::log::format::{Format, ParseOptions};
use crate::log::id::{self, ID_SEPARATOR};
use crate::log::json;
use crate::log::record::{COST, DURATION, ID, Record, TIME};
use crate::log::skipped::ParsedEvents;
use crate::log::time::timestamp;
use crate::simulate::Ids;

/// The number of ids that a worker remembers before it starts over. It only saves asking the parser, which has
/// them all.
const MAX_REMEMBERED: usize = 1 << 20;

/// A mark that some editors write before text, which may be in the middle of joined files.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The code of an event that does not meet the conditions. It is kept until it is known to be in order.
pub(super) const FILTERED: u32 = u32::MAX;

/// Parser of lines, with its own id numbers.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub events: ParsedEvents,
    pub ids: Ids,
    /// The number of each id in the main parser.
    pub codes: Vec<u32>,
    id: String,
    /// The previous time and its text, because consecutive lines often have the same time.
    last: (Vec<u8>, i64),
}

impl Worker {
    /// Parses complete lines, each with its line end.
    pub fn read(&mut self, lines: &[u8], format: &Format, options: &ParseOptions) {
        if self.ids.len() > MAX_REMEMBERED {
            self.ids.clear();
            self.codes.clear();
        }
        // Cloned, because threads that share a regular expression contend for its cache.
        let mut format = format.clone();
        let mut start = 0;
        for end in memchr_iter(b'\n', lines) {
            self.line(&lines[start..end], &mut format, options);
            start = end + 1;
        }
    }

    fn line(&mut self, line: &[u8], format: &mut Format, options: &ParseOptions) {
        self.events.lines_read += 1;
        if line.len() > MAX_LINE {
            return self.skip(line, &LineFault::TooLong { max: MAX_LINE });
        }
        let bare = line.strip_suffix(b"\r").unwrap_or(line);
        // A log that was truncated while the server kept writing begins with zero bytes.
        let zeros = bare.iter().take_while(|&&byte| byte == 0).count();
        let bare = &bare[zeros..];
        let bare = bare.strip_prefix(UTF8_MARK).unwrap_or(bare);
        if bare.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        if let Some(directive) = &options.directive
            && bare.starts_with(b"#")
        {
            if bare.starts_with(b"#Fields:") && bare.trim_ascii_end() != directive {
                let found = &mut self.events.other_directive;
                found.get_or_insert_with(|| String::from_utf8_lossy(bare.trim_ascii_end()).into());
            }
            return;
        }
        let outcome = unwrapped(bare, options).and_then(|inner| {
            let line = after_words(&inner, options.prefix_words);
            let mut record = Record::default();
            match format {
                Format::LineFormat(format) => format.read(line, &mut record)?,
                Format::Json => json::read(line, &options.slots, &mut record)?,
            }
            self.record(record, options)
        });
        if let Err(fault) = outcome {
            self.skip(bare, &fault);
        }
    }

    pub fn skip(&mut self, line: &[u8], fault: &LineFault) {
        self.events.skip(self.events.lines_read, line, fault);
    }

    /// Adds the event of a line. A line without an id is only counted.
    pub fn record(
        &mut self,
        mut record: Record<'_>,
        options: &ParseOptions,
    ) -> Result<(), LineFault> {
        for &(slot, part) in &options.parts {
            record.keep_part(slot, part);
        }
        let mut time = match &record.slots[TIME] {
            Some(text) => self.time(text, options)?,
            None => return Err(LineFault::Missing { field: "time" }),
        };
        let cost = if options.has_cost { cost(record.slots[COST].as_deref())? } else { 0 };
        let taken = record.slots[DURATION].as_deref().unwrap_or_default();
        let duration = options.duration_unit.map(|unit| duration(taken, unit)).transpose()?;
        if options.ended {
            time = (time - duration.unwrap_or_default()).max(0);
        }
        let code = if options.times.contains(&time) && meets_conditions(&record, options) {
            let Some(code) = self.code(&record, options)? else {
                self.events.without_id += 1;
                return Ok(());
            };
            code
        } else {
            FILTERED
        };
        self.events.times.push(time);
        self.events.codes.push(code);
        if options.has_cost {
            self.events.costs.push(cost);
        }
        self.events.durations.extend(duration);
        Ok(())
    }

    fn time(&mut self, text: &[u8], options: &ParseOptions) -> Result<i64, LineFault> {
        if self.last.0 == text && !text.is_empty() {
            return Ok(self.last.1);
        }
        let time = timestamp(text, &options.zone)?;
        self.last.0.clear();
        self.last.0.extend_from_slice(text);
        self.last.1 = time;
        Ok(time)
    }

    /// Returns the number of the id, or `None` if the line has none.
    fn code(
        &mut self,
        record: &Record<'_>,
        options: &ParseOptions,
    ) -> Result<Option<u32>, LineFault> {
        let fields = &record.slots[ID..DURATION.min(ID + options.id_fields)];
        if let [only] = fields {
            let Some(bytes) = only.as_deref().filter(|bytes| is_present(bytes)) else {
                return Ok(None);
            };
            return self.number(&String::from_utf8_lossy(bytes), record, options);
        }
        let is_known = |field: &Option<Cow<'_, [u8]>>| field.as_deref().is_some_and(is_present);
        let has_client = options.client.is_none_or(|index| is_known(&fields[index]));
        if !(fields.is_empty() || has_client && fields.iter().any(is_known)) {
            return Ok(None);
        }
        let mut id = mem::take(&mut self.id);
        id.clear();
        for (index, field) in fields.iter().enumerate() {
            if index > 0 {
                id.push(ID_SEPARATOR);
            }
            let text = String::from_utf8_lossy(field.as_deref().unwrap_or(b"-"));
            if text.contains(ID_SEPARATOR) {
                id.push_str(&text.replace(ID_SEPARATOR, "\\t"));
            } else {
                id.push_str(&text);
            }
        }
        let code = self.number(&id, record, options);
        self.id = id;
        code
    }

    /// Returns the number of an id. The client in a new one is checked, if it must be an address.
    fn number(
        &mut self,
        id: &str,
        record: &Record<'_>,
        options: &ParseOptions,
    ) -> Result<Option<u32>, LineFault> {
        if let Some(index) = options.client
            && options.is_address
            && self.ids.find(id.as_bytes()).is_none()
        {
            let client = record.slots[ID + index].as_deref().unwrap_or(b"-");
            if is_present(client) && id::address(&String::from_utf8_lossy(client)).is_none() {
                return Err(LineFault::Client { found: client.to_vec() });
            }
        }
        Ok(self.ids.number(id.as_bytes()))
    }
}

/// Returns the line in the field `log` of an object, or the line itself.
fn unwrapped<'a>(line: &'a [u8], options: &ParseOptions) -> Result<Cow<'a, [u8]>, LineFault> {
    if !options.is_json_wrapped {
        return Ok(Cow::Borrowed(line));
    }
    let mut record = Record::default();
    json::read(line, &[("log", TIME)], &mut record)?;
    let text = record.slots[TIME].take().ok_or(LineFault::Missing { field: "log" })?;
    Ok(Cow::Owned(text.trim_ascii_end().to_vec()))
}

/// Returns the rest of a line after a number of words.
fn after_words(mut line: &[u8], words: usize) -> &[u8] {
    for _ in 0..words {
        let end = memchr(b' ', line).unwrap_or(line.len());
        let blanks = line[end..].iter().take_while(|&&byte| byte == b' ').count();
        line = &line[end + blanks..];
    }
    line
}

fn meets_conditions(record: &Record<'_>, options: &ParseOptions) -> bool {
    options.conditions.iter().all(|condition| {
        let field = record.slots[condition.slot].as_deref();
        let value = String::from_utf8_lossy(field.unwrap_or(b"-"));
        condition.holds(&id::canonical(&value, options.ipv6_prefix))
    })
}

fn is_present(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes != b"-"
}

/// Parses a cost, which is an integer. `-` is 0, which servers write for no bytes.
fn cost(text: Option<&[u8]>) -> Result<i64, LineFault> {
    let missing = LineFault::Missing { field: "cost" };
    let text = text.filter(|text| !text.is_empty()).ok_or(missing)?;
    if text == b"-" {
        return Ok(0);
    }
    let invalid = || LineFault::Cost { found: text.to_vec() };
    // pandas writes integers of a column with missing values as 2.0.
    let text = text.strip_suffix(b".0").unwrap_or(text);
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(invalid());
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid)
}
