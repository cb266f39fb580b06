//! `Decision`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::arguments::{Argument, seconds};
use crate::bindings::id_text::id_text;
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::decision;
use crate::engine::limit;
use crate::engine::registry::{Entry, Rule};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::Decided;
use crate::rate_limit_fields;

/// A policy and an item, as header fields list them.
type Items = (Option<Py<PyString>>, Option<Py<PyString>>);

/// What a decision is made of; raw, converted when it is read.
#[derive(Debug)]
pub(crate) struct DecisionData {
    pub(crate) decided: Decided,
    pub(crate) cost: i64,
    /// Who asked, as given; `None` where no limit decided.
    pub(crate) id: Option<Py<PyAny>>,
    /// The limit's name and formats; `None` where no limit decided.
    pub(crate) entry: Option<Py<LimitEntry>>,
    /// The decisions that this one answers for; `None` of a single call.
    pub(crate) parts: Option<Py<PyTuple>>,
    /// Whether the store failed and a policy answered.
    pub(crate) degraded: bool,
}

/// References that a content no longer has, to be let go of when other Python code may run.
#[must_use]
pub(crate) struct StaleRefs {
    id: Option<Py<PyAny>>,
    entry: Option<Py<LimitEntry>>,
    parts: Option<Py<PyTuple>>,
}

impl DecisionData {
    /// The content of a single call's decision.
    #[cold]
    pub(crate) fn boxed(
        decided: Decided,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: Py<LimitEntry>,
    ) -> Box<DecisionData> {
        let id = Some(id.clone().unbind());
        Box::new(DecisionData {
            decided,
            cost,
            id,
            entry: Some(entry),
            parts: None,
            degraded: false,
        })
    }

    /// Becomes the content of another single call's decision, which stands in `decided` already.
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
        self.degraded = false;
        StaleRefs { id, entry, parts: self.parts.take() }
    }
}

impl StaleRefs {
    /// Lets go, which costs less where the interpreter is known to be attached.
    #[inline(always)]
    pub(crate) fn drop(self, py: Python<'_>) {
        if let Some(id) = self.id {
            id.drop_ref(py);
        }
        if let Some(entry) = self.entry {
            entry.drop_ref(py);
        }
        if let Some(parts) = self.parts {
            parts.drop_ref(py);
        }
    }
}

/// The answer, complete: every number its headers need.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Decision {
    content: DecisionData,
}

impl Decision {
    #[inline]
    pub(crate) fn new(content: DecisionData) -> Decision {
        Decision { content }
    }

    /// Where the content stands, for the pool.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline(always)]
    pub(crate) fn content_address(&self) -> usize {
        std::ptr::from_ref(&self.content).addr()
    }

    #[inline]
    fn decision(&self) -> &decision::Decision {
        &self.content.decided.decision
    }

    fn must_be_refused(&self) -> bool {
        !self.decision().allowed && !self.content.decided.shadow
    }

    /// Hands the limit's entry and the id's canonical spelling to `read`; `None` where no limit
    /// decided.
    fn with_id<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Entry, &str) -> R,
    ) -> PyResult<Option<R>> {
        let (Some(id), Some(entry)) = (&self.content.id, &self.content.entry) else {
            return Ok(None);
        };
        let entry = &entry.get().entry;
        let id = id.bind(py);
        let text = id_text(id)?;
        // The id was taken when it was decided about, by this same entry.
        Ok(entry.canonical(&text).ok().map(|id| read(entry, &id)))
    }

    /// Hands the limit that was applied to `read`, and whether it is its entry's default.
    fn with_limit<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&limit::Limit, bool) -> R,
    ) -> PyResult<R> {
        if let Some(limit) = &self.content.decided.effective_limit {
            return Ok(read(limit, false));
        }
        // Without overrides nobody's id needs to be looked up.
        let entry = self.content.entry.as_ref().map(|entry| &entry.get().entry);
        if let Some(rule) = entry.and_then(|entry| entry.only_rule()) {
            return Ok(read(&rule.limit, true));
        }
        let limit = self.with_id(py, |entry, id| entry.rule_for(id).limit)?;
        Ok(read(&limit.unwrap_or(limit::Limit::Unlimited), false))
    }

    fn canonical(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with_id(py, |_, id| id.to_owned())
    }
}

#[pymethods]
impl Decision {
    /// Whether the limit allows the request.
    #[getter]
    fn allowed(&self) -> bool {
        self.decision().allowed
    }

    /// Tokens left after this decision.
    #[getter]
    fn remaining(&self) -> i64 {
        self.decision().remaining
    }

    /// Seconds until an identical request could be allowed, if nothing else is spent.
    #[getter]
    fn retry_after(&self) -> f64 {
        seconds(self.decision().retry_after.get())
    }

    /// Nanoseconds until an identical request could be allowed, if nothing else is spent.
    #[getter]
    fn retry_after_ns(&self) -> i64 {
        self.decision().retry_after.get()
    }

    /// Seconds until the bucket is as never used, if nothing else is spent.
    #[getter]
    fn reset_after(&self) -> f64 {
        seconds(self.decision().reset_after.get())
    }

    /// Nanoseconds until the bucket is as never used, if nothing else is spent.
    #[getter]
    fn reset_after_ns(&self) -> i64 {
        self.decision().reset_after.get()
    }

    /// Nanoseconds until one token more than `remaining` can be spent; 0 if none is to come.
    #[getter]
    fn next_token_after_ns(&self) -> i64 {
        self.decision().next_token_after.get()
    }

    /// The instant of the decision, in nanoseconds on the limiter's clock.
    #[getter]
    fn now_ns(&self) -> i64 {
        self.decision().now.get()
    }

    /// The limit that was applied.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Limit> {
        self.with_limit(py, |limit, _| Limit::from(*limit))
    }

    /// The limit's name; `None` where no limit decided.
    #[getter]
    fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.content.entry.as_ref().map(|entry| entry.get().name.clone_ref(py))
    }

    /// The id in canonical spelling; `None` where no limit decided.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.canonical(py)
    }

    /// Tokens asked for.
    #[getter]
    fn cost(&self) -> i64 {
        self.content.cost
    }

    /// Whether no limit applies to this id.
    #[getter]
    fn unlimited(&self) -> bool {
        self.decision().unlimited
    }

    /// Whether the store failed and a policy answered.
    #[getter]
    fn degraded(&self) -> bool {
        self.content.degraded
    }

    /// Whether the limit denied but only watches.
    #[getter]
    fn shadow(&self) -> bool {
        self.content.decided.shadow && !self.decision().allowed
    }

    /// What the limit counts, for people, from the limits file.
    #[getter]
    fn description(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let told = self.with_id(py, |entry, id| {
            entry.rule_for(id).description.as_deref().map(str::to_owned)
        })?;
        Ok(told.flatten())
    }

    /// The address of the limit's documentation, from the limits file.
    #[getter]
    fn docs(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let told =
            self.with_id(py, |entry, id| entry.rule_for(id).docs.as_deref().map(str::to_owned))?;
        Ok(told.flatten())
    }

    /// The name of the limit that decided; `None` where none did.
    #[getter]
    fn binding(&self, py: Python<'_>) -> Option<Py<PyString>> {
        if self.decision().unlimited { None } else { self.name(py) }
    }

    /// The decisions of all transactions, in order; of a single call, the decision itself.
    #[getter]
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        match &slf.get().content.parts {
            Some(parts) => Ok(parts.bind(slf.py()).clone()),
            None => PyTuple::new(slf.py(), [slf]),
        }
    }

    /// The items of `RateLimit-Policy` and `RateLimit`; `None` where a field cannot carry one.
    #[getter]
    fn _ietf(&self, py: Python<'_>) -> PyResult<Items> {
        let Some(entry) = self.content.entry.as_ref().map(Py::get) else { return Ok((None, None)) };
        let Some(label) = &entry.label else { return Ok((None, None)) };
        let text = |item: Option<String>| item.map(|item| PyString::new(py, &item).unbind());
        self.with_limit(py, |limit, is_default| {
            let policy = if is_default {
                entry.policy.as_ref().map(|policy| policy.clone_ref(py))
            } else {
                text(rate_limit_fields::policy(label, limit))
            };
            (policy, text(rate_limit_fields::item(label, limit, self.decision())))
        })
    }

    /// The name as header fields write it; `None` where they cannot, or no limit decided.
    #[getter]
    fn _label(&self) -> Option<&str> {
        self.content.entry.as_ref().and_then(|entry| entry.get().label.as_deref())
    }

    /// What the limit grants in its window, and the window in whole seconds, rounded up.
    #[getter]
    fn _quota_and_window(&self, py: Python<'_>) -> PyResult<(i64, i64)> {
        self.with_limit(py, |limit, _| {
            (rate_limit_fields::quota(limit), rate_limit_fields::window_seconds(limit))
        })
    }

    /// The wait that header fields show, in nanoseconds; 0 where they show none.
    #[getter]
    fn _shown_wait_ns(&self, py: Python<'_>) -> PyResult<i64> {
        self.with_limit(py, |limit, _| rate_limit_fields::shown_wait(limit, self.decision()).get())
    }

    /// Give the response headers in one or several styles.
    ///
    /// Raises:
    ///     ConfigError: No style has this name, or two of them write one field.
    ///
    /// >>> clock = penstock.ManualClock()
    /// >>> limiter = penstock.Limiter({"Orders": "6/minute"}, clock=clock)
    /// >>> limiter.spend("Orders", "ada").headers()["RateLimit"]
    /// '"Orders";r=5;t=10'
    #[pyo3(signature = (style = Argument::Missing), text_signature = "($self, style='ietf')")]
    fn headers<'py>(slf: &Bound<'py, Self>, style: Argument<'py>) -> PyResult<Bound<'py, PyAny>> {
        static HEADERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let headers = HEADERS.get_or_try_init(py, || {
            py.import("penstock.headers")?.getattr("headers").map(Bound::unbind)
        })?;
        match style.given() {
            None => headers.bind(py).call1((slf, "ietf")),
            Some(style) => headers.bind(py).call1((slf, style)),
        }
    }

    /// Raise `RateLimited` if the request must be refused.
    ///
    /// A denial by a limit that only watches does not raise.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "1/minute"}, clock=penstock.ManualClock())
    /// >>> limiter.spend("Orders", "ada").raise_if_denied()
    /// >>> try:
    /// ...     limiter.spend("Orders", "ada").raise_if_denied()
    /// ... except penstock.RateLimited as error:
    /// ...     error.decision.retry_after
    /// 60.0
    fn raise_if_denied(slf: &Bound<'_, Self>) -> PyResult<()> {
        if !slf.get().must_be_refused() {
            return Ok(());
        }
        let py = slf.py();
        let name = slf.get().name(py).map_or_else(String::new, |name| format!(" by {name}"));
        let wait = slf.get().decision().retry_after;
        let message = format!("denied{name}: the same request could be allowed in {wait}");
        let exception =
            py.import("penstock.errors")?.getattr("RateLimited")?.call1((message, slf))?;
        Err(PyErr::from_value(exception))
    }

    /// False if the request must be refused: denied, by a limit that does not only watch.
    fn __bool__(&self) -> bool {
        !self.must_be_refused()
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Decision>() else { return Ok(false) };
        let (one, two, py) = (slf.get(), other.get(), slf.py());
        let name = |decision: &Decision| decision.name(py).map(|name| name.to_string());
        Ok(one.decision() == two.decision()
            && one.limit(py)?.limit == two.limit(py)?.limit
            && one.shadow() == two.shadow()
            && one.content.cost == two.content.cost
            && one.content.degraded == two.content.degraded
            && name(one) == name(two)
            && one.canonical(py)? == two.canonical(py)?)
    }

    fn __hash__(&self) -> u64 {
        let decision = self.decision();
        let mut hasher = DefaultHasher::new();
        (decision.allowed, decision.remaining, decision.retry_after, decision.now)
            .hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let decision = self.decision();
        let name = self.name(py).map_or_else(String::new, |name| format!(" {name}"));
        let id = self.canonical(py)?.map_or_else(String::new, |id| {
            // Long ids are cut: this is for people.
            let (shown, more) = (id.chars().take(60).collect::<String>(), id.chars().nth(60));
            format!(" {}{}", shown.escape_debug(), if more.is_some() { "…" } else { "" })
        });
        let degraded = if self.content.degraded { " (degraded)" } else { "" };
        let answer = match (decision.allowed, decision.unlimited) {
            (true, true) => format!("allowed{degraded}, unlimited"),
            (allowed, _) => {
                let answer = if allowed { "allowed" } else { "denied" };
                let shadow = if self.shadow() { " (shadow)" } else { "" };
                let (left, retry, reset) =
                    (decision.remaining, decision.retry_after, decision.reset_after);
                format!(
                    "{answer}{shadow}{degraded}, remaining={left}, retry_after={retry}, reset_after={reset}"
                )
            }
        };
        Ok(format!("<Decision{name}{id}: {answer}>"))
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        let _ = memo;
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this) = (slf.py(), slf.get());
        let decision = this.decision();
        let rebuild = py.import("penstock._core")?.getattr("_decision_from_parts")?;
        let numbers = [
            decision.remaining,
            decision.retry_after.get(),
            decision.reset_after.get(),
            decision.next_token_after.get(),
            decision.now.get(),
            this.content.cost,
        ];
        let flags = [
            decision.allowed,
            decision.unlimited,
            this.content.decided.shadow,
            this.content.degraded,
        ];
        let words = (this.name(py), this.id(py)?, this.description(py)?, this.docs(py)?);
        let parts = this.content.parts.as_ref().map(|parts| parts.clone_ref(py));
        (rebuild, (numbers, flags, this.limit(py)?, words, parts)).into_pyobject(py)
    }

    /// Give the same decision with some of it replaced.
    #[pyo3(signature = (*, allowed = None, cost = None, retry_after_ns = None, degraded = None))]
    fn _replaced<'py>(
        slf: &Bound<'py, Self>,
        allowed: Option<bool>,
        cost: Option<i64>,
        retry_after_ns: Option<i64>,
        degraded: Option<bool>,
    ) -> PyResult<Bound<'py, Decision>> {
        let (py, content) = (slf.py(), &slf.get().content);
        let mut decided = content.decided.clone();
        if let Some(allowed) = allowed {
            decided.decision.allowed = allowed;
        }
        if let Some(nanos) = retry_after_ns {
            decided.decision.retry_after = Nanos::clamped(nanos);
        }
        let content = DecisionData {
            decided,
            cost: cost.unwrap_or(content.cost),
            id: content.id.as_ref().map(|id| id.clone_ref(py)),
            entry: content.entry.as_ref().map(|entry| entry.clone_ref(py)),
            parts: content.parts.as_ref().map(|parts| parts.clone_ref(py)),
            degraded: degraded.unwrap_or(content.degraded),
        };
        Bound::new(py, Decision::new(content))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("penstock.display")?.call_method1("decision_html", (slf,))
    }
}

/// Make a decision anew from what `Decision.__reduce__` gave.
#[pyfunction]
pub(crate) fn _decision_from_parts<'py>(
    py: Python<'py>,
    numbers: [i64; 6],
    flags: [bool; 4],
    limit: &Bound<'py, Limit>,
    words: (Option<Py<PyString>>, Option<String>, Option<String>, Option<String>),
    parts: Option<Py<PyTuple>>,
) -> PyResult<Bound<'py, Decision>> {
    let [remaining, retry_after, reset_after, next_token_after, now, cost] = numbers;
    let [allowed, unlimited, shadow, degraded] = flags;
    let (name, id, description, docs) = words;
    let entry = name.map(|name| {
        let text = name.bind(py).to_str()?;
        let rule = Rule {
            description: description.map(Arc::from),
            docs: docs.map(Arc::from),
            ..Rule::plain(limit.get().limit)
        };
        let entry =
            Entry::alone(text, rule).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Py::new(py, LimitEntry::new(py, name, Arc::new(entry)))
    });
    let decision = decision::Decision {
        allowed,
        unlimited,
        remaining,
        retry_after: Nanos::clamped(retry_after),
        reset_after: Nanos::clamped(reset_after),
        next_token_after: Nanos::clamped(next_token_after),
        now: Timestamp::clamped(now),
    };
    let content = DecisionData {
        decided: Decided { decision, shadow, effective_limit: None },
        cost,
        id: id.map(|id| PyString::new(py, &id).into_any().unbind()),
        entry: entry.transpose()?,
        parts,
        degraded,
    };
    Bound::new(py, Decision::new(content))
}

/// A decision over several transactions: `parts` in order, answered as the one at `binding`.
pub(crate) fn over_several<'py>(
    py: Python<'py>,
    decision: decision::Decision,
    binding: Option<usize>,
    mut contents: Vec<DecisionData>,
) -> PyResult<Bound<'py, Decision>> {
    let answer = binding.and_then(|place| contents.get(place)).map(|content| DecisionData {
        decided: Decided { decision, ..content.decided.clone() },
        cost: content.cost,
        id: content.id.as_ref().map(|id| id.clone_ref(py)),
        entry: content.entry.as_ref().map(|entry| entry.clone_ref(py)),
        parts: None,
        degraded: false,
    });
    let parts = contents.drain(..).map(|content| Bound::new(py, Decision::new(content)));
    let parts = PyTuple::new(py, parts.collect::<PyResult<Vec<_>>>()?)?;
    let nobody = DecisionData {
        decided: Decided { decision, shadow: false, effective_limit: None },
        cost: 0,
        id: None,
        entry: None,
        parts: None,
        degraded: false,
    };
    let content = DecisionData { parts: Some(parts.unbind()), ..answer.unwrap_or(nobody) };
    Bound::new(py, Decision::new(content))
}
