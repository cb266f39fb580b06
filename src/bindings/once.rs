//! Python objects that the process creates once, on first use, in its main interpreter.

use std::convert::Infallible;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::sync::counting::OnceBox;

/// A value that is created on first use.
///
/// Creating it does not wait for other threads: two of them may both create a value, of which one is
/// dropped. `PyOnceLock` detaches from the interpreter before it creates its value, so another thread
/// can fork meanwhile. The child would wait forever for a thread that it does not have.
pub(crate) struct Once<T>(OnceBox<T>);

impl<T> Once<T> {
    pub(crate) const fn new() -> Once<T> {
        Once(OnceBox::new())
    }

    /// Returns the value, which `create` creates if there is none yet.
    #[inline]
    pub(crate) fn get_or_init(&self, py: Python<'_>, create: impl FnOnce() -> T) -> &T {
        let created = self.get_or_try_init(py, || Ok::<_, Infallible>(create()));
        created.unwrap_or_else(|never| match never {})
    }

    /// Does the same with a `create` that may fail; it is then called again the next time.
    #[inline]
    pub(crate) fn get_or_try_init<E>(
        &self,
        _py: Python<'_>,
        create: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        self.0.get_or_try_init(|| create().map(Box::new))
    }
}

impl Once<Py<PyAny>> {
    /// Returns an attribute of a module.
    pub(crate) fn import<'a, 'py>(
        &'a self,
        py: Python<'py>,
        module: &str,
        name: &str,
    ) -> PyResult<&'a Bound<'py, PyAny>> {
        let import = || PyResult::Ok(py.import(module)?.getattr(name)?.unbind());
        Ok(self.get_or_try_init(py, import)?.bind(py))
    }
}

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
