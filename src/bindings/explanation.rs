//! `Explanation`.

use pyo3::prelude::*;

use crate::bindings::limit::Limit;
use crate::engine::registry::{Entry, Rule};

/// Which limit applies to an id, and why.
///
/// Returned by `Limits.explain`.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Explanation {
    name: String,
    id: String,
    bucket_key: String,
    rule: Rule,
}

impl Explanation {
    /// The explanation for an id in canonical spelling.
    pub(crate) fn of(entry: &Entry, id: &str) -> Explanation {
        Explanation {
            name: entry.name().to_string(),
            id: id.to_owned(),
            bucket_key: entry.bucket_key(id),
            rule: entry.rule_for(id).clone(),
        }
    }
}

#[pymethods]
impl Explanation {
    /// The limit's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The id in canonical form.
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// The key of the bucket, `number:id` or `name:id`.
    #[getter]
    fn bucket_key(&self) -> &str {
        &self.bucket_key
    }

    /// The limit that applies.
    #[getter]
    fn limit(&self) -> Limit {
        Limit::from(self.rule.limit)
    }

    /// The rule that selected the limit, in English.
    #[getter]
    fn rule(&self) -> String {
        self.rule.scope.to_string()
    }

    /// The file of the entry that applies; `None` if it came from no file.
    #[getter]
    fn file(&self) -> Option<&str> {
        self.rule.origin.as_ref().map(|origin| &*origin.file)
    }

    /// The line of the entry that applies, from 1; `None` if unknown.
    #[getter]
    fn line(&self) -> Option<u32> {
        self.rule.origin.as_ref().map(|origin| origin.line)
    }

    /// Whether the limit is in shadow mode.
    #[getter]
    fn shadow(&self) -> bool {
        self.rule.shadow
    }

    /// Why the override is there, as its file or row says; `None` for a default.
    #[getter]
    fn comment(&self) -> Option<&str> {
        self.rule.comment.as_deref()
    }

    /// The limit's description from the limits file; `None` if it has none.
    #[getter]
    fn description(&self) -> Option<&str> {
        self.rule.description.as_deref()
    }

    /// The URL of the limit's documentation; `None` if it has none.
    #[getter]
    fn docs(&self) -> Option<&str> {
        self.rule.docs.as_deref()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let limit = Bound::new(py, self.limit())?.repr()?.to_string();
        let place = match &self.rule.origin {
            None => String::new(),
            Some(origin) => format!(" at {}:{}", origin.file, origin.line),
        };
        Ok(format!("<Explanation {}: {limit} by {}{place}>", self.bucket_key, self.rule()))
    }
}
