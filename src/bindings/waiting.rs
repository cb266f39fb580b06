//! What changes wait queues, and wakes their callers; the queues are in `limiter/waiting/`.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::clock::ManualClock;
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::wakeup::Wakeup;
use crate::clock::Clock;
use crate::engine::verb::Verb;
use crate::limiter::{self, BoundLimit, BucketChange, Driven, Ending};
use crate::store::Store;

pub(crate) type Wakeups = Driven<Arc<Wakeup>>;

impl LimiterHandle {
    /// Lets `act` change the queues, and wakes callers, except the one of the call `own`, who is awake.
    pub(crate) fn drive<T: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        own: Option<u64>,
        act: impl FnOnce(&AnyLimiter, &mut Wakeups) -> T + Send,
    ) -> PyResult<T> {
        let mut driven = Driven::default();
        let result = self.run(py, |core| act(core, &mut driven));
        self.conclude(py, own, driven).map(|()| result)
    }

    /// Wakes callers, except the one of the call `own`. Callers that cannot be woken leave.
    fn conclude(
        self: &Arc<Self>,
        py: Python<'_>,
        own: Option<u64>,
        mut driven: Wakeups,
    ) -> PyResult<()> {
        let mut interrupted = None;
        // On a manual clock the timer steps for a caller, but cannot ask a store that waits.
        let is_timed = self.clock.bind(py).is_instance_of::<ManualClock>();
        let wakes_moved = !is_timed || self.core.store().may_wait();
        loop {
            if driven.plans_renewal {
                self.plan_renewal(py);
            }
            let mut gone = Vec::new();
            let moved = driven.moved.into_iter().filter(|_| wakes_moved);
            for (number, wakeup) in driven.woken.into_iter().chain(moved) {
                let Err(error) = (if own == Some(number) { Ok(()) } else { wakeup.notify(py) })
                else {
                    continue;
                };
                if error.is_instance_of::<PyException>(py) {
                    // The caller's event loop is closed.
                    gone.push(number);
                } else {
                    // An interruption is meant for this thread. The caller is woken nevertheless.
                    let _ = wakeup.notify(py);
                    interrupted.get_or_insert(error);
                }
            }
            if gone.is_empty() {
                break;
            }
            driven = Driven::default();
            let leave = |core: &AnyLimiter, driven: &mut Wakeups| {
                gone.iter().for_each(|number| self.waiting.leave(core, *number, driven));
            };
            self.run(py, |core| leave(core, &mut driven));
        }
        self.set_waiting_timer(py);
        interrupted.map_or(Ok(()), Err)
    }

    /// Sets the timer that a `ManualClock` calls when the next call is due, even in a single large move.
    fn set_waiting_timer(self: &Arc<Self>, py: Python<'_>) {
        let Ok(clock) = self.clock.bind(py).cast::<ManualClock>() else { return };
        let mut timer = self.waiting_timer.lock();
        let next = self.waiting.next_instant().map(|next| next.get());
        if timer.map(|(at, _)| at) == next {
            return;
        }
        let callback = Py::new(py, WaitTimer { handle: Arc::clone(self) }).map(Py::into_any);
        let set = next.zip(callback.ok()).map(|(at, call)| clock.get().set_timer(at, call));
        let before = std::mem::replace(&mut *timer, set);
        drop(timer);
        before.into_iter().for_each(|timer| clock.get().drop_timer(timer));
    }

    /// Returns what is held, and closes the store. All waiters raise an error.
    pub(crate) fn close(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        if !self.is_closed() {
            self.return_slots(py)?;
        }
        self.close_store();
        let now = self.core.clock().now();
        self.drive(py, None, |_, driven| self.waiting.close(now, driven))
    }

    /// Asks again for the first waiter of a bucket, or of all, because it may be allowed now.
    pub(crate) fn wake_waiters(
        self: &Arc<Self>,
        py: Python<'_>,
        bucket: Option<(&BoundLimit, &str)>,
        change: BucketChange,
    ) -> PyResult<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut driven = Driven::default();
        // Asks no store that may wait, so that this may be an event loop.
        self.waiting.change(&self.core, bucket, change, &mut driven);
        self.conclude(py, None, driven)
    }

    /// Executes the ends of a reservation, and wakes waiters.
    pub(crate) fn end(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: &[Ending],
        waits: bool,
    ) -> Result<(), limiter::Failure> {
        self.execute(py, endings, waits)?;
        self.wake_after(py, endings);
        Ok(())
    }

    /// Wakes waiters after tokens or slots were returned.
    pub(crate) fn wake_after(self: &Arc<Self>, py: Python<'_>, endings: &[Ending]) {
        for Ending { limit, id, verb, .. } in endings {
            let change = match verb {
                Verb::Release(_) => BucketChange::Release,
                Verb::Refund => BucketChange::Refund,
                _ => continue,
            };
            if let Err(error) = self.wake_waiters(py, Some((limit, id)), change) {
                // They are returned in any case.
                error.write_unraisable(py, None);
            }
        }
    }
}

/// Callback that a `ManualClock` calls when a waiter is due.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
struct WaitTimer {
    handle: Arc<LimiterHandle>,
}

#[pymethods]
impl WaitTimer {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        *self.handle.waiting_timer.lock() = None;
        self.handle.drive(py, None, |core, driven| self.handle.waiting.step_all(core, driven))
    }
}
