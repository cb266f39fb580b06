//! The clocks, as Python sees them.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::errors::ToPyErr;
use crate::clock::{self, Clock};
use crate::engine::time::Timestamp;

/// The clock of a limiter.
#[derive(Clone, Debug)]
pub(crate) enum AnyClock {
    /// The machine's.
    System(clock::SystemClock),
    /// One that is moved by hand.
    Manual(Arc<clock::ManualClock>),
}

impl Clock for AnyClock {
    #[inline]
    fn now(&self) -> Timestamp {
        match self {
            AnyClock::System(clock) => clock.now(),
            AnyClock::Manual(clock) => clock.now(),
        }
    }
}

impl AnyClock {
    /// The clock that a caller gave.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<AnyClock> {
        if let Ok(clock) = given.cast::<ManualClock>() {
            Ok(AnyClock::Manual(Arc::clone(&clock.get().clock)))
        } else if let Ok(clock) = given.cast::<SystemClock>() {
            Ok(AnyClock::System(clock.get().clock))
        } else {
            Err(arguments::wrong_type("clock", "a SystemClock or a ManualClock", given))
        }
    }
}

/// The machine's monotonic clock, on the scale of the Unix epoch.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct SystemClock {
    clock: clock::SystemClock,
}

#[pymethods]
impl SystemClock {
    #[new]
    fn new() -> SystemClock {
        SystemClock { clock: clock::SystemClock::new() }
    }

    /// Give the time in nanoseconds since the Unix epoch.
    fn now_ns(&self) -> i64 {
        self.clock.now().get()
    }

    /// Give the time in seconds since the Unix epoch.
    fn now(&self) -> f64 {
        arguments::seconds(self.clock.now().get())
    }

    fn __repr__(&self) -> &'static str {
        "SystemClock()"
    }
}

/// A clock that moves only when told to.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct ManualClock {
    clock: Arc<clock::ManualClock>,
}

#[pymethods]
impl ManualClock {
    #[new]
    #[pyo3(signature = (start = Argument::Missing), text_signature = "(start=0)")]
    fn new(start: Argument<'_>) -> PyResult<ManualClock> {
        let start = start.given().map_or(Ok(0), |start| arguments::signed_nanos("start", start))?;
        let start = Timestamp::new(start).map_err(|error| error.to_py_err())?;
        Ok(ManualClock { clock: Arc::new(clock::ManualClock::new(start)) })
    }

    /// Move forwards by `by` seconds.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        let by = arguments::signed_nanos("by", by)?;
        self.clock.advance(by).map_err(|error| error.to_py_err())
    }

    /// Move forwards by `by` nanoseconds.
    fn advance_ns(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        let by = arguments::whole("by", by)?;
        self.clock.advance(by).map_err(|error| error.to_py_err())
    }

    /// Set the time to `to` nanoseconds.
    #[pyo3(signature = (to, *, allow_backwards = false))]
    fn set_ns(&self, to: &Bound<'_, PyAny>, allow_backwards: bool) -> PyResult<()> {
        let to = arguments::whole("to", to)?;
        self.clock.set(to, allow_backwards).map_err(|error| error.to_py_err())
    }

    /// Give the time in nanoseconds.
    fn now_ns(&self) -> i64 {
        self.clock.now().get()
    }

    /// Give the time in seconds.
    fn now(&self) -> f64 {
        arguments::seconds(self.clock.now().get())
    }

    fn __repr__(&self) -> String {
        let now = self.clock.now().get();
        format!("<ManualClock at {}.{:09} s>", now / 1_000_000_000, now % 1_000_000_000)
    }
}
