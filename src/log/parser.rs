//! Parser of blocks of a log, on several threads.

use std::num::NonZero;
use std::thread;

use memchr::{memchr, memrchr};

use crate::log::MAX_LINE;
use crate::log::fault::LineFault;
use crate::log::format::{Format, ParseOptions};
use crate::log::id::{self, ID_SEPARATOR};
use crate::log::skipped::{Example, ParsedEvents};
use crate::log::worker::{FILTERED, Worker};
use crate::simulate::Ids;

/// The minimum number of bytes that justify a thread.
const MIN_SHARE: usize = 256 << 10;
/// The maximum number of threads. More would only wait for memory.
const MAX_THREADS: usize = 4;
/// The number of bytes that are kept of an overlong line.
const KEPT: usize = 256;

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
    is_overlong: bool,
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
            is_overlong: false,
            latest: 0,
        }
    }

    /// Parses one more block.
    pub fn feed(&mut self, block: &[u8]) {
        if block.is_empty() {
            return;
        }
        let Some(last) = memrchr(b'\n', block) else { return self.keep(block) };
        let (lines, rest) = block.split_at(last + 1);
        let lines = if self.carry.is_empty() && !self.is_overlong {
            lines
        } else {
            let first = memchr(b'\n', lines).map_or(lines.len(), |end| end + 1);
            self.keep(&lines[..first - 1]);
            self.end_carry();
            &lines[first..]
        };
        self.read(lines);
        self.keep(rest);
    }

    /// Ends the log, whose last line needs no line end.
    pub fn finish(&mut self) {
        if !self.carry.is_empty() || self.is_overlong {
            self.end_carry();
        }
    }

    /// Returns the events since the previous call.
    pub fn take(&mut self) -> ParsedEvents {
        let lines_read = self.events.lines_read;
        std::mem::replace(&mut self.events, ParsedEvents { lines_read, ..ParsedEvents::default() })
    }

    /// Returns the number of events that were not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.times.len()
    }

    /// Returns whether all events were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.times.is_empty()
    }

    /// Iterates over the ids from number `first` on.
    pub fn ids_from(&self, first: usize) -> impl Iterator<Item = &str> {
        texts(&self.ids, first)
    }

    /// Keeps the beginning of an incomplete line, up to the maximum length of a line.
    fn keep(&mut self, part: &[u8]) {
        if self.is_overlong {
            return;
        }
        let room = MAX_LINE + 1 - self.carry.len();
        self.carry.extend_from_slice(&part[..part.len().min(room)]);
        if self.carry.len() > MAX_LINE {
            self.is_overlong = true;
            self.carry.truncate(KEPT);
        }
    }

    fn end_carry(&mut self) {
        let mut carry = std::mem::take(&mut self.carry);
        if std::mem::take(&mut self.is_overlong) {
            self.events.lines_read += 1;
            let line = self.events.lines_read;
            self.events.skip(line, &carry, &LineFault::TooLong { max: MAX_LINE });
        } else {
            // With a line end, so that an empty line counts too.
            carry.push(b'\n');
            self.read(&carry);
        }
        carry.clear();
        self.carry = carry;
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
        let found = &worker.events;
        let before = events.lines_read;
        let mut late = Vec::new();
        let window = options.window.unwrap_or(i64::MAX);
        events.times.reserve(found.times.len());
        events.codes.reserve(found.times.len());
        for (at, (&time, &code)) in found.times.iter().zip(&found.codes).enumerate() {
            *latest = time.max(*latest);
            let earlier = *latest - time;
            if earlier > window {
                events.late += 1;
                let (line, fault) = (before + worker.lines[at], LineFault::Late { earlier });
                late.push(Example { line, reason: fault.to_string(), text: String::new() });
                late.truncate(5);
                continue;
            }
            if code == FILTERED {
                events.filtered += 1;
                continue;
            }
            events.times.push(time);
            events.codes.push(worker.codes[code as usize]);
            if options.has_cost {
                events.costs.push(found.costs[at]);
            }
            events.durations.extend(found.durations.get(at));
        }
        let skipped = found.examples.iter();
        let mut examples: Vec<Example> = skipped
            .map(|example| Example { line: before + example.line, ..example.clone() })
            .chain(late)
            .collect();
        examples.sort_by_key(|example| example.line);
        for example in examples {
            events.keep(example);
        }
        events.lines_read += found.lines_read;
        events.skipped += found.skipped;
        events.without_id += found.without_id;
        if events.other_directive.is_none() {
            events.other_directive.clone_from(&found.other_directive);
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
