//! `Simulator`, and other functions for `penstock.simulate`.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::bindings::array::{Array, Number, Part, Writable, WritablePart};
use crate::bindings::column::Column;
use crate::bindings::errors::{ToPyErr, raise};
use crate::bindings::id_text::id_text;
use crate::bindings::limit::Limit;
use crate::bindings::limits::Limits;
use crate::config;
use crate::engine::registry::{Entry, Rule};
use crate::limiter;
use crate::simulate::{self, Columns, Events, Fault, FaultAt, Ids, Together};
use crate::sync::Mutex;

/// The number of events between checks for signals.
const UNASKED: usize = 4 << 20;
/// The name of a limit without a name.
const UNNAMED: &str = "Limit";

/// One limit under a virtual clock, which evaluates events in parts.
///
/// Use `penstock.simulate` instead, which is built on this class and accepts all kinds of columns.
///
/// Args:
///     limits: A limit, or limits with their overrides.
///     name: The limit to evaluate; optional if there is only one.
///
/// Raises:
///     UnknownLimit: No limit has this name.
///     ValueError: There are several limits and no name.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Simulator {
    fed: Mutex<Fed>,
}

#[derive(Debug)]
struct Fed {
    core: simulate::Simulator,
    /// The ids of the clients that `number` added.
    ids: Ids,
    failed: bool,
}

/// The requested columns of the results.
struct Wanted {
    allowed: Writable<u8>,
    remaining: Option<Writable<i64>>,
    retry_after: Option<Writable<i64>>,
    reset_after: Option<Writable<i64>>,
}

impl Wanted {
    fn of(
        events: usize,
        allowed: &Bound<'_, PyAny>,
        numbers: [(&str, Option<&Bound<'_, PyAny>>); 3],
    ) -> PyResult<Wanted> {
        let fits = |name: &str, found: usize| {
            if found == events {
                return Ok(());
            }
            let message = format!("{name} must be as many as times, found {found} for {events}");
            Err(PyValueError::new_err(message))
        };
        let allowed = Array::writable("allowed", allowed)?;
        fits("allowed", allowed.len())?;
        let column = |(name, given): (&str, Option<&Bound<'_, PyAny>>)| {
            let Some(given) = given else { return Ok(None) };
            let column = Array::writable(name, given)?;
            fits(name, column.len()).map(|()| Some(column))
        };
        let [remaining, retry_after, reset_after] = numbers;
        Ok(Wanted {
            allowed,
            remaining: column(remaining)?,
            retry_after: column(retry_after)?,
            reset_after: column(reset_after)?,
        })
    }

    fn columns(&self, range: Range<usize>) -> Columns<WritablePart<'_, u8>, WritablePart<'_, i64>> {
        Columns {
            allowed: self.allowed.part(range.clone()),
            remaining: self.remaining.as_ref().map(|column| column.part(range.clone())),
            retry_after: self.retry_after.as_ref().map(|column| column.part(range.clone())),
            reset_after: self.reset_after.as_ref().map(|column| column.part(range.clone())),
        }
    }
}

/// The columns of the events.
struct Given {
    times: Array<i64>,
    clients: Option<Array<u32>>,
    costs: Option<Array<i64>>,
}

impl Given {
    fn of(
        times: &Bound<'_, PyAny>,
        clients: Option<&Bound<'_, PyAny>>,
        costs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Given> {
        let times = Array::of("times", times)?;
        let clients = clients.map(|clients| Array::of("clients", clients)).transpose()?;
        let costs = costs.map(|costs| Array::of("costs", costs)).transpose()?;
        let lengths = [
            ("clients", clients.as_ref().map(Array::len)),
            ("costs", costs.as_ref().map(Array::len)),
        ];
        for (name, length) in lengths {
            if let Some(found) = length.filter(|&length| length != times.len()) {
                let wanted = times.len();
                let message =
                    format!("{name} must be as many as times, found {found} for {wanted}");
                return Err(PyValueError::new_err(message));
            }
        }
        Ok(Given { times, clients, costs })
    }

    fn fits(&self, name: &str, found: usize) -> PyResult<()> {
        let expected = self.times.len();
        if found == expected {
            return Ok(());
        }
        let message = format!("{name} must be as many as times, found {found} for {expected}");
        Err(PyValueError::new_err(message))
    }

    fn events(&self, range: Range<usize>) -> Events<Part<'_, i64>, Part<'_, u32>, Part<'_, i64>> {
        Events {
            times: self.times.part(range.clone()),
            clients: self.clients.as_ref().map(|clients| clients.part(range.clone())),
            costs: self.costs.as_ref().map(|costs| costs.part(range)),
        }
    }

    /// Evaluates the events from `first` up to `end`.
    fn evaluate(
        &self,
        core: &mut simulate::Simulator,
        wanted: &Wanted,
        first: usize,
        end: usize,
    ) -> Result<(), FaultAt> {
        let events = self.events(first..end);
        core.run(&events, &mut wanted.columns(first..end))
            .map_err(|fault| FaultAt { position: first + fault.position, ..fault })
    }
}

fn entry_of(limits: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<Arc<Entry>> {
    if let Ok(limit) = limits.cast::<Limit>() {
        let limit = limit.get().limit;
        if limit.has_phase_per_key() && name.is_none() {
            let message =
                "a phase per key comes from the limit's name and the id: name= must say the name";
            return Err(raise(limits.py(), "LimitError", message, &[]));
        }
        let entry = Entry::alone(name.unwrap_or(UNNAMED), Rule::plain(limit));
        return entry
            .map(Arc::new)
            .map_err(|error| raise(limits.py(), "ConfigError", &format!("name: {error}"), &[]));
    }
    let registry = Limits::registry_of(limits)?;
    match (name, registry.entries()) {
        (None, [entry]) => Ok(Arc::clone(entry)),
        (None, entries) => {
            let found = entries.len();
            let message = format!("name must say which limit is simulated, found {found} limits");
            Err(PyValueError::new_err(message))
        }
        (Some(name), _) => {
            let entry = registry.entry(name).map(Arc::clone);
            entry.ok_or_else(|| limiter::unknown_limit(&registry, name).to_py_err())
        }
    }
}

fn without_position(fault: &Fault) -> PyErr {
    match fault {
        Fault::Call(error) => error.to_py_err(),
        _ => PyValueError::new_err(fault.to_string()),
    }
}

fn raised(py: Python<'_>, fault: FaultAt) -> PyErr {
    match &fault.fault {
        Fault::Call(_) => {
            let error = without_position(&fault.fault);
            let note = format!("this is the event at position {}", fault.position);
            // A note is lost only if the exception takes none, and then it still says what is
            // wrong.
            let _ = error.add_note(py, &note);
            error
        }
        _ => PyValueError::new_err(fault.to_string()),
    }
}

impl Simulator {
    /// Runs on a simulator that has not stopped at an error.
    fn with<T>(&self, run: impl FnOnce(&mut Fed) -> PyResult<T>) -> PyResult<T> {
        self.look(|fed| {
            if fed.failed {
                return Err(PyRuntimeError::new_err(
                    "the simulator stopped at an invalid event; create a new one",
                ));
            }
            run(fed)
        })
    }

    fn look<T>(&self, run: impl FnOnce(&mut Fed) -> PyResult<T>) -> PyResult<T> {
        // Never waited for: the thread that has it may itself be waiting for the interpreter.
        let Some(mut fed) = self.fed.try_lock() else {
            return Err(PyRuntimeError::new_err(
                "the simulator is in use by another thread; use one per thread",
            ));
        };
        run(&mut fed)
    }
}

#[pymethods]
impl Simulator {
    #[new]
    #[pyo3(signature = (limits, name = None))]
    fn new(limits: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<Simulator> {
        let core = simulate::Simulator::new(entry_of(limits, name)?);
        Ok(Simulator { fed: Mutex::new(Fed { core, ids: Ids::default(), failed: false }) })
    }

    /// The limit's name.
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.look(|fed| Ok(fed.core.entry().name().to_string()))
    }

    /// The number of clients that were added.
    #[getter]
    fn clients(&self) -> PyResult<usize> {
        self.look(|fed| Ok(fed.core.clients()))
    }

    /// Add clients by their ids; they are numbered from `clients` on.
    ///
    /// Each id can be added only once.
    ///
    /// Raises:
    ///     InvalidId: An id does not fit the limit's format.
    fn add(&self, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = ids.py();
        self.with(|fed| {
            for (place, id) in ids.try_iter()?.enumerate() {
                let id = id?;
                let added = id_text(&id).and_then(|text| {
                    let fault = |fault| raised(py, FaultAt { position: place, fault });
                    fed.core.add(&text).map_err(fault)
                });
                if let Err(error) = added {
                    // A note is lost only if the exception takes none, and then it still says
                    // what is wrong.
                    let _ = error.add_note(py, format!("this is the client number {place}"));
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    /// Add clients without ids, each with its own bucket under the default limit.
    ///
    /// Raises:
    ///     InvalidId: The limit has an id format.
    fn add_unnamed(&self, count: usize) -> PyResult<()> {
        self.with(|fed| fed.core.add_unnamed(count).map_err(|fault| without_position(&fault)))
    }

    /// Return the number of each id, and add those that are new.
    ///
    /// Only for a simulator to which no clients were added in another way.
    ///
    /// Args:
    ///     ids: The ids.
    ///     skip_invalid: Whether an id that does not fit the limit's format has the number
    ///         2**32 - 1, instead of being an error.
    ///
    /// Raises:
    ///     InvalidId: An id does not fit the limit's format.
    #[pyo3(signature = (ids, *, skip_invalid = false))]
    fn number(&self, ids: &Bound<'_, PyList>, skip_invalid: bool) -> PyResult<Py<Column>> {
        let py = ids.py();
        self.with(|fed| {
            let mut numbers = Vec::with_capacity(ids.len());
            for id in ids.iter() {
                let text = id_text(&id)?;
                let number = match fed.ids.find(text.as_bytes()) {
                    Some(number) => number,
                    None => match fed.core.add(&text) {
                        Ok(()) => fed.ids.number(text.as_bytes()).ok_or_else(too_many)?,
                        Err(Fault::Call(_)) if skip_invalid => u32::MAX,
                        Err(fault) => return Err(without_position(&fault)),
                    },
                };
                numbers.push(number);
            }
            Py::new(py, Column::from(numbers))
        })
    }

    /// Return the bucket of each client from number `first` on.
    ///
    /// `None` means that each client has its own bucket, with its number.
    fn buckets(&self, py: Python<'_>, first: usize) -> PyResult<Option<Py<Column>>> {
        self.with(|fed| {
            let Some(buckets) = fed.core.buckets() else { return Ok(None) };
            let added = buckets.get(first..).unwrap_or_default().to_vec();
            Py::new(py, Column::from(added)).map(Some)
        })
    }

    /// Return the id of a bucket in its canonical spelling.
    ///
    /// Raises:
    ///     ValueError: There is no such bucket.
    fn bucket_id(&self, bucket: usize) -> PyResult<String> {
        self.with(|fed| {
            let id = fed.core.bucket_id(bucket).or_else(|| fed.ids.get(bucket));
            let id = id.ok_or_else(|| {
                PyValueError::new_err(format!("there is no bucket with the number {bucket}"))
            })?;
            Ok(String::from_utf8_lossy(id).into_owned())
        })
    }

    /// Return the limit that applies to a client.
    ///
    /// Raises:
    ///     ValueError: There is no such client.
    fn limit_of(&self, client: usize) -> PyResult<Limit> {
        self.with(|fed| {
            let clients = fed.core.clients();
            let limit = fed.core.limit_of(client).map(|limit| Limit::from(*limit));
            limit.ok_or_else(|| {
                let message = format!(
                    "there are {clients} clients, numbered from 0, and none is number {client}"
                );
                PyValueError::new_err(message)
            })
        })
    }

    /// Evaluate events, and write the requested columns of the decisions into arrays.
    ///
    /// The buckets are kept for the events of the next call. The interpreter runs
    /// other threads meanwhile.
    ///
    /// Args:
    ///     times: Nanoseconds since the clock's origin, in ascending order.
    ///     clients: The clients' numbers; `None` for the first client.
    ///     costs: Tokens; `None` for 1 each.
    ///     allowed: Receives 1 for each allowed event, otherwise 0.
    ///     remaining: Receives the remaining tokens; optional.
    ///     retry_after_ns: Receives the wait for the same cost; optional.
    ///     reset_after_ns: Receives the wait until the bucket is full; optional.
    ///
    /// Raises:
    ///     CostError: A cost is impossible under this limit.
    ///     ValueError: Times are not ascending, a client does not exist, or lengths differ.
    ///     RuntimeError: The simulator is in use by another thread, or stopped at an error.
    #[expect(clippy::too_many_arguments, reason = "three columns come in, and up to four go out")]
    #[pyo3(signature = (
        times, clients, costs, allowed, remaining = None, retry_after_ns = None, reset_after_ns = None
    ))]
    fn feed<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
        remaining: Option<&Bound<'py, PyAny>>,
        retry_after_ns: Option<&Bound<'py, PyAny>>,
        reset_after_ns: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let given = Given::of(times, clients, costs)?;
        let events = given.times.len();
        let numbers = [
            ("remaining", remaining),
            ("retry_after_ns", retry_after_ns),
            ("reset_after_ns", reset_after_ns),
        ];
        let wanted = Wanted::of(events, allowed, numbers)?;
        self.with(|fed| {
            for first in (0..events).step_by(UNASKED) {
                let end = events.min(first + UNASKED);
                let core = &mut fed.core;
                let evaluated = py.detach(|| given.evaluate(core, &wanted, first, end));
                let evaluated = evaluated.map_err(|fault| raised(py, fault));
                if let Err(error) = evaluated.and_then(|()| py.check_signals()) {
                    fed.failed = true;
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    /// Wait for tokens in the order of arrival, and write each event's wait in nanoseconds.
    ///
    /// Args:
    ///     times: Nanoseconds since the clock's origin, in ascending order.
    ///     clients: The clients' numbers; `None` for the first client.
    ///     costs: Tokens; `None` for 1 each.
    ///     timeout_ns: The longest wait; an event that would wait longer has -1, and takes nothing.
    ///     waits_ns: Receives the waits.
    ///
    /// Raises:
    ///     CostError: A cost is impossible under this limit.
    ///     ValueError: Times are not ascending, a client does not exist, or lengths differ.
    fn wait<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        timeout_ns: i64,
        waits_ns: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = times.py();
        let given = Given::of(times, clients, costs)?;
        let waits: Writable<i64> = Array::writable("waits_ns", waits_ns)?;
        given.fits("waits_ns", waits.len())?;
        self.with(|fed| {
            let mut served = Vec::new();
            let core = &mut fed.core;
            let events = given.events(0..given.times.len());
            let mut waits = waits.part(0..waits.len());
            let outcome = py.detach(|| core.wait(&events, timeout_ns, &mut served, &mut waits));
            fed.failed = outcome.is_err();
            outcome.map_err(|fault| raised(py, fault))
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        self.look(|fed| {
            let (name, clients) = (fed.core.entry().name(), fed.core.clients());
            Ok(format!("<Simulator {name}, {clients} clients>"))
        })
    }
}

/// Several limits under a virtual clock, decided together; used by `penstock.simulate`.
///
/// Args:
///     limits: The limits with their overrides.
///     names: The limits that plans refer to, by index.
///
/// Raises:
///     UnknownLimit: A limit does not exist.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct RouteSimulator {
    core: Mutex<Together>,
}

#[pymethods]
impl RouteSimulator {
    #[new]
    fn new(limits: &Bound<'_, PyAny>, names: Vec<String>) -> PyResult<RouteSimulator> {
        let entries = names.iter().map(|name| entry_of(limits, Some(name)));
        let core = Together::new(entries.collect::<PyResult<_>>()?);
        Ok(RouteSimulator { core: Mutex::new(core) })
    }

    /// Add what a kind of request spends; return the number of the plan.
    ///
    /// Args:
    ///     parts: For each limit its index, the id, and the cost; `None` is the cost of the event.
    ///
    /// Raises:
    ///     InvalidId: An id does not fit the limit's format.
    fn add_plan(&self, parts: Vec<(usize, String, Option<i64>)>) -> PyResult<usize> {
        self.core.lock().add_plan(&parts).map_err(|fault| without_position(&fault))
    }

    /// Evaluate events, each by its plan; the buckets are kept for the next call.
    ///
    /// Args:
    ///     times: Nanoseconds since the clock's origin, in ascending order.
    ///     plans: The number of each event's plan.
    ///     costs: Tokens of parts without a cost; `None` for 1 each.
    ///     denied_by: Receives the index of the strictest limit that denies, otherwise 2**32 - 1.
    ///     allowed: Receives 1 for each allowed event, otherwise 0.
    ///     remaining: Receives the remaining tokens of the strictest limit; optional.
    ///     retry_after_ns: Receives its wait for the same cost; optional.
    ///     reset_after_ns: Receives the wait until its bucket is full; optional.
    ///
    /// Raises:
    ///     CostError: A cost is impossible under a limit.
    ///     ValueError: Times are not ascending, a plan does not exist, or lengths differ.
    #[expect(clippy::too_many_arguments, reason = "three columns come in, and up to five go out")]
    #[pyo3(signature = (
        times, plans, costs, denied_by, allowed,
        remaining = None, retry_after_ns = None, reset_after_ns = None
    ))]
    fn feed<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        plans: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        denied_by: &Bound<'py, PyAny>,
        allowed: &Bound<'py, PyAny>,
        remaining: Option<&Bound<'py, PyAny>>,
        retry_after_ns: Option<&Bound<'py, PyAny>>,
        reset_after_ns: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let given = Given::of(times, Some(plans), costs)?;
        let denied_by: Writable<u32> = Array::writable("denied_by", denied_by)?;
        given.fits("denied_by", denied_by.len())?;
        let numbers = [
            ("remaining", remaining),
            ("retry_after_ns", retry_after_ns),
            ("reset_after_ns", reset_after_ns),
        ];
        let wanted = Wanted::of(given.times.len(), allowed, numbers)?;
        let whole = 0..given.times.len();
        let outcome = py.detach(|| {
            let events = given.events(whole.clone());
            let mut columns = wanted.columns(whole.clone());
            self.core.lock().run(&events, &mut columns, &mut denied_by.part(whole.clone()))
        });
        outcome.map_err(|fault| raised(py, fault))
    }
}

/// Load a routes file: a list of routes, each as `penstock.simulate.simulate` takes them.
///
/// Raises:
///     ConfigError: The file cannot be read, or has faults.
#[pyfunction]
pub(crate) fn load_routes<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyList>> {
    let routes = py.detach(|| config::load_routes(&path)).map_err(|error| error.to_py_err())?;
    let list = PyList::empty(py);
    for route in routes {
        let limits = PyDict::new(py);
        for spend in route.limits {
            let options = PyDict::new(py);
            if let Some(id) = spend.id {
                options.set_item("id", id)?;
            }
            if let Some(cost) = spend.cost {
                options.set_item("cost", cost)?;
            }
            limits.set_item(spend.limit, options)?;
        }
        let entry = PyDict::new(py);
        entry.set_item("path", route.path)?;
        entry.set_item("method", route.methods)?;
        entry.set_item("limits", limits)?;
        list.append(entry)?;
    }
    Ok(list)
}

fn too_many() -> PyErr {
    PyValueError::new_err("there are more than 2**32 ids")
}

/// Return the number of each id, in order of first occurrence, and the ids by number.
///
/// Raises:
///     TypeError: A value is not an id.
#[pyfunction]
pub(crate) fn factorise<'py>(
    ids: &Bound<'py, PyList>,
) -> PyResult<(Py<Column>, Bound<'py, PyList>)> {
    let py = ids.py();
    let mut seen = Ids::default();
    let mut codes = Vec::with_capacity(ids.len());
    for (place, id) in ids.iter().enumerate() {
        let text = id_text(&id).inspect_err(|error| {
            let note = format!("this is the id at position {place} of {}", ids.len());
            // A note is lost only if the exception takes none, and then it still says what is
            // wrong.
            let _ = error.add_note(py, &note);
        })?;
        codes.push(seen.number(text.as_bytes()).ok_or_else(too_many)?);
    }
    // What was added is text, and so is what comes back.
    let texts = seen.iter().map(|id| std::str::from_utf8(id).unwrap_or_default());
    Ok((Py::new(py, Column::from(codes))?, PyList::new(py, texts.collect::<Vec<_>>())?))
}

/// Return the number of each item of `width` 32-bit words, and where it occurs first.
///
/// Raises:
///     ValueError: The length is not a multiple of `width`.
#[pyfunction]
pub(crate) fn factorise_fixed(
    items: &Bound<'_, PyAny>,
    width: usize,
) -> PyResult<(Py<Column>, Py<Column>)> {
    let py = items.py();
    let words: Array<u32> = Array::of("items", items)?;
    if width == 0 || !words.len().is_multiple_of(width) {
        let found = words.len();
        let message = format!("items must be whole, found {found} words for items of {width}");
        return Err(PyValueError::new_err(message));
    }
    let (codes, firsts) = py.detach(|| numbers(&words, width)).ok_or_else(too_many)?;
    Ok((Py::new(py, Column::from(codes))?, Py::new(py, Column::from(firsts))?))
}

fn numbers(words: &Array<u32>, width: usize) -> Option<(Vec<u32>, Vec<i64>)> {
    let mut seen = Ids::default();
    let mut codes = Vec::with_capacity(words.len() / width);
    let mut firsts: Vec<i64> = Vec::new();
    let mut item = vec![0; 4 * width.min(words.len())];
    for (place, words) in words.shared().chunks_exact(width).enumerate() {
        for (bytes, word) in item.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&u32::read(word).to_ne_bytes());
        }
        let code = seen.number(&item)?;
        if code as usize == firsts.len() {
            firsts.push(place as i64);
        }
        codes.push(code);
    }
    Some((codes, firsts))
}

/// Return the maximum within any interval, and the index where the interval begins.
///
/// Args:
///     times: Nanoseconds, in ascending order.
///     kept: 0 for events that do not count.
///     costs: The weight of each event; `None` for 1 each.
///     width_ns: The length of the interval, which excludes its end.
#[pyfunction]
#[pyo3(signature = (times, kept, costs, width_ns))]
pub(crate) fn largest_within(
    times: &Bound<'_, PyAny>,
    kept: &Bound<'_, PyAny>,
    costs: Option<&Bound<'_, PyAny>>,
    width_ns: i64,
) -> PyResult<(i64, usize)> {
    let py = times.py();
    let kept: Array<u8> = Array::of("kept", kept)?;
    let given = Given::of(times, None, costs)?;
    let events = given.times.len();
    if kept.len() != events {
        let found = kept.len();
        let message = format!("kept must be as many as times, found {found} for {events}");
        return Err(PyValueError::new_err(message));
    }
    Ok(py.detach(|| {
        let times = given.times.shared();
        let kept = kept.shared();
        match &given.costs {
            None => simulate::largest_within(events, width_ns, |place| {
                (i64::read(&times[place]), i64::from(u8::read(&kept[place]) != 0))
            }),
            Some(costs) => {
                let costs = costs.shared();
                simulate::largest_within(events, width_ns, |place| {
                    let is_kept = u8::read(&kept[place]) != 0;
                    let cost = if is_kept { i64::read(&costs[place]) } else { 0 };
                    (i64::read(&times[place]), cost)
                })
            }
        }
    }))
}
