//! Conversion of Python arguments to values of the core.

use std::convert::Infallible;

use pyo3::PyTypeInfo;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use crate::bindings::errors::{limit_error, raise, raise_with, shown};
use crate::bindings::once::Once;
use crate::config;
use crate::engine::factor::{Adjustment, Factor};
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

/// An optional argument whose default is not `None`.
#[derive(Debug)]
pub(crate) enum Argument<'py> {
    Missing,
    Given(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Argument<'py> {
    type Error = Infallible;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> Result<Argument<'py>, Infallible> {
        Ok(Argument::Given(given.to_owned()))
    }
}

impl<'py> Argument<'py> {
    /// Returns the argument, if it was passed.
    pub(crate) fn given(&self) -> Option<&Bound<'py, PyAny>> {
        match self {
            Argument::Missing => None,
            Argument::Given(given) => Some(given),
        }
    }

    /// Returns the `int` argument clamped to 64 bits, or the default if it was not passed.
    pub(crate) fn or_int(&self, name: &str, default: i64) -> PyResult<i64> {
        self.given().map_or(Ok(default), |given| saturating(name, given))
    }
}

/// The items of an iterable. Its `__len__` is not asked, because a wrong one could exhaust the memory.
#[derive(Debug)]
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Items<T>> {
        let items = given.try_iter()?.map(|item| item?.extract::<T>().map_err(Into::into));
        items.collect::<PyResult<_>>().map(Items)
    }
}

/// Returns the `TypeError` for a value of the wrong type.
#[cold]
pub(crate) fn wrong_type(name: &str, expected: &str, given: &Bound<'_, PyAny>) -> PyErr {
    if given.is_none() {
        return PyTypeError::new_err(format!("{name} must be {expected}, found None"));
    }
    let kind = given.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name} must be {expected}, found {kind} {}", shown(given)))
}

/// Returns the argument as a `str`, or a `TypeError`.
pub(crate) fn string<'a, 'py>(
    name: &str,
    given: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, PyString>> {
    given.cast::<PyString>().map_err(|_| wrong_type(name, "a str", given))
}

/// Returns a string in UTF-8, or an error of `class` if UTF-8 cannot encode it.
pub(crate) fn utf8<'a>(
    class: &str,
    name: &str,
    given: &'a Bound<'_, PyString>,
) -> PyResult<&'a str> {
    given.to_str().map_err(|_| {
        let found = shown(given.as_any());
        raise(class, &format!("{name} must be encodable as UTF-8, found {found}"))
    })
}

/// Returns the name of a limit. A name that UTF-8 cannot encode is unknown.
pub(crate) fn limit_name<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    string("name", given)?.to_str().map_err(|_| {
        let message = format!("no limit is named {}", shown(given));
        raise_with("UnknownLimit", &message, |error| error.setattr("limit_name", given))
    })
}

/// Returns an `int`, or an integer of NumPy, clamped to 64 bits. `bool` is not accepted.
#[inline]
pub(crate) fn saturating(name: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    if !given.is_instance_of::<PyInt>() {
        let integer = as_integer(given).ok_or_else(|| wrong_type(name, "an int", given))?;
        return saturating(name, &integer);
    }
    if given.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, "an int", given));
    }
    Ok(match int_and_overflow(given) {
        (number, 0) => number,
        (_, ..0) => i64::MIN,
        _ => i64::MAX,
    })
}

/// Returns the value of an `int` of at most 64 bits, and 0; or, of a larger one, any value and the sign.
///
/// Raises nothing: an exception dropped in a fast call, of which PyO3 does not know, would only be freed by
/// the next other call. Runs no Python code, so it needs no guard, unlike the conversion of PyO3.
#[inline]
pub(crate) fn int_and_overflow(given: &Bound<'_, PyAny>) -> (i64, i32) {
    let mut overflow = 0;
    // SAFETY: the object is a valid `int`, for which the function cannot fail.
    let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(given.as_ptr(), &raw mut overflow) };
    (number, overflow)
}

/// Returns whether `number` is the result of clamping `given`.
pub(crate) fn is_clamped(number: i64, given: &Bound<'_, PyAny>) -> bool {
    (number == i64::MAX || number == i64::MIN) && given.ne(number).unwrap_or(false)
}

/// Returns the value of `operator.index(given)`, or `None` if it raises.
#[cold]
pub(crate) fn as_integer<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    // An attribute of the class: a method of the instance would not be found by the interpreter either.
    given.get_type().call_method1("__index__", (given,)).ok()
}

/// Returns an `int`, or an error if it exceeds 64 bits.
pub(crate) fn int64(name: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    let number = saturating(name, given)?;
    if is_clamped(number, given) {
        return Err(PyValueError::new_err(format!(
            "{name} must be within 64 bits, found {}",
            shown(given)
        )));
    }
    Ok(number)
}

/// Returns a factor from an `int`, `str`, `Decimal`, `Fraction`, or `float` (by its repr), and `None`
/// for `None`.
pub(crate) fn factor(given: &Bound<'_, PyAny>) -> PyResult<Option<Factor>> {
    static DECIMAL: Once<Py<PyAny>> = Once::new();
    static FRACTION: Once<Py<PyAny>> = Once::new();
    if given.is_none() {
        return Ok(None);
    }
    let py = given.py();
    let text = if let Ok(text) = given.cast::<PyString>() {
        utf8("LimitError", "factor", text)?.to_owned()
    } else if given.is_instance_of::<PyInt>() && !given.is_instance_of::<PyBool>() {
        builtin_repr::<PyInt>(given)?
    } else if given.is_instance_of::<PyFloat>() {
        builtin_repr::<PyFloat>(given)?
    } else if given.is_instance(DECIMAL.import(py, "decimal", "Decimal")?)?
        || given.is_instance(FRACTION.import(py, "fractions", "Fraction")?)?
    {
        given.str()?.extract()?
    } else {
        return Err(wrong_type("factor", "an int, str, float, Decimal or Fraction", given));
    };
    Ok(Some(text.parse::<Factor>().map_err(LimitError::from)?))
}

/// Returns what the arguments `factor` and `keep` change in a limit; `None` if they change nothing.
pub(crate) fn adjustment(
    given_factor: Option<&Bound<'_, PyAny>>,
    keep: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Adjustment>> {
    let factor = given_factor.map_or(Ok(None), factor)?.map(Box::new);
    let keep = keep.map_or(Ok(0), |keep| saturating("keep", keep))?;
    let changes_limit = factor.is_some() || keep != 0;
    Ok(changes_limit.then_some(Adjustment { factor, keep }))
}

/// Returns the repr that the built-in class `T` gives a number. A subclass, such as an enumeration, may
/// have a different repr.
pub(crate) fn builtin_repr<T: PyTypeInfo>(given: &Bound<'_, PyAny>) -> PyResult<String> {
    given.py().get_type::<T>().call_method1("__repr__", (given,))?.extract()
}

/// Returns nanoseconds from a number of seconds, a `timedelta`, or a string with units. A string cannot be
/// negative.
pub(crate) fn signed_nanos(name: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    static TIMEDELTA: Once<Py<PyAny>> = Once::new();
    if let Ok(text) = given.cast::<PyString>() {
        let duration = config::duration(utf8("LimitError", name, text)?);
        return duration
            .map(Nanos::get)
            .map_err(|error| limit_error(&format!("{name}: {error}"), Some(name)));
    }
    let too_long =
        || PyValueError::new_err(format!("{name} is beyond 2**63 ns, found {}", shown(given)));
    if given.is_instance_of::<PyInt>() && !given.is_instance_of::<PyBool>() {
        return saturating(name, given)?.checked_mul(1_000_000_000).ok_or_else(too_long);
    }
    if given.is_instance_of::<PyFloat>() {
        let seconds: f64 = given.extract()?;
        if seconds.is_nan() {
            return Err(PyValueError::new_err(format!("{name} must be a number, found nan")));
        }
        // Rounded to the nearest nanosecond, because further digits are floating-point noise.
        let nanos = (seconds * 1e9).round();
        if !nanos.is_finite() || nanos.abs() >= 9.2e18 {
            return Err(too_long());
        }
        return Ok(nanos as i64);
    }
    if given.is_instance(TIMEDELTA.import(given.py(), "datetime", "timedelta")?)? {
        let part = |part: &str| given.getattr(part)?.extract::<i64>();
        let seconds = part("days")?
            .checked_mul(86_400)
            .and_then(|days| days.checked_add(part("seconds").ok()?));
        let micros = part("microseconds")?;
        return seconds
            .and_then(|seconds| seconds.checked_mul(1_000_000_000))
            .and_then(|nanos| nanos.checked_add(micros * 1000))
            .ok_or_else(too_long);
    }
    Err(wrong_type(name, "a string such as '90s', seconds or a timedelta", given))
}

#[doc = doc!(timeout_ns)]
#[pyfunction]
pub(crate) fn timeout_ns(timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<i64>> {
    // The fast methods pass a `None` that was given.
    let Some(given) = timeout.filter(|given| !given.is_none()) else { return Ok(None) };
    let is_infinite = given.cast::<PyFloat>().is_ok_and(|seconds| seconds.value().is_infinite());
    let nanos = if is_infinite { -1 } else { signed_nanos("timeout", given)? };
    if nanos < 0 {
        let found = shown(given);
        return Err(PyValueError::new_err(format!(
            "timeout must be finite and at least 0, or None to wait as long as necessary, \
             found {found}"
        )));
    }
    Ok(Some(nanos))
}

#[doc = doc!(reserve_timeout_ns)]
#[pyfunction]
#[pyo3(signature = (timeout, factor = None))]
pub(crate) fn reserve_timeout_ns(
    timeout: Option<&Bound<'_, PyAny>>,
    factor: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<i64>> {
    let timeout = timeout_ns(timeout)?;
    if timeout.is_some() && factor.is_some() {
        return Err(PyTypeError::new_err("factor cannot be combined with timeout"));
    }
    Ok(timeout)
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
