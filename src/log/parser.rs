//! Blocks of a log to events, on all cores.

use std::num::NonZero;
use std::thread;

use memchr::{memchr, memrchr};

use crate::log::LONGEST_LINE;
use crate::log::csv::{Columns, Row, Rows};
use crate::log::fault::Fault;
use crate::log::id::{self, BETWEEN};
use crate::log::json::Names;
use crate::log::line_format::LineFormat;
use crate::log::skipped::{Events, Example};
use crate::log::worker::{ParseOptions, Worker};
use crate::simulate::Ids;

/// A share of a block that is worth a thread of its own, in bytes.
const WORTH_A_THREAD: usize = 256 << 10;
/// More threads than these wait for memory.
const MOST_THREADS: usize = 4;
/// Bytes that are kept of a line that has no end.
const KEPT: usize = 256;

/// How the text of a log is made.
#[derive(Clone, Debug)]
pub enum Format {
    /// Lines with fields at known places, as nginx and Apache write them.
    LineFormat(LineFormat),
    /// A JSON object on each line.
    Json(Names),
    /// A table.
    Csv(Columns),
}

/// Reads the text of one log, or of several after one another, to events.
///
/// The same text gives the same events and the same numbers of ids, however it is cut into blocks
/// and whatever the number of threads. The memory grows with the number of different ids, and with
/// nothing else.
#[derive(Debug)]
pub struct Parser {
    format: Format,
    rows: Option<Rows>,
    options: ParseOptions,
    workers: Vec<Worker>,
    ids: Ids,
    events: Events,
    /// The last line of the blocks so far, which has no end yet.
    carry: Vec<u8>,
    is_overlong: bool,
    is_finished: bool,
    latest: i64,
}

impl Parser {
    /// A parser that uses so many threads, or as many as this machine is good for.
    #[must_use]
    pub fn new(format: Format, options: ParseOptions, threads: Option<NonZero<usize>>) -> Parser {
        let threads = threads.or_else(|| thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZero::get).min(MOST_THREADS);
        Parser {
            rows: rows(&format),
            format,
            options,
            workers: (0..threads).map(|_| Worker::default()).collect(),
            ids: Ids::default(),
            events: Events::default(),
            carry: Vec::new(),
            is_overlong: false,
            is_finished: false,
            latest: 0,
        }
    }

    /// Reads one more block.
    pub fn feed(&mut self, block: &[u8]) {
        if self.is_finished {
            self.is_finished = false;
            self.events.lines_read = 0;
        }
        if block.is_empty() {
            return;
        }
        if self.rows.is_some() {
            return self.feed_rows(block);
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

    /// Ends a log: its last line needs no line end. What is fed after this is another log's.
    pub fn finish(&mut self) {
        if self.rows.is_some() {
            self.feed_rows(b"");
            self.rows = rows(&self.format);
        } else if !self.carry.is_empty() || self.is_overlong {
            self.end_carry();
        }
        self.is_finished = true;
    }

    /// Returns the events since the previous call.
    pub fn take(&mut self) -> Events {
        let lines_read = self.events.lines_read;
        std::mem::replace(&mut self.events, Events { lines_read, ..Events::default() })
    }

    /// How many events wait to be taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.times.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.times.is_empty()
    }

    /// How many different ids there were.
    #[must_use]
    pub fn ids_len(&self) -> usize {
        self.ids.len()
    }

    /// The ids from number `first` on.
    pub fn ids_from(&self, first: usize) -> impl Iterator<Item = &str> {
        texts(&self.ids, first)
    }

    /// Keeps the begin of a line, but no more of it than a line may have.
    fn keep(&mut self, part: &[u8]) {
        if self.is_overlong {
            return;
        }
        let room = LONGEST_LINE + 1 - self.carry.len();
        self.carry.extend_from_slice(&part[..part.len().min(room)]);
        if self.carry.len() > LONGEST_LINE {
            self.is_overlong = true;
            self.carry.truncate(KEPT);
        }
    }

    fn end_carry(&mut self) {
        let mut carry = std::mem::take(&mut self.carry);
        if std::mem::take(&mut self.is_overlong) {
            self.events.lines_read += 1;
            let line = self.events.lines_read;
            self.events.skip(line, &carry, &Fault::TooLong { most: LONGEST_LINE });
        } else {
            // With its line end, so that an empty line is a line too.
            carry.push(b'\n');
            self.read(&carry);
        }
        carry.clear();
        self.carry = carry;
    }

    /// Reads whole lines, in as many shares as are worth it.
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
            // Where the machine gives no more threads, this one does what is left.
            for ((worker, share), is_taken) in workers.iter_mut().zip(shares).zip(is_taken) {
                if !is_taken {
                    worker.read(share, format, options);
                }
            }
        }
        for place in 0..count {
            self.merge(place);
        }
    }

    fn feed_rows(&mut self, block: &[u8]) {
        let (Some(rows), Some(worker)) = (&mut self.rows, self.workers.first_mut()) else { return };
        let options = &self.options;
        worker.begin();
        rows.feed(block, |row, line_ends| {
            // A row is known by its first line.
            worker.events.lines_read += 1;
            let outcome = match row {
                Row::Header => Ok(()),
                Row::Faulty(fault, cells) => Err((fault, cells)),
                Row::Record(record, cells) => {
                    worker.record(record, options).map_err(|fault| (fault, cells))
                }
            };
            if let Err((fault, cells)) = outcome {
                worker.skip(&cells.begin(), &fault);
            }
            worker.events.lines_read += line_ends.saturating_sub(1);
        });
        self.merge(0);
    }

    /// Puts the events of a worker behind the others, with the parser's numbers for ids.
    fn merge(&mut self, place: usize) {
        let Parser { workers, ids, events, options, latest, .. } = self;
        let worker = &mut workers[place];
        for text in texts(&worker.ids, worker.codes.len()) {
            // Ids of 2^32 clients would fill any memory long before their number did not fit.
            let number = ids.number(spelled(text, options).as_bytes());
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
                let (line, fault) = (before + worker.lines[at], Fault::Late { earlier });
                late.push(Example { line, reason: fault.to_string(), text: String::new() });
                late.truncate(5);
                continue;
            }
            events.times.push(time);
            events.codes.push(worker.codes[code as usize]);
            if options.has_cost {
                events.costs.push(found.costs[at]);
            }
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
        events.units |= found.units;
    }
}

/// The ids from number `first` on, all of which were added as text.
fn texts(ids: &Ids, first: usize) -> impl Iterator<Item = &str> {
    ids.iter().skip(first).map(|id| std::str::from_utf8(id).unwrap_or_default())
}

fn rows(format: &Format) -> Option<Rows> {
    match format {
        Format::Csv(columns) => Some(Rows::new(columns.clone())),
        Format::LineFormat(_) | Format::Json(_) => None,
    }
}

/// Splits lines into a number of parts of about the same length.
fn shares(lines: &[u8], most: usize) -> Vec<&[u8]> {
    let count = (lines.len() / WORTH_A_THREAD).clamp(1, most);
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

/// The id as the parser keeps it: addresses in canonical spelling, in each part.
fn spelled(text: &str, options: &ParseOptions) -> String {
    let parts = text.split(BETWEEN).map(|part| id::canonical(part, options.ipv6_prefix));
    parts.collect::<Vec<_>>().join(&BETWEEN.to_string())
}
