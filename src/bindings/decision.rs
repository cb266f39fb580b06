//! The class `Decision`.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::bindings::arguments::{self, Argument, Items, seconds};
use crate::bindings::decision_data::{DecisionData, PickledDecision, Rare};
use crate::bindings::errors::{raise, rate_limited};
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::once::Once;
use crate::engine::answer::Answer;
use crate::engine::cost::CostError;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{Answered, AnsweredAll, CallError};

#[doc = doc!(Decision)]
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

    /// Returns a denied copy, with another wait if it is given.
    pub(crate) fn denied<'py>(
        decision: &Bound<'py, Decision>,
        retry_after: Option<Nanos>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = decision.py();
        let mut data = decision.get().data.clone_ref(py);
        let mut numbers = data.decision(py);
        numbers.allowed = false;
        numbers.retry_after = retry_after.unwrap_or(numbers.retry_after);
        data.give(numbers);
        Bound::new(py, Decision::new(data))
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
    #[doc = doc!(Decision.allowed)]
    #[getter]
    fn allowed(&self) -> bool {
        self.data.allowed()
    }

    #[doc = doc!(Decision.would_deny)]
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

    #[doc = doc!(Decision.shadow_mode)]
    #[getter]
    fn shadow_mode(&self) -> bool {
        self.data.parts().is_none() && self.data.answered.shadow
    }

    #[doc = doc!(Decision.remaining)]
    #[getter]
    fn remaining(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).remaining
    }

    #[doc = doc!(Decision.retry_after)]
    #[getter]
    fn retry_after(&self, py: Python<'_>) -> f64 {
        seconds(self.data.decision(py).retry_after.get())
    }

    #[doc = doc!(Decision.retry_after_ns)]
    #[getter]
    fn retry_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).retry_after.get()
    }

    #[doc = doc!(Decision.retry_at)]
    #[getter]
    fn retry_at(&self, py: Python<'_>) -> f64 {
        self.data.after(py, |decision| decision.retry_after)
    }

    #[doc = doc!(Decision.reset_after)]
    #[getter]
    fn reset_after(&self, py: Python<'_>) -> f64 {
        seconds(self.data.decision(py).reset_after.get())
    }

    #[doc = doc!(Decision.reset_after_ns)]
    #[getter]
    fn reset_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).reset_after.get()
    }

    #[doc = doc!(Decision.reset_at)]
    #[getter]
    fn reset_at(&self, py: Python<'_>) -> f64 {
        self.data.after(py, |decision| decision.reset_after)
    }

    #[doc = doc!(Decision.next_token_after_ns)]
    #[getter]
    fn next_token_after_ns(&self, py: Python<'_>) -> i64 {
        self.data.decision(py).next_token_after.get()
    }

    #[doc = doc!(Decision.now_ns)]
    #[getter]
    fn now_ns(&self, py: Python<'_>) -> i64 {
        self.data.unix_decision(py).now.get()
    }

    #[doc = doc!(Decision.limit)]
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Limit> {
        self.data.limit(py)
    }

    #[doc = doc!(Decision.name)]
    #[getter]
    fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.data.name(py)
    }

    #[doc = doc!(Decision.id)]
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.id(py)
    }

    #[doc = doc!(Decision.cost)]
    #[getter]
    fn cost(&self) -> i64 {
        self.data.cost
    }

    #[doc = doc!(Decision.unlimited)]
    #[getter]
    fn unlimited(&self, py: Python<'_>) -> bool {
        self.data.decision(py).unlimited
    }

    #[doc = doc!(Decision.degraded)]
    #[getter]
    fn degraded(&self) -> Option<&str> {
        self.data.degraded()
    }

    #[doc = doc!(Decision.description)]
    #[getter]
    fn description(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.rule_text(py, |rule| rule.description.clone())
    }

    #[doc = doc!(Decision.docs)]
    #[getter]
    fn docs(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.data.rule_text(py, |rule| rule.docs.clone())
    }

    #[doc = doc!(Decision.binding)]
    #[getter]
    fn binding(&self, py: Python<'_>) -> Option<Py<PyString>> {
        if self.data.decision(py).unlimited { None } else { self.name(py) }
    }

    #[doc = doc!(Decision.parts)]
    #[getter]
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        match slf.get().data.parts() {
            Some(parts) => Ok(parts.bind(slf.py()).clone()),
            None => PyTuple::new(slf.py(), [slf]),
        }
    }

    #[doc = doc!(Decision.headers)]
    #[pyo3(signature = (style = Argument::Missing), text_signature = "($self, style='ietf')")]
    fn headers<'py>(slf: &Bound<'py, Self>, style: Argument<'py>) -> PyResult<Bound<'py, PyAny>> {
        static HEADERS: Once<Py<PyAny>> = Once::new();
        let headers = HEADERS.import(slf.py(), "penstock.headers", "headers")?;
        match style.given() {
            None => headers.call1((slf, "ietf")),
            Some(style) => headers.call1((slf, style)),
        }
    }

    #[doc = doc!(Decision.as_dict)]
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
        // Nothing bounds it: the call was unlimited, or decided without the store.
        if slf.get().remaining(py) == i64::MAX {
            fields.set_item("remaining", py.None())?;
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

    #[doc = doc!(Decision.raise_if_denied)]
    pub(crate) fn raise_if_denied(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, decision) = (slf.py(), slf.get());
        if decision.allowed() {
            return Ok(());
        }
        let name = decision.name(py).map_or_else(String::new, |name| format!(" by {name}"));
        let wait = decision.data.decision(py).retry_after.to_whole_millis();
        let message = format!("denied{name}; retry in {wait}");
        Err(PyErr::from_value(rate_limited(slf, &message)?))
    }

    #[doc = doc!(Decision.settle)]
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
                let message = "the request has no reservation; use settle=True on its limit, or \
                               reserve() of the limiter";
                Err(raise("ReservationError", message))
            }
        }
    }

    #[doc = doc!(Decision.replace)]
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
    fn replace<'py>(
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
        Ok(left.data.unix_decision(py) == right.data.unix_decision(py)
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
        (decision.allowed, decision.remaining, decision.retry_after).hash(&mut hasher);
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
            false => format!(", retry_after={}", decision.retry_after.to_whole_millis()),
        };
        let numbers = match decision.unlimited {
            true => ", unlimited".to_owned(),
            false => format!(
                ", remaining={}{retry}, reset_after={}",
                decision.remaining,
                decision.reset_after.to_whole_millis()
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
        slf.py().import("penstock._display")?.call_method1("decision_html", (slf,))
    }
}

/// Rebuild a decision from the state that `Decision.__reduce__` returned.
#[pyfunction]
pub(crate) fn _unpickled_decision(py: Python<'_>, state: PickledDecision) -> PyResult<Decision> {
    state.data(py).map(Decision::new)
}

/// The id, the cost and the limit of a transaction, as the decision shows them.
pub(crate) type DecisionPart = (Py<PyAny>, i64, Py<LimitEntry>);

#[doc = doc!(unlimited_decision)]
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
pub(crate) fn several<'py>(
    py: Python<'py>,
    handle: &LimiterHandle,
    answered: AnsweredAll,
    parts: Vec<DecisionPart>,
) -> PyResult<Bound<'py, Decision>> {
    Bound::new(py, Decision::new(several_data(py, handle, answered, parts)?))
}

/// Creates the data of that decision.
pub(crate) fn several_data(
    py: Python<'_>,
    handle: &LimiterHandle,
    answered: AnsweredAll,
    parts: Vec<DecisionPart>,
) -> PyResult<DecisionData> {
    let AnsweredAll { binding, now, parts: answers, verbs } = answered;
    let parts = answers.into_iter().zip(verbs).zip(parts);
    let parts = parts.map(|((answered, verb), (id, cost, entry))| {
        DecisionData::new(answered, verb, cost, id.bind(py), entry)
    });
    let parts: Vec<_> = parts.collect();
    let binding = binding.and_then(|index| parts.get(index));
    let mut data = binding.map_or_else(
        || {
            // Without a limit, the instant of a decision is a Unix time.
            let answer = Answer::new(None, handle.core.clock().unix_time(now), true);
            let answered = Answered { answer, ..Answered::default() };
            DecisionData { answered, ..DecisionData::default() }
        },
        |part| part.clone_ref(py),
    );
    let parts = parts.into_iter().map(|part| Bound::new(py, Decision::new(part)));
    let parts = PyTuple::new(py, parts.collect::<PyResult<Vec<_>>>()?)?;
    data.rare_mut().parts = Some(parts.unbind());
    Ok(data)
}
