//! `LimiterHandle`, which the Python objects of one limiter share.

use std::fmt;

use pyo3::prelude::*;

use crate::bindings::any_limiter::AnyLimiter;
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::store_log::log_events;
use crate::bindings::wait_queues::WaitQueues;
#[cfg(all(feature = "redis", not(Py_GIL_DISABLED)))]
use crate::store::redis::Relay;
use crate::store::{Store, StoreError};
use crate::sync::{AtomicBool, Ordering};

/// A limiter of the core, shared by the `Limiter` and its `BoundLimit`s.
pub(crate) struct LimiterHandle {
    pub(crate) core: AnyLimiter,
    closed: AtomicBool,
    pub(crate) clock: Py<PyAny>,
    pub(crate) waiting: WaitQueues,
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
        LimiterHandle { core, closed, clock, waiting: WaitQueues::new(), url }
    }

    /// Returns an error if the limiter is closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        // Relaxed: the flag orders no other access.
        if self.closed.load(Ordering::Relaxed) { Err(StoreError::Closed.into()) } else { Ok(()) }
    }

    /// Closes the store, without notifying waiters.
    pub(crate) fn close_store(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.core.invalidate();
            self.core.store().close();
        }
    }

    /// Returns the active limit with the same name as `previous`.
    pub(crate) fn active(
        &self,
        py: Python<'_>,
        previous: &Py<LimitEntry>,
    ) -> PyResult<ActiveLimit> {
        self.check_open()?;
        LimitEntry::active_in(previous, py, &self.core.snapshot())
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
        log_events(py, self.core.store(), &self.url);
        result
    }
}
