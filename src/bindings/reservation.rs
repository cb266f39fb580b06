//! The class `Reservation`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::arguments;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{not_picklable, raise};
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::limiter::{self, Answered, Call, Progress, Stage};

/// Tokens taken before the actual cost is known.
///
/// `bool(reservation)` is whether they were allowed. As a context manager, with `with` or `async
/// with`, a denied reservation raises `RateLimited` on entry. If the body does not settle it, it is
/// settled at the estimate; an exception cancels it.
///
/// Examples:
///     >>> clock = penstock.ManualClock()
///     >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
///     >>> with limiter.reserve("Tokens", "ada", 600) as reservation:
///     ...     decision = reservation.settle(450)
///     >>> decision.remaining
///     550
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Reservation {
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

impl Reservation {
    /// Creates a reservation for the answer to a spend of the estimate.
    pub(crate) fn new<'py>(
        handle: &Arc<LimiterHandle>,
        (bound, entry): ActiveLimit,
        id: &Bound<'py, PyAny>,
        estimate: i64,
        factor: Option<Factor>,
        answered: Answered,
    ) -> PyResult<Bound<'py, Reservation>> {
        let py = id.py();
        let is_taken = answered.answer.allowed();
        let data = DecisionData::new(answered, Verb::Spend, estimate, id, entry.clone_ref(py));
        let reservation = Reservation {
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
        Bound::new(py, reservation)
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
impl Reservation {
    /// The decision about the estimate.
    #[getter]
    fn decision(&self, py: Python<'_>) -> Py<Decision> {
        self.decision.clone_ref(py)
    }

    /// The tokens that were reserved.
    #[getter]
    fn estimate(&self) -> i64 {
        self.estimate
    }

    /// Replace the estimate by `actual` tokens: return the difference, or charge it.
    ///
    /// `actual` may exceed the burst. The charge overdraws the bucket by at most one full bucket;
    /// the rest is not taken. While the bucket is overdrawn, every spend is denied (a window
    /// forgets the overdraft when it ends). A denied reservation has taken no tokens, and `settle`
    /// returns its denied decision.
    ///
    /// Args:
    ///     actual: Tokens, at least 0.
    ///
    /// Returns:
    ///     The decision, which is allowed if all of `actual` has been taken. After a charge,
    ///     `retry_after` is the time until the bucket is no longer overdrawn. `cost` is `actual`.
    ///
    /// Raises:
    ///     ReservationError: The reservation is already settled or cancelled, or the store's reply
    ///         was lost.
    ///     CostNegative: `actual` is below 0.
    ///     StoreError: The store failed. The reservation can be settled later, unless the reply was
    ///         lost (`StoreTimeout`): then it is unknown what is charged.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Tokens": "60/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.reserve("Tokens", "ada", 50).settle(75).retry_after
    ///     15.0
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

    /// Refund all reserved tokens, and return whether there were any.
    ///
    /// Has no effect after the reservation was settled, cancelled or denied.
    ///
    /// Raises:
    ///     StoreError: The store failed. The reservation can be cancelled later.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.is_taken || self.progress.end(Stage::Cancelled).is_err() {
            return Ok(false);
        }
        self.replace_charge(py, 0)?;
        Ok(true)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.decision.bind(py).is_truthy()
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().decision.bind(slf.py()).call_method0("raise_if_denied")?;
        Ok(slf)
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __exit__(
        &self,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (_, _, py) = (exc_type, traceback, exc.py());
        if exc.is_none() {
            let _ = self.progress.end(Stage::Settled);
            return Ok(());
        }
        if let Err(error) = self.cancel(py) {
            // The exception of the body takes precedence.
            let note = format!("the reservation could not be cancelled: {}", error.value(py));
            exc.call_method1("add_note", (note,))?;
        }
        Ok(())
    }

    fn __aenter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let entered = Reservation::__enter__(slf)?;
        ready(entered.as_any())
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __aexit__<'py>(
        &self,
        exc_type: &Bound<'py, PyAny>,
        exc: &Bound<'py, PyAny>,
        traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.__exit__(exc_type, exc, traceback)?;
        ready(exc.py().None().bind(exc.py()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Reservation", "settle or cancel it in the process that reserved"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let stage = match self.progress.stage() {
            _ if !self.is_taken => "denied",
            Stage::Settled => "settled",
            Stage::Cancelled => "cancelled",
            Stage::Unknown => "unknown",
            Stage::Open => "open",
        };
        let (name, id) = (self.entry.get().name.bind(py), self.id.bind(py).str()?);
        let id: String = id.to_string_lossy().chars().take(60).collect();
        Ok(format!("<Reservation {name} {}: {}, {stage}>", id.escape_debug(), self.estimate))
    }
}

/// Returns an awaitable that completes immediately with `value`.
fn ready<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("penstock.wait_queue")?.call_method1("Ready", (value,))
}
