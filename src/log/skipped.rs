//! What comes out of a log: events, and what was left out.

use crate::log::fault::Fault;

/// Lines that are kept as examples.
const EXAMPLES: usize = 5;
/// Bytes of a line that an example shows.
pub(super) const SHOWN: usize = 200;

/// Events as columns, and what was left out on the way.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Events {
    /// When, in nanoseconds since 1970, in the order of the lines.
    pub times: Vec<i64>,
    /// Who, as numbers of the parser's ids.
    pub codes: Vec<u32>,
    /// How much; empty unless a cost was asked for.
    pub costs: Vec<i64>,
    /// Lines of the file read so far, also empty ones.
    pub lines_read: u64,
    /// Lines that do not parse.
    pub skipped: u64,
    /// Lines that parse and do not say who.
    pub without_id: u64,
    /// Lines that parse and are too much earlier than one before them.
    pub late: u64,
    /// The first lines that do not parse, or are late.
    pub examples: Vec<Example>,
    /// Units that epochs were taken to be in, a bit each: s, ms, µs, ns.
    pub units: u8,
}

/// A line that does not parse.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Example {
    /// Its number, from 1.
    pub line: u64,
    /// Why.
    pub reason: String,
    /// How it begins.
    pub text: String,
}

impl Events {
    /// Counts a line that does not parse, and keeps it if it is among the first.
    pub(super) fn skip(&mut self, line: u64, text: &[u8], fault: &Fault) {
        self.skipped += 1;
        if self.examples.len() < EXAMPLES {
            // Cut first: a line may be long.
            let shown = &text[..text.len().min(SHOWN)];
            let mut text = String::from_utf8_lossy(shown).into_owned();
            if shown.len() == SHOWN {
                text.push('…');
            }
            self.examples.push(Example { line, reason: fault.to_string(), text });
        }
    }

    /// Keeps an example if there are not enough.
    pub(super) fn keep(&mut self, example: Example) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(example);
        }
    }

    /// Empties the columns and counts, and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.times.clear();
        self.codes.clear();
        self.costs.clear();
        self.examples.clear();
        (self.lines_read, self.skipped, self.without_id, self.late) = (0, 0, 0, 0);
        self.units = 0;
    }
}
