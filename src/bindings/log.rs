//! The reader of logs.

use jiff::fmt::strtime::BrokenDownTime;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::log::{
    CsvColumns, Envelope, Events, Field, FieldPart, Format, Kind, LineFormat, MOST_SLOTS, Names,
    ParseOptions, Parser, TimeZone, Unit,
};
use crate::sync::Mutex;

/// Parses blocks of a log's text to columns of events; used by `penstock.simulate`.
///
/// The parts of an event have slots: 0 is the time, 1 the cost, 2 and above the fields of the id.
/// The options are: whether a field holds the cost, the number of fields of an id, the zone of
/// times without one, the unit of epochs, how late a line may be (nanoseconds), the prefix length
/// that identifies an IPv6 client, whether a line is the field `log` of a JSON object, and the
/// words before a line. A field is: the text before it, its name, whether it is a number, and its
/// slots, each with the part of the field to use. `take` counts lines read, skipped, without an
/// id and late, the units of epochs as bits, and returns the first lines left out.
#[pyclass(frozen, module = "penstock._core", name = "LogParser")]
#[derive(Debug)]
pub(crate) struct LogParser {
    parser: Mutex<Parser>,
}

/// The options of all formats: `(has_cost, id_fields, zone, unit, window, ipv6_prefix,
/// is_json_wrapped, prefix_words)`.
type Options = (bool, usize, String, Option<String>, Option<i64>, u8, bool, usize);
/// A field: `(before, name, is_number, [(slot, part)])`.
type FieldArgs = (Vec<u8>, String, bool, Vec<(usize, String)>);
/// The columns of one step and its counts.
type Taken<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Counts);
/// `(lines_read, skipped, without_id, late, units, [(line, reason, text)])`.
type Counts = (u64, u64, u64, u64, u8, Vec<(u64, String, String)>);

impl LogParser {
    fn new(format: Format, options: Options) -> PyResult<LogParser> {
        let (has_cost, id_fields, zone, unit, window, ipv6_prefix, is_json, words) = options;
        if id_fields > MOST_SLOTS - 2 || !(1..=128).contains(&ipv6_prefix) {
            let message =
                format!("found {id_fields} id fields and an IPv6 prefix of {ipv6_prefix}");
            return Err(PyValueError::new_err(message));
        }
        let unit = unit.map(|unit| unit_of(&unit)).transpose()?;
        let zone = zone_of(&zone)?;
        let envelope = Envelope { is_json, words };
        let options =
            ParseOptions { has_cost, id_fields, zone, unit, window, envelope, ipv6_prefix };
        Ok(LogParser { parser: Mutex::new(Parser::new(format, options, None)) })
    }
}

/// Returns the zone with a name such as `Europe/Berlin`, or with a fixed offset such as `+05:30`.
fn zone_of(name: &str) -> PyResult<TimeZone> {
    let fixed = BrokenDownTime::parse("%:z", name).or_else(|_| BrokenDownTime::parse("%z", name));
    match fixed.ok().and_then(|found| found.offset()) {
        Some(offset) => Ok(TimeZone::fixed(offset)),
        None => TimeZone::get(name).map_err(|error| PyValueError::new_err(error.to_string())),
    }
}

fn unit_of(unit: &str) -> PyResult<Unit> {
    match unit {
        "s" => Ok(Unit::Seconds),
        "ms" => Ok(Unit::Millis),
        "us" => Ok(Unit::Micros),
        "ns" => Ok(Unit::Nanos),
        _ => Err(PyValueError::new_err(format!("unit must be s, ms, us or ns, found {unit:?}"))),
    }
}

fn part_of(part: &str) -> PyResult<FieldPart> {
    match part {
        "whole" => Ok(FieldPart::Whole),
        "method" => Ok(FieldPart::Method),
        "target" => Ok(FieldPart::Target),
        "path" => Ok(FieldPart::Path),
        _ => Err(PyValueError::new_err(format!(
            "a part must be whole, method, target or path, found {part:?}"
        ))),
    }
}

fn slot_of(slot: usize) -> PyResult<usize> {
    if slot < MOST_SLOTS {
        return Ok(slot);
    }
    Err(PyValueError::new_err(format!("a slot must be below {MOST_SLOTS}, found {slot}")))
}

/// Copies numbers to Python bytes in native byte order.
fn bytes_of<'py, const N: usize, T: Copy>(
    py: Python<'py>,
    numbers: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, numbers.len() * N, |buffer| {
        for (chunk, &number) in buffer.chunks_exact_mut(N).zip(numbers) {
            chunk.copy_from_slice(&bytes(number));
        }
        Ok(())
    })
}

#[pymethods]
impl LogParser {
    /// Make a parser of lines with fixed text between their fields.
    #[staticmethod]
    fn of_lines(
        fields: Vec<FieldArgs>,
        tail: Vec<u8>,
        is_open: bool,
        options: Options,
    ) -> PyResult<LogParser> {
        let fields = fields.into_iter().map(|(before, name, is_number, wanted)| {
            let kind = if is_number { Kind::Number } else { Kind::Text };
            let wanted =
                wanted.into_iter().map(|(slot, part)| Ok((slot_of(slot)?, part_of(&part)?)));
            Ok(Field { before, name, kind, wanted: wanted.collect::<PyResult<_>>()? })
        });
        let fields = fields.collect::<PyResult<_>>()?;
        LogParser::new(Format::LineFormat(LineFormat { fields, tail, is_open }), options)
    }

    /// Make a parser of lines that are JSON objects.
    #[staticmethod]
    fn of_objects(wanted: Vec<(String, usize)>, options: Options) -> PyResult<LogParser> {
        for (_, slot) in &wanted {
            slot_of(*slot)?;
        }
        LogParser::new(Format::Json(Names { wanted }), options)
    }

    /// Make a parser of a table with a delimiter.
    #[staticmethod]
    fn of_table(
        delimiter: u8,
        count: usize,
        has_header: bool,
        has_comments: bool,
        wanted: Vec<(usize, usize)>,
        options: Options,
    ) -> PyResult<LogParser> {
        for &(column, slot) in &wanted {
            slot_of(slot)?;
            if column >= count {
                let message = format!("a column must be below {count}, found {column}");
                return Err(PyValueError::new_err(message));
            }
        }
        LogParser::new(
            Format::Csv(CsvColumns { delimiter, count, has_header, has_comments, wanted }),
            options,
        )
    }

    /// Parse one more block; return the number of events to take.
    fn feed(&self, py: Python<'_>, block: &[u8]) -> usize {
        py.detach(|| {
            let mut parser = self.parser.lock();
            parser.feed(block);
            parser.len()
        })
    }

    /// Parse the last line, which may have no line end.
    fn finish(&self, py: Python<'_>) {
        py.detach(|| self.parser.lock().finish());
    }

    /// Return the columns and counts of the events since the last call.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Taken<'py>> {
        let events: Events = py.detach(|| self.parser.lock().take());
        let examples = events.examples.into_iter();
        let examples = examples.map(|example| (example.line, example.reason, example.text));
        let counts = (
            events.lines_read,
            events.skipped,
            events.without_id,
            events.late,
            events.units,
            examples.collect(),
        );
        Ok((
            bytes_of(py, &events.times, i64::to_ne_bytes)?,
            bytes_of(py, &events.codes, u32::to_ne_bytes)?,
            bytes_of(py, &events.costs, i64::to_ne_bytes)?,
            counts,
        ))
    }

    /// Return the ids from number `first` on, in order of their codes.
    fn ids(&self, first: usize) -> Vec<String> {
        self.parser.lock().ids_from(first).map(str::to_owned).collect()
    }

    fn __len__(&self) -> usize {
        self.parser.lock().ids_len()
    }
}
