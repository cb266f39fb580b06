//! The class `Decisions`.

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
use pyo3::types::{PyBytes, PyCapsule, PyInt, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::column::Column;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{at_position, shown};
use crate::bindings::id_text::{StrIds, id_text, id_texts};
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::limits::Limits;
use crate::bindings::once::Once;
use crate::engine::decision;
use crate::engine::registry::Registry;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Decided};
use crate::store::Store;

/// Outcomes of many independent checks, as columns.
///
/// Returned by `spend_each`. The columns are NumPy arrays that share the memory of this object;
/// `column()` returns them without NumPy. Libraries that support the Arrow stream protocol accept
/// the object directly: `polars.DataFrame(decisions)`, `pandas.DataFrame.from_arrow(decisions)`.
/// Indexing returns one `Decision`, and a slice returns `Decisions`.
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
    /// The boolean columns, named by `FLAGS`.
    flags: [Py<Column>; 2],
    /// The integer columns, named by `NUMBERS`.
    numbers: [Py<Column>; 4],
}

const FLAGS: [&str; 2] = ["allowed", "would_deny"];
const NUMBERS: [&str; 4] = ["remaining", "retry_after_ns", "reset_after_ns", "next_token_after_ns"];
/// The number of public columns. The last one is only used to build a `Decision`.
const PUBLIC: usize = 5;

/// The state of pickled decisions.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PickledDecisions {
    /// Only this limit, with its overrides.
    limits: Py<Limits>,
    name: Py<PyString>,
    now_ns: i64,
    ids: Py<PyTuple>,
    costs: Vec<i64>,
    flags: BTreeMap<String, Vec<bool>>,
    numbers: BTreeMap<String, Vec<i64>>,
}

/// The columns while they are written.
struct DecisionRows {
    now: Timestamp,
    flags: [Vec<bool>; FLAGS.len()],
    /// The integer columns, one after another. They are one allocation, because glibc returns freed
    /// memory to the kernel if there is more than twice the largest allocation; the next call would
    /// then spend a third of its time on page faults.
    numbers: Vec<i64>,
}

impl DecisionRows {
    fn new(len: usize) -> DecisionRows {
        let flags = FLAGS.map(|_| vec![false; len]);
        DecisionRows { now: Timestamp::ORIGIN, flags, numbers: vec![0; NUMBERS.len() * len] }
    }

    #[inline(always)]
    fn set(&mut self, index: usize, decision: &decision::Decision, shadow: bool) {
        let [allowed, would_deny] = &mut self.flags;
        let len = allowed.len();
        self.now = decision.now;
        allowed[index] = decision.allowed || shadow;
        would_deny[index] = !decision.allowed && shadow;
        self.numbers[index] = decision.remaining;
        self.numbers[len + index] = decision.retry_after.get();
        self.numbers[2 * len + index] = decision.reset_after.get();
        self.numbers[3 * len + index] = decision.next_token_after.get();
    }
}

impl Decisions {
    /// Spends for each id. If an id or a cost is invalid, nothing is spent.
    pub(crate) fn spend<'py>(
        handle: &LimiterHandle,
        limit: impl Fn() -> PyResult<ActiveLimit>,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decisions> {
        let py = ids.py();
        let adjustment = arguments::adjustment(None, keep)?;
        let adjustment = adjustment.as_ref();
        let ids = convert_ids(ids)?;
        let costs = convert_costs(costs, ids.len())?;
        let (bound, mut entry) = limit()?;
        let mut rows = DecisionRows::new(costs.len());
        // Many ids of type `str` are decided without a list of their texts. If one is of another type,
        // nothing has been spent yet.
        let mut outcome = Ok(());
        let is_decided = !handle.core.store().may_wait()
            && handle
                .core
                .decide_each(
                    &bound,
                    &StrIds::new(&ids),
                    &costs,
                    adjustment,
                    #[inline(always)]
                    |index, decision, shadow| rows.set(index, decision, shadow),
                )
                .is_ok();
        if !is_decided {
            let texts = id_texts(&ids)?;
            // Again, because the conversion may run Python code that reloads or closes.
            let bound;
            (bound, entry) = limit()?;
            let set = |index, decision: &_, shadow| rows.set(index, decision, shadow);
            outcome = handle
                .run(py, |core| core.decide_each(&bound, &texts[..], &costs, adjustment, set));
        }
        outcome
            .map_err(|(index, error)| at_position(py, error.into(), "id", index, costs.len()))?;
        let DecisionRows { now, flags, numbers } = rows;
        let (flags, numbers) = (flags.map(Column::from), Column::split(numbers));
        let (flags, numbers) = (columns(py, flags)?, columns(py, numbers)?);
        Ok(Decisions { now, ids: ids.unbind(), costs, entry, flags, numbers })
    }

    /// Returns the public columns with their names.
    fn columns(&self) -> impl Iterator<Item = (&'static str, &Py<Column>)> {
        let flags = FLAGS.into_iter().zip(&self.flags);
        flags.chain(NUMBERS.into_iter().zip(&self.numbers)).take(PUBLIC)
    }

    fn find(&self, name: &str) -> PyResult<&Py<Column>> {
        let found = self.columns().find(|(other, _)| *other == name);
        found.map(|(_, column)| column).ok_or_else(|| {
            PyKeyError::new_err(format!(
                "a column must be allowed, would_deny, remaining, retry_after_ns or reset_after_ns, found {name:?}"
            ))
        })
    }

    fn array<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        static ASARRAY: Once<Py<PyAny>> = Once::new();
        let asarray = ASARRAY.get_or_try_init(py, || {
            let numpy = py.import("numpy").map_err(|_| {
                PyImportError::new_err(
                    "a column is a NumPy array, and NumPy is not installed; run `pip install numpy`, or use \
                     `decisions.column(name)`, which needs no NumPy",
                )
            })?;
            numpy.getattr("asarray").map(Bound::unbind)
        })?;
        asarray.bind(py).call1((self.find(name)?,))
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

/// Converts columns to Python objects.
fn columns<const N: usize>(py: Python<'_>, columns: [Column; N]) -> PyResult<[Py<Column>; N]> {
    let columns = columns.map(|column| Py::new(py, column));
    let columns = columns.into_iter().collect::<PyResult<Vec<_>>>()?;
    columns.try_into().map_err(|_| PyRuntimeError::new_err("a column is missing"))
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
        PyMemoryView::from(self.find(name)?.bind(py).as_any())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol allows a producer to ignore the requested schema.
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

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Decisions>() else { return Ok(false) };
        let other = other.get();
        let (entry, others) = (&self.entry.get().entry, &other.entry.get().entry);
        let columns = self.flags.iter().chain(&self.numbers);
        let mut columns = columns.zip(other.flags.iter().chain(&other.numbers));
        Ok(self.now == other.now
            && self.costs == other.costs
            && columns.all(|(one, other)| one.get() == other.get())
            && (Arc::ptr_eq(entry, others) || entry == others)
            && self.ids.bind(py).eq(other.ids.bind(py))?)
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match index.cast::<PySlice>() {
            Ok(range) => Ok(Bound::new(index.py(), self.slice(range)?)?.into_any()),
            Err(_) => self.decision(index).map(Bound::into_any),
        }
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

impl Decisions {
    /// Returns the decisions of a slice.
    fn slice(&self, range: &Bound<'_, PySlice>) -> PyResult<Decisions> {
        fn select<T: Copy>(all: &[T], indices: &[usize]) -> Vec<T> {
            indices.iter().map(|&index| all[index]).collect()
        }
        let py = range.py();
        let found = range.indices(self.costs.len() as isize)?;
        let indices = (0..found.slicelength as isize).map(|step| found.start + step * found.step);
        let indices: Vec<usize> = indices.map(|index| index as usize).collect();
        let flags = self.flags.each_ref().map(|column| select(column.get().flags(), &indices));
        let numbers = self.numbers.each_ref();
        let numbers = numbers.map(|column| select(column.get().numbers(), &indices));
        Ok(Decisions {
            now: self.now,
            ids: self.ids.bind(py).as_any().get_item(range)?.cast_into::<PyTuple>()?.unbind(),
            costs: select(&self.costs, &indices),
            entry: self.entry.clone_ref(py),
            flags: columns(py, flags.map(Column::from))?,
            numbers: columns(py, numbers.map(Column::from))?,
        })
    }

    /// Returns the decision at an index.
    fn decision<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        let (py, len) = (index.py(), self.costs.len());
        let signed = match index.extract::<i64>() {
            Ok(signed) => signed,
            // An index beyond 64 bits is out of range.
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => i64::MAX,
            Err(error) => return Err(error),
        };
        let at = if signed < 0 { signed.checked_add_unsigned(len as u64) } else { Some(signed) };
        let at = at.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < len);
        let at = at.ok_or_else(|| {
            let message = format!("index {} is out of range for {len} decisions", shown(index));
            PyIndexError::new_err(message)
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
        let data = DecisionData::given(decided, self.costs[at], id, entry);
        Bound::new(py, Decision::new(data))
    }
}

/// Rebuild decisions from the state that `Decisions.__reduce__` returned.
#[pyfunction]
pub(crate) fn _unpickled_decisions(py: Python<'_>, state: PickledDecisions) -> PyResult<Decisions> {
    let name = state.name.bind(py).to_str()?;
    let entry = state.limits.get().registry().entry(name);
    let entry = Arc::clone(entry.ok_or_else(|| PyValueError::new_err("the limit is missing"))?);
    let flags = select_columns(FLAGS, state.flags);
    let numbers = select_columns(NUMBERS, state.numbers);
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
        entry: Py::new(py, LimitEntry::new(py, state.name, entry)?)?,
        flags: columns(py, flags.map(Column::from))?,
        numbers: columns(py, numbers.map(Column::from))?,
    })
}

fn select_columns<T, const N: usize>(
    names: [&str; N],
    mut columns: BTreeMap<String, Vec<T>>,
) -> [Vec<T>; N] {
    names.map(|name| columns.remove(name).unwrap_or_default())
}
