//! How a caller that waits is told to make its next step.

use std::time::Duration;

use pyo3::prelude::*;

use crate::sync::{Condvar, Mutex};

/// For how long a thread sleeps without looking for signals, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

/// Wakes one caller: a thread that sleeps here, or a task through a function.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// May be called from any thread.
    function: Option<Py<PyAny>>,
    is_notified: Mutex<bool>,
    changed: Condvar,
}

impl Wakeup {
    pub(crate) fn new(function: Option<Py<PyAny>>) -> Wakeup {
        Wakeup { function, is_notified: Mutex::new(false), changed: Condvar::default() }
    }

    /// Calls the function, or wakes the thread; its next `wait` may also return immediately.
    ///
    /// # Errors
    /// The event loop of the caller is closed, or this thread is interrupted.
    pub(crate) fn notify(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(function) = &self.function {
            return function.call0(py).map(drop);
        }
        *self.is_notified.lock() = true;
        self.changed.notify_one();
        Ok(())
    }

    /// Blocks this thread until it is notified, or for `seconds`; `None` means no limit.
    // Not `threading.Event`: when the interpreter ends, CPython unwinds the daemon threads that wait in
    // it. Unwinding through Rust ends the process with an abort. A thread that PyO3 attaches again is
    // stopped instead.
    pub(crate) fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
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
