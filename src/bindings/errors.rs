//! Conversion of the core's errors to the exceptions of `penstock.errors`.
//!
//! The matches are exhaustive, so a new variant does not compile until it has an exception.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyString, PyTuple};

use crate::clock::ClockError;
use crate::config::ConfigError;
use crate::engine::cost::CostError;
use crate::engine::limit_error::LimitError;
use crate::engine::time::BeforeOrigin;
use crate::limiter::{CallError, Failure, LimitConflict};
use crate::simulate::Fault;
use crate::store::StoreError;
use crate::store::any::OpenError;
use crate::store::url_parts::UrlError;

/// Returns an exception of the class `class` of `penstock.errors`, with attributes.
pub(crate) fn raise<'py>(
    py: Python<'py>,
    class: &str,
    message: &str,
    attributes: &[(&str, Bound<'py, PyAny>)],
) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let build = || -> PyResult<Bound<'py, PyAny>> {
        let module =
            ERRORS.get_or_try_init(py, || py.import("penstock.errors").map(Bound::unbind))?;
        let exception = module.bind(py).getattr(class)?.call1((message,))?;
        for (name, value) in attributes {
            exception.setattr(*name, value)?;
        }
        Ok(exception)
    };
    build().map_or_else(|error| error, PyErr::from_value)
}

/// Returns the repr of a value, truncated to 80 characters.
pub(crate) fn shown(given: &Bound<'_, PyAny>) -> String {
    let text = given.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    if text.chars().count() <= 80 {
        text
    } else {
        text.chars().take(77).chain("...".chars()).collect()
    }
}

/// Returns the `TypeError` for pickling an object that cannot leave its process.
pub(crate) fn not_picklable(class: &str, instead: &str) -> PyErr {
    PyTypeError::new_err(format!("a {class} cannot be pickled or copied; {instead}"))
}

/// Adds a note to an error: the position of the invalid value among `count` values.
pub(crate) fn at_position(
    py: Python<'_>,
    error: PyErr,
    what: &str,
    index: usize,
    count: usize,
) -> PyErr {
    let note = format!("this is the {what} at position {index} of {count}");
    // If the note cannot be added, the error is still useful.
    let _ = error.add_note(py, &note);
    error
}

/// Corrects the error about a cost beyond 64 bits, which contains the cost clamped to 64 bits.
#[cold]
pub(crate) fn with_cost(error: PyErr, given: Option<&Bound<'_, PyAny>>) -> PyErr {
    let Some(given) = given.filter(|given| given.extract::<i64>().is_err()) else { return error };
    let py = given.py();
    let value = error.value(py);
    let exact = || -> PyResult<Bound<'_, PyAny>> {
        let clamped = value.getattr("cost")?.str()?;
        let message = value.str()?.to_str()?.replace(clamped.to_str()?, &shown(given));
        let exact = value.get_type().call1((message,))?;
        exact.setattr("cost", given)?;
        exact.setattr("limit_name", value.getattr("limit_name")?)?;
        Ok(exact)
    };
    // Fails for other errors, because only errors about costs have these attributes.
    exact().map_or(error, PyErr::from_value)
}

fn plain(class: &str, message: &str) -> PyErr {
    Python::attach(|py| raise(py, class, message, &[]))
}

impl From<Failure> for PyErr {
    #[cold]
    fn from(error: Failure) -> PyErr {
        let message = error.to_string();
        match *error {
            CallError::UnknownLimit { .. } => plain("UnknownLimit", &message),
            CallError::InvalidId { .. } => plain("InvalidId", &message),
            CallError::Cost { limit, source } => {
                let (class, cost) = match source {
                    CostError::Negative { found } => ("CostNegative", found),
                    CostError::TooHigh { found, .. } => ("CostTooHigh", found),
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
            CallError::Limit { source, .. } => limit_error(&message, &source),
            CallError::DuplicateBucket { .. } => plain("TransactionError", &message),
            CallError::Store(error) => PyErr::from(error),
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

impl From<LimitError> for PyErr {
    fn from(error: LimitError) -> PyErr {
        limit_error(&error.to_string(), &error)
    }
}

impl From<StoreError> for PyErr {
    fn from(error: StoreError) -> PyErr {
        let class = match error {
            StoreError::Unavailable { .. } | StoreError::Refused { .. } => "StoreUnavailable",
            StoreError::Timeout { .. } | StoreError::ReplyLost { .. } => "StoreTimeout",
            StoreError::BadReply { .. } | StoreError::Closed => "StoreError",
        };
        plain(class, &error.to_string())
    }
}

impl From<OpenError> for PyErr {
    fn from(error: OpenError) -> PyErr {
        plain("StoreUnavailable", &error.to_string())
    }
}

impl From<UrlError> for PyErr {
    fn from(error: UrlError) -> PyErr {
        plain("ConfigError", &error.to_string())
    }
}

impl From<LimitConflict> for PyErr {
    fn from(error: LimitConflict) -> PyErr {
        Python::attach(|py| {
            let name = PyString::new(py, &error.name).into_any();
            raise(py, "ConfigError", &error.to_string(), &[("limit_name", name)])
        })
    }
}

impl From<ConfigError> for PyErr {
    fn from(error: ConfigError) -> PyErr {
        Python::attach(|py| {
            let attributes = || -> PyResult<[(&str, Bound<'_, PyAny>); 4]> {
                let first = error.problems().first();
                let file = first.and_then(|problem| problem.file.as_deref());
                let line = first.and_then(|problem| problem.line);
                let limit = first.and_then(|problem| problem.limit.as_deref());
                let problems = error.problems().iter().map(|problem| problem.to_string());
                Ok([
                    ("file", file.into_pyobject(py)?.into_any()),
                    ("line", line.into_pyobject(py)?.into_any()),
                    ("limit_name", limit.into_pyobject(py)?.into_any()),
                    ("problems", PyTuple::new(py, problems.collect::<Vec<_>>())?.into_any()),
                ])
            };
            match attributes() {
                Ok(attributes) => raise(py, "ConfigError", &error.to_string(), &attributes),
                Err(error) => error,
            }
        })
    }
}

impl From<ClockError> for PyErr {
    fn from(error: ClockError) -> PyErr {
        PyValueError::new_err(error.to_string())
    }
}

impl From<BeforeOrigin> for PyErr {
    fn from(error: BeforeOrigin) -> PyErr {
        PyValueError::new_err(error.to_string())
    }
}

impl From<Fault> for PyErr {
    fn from(error: Fault) -> PyErr {
        match error {
            Fault::Call(error) => error.into(),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}
