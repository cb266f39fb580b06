//! The classes `Simulator` and `Totals`.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Array, Column, EventColumns, ResultColumns, column, too_many};
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limit::Limit;
use crate::bindings::limits::Limits;
use crate::engine::registry::{Entry, Rule};
use crate::limiter;
use crate::simulate::{self, Bin, ClientTally, ClientTotals, EventFault, FaultAt, Ids};
use crate::sync::Mutex;

/// The number of events between checks for signals.
const EVENTS_BETWEEN_SIGNALS: usize = 4 << 20;
/// The name given to a limit without a name.
const UNNAMED: &str = "Limit";

#[doc = doc!(Simulator)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Simulator {
    state: Mutex<SimulatorState>,
}

#[derive(Debug)]
struct SimulatorState {
    core: simulate::Simulator,
    /// The ids of the clients added by `number`.
    ids: Ids,
    failed: bool,
}

impl SimulatorState {
    /// Calls `run` for each part of the events, and checks for signals between them.
    fn in_parts(
        &mut self,
        py: Python<'_>,
        events: usize,
        mut run: impl FnMut(&mut simulate::Simulator, Range<usize>) -> Result<(), FaultAt> + Send,
    ) -> PyResult<()> {
        for first in (0..events).step_by(EVENTS_BETWEEN_SIGNALS) {
            let part = first..events.min(first + EVENTS_BETWEEN_SIGNALS);
            let evaluated = py.detach(|| run(&mut self.core, part));
            let evaluated = evaluated.map_err(|FaultAt { position, fault }| {
                event_error(py, FaultAt { position: first + position, fault })
            });
            if let Err(error) = evaluated.and_then(|()| py.check_signals()) {
                self.failed = true;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the entry of the limit that a name selects, or of the only one.
fn entry_of(limits: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<Arc<Entry>> {
    if let Ok(limit) = limits.cast::<Limit>() {
        let limit = limit.get().limit;
        if limit.has_phase_per_key() && name.is_none() {
            let message = "a phase per key is derived from the limit's name and the id; pass name=";
            return Err(raise("LimitError", message));
        }
        let entry = Entry::alone(name.unwrap_or(UNNAMED), Rule::plain(limit));
        return entry
            .map(Arc::new)
            .map_err(|error| raise("ConfigError", &format!("name: {error}")));
    }
    let registry = Limits::registry_of(limits)?;
    match (name, registry.entries()) {
        (None, [entry]) => Ok(Arc::clone(entry)),
        (None, entries) => {
            let found = entries.len();
            let message = format!("pass name= to select a limit, found {found} limits");
            Err(PyValueError::new_err(message))
        }
        (Some(name), _) => {
            let entry = registry.entry(name).map(Arc::clone);
            entry.ok_or_else(|| limiter::unknown_limit(&registry, name).into())
        }
    }
}

/// Returns the exception for an event that cannot be evaluated.
fn event_error(py: Python<'_>, at: FaultAt) -> PyErr {
    let EventFault::Call(_) = at.fault else { return PyValueError::new_err(at.to_string()) };
    let error = PyErr::from(at.fault);
    // If the note cannot be added, the error is still useful.
    let _ = error.add_note(py, format!("this is the event at position {}", at.position));
    error
}

impl Simulator {
    /// Calls `run` with the state, unless the simulator has stopped at an error.
    fn with<T>(&self, run: impl FnOnce(&mut SimulatorState) -> PyResult<T>) -> PyResult<T> {
        self.with_any(|state| {
            if state.failed {
                return Err(PyRuntimeError::new_err(
                    "the simulator stopped at an invalid event; create a new one",
                ));
            }
            run(state)
        })
    }

    /// Calls `run` with the state, even if the simulator has stopped at an error.
    fn with_any<T>(&self, run: impl FnOnce(&mut SimulatorState) -> PyResult<T>) -> PyResult<T> {
        // Not `lock`, because the thread that holds the lock may be waiting for the interpreter.
        let Some(mut state) = self.state.try_lock() else {
            return Err(PyRuntimeError::new_err(
                "the simulator is in use by another thread; use one per thread",
            ));
        };
        run(&mut state)
    }
}

#[pymethods]
impl Simulator {
    #[new]
    #[pyo3(signature = (limits, name = None, *, denies_excess = false))]
    fn new(
        limits: &Bound<'_, PyAny>,
        name: Option<&str>,
        denies_excess: bool,
    ) -> PyResult<Simulator> {
        let core = simulate::Simulator::new(entry_of(limits, name)?, denies_excess);
        let state = SimulatorState { core, ids: Ids::default(), failed: false };
        Ok(Simulator { state: Mutex::new(state) })
    }

    #[doc = doc!(Simulator.name)]
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.with_any(|state| Ok(state.core.entry().name().to_string()))
    }

    #[doc = doc!(Simulator.clients)]
    #[getter]
    fn clients(&self) -> PyResult<usize> {
        self.with_any(|state| Ok(state.core.clients()))
    }

    #[doc = doc!(Simulator.number)]
    #[pyo3(signature = (ids, *, skip_invalid = false))]
    fn number<'py>(&self, ids: &Bound<'py, PyList>, skip_invalid: bool) -> PyResult<Column<'py>> {
        let py = ids.py();
        self.with(|state| {
            let mut numbers = Vec::with_capacity(ids.len());
            for id in ids.iter() {
                let text = id_text(&id)?;
                let number = match state.ids.find(text.as_bytes()) {
                    Some(number) => number,
                    None => match state.core.add(&text) {
                        Ok(()) => state.ids.number(text.as_bytes()).ok_or_else(too_many)?,
                        Err(EventFault::Call(_)) if skip_invalid => u32::MAX,
                        Err(fault) => return Err(fault.into()),
                    },
                };
                numbers.push(number);
            }
            column(py, &numbers)
        })
    }

    #[doc = doc!(Simulator.buckets)]
    fn buckets<'py>(&self, py: Python<'py>, first: usize) -> PyResult<Option<Column<'py>>> {
        self.with(|state| {
            let Some(buckets) = state.core.buckets() else { return Ok(None) };
            column(py, buckets.get(first..).unwrap_or_default()).map(Some)
        })
    }

    #[doc = doc!(Simulator.bucket_id)]
    fn bucket_id(&self, bucket: usize) -> PyResult<String> {
        self.with(|state| {
            let id = state.core.bucket_id(bucket).or_else(|| state.ids.get(bucket));
            let id = id.ok_or_else(|| {
                PyValueError::new_err(format!("there is no bucket with the number {bucket}"))
            })?;
            Ok(String::from_utf8_lossy(id).into_owned())
        })
    }

    #[doc = doc!(Simulator.limit_of)]
    fn limit_of(&self, client: usize) -> PyResult<Limit> {
        self.with(|state| {
            let clients = state.core.clients();
            let limit = state.core.limit_of(client).map(|limit| Limit::from(*limit));
            limit.ok_or_else(|| {
                let message =
                    format!("client number {client} is out of range for {clients} clients");
                PyValueError::new_err(message)
            })
        })
    }

    #[doc = doc!(Simulator.feed)]
    #[expect(clippy::too_many_arguments, reason = "up to four input and four output columns")]
    #[pyo3(signature = (
        times, clients, costs, allowed, remaining = None, retry_after_ns = None,
        reset_after_ns = None, durations = None
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
        durations: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let events = EventColumns::of(times, clients, costs, durations)?;
        let results =
            ResultColumns::of(&events, allowed, remaining, retry_after_ns, reset_after_ns)?;
        self.with(|state| {
            if state.core.has_slots() {
                events.need_durations()?;
            }
            let (events, results) = (events.events(), results.columns());
            state.in_parts(py, events.len(), |core, part| {
                core.run(&events.part(part.clone()), &results.part(part))
            })
        })
    }

    #[doc = doc!(Simulator.tally)]
    fn tally<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        durations: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Column<'py>, Column<'py>)> {
        let py = times.py();
        let events = EventColumns::of(times, clients, costs, durations)?;
        self.with(|state| {
            if state.core.has_slots() {
                events.need_durations()?;
            }
            let (events, mut tallies) = (events.events(), Vec::new());
            state.in_parts(py, events.len(), |core, part| {
                core.tally(&events.part(part), &mut tallies)
            })?;
            let of_clients = |number: fn(&ClientTally) -> i64| {
                column(py, &tallies.iter().map(number).collect::<Vec<_>>())
            };
            Ok((of_clients(|own| own.fewest)?, of_clients(|own| own.denied)?))
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        self.with_any(|state| {
            let (name, clients) = (state.core.entry().name(), state.core.clients());
            Ok(format!("<Simulator {name}, {clients} clients>"))
        })
    }
}

#[doc = doc!(busiest)]
#[pyfunction]
pub(crate) fn busiest<'py>(
    times: &Bound<'py, PyAny>,
    codes: Option<&Bound<'py, PyAny>>,
    costs: Option<&Bound<'py, PyAny>>,
    clients: usize,
    period_ns: i64,
) -> PyResult<Column<'py>> {
    let py = times.py();
    if period_ns < 1 {
        let message = format!("period_ns must be at least 1, found {period_ns}");
        return Err(PyValueError::new_err(message));
    }
    let events = EventColumns::of(times, codes, costs, None)?;
    let found = py.detach(|| simulate::busiest(&events.events(), clients, period_ns));
    column(py, &found.map_err(|fault| event_error(py, fault))?)
}

#[doc = doc!(Totals)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Totals {
    totals: Mutex<simulate::Totals>,
}

#[pymethods]
impl Totals {
    #[new]
    fn new(bounds: Items<i64>, widths: Items<i64>) -> Totals {
        Totals { totals: Mutex::new(simulate::Totals::new(bounds.0, &widths.0)) }
    }

    #[doc = doc!(Totals.add)]
    fn add<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
        retry_after_ns: &Bound<'py, PyAny>,
        durations: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let events = EventColumns::of(times, clients, costs, durations)?;
        let allowed: Array<u8> = events.column("allowed", allowed)?;
        let waits: Array<i64> = events.column("retry_after_ns", retry_after_ns)?;
        py.detach(|| {
            self.totals.lock().add(&events.events(), allowed.shared(), waits.shared());
        });
        Ok(())
    }

    #[doc = doc!(Totals.clients)]
    fn clients<'py>(&self, py: Python<'py>) -> PyResult<[Column<'py>; 4]> {
        let totals = self.totals.lock();
        let of_clients = |number: fn(&ClientTotals) -> i64| {
            column(py, &totals.clients().iter().map(number).collect::<Vec<_>>())
        };
        Ok([
            column(py, totals.events())?,
            of_clients(|client| client.denied)?,
            of_clients(|client| client.longest)?,
            column(py, &totals.most_in_flight_by_client().collect::<Vec<_>>())?,
        ])
    }

    #[doc = doc!(Totals.bins)]
    fn bins<'py>(
        &self,
        py: Python<'py>,
        max_bins: usize,
    ) -> PyResult<(i64, i64, Column<'py>, Column<'py>)> {
        let found = self.totals.lock().bins().within(max_bins);
        let of_bins = |number: fn(&Bin) -> i64| {
            column(py, &found.bins().iter().map(number).collect::<Vec<_>>())
        };
        let (arrivals, denied) = (of_bins(|bin| bin.arrivals)?, of_bins(|bin| bin.denied)?);
        Ok((found.start(), found.width(), arrivals, denied))
    }

    #[doc = doc!(Totals.waits)]
    #[getter]
    fn waits(&self) -> Vec<i64> {
        self.totals.lock().waits().to_vec()
    }

    #[doc = doc!(Totals.peaks)]
    #[getter]
    fn peaks(&self) -> Vec<i64> {
        self.totals.lock().peaks().collect()
    }

    #[doc = doc!(Totals.most_in_flight)]
    #[getter]
    fn most_in_flight(&self) -> i64 {
        self.totals.lock().most_in_flight()
    }
}
