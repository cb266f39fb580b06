//! `LimiterHandle`, which the Python objects of one limiter share, and how their callers sleep and wake.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::bindings::arguments::is_clamped;
use crate::bindings::errors::with_cost;
use crate::bindings::limit_entry::DecisionClock;
use crate::bindings::once::Once;
use crate::clock::AnyClock;
use crate::limiter::{self, Call, Limiter, OpenSlots, WaitingRoom};
use crate::renewer::RENEWER;
use crate::store::any::AnyStore;
#[cfg(all(feature = "redis", not(Py_GIL_DISABLED)))]
use crate::store::redis::Relay;
#[cfg(feature = "redis")]
use crate::store::redis::{RedisStore, StoreEvent};
use crate::store::{Store, StoreError};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// A limiter whose store and clock are chosen at run time.
pub(crate) type AnyLimiter = Limiter<AnyStore, AnyClock>;

/// A limiter of the core, shared by the `Limiter` and its `BoundLimit`s.
pub(crate) struct LimiterHandle {
    pub(crate) core: AnyLimiter,
    closed: AtomicBool,
    pub(crate) clock: Py<PyAny>,
    pub(crate) waiting: WaitingRoom<Arc<Wakeup>>,
    /// The timer that wakes waiters on a manual clock.
    pub(crate) waiting_timer: Mutex<Option<(i64, u64)>>,
    /// The slots that this process holds.
    pub(crate) slots: Arc<OpenSlots>,
    /// The timer that renews them on a manual clock.
    pub(crate) renewal_timer: Mutex<Option<(i64, u64)>>,
    /// The store's URL without its password.
    pub(crate) url: String,
}

// Not derived, because PyO3's lock does not implement `Debug`.
impl fmt::Debug for LimiterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimiterHandle { core, closed, .. } = self;
        f.debug_struct("LimiterHandle")
            .field("core", core)
            .field("closed", closed)
            .finish_non_exhaustive()
    }
}

impl LimiterHandle {
    pub(crate) fn new(core: AnyLimiter, clock: &Bound<'_, PyAny>, url: String) -> LimiterHandle {
        let (closed, clock) = (AtomicBool::new(false), clock.clone().unbind());
        let slots = Arc::default();
        let waiting = WaitingRoom::new(&slots, core.store().is_shared());
        let (waiting_timer, renewal_timer) = (Mutex::new(None), Mutex::new(None));
        LimiterHandle { core, closed, clock, waiting, waiting_timer, slots, renewal_timer, url }
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: the flag orders no other access.
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns an error if the limiter is closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        if self.is_closed() { Err(StoreError::Closed.into()) } else { Ok(()) }
    }

    /// Closes the store, without notifying waiters.
    pub(crate) fn close_store(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.core.invalidate();
            if let Some(server) = self.core.store().remote() {
                server.close();
            }
        }
    }

    /// Returns the clock of the decisions.
    pub(crate) fn decision_clock(&self) -> DecisionClock {
        let has_server_time = self.core.store().remote().is_some();
        DecisionClock { clock: self.core.clock().clone(), has_server_time }
    }

    /// Raises the error about a cost beyond 64 bits, which the core would show clamped to `call.cost`.
    pub(crate) fn check_cost(
        &self,
        bound: &limiter::BoundLimit,
        call: Call<'_>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if given.is_some_and(|given| is_clamped(call.cost, given)) {
            let checked = self.core.waiter_id(bound, call);
            checked.map_err(|error| with_cost(error.into(), given))?;
        }
        Ok(())
    }

    /// Runs `call`, which may ask the store. Detaches from the interpreter if the store may wait.
    #[inline]
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&AnyLimiter) -> T + Send,
    ) -> T {
        if !self.core.store().may_wait() {
            return call(&self.core);
        }
        let result = {
            // Without the GIL, threads can run at the same time.
            #[cfg(all(feature = "redis", not(Py_GIL_DISABLED)))]
            let _relay = Relay::start();
            py.detach(|| call(&self.core))
        };
        self.log_events(py);
        result
    }

    /// Logs the events of the store since the last call through Python's `logging`. Runs Python code.
    #[inline]
    pub(crate) fn log_events(&self, py: Python<'_>) {
        #[cfg(feature = "redis")]
        for event in self.core.store().redis().map(RedisStore::take_events).unwrap_or_default() {
            if let Err(error) = log(py, &self.url, &event) {
                // An error in a log handler must not fail the call.
                error.write_unraisable(py, None);
            }
        }
        let _ = py;
    }
}

impl Drop for LimiterHandle {
    fn drop(&mut self) {
        // The thread that renews slots ends with the last limiter that it knows.
        RENEWER.forget(self);
    }
}

#[cfg(feature = "redis")]
#[cold]
fn log(py: Python<'_>, url: &str, event: &StoreEvent) -> PyResult<()> {
    let name = match event {
        StoreEvent::Failing { .. } => "failing",
        StoreEvent::Answering { .. } => "answering",
        StoreEvent::Healed { .. } => "healed",
    };
    let options = dict! { py, "extra": dict! { py, "store": url, "event": name } };
    let logger = py.import("logging")?.call_method1("getLogger", ("penstock",))?;
    let record = ("%s: %s", url, event.to_string());
    logger.call_method("warning", record, Some(&options))?;
    Ok(())
}

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
        let event = GREEN_EVENT.import(py, "penstock._wait_queue", "green_event")?.call0()?;
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
