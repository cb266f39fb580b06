//! The class `Wakeup`, on which a thread sleeps between the steps of a waiter.

use std::time::Duration;

use pyo3::prelude::*;

use crate::sync::{Condvar, Mutex};

/// For how long a thread sleeps without looking for signals, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

#[doc = doc!(Wakeup)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    is_notified: Mutex<bool>,
    changed: Condvar,
}

#[pymethods]
impl Wakeup {
    #[new]
    fn new() -> Wakeup {
        Wakeup::default()
    }

    #[doc = doc!(Wakeup.notify)]
    fn notify(&self) {
        *self.is_notified.lock() = true;
        self.changed.notify_one();
    }

    // Not `threading.Event`: when the interpreter ends, CPython unwinds the daemon threads that wait in
    // it. Methods of the core have called them, and unwinding through Rust ends the process with an
    // abort. A thread that PyO3 attaches again is stopped instead.
    #[doc = doc!(Wakeup.wait)]
    #[pyo3(signature = (seconds))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let mut left = seconds.and_then(|left| Duration::try_from_secs_f64(left).ok());
        loop {
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let is_notified = py.detach(|| {
                let mut is_notified = self.is_notified.lock();
                if !*is_notified {
                    self.changed.wait_for(&mut is_notified, slice);
                }
                std::mem::take(&mut *is_notified)
            });
            py.check_signals()?;
            left = left.map(|left| left - slice);
            if is_notified || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
        }
    }
}
