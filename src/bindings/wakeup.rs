//! What wakes a caller that waits.

use std::time::Duration;

use pyo3::prelude::*;

use crate::bindings::once::Once;
use crate::sync::{Condvar, Mutex};

/// For how long a thread sleeps without looking for signals, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

static GREEN_EVENT: Once<Py<PyAny>> = Once::new();

/// Wakes one caller: a thread or greenlet that sleeps here, or a task through a function.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// May be called from any thread.
    function: Option<Py<PyAny>>,
    sleep: Mutex<Sleep>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sleep {
    is_notified: bool,
    /// What a greenlet of gevent waits for, so that the others, which share its thread, run meanwhile.
    event: Option<Py<PyAny>>,
}

impl Wakeup {
    pub(crate) fn new(function: Option<Py<PyAny>>) -> Wakeup {
        Wakeup { function, sleep: Mutex::new(Sleep::default()), changed: Condvar::default() }
    }

    /// Calls the function, or wakes the thread; its next `wait` may also return immediately.
    ///
    /// # Errors
    /// The event loop of the caller is closed, or this thread is interrupted.
    pub(crate) fn notify(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(function) = &self.function {
            return function.call0(py).map(drop);
        }
        let event = {
            let mut sleep = self.sleep.lock();
            sleep.is_notified = true;
            sleep.event.take()
        };
        self.changed.notify_one();
        event.map_or(Ok(()), |event| event.call_method0(py, "set").map(drop))
    }

    /// Blocks this thread or greenlet until it is notified, or for `seconds`; `None` means no limit.
    pub(crate) fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let event = GREEN_EVENT.import(py, "penstock.wait_queue", "green_event")?.call0()?;
        if !event.is_none() {
            return self.wait_in_greenlet(&event, seconds);
        }
        let mut left = seconds.and_then(|left| Duration::try_from_secs_f64(left).ok());
        loop {
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let is_notified = py.detach(|| {
                let mut sleep = self.sleep.lock();
                if !sleep.is_notified {
                    self.changed.wait_for(&mut sleep, slice);
                }
                std::mem::take(&mut sleep.is_notified)
            });
            py.check_signals()?;
            left = left.map(|left| left - slice);
            if is_notified || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
        }
    }

    fn wait_in_greenlet(&self, event: &Bound<'_, PyAny>, seconds: Option<f64>) -> PyResult<()> {
        let previous = {
            let mut sleep = self.sleep.lock();
            if std::mem::take(&mut sleep.is_notified) {
                return Ok(());
            }
            sleep.event.replace(event.clone().unbind())
        };
        drop(previous);
        event.call_method1("wait", (seconds,))?;
        self.sleep.lock().is_notified = false;
        Ok(())
    }
}
