//! The pickled state of a `Decision`.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::decision_data::{DecisionData, Rare};
use crate::bindings::limit::Limit;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::decision;
use crate::engine::registry::{Entry, Rule};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::Answered;

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
