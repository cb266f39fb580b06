//! `Decision`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::bindings::arguments::{self, Argument, seconds};
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::cost::CostError;
use crate::engine::decision;
use crate::engine::limit;
use crate::engine::registry::{Entry, Rule};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{CallError, Decided, Verdict};
use crate::rate_limit_fields;

/// The items of `RateLimit-Policy` and `RateLimit`.
type Items = (Option<Py<PyString>>, Option<Py<PyString>>);

/// The data of a decision, converted to Python values when it is read.
///
/// The id is kept as it was given, and its canonical text, rule and limit are looked up when they
/// are read: few decisions are asked for them, and storing them would cost every decision an
/// allocation.
#[derive(Debug)]
pub(crate) struct DecisionData {
    /// What the numbers are computed from when they are read; `None` if `decided` has them.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) decided: Decided,
    pub(crate) cost: i64,
    /// The id as given; `None` if no limit applied.
    pub(crate) id: Option<Py<PyAny>>,
    /// The limit's name, rules and formats; `None` if no limit applied.
    pub(crate) entry: Option<Py<LimitEntry>>,
    /// The decisions of the transactions; `None` for a single call.
    pub(crate) parts: Option<Py<PyTuple>>,
    /// Why a policy decided in place of the store; `None` if the store decided.
    pub(crate) degraded: Option<Box<str>>,
    /// Settles the cost of the request; `None` if it is not reserved.
    pub(crate) settle: Option<Py<PyAny>>,
}

/// References that a decision no longer needs, to be dropped when other Python code may run.
#[must_use]
pub(crate) struct StaleRefs {
    id: Option<Py<PyAny>>,
    entry: Option<Py<LimitEntry>>,
}

impl DecisionData {
    /// The data of a single call's decision.
    pub(crate) fn single(
        decided: Decided,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: Py<LimitEntry>,
    ) -> DecisionData {
        let id = Some(id.clone().unbind());
        let (verdict, entry) = (None, Some(entry));
        DecisionData {
            verdict,
            decided,
            cost,
            id,
            entry,
            parts: None,
            degraded: None,
            settle: None,
        }
    }

    /// As `single`, boxed, so that the fast path moves a pointer.
    #[cold]
    pub(crate) fn boxed(
        decided: Decided,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: Py<LimitEntry>,
    ) -> Box<DecisionData> {
        Box::new(DecisionData::single(decided, cost, id, entry))
    }

    /// Turns this data of a single call's decision into another's, whose outcome it has already.
    #[inline(always)]
    pub(crate) fn refill(
        &mut self,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: &Py<LimitEntry>,
    ) -> StaleRefs {
        let py = id.py();
        let id = self.id.replace(id.clone().unbind());
        // Nearly always the same limit again, and then its reference stays.
        let same = self.entry.as_ref().is_some_and(|kept| kept.is(entry));
        let entry = if same { None } else { self.entry.replace(entry.clone_ref(py)) };
        self.cost = cost;
        StaleRefs { id, entry }
    }

    fn clone_ref(&self, py: Python<'_>) -> DecisionData {
        DecisionData {
            verdict: self.verdict,
            decided: self.decided.clone(),
            cost: self.cost,
            id: self.id.as_ref().map(|id| id.clone_ref(py)),
            entry: self.entry.as_ref().map(|entry| entry.clone_ref(py)),
            parts: self.parts.as_ref().map(|parts| parts.clone_ref(py)),
            degraded: self.degraded.clone(),
            settle: self.settle.as_ref().map(|settle| settle.clone_ref(py)),
        }
    }
}

impl StaleRefs {
    /// Drops the references, which costs less while attached to the interpreter.
    #[inline(always)]
    pub(crate) fn drop(self, py: Python<'_>) {
        if let Some(id) = self.id {
            id.drop_ref(py);
        }
        if let Some(entry) = self.entry {
            entry.drop_ref(py);
        }
    }
}

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
    data: DecisionData,
}

impl Decision {
    #[inline]
    pub(crate) fn new(data: DecisionData) -> Decision {
        Decision { data }
    }

    /// Whether its cost was taken from a bucket.
    pub(crate) fn is_taken(&self) -> bool {
        let decision = &self.data.decided.decision;
        self.data.verdict.map_or(decision.allowed && !decision.unlimited, |verdict| verdict.allowed)
    }

    /// The address of the data, for the pool.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline(always)]
    pub(crate) fn data_address(&self) -> usize {
        std::ptr::from_ref(&self.data).addr()
    }

    fn decision(&self, py: Python<'_>) -> decision::Decision {
        let Some(verdict) = self.data.verdict else { return self.data.decided.decision };
        // The lookup succeeds, as it did when this was decided.
        let decision = self.with_limit(py, |limit, _| verdict.decision(limit, self.data.cost));
        decision.unwrap_or(self.data.decided.decision)
    }

    /// Whether the limit allowed the request, shadow mode aside.
    fn is_allowed_by_limit(&self) -> bool {
        self.data.verdict.map_or(self.data.decided.decision.allowed, |verdict| verdict.allowed)
    }

    /// The instant of the decision and `wait` after it, in seconds.
    fn after(&self, py: Python<'_>, wait: impl FnOnce(&decision::Decision) -> Nanos) -> f64 {
        let decision = self.decision(py);
        seconds(decision.now.get().saturating_add(wait(&decision).get()))
    }

    /// Calls `read` with the limit's entry and the canonical id; `None` if no limit applied.
    fn with_id<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Entry, &str) -> R,
    ) -> PyResult<Option<R>> {
        let (Some(id), Some(entry)) = (&self.data.id, &self.data.entry) else {
            return Ok(None);
        };
        let entry = &entry.get().entry;
        let id = id.bind(py);
        let text = id_text(id)?;
        // This entry accepted the id when it decided.
        Ok(entry.canonical(&text).ok().map(|id| read(entry, &id)))
    }

    /// Calls `read` with the limit that was applied, and whether it is the entry's default.
    fn with_limit<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&limit::Limit, bool) -> R,
    ) -> PyResult<R> {
        if let Some(limit) = &self.data.decided.effective_limit {
            return Ok(read(limit, false));
        }
        // Without overrides the id need not be looked up.
        let entry = self.data.entry.as_ref().map(|entry| &entry.get().entry);
        if let Some(rule) = entry.and_then(|entry| entry.only_rule()) {
            return Ok(read(&rule.limit, true));
        }
        let limit = self.with_id(py, |entry, id| entry.rule_for(id).limit)?;
        Ok(read(&limit.unwrap_or(limit::Limit::Unlimited), false))
    }

    /// Returns a text of the id's rule.
    fn rule_text(
        &self,
        py: Python<'_>,
        text: impl FnOnce(&Rule) -> Option<Arc<str>>,
    ) -> PyResult<Option<String>> {
        let text = self.with_id(py, |entry, id| text(entry.rule_for(id)))?.flatten();
        Ok(text.map(|text| text.to_string()))
    }
}

/// The state of a pickled decision.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PickledDecision {
    allowed: bool,
    unlimited: bool,
    shadow: bool,
    remaining: i64,
    retry_after_ns: i64,
    reset_after_ns: i64,
    next_token_after_ns: i64,
    now_ns: i64,
    cost: i64,
    limit: Py<Limit>,
    name: Option<Py<PyString>>,
    id: Option<String>,
    description: Option<String>,
    docs: Option<String>,
    degraded: Option<String>,
    parts: Option<Py<PyTuple>>,
}

#[pymethods]
impl Decision {
    /// Whether the request may proceed.
    ///
    /// A limit in shadow mode never makes this false: see `would_deny`. The decision of a refund is
    /// allowed if tokens were returned.
    #[getter]
    fn allowed(&self) -> bool {
        self.is_allowed_by_limit() || self.data.decided.shadow
    }

    /// Whether a limit in shadow mode would have denied the request.
    ///
    /// In a decision about several limits: whether one of them would have.
    #[getter]
    fn would_deny(&self, py: Python<'_>) -> bool {
        match &self.data.parts {
            None => self.data.decided.shadow && !self.is_allowed_by_limit(),
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
        self.data.parts.is_none() && self.data.decided.shadow
    }

    /// Tokens left in the bucket after this decision; 2**63 - 1 if no limit applies.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> i64 {
        self.decision(py).remaining
    }

    /// Seconds until the same request could be allowed, also on an allowed decision.
    ///
    /// 0 if it could be allowed at once. On an allowed decision this is no reason to wait: it says
    /// when a *second* request of the same cost could pass, if nothing else is spent.
    #[getter]
    fn retry_after(&self, py: Python<'_>) -> f64 {
        seconds(self.decision(py).retry_after.get())
    }

    /// Nanoseconds until the same request could be allowed; see `retry_after`.
    #[getter]
    fn retry_after_ns(&self, py: Python<'_>) -> i64 {
        self.decision(py).retry_after.get()
    }

    /// When the same request could be allowed, in Unix seconds on the limiter's clock.
    #[getter]
    fn retry_at(&self, py: Python<'_>) -> f64 {
        self.after(py, |decision| decision.retry_after)
    }

    /// Seconds until the bucket is full again, if nothing else is spent.
    ///
    /// For a window: until it ends.
    #[getter]
    fn reset_after(&self, py: Python<'_>) -> f64 {
        seconds(self.decision(py).reset_after.get())
    }

    /// Nanoseconds until the bucket is full again; see `reset_after`.
    #[getter]
    fn reset_after_ns(&self, py: Python<'_>) -> i64 {
        self.decision(py).reset_after.get()
    }

    /// When the bucket is full again, in Unix seconds on the limiter's clock.
    #[getter]
    fn reset_at(&self, py: Python<'_>) -> f64 {
        self.after(py, |decision| decision.reset_after)
    }

    /// Nanoseconds until `remaining` grows by one token; 0 if it cannot grow.
    #[getter]
    fn next_token_after_ns(&self, py: Python<'_>) -> i64 {
        self.decision(py).next_token_after.get()
    }

    /// When the decision was made, in nanoseconds on the limiter's clock.
    #[getter]
    fn now_ns(&self, py: Python<'_>) -> i64 {
        self.decision(py).now.get()
    }

    /// The limit that was applied.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Limit> {
        self.with_limit(py, |limit, _| Limit::from(*limit))
    }

    /// The limit's name; `None` if no limit applied.
    #[getter]
    fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.data.entry.as_ref().map(|entry| entry.get().name.clone_ref(py))
    }

    /// The id in canonical form; `None` if no limit applied.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with_id(py, |_, id| id.to_owned())
    }

    /// Tokens that the request asked for.
    #[getter]
    fn cost(&self) -> i64 {
        self.data.cost
    }

    /// Whether no limit applies to this id.
    #[getter]
    fn unlimited(&self, py: Python<'_>) -> bool {
        self.decision(py).unlimited
    }

    /// Why a policy decided because the store failed; `None` if the store decided.
    #[getter]
    fn degraded(&self) -> Option<&str> {
        self.data.degraded.as_deref()
    }

    /// The limit's description from the limits file; `None` if it has none.
    #[getter]
    fn description(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.rule_text(py, |rule| rule.description.clone())
    }

    /// The URL of the limit's documentation, from the limits file; `None` if it has none.
    #[getter]
    fn docs(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.rule_text(py, |rule| rule.docs.clone())
    }

    /// The name of the limit whose numbers these are; `None` if no limit applied.
    ///
    /// In a decision about several limits this is the strictest one.
    #[getter]
    fn binding(&self, py: Python<'_>) -> Option<Py<PyString>> {
        if self.decision(py).unlimited { None } else { self.name(py) }
    }

    /// The decisions of all transactions, in order; for a single call, this decision alone.
    #[getter]
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        match &slf.get().data.parts {
            Some(parts) => Ok(parts.bind(slf.py()).clone()),
            None => PyTuple::new(slf.py(), [slf]),
        }
    }

    /// The items of the `RateLimit-Policy` and `RateLimit` header fields, for this limit alone.
    ///
    /// `None` for a field that cannot express it: an unlimited decision, or a name that is not
    /// ASCII. `headers()` combines the items of all parts.
    #[getter]
    fn header_items(&self, py: Python<'_>) -> PyResult<Items> {
        let Some(entry) = self.data.entry.as_ref().map(Py::get) else { return Ok((None, None)) };
        let Some(label) = &entry.label else { return Ok((None, None)) };
        let text = |item: Option<String>| item.map(|item| PyString::new(py, &item).unbind());
        self.with_limit(py, |limit, is_default| {
            let policy = if is_default {
                entry.policy.as_ref().map(|policy| policy.clone_ref(py))
            } else {
                text(rate_limit_fields::policy(label, limit))
            };
            (policy, text(rate_limit_fields::item(label, limit, &self.decision(py))))
        })
    }

    /// The limit's name as a quoted header value.
    ///
    /// `None` if the name is not ASCII, or no limit applied.
    #[getter]
    fn header_label(&self) -> Option<&str> {
        self.data.entry.as_ref().and_then(|entry| entry.get().label.as_deref())
    }

    /// The tokens that header fields show as the limit's quota.
    #[getter]
    fn header_quota(&self, py: Python<'_>) -> PyResult<i64> {
        self.with_limit(py, |limit, _| rate_limit_fields::quota(limit))
    }

    /// The seconds that header fields show as the quota's window, rounded up.
    #[getter]
    fn header_window(&self, py: Python<'_>) -> PyResult<i64> {
        self.with_limit(py, |limit, _| rate_limit_fields::window_seconds(limit))
    }

    /// The wait that the `RateLimit` field shows, in nanoseconds; 0 if it shows none.
    #[getter]
    fn header_wait_ns(&self, py: Python<'_>) -> PyResult<i64> {
        self.with_limit(py, |limit, _| {
            rate_limit_fields::shown_wait(limit, &self.decision(py)).get()
        })
    }

    /// Return the response headers in one or several styles.
    ///
    /// Args:
    ///     style: A style's name, or several of them. The styles are listed in docs/headers.md.
    ///
    /// Raises:
    ///     ConfigError: No style has this name, or two of them write the same field.
    ///
    /// Examples:
    ///     >>> clock = penstock.ManualClock()
    ///     >>> limiter = penstock.Limiter({"Orders": "6/minute"}, clock=clock)
    ///     >>> limiter.spend("Orders", "ada").headers()["RateLimit"]
    ///     '"Orders";r=5;t=10'
    #[pyo3(signature = (style = Argument::Missing), text_signature = "($self, style='ietf')")]
    fn headers<'py>(slf: &Bound<'py, Self>, style: Argument<'py>) -> PyResult<Bound<'py, PyAny>> {
        static HEADERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
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
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        fields.set_item("allowed", self.allowed())?;
        fields.set_item("would_deny", self.would_deny(py))?;
        fields.set_item("name", self.name(py))?;
        fields.set_item("id", self.id(py)?)?;
        fields.set_item("cost", self.cost())?;
        fields.set_item("remaining", self.remaining(py))?;
        fields.set_item("retry_after", self.retry_after(py))?;
        fields.set_item("reset_after", self.reset_after(py))?;
        fields.set_item("retry_at", self.retry_at(py))?;
        fields.set_item("reset_at", self.reset_at(py))?;
        fields.set_item("unlimited", self.unlimited(py))?;
        fields.set_item("degraded", self.degraded())?;
        if let Some(parts) = &self.data.parts {
            let list = PyList::empty(py);
            for part in parts.bind(py) {
                list.append(part.cast::<Decision>()?.get().as_dict(py)?)?;
            }
            fields.set_item("parts", list)?;
        }
        Ok(fields)
    }

    /// Raise `RateLimited` if the request was denied.
    ///
    /// Raises:
    ///     RateLimited: The decision is not allowed; the exception carries it.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.spend("Orders", "ada").raise_if_denied()
    ///     >>> try:
    ///     ...     limiter.spend("Orders", "ada").raise_if_denied()
    ///     ... except penstock.RateLimited as error:
    ///     ...     error.decision.retry_after
    ///     60.0
    fn raise_if_denied(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, decision) = (slf.py(), slf.get());
        if decision.allowed() {
            return Ok(());
        }
        let name = decision.name(py).map_or_else(String::new, |name| format!(" by {name}"));
        let wait = decision.decision(py).retry_after;
        let message = format!("denied{name}; retry in {wait}");
        let exception =
            py.import("penstock.errors")?.getattr("RateLimited")?.call1((message, slf))?;
        Err(PyErr::from_value(exception))
    }

    /// Replace what the request has reserved by what it really cost.
    ///
    /// For the view of a web application whose limit has `reserve=True` and no `deduct_when` or
    /// `cost_from_response`. The header fields of its response show the result. A view that has
    /// started to stream its response can settle later, too.
    ///
    /// Args:
    ///     actual: Tokens, at least 0; more than the limit's burst leaves a debt.
    ///
    /// Raises:
    ///     ReservationError: The request has reserved nothing.
    ///     CostNegative: `actual` is below 0.
    fn settle(&self, py: Python<'_>, actual: &Bound<'_, PyAny>) -> PyResult<()> {
        let actual = arguments::saturating("actual", actual)?;
        if actual < 0 {
            let limit = self.name(py).map_or_else(String::new, |name| name.to_string());
            let source = CostError::Negative { found: actual };
            return Err(Box::new(CallError::Cost { limit, source }).into());
        }
        match &self.data.settle {
            Some(settle) => settle.bind(py).call1((actual,)).map(drop),
            None => {
                let message = "the request has reserved nothing; use reserve=True on its limit";
                Err(raise(py, "ReservationError", message, &[]))
            }
        }
    }

    /// Return a copy with the given attributes changed.
    ///
    /// For code that decides in place of the store, or delays a request.
    ///
    /// Args:
    ///     allowed: Whether the limit allows the request.
    ///     cost: Tokens.
    ///     remaining: Tokens left in the bucket, at least 0; the next one comes after the wait.
    ///     retry_after_ns: The wait, in nanoseconds, at least 0.
    ///     degraded: Why the store did not decide; `None` if it did.
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
    #[expect(clippy::too_many_arguments, reason = "one for each attribute that may change")]
    pub(crate) fn replace<'py>(
        slf: &Bound<'py, Self>,
        allowed: Option<bool>,
        cost: Option<i64>,
        remaining: Option<i64>,
        retry_after_ns: Option<i64>,
        degraded: Argument<'py>,
        shadow_mode: Option<bool>,
        parts: Option<Vec<Bound<'py, Decision>>>,
        settle: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = slf.py();
        let mut data = slf.get().data.clone_ref(py);
        data.decided.decision = slf.get().decision(py);
        data.verdict = None;
        if let Some(settle) = settle {
            data.settle = Some(settle.unbind());
        }
        if let Some(parts) = parts {
            data.parts = Some(PyTuple::new(py, parts)?.unbind());
        }
        data.decided.shadow = shadow_mode.unwrap_or(data.decided.shadow);
        let decision = &mut data.decided.decision;
        decision.allowed = allowed.unwrap_or(decision.allowed);
        decision.retry_after = retry_after_ns.map_or(decision.retry_after, Nanos::clamped);
        if let Some(remaining) = remaining {
            decision.remaining = remaining.max(0);
            decision.next_token_after = decision.retry_after;
        }
        data.cost = cost.unwrap_or(data.cost);
        if let Some(degraded) = degraded.given() {
            data.degraded = degraded.extract::<Option<String>>()?.map(String::into_boxed_str);
        }
        Bound::new(py, Decision::new(data))
    }

    fn __bool__(&self) -> bool {
        self.allowed()
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Decision>() else { return Ok(false) };
        let (one, two, py) = (slf.get(), other.get(), slf.py());
        let name = |decision: &Decision| decision.name(py).map(|name| name.to_string());
        Ok(one.decision(py) == two.decision(py)
            && one.limit(py)?.limit == two.limit(py)?.limit
            && one.would_deny(py) == two.would_deny(py)
            && one.data.cost == two.data.cost
            && one.data.degraded == two.data.degraded
            && name(one) == name(two)
            && one.id(py)? == two.id(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> u64 {
        let decision = self.decision(py);
        let mut hasher = DefaultHasher::new();
        (decision.allowed, decision.remaining, decision.retry_after, decision.now)
            .hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let decision = self.decision(py);
        let name = self.name(py).map_or_else(String::new, |name| format!(" {name}"));
        let id = self.id(py)?.map_or_else(String::new, |id| {
            // Long ids are cut: a repr is read by people.
            let (shown, more) = (id.chars().take(60).collect::<String>(), id.chars().nth(60));
            format!(" {}{}", shown.escape_debug(), if more.is_some() { "…" } else { "" })
        });
        let answer = if self.allowed() { "allowed" } else { "denied" };
        let shadow = if self.would_deny(py) { " (would deny)" } else { "" };
        let degraded = if self.data.degraded.is_some() { " (degraded)" } else { "" };
        // The retry_after of an allowed decision would read as an order to wait.
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
        Ok(format!("<Decision{name}{id}: {answer}{shadow}{degraded}{numbers}>"))
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        let _ = memo;
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let decision = self.decision(py);
        let state = PickledDecision {
            allowed: decision.allowed,
            unlimited: decision.unlimited,
            shadow: self.data.decided.shadow,
            remaining: decision.remaining,
            retry_after_ns: decision.retry_after.get(),
            reset_after_ns: decision.reset_after.get(),
            next_token_after_ns: decision.next_token_after.get(),
            now_ns: decision.now.get(),
            cost: self.data.cost,
            limit: Py::new(py, self.limit(py)?)?,
            name: self.name(py),
            id: self.id(py)?,
            description: self.description(py)?,
            docs: self.docs(py)?,
            degraded: self.data.degraded.as_deref().map(str::to_owned),
            parts: self.data.parts.as_ref().map(|parts| parts.clone_ref(py)),
        };
        let rebuild = py.import("penstock._core")?.getattr("_unpickled_decision")?;
        (rebuild, (state,)).into_pyobject(py)
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("penstock.display")?.call_method1("decision_html", (slf,))
    }
}

/// Return the decision that `Decision.__reduce__` described.
#[pyfunction]
pub(crate) fn _unpickled_decision(py: Python<'_>, state: PickledDecision) -> PyResult<Decision> {
    let entry = state.name.map(|name| {
        let text = name.bind(py).to_str()?;
        let rule = Rule {
            description: state.description.map(Arc::from),
            docs: state.docs.map(Arc::from),
            ..Rule::plain(state.limit.get().limit)
        };
        let entry =
            Entry::alone(text, rule).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Py::new(py, LimitEntry::new(py, name, Arc::new(entry)))
    });
    let decision = decision::Decision {
        allowed: state.allowed,
        unlimited: state.unlimited,
        remaining: state.remaining,
        retry_after: Nanos::clamped(state.retry_after_ns),
        reset_after: Nanos::clamped(state.reset_after_ns),
        next_token_after: Nanos::clamped(state.next_token_after_ns),
        now: Timestamp::clamped(state.now_ns),
    };
    Ok(Decision::new(DecisionData {
        verdict: None,
        decided: Decided { decision, shadow: state.shadow, effective_limit: None },
        cost: state.cost,
        id: state.id.map(|id| PyString::new(py, &id).into_any().unbind()),
        entry: entry.transpose()?,
        parts: state.parts,
        degraded: state.degraded.map(String::into_boxed_str),
        settle: None,
    }))
}

/// Returns the decision over several transactions, with the numbers of the one at `binding`.
pub(crate) fn over_several<'py>(
    py: Python<'py>,
    decision: decision::Decision,
    binding: Option<usize>,
    parts: Vec<DecisionData>,
) -> PyResult<Bound<'py, Decision>> {
    let mut data = match binding.and_then(|index| parts.get(index)) {
        Some(part) => part.clone_ref(py),
        None => DecisionData {
            verdict: None,
            decided: Decided { decision, shadow: false, effective_limit: None },
            cost: 0,
            id: None,
            entry: None,
            parts: None,
            degraded: None,
            settle: None,
        },
    };
    data.decided.decision = decision;
    let parts = parts.into_iter().map(|part| Bound::new(py, Decision::new(part)));
    let parts = PyTuple::new(py, parts.collect::<PyResult<Vec<_>>>()?)?;
    data.parts = Some(parts.unbind());
    Bound::new(py, Decision::new(data))
}
