//! Conversion of the rule for an id to the Python class `Explanation`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bindings::limit::Limit;
use crate::engine::registry::{Entry, Rule};

/// Returns the explanation for an id in canonical form.
pub(crate) fn explanation<'py>(
    py: Python<'py>,
    entry: &Entry,
    id: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let Rule { limit, shadow, description, docs, comment, origin, scope } = entry.rule_for(id);
    let facts = PyDict::new(py);
    facts.set_item("name", entry.name().as_str())?;
    facts.set_item("id", id)?;
    facts.set_item("bucket_key", entry.bucket_key(id))?;
    facts.set_item("limit", Bound::new(py, Limit::from(*limit))?)?;
    facts.set_item("rule", scope.to_string())?;
    facts.set_item("file", origin.as_ref().map(|origin| &*origin.file))?;
    facts.set_item("line", origin.as_ref().map(|origin| origin.line))?;
    facts.set_item("shadow", *shadow)?;
    facts.set_item("description", description.as_deref())?;
    facts.set_item("docs", docs.as_deref())?;
    facts.set_item("comment", comment.as_deref())?;
    py.import("penstock.explanation")?.getattr("Explanation")?.call1((facts,))
}
