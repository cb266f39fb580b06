//! Check of the interpreter that imports the core.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Raises an `ImportError` in a sub-interpreter, such as mod_wsgi creates for each application.
///
/// Classes and exceptions are stored once per process, so a second interpreter would get those of the
/// first.
pub(crate) fn check_main_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached, so there is a current interpreter. Only the main interpreter has
    // the number 0.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "penstock works in the main interpreter only; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}",
    ))
}
