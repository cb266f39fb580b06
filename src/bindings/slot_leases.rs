//! The slots that a limiter holds: their leases are renewed until they are returned.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use smallvec::smallvec;

use crate::bindings::clock::ManualClock;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::clock::{AnyClock, Clock, Stopwatch};
use crate::engine::state::Lease;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{
    self, Acquired, AddedSlot, AnsweredAll, CallError, Ending, Endings, HeldSlotKey, Transaction,
    count_endings,
};
use crate::renewer::{RENEWER, Renewed};
use crate::store::{Store, StoreError};
use crate::sync::Mutex;

/// How often a call that must not wait tries to get a lock of another process.
const TRIES: usize = 100;

/// How long the end of a limiter waits for a renewal that is under way.
const MAX_WAIT: Nanos = Nanos::SECOND;

impl LimiterHandle {
    /// Holds slots that were taken, and renews them until they are given back.
    pub(crate) fn hold(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &Arc<limiter::BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        now: Timestamp,
    ) -> HeldSlotKey {
        let id = bound.entry().canonical(id).unwrap_or(id.into());
        let added = self.core.hold(&self.slots, bound, &id, cost, lease, self.due_at(now));
        self.renew_added(py, added)
    }

    /// Holds the slots that an answer about several buckets has taken.
    pub(crate) fn hold_all(
        self: &Arc<Self>,
        py: Python<'_>,
        transactions: Vec<Transaction>,
        answered: AnsweredAll,
    ) -> Acquired {
        let now = self.due_at(answered.now);
        let slots = self.core.hold_all(&self.slots, &transactions, &answered, now);
        let slots = slots.into_iter();
        let slots = slots.map(|slot| slot.map(|slot| self.renew_added(py, slot))).collect();
        Acquired { transactions, answered, slots, decided: None }
    }

    /// Returns the instant of an answer by the limiter's clock, which may differ from the store's.
    fn due_at(&self, now: Timestamp) -> Timestamp {
        if self.core.store().remote().is_some() { self.core.clock().now() } else { now }
    }

    /// Plans the renewal of slots that were added, if it has to look at them earlier than planned.
    pub(crate) fn renew_added(self: &Arc<Self>, py: Python<'_>, slot: AddedSlot) -> HeldSlotKey {
        if slot.is_earlier {
            self.plan_renewal(py);
        }
        slot.key
    }

    /// Plans the next renewal: by the thread of this process or, on a manual clock, by its timer.
    #[cold]
    pub(crate) fn plan_renewal(self: &Arc<Self>, py: Python<'_>) {
        let planned = match self.clock.bind(py).cast::<ManualClock>() {
            Ok(clock) => self.set_timer(clock),
            Err(_) => self.plan_renewal_in_thread(),
        };
        if let Err(error) = planned {
            // The slots were taken, and are given back in any case.
            error.write_unraisable(py, None);
        }
    }

    fn plan_renewal_in_thread(self: &Arc<Self>) -> PyResult<()> {
        let now = self.core.clock().now();
        let Some(next) = self.slots.next_due(now) else { return Ok(()) };
        let this: Weak<LimiterHandle> = Arc::downgrade(self);
        let this: Weak<dyn Renewed> = this;
        Ok(RENEWER.plan(&this, Nanos::clamped(next.get() - now.get()))?)
    }

    /// Sets the timer for the slots that are due next, in place of the previous one.
    fn set_timer(self: &Arc<Self>, clock: &Bound<'_, ManualClock>) -> PyResult<()> {
        let (py, clock) = (clock.py(), clock.get());
        let timer = match self.slots.next_due(clock.instant()) {
            None => None,
            Some(next) => {
                let this = Arc::downgrade(self);
                let renew = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
                    let Some(handle) = this.upgrade() else { return Ok(()) };
                    handle.renew_by_timer(arguments.py())
                };
                let renew = PyCFunction::new_closure(py, None, None, renew)?;
                Some(clock.set_timer(next.get(), renew.into_any().unbind()))
            }
        };
        let before = std::mem::replace(&mut *self.renewal_timer.lock(), timer);
        before.into_iter().for_each(|timer| clock.drop_timer(timer));
        Ok(())
    }

    fn renew_by_timer(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        if self.check_open().is_err() {
            return Ok(());
        }
        let slots = Arc::clone(&self.slots);
        self.run(py, |core| core.renew(&slots));
        self.set_timer(self.clock.bind(py).cast()?)
    }

    /// Returns all slots that are held, for good; logs how many the store has not taken back.
    pub(crate) fn return_slots(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        RENEWER.forget(&**self);
        let slots = Arc::clone(&self.slots);
        let lost = self.run(py, |core| {
            let (stopwatch, mut lost) = (Stopwatch::start(), 0);
            loop {
                let returned = core.return_all(&slots);
                lost += returned.lost;
                if returned.is_complete || stopwatch.elapsed() > MAX_WAIT {
                    return lost;
                }
                std::thread::yield_now();
            }
        });
        if lost > 0 {
            let logger = py.import("logging")?.call_method1("getLogger", ("penstock",))?;
            let message = "%s: %d slots could not be returned, and expire after at most two leases";
            logger.call_method1("warning", (message, &self.url, lost))?;
        }
        Ok(())
    }

    /// Returns slots that are held, and wakes waiters, if the store can answer without waiting. Otherwise does
    /// nothing and returns false.
    pub(crate) fn try_return(self: &Arc<Self>, py: Python<'_>, slot: HeldSlotKey) -> bool {
        if self.core.store().remote().is_some() {
            return false;
        }
        let returned = self.core.try_return(&self.slots, slot, || !self.waiting.is_empty());
        returned.is_ok_and(|ending| {
            self.wake_after(py, ending.as_slice());
            true
        })
    }

    /// Executes the ends of a reservation. Without `waits`, never blocks: what cannot be executed now is
    /// left to the renewal.
    pub(crate) fn execute(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: &[Ending],
        waits: bool,
    ) -> Result<(), limiter::Failure> {
        if endings.is_empty() {
            return Ok(());
        }
        if waits || !self.core.store().may_wait() {
            self.run(py, |core| core.end_all(endings))
        } else if self.core.store().remote().is_some() {
            self.submit_endings(endings.into(), || {});
            Ok(())
        } else {
            self.try_end(py, endings)
        }
    }

    /// Executes ends with the next renewal that have failed, unless the store may have executed them.
    pub(crate) fn retry(self: &Arc<Self>, py: Python<'_>, endings: Endings, error: &CallError) {
        if let CallError::Store(error) = error {
            self.slots.retry(endings, error, self.core.clock().now());
            self.plan_renewal(py);
        }
    }

    fn try_end(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: &[Ending],
    ) -> Result<(), limiter::Failure> {
        for _ in 0..TRIES {
            if self.core.try_end_all(endings)? {
                return Ok(());
            }
            std::thread::yield_now();
        }
        // Another process holds the lock for long; it may be stopped.
        self.slots.retry_later(endings.into(), self.core.clock().now());
        self.plan_renewal(py);
        Ok(())
    }

    /// Applies the leases of new limits to the slots that are held.
    pub(crate) fn renew_after_reload(self: &Arc<Self>, py: Python<'_>) {
        self.slots.forget_returned();
        if self.slots.held().is_empty() {
            return;
        }
        let slots = Arc::clone(&self.slots);
        self.run(py, |core| core.renew_after_reload(&slots));
        self.plan_renewal(py);
    }

    /// Sends endings to the server. Its replies are counted on a thread of the store, which then calls
    /// `then`; it is called immediately if there is nothing to send.
    pub(crate) fn submit_endings(
        self: &Arc<Self>,
        endings: Endings,
        then: impl FnOnce() + Send + 'static,
    ) {
        let then = Arc::new(OnDrop(Mutex::new(Some(then))));
        let Some(store) = self.core.store().remote() else { return };
        let Ok(call) = self.core.submission_of_endings(&endings) else { return };
        let calls = if store.is_one_call(&call) {
            vec![(call, endings)]
        } else {
            let each = endings.into_iter().filter_map(|ending| {
                let endings: Endings = smallvec![ending];
                Some((self.core.submission_of_endings(&endings).ok()?, endings))
            });
            each.collect()
        };
        for (call, endings) in calls {
            let (slots, now) = (Arc::clone(&self.slots), self.core.clock().now());
            let (then, handle) = (Arc::clone(&then), Arc::downgrade(self));
            let done = move |replies: Result<Vec<_>, StoreError>| {
                match replies {
                    Ok(answers) => count_endings(&endings, &answers),
                    Err(error) => {
                        slots.retry(endings, &error, now);
                        if let Some(handle) = handle.upgrade()
                            && !matches!(handle.core.clock(), AnyClock::Manual(_))
                        {
                            // Without a thread, what failed is executed with the next renewal.
                            let _ = handle.plan_renewal_in_thread();
                        }
                    }
                }
                drop(then);
            };
            if !call.ops.is_empty() {
                store.submit(call, Box::new(done));
            }
        }
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(then) = self.0.get_mut().take() {
            then();
        }
    }
}

impl Renewed for LimiterHandle {
    fn renew(&self) -> Option<Nanos> {
        // No Python here: the interpreter may be held by other code for long.
        if self.is_closed() {
            return None;
        }
        let next = self.core.renew(&self.slots)?;
        Some(Nanos::clamped(next.get() - self.core.clock().now().get()))
    }
}
