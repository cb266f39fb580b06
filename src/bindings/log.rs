//! The reader of logs.

use jiff::fmt::strtime::BrokenDownTime;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Column, column};
use crate::log::{
    Condition, Envelope, FieldKind, FieldNames, Format, LineField, LineFormat, MAX_ID_FIELDS,
    MAX_SLOTS, ParseOptions, ParsedEvents, Parser, RequestPart, TimeZone, matches,
};
use crate::sync::Mutex;

#[doc = doc!(LogParser)]
#[pyclass(frozen, module = "penstock._core", name = "LogParser")]
#[derive(Debug)]
pub(crate) struct LogParser {
    parser: Mutex<Parser>,
}

/// The options of all formats, as attributes of an object.
#[derive(FromPyObject)]
struct LogOptions {
    has_cost: bool,
    duration_unit: Option<i64>,
    id_fields: usize,
    zone: String,
    window: Option<i64>,
    ipv6_prefix: u8,
    client: Option<usize>,
    is_address: bool,
    is_json_wrapped: bool,
    prefix_words: usize,
    directive: Option<Vec<u8>>,
    parts: Items<(usize, String)>,
    conditions: Items<(usize, bool, Vec<String>)>,
}
/// The columns of one step and its counts.
type Taken<'py> = (Column<'py>, Column<'py>, Column<'py>, Column<'py>, TakenCounts);
/// `(lines_read, skipped, without_id, late, filtered, [(line, reason, text)], other_directive)`.
type TakenCounts = (u64, u64, u64, u64, u64, Vec<(u64, String, String)>, Option<String>);

impl LogParser {
    fn new(format: Format, options: LogOptions) -> PyResult<LogParser> {
        let LogOptions {
            has_cost,
            duration_unit,
            id_fields,
            window,
            ipv6_prefix,
            client,
            directive,
            ..
        } = options;
        if id_fields > MAX_ID_FIELDS || !(1..=128).contains(&ipv6_prefix) {
            let message =
                format!("found {id_fields} id fields and an IPv6 prefix of {ipv6_prefix}");
            return Err(PyValueError::new_err(message));
        }
        for &(field, ..) in &options.conditions.0 {
            if field >= MAX_ID_FIELDS - id_fields {
                let message = format!("found a condition on the field {field} after the id");
                return Err(PyValueError::new_err(message));
            }
        }
        let parts =
            options.parts.0.iter().map(|(slot, part)| Ok((slot_of(*slot)?, part_of(part)?)));
        let conditions = options.conditions.0.into_iter();
        let conditions = conditions.map(|(field, is_negated, patterns)| Condition {
            field,
            is_negated,
            patterns,
        });
        let options = ParseOptions {
            has_cost,
            duration_unit,
            id_fields,
            zone: zone_of(&options.zone)?,
            window,
            envelope: Envelope { is_json: options.is_json_wrapped, words: options.prefix_words },
            ipv6_prefix,
            client: client.filter(|&index| index < id_fields),
            is_address: options.is_address,
            directive,
            parts: parts.collect::<PyResult<_>>()?,
            conditions: conditions.collect(),
        };
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

/// Returns the value that an option names.
fn named<T: Copy, const N: usize>(name: &str, known: [(&str, T); N]) -> PyResult<T> {
    let found = known.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names = known.map(|(name, _)| name).join(", ");
        PyValueError::new_err(format!("expected one of {names}, found {name:?}"))
    })
}

fn part_of(part: &str) -> PyResult<RequestPart> {
    use RequestPart::{Method, Path, Target};
    named(part, [("method", Method), ("target", Target), ("path", Path)])
}

fn kind_of(kind: &str) -> PyResult<FieldKind> {
    use FieldKind::{Cell, Number, Text};
    named(kind, [("number", Number), ("text", Text), ("cell", Cell)])
}

fn names_of(wanted: Vec<(String, usize)>) -> PyResult<FieldNames> {
    for &(_, slot) in &wanted {
        slot_of(slot)?;
    }
    Ok(FieldNames { wanted })
}

fn slot_of(slot: usize) -> PyResult<usize> {
    if slot < MAX_SLOTS {
        return Ok(slot);
    }
    Err(PyValueError::new_err(format!("a slot must be below {MAX_SLOTS}, found {slot}")))
}

#[pymethods]
impl LogParser {
    #[doc = doc!(LogParser.of_lines)]
    #[staticmethod]
    fn of_lines(
        fields: Items<(String, String, Items<usize>)>,
        tail: String,
        is_open: bool,
        options: LogOptions,
    ) -> PyResult<LogParser> {
        let fields = fields.0.into_iter().map(|(before, kind, slots)| {
            let slots = slots.0.into_iter().map(slot_of).collect::<PyResult<_>>()?;
            Ok(LineField { before, kind: kind_of(&kind)?, slots })
        });
        let format = LineFormat::new(fields.collect::<PyResult<_>>()?, tail, is_open)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        LogParser::new(Format::LineFormat(format), options)
    }

    #[doc = doc!(LogParser.of_objects)]
    #[staticmethod]
    fn of_objects(wanted: Items<(String, usize)>, options: LogOptions) -> PyResult<LogParser> {
        LogParser::new(Format::Json(names_of(wanted.0)?), options)
    }

    #[doc = doc!(LogParser.feed)]
    fn feed(&self, py: Python<'_>, block: &[u8]) -> usize {
        py.detach(|| {
            let mut parser = self.parser.lock();
            parser.feed(block);
            parser.len()
        })
    }

    #[doc = doc!(LogParser.finish)]
    fn finish(&self, py: Python<'_>) {
        py.detach(|| self.parser.lock().finish());
    }

    #[doc = doc!(LogParser.take)]
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Taken<'py>> {
        let events: ParsedEvents = py.detach(|| self.parser.lock().take());
        let examples = events.examples.into_iter();
        let examples = examples.map(|example| (example.line, example.reason, example.text));
        let counts = (
            events.lines_read,
            events.skipped,
            events.without_id,
            events.late,
            events.filtered,
            examples.collect(),
            events.other_directive,
        );
        let ParsedEvents { times, codes, costs, durations, .. } = events;
        let [times, costs, durations] =
            [times, costs, durations].map(|numbers| column(py, &numbers));
        Ok((times?, column(py, &codes)?, costs?, durations?, counts))
    }

    #[doc = doc!(LogParser.ids)]
    fn ids(&self, first: usize) -> Vec<String> {
        self.parser.lock().ids_from(first).map(str::to_owned).collect()
    }
}

#[doc = doc!(matches_pattern)]
#[pyfunction]
pub(crate) fn matches_pattern(text: &str, pattern: &str) -> bool {
    matches(text, pattern)
}
