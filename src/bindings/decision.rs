//! The class `Decision`.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::bindings::arguments::{self, Argument, Items, seconds};
use crate::bindings::decision_data::{DecisionData, Rare};
use crate::bindings::errors::raise;
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::once::Once;
use crate::bindings::pickled_decision::PickledDecision;
use crate::engine::answer::Answer;
use crate::engine::cost::CostError;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{Answered, AnsweredAll, CallError};

/// Outcome of a rate-limit check, with the values for its response headers.
///
/// `bool(decision)` is `decision.allowed`. Decisions are immutable, compare by value and can be
/// pickled. Times are in seconds, or in nanoseconds if the name ends in `_ns`.
///
/// Examples:
///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
///     >>> limiter.spend("Orders", "ada")
///     <Decision Orders ada: allowed, remaining=1, reset_after=30s>
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) data: DecisionData,
}

impl Decision {
    #[inline]
    pub(crate) fn new(data: DecisionData) -> Decision {
        Decision { data }
    }

    /// Returns whether the cost was taken from a bucket.
    pub(crate) fn is_taken(&self, py: Python<'_>) -> bool {
        self.data.is_allowed_by_limit() && !self.data.decision(py).unlimited
    }

    /// Returns the address of the data, for the pool.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline(always)]
    pub(crate) fn data_address(&self) -> usize {
        std::ptr::from_ref(&self.data).addr()
    }
}

#[pymethods]
impl Decision {
    /// Whether the request may proceed.
    ///
    /// A limit in shadow mode never makes this false; see `would_deny`. The decision of a refund is
    /// allowed if tokens were returned.
    #[getter]
    fn allowed(&self) -> bool {
        self.data.allowed()
    }

    /// Whether a limit in shadow mode would have denied the request.
    ///
    /// For a decision about several limits: whether any of them would have.
    #[getter]
    fn would_deny(&self, py: Python<'_>) -> bool {
        match self.data.parts() {
            None => self.data.answered.shadow && !self.data.is_allowed_by_limit(),
            Some(parts) => parts
                .bind(py)
                .iter_borrowed()
                .any(|part| part.cast::<Decision>().is_ok_and(|part| part.get().would_deny(py))),
        }
    }

    /// Whether the limit is in shadow mode, so that it never denies.
    ///
    /// False for a refund, and for a decision about several limits.
    #[getter]
    fn shadow_mode(&self) -> bool {
        self.data.parts().is_none() && self.data.answered.shadow
    }

    /// Tokens left in the bucket after this decision; 2**63 - 1 if no limit applies.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).remaining
    }

    /// Seconds until the same request could be allowed, even if this one was allowed.
    ///
    /// 0 if it could be allowed immediately. If this request was allowed, the client need not wait:
    /// the value is the wait for a *second* request of the same cost, if nothing else is spent.
    #[getter]
    fn retry_after(&self, py: Python<'_>) -> f64 {
        seconds(self.data.decision(py).retry_after.get())
    }

    /// Nanoseconds until the same request could be allowed; see `retry_after`.
    #[getter]
    fn retry_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).retry_after.get()
    }

    /// Time when the same request could be allowed, in Unix seconds on the limiter's clock.
    #[getter]
    fn retry_at(&self, py: Python<'_>) -> f64 {
        self.data.after(py, |decision| decision.retry_after)
    }

    /// Seconds until the bucket is full again, if nothing else is spent.
    ///
    /// For a window: until it ends.
    #[getter]
    fn reset_after(&self, py: Python<'_>) -> f64 {
        seconds(self.data.decision(py).reset_after.get())
    }

    /// Nanoseconds until the bucket is full again; see `reset_after`.
    #[getter]
    fn reset_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).reset_after.get()
    }

    /// Time when the bucket is full again, in Unix seconds on the limiter's clock.
    #[getter]
    fn reset_at(&self, py: Python<'_>) -> f64 {
        self.data.after(py, |decision| decision.reset_after)
    }

    /// Nanoseconds until `remaining` grows by one token; 0 if it cannot grow.
    #[getter]
    fn next_token_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).next_token_after.get()
    }

    /// Time of the decision, in nanoseconds on the limiter's clock.
    #[getter]
    fn now_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).now.get()
    }

    /// The limit that was applied.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Limit> {
        self.data.limit(py)
    }

    /// The limit's name; `None` if no limit applied.
    #[getter]
    fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.data.name(py)
    }

    /// The id in canonical form; `None` if no limit applied.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.id(py)
    }

    /// Cost of the request in tokens.
    #[getter]
    fn cost(&self) -> i64 {
        self.data.cost
    }

    /// Whether no limit applies to this id.
    #[getter]
    fn unlimited(&self, py: Python<'_>) -> bool {
        self.data.decision(py).unlimited
    }

    /// Why a fallback policy decided instead of the store; `None` if the store decided.
    #[getter]
    fn degraded(&self) -> Option<&str> {
        self.data.degraded()
    }

    /// The limit's description from the limits file; `None` if it has none.
    #[getter]
    fn description(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.rule_text(py, |rule| rule.description.clone())
    }

    /// The URL of the limit's documentation, from the limits file; `None` if it has none.
    #[getter]
    fn docs(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.rule_text(py, |rule| rule.docs.clone())
    }

    /// The name of the limit that the numbers belong to; `None` if no limit applied.
    ///
    /// In a decision about several limits, this is the strictest one.
    #[getter]
    fn binding(&self, py: Python<'_>) -> Option<Py<PyString>> {
        if self.data.decision(py).unlimited { None } else { self.name(py) }
    }

    /// The decisions of all transactions, in order; for a single call, only this decision.
    #[getter]
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        match slf.get().data.parts() {
            Some(parts) => Ok(parts.bind(slf.py()).clone()),
            None => PyTuple::new(slf.py(), [slf]),
        }
    }

    /// Return the response headers in one or several styles.
    ///
    /// Args:
    ///     style: Name of a style, or several names. docs/headers.md lists the styles.
    ///
    /// Raises:
    ///     ConfigError: No style has this name, or two styles write the same field.
    ///
    /// Examples:
    ///     >>> clock = penstock.ManualClock()
    ///     >>> limiter = penstock.Limiter({"Orders": "6/minute"}, clock=clock)
    ///     >>> limiter.spend("Orders", "ada").headers()["RateLimit"]
    ///     '"Orders";r=5;t=10'
    #[pyo3(signature = (style = Argument::Missing), text_signature = "($self, style='ietf')")]
    fn headers<'py>(slf: &Bound<'py, Self>, style: Argument<'py>) -> PyResult<Bound<'py, PyAny>> {
        static HEADERS: Once<Py<PyAny>> = Once::new();
        let headers = HEADERS.import(slf.py(), "penstock.headers", "headers")?;
        match style.given() {
            None => headers.call1((slf, "ietf")),
            Some(style) => headers.call1((slf, style)),
        }
    }

    /// Return the decision as a dictionary that `json.dumps` accepts.
    ///
    /// The keys are the names of the attributes. A decision about several limits also has `parts`,
    /// a list of such dictionaries.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> decision = limiter.spend("Orders", "ada").as_dict()
    ///     >>> decision["allowed"], decision["remaining"], decision["reset_at"]
    ///     (True, 1, 30.0)
    fn as_dict<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        const NAMES: [&str; 12] = [
            "allowed",
            "would_deny",
            "name",
            "id",
            "cost",
            "remaining",
            "retry_after",
            "reset_after",
            "retry_at",
            "reset_at",
            "unlimited",
            "degraded",
        ];
        let py = slf.py();
        let fields = PyDict::new(py);
        for name in NAMES {
            fields.set_item(name, slf.getattr(name)?)?;
        }
        if let Some(parts) = slf.get().data.parts() {
            let list = PyList::empty(py);
            for part in parts.bind(py) {
                list.append(Decision::as_dict(part.cast::<Decision>()?)?)?;
            }
            fields.set_item("parts", list)?;
        }
        Ok(fields)
    }

    /// Raise `RateLimited` if the request was denied.
    ///
    /// Raises:
    ///     RateLimited: The request was denied. The exception has the decision.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.spend("Orders", "ada").raise_if_denied()
    ///     >>> try:
    ///     ...     limiter.spend("Orders", "ada").raise_if_denied()
    ///     ... except penstock.RateLimited as error:
    ///     ...     error.decision.retry_after
    ///     60.0
    pub(crate) fn raise_if_denied(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, decision) = (slf.py(), slf.get());
        if decision.allowed() {
            return Ok(());
        }
        let name = decision.name(py).map_or_else(String::new, |name| format!(" by {name}"));
        let wait = decision.data.decision(py).retry_after;
        let message = format!("denied{name}; retry in {wait}");
        let exception =
            py.import("penstock.errors")?.getattr("RateLimited")?.call1((message, slf))?;
        Err(PyErr::from_value(exception))
    }

    /// Replace the reserved cost of the request by its actual cost.
    ///
    /// For the view of a web application whose limit has `reserve=True` and no `deduct_when` or
    /// `cost_from_response`. The header fields of the response show the result. A view that has
    /// started to stream its response can still settle.
    ///
    /// Args:
    ///     actual: Tokens, at least 0; more than the limit's burst leaves a debt.
    ///
    /// Raises:
    ///     ReservationError: The request has no reservation.
    ///     CostNegative: `actual` is below 0.
    fn settle(&self, py: Python<'_>, actual: &Bound<'_, PyAny>) -> PyResult<()> {
        let actual = arguments::saturating("actual", actual)?;
        if actual < 0 {
            let limit = self.name(py).map_or_else(String::new, |name| name.to_string());
            let source = CostError::Negative { found: actual };
            return Err(Box::new(CallError::Cost { limit, source }).into());
        }
        match self.data.rare.as_ref().and_then(|rare| rare.settle.as_ref()) {
            Some(settle) => settle.bind(py).call1((actual,)).map(drop),
            None => {
                let message = "the request has no reservation; use reserve=True on its limit";
                Err(raise("ReservationError", message))
            }
        }
    }

    /// Return a copy with the given attributes changed.
    ///
    /// For code that decides instead of the store, or delays a request.
    ///
    /// Args:
    ///     allowed: Whether the limit allows the request.
    ///     cost: Tokens.
    ///     remaining: Tokens left in the bucket, at least 0; the next one comes after the wait.
    ///     retry_after_ns: The wait in nanoseconds, at least 0.
    ///     degraded: Reason why the store did not decide; `None` if it did.
    ///     shadow_mode: Whether the limit is in shadow mode, so that it never denies.
    ///     parts: The decisions of the single limits.
    ///     settle: Called with the cost that is passed to `settle`.
    #[pyo3(signature = (
        *,
        allowed = None,
        cost = None,
        remaining = None,
        retry_after_ns = None,
        degraded = Argument::Missing,
        shadow_mode = None,
        parts = None,
        settle = None
    ))]
    #[pyo3(
        text_signature = "($self, *, allowed=..., cost=..., remaining=..., retry_after_ns=..., degraded=..., shadow_mode=..., parts=..., settle=...)"
    )]
    #[expect(clippy::too_many_arguments, reason = "one per attribute that may change")]
    pub(crate) fn replace<'py>(
        slf: &Bound<'py, Self>,
        allowed: Option<bool>,
        cost: Option<i64>,
        remaining: Option<i64>,
        retry_after_ns: Option<i64>,
        degraded: Argument<'py>,
        shadow_mode: Option<bool>,
        parts: Option<Items<Bound<'py, Decision>>>,
        settle: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = slf.py();
        let mut data = slf.get().data.clone_ref(py);
        let mut decision = slf.get().data.decision(py);
        decision.allowed = allowed.unwrap_or(decision.allowed);
        decision.retry_after = retry_after_ns.map_or(decision.retry_after, Nanos::clamped);
        if let Some(remaining) = remaining {
            decision.remaining = remaining.max(0);
            decision.next_token_after = decision.retry_after;
        }
        data.give(decision);
        if let Some(settle) = settle {
            data.rare_mut().settle = Some(settle.unbind());
        }
        if let Some(parts) = parts {
            if parts.0.iter().any(|part| part.get().data.parts().is_some()) {
                let message =
                    "parts must be decisions on one limit, found one with parts of its own";
                return Err(PyValueError::new_err(message));
            }
            data.rare_mut().parts = Some(PyTuple::new(py, parts.0)?.unbind());
        }
        data.answered.shadow = shadow_mode.unwrap_or(data.answered.shadow);
        data.cost = cost.unwrap_or(data.cost);
        if let Some(degraded) = degraded.given() {
            let degraded = degraded.extract::<Option<String>>()?;
            data.rare_mut().degraded = degraded.map(String::into_boxed_str);
        }
        Bound::new(py, Decision::new(data))
    }

    fn __bool__(&self) -> bool {
        self.allowed()
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Decision>() else { return Ok(false) };
        let (left, right, py) = (slf.get(), other.get(), slf.py());
        let name = |decision: &Decision| decision.name(py).map(|name| name.to_string());
        Ok(left.data.decision(py) == right.data.decision(py)
            && left.limit(py)?.limit == right.limit(py)?.limit
            && left.would_deny(py) == right.would_deny(py)
            && left.data.cost == right.data.cost
            && left.data.degraded() == right.data.degraded()
            && name(left) == name(right)
            && left.id(py)? == right.id(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> u64 {
        let decision = self.data.decision(py);
        let mut hasher = DefaultHasher::new();
        (decision.allowed, decision.remaining, decision.retry_after, decision.now)
            .hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let decision = self.data.decision(py);
        let name = self.name(py).map_or_else(String::new, |name| format!(" {name}"));
        let id = self.id(py)?.map_or_else(String::new, |id| {
            // Long ids are truncated for readability.
            let (shown, more) = (id.chars().take(60).collect::<String>(), id.chars().nth(60));
            format!(" {}{}", shown.escape_debug(), if more.is_some() { "…" } else { "" })
        });
        let outcome = if self.allowed() { "allowed" } else { "denied" };
        let shadow = if self.would_deny(py) { " (would deny)" } else { "" };
        let degraded = if self.data.degraded().is_some() { " (degraded)" } else { "" };
        // An allowed decision is shown without retry_after, which would look like a required wait.
        let retry = match decision.allowed {
            true => String::new(),
            false => format!(", retry_after={}", decision.retry_after),
        };
        let numbers = match decision.unlimited {
            true => ", unlimited".to_owned(),
            false => format!(
                ", remaining={}{retry}, reset_after={}",
                decision.remaining, decision.reset_after
            ),
        };
        Ok(format!("<Decision{name}{id}: {outcome}{shadow}{degraded}{numbers}>"))
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        let _ = memo;
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let state = PickledDecision::of(py, &self.data)?;
        let rebuild = py.import("penstock._core")?.getattr("_unpickled_decision")?;
        (rebuild, (state,)).into_pyobject(py)
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("penstock.display")?.call_method1("decision_html", (slf,))
    }
}

/// Rebuild a decision from the state that `Decision.__reduce__` returned.
#[pyfunction]
pub(crate) fn _unpickled_decision(py: Python<'_>, state: PickledDecision) -> PyResult<Decision> {
    state.data(py).map(Decision::new)
}

/// The id, the cost and the limit of a transaction, as the decision shows them.
pub(crate) type DecisionPart = (Py<PyAny>, i64, Py<LimitEntry>);

/// Return the decision on a request that no limit counts, which is that of `spend_all([])`.
///
/// Args:
///     now_ns: The instant of the decision, in nanoseconds since the clock's origin.
///     degraded: Why the store was not asked, or None.
#[pyfunction]
#[pyo3(signature = (now_ns, degraded = None))]
pub(crate) fn unlimited_decision(
    py: Python<'_>,
    now_ns: i64,
    degraded: Option<String>,
) -> Decision {
    let mut data = DecisionData::default();
    data.answered.answer = Answer::new(None, Timestamp::clamped(now_ns), true);
    let parts = Some(PyTuple::empty(py).unbind());
    *data.rare_mut() =
        Rare { parts, degraded: degraded.map(String::into_boxed_str), ..Rare::default() };
    Decision::new(data)
}

/// Creates the decision about several transactions, with the numbers of the binding one.
pub(crate) fn several(
    py: Python<'_>,
    verb: Verb,
    answered: AnsweredAll,
    parts: Vec<DecisionPart>,
) -> PyResult<Bound<'_, Decision>> {
    Bound::new(py, Decision::new(several_data(py, verb, answered, parts)?))
}

/// Creates the data of that decision.
pub(crate) fn several_data(
    py: Python<'_>,
    verb: Verb,
    answered: AnsweredAll,
    parts: Vec<DecisionPart>,
) -> PyResult<DecisionData> {
    let AnsweredAll { binding, now, parts: answers } = answered;
    let parts = answers.into_iter().zip(parts).map(|(answered, (id, cost, entry))| {
        DecisionData::new(answered, verb, cost, id.bind(py), entry)
    });
    let parts: Vec<_> = parts.collect();
    let binding = binding.and_then(|index| parts.get(index));
    let mut data = binding.map_or_else(
        || DecisionData {
            answered: Answered { answer: Answer::new(None, now, true), ..Answered::default() },
            ..DecisionData::default()
        },
        |part| part.clone_ref(py),
    );
    let parts = parts.into_iter().map(|part| Bound::new(py, Decision::new(part)));
    let parts = PyTuple::new(py, parts.collect::<PyResult<Vec<_>>>()?)?;
    data.rare_mut().parts = Some(parts.unbind());
    Ok(data)
}
