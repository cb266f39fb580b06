//! The clock of a limiter that is made without one.

use pyo3::prelude::*;

use crate::bindings::clock::{AnyClock, SystemClock};
use crate::sync::RwLock;

/// What stands in for the machine's clock, if anything does.
///
/// Read when a limiter is made, and never after: no decision pays for it.
static DEFAULT: RwLock<Option<Py<PyAny>>> = RwLock::new(None);

/// Have limiters that are made without a clock take this one; gives back the one before.
#[pyfunction]
#[pyo3(signature = (clock, /))]
pub(crate) fn _set_default_clock(clock: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    if let Some(clock) = &clock {
        AnyClock::of(clock)?;
    }
    let mut clock = clock.map(Bound::unbind);
    // Out of the lock with the one before: to drop it may run Python.
    std::mem::swap(&mut *DEFAULT.write(), &mut clock);
    Ok(clock)
}

/// The clock of a limiter that was given none.
pub(crate) fn default_clock(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let stand_in = DEFAULT.read().as_ref().map(|clock| clock.clone_ref(py));
    match stand_in {
        Some(clock) => Ok(clock),
        None => py.get_type::<SystemClock>().call0().map(Bound::unbind),
    }
}
