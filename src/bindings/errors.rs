//! Conversion of the core's errors to the exceptions of `penstock.errors`.
//!
//! The matches are exhaustive: a new variant does not compile until it has an exception.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyString, PyTuple};

use crate::clock::ClockError;
use crate::config::ConfigError;
use crate::engine::cost::CostError;
use crate::engine::limit_error::LimitError;
use crate::engine::time::BeforeOrigin;
use crate::limiter::{CallError, Refused};
use crate::store::StoreError;
use crate::store::any::OpenError;
use crate::store::url_parts::UrlError;

/// An error with an exception.
pub(crate) trait ToPyErr {
    /// Returns the exception.
    fn to_py_err(&self) -> PyErr;
}

/// Returns an exception of the class `class` of `penstock.errors`, with attributes.
pub(crate) fn raise<'py>(
    py: Python<'py>,
    class: &str,
    message: &str,
    attributes: &[(&str, Bound<'py, PyAny>)],
) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let made = || -> PyResult<Bound<'py, PyAny>> {
        let module =
            ERRORS.get_or_try_init(py, || py.import("penstock.errors").map(Bound::unbind))?;
        let exception = module.bind(py).getattr(class)?.call1((message,))?;
        for (name, value) in attributes {
            exception.setattr(*name, value)?;
        }
        Ok(exception)
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// Returns the repr of a value, cut to a length that suits a message.
pub(crate) fn shown(given: &Bound<'_, PyAny>) -> String {
    let text = given.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    if text.chars().count() <= 80 {
        text
    } else {
        text.chars().take(77).chain("...".chars()).collect()
    }
}

/// Returns the error for an object that holds a store, a clock or a thread's state.
pub(crate) fn not_picklable(class: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("a {class} cannot be pickled or copied; {instead}"))
}

/// Adds a note that says which of `count` values an error is about.
pub(crate) fn at_position(
    py: Python<'_>,
    error: PyErr,
    what: &str,
    index: usize,
    count: usize,
) -> PyErr {
    let note = format!("this is the {what} at position {index} of {count}");
    // An exception that takes no note still says what is wrong.
    let _ = error.add_note(py, &note);
    error
}

/// Puts a cost beyond 64 bits into the error about it, which knows only the nearest 64-bit number.
#[cold]
pub(crate) fn with_cost(error: PyErr, given: Option<&Bound<'_, PyAny>>) -> PyErr {
    let Some(given) = given.filter(|given| given.extract::<i64>().is_err()) else { return error };
    let py = given.py();
    let value = error.value(py);
    let exact = || -> PyResult<Bound<'_, PyAny>> {
        let nearest = value.getattr("cost")?.str()?;
        let message = value.str()?.to_str()?.replace(nearest.to_str()?, &shown(given));
        let exact = value.get_type().call1((message,))?;
        exact.setattr("cost", given)?;
        exact.setattr("limit_name", value.getattr("limit_name")?)?;
        Ok(exact)
    };
    // Only errors about costs have these attributes.
    exact().map_or(error, PyErr::from_value)
}

fn plain(class: &str, message: &str) -> PyErr {
    Python::attach(|py| raise(py, class, message, &[]))
}

impl ToPyErr for CallError {
    fn to_py_err(&self) -> PyErr {
        let message = self.to_string();
        match self {
            CallError::UnknownLimit { .. } => plain("UnknownLimit", &message),
            CallError::InvalidId { .. } => plain("InvalidId", &message),
            CallError::Cost { limit, source } => {
                let (class, cost) = match source {
                    CostError::Negative { found } => ("CostNegative", *found),
                    CostError::TooHigh { found, .. } => ("CostTooHigh", *found),
                };
                Python::attach(|py| {
                    let attributes = || -> PyResult<[(&str, Bound<'_, PyAny>); 2]> {
                        Ok([
                            ("cost", cost.into_pyobject(py)?.into_any()),
                            ("limit_name", limit.as_str().into_pyobject(py)?.into_any()),
                        ])
                    };
                    attributes().map_or_else(
                        |error| error,
                        |attributes| raise(py, class, &message, &attributes),
                    )
                })
            }
            CallError::Limit { source, .. } => limit_error(&message, source),
            CallError::DuplicateBucket { .. } => plain("TransactionError", &message),
            CallError::Store(error) => error.to_py_err(),
        }
    }
}

fn limit_error(message: &str, error: &LimitError) -> PyErr {
    Python::attach(|py| {
        let field = match error.field() {
            None => py.None().into_bound(py),
            Some(field) => PyString::intern(py, field).into_any(),
        };
        raise(py, "LimitError", message, &[("field", field)])
    })
}

impl ToPyErr for LimitError {
    fn to_py_err(&self) -> PyErr {
        limit_error(&self.to_string(), self)
    }
}

impl ToPyErr for StoreError {
    fn to_py_err(&self) -> PyErr {
        let class = match self {
            StoreError::Unavailable { .. } | StoreError::Refused { .. } => "StoreUnavailable",
            StoreError::Timeout { .. } | StoreError::ReplyLost { .. } => "StoreTimeout",
            StoreError::BadReply { .. } | StoreError::Closed => "StoreError",
        };
        plain(class, &self.to_string())
    }
}

impl ToPyErr for OpenError {
    fn to_py_err(&self) -> PyErr {
        plain("StoreUnavailable", &self.to_string())
    }
}

impl ToPyErr for UrlError {
    fn to_py_err(&self) -> PyErr {
        plain("ConfigError", &self.to_string())
    }
}

impl ToPyErr for Refused {
    fn to_py_err(&self) -> PyErr {
        Python::attach(|py| {
            let name = PyString::new(py, &self.name).into_any();
            raise(py, "ConfigError", &self.to_string(), &[("limit_name", name)])
        })
    }
}

impl ToPyErr for ConfigError {
    fn to_py_err(&self) -> PyErr {
        Python::attach(|py| {
            let attributes = || -> PyResult<[(&str, Bound<'_, PyAny>); 4]> {
                let first = self.problems().first();
                let file = first.and_then(|problem| problem.file.as_deref());
                let line = first.and_then(|problem| problem.line);
                let limit = first.and_then(|problem| problem.limit.as_deref());
                let problems = self.problems().iter().map(|problem| problem.to_string());
                Ok([
                    ("file", file.into_pyobject(py)?.into_any()),
                    ("line", line.into_pyobject(py)?.into_any()),
                    ("limit_name", limit.into_pyobject(py)?.into_any()),
                    ("problems", PyTuple::new(py, problems.collect::<Vec<_>>())?.into_any()),
                ])
            };
            match attributes() {
                Ok(attributes) => raise(py, "ConfigError", &self.to_string(), &attributes),
                Err(error) => error,
            }
        })
    }
}

impl ToPyErr for ClockError {
    fn to_py_err(&self) -> PyErr {
        PyValueError::new_err(self.to_string())
    }
}

impl ToPyErr for BeforeOrigin {
    fn to_py_err(&self) -> PyErr {
        PyValueError::new_err(self.to_string())
    }
}
