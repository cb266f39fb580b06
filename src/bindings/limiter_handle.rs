//! `LimiterHandle`, which the Python objects of one limiter share.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::arguments::is_clamped;
use crate::bindings::errors::with_cost;
use crate::bindings::limit_entry::DecisionClock;
use crate::bindings::wakeup::Wakeup;
use crate::clock::AnyClock;
use crate::limiter::{self, Call, Limiter, OpenSlots, WaitingRoom};
use crate::renewer::RENEWER;
use crate::store::any::AnyStore;
#[cfg(all(feature = "redis", not(Py_GIL_DISABLED)))]
use crate::store::redis::Relay;
#[cfg(feature = "redis")]
use crate::store::redis::{RedisStore, StoreEvent};
use crate::store::{Store, StoreError};
use crate::sync::{AtomicBool, Mutex, Ordering};

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
