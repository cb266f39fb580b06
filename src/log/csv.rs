//! Tables with a delimiter.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use memchr::{memchr, memchr_iter};

use crate::log::MAX_LINE;
use crate::log::fault::LineFault;
use crate::log::record::Record;
use crate::log::skipped::SHOWN;

/// The maximum number of columns.
const MAX_COLUMNS: usize = 4096;

/// The layout of a table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CsvColumns {
    /// The delimiter between columns.
    pub delimiter: u8,
    /// The number of columns.
    pub count: usize,
    /// Whether the first row is a header.
    pub has_header: bool,
    /// The selected columns, each with its slot.
    pub wanted: Vec<(usize, usize)>,
}

/// Reader of the rows in blocks. Rows may have quoted line ends, so they cannot be read in parallel.
#[derive(Debug)]
pub(super) struct CsvRows {
    columns: CsvColumns,
    reader: Reader,
    row: Vec<u8>,
    filled: usize,
    ends: Vec<usize>,
    ended: usize,
    /// The number of line ends in the row so far.
    line_ends: u64,
    /// Whether the rest of an overlong line is being skipped.
    is_overlong: bool,
    /// Whether the next row is the header.
    expects_header: bool,
}

/// A row of a table.
pub(super) enum Row<'a> {
    /// A valid row: its selected fields, and all of its cells.
    Record(Record<'a>, Cells<'a>),
    /// An invalid row.
    Faulty(LineFault, Cells<'a>),
    /// The header, or the end of an overlong row.
    Header,
}

/// The cells of a row, without quotes.
pub(super) struct Cells<'a> {
    text: &'a [u8],
    ends: &'a [usize],
    delimiter: u8,
}

impl Cells<'_> {
    /// Returns the beginning of the row, with the delimiter between its cells.
    pub fn excerpt(&self) -> Vec<u8> {
        let mut excerpt = Vec::new();
        let mut start = 0;
        // The text after the last end is an incomplete cell.
        let rest = self.ends.last().is_none_or(|&end| end < self.text.len());
        let ends = self.ends.iter().copied().chain(rest.then_some(self.text.len()));
        for (index, end) in ends.enumerate() {
            if excerpt.len() >= SHOWN {
                break;
            }
            if index > 0 {
                excerpt.push(self.delimiter);
            }
            excerpt.extend_from_slice(&self.text[start..end]);
            start = end;
        }
        excerpt
    }
}

impl CsvRows {
    pub fn new(columns: CsvColumns) -> CsvRows {
        CsvRows {
            reader: ReaderBuilder::new().delimiter(columns.delimiter).build(),
            expects_header: columns.has_header,
            columns,
            row: vec![0; 4096],
            filled: 0,
            ends: vec![0; MAX_COLUMNS],
            ended: 0,
            line_ends: 0,
            is_overlong: false,
        }
    }

    /// Reads rows and passes each to `each` with its number of line ends. An empty block ends the table.
    pub fn feed(&mut self, mut block: &[u8], mut each: impl FnMut(Row<'_>, u64)) {
        let is_end = block.is_empty();
        loop {
            if self.is_overlong {
                let Some(end) = memchr(b'\n', block) else { return };
                block = &block[end + 1..];
                self.is_overlong = false;
                each(Row::Header, 1);
            }
            let (result, read, wrote, fields) = self.reader.read_record(
                block,
                &mut self.row[self.filled..],
                &mut self.ends[self.ended..],
            );
            self.line_ends += memchr_iter(b'\n', &block[..read]).count() as u64;
            block = &block[read..];
            self.filled += wrote;
            self.ended += fields;
            match result {
                ReadRecordResult::InputEmpty if !is_end => return,
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.row.len() < MAX_LINE => {
                    self.row.resize((self.row.len() * 2).min(MAX_LINE), 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    let fault = LineFault::TooLong { max: MAX_LINE };
                    each(Row::Faulty(fault, self.cells()), self.line_ends);
                    self.reader.reset();
                    self.is_overlong = true;
                    self.begin();
                }
                ReadRecordResult::Record => {
                    let is_header = std::mem::take(&mut self.expects_header);
                    each(if is_header { Row::Header } else { self.record() }, self.line_ends);
                    self.begin();
                }
                ReadRecordResult::End => return,
            }
        }
    }

    fn begin(&mut self) {
        (self.filled, self.ended, self.line_ends) = (0, 0, 0);
    }

    fn record(&self) -> Row<'_> {
        let row = &self.row[..self.filled];
        if self.ended != self.columns.count {
            let (found, expected) = (self.ended, self.columns.count);
            return Row::Faulty(LineFault::Columns { found, expected }, self.cells());
        }
        let mut record = Record::default();
        for &(column, slot) in &self.columns.wanted {
            let start = if column == 0 { 0 } else { self.ends[column - 1] };
            record.fill(slot, &row[start..self.ends[column]]);
        }
        Row::Record(record, self.cells())
    }

    fn cells(&self) -> Cells<'_> {
        Cells {
            text: &self.row[..self.filled],
            ends: &self.ends[..self.ended],
            delimiter: self.columns.delimiter,
        }
    }
}
