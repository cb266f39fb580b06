//! The default clock of new limiters.

use pyo3::prelude::*;

use crate::bindings::clock::{SystemClock, clock_of};
use crate::sync::RwLock;

/// The clock that replaces the system clock, if any. It is read only when a limiter is created, so it
/// adds no cost to decisions.
static DEFAULT: RwLock<Option<Py<PyAny>>> = RwLock::new(None);

/// Set the clock of limiters that are created without one, and return the previous one.
///
/// `None` is the system clock.
#[pyfunction]
#[pyo3(signature = (clock, /))]
pub(crate) fn set_default_clock(clock: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    if let Some(clock) = &clock {
        clock_of(clock)?;
    }
    let mut clock = clock.map(Bound::unbind);
    // The previous clock is dropped outside the lock, because dropping may run Python code.
    std::mem::swap(&mut *DEFAULT.write(), &mut clock);
    Ok(clock)
}

/// Returns the clock for a limiter that is created without one.
pub(crate) fn default_clock(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let clock = DEFAULT.read().as_ref().map(|clock| clock.clone_ref(py));
    match clock {
        Some(clock) => Ok(clock),
        None => py.get_type::<SystemClock>().call0().map(Bound::unbind),
    }
}
