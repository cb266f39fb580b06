//! Parser of blocks of a log, on several threads.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread;

use memchr::{memchr, memrchr};

use crate::log::MAX_LINE;
use crate::log::format::{Format, ParseOptions};
use crate::log::id::{self, ID_SEPARATOR};
use crate::log::json;
use crate::log::skipped::{EXAMPLES, Example, ParsedEvents};
use crate::log::worker::{FILTERED, Worker};
use crate::simulate::Ids;

/// The minimum number of bytes that justify a thread.
const MIN_SHARE: usize = 256 << 10;
/// The maximum number of threads. More would only wait for memory.
const MAX_THREADS: usize = 4;

/// Parser of the text of one log.
///
/// The same text gives the same events and id numbers, regardless of the blocks and the number of threads.
/// The memory grows only with the number of different ids and the events that were not taken yet.
#[derive(Debug)]
pub struct Parser {
    format: Format,
    options: ParseOptions,
    workers: Vec<Worker>,
    ids: Ids,
    events: ParsedEvents,
    /// The incomplete last line of the blocks so far.
    carry: Vec<u8>,
    latest: i64,
}

impl Parser {
    /// Creates a parser that uses this number of threads, or as many as the machine supports.
    #[must_use]
    pub fn new(format: Format, options: ParseOptions, threads: Option<NonZero<usize>>) -> Parser {
        let threads = threads.or_else(|| thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZero::get).min(MAX_THREADS);
        Parser {
            format,
            options,
            workers: (0..threads).map(|_| Worker::default()).collect(),
            ids: Ids::default(),
            events: ParsedEvents::default(),
            carry: Vec::new(),
            latest: 0,
        }
    }

    /// Parses one more block. Returns the number of events that were not taken yet.
    pub fn feed(&mut self, block: &[u8]) -> usize {
        let (mut lines, rest) = block.split_at(memrchr(b'\n', block).map_or(0, |last| last + 1));
        if !self.carry.is_empty()
            && let Some(first) = memchr(b'\n', lines)
        {
            self.keep(&lines[..first]);
            self.finish();
            lines = &lines[first + 1..];
        }
        self.read(lines);
        self.keep(rest);
        self.events.times.len()
    }

    /// Ends the log, whose last line needs no line end.
    pub fn finish(&mut self) {
        let mut carry = std::mem::take(&mut self.carry);
        if !carry.is_empty() {
            carry.push(b'\n');
            self.read(&carry);
        }
        carry.clear();
        self.carry = carry;
    }

    /// Returns the events since the previous call.
    pub fn take(&mut self) -> ParsedEvents {
        let lines_read = self.events.lines_read;
        std::mem::replace(&mut self.events, ParsedEvents { lines_read, ..ParsedEvents::default() })
    }

    /// Returns the values of all fields of a line by their names; `None` if it does not have the format.
    pub fn fields(&mut self, line: &str) -> Option<BTreeMap<String, String>> {
        match &mut self.format {
            Format::LineFormat(format) => format.fields(line.as_bytes()),
            Format::Json => json::fields(line),
        }
    }

    /// Iterates over the ids from number `first` on.
    pub fn ids_from(&self, first: usize) -> impl Iterator<Item = &str> {
        texts(&self.ids, first)
    }

    /// Keeps the beginning of an incomplete line, up to one byte more than a line may have.
    fn keep(&mut self, part: &[u8]) {
        let room = MAX_LINE + 1 - self.carry.len();
        self.carry.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Parses complete lines on as many threads as are worthwhile.
    fn read(&mut self, lines: &[u8]) {
        let shares = shares(lines, self.workers.len());
        let (format, options, count) = (&self.format, &self.options, shares.len());
        if let ([worker, ..], [only]) = (&mut self.workers[..], &shares[..]) {
            worker.read(only, format, options);
        } else {
            let workers = &mut self.workers;
            let is_taken: Vec<bool> = thread::scope(|scope| {
                let taken = workers.iter_mut().zip(&shares).map(|(worker, share)| {
                    let work = move || worker.read(share, format, options);
                    thread::Builder::new().spawn_scoped(scope, work).is_ok()
                });
                taken.collect()
            });
            // If a thread could not be started, this thread parses its share.
            for ((worker, share), is_taken) in workers.iter_mut().zip(shares).zip(is_taken) {
                if !is_taken {
                    worker.read(share, format, options);
                }
            }
        }
        for index in 0..count {
            self.merge(index);
        }
    }

    /// Appends the events of a worker, with the parser's id numbers.
    fn merge(&mut self, index: usize) {
        let Parser { workers, ids, events, options, latest, .. } = self;
        let worker = &mut workers[index];
        for text in texts(&worker.ids, worker.codes.len()) {
            // 2^32 ids would exhaust the memory before their numbers overflow.
            let number = ids.number(canonical_id(text, options).as_bytes());
            worker.codes.push(number.unwrap_or(u32::MAX));
        }
        let found = std::mem::take(&mut worker.events);
        let window = options.window.unwrap_or(i64::MAX);
        events.times.reserve(found.times.len());
        events.codes.reserve(found.times.len());
        for (at, (&time, &code)) in found.times.iter().zip(&found.codes).enumerate() {
            *latest = time.max(*latest);
            if *latest - time > window {
                events.late += 1;
            } else if code == FILTERED {
                events.filtered += 1;
            } else {
                events.times.push(time);
                events.codes.push(worker.codes[code as usize]);
                events.costs.extend(found.costs.get(at));
                events.durations.extend(found.durations.get(at));
            }
        }
        let before = events.lines_read;
        let room = EXAMPLES - events.examples.len();
        let examples = found.examples.into_iter().take(room);
        events
            .examples
            .extend(examples.map(|example| Example { line: before + example.line, ..example }));
        events.lines_read += found.lines_read;
        events.skipped += found.skipped;
        events.without_id += found.without_id;
        if events.other_directive.is_none() {
            events.other_directive = found.other_directive;
        }
    }
}

/// Iterates over the ids from number `first` on, all of which are UTF-8.
fn texts(ids: &Ids, first: usize) -> impl Iterator<Item = &str> {
    ids.iter().skip(first).map(|id| std::str::from_utf8(id).unwrap_or_default())
}

/// Splits lines into at most `max` parts of similar length.
fn shares(lines: &[u8], max: usize) -> Vec<&[u8]> {
    let count = (lines.len() / MIN_SHARE).clamp(1, max);
    let mut shares = Vec::with_capacity(count);
    let mut rest = lines;
    for left in (1..=count).rev() {
        let cut = if left == 1 {
            rest.len()
        } else {
            let about = rest.len() / left;
            memchr(b'\n', &rest[about..]).map_or(rest.len(), |end| about + end + 1)
        };
        let (share, after) = rest.split_at(cut);
        shares.push(share);
        rest = after;
    }
    shares
}

/// Returns an id with all addresses in canonical form.
fn canonical_id(text: &str, options: &ParseOptions) -> String {
    let mut id = String::with_capacity(text.len());
    for (index, part) in text.split(ID_SEPARATOR).enumerate() {
        if index > 0 {
            id.push(ID_SEPARATOR);
        }
        id.push_str(&id::canonical(part, options.ipv6_prefix));
    }
    id
}
