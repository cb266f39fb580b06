//! Conversion of the core's errors to the exceptions of `penstock.errors`.
//!
//! The matches are exhaustive, so a new variant does not compile until it has an exception.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyTuple};

use crate::bindings::once::Once;
use crate::clock::ClockError;
use crate::config::ConfigError;
use crate::engine::cost::CostError;
use crate::engine::limit_error::LimitError;
use crate::engine::time::BeforeOrigin;
use crate::limiter::{CallError, Failure, LimitConflict};
use crate::simulate::EventFault;
use crate::store::StoreError;
use crate::store::any::OpenError;
use crate::store::url_parts::UrlError;

/// Returns an exception of a class of `penstock.errors`.
pub(crate) fn raise(class: &str, message: &str) -> PyErr {
    raise_with(class, message, |_| Ok(()))
}

/// Returns an exception of a class of `penstock.errors`, whose attributes `set` sets.
pub(crate) fn raise_with(
    class: &str,
    message: &str,
    set: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>,
) -> PyErr {
    Python::attach(|py| {
        let build = || {
            let exception = class_of(py, class)?.call1((message,))?;
            set(&exception)?;
            Ok(PyErr::from_value(exception))
        };
        build().unwrap_or_else(|error| error)
    })
}

/// Returns a `RateLimited` exception about a decision.
pub(crate) fn rate_limited<'py>(
    decision: &Bound<'py, PyAny>,
    message: &str,
) -> PyResult<Bound<'py, PyAny>> {
    class_of(decision.py(), "RateLimited")?.call1((message, decision))
}

/// Returns a class of `penstock.errors`.
fn class_of<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static ERRORS: Once<Py<PyModule>> = Once::new();
    let module = ERRORS.get_or_try_init(py, || py.import("penstock.errors").map(Bound::unbind))?;
    module.bind(py).getattr(name)
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

impl From<Failure> for PyErr {
    #[cold]
    fn from(error: Failure) -> PyErr {
        let message = error.to_string();
        match *error {
            CallError::UnknownLimit { found, .. } => about_limit("UnknownLimit", &message, &found),
            CallError::InvalidId { limit, .. } => about_limit("InvalidId", &message, &limit),
            CallError::Cost { limit, source } => {
                let (class, cost) = match source {
                    CostError::Negative { found } => ("CostNegative", found),
                    CostError::TooHigh { found, .. } => ("CostTooHigh", found),
                    CostError::KeepNegative { found } => ("CostNegative", found),
                    CostError::KeepTooHigh { cost, .. } => ("CostTooHigh", cost),
                };
                raise_with(class, &message, |error| {
                    error.setattr("cost", cost)?;
                    error.setattr("limit_name", limit.as_str())
                })
            }
            CallError::Limit { limit, source } => raise_with("LimitError", &message, |error| {
                error.setattr("field", source.field())?;
                error.setattr("limit_name", limit)
            }),
            CallError::Slots { limit } => about_limit("LimitError", &message, &limit),
            CallError::DuplicateBucket { limit, key, .. } => {
                raise_with("TransactionError", &message, |error| {
                    error.setattr("limit_name", limit)?;
                    error.setattr("bucket_key", key)
                })
            }
            CallError::Store(error) => PyErr::from(error),
        }
    }
}

/// Returns an exception about one limit.
fn about_limit(class: &str, message: &str, limit: &str) -> PyErr {
    raise_with(class, message, |error| error.setattr("limit_name", limit))
}

/// Returns the `LimitError` for an invalid field.
pub(crate) fn limit_error(message: &str, field: Option<&str>) -> PyErr {
    raise_with("LimitError", message, |error| error.setattr("field", field))
}

impl From<LimitError> for PyErr {
    fn from(error: LimitError) -> PyErr {
        limit_error(&error.to_string(), error.field())
    }
}

impl From<StoreError> for PyErr {
    fn from(error: StoreError) -> PyErr {
        let class = match error {
            StoreError::Unavailable { .. } | StoreError::Refused { .. } => "StoreUnavailable",
            StoreError::Timeout { .. } | StoreError::ReplyLost { .. } => "StoreTimeout",
            StoreError::BadReply { .. } | StoreError::Closed | StoreError::WouldWait => {
                "StoreError"
            }
        };
        raise(class, &error.to_string())
    }
}

impl From<OpenError> for PyErr {
    fn from(error: OpenError) -> PyErr {
        raise("StoreUnavailable", &error.to_string())
    }
}

impl From<UrlError> for PyErr {
    fn from(error: UrlError) -> PyErr {
        raise("ConfigError", &error.to_string())
    }
}

impl From<LimitConflict> for PyErr {
    fn from(error: LimitConflict) -> PyErr {
        let message = error.to_string();
        raise_with("ConfigError", &message, |raised| raised.setattr("limit_name", error.name))
    }
}

impl From<ConfigError> for PyErr {
    fn from(error: ConfigError) -> PyErr {
        raise_with("ConfigError", &error.to_string(), |raised| {
            let first = error.problems().first();
            raised.setattr("file", first.and_then(|problem| problem.path()))?;
            raised.setattr("line", first.and_then(|problem| problem.line))?;
            raised.setattr("limit_name", first.and_then(|problem| problem.limit.as_deref()))?;
            let py = raised.py();
            let class = class_of(py, "ConfigProblem")?;
            let problems = error.problems().iter().map(|problem| {
                let shown = class.call1((problem.to_string(),))?;
                shown.setattr("file", problem.path())?;
                shown.setattr("line", problem.line)?;
                shown.setattr("limit_name", problem.limit.as_deref())?;
                shown.setattr("message", problem.fault.to_string())?;
                Ok(shown)
            });
            let problems = problems.collect::<PyResult<Vec<_>>>()?;
            raised.setattr("problems", PyTuple::new(py, problems)?)
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

impl From<EventFault> for PyErr {
    fn from(error: EventFault) -> PyErr {
        match error {
            EventFault::Call(error) => error.into(),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}
