//! The class `Simulator`.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::bindings::arrays::{Array, Column, EventColumns, ResultColumns, column, id_list};
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limit::Limit;
use crate::bindings::limits::Limits;
use crate::engine::registry::{Entry, Rule};
use crate::limiter;
use crate::simulate::{self, Bin, ClientTally, ClientTotals, EventFault, FaultAt};
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
    /// The totals of the events that `count` evaluated.
    totals: simulate::Totals,
    failed: bool,
}

impl SimulatorState {
    /// Calls `run` for each part of the events, and checks for signals between them.
    fn in_parts(
        &mut self,
        py: Python<'_>,
        events: usize,
        mut run: impl FnMut(&mut SimulatorState, Range<usize>) -> Result<(), FaultAt> + Send,
    ) -> PyResult<()> {
        for first in (0..events).step_by(EVENTS_BETWEEN_SIGNALS) {
            let part = first..events.min(first + EVENTS_BETWEEN_SIGNALS);
            let evaluated = py.detach(|| run(self, part));
            let evaluated = evaluated.map_err(|fault| event_error(py, fault.after(first)));
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
        let state = SimulatorState { core, totals: simulate::Totals::default(), failed: false };
        Ok(Simulator { state: Mutex::new(state) })
    }

    #[doc = doc!(Simulator.number)]
    #[pyo3(signature = (ids, *, skip_invalid = false))]
    fn number<'py>(&self, ids: &Bound<'py, PyList>, skip_invalid: bool) -> PyResult<Column<'py>> {
        self.with(|state| {
            let numbers = ids.iter().map(|id| match state.core.number(&id_text(&id)?) {
                Err(EventFault::Call(_)) if skip_invalid => Ok(u32::MAX),
                numbered => numbered.map_err(PyErr::from),
            });
            column(ids.py(), &numbers.collect::<PyResult<Vec<_>>>()?)
        })
    }

    #[doc = doc!(Simulator.ids)]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.with(|state| id_list(py, state.core.ids()))
    }

    #[doc = doc!(Simulator.limit_of)]
    fn limit_of(&self, client: usize) -> PyResult<Limit> {
        self.with(|state| {
            let clients = state.core.ids().len();
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
        times, clients, costs, durations, allowed, remaining = None, retry_after_ns = None,
        reset_after_ns = None
    ))]
    fn feed<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        durations: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
        remaining: Option<&Bound<'py, PyAny>>,
        retry_after_ns: Option<&Bound<'py, PyAny>>,
        reset_after_ns: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let events = EventColumns::of(times, clients, costs, durations)?;
        let results =
            ResultColumns::of(&events, allowed, remaining, retry_after_ns, reset_after_ns)?;
        self.with(|state| {
            events.check_for(&state.core)?;
            let (events, results) = (events.events(), results.columns());
            state.in_parts(py, events.len(), |state, part| {
                state.core.run(&events.part(part.clone()), &results.part(part))
            })
        })
    }

    #[doc = doc!(Simulator.count)]
    fn count<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        durations: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let events = EventColumns::of(times, clients, costs, durations)?;
        let allowed: Array<u8> = events.result("allowed", allowed)?;
        self.with(|state| {
            events.check_for(&state.core)?;
            let (events, allowed) = (events.events(), allowed.shared());
            state.in_parts(times.py(), events.len(), |state, part| {
                let SimulatorState { core, totals, .. } = state;
                totals.count(core, &events.part(part.clone()), &allowed[part])
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
            events.check_for(&state.core)?;
            let (events, mut tallies) = (events.events(), Vec::new());
            state.in_parts(py, events.len(), |state, part| {
                state.core.tally(&events.part(part), &mut tallies)
            })?;
            let of_clients = |number: fn(&ClientTally) -> i64| {
                column(py, &tallies.iter().map(number).collect::<Vec<_>>())
            };
            Ok((of_clients(|own| own.fewest)?, of_clients(|own| own.denied)?))
        })
    }

    #[doc = doc!(Simulator.totals)]
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.with(|state| {
            let totals = &state.totals;
            let of_clients = |number: fn(&ClientTotals) -> i64| {
                column(py, &totals.clients().iter().map(number).collect::<Vec<_>>())
            };
            let (first_ns, last_ns) = totals.range().unwrap_or_default();
            Ok(dict! {
                py,
                "events": column(py, totals.events())?,
                "denied": of_clients(|client| client.denied)?,
                "longest_wait_ns": of_clients(|client| client.longest)?,
                "in_flight": column(py, &totals.most_in_flight_by_client().collect::<Vec<_>>())?,
                "most_in_flight": totals.most_in_flight(),
                "peaks": totals.peaks(),
                "waits": totals.waits().collect::<Vec<_>>(),
                "excess": totals.excess(),
                "first_ns": first_ns,
                "last_ns": last_ns,
            })
        })
    }

    #[doc = doc!(Simulator.bins)]
    fn bins<'py>(
        &self,
        py: Python<'py>,
        max_bins: usize,
    ) -> PyResult<(i64, i64, Column<'py>, Column<'py>)> {
        self.with(|state| {
            let found = state.totals.bins().within(max_bins);
            let of_bins = |number: fn(&Bin) -> i64| {
                column(py, &found.bins().iter().map(number).collect::<Vec<_>>())
            };
            let (arrivals, denied) = (of_bins(|bin| bin.arrivals)?, of_bins(|bin| bin.denied)?);
            Ok((found.start(), found.width(), arrivals, denied))
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        self.with_any(|state| {
            let (name, clients) = (state.core.entry().name(), state.core.ids().len());
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
