//! The class `Explanation`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bindings::limit::Limit;
use crate::engine::registry::{Entry, Rule};

/// Explanation of which limit applies to an id, and why.
///
/// Returned by `Limits.explain`. Can be pickled.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Explanation {
    limit: Limit,
    fields: Fields,
}

/// All fields except the limit. Also the pickled state.
#[derive(Clone, Debug, FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Fields {
    name: String,
    id: String,
    bucket_key: String,
    rule: String,
    file: Option<String>,
    line: Option<u32>,
    shadow: bool,
    description: Option<String>,
    docs: Option<String>,
    comment: Option<String>,
}

impl Explanation {
    /// Creates the explanation for an id in canonical form.
    pub(crate) fn of(entry: &Entry, id: &str) -> Explanation {
        let Rule { limit, shadow, description, docs, comment, origin, scope } = entry.rule_for(id);
        let text =
            |text: &Option<_>| text.as_ref().map(|text: &std::sync::Arc<str>| text.to_string());
        let fields = Fields {
            name: entry.name().to_string(),
            id: id.to_owned(),
            bucket_key: entry.bucket_key(id),
            rule: scope.to_string(),
            file: origin.as_ref().map(|origin| origin.file.to_string()),
            line: origin.as_ref().map(|origin| origin.line),
            shadow: *shadow,
            description: text(description),
            docs: text(docs),
            comment: text(comment),
        };
        Explanation { limit: Limit::from(*limit), fields }
    }
}

#[pymethods]
impl Explanation {
    /// The limit's name.
    #[getter]
    fn name(&self) -> &str {
        &self.fields.name
    }

    /// The id in canonical form.
    #[getter]
    fn id(&self) -> &str {
        &self.fields.id
    }

    /// The key of the bucket, `number:id` or `name:id`.
    #[getter]
    fn bucket_key(&self) -> &str {
        &self.fields.bucket_key
    }

    /// The limit that applies.
    #[getter]
    fn limit(&self) -> Limit {
        Limit::from(self.limit.limit)
    }

    /// The rule that selected the limit, in English.
    #[getter]
    fn rule(&self) -> &str {
        &self.fields.rule
    }

    /// The file of the entry that applies; `None` if it did not come from a file.
    #[getter]
    fn file(&self) -> Option<&str> {
        self.fields.file.as_deref()
    }

    /// The line of the entry that applies, from 1; `None` if unknown.
    #[getter]
    fn line(&self) -> Option<u32> {
        self.fields.line
    }

    /// Whether the limit is in shadow mode.
    #[getter]
    fn shadow(&self) -> bool {
        self.fields.shadow
    }

    /// The limit's description from the limits file; `None` if it has none.
    #[getter]
    fn description(&self) -> Option<&str> {
        self.fields.description.as_deref()
    }

    /// The URL of the limit's documentation; `None` if it has none.
    #[getter]
    fn docs(&self) -> Option<&str> {
        self.fields.docs.as_deref()
    }

    /// The comment of the override that applies; `None` if it has none.
    #[getter]
    fn comment(&self) -> Option<&str> {
        self.fields.comment.as_deref()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let rebuild = py.import("penstock._core")?.getattr("_unpickled_explanation")?;
        (rebuild, (self.limit(), self.fields.clone())).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let limit = Bound::new(py, self.limit())?.repr()?.to_string();
        let Fields { bucket_key, rule, file, line, .. } = &self.fields;
        let origin = match (file, line) {
            (Some(file), Some(line)) => format!(" at {file}:{line}"),
            _ => String::new(),
        };
        Ok(format!("<Explanation {bucket_key}: {limit} by {rule}{origin}>"))
    }
}

/// Rebuild an explanation from the state that `Explanation.__reduce__` returned.
#[pyfunction]
pub(crate) fn _unpickled_explanation(limit: &Bound<'_, Limit>, fields: Fields) -> Explanation {
    Explanation { limit: Limit::from(limit.get().limit), fields }
}
