//! The limit that a decision was made under.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::engine::registry::Entry;
use crate::limiter::{BoundLimit, Snapshot};
use crate::rate_limit_fields;

/// A limit to decide under, and what decisions show of it.
pub(crate) type ActiveLimit = (Arc<BoundLimit>, Py<LimitEntry>);

/// A limit's name, its rules and its header texts.
///
/// Holds no reference to the limiter, so that a decision that is kept does not keep the limiter.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct LimitEntry {
    pub(crate) name: Py<PyString>,
    pub(crate) entry: Arc<Entry>,
    /// The name as header fields write it; `None` where they cannot.
    pub(crate) label: Option<String>,
    /// The header fields of the default; `None` if it has none.
    pub(crate) policy: Option<Py<PyString>>,
}

impl LimitEntry {
    pub(crate) fn new(py: Python<'_>, name: Py<PyString>, entry: Arc<Entry>) -> LimitEntry {
        let label = rate_limit_fields::string(entry.name().as_str());
        let limit = &entry.default_rule().limit;
        let policy = label.as_ref().and_then(|label| rate_limit_fields::policy(label, limit));
        let policy = policy.map(|policy| PyString::new(py, &policy).unbind());
        LimitEntry { name, entry, label, policy }
    }

    /// The limit of the same name as `known` in `active`, with `known` itself unless a reload has
    /// replaced it.
    pub(crate) fn active_in(
        known: &Py<LimitEntry>,
        py: Python<'_>,
        active: &Snapshot,
    ) -> PyResult<ActiveLimit> {
        let LimitEntry { name, entry, .. } = known.get();
        let bound = active.limit(entry.name().as_str())?;
        if Arc::ptr_eq(bound.entry(), entry) {
            return Ok((Arc::clone(bound), known.clone_ref(py)));
        }
        let entry = LimitEntry::new(py, name.clone_ref(py), Arc::clone(bound.entry()));
        Ok((Arc::clone(bound), Py::new(py, entry)?))
    }
}
