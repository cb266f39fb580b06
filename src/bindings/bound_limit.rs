//! `BoundLimit`, through which every call about one bucket goes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::clock::AnyClock;
use crate::bindings::decision::{Content, Decision, Released};
use crate::bindings::decisions::Decisions;
use crate::bindings::errors::ToPyErr;
use crate::bindings::pool::{DecisionPool, Shared};
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::engine::registry::Entry;
use crate::limiter;
use crate::store::StoreError;
use crate::store::memory::MemoryStore;
use crate::sync::{AtomicBool, Ordering};

/// A limiter of the core, as Python uses it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) core: limiter::Limiter<MemoryStore, AnyClock>,
    closed: AtomicBool,
}

impl Opened {
    pub(crate) fn new(core: limiter::Limiter<MemoryStore, AnyClock>) -> Opened {
        Opened { core, closed: AtomicBool::new(false) }
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

/// What a decision needs of its limit to tell its name, its id and its texts: no way back to the
/// limiter, so that a kept decision keeps no limiter.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct LimitEntry {
    pub(crate) name: Py<PyString>,
    pub(crate) entry: Arc<Entry>,
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
    opened: Arc<Opened>,
    pub(crate) name: Py<PyString>,
    current: Shared<Current>,
    decisions: DecisionPool,
}

impl Current {
    fn of(py: Python<'_>, opened: &Opened, name: &Py<PyString>) -> PyResult<Arc<Current>> {
        // First the number, then the limits: a reload in between leaves an old number, which the
        // next call notices.
        let generation = opened.core.generation();
        let in_force = opened.core.in_force();
        let bound = in_force.limit(name.bind(py).to_str()?).map_err(|error| error.to_py_err())?;
        let entry = LimitEntry { name: name.clone_ref(py), entry: Arc::clone(bound.entry()) };
        Ok(Arc::new(Current { generation, bound: Arc::clone(bound), entry: Py::new(py, entry)? }))
    }
}

/// A decision, or what one is to be made of where other Python code may run.
enum Answer<'py> {
    Filled((Bound<'py, Decision>, Released)),
    New(Box<Content>),
}

#[cold]
fn raised(error: &limiter::CallError) -> PyErr {
    error.to_py_err()
}

impl BoundLimit {
    pub(crate) fn new(opened: &Arc<Opened>, name: &Bound<'_, PyString>) -> PyResult<BoundLimit> {
        opened.refuse_closed()?;
        let (py, name) = (name.py(), name.clone().unbind());
        let current = Current::of(py, opened, &name)?;
        let (opened, decisions) = (Arc::clone(opened), DecisionPool::default());
        Ok(BoundLimit { opened, name, current: Shared::new(current), decisions })
    }

    /// Takes the limit as it is in force now, if it was replaced.
    #[inline]
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let generation = self.opened.core.generation();
        if self.current.with(py, |current| current.generation == generation) {
            Ok(())
        } else {
            self.renew(py)
        }
    }

    #[cold]
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        // Closing counts as a reload, so that a call need not ask for it besides.
        self.opened.refuse_closed()?;
        self.current.replace(py, Current::of(py, &self.opened, &self.name)?);
        Ok(())
    }

    /// The limit in force, for calls about several buckets.
    pub(crate) fn in_force(
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
        let text = arguments::id_text(id)?;
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
            let core = &self.opened.core;
            match self.decisions.idle(py) {
                Some(idle) => {
                    let (decision, released) = idle.fill(|content| {
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
                    released.map(|released| Answer::Filled((decision, released)))
                }
                None => {
                    let decided = core.decide(&current.bound, verb, text, cost, factor)?;
                    Ok(Answer::New(Content::boxed(decided, cost, id, current.entry.clone_ref(py))))
                }
            }
        });
        match answer {
            Ok(Answer::Filled((decision, released))) => {
                released.drop(py);
                Ok(decision)
            }
            Ok(Answer::New(content)) => self.decisions.make(py, *content),
            Err(error) => Err(raised(&error)),
        }
    }

    fn call_with<'py>(
        &self,
        verb: Verb,
        id: &Bound<'py, PyAny>,
        cost: &Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        let cost = cost.given().map_or(Ok(1), |cost| arguments::saturating("cost", cost))?;
        let factor = factor.map_or(Ok(None), arguments::factor)?;
        self.call(verb, id, cost, factor.as_ref())
    }
}

// `spend` and `check` are attached by `hot.rs`.
#[pymethods]
impl BoundLimit {
    /// The limit's name.
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    /// Give `cost` tokens back to the bucket of `id`.
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
        let text = arguments::id_text(id)?;
        let forgotten =
            self.current.with(py, |current| self.opened.core.reset(&current.bound, &text));
        forgotten.map_err(|error| error.to_py_err())
    }

    /// Decide for many ids, each on its own, at one instant.
    #[pyo3(signature = (ids, costs = None))]
    pub(crate) fn spend_each<'py>(
        &self,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decisions> {
        let py = ids.py();
        let (bound, entry) = self.in_force(py)?;
        Decisions::spend(&self.opened.core, &bound, entry, ids, costs)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<BoundLimit {}>", self.name.bind(py).repr()?))
    }
}
