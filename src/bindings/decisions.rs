//! `Decisions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{
    PyImportError, PyIndexError, PyKeyError, PyOverflowError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyInt, PyList, PyMemoryView, PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::column::Column;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{at_position, shown};
use crate::bindings::id_text::{id_text, id_texts};
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::limits::Limits;
use crate::engine::decision;
use crate::engine::registry::Registry;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Decided};

/// Outcomes of many independent checks, as columns.
///
/// Returned by `spend_each`. The columns are NumPy arrays that share the memory of this object;
/// `column()` returns them without NumPy. Any library that reads the Arrow stream protocol takes
/// the object as it is: `polars.DataFrame(decisions)`, `pandas.DataFrame.from_arrow(decisions)`.
/// Indexing returns one `Decision`.
///
/// Examples:
///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
///     >>> decisions = limiter.spend_each("Orders", ["ada", "ada", "ada"])
///     >>> decisions.allowed.tolist(), decisions[2].retry_after
///     ([True, True, False], 30.0)
#[pyclass(frozen, module = "penstock", sequence)]
#[derive(Debug)]
pub(crate) struct Decisions {
    now: Timestamp,
    ids: Py<PyTuple>,
    costs: Vec<i64>,
    entry: Py<LimitEntry>,
    /// The columns with the names in `FLAGS`.
    flags: [Py<Column>; 2],
    /// Those with the names in `NUMBERS`.
    numbers: [Py<Column>; 4],
}

const FLAGS: [&str; 2] = ["allowed", "would_deny"];
const NUMBERS: [&str; 4] = ["remaining", "retry_after_ns", "reset_after_ns", "next_token_after_ns"];
/// The columns that are for others.
const PUBLIC: usize = 5;

/// The state of pickled decisions.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PickledDecisions {
    /// The limit with its overrides, and nothing else.
    limits: Py<Limits>,
    name: Py<PyString>,
    now_ns: i64,
    ids: Py<PyTuple>,
    costs: Vec<i64>,
    flags: BTreeMap<String, Vec<bool>>,
    numbers: BTreeMap<String, Vec<i64>>,
}

impl Decisions {
    /// Spends for each id; if an id or a cost is invalid nothing is spent.
    pub(crate) fn spend<'py>(
        handle: &LimiterHandle,
        limit: impl FnOnce() -> PyResult<ActiveLimit>,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decisions> {
        let py = ids.py();
        let ids = ids_of(ids)?;
        let costs = costs_of(costs, ids.len())?;
        let texts = id_texts(&ids)?;
        // Only now: converting ids and costs runs Python code, which may reload or close.
        let (bound, entry) = limit()?;
        let mut now = Timestamp::ORIGIN;
        let mut flags = [(); 2].map(|()| vec![false; ids.len()]);
        let mut numbers = [(); 4].map(|()| vec![0; ids.len()]);
        let outcome = handle.run(py, |core| {
            core.decide_each(&bound, &texts, &costs, |index, decision, shadow| {
                now = decision.now;
                flags[0][index] = decision.allowed || shadow;
                flags[1][index] = !decision.allowed && shadow;
                numbers[0][index] = decision.remaining;
                numbers[1][index] = decision.retry_after.get();
                numbers[2][index] = decision.reset_after.get();
                numbers[3][index] = decision.next_token_after.get();
            })
        });
        outcome
            .map_err(|(index, error)| at_position(py, error.into(), "id", index, texts.len()))?;
        let flags = columns(py, flags)?;
        Ok(Decisions {
            now,
            ids: ids.unbind(),
            costs,
            entry,
            flags,
            numbers: columns(py, numbers)?,
        })
    }

    /// The columns with their names.
    fn columns(&self) -> impl Iterator<Item = (&'static str, &Py<Column>)> {
        let flags = FLAGS.into_iter().zip(&self.flags);
        flags.chain(NUMBERS.into_iter().zip(&self.numbers)).take(PUBLIC)
    }

    fn named(&self, name: &str) -> PyResult<&Py<Column>> {
        let found = self.columns().find(|(other, _)| *other == name);
        found.map(|(_, column)| column).ok_or_else(|| {
            PyKeyError::new_err(format!(
                "a column must be allowed, would_deny, remaining, retry_after_ns or reset_after_ns, found {name:?}"
            ))
        })
    }

    fn array<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let asarray = ASARRAY.get_or_try_init(py, || {
            let numpy = py.import("numpy").map_err(|_| {
                PyImportError::new_err(
                    "a column is a NumPy array, and NumPy is not installed; run `pip install numpy`, or use \
                     `decisions.column(name)`, which needs no NumPy",
                )
            })?;
            numpy.getattr("asarray").map(Bound::unbind)
        })?;
        asarray.bind(py).call1((self.named(name)?,))
    }

    fn batch(&self) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns().map(|(name, column)| -> ArrayRef {
            if FLAGS.contains(&name) {
                Arc::new(BooleanArray::from(column.get().flags().to_vec()))
            } else {
                Arc::new(Int64Array::from(column.get().numbers().to_vec()))
            }
        });
        RecordBatch::try_new(Arc::new(schema()), columns.collect())
    }
}

fn schema() -> Schema {
    let flags = FLAGS.map(|name| Field::new(name, DataType::Boolean, false));
    let numbers = NUMBERS.map(|name| Field::new(name, DataType::Int64, false));
    Schema::new(flags.into_iter().chain(numbers).take(PUBLIC).collect::<Vec<_>>())
}

/// Columns of values, in their order.
fn columns<T, const N: usize>(py: Python<'_>, values: [Vec<T>; N]) -> PyResult<[Py<Column>; N]>
where
    Column: From<Vec<T>>,
{
    let columns = values.map(|values| Py::new(py, Column::from(values)));
    let columns = columns.into_iter().collect::<PyResult<Vec<_>>>()?;
    columns.try_into().map_err(|_| PyRuntimeError::new_err("a column is missing"))
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// The ids: an array of whole numbers by the buffer protocol, or anything that can be walked
/// through.
fn ids_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
        return Err(arguments::wrong_type("ids", "an iterable of ids, and not one id", given));
    }
    if let Ok(list) = given.cast::<PyList>() {
        return Ok(list.to_tuple());
    }
    if let Some(numbers) = numbers_in(given)? {
        return PyTuple::new(given.py(), numbers);
    }
    let walked = list_of_numbers(given)?.unwrap_or_else(|| given.clone());
    given.py().get_type::<PyTuple>().call1((walked,))?.cast_into::<PyTuple>().map_err(PyErr::from)
}

/// The costs: none means 1 each, one number means that for each.
fn costs_of(given: Option<&Bound<'_, PyAny>>, ids: usize) -> PyResult<Vec<i64>> {
    let Some(given) = given else { return Ok(vec![1; ids]) };
    if given.is_instance_of::<PyInt>() {
        return Ok(vec![arguments::saturating("costs", given)?; ids]);
    }
    let costs = match numbers_in(given)? {
        Some(numbers) => numbers,
        // One too many proves the mismatch: the iterable may be endless.
        None => list_of_numbers(given)?
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
        let message = format!("costs must be as many as ids, found {found} for {ids}");
        return Err(PyValueError::new_err(message));
    }
    Ok(costs)
}

/// The numbers of an array of signed 64-bit integers; `None` for anything else, which is then
/// walked through.
fn numbers_in(given: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    match PyBuffer::<i64>::get(given) {
        // In native byte order; any other is read number by number.
        Ok(buffer)
            if buffer.dimensions() == 1
                && matches!(buffer.format().to_bytes(), b"q" | b"l" | b"@q" | b"@l" | b"=q") =>
        {
            buffer.to_vec(given.py()).map(Some)
        }
        _ => Ok(None),
    }
}

/// The numbers of an array of whole numbers of another kind, as Python's own; `None` for anything
/// else. Walked through, such an array gives numbers of a class that is no `int`.
fn list_of_numbers<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
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

#[pymethods]
impl Decisions {
    /// Whether each request may proceed.
    #[getter]
    fn allowed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, "allowed")
    }

    /// Whether a limit in shadow mode would have denied each request.
    #[getter]
    fn would_deny<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, "would_deny")
    }

    /// Tokens left in the bucket after each decision, in order.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, "remaining")
    }

    /// Nanoseconds until each request could be allowed again; see `Decision.retry_after`.
    #[getter]
    fn retry_after_ns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, "retry_after_ns")
    }

    /// Nanoseconds until each bucket is full again.
    #[getter]
    fn reset_after_ns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, "reset_after_ns")
    }

    /// Return one column as a read-only view, without NumPy and without copying.
    ///
    /// Args:
    ///     name: `"allowed"`, `"would_deny"`, `"remaining"`, `"retry_after_ns"` or
    ///         `"reset_after_ns"`.
    ///
    /// Raises:
    ///     KeyError: No column has this name.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.named(name)?.bind(py).as_any())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol allows ignoring a requested schema; these types have no other form.
        let _ = requested_schema;
        let batch = self.batch().map_err(arrow_error)?;
        let reader = RecordBatchIterator::new([Ok(batch)], Arc::new(schema()));
        PyCapsule::new_with_value(
            py,
            FFI_ArrowArrayStream::new(Box::new(reader)),
            c"arrow_array_stream",
        )
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&schema()).map_err(arrow_error)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    fn __len__(&self) -> usize {
        self.costs.len()
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        let (py, len) = (index.py(), self.costs.len());
        let wanted = match index.extract::<i64>() {
            Ok(wanted) => wanted,
            // Past the end, as any index beyond 64 bits.
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => i64::MAX,
            Err(error) => return Err(error),
        };
        let found = if wanted < 0 { wanted.checked_add_unsigned(len as u64) } else { Some(wanted) };
        let found = found.and_then(|found| usize::try_from(found).ok()).filter(|&at| at < len);
        let at = found.ok_or_else(|| {
            let index = shown(index);
            PyIndexError::new_err(format!("there are {len} decisions, and none at {index}"))
        })?;
        let [allowed, would_deny] = self.flags.each_ref().map(|column| column.get().flags()[at]);
        let [remaining, retry_after, reset_after, next_token_after] =
            self.numbers.each_ref().map(|column| column.get().numbers()[at]);
        let entry = &self.entry.get().entry;
        let id = &self.ids.bind(py).get_item(at)?;
        let text = id_text(id)?;
        let id_error = |error| PyErr::from(limiter::invalid_id(entry, error));
        let rule = entry.rule_for(&entry.canonical(&text).map_err(id_error)?);
        let decision = decision::Decision {
            allowed: allowed && !would_deny,
            unlimited: rule.limit.is_unlimited(),
            remaining,
            retry_after: Nanos::clamped(retry_after),
            reset_after: Nanos::clamped(reset_after),
            next_token_after: Nanos::clamped(next_token_after),
            now: self.now,
        };
        let decided = Decided { decision, shadow: rule.shadow, effective_limit: None };
        let entry = self.entry.clone_ref(py);
        let data = DecisionData::single(decided, self.costs[at], id, entry);
        Bound::new(py, Decision::new(data))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let flags = FLAGS.iter().zip(&self.flags);
        let flags = flags.map(|(name, column)| (name.to_string(), column.get().flags().to_vec()));
        let numbers = NUMBERS.iter().zip(&self.numbers);
        let numbers =
            numbers.map(|(name, column)| (name.to_string(), column.get().numbers().to_vec()));
        let entry = self.entry.get();
        let state = PickledDecisions {
            limits: Py::new(py, Limits::from(Registry::of(Arc::clone(&entry.entry))))?,
            name: entry.name.clone_ref(py),
            now_ns: self.now.get(),
            ids: self.ids.clone_ref(py),
            costs: self.costs.clone(),
            flags: flags.collect(),
            numbers: numbers.collect(),
        };
        let rebuild = py.import("penstock._core")?.getattr("_unpickled_decisions")?;
        (rebuild, (state,)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let allowed = self.flags[0].get().flags().iter().filter(|&&allowed| allowed).count();
        format!("<Decisions: {allowed} of {} allowed>", self.costs.len())
    }
}

/// Return the decisions that `Decisions.__reduce__` described.
#[pyfunction]
pub(crate) fn _unpickled_decisions(py: Python<'_>, state: PickledDecisions) -> PyResult<Decisions> {
    let name = state.name.bind(py).to_str()?;
    let entry = state.limits.get().registry().entry(name);
    let entry = Arc::clone(entry.ok_or_else(|| PyValueError::new_err("the limit is missing"))?);
    let (flags, numbers) = (in_order(FLAGS, state.flags), in_order(NUMBERS, state.numbers));
    let mut lengths = flags.iter().map(Vec::len).chain(numbers.iter().map(Vec::len));
    if state.ids.bind(py).len() != state.costs.len()
        || lengths.any(|length| length != state.costs.len())
    {
        return Err(PyValueError::new_err("a column is missing"));
    }
    Ok(Decisions {
        now: Timestamp::clamped(state.now_ns),
        ids: state.ids,
        costs: state.costs,
        entry: Py::new(py, LimitEntry::new(py, state.name, entry))?,
        flags: columns(py, flags)?,
        numbers: columns(py, numbers)?,
    })
}

fn in_order<T, const N: usize>(
    names: [&str; N],
    mut columns: BTreeMap<String, Vec<T>>,
) -> [Vec<T>; N] {
    names.map(|name| columns.remove(name).unwrap_or_default())
}
