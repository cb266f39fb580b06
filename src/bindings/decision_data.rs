//! The data of a `Decision`, the values computed from it on access, and its pickled form.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::arguments::seconds;
use crate::bindings::id_text::{drop_kept_id, id_text};
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::answer::Answer;
use crate::engine::decision;
use crate::engine::limit;
use crate::engine::registry::{Entry, Rule};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{Answered, Decided};

/// The data of a decision, converted to Python values on access.
///
/// The id is kept as given. Its canonical form, rule, limit and all numbers are computed on access, because
/// few callers read them and storing them would cost every decision an allocation.
#[derive(Debug, Default)]
pub(crate) struct DecisionData {
    /// What the store found and did.
    pub(crate) answered: Answered,
    pub(crate) verb: Verb,
    pub(crate) cost: i64,
    /// The id as given; `None` if no limit applied.
    pub(crate) id: Option<Py<PyAny>>,
    /// The limit's name, rules and formats; `None` if no limit applied.
    pub(crate) entry: Option<Py<LimitEntry>>,
    /// What few decisions have.
    pub(crate) rare: Option<Box<Rare>>,
}

/// What few decisions have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Numbers in place of those that follow from the answer: of a fallback policy, a wait queue, a
    /// settled reservation, or another process that pickled the decision.
    pub(crate) given: Option<decision::Decision>,
    /// Whether the instant of the numbers is a Unix time already.
    pub(crate) has_unix_time: bool,
    /// The decisions of the transactions; `None` for a single call.
    pub(crate) parts: Option<Py<PyTuple>>,
    /// The reason why a fallback policy decided instead of the store; `None` if the store decided.
    pub(crate) degraded: Option<Box<str>>,
    /// The callback that settles the cost of the request; `None` if nothing is reserved.
    pub(crate) settle: Option<Py<PyAny>>,
}

/// References that a decision no longer needs, to be dropped where other Python code may run.
#[must_use]
pub(crate) struct StaleRefs {
    id: Option<Py<PyAny>>,
    entry: Option<Py<LimitEntry>>,
}

impl DecisionData {
    /// Creates the data of a call's decision.
    pub(crate) fn new(
        answered: Answered,
        verb: Verb,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: Py<LimitEntry>,
    ) -> DecisionData {
        let (id, entry) = (Some(id.clone().unbind()), Some(entry));
        DecisionData { answered, verb, cost, id, entry, rare: None }
    }

    /// Creates the data of a decision whose numbers do not follow from an answer.
    pub(crate) fn given(
        decided: Decided,
        cost: i64,
        id: &Bound<'_, PyAny>,
        entry: Py<LimitEntry>,
    ) -> DecisionData {
        let Decided { decision, shadow, effective_limit } = decided;
        let (id, entry) = (Some(id.clone().unbind()), Some(entry));
        let answered = Answered { shadow, effective_limit, ..Answered::default() };
        let mut data = DecisionData { answered, cost, id, entry, ..DecisionData::default() };
        data.give(decision);
        data
    }

    /// Replaces the numbers.
    pub(crate) fn give(&mut self, decision: decision::Decision) {
        self.answered.answer = Answer::new(None, decision.now, decision.allowed);
        self.rare_mut().given = Some(decision);
    }

    pub(crate) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Reuses the data of a single call's decision for another call, whose answer is already stored.
    /// Returns the references that it replaces.
    #[inline(always)]
    pub(crate) fn refill(
        &mut self,
        (verb, cost): (Verb, i64),
        id: &Bound<'_, PyAny>,
        entry: &Py<LimitEntry>,
    ) -> StaleRefs {
        let py = id.py();
        (self.verb, self.cost) = (verb, cost);
        // The decisions of a pool are those of single calls, which have nothing rare.
        let id = self.id.replace(id.clone().unbind());
        // The limit is almost always the same, so the reference is reused.
        let is_same = self.entry.as_ref().is_some_and(|kept| kept.is(entry));
        let entry = if is_same { None } else { self.entry.replace(entry.clone_ref(py)) };
        StaleRefs { id, entry }
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> DecisionData {
        DecisionData {
            answered: self.answered.clone(),
            verb: self.verb,
            cost: self.cost,
            id: self.id.as_ref().map(|id| id.clone_ref(py)),
            entry: self.entry.as_ref().map(|entry| entry.clone_ref(py)),
            rare: self.rare.as_ref().map(|rare| {
                Box::new(Rare {
                    given: rare.given,
                    has_unix_time: rare.has_unix_time,
                    parts: rare.parts.as_ref().map(|parts| parts.clone_ref(py)),
                    degraded: rare.degraded.clone(),
                    settle: rare.settle.as_ref().map(|settle| settle.clone_ref(py)),
                })
            }),
        }
    }

    /// Computes the numbers.
    pub(crate) fn decision(&self, py: Python<'_>) -> decision::Decision {
        let rare = self.rare.as_deref();
        if let Some(given) = rare.and_then(|rare| rare.given) {
            return given;
        }
        let (Some(id), Some(entry)) = (&self.id, &self.entry) else {
            return decision::Decision::unlimited(self.answered.answer.now);
        };
        let effective = self.answered.effective_limit.as_deref();
        // The text cannot fail, because it was taken from the same id when the call was decided.
        let text = id_text(id.bind(py)).unwrap_or_default();
        entry.get().entry.numbers(self.verb, &text, self.cost, effective, &self.answered.answer)
    }

    /// Returns whether the request may proceed.
    #[inline]
    pub(crate) fn allowed(&self) -> bool {
        self.is_allowed_by_limit() || self.answered.shadow
    }

    /// Returns whether the limit allowed the request, ignoring shadow mode.
    pub(crate) fn is_allowed_by_limit(&self) -> bool {
        self.answered.answer.allowed()
    }

    /// Returns the decisions of the transactions; `None` for a single call.
    pub(crate) fn parts(&self) -> Option<&Py<PyTuple>> {
        self.rare.as_ref().and_then(|rare| rare.parts.as_ref())
    }

    /// Returns why a fallback policy decided; `None` if the store did.
    pub(crate) fn degraded(&self) -> Option<&str> {
        self.rare.as_ref().and_then(|rare| rare.degraded.as_deref())
    }

    /// Computes the numbers, with the Unix time of the decision.
    pub(crate) fn unix_decision(&self, py: Python<'_>) -> decision::Decision {
        let mut decision = self.decision(py);
        let clock = self.entry.as_ref().and_then(|entry| entry.get().clock.as_ref());
        let is_known = self.rare.as_ref().is_some_and(|rare| rare.has_unix_time);
        if let Some(clock) = clock.filter(|_| !is_known) {
            let unix_time = self.with_limit(py, |limit, _| clock.unix_time(decision.now, limit));
            // Never an error, because the id was valid when the call was decided.
            decision.now = unix_time.unwrap_or(decision.now);
        }
        decision
    }

    /// Returns the Unix time `wait` after the decision, in seconds.
    pub(crate) fn after(
        &self,
        py: Python<'_>,
        wait: impl FnOnce(&decision::Decision) -> Nanos,
    ) -> f64 {
        let decision = self.unix_decision(py);
        seconds(decision.now.get().saturating_add(wait(&decision).get()))
    }

    /// Calls `read` with the limit's entry and the canonical id; `None` if no limit applied.
    pub(crate) fn with_id<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Entry, &str) -> R,
    ) -> PyResult<Option<R>> {
        let (Some(id), Some(entry)) = (&self.id, &self.entry) else {
            return Ok(None);
        };
        let entry = &entry.get().entry;
        let id = id.bind(py);
        let text = id_text(id)?;
        // Always valid, because this entry accepted the id when the call was decided.
        Ok(entry.canonical(&text).ok().map(|id| read(entry, &id)))
    }

    /// Calls `read` with the limit that was applied, and whether it is the entry's default.
    pub(crate) fn with_limit<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&limit::Limit, bool) -> R,
    ) -> PyResult<R> {
        if let Some(limit) = &self.answered.effective_limit {
            return Ok(read(limit, false));
        }
        // Without overrides, no lookup of the id is needed.
        let entry = self.entry.as_ref().map(|entry| &entry.get().entry);
        if let Some(rule) = entry.and_then(|entry| entry.only_rule()) {
            return Ok(read(&rule.limit, true));
        }
        let limit = self.with_id(py, |entry, id| entry.rule_for(id).limit)?;
        Ok(read(&limit.unwrap_or(limit::Limit::Unlimited), false))
    }

    /// Returns the limit that was applied.
    pub(crate) fn limit(&self, py: Python<'_>) -> PyResult<Limit> {
        self.with_limit(py, |limit, _| Limit::from(*limit))
    }

    /// Returns the limit's name, or `None` if no limit applied.
    pub(crate) fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.entry.as_ref().map(|entry| entry.get().name.clone_ref(py))
    }

    /// Returns the id in canonical form, or `None` if no limit applied.
    pub(crate) fn id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with_id(py, |_, id| id.to_owned())
    }

    /// Returns a string field of the rule that applies to the id.
    pub(crate) fn rule_text(
        &self,
        py: Python<'_>,
        text: impl FnOnce(&Rule) -> Option<Arc<str>>,
    ) -> PyResult<Option<String>> {
        let text = self.with_id(py, |entry, id| text(entry.rule_for(id)))?.flatten();
        Ok(text.map(|text| text.to_string()))
    }
}

impl StaleRefs {
    /// Drops the references. An implicit drop, which asks whether the thread is attached, would add 103 to
    /// the 1,320 instructions of a spend.
    #[inline(always)]
    pub(crate) fn drop(self, py: Python<'_>) {
        drop_kept_id(py, self.id);
        if let Some(entry) = self.entry {
            entry.drop_ref(py);
        }
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

impl PickledDecision {
    pub(crate) fn of(py: Python<'_>, data: &DecisionData) -> PyResult<PickledDecision> {
        let decision = data.unix_decision(py);
        Ok(PickledDecision {
            allowed: decision.allowed,
            unlimited: decision.unlimited,
            shadow: data.answered.shadow,
            remaining: decision.remaining,
            retry_after_ns: decision.retry_after.get(),
            reset_after_ns: decision.reset_after.get(),
            next_token_after_ns: decision.next_token_after.get(),
            now_ns: decision.now.get(),
            cost: data.cost,
            limit: Py::new(py, data.limit(py)?)?,
            name: data.name(py),
            id: data.id(py)?,
            description: data.rule_text(py, |rule| rule.description.clone())?,
            docs: data.rule_text(py, |rule| rule.docs.clone())?,
            degraded: data.degraded().map(str::to_owned),
            parts: data.parts().map(|parts| parts.clone_ref(py)),
        })
    }

    /// Restores the data of the decision.
    pub(crate) fn data(self, py: Python<'_>) -> PyResult<DecisionData> {
        let state = self;
        let entry = state.name.map(|name| {
            let text = name.bind(py).to_str()?;
            let rule = Rule {
                description: state.description.map(Arc::from),
                docs: state.docs.map(Arc::from),
                ..Rule::plain(state.limit.get().limit)
            };
            let entry = Entry::alone(text, rule)
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            Py::new(py, LimitEntry::new(py, name, Arc::new(entry), None)?)
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
        let rare = Rare {
            parts: state.parts,
            degraded: state.degraded.map(String::into_boxed_str),
            ..Rare::default()
        };
        let mut data = DecisionData {
            answered: Answered { shadow: state.shadow, ..Answered::default() },
            cost: state.cost,
            id: state.id.map(|id| PyString::new(py, &id).into_any().unbind()),
            entry: entry.transpose()?,
            rare: Some(Box::new(rare)),
            ..DecisionData::default()
        };
        data.give(decision);
        Ok(data)
    }
}
