//! The pairs of name and value of the `ietf` header style.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::bindings::once::Once;

/// How Python gets a field: as text, or as bytes with its name in lower case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Text,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Name {
    Policy,
    Item,
}

/// A `RateLimit-Policy` field that is the same for every request, in both forms.
#[derive(Debug)]
pub(crate) struct PolicyField {
    pub(crate) value: String,
    text: Py<PyTuple>,
    bytes: Py<PyTuple>,
}

impl Form {
    /// Returns the pair of name and value.
    pub(crate) fn field<'py>(
        self,
        py: Python<'py>,
        name: Name,
        value: &str,
    ) -> PyResult<Bound<'py, PyTuple>> {
        static TEXTS: [Once<Py<PyString>>; 2] = [const { Once::new() }; 2];
        static BYTES: [Once<Py<PyBytes>>; 2] = [const { Once::new() }; 2];
        let (index, name) = match name {
            Name::Policy => (0, "RateLimit-Policy"),
            Name::Item => (1, "RateLimit"),
        };
        match self {
            Form::Text => {
                let name = TEXTS[index].get_or_init(py, || PyString::intern(py, name).unbind());
                (name.bind(py), PyString::new(py, value)).into_pyobject(py)
            }
            Form::Bytes => {
                let lowercase = || PyBytes::new(py, name.to_lowercase().as_bytes()).unbind();
                let name = BYTES[index].get_or_init(py, lowercase);
                (name.bind(py), PyBytes::new(py, value.as_bytes())).into_pyobject(py)
            }
        }
    }
}

impl PolicyField {
    pub(crate) fn new(py: Python<'_>, value: String) -> PyResult<PolicyField> {
        let text = Form::Text.field(py, Name::Policy, &value)?.unbind();
        let bytes = Form::Bytes.field(py, Name::Policy, &value)?.unbind();
        Ok(PolicyField { value, text, bytes })
    }

    pub(crate) fn field<'py>(&self, py: Python<'py>, form: Form) -> Bound<'py, PyTuple> {
        match form {
            Form::Text => self.text.bind(py).clone(),
            Form::Bytes => self.bytes.bind(py).clone(),
        }
    }
}
