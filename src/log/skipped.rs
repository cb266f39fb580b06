//! The events of a log, and the skipped lines.

use crate::log::fault::LineFault;

/// The number of skipped lines that are kept as examples.
pub(super) const EXAMPLES: usize = 5;
/// The number of bytes of a line that an example shows.
const SHOWN: usize = 200;

/// Events as columns, and counts of skipped lines.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ParsedEvents {
    /// The times in nanoseconds since 1970, in order of the lines.
    pub times: Vec<i64>,
    /// The numbers of the ids.
    pub codes: Vec<u32>,
    /// The costs; empty unless requested.
    pub costs: Vec<i64>,
    /// The durations in nanoseconds; empty unless requested.
    pub durations: Vec<i64>,
    /// The number of lines read so far, including empty ones.
    pub lines_read: u64,
    /// The number of lines that cannot be parsed.
    pub skipped: u64,
    /// The number of valid lines without an id.
    pub without_id: u64,
    /// The number of valid lines that are too much earlier than a previous one.
    pub late: u64,
    /// The number of valid lines that do not meet the conditions.
    pub filtered: u64,
    /// The first lines that cannot be parsed.
    pub examples: Vec<Example>,
    /// The first directive that names other fields than the options.
    pub other_directive: Option<String>,
}

/// An example of a skipped line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Example {
    /// The line number, from 1.
    pub line: u64,
    /// The reason.
    pub reason: String,
    /// The beginning of the line.
    pub text: String,
}

impl ParsedEvents {
    /// Counts a skipped line, and keeps it as an example if it is among the first.
    pub(super) fn skip(&mut self, line: u64, text: &[u8], fault: &LineFault) {
        self.skipped += 1;
        if self.examples.len() < EXAMPLES {
            // Truncated before the conversion, because a line may be long.
            let shown = &text[..text.len().min(SHOWN)];
            let mut text = String::from_utf8_lossy(shown).into_owned();
            if shown.len() == SHOWN {
                text.push('…');
            }
            self.examples.push(Example { line, reason: fault.to_string(), text });
        }
    }
}
