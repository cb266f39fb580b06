//! The classes `SystemClock` and `ManualClock`.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::errors::not_picklable;
use crate::clock::{self, AnyClock, Clock};
use crate::engine::time::{Timeline, Timestamp};
use crate::sync::{Mutex, RwLock};

/// Returns the clock that the caller passed.
pub(crate) fn clock_of(given: &Bound<'_, PyAny>) -> PyResult<AnyClock> {
    if let Ok(clock) = given.cast::<ManualClock>() {
        Ok(AnyClock::Manual(Arc::clone(&clock.get().clock)))
    } else if let Ok(clock) = given.cast::<SystemClock>() {
        Ok(AnyClock::System(clock.get().clock))
    } else {
        Err(arguments::wrong_type("clock", "a SystemClock or a ManualClock", given))
    }
}

/// The clock that replaces the system clock, if any. It is read only when a limiter is created, so it
/// adds no cost to decisions.
static DEFAULT: RwLock<Option<Py<PyAny>>> = RwLock::new(None);

#[doc = doc!(set_default_clock)]
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

#[doc = doc!(SystemClock)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct SystemClock {
    pub(crate) clock: clock::SystemClock,
}

#[pymethods]
impl SystemClock {
    #[new]
    fn new() -> SystemClock {
        SystemClock { clock: clock::SystemClock::new() }
    }

    #[doc = doc!(SystemClock.now_ns)]
    fn now_ns(&self) -> i64 {
        self.clock.read(Timeline::Wall).wall.get()
    }

    #[doc = doc!(SystemClock.now)]
    fn now(&self) -> f64 {
        arguments::seconds(self.now_ns())
    }

    #[doc = doc!(SystemClock.steady_ns)]
    fn steady_ns(&self) -> i64 {
        self.clock.now().get()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, ()) {
        (py.get_type::<SystemClock>(), ())
    }

    fn __repr__(&self) -> &'static str {
        "SystemClock()"
    }
}

#[doc = doc!(ManualClock)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct ManualClock {
    clock: Arc<clock::ManualClock>,
    timers: Mutex<Timers>,
}

/// Callbacks in the order of their instants, and of their registration within an instant.
#[derive(Debug, Default)]
struct Timers {
    set: BTreeMap<(i64, u64), Py<PyAny>>,
    count: u64,
}

impl ManualClock {
    /// Returns the time.
    pub(crate) fn instant(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves the clock forwards, stopping at the instant of each timer to call it.
    fn advance_through_timers(&self, py: Python<'_>, by: i64) -> PyResult<()> {
        let now = self.clock.now().get();
        if by < 0 || now.checked_add(by).is_none() {
            return self.clock.advance(by).map_err(PyErr::from);
        }
        let mut left = by;
        loop {
            let now = self.clock.now().get();
            let mut timers = self.timers.lock();
            let due =
                timers.set.first_entry().filter(|timer| timer.key().0 <= now.saturating_add(left));
            let due = due.map(|timer| (timer.key().0, timer.remove()));
            drop(timers);
            // Clamped, because another thread may have moved the clock.
            let step = due.as_ref().map_or(left, |(at, _)| (at - now).clamp(0, left));
            self.clock.advance(step)?;
            left -= step;
            let Some((_, callback)) = due else { return Ok(()) };
            if let Err(error) = callback.call0(py) {
                // An interrupt such as `KeyboardInterrupt` is raised by the call that moves the clock.
                if !error.is_instance_of::<PyException>(py) {
                    return Err(error);
                }
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        }
    }
}

#[pymethods]
impl ManualClock {
    #[new]
    #[pyo3(signature = (start = Argument::Missing), text_signature = "(start=0)")]
    fn new(start: Argument<'_>) -> PyResult<ManualClock> {
        let start = match start.given() {
            None => 0,
            Some(start) if start.hasattr("timestamp")? => {
                return Err(PyTypeError::new_err(
                    "start must be Unix seconds, found a date; use its timestamp(), as in \
                     ManualClock(start=date.timestamp())",
                ));
            }
            Some(start) => arguments::signed_nanos("start", start)?,
        };
        let start = Timestamp::new(start)?;
        let clock = Arc::new(clock::ManualClock::new(start));
        Ok(ManualClock { clock, timers: Mutex::new(Timers::default()) })
    }

    #[doc = doc!(ManualClock.advance)]
    fn advance(&self, py: Python<'_>, by: &Bound<'_, PyAny>) -> PyResult<()> {
        let by_ns = arguments::signed_nanos("by", by)?;
        self.advance_through_timers(py, by_ns)
    }

    #[doc = doc!(ManualClock.advance_ns)]
    fn advance_ns(&self, py: Python<'_>, by: &Bound<'_, PyAny>) -> PyResult<()> {
        let by_ns = arguments::int64("by", by)?;
        self.advance_through_timers(py, by_ns)
    }

    #[doc = doc!(ManualClock.set_ns)]
    #[pyo3(signature = (to, *, allow_backwards = false))]
    fn set_ns(&self, py: Python<'_>, to: &Bound<'_, PyAny>, allow_backwards: bool) -> PyResult<()> {
        let to_ns = arguments::int64("to", to)?;
        match to_ns.checked_sub(self.now_ns()) {
            Some(by) if by > 0 => self.advance_through_timers(py, by),
            _ => self.clock.set(to_ns, allow_backwards).map_err(PyErr::from),
        }
    }

    #[doc = doc!(ManualClock.set_wall_ns)]
    fn set_wall_ns(&self, to: &Bound<'_, PyAny>) -> PyResult<()> {
        self.clock.set_wall(Timestamp::new(arguments::int64("to", to)?)?);
        Ok(())
    }

    #[doc = doc!(ManualClock.now_ns)]
    fn now_ns(&self) -> i64 {
        self.clock.wall().get()
    }

    #[doc = doc!(ManualClock.now)]
    fn now(&self) -> f64 {
        arguments::seconds(self.now_ns())
    }

    #[doc = doc!(ManualClock.steady_ns)]
    fn steady_ns(&self) -> i64 {
        self.clock.now().get()
    }

    #[doc = doc!(ManualClock.set_timer)]
    pub(crate) fn set_timer(&self, at_ns: i64, callback: Py<PyAny>) -> (i64, u64) {
        let mut timers = self.timers.lock();
        timers.count += 1;
        let key = (at_ns, timers.count);
        timers.set.insert(key, callback);
        key
    }

    #[doc = doc!(ManualClock.drop_timer)]
    pub(crate) fn drop_timer(&self, timer: (i64, u64)) {
        // Dropped outside the lock, because dropping may run other Python code.
        let dropped = self.timers.lock().set.remove(&timer);
        drop(dropped);
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("ManualClock", "make a `ManualClock(start)` in the other process"))
    }

    fn __repr__(&self) -> String {
        let now = self.now_ns();
        format!("<ManualClock at {}.{:09} s>", now / 1_000_000_000, now % 1_000_000_000)
    }
}
