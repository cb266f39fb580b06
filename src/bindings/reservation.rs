//! The tokens of the Python class `Reservation`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::arguments;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::limiter::{self, Answered, Call, Progress, Stage};

/// Tokens of a `penstock.Reservation`, and the limit under which they were taken.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct ReservedTokens {
    handle: Arc<LimiterHandle>,
    /// The limit at the time of the charge. A refund uses it even after a reload.
    bound: Arc<limiter::BoundLimit>,
    entry: Py<LimitEntry>,
    id: Py<PyAny>,
    estimate: i64,
    factor: Option<Factor>,
    decision: Py<Decision>,
    /// Whether tokens were taken.
    is_taken: bool,
    progress: Progress,
}

impl ReservedTokens {
    /// Creates a Python `Reservation` for the answer to a spend of the estimate.
    pub(crate) fn reservation<'py>(
        handle: &Arc<LimiterHandle>,
        (bound, entry): ActiveLimit,
        id: &Bound<'py, PyAny>,
        estimate: i64,
        factor: Option<Factor>,
        answered: Answered,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = id.py();
        let is_taken = answered.answer.allowed();
        let data = DecisionData::new(answered, Verb::Spend, estimate, id, entry.clone_ref(py));
        let tokens = ReservedTokens {
            handle: Arc::clone(handle),
            bound,
            entry,
            id: id.clone().unbind(),
            estimate,
            factor,
            decision: Py::new(py, Decision::new(data))?,
            is_taken,
            progress: Progress::new(),
        };
        py.import("penstock.reservation")?.getattr("Reservation")?.call1((Bound::new(py, tokens)?,))
    }

    /// Replaces the charge of the estimate by one of `actual`. After an error, the reservation is open
    /// again or its stage is unknown.
    fn replace_charge<'py>(&self, py: Python<'py>, actual: i64) -> PyResult<Bound<'py, Decision>> {
        let text = self.handle.check_open().and_then(|()| id_text(self.id.bind(py)));
        let text = text.inspect_err(|_| self.progress.reopen())?;
        let spend = Call { factor: self.factor.as_ref(), ..Call::spend(&text, self.estimate) };
        let decided = self.handle.run(py, |core| core.settle(&self.bound, spend, actual));
        let decided = decided.map_err(|error| {
            self.progress.fail(&error);
            PyErr::from(error)
        })?;
        let entry = self.entry.clone_ref(py);
        let data = DecisionData::given(decided, actual, self.id.bind(py), entry);
        let decision = Bound::new(py, Decision::new(data))?;
        self.handle.wake_after_refund(py, &self.bound, &text)?;
        Ok(decision)
    }
}

#[pymethods]
impl ReservedTokens {
    /// The decision about the estimate.
    #[getter]
    fn decision(&self, py: Python<'_>) -> Py<Decision> {
        self.decision.clone_ref(py)
    }

    /// `"open"`, `"settled"`, `"cancelled"`, `"denied"`, or `"unknown"` if a reply was lost.
    #[getter]
    fn stage(&self) -> &'static str {
        match self.progress.stage() {
            _ if !self.is_taken => "denied",
            Stage::Settled => "settled",
            Stage::Cancelled => "cancelled",
            Stage::Unknown => "unknown",
            Stage::Open => "open",
        }
    }

    /// Settle at the estimate, if it is open.
    fn keep(&self) {
        let _ = self.progress.end(Stage::Settled);
    }

    /// See `Reservation.settle`.
    fn settle<'py>(
        &self,
        py: Python<'py>,
        actual: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        let actual = arguments::saturating("actual", actual)?;
        if !self.is_taken {
            return Ok(self.decision.bind(py).clone());
        }
        match self.progress.end(Stage::Settled) {
            Ok(()) => self.replace_charge(py, actual),
            Err(stage) => {
                let message = match stage {
                    Stage::Cancelled => {
                        "the reservation was cancelled; make a new one to take tokens"
                    }
                    Stage::Unknown => {
                        "the store's reply to an earlier call was lost, so it is unknown what is \
                         charged; settling again could charge twice"
                    }
                    Stage::Open | Stage::Settled => {
                        "the reservation is already settled; it can be settled only once"
                    }
                };
                Err(raise("ReservationError", message))
            }
        }
    }

    /// See `Reservation.cancel`.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.is_taken || self.progress.end(Stage::Cancelled).is_err() {
            return Ok(false);
        }
        self.replace_charge(py, 0)?;
        Ok(true)
    }
}
