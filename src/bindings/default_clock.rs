//! The clock of limiters that are created without one.

use pyo3::prelude::*;

use crate::bindings::clock::{SystemClock, clock_of};
use crate::sync::RwLock;

/// The clock in place of the machine's, if any.
///
/// It is read when a limiter is created and never afterwards, so no decision pays for it.
static DEFAULT: RwLock<Option<Py<PyAny>>> = RwLock::new(None);

/// Set the clock of limiters that are created without one, and return the one before.
///
/// `None` is the machine's clock.
#[pyfunction]
#[pyo3(signature = (clock, /))]
pub(crate) fn set_default_clock(clock: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    if let Some(clock) = &clock {
        clock_of(clock)?;
    }
    let mut clock = clock.map(Bound::unbind);
    // The one before is dropped outside the lock, because that may run Python code.
    std::mem::swap(&mut *DEFAULT.write(), &mut clock);
    Ok(clock)
}

/// The clock of a limiter that is created without one.
pub(crate) fn default_clock(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let clock = DEFAULT.read().as_ref().map(|clock| clock.clone_ref(py));
    match clock {
        Some(clock) => Ok(clock),
        None => py.get_type::<SystemClock>().call0().map(Bound::unbind),
    }
}
