//! The interpreter that the core may run in.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Refuses to be imported into a sub-interpreter, as mod_wsgi makes for each application.
///
/// Classes and exceptions are kept once per process, so a second interpreter would be given those
/// of the first.
pub(crate) fn refuse_sub_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached, so there is a current interpreter; its number is 0 in the
    // main interpreter and never elsewhere.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "penstock works in the main interpreter only; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}",
    ))
}
