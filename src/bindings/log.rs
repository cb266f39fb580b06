//! The reader of logs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::fmt::strtime::BrokenDownTime;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Column, column};
use crate::log::{
    Condition, FieldKind, Format, LineField, LineFormat, MAX_ID_FIELDS, MAX_SLOTS, ParseOptions,
    ParsedEvents, Parser, RequestPart, TimeZone, address, matches, timestamp,
};
use crate::sync::Mutex;

#[doc = doc!(LogParser)]
#[pyclass(frozen, module = "penstock._core", name = "LogParser")]
#[derive(Debug)]
pub(crate) struct LogParser {
    parser: Mutex<Parser>,
}

/// The options are attributes of an object.
impl<'py> FromPyObject<'_, 'py> for ParseOptions {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<ParseOptions> {
        let id_fields = option(given, "id_fields")?;
        let ipv6_prefix = option(given, "ipv6_prefix")?;
        if id_fields > MAX_ID_FIELDS || !(1..=128).contains(&ipv6_prefix) {
            let message =
                format!("found {id_fields} id fields and an IPv6 prefix of {ipv6_prefix}");
            return Err(PyValueError::new_err(message));
        }
        let slots: Vec<(String, usize)> = option(given, "slots")?;
        let parts: Vec<(usize, String)> = option(given, "parts")?;
        let conditions: Vec<(usize, bool, Vec<String>)> = option(given, "conditions")?;
        let used = slots.iter().map(|(_, slot)| *slot);
        let used = used.chain(parts.iter().map(|(slot, _)| *slot));
        if let Some(slot) = used.chain(conditions.iter().map(|(slot, ..)| *slot)).max()
            && slot >= MAX_SLOTS
        {
            let message = format!("a slot must be below {MAX_SLOTS}, found {slot}");
            return Err(PyValueError::new_err(message));
        }
        let parts = parts.into_iter().map(|(slot, part)| Ok((slot, part_of(&part)?)));
        let conditions = conditions.into_iter().map(|(slot, is_negated, patterns)| Condition {
            slot,
            is_negated,
            patterns,
        });
        Ok(ParseOptions {
            slots,
            has_cost: option(given, "has_cost")?,
            duration_unit: option(given, "duration_unit")?,
            id_fields,
            client: option::<Option<usize>>(given, "client")?.filter(|&index| index < id_fields),
            is_address: option(given, "is_address")?,
            zone: zone_of(&option::<String>(given, "zone")?)?,
            window: option(given, "window")?,
            ended: option(given, "ended")?,
            times: option(given, "start_ns")?..option(given, "end_ns")?,
            is_json_wrapped: option(given, "is_json_wrapped")?,
            prefix_words: option(given, "prefix_words")?,
            ipv6_prefix,
            directive: option(given, "directive")?,
            parts: parts.collect::<PyResult<_>>()?,
            conditions: conditions.collect(),
        })
    }
}

fn option<'py, T: FromPyObjectOwned<'py>>(
    given: Borrowed<'_, 'py, PyAny>,
    name: &str,
) -> PyResult<T> {
    given.getattr(name)?.extract().map_err(Into::into)
}

impl LogParser {
    fn new(format: Format, options: ParseOptions) -> LogParser {
        LogParser { parser: Mutex::new(Parser::new(format, options, None)) }
    }
}

/// The columns of one step and its counts.
type Taken<'py> = (Column<'py>, Column<'py>, Column<'py>, Column<'py>, TakenCounts);
/// `(lines_read, skipped, without_id, late, filtered, [(line, reason, text)], other_directive)`.
type TakenCounts = (u64, u64, u64, u64, u64, Vec<(u64, String, String)>, Option<String>);

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

#[pymethods]
impl LogParser {
    #[doc = doc!(LogParser.of_lines)]
    #[staticmethod]
    fn of_lines(
        fields: Items<(String, Vec<String>, String)>,
        tail: String,
        is_open: bool,
        options: ParseOptions,
    ) -> PyResult<LogParser> {
        let fields = fields
            .0
            .into_iter()
            .map(|(before, names, kind)| Ok(LineField { before, names, kind: kind_of(&kind)? }));
        let fields = fields.collect::<PyResult<_>>()?;
        let format = LineFormat::new(fields, tail, is_open, &options.slots)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(LogParser::new(Format::LineFormat(format), options))
    }

    #[doc = doc!(LogParser.of_objects)]
    #[staticmethod]
    fn of_objects(options: ParseOptions) -> LogParser {
        LogParser::new(Format::Json, options)
    }

    #[doc = doc!(LogParser.address)]
    #[staticmethod]
    fn address(text: &str) -> Option<Cow<'_, str>> {
        address(text)
    }

    #[doc = doc!(LogParser.timestamp)]
    #[staticmethod]
    fn timestamp(text: &str, zone: &str) -> PyResult<i64> {
        timestamp(text.as_bytes(), &zone_of(zone)?)
            .map_err(|fault| PyValueError::new_err(fault.to_string()))
    }

    #[doc = doc!(LogParser.fields)]
    fn fields(&self, line: &str) -> Option<BTreeMap<String, String>> {
        self.parser.lock().fields(line)
    }

    #[doc = doc!(LogParser.feed)]
    fn feed(&self, py: Python<'_>, block: &[u8]) -> usize {
        py.detach(|| self.parser.lock().feed(block))
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
