//! `spend_each`: many independent decisions, whose outcomes are the columns of `Decisions` in Python.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyInt, PyList, PyMemoryView, PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{at_position, with_cost};
use crate::bindings::id_text::{StrIds, id_text, id_texts};
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::limits::Limits;
use crate::bindings::once::Once;
use crate::clock::Clock;
use crate::engine::decision;
use crate::engine::factor::Adjustment;
use crate::engine::registry::Registry;
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::limiter::{self, Decided};
use crate::store::Store;

/// The bytes of a decision: five numbers, and two flags.
const ROW: usize = 5 * 8 + 2;

/// The columns of the decisions, one after another in one object, which `Decisions` reads in Python. glibc
/// returns freed memory to the kernel if there is more than twice the largest allocation; with many, the next
/// call would spend a third of its time on page faults.
struct DecisionRows<'a> {
    now: Timestamp,
    len: usize,
    numbers: &'a mut [[u8; 8]],
    flags: &'a mut [u8],
}

impl<'a> DecisionRows<'a> {
    /// Divides the bytes into columns, of which the fifth is `costs`.
    fn new(bytes: &'a mut [u8], costs: &[i64]) -> DecisionRows<'a> {
        let len = costs.len();
        let (numbers, flags) = bytes.split_at_mut((ROW - 2) * len);
        let (numbers, _) = numbers.as_chunks_mut();
        for (place, cost) in numbers[4 * len..].iter_mut().zip(costs) {
            *place = cost.to_ne_bytes();
        }
        DecisionRows { now: Timestamp::ORIGIN, len, numbers, flags }
    }

    #[inline(always)]
    fn set(&mut self, index: usize, decision: &decision::Decision, shadow: bool) {
        let DecisionRows { now, len, numbers, flags } = self;
        // Nothing is asked about an id without a limit.
        if !decision.unlimited {
            *now = decision.now;
        }
        numbers[index] = decision.remaining.to_ne_bytes();
        numbers[*len + index] = decision.retry_after.get().to_ne_bytes();
        numbers[2 * *len + index] = decision.reset_after.get().to_ne_bytes();
        numbers[3 * *len + index] = decision.next_token_after.get().to_ne_bytes();
        flags[index] = (decision.allowed || shadow).into();
        flags[*len + index] = (!decision.allowed && shadow).into();
    }
}

/// Spends for each id, and returns `Decisions`. If an id or a cost is invalid, nothing is spent.
pub(crate) fn spend_each<'py>(
    handle: &LimiterHandle,
    limit: impl Fn() -> PyResult<ActiveLimit>,
    ids: &Bound<'py, PyAny>,
    costs: Option<&Bound<'py, PyAny>>,
    keep: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static DECISIONS: Once<Py<PyAny>> = Once::new();
    let py = ids.py();
    let adjustment = arguments::adjustment(None, keep)?;
    let adjustment = adjustment.as_ref();
    let ids = convert_ids(ids)?;
    let given = costs;
    let costs = convert_costs(given, ids.len())?;
    let clock = handle.decision_clock();
    let (mut entry, mut now) = (None, clock.clock.read(Timeline::Wall).wall);
    let columns = PyBytes::new_with(py, ROW * costs.len(), |bytes| {
        let mut rows = DecisionRows::new(bytes, &costs);
        let decided = decide(handle, limit, &ids, (&costs, given), adjustment, &mut rows)?;
        entry = Some(decided);
        if clock.has_server_time && rows.now > Timestamp::ORIGIN {
            now = rows.now;
        }
        Ok(())
    })?;
    let decisions = DECISIONS.import(py, "penstock._decisions", "Decisions")?;
    decisions.call1((entry, now.get(), ids, columns))
}

/// Decides for each id. Returns the limit that has decided. An error shows the cost as `given`.
fn decide(
    handle: &LimiterHandle,
    limit: impl Fn() -> PyResult<ActiveLimit>,
    ids: &Bound<'_, PyTuple>,
    (costs, given): (&[i64], Option<&Bound<'_, PyAny>>),
    adjustment: Option<&Adjustment>,
    rows: &mut DecisionRows<'_>,
) -> PyResult<Py<LimitEntry>> {
    let (py, (bound, entry)) = (ids.py(), limit()?);
    // Many ids of type `str` are decided without a list of their strings. If one is of another type,
    // nothing has been spent yet.
    let is_decided = !handle.core.store().may_wait()
        && handle
            .core
            .decide_each(
                &bound,
                &StrIds::new(ids),
                costs,
                adjustment,
                #[inline(always)]
                |index, decision, shadow| rows.set(index, decision, shadow),
            )
            .is_ok();
    if is_decided {
        return Ok(entry);
    }
    let texts = id_texts(ids)?;
    // Again, because the conversion may run Python code that reloads or closes.
    let (bound, entry) = limit()?;
    let set = |index, decision: &_, shadow| rows.set(index, decision, shadow);
    let decided =
        handle.run(py, |core| core.decide_each(&bound, &texts[..], costs, adjustment, set));
    decided.map_err(|(index, error)| {
        let cost = given.and_then(|given| cost_at(given, index));
        at_position(py, with_cost(error.into(), cost.as_ref()), "id", index, costs.len())
    })?;
    Ok(entry)
}

/// Returns the cost of an id as it was given; `None` if an iterator has lost it.
fn cost_at<'py>(given: &Bound<'py, PyAny>, index: usize) -> Option<Bound<'py, PyAny>> {
    if given.is_instance_of::<PyInt>() { Some(given.clone()) } else { given.get_item(index).ok() }
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Converts the ids to a tuple. They are an array of integers with the buffer protocol, or any iterable.
fn convert_ids<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
        return Err(arguments::wrong_type("ids", "an iterable of ids, and not one id", given));
    }
    if let Ok(list) = given.cast::<PyList>() {
        return Ok(list.to_tuple());
    }
    if let Some(numbers) = int64_array(given)? {
        return PyTuple::new(given.py(), numbers);
    }
    let ids = integer_list(given)?.unwrap_or_else(|| given.clone());
    given.py().get_type::<PyTuple>().call1((ids,))?.cast_into::<PyTuple>().map_err(PyErr::from)
}

/// Converts the costs: `None` means 1 per id, and a single number applies to every id.
fn convert_costs(given: Option<&Bound<'_, PyAny>>, ids: usize) -> PyResult<Vec<i64>> {
    let Some(given) = given else { return Ok(vec![1; ids]) };
    if given.is_instance_of::<PyInt>() {
        return Ok(vec![arguments::saturating("costs", given)?; ids]);
    }
    let costs = match int64_array(given)? {
        Some(numbers) => numbers,
        // At most one more cost than ids is read, because the iterable may be infinite.
        None => integer_list(given)?
            .unwrap_or_else(|| given.clone())
            .try_iter()?
            .take(ids.saturating_add(1))
            .enumerate()
            .map(|(index, cost)| {
                let py = given.py();
                let cost = arguments::saturating("cost", &cost?);
                cost.map_err(|error| at_position(py, error, "cost", index, ids))
            })
            .collect::<PyResult<_>>()?,
    };
    if costs.len() != ids {
        let found = if costs.len() > ids { "more".to_owned() } else { costs.len().to_string() };
        let message = format!("costs must be as long as ids, found {found} for {ids}");
        return Err(PyValueError::new_err(message));
    }
    Ok(costs)
}

/// Returns the numbers of an array of signed 64-bit integers in native byte order, or `None` for
/// anything else.
fn int64_array(given: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    match PyBuffer::<i64>::get(given) {
        Ok(buffer)
            if buffer.dimensions() == 1
                && matches!(buffer.format().to_bytes(), b"q" | b"l" | b"@q" | b"@l" | b"=q") =>
        {
            buffer.to_vec(given.py()).map(Some)
        }
        _ => Ok(None),
    }
}

/// Converts an array of any other integer type to a list of `int`, because iterating over it would
/// return objects that are not of type `int`. Returns `None` for anything else.
fn integer_list<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Ok(view) = PyMemoryView::from(given) else { return Ok(None) };
    let format: String = view.getattr("format")?.extract()?;
    let kind = format.trim_start_matches(['@', '=', '<', '>', '!']);
    let is_whole =
        kind.len() == 1 && kind.contains(['b', 'B', 'h', 'H', 'i', 'I', 'l', 'L', 'q', 'Q']);
    if !is_whole || !given.hasattr("tolist")? {
        return Ok(None);
    }
    given.call_method0("tolist").map(Some)
}

#[doc = doc!(arrow)]
#[pyfunction]
pub(crate) fn arrow<'py>(
    py: Python<'py>,
    flags: Vec<(String, Vec<u8>)>,
    numbers: Vec<(String, PyBuffer<i64>)>,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (name, flags) in flags {
        fields.push(Field::new(name, DataType::Boolean, false));
        let flags: Vec<bool> = flags.into_iter().map(|flag| flag != 0).collect();
        columns.push(Arc::new(BooleanArray::from(flags)));
    }
    for (name, numbers) in numbers {
        fields.push(Field::new(name, DataType::Int64, false));
        columns.push(Arc::new(Int64Array::from(numbers.to_vec(py)?)));
    }
    let schema = Arc::new(Schema::new(fields));
    let exported = FFI_ArrowSchema::try_from(&*schema).map_err(arrow_error)?;
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_error)?;
    let stream = FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new([Ok(batch)], schema)));
    Ok((
        PyCapsule::new_with_value(py, exported, c"arrow_schema")?,
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")?,
    ))
}

// What `Decisions` needs of the limit that decided.
#[pymethods]
impl LimitEntry {
    #[new]
    fn of_limits(limits: &Bound<'_, Limits>, name: &Bound<'_, PyString>) -> PyResult<LimitEntry> {
        let entry = limits.get().registry().entry(name.to_str()?);
        let entry = entry.ok_or_else(|| PyValueError::new_err("the limit is missing"))?;
        LimitEntry::new(name.py(), name.clone().unbind(), Arc::clone(entry), None)
    }

    #[doc = doc!(LimitEntry.decision)]
    fn decision<'py>(
        slf: &Bound<'py, Self>,
        id: &Bound<'py, PyAny>,
        now_ns: i64,
        row: (i64, i64, i64, i64, i64, bool, bool),
    ) -> PyResult<Bound<'py, Decision>> {
        let (remaining, retry_after, reset_after, next_token_after, cost, allowed, would_deny) =
            row;
        let (entry, text) = (&slf.get().entry, id_text(id)?);
        let id_error = |error| PyErr::from(limiter::invalid_id(entry, error));
        let rule = entry.rule_for(&entry.canonical(&text).map_err(id_error)?);
        let decision = decision::Decision {
            allowed: allowed && !would_deny,
            unlimited: rule.limit.is_unlimited(),
            remaining,
            retry_after: Nanos::clamped(retry_after),
            reset_after: Nanos::clamped(reset_after),
            next_token_after: Nanos::clamped(next_token_after),
            now: Timestamp::clamped(now_ns),
        };
        let decided = Decided { decision, shadow: rule.shadow, effective_limit: None };
        let mut data = DecisionData::given(decided, cost, id, slf.clone().unbind());
        data.rare_mut().has_unix_time = true;
        Bound::new(slf.py(), Decision::new(data))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<LimitEntry>().is_ok_and(|other| {
            let other = &other.get().entry;
            Arc::ptr_eq(&self.entry, other) || self.entry == *other
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        // Only this limit, with its overrides.
        let entry = slf.get();
        let limits = Limits::from(Registry::of(Arc::clone(&entry.entry)));
        let state = (Bound::new(slf.py(), limits)?, entry.name.clone_ref(slf.py()));
        (slf.get_type(), state).into_pyobject(slf.py())
    }
}
