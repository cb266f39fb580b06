//! `BoundLimit`, through which every call about one bucket goes.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::clock::AnyClock;
use crate::bindings::decision::{Decision, DecisionData, StaleRefs};
use crate::bindings::decisions::Decisions;
use crate::bindings::errors::{ToPyErr, with_cost};
use crate::bindings::hints::not_picklable;
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::pool::{DecisionPool, Shared};
use crate::bindings::reservation::Reservation;
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter;
use crate::store::StoreError;
use crate::store::memory::MemoryStore;
use crate::sync::{AtomicBool, Ordering};

/// A limiter of the core, as Python uses it.
pub(crate) struct LimiterHandle {
    pub(crate) core: limiter::Limiter<MemoryStore, AnyClock>,
    closed: AtomicBool,
    clock: Py<PyAny>,
    /// The lines of those who wait for a turn, made when the first one does.
    lines: PyOnceLock<Py<PyAny>>,
}

// PyO3's lock has no such form of its own.
impl fmt::Debug for LimiterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimiterHandle { core, closed, .. } = self;
        f.debug_struct("LimiterHandle")
            .field("core", core)
            .field("closed", closed)
            .finish_non_exhaustive()
    }
}

impl LimiterHandle {
    pub(crate) fn new(
        core: limiter::Limiter<MemoryStore, AnyClock>,
        clock: &Bound<'_, PyAny>,
    ) -> LimiterHandle {
        let (closed, clock) = (AtomicBool::new(false), clock.clone().unbind());
        LimiterHandle { core, closed, clock, lines: PyOnceLock::new() }
    }

    pub(crate) fn refuse_closed(&self) -> PyResult<()> {
        // Relaxed: closing orders nothing but itself.
        if self.closed.load(Ordering::Relaxed) {
            Err(StoreError::Closed.to_py_err())
        } else {
            Ok(())
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.core.invalidate();
    }
}

/// The limit as it is in force, and since which reload.
#[derive(Debug)]
struct Current {
    generation: u64,
    bound: Arc<limiter::BoundLimit<MemoryStore>>,
    entry: Py<LimitEntry>,
}

/// One limit of a limiter: the fast path.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct BoundLimit {
    handle: Arc<LimiterHandle>,
    pub(crate) name: Py<PyString>,
    current: Shared<Current>,
    decisions: DecisionPool,
}

impl Current {
    fn of(py: Python<'_>, handle: &LimiterHandle, name: &Py<PyString>) -> PyResult<Arc<Current>> {
        // First the number, then the limits: a reload in between leaves an old number, which the
        // next call notices.
        let generation = handle.core.generation();
        let snapshot = handle.core.snapshot();
        let bound = snapshot.limit(name.bind(py).to_str()?).map_err(|error| error.to_py_err())?;
        let entry = LimitEntry::new(py, name.clone_ref(py), Arc::clone(bound.entry()));
        Ok(Arc::new(Current { generation, bound: Arc::clone(bound), entry: Py::new(py, entry)? }))
    }
}

/// A decision, or what one is to be made of where other Python code may run.
enum Answer<'py> {
    Filled((Bound<'py, Decision>, StaleRefs)),
    New(Box<DecisionData>),
}

#[cold]
fn raised(error: &limiter::CallError) -> PyErr {
    error.to_py_err()
}

impl BoundLimit {
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        name: &Bound<'_, PyString>,
    ) -> PyResult<BoundLimit> {
        handle.refuse_closed()?;
        let (py, name) = (name.py(), name.clone().unbind());
        let current = Current::of(py, handle, &name)?;
        let (handle, decisions) = (Arc::clone(handle), DecisionPool::default());
        Ok(BoundLimit { handle, name, current: Shared::new(current), decisions })
    }

    /// Takes the limit as it is in force now, if it was replaced.
    #[inline]
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let generation = self.handle.core.generation();
        if self.current.with(py, |current| current.generation == generation) {
            Ok(())
        } else {
            self.renew(py)
        }
    }

    #[cold]
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        // Closing counts as a reload, so that a call need not ask for it besides.
        self.handle.refuse_closed()?;
        self.current.replace(py, Current::of(py, &self.handle, &self.name)?);
        Ok(())
    }

    /// The limit in force, for calls about several buckets.
    pub(crate) fn snapshot(
        &self,
        py: Python<'_>,
    ) -> PyResult<(Arc<limiter::BoundLimit<MemoryStore>>, Py<LimitEntry>)> {
        self.refresh(py)?;
        Ok(self
            .current
            .with(py, |current| (Arc::clone(&current.bound), current.entry.clone_ref(py))))
    }

    /// Does `verb` to the bucket of `id`.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        verb: Verb,
        id: &Bound<'py, PyAny>,
        cost: i64,
        factor: Option<&Factor>,
    ) -> PyResult<Bound<'py, Decision>> {
        let text = id_text(id)?;
        self.call_text(verb, &text, id, cost, factor)
    }

    /// Does `verb` to the bucket of `id`, whose text is `text`.
    #[inline(always)]
    pub(crate) fn call_text<'py>(
        &self,
        verb: Verb,
        text: &str,
        id: &Bound<'py, PyAny>,
        cost: i64,
        factor: Option<&Factor>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = id.py();
        self.refresh(py)?;
        let answer = self.current.with(py, |current| -> Result<Answer<'py>, limiter::Failure> {
            let core = &self.handle.core;
            match self.decisions.idle(py) {
                Some(idle) => {
                    let (decision, stale) = idle.fill(|content| {
                        core.decide_into(
                            &current.bound,
                            verb,
                            text,
                            cost,
                            factor,
                            &mut content.decided,
                        )?;
                        Ok(content.refill(cost, id, &current.entry))
                    });
                    stale.map(|stale| Answer::Filled((decision, stale)))
                }
                None => {
                    let decided = core.decide(&current.bound, verb, text, cost, factor)?;
                    Ok(Answer::New(DecisionData::boxed(
                        decided,
                        cost,
                        id,
                        current.entry.clone_ref(py),
                    )))
                }
            }
        });
        match answer {
            Ok(Answer::Filled((decision, stale))) => {
                stale.drop(py);
                Ok(decision)
            }
            Ok(Answer::New(content)) => self.decisions.make(py, *content),
            Err(error) => Err(raised(&error)),
        }
    }

    /// Checks that this limit accepts the id.
    pub(crate) fn check_id(&self, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (_, entry) = self.snapshot(id.py())?;
        let entry = &entry.get().entry;
        let accepted = entry.canonical(&id_text(id)?).map(|_| ());
        accepted.map_err(|error| limiter::invalid_id(entry, error).to_py_err())
    }

    fn call_with<'py>(
        &self,
        verb: Verb,
        id: &Bound<'py, PyAny>,
        cost: &Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        let tokens = cost.given().map_or(Ok(1), |cost| arguments::saturating("cost", cost))?;
        let factor = factor.map_or(Ok(None), arguments::factor)?;
        let decision = self.call(verb, id, tokens, factor.as_ref());
        decision.map_err(|error| with_cost(error, cost.given()))
    }
}

// `spend` and `check` are attached by `fastcall.rs`.
#[pymethods]
impl BoundLimit {
    /// The limit's name.
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    /// Give `cost` tokens back to the bucket of `id`.
    ///
    /// Never above full; `allowed` says whether anything was given back. Raises as `spend` does.
    #[pyo3(signature = (id, cost = Argument::Missing, factor = None))]
    #[pyo3(text_signature = "($self, id, cost=1, factor=None)")]
    pub(crate) fn refund<'py>(
        &self,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        self.call_with(Verb::Refund, id, &cost, factor)
    }

    /// Forget the bucket of `id`; whether there was one.
    pub(crate) fn reset(&self, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = id.py();
        self.refresh(py)?;
        let text = id_text(id)?;
        let forgotten =
            self.current.with(py, |current| self.handle.core.reset(&current.bound, &text));
        forgotten.map_err(|error| error.to_py_err())
    }

    /// Return the bucket of `id` as it is now, without taking anything.
    ///
    /// The same as a `check` of cost 0.
    pub(crate) fn peek<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call(Verb::Check, id, 0, None)
    }

    /// Decide for many ids, each on its own, at one instant.
    #[pyo3(signature = (ids, costs = None))]
    pub(crate) fn spend_each<'py>(
        &self,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decisions> {
        let py = ids.py();
        let (bound, entry) = self.snapshot(py)?;
        Decisions::spend(&self.handle.core, &bound, entry, ids, costs)
    }

    /// Take `estimate` tokens before the cost is known; settle it once it is.
    ///
    /// As `Limiter.reserve`, without the name.
    #[pyo3(signature = (id, estimate = Argument::Missing, *, factor = None))]
    #[pyo3(text_signature = "($self, id, estimate=1, *, factor=None)")]
    pub(crate) fn reserve<'py>(
        &self,
        id: &Bound<'py, PyAny>,
        estimate: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let estimate = estimate.given();
        let estimate = estimate.map_or(Ok(1), |cost| arguments::saturating("estimate", cost))?;
        let factor = factor.map_or(Ok(None), arguments::factor)?;
        let (text, snapshot) = (id_text(id)?, self.snapshot(id.py())?);
        let core = &self.handle.core;
        let decided = core.decide(&snapshot.0, Verb::Spend, &text, estimate, factor.as_ref());
        let decided = decided.map_err(|error| raised(&error))?;
        Reservation::new(&self.handle, snapshot, id, estimate, factor, decided)
    }

    /// Wait until the bucket of `id` has `cost` tokens, and take them.
    ///
    /// As `Limiter.acquire`, without the name.
    #[pyo3(signature = (id, cost = Argument::Missing, timeout = None))]
    #[pyo3(text_signature = "($self, id, cost=1, timeout=None)")]
    pub(crate) fn acquire<'py>(
        slf: &Bound<'py, Self>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let cost = cost.given().map_or(Ok(1), |cost| arguments::saturating("cost", cost))?;
        let timeout_ns = timeout.map_or(Ok(None), arguments::timeout)?;
        let waiting = slf.py().import("penstock.wait_queue")?;
        waiting.call_method1("acquire", (slf, id, cost, timeout_ns))
    }

    /// The lines of those who wait at this limiter.
    #[getter]
    fn _lines<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let lines = self.handle.lines.get_or_try_init(py, || {
            let made = py.import("penstock.wait_queue")?.getattr("WaitQueues")?;
            made.call1((&self.handle.clock,)).map(Bound::unbind)
        })?;
        Ok(lines.bind(py).clone())
    }

    /// Take a place in the line of `id`: as a reservation, with the wait for its turn, and how much
    /// earlier others come for each token of it that is given back.
    fn _place<'py>(
        &self,
        id: &Bound<'py, PyAny>,
        cost: i64,
    ) -> PyResult<(Bound<'py, Reservation>, i64, Option<i64>)> {
        let (text, snapshot) = (id_text(id)?, self.snapshot(id.py())?);
        let place = self.handle.core.place(&snapshot.0, &text, cost);
        let place = place.map_err(|error| raised(&error))?;
        let (wait, interval) = (place.wait.get(), place.interval.map(Nanos::get));
        let taken = Reservation::new(&self.handle, snapshot, id, cost, None, place.decided)?;
        Ok((taken, wait, interval))
    }

    /// Give the turn of the last of `costs` in the line of `id`, as an instant and a state.
    fn _turn<'py>(
        &self,
        id: &Bound<'py, PyAny>,
        costs: Vec<i64>,
        after: Option<(i64, u64)>,
    ) -> PyResult<Option<(i64, u64)>> {
        let (text, snapshot) = (id_text(id)?, self.snapshot(id.py())?);
        let after = after.and_then(|(instant, word)| {
            Some((Timestamp::new(instant).ok()?, State::from_word(word)?))
        });
        let turn = self.handle.core.turn(&snapshot.0, &text, &costs, after);
        let turn = turn.map_err(|error| raised(&error))?;
        Ok(turn.map(|(instant, state)| (instant.get(), state.word())))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable(
            "BoundLimit",
            "pickle the limits of its Limiter, and call `limiter.limit(name)` in the other process",
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<BoundLimit {}>", self.name.bind(py).repr()?))
    }
}

/// Give a timeout in nanoseconds; `None` for none.
#[pyfunction]
pub(crate) fn _timeout_ns(timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<i64>> {
    timeout.map_or(Ok(None), arguments::timeout)
}
