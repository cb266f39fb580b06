//! The slots that a limiter holds: their leases are renewed until they are returned.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use smallvec::smallvec;

use crate::bindings::arguments::seconds;
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::DecisionPart;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::taken::{Parts, ReservedPart, Taken};
use crate::clock::Clock;
use crate::engine::answer::Outcome;
use crate::engine::batch::Kind;
use crate::engine::state::Lease;
use crate::engine::time::Timestamp;
use crate::engine::verb::Verb;
use crate::limiter::{
    self, AddedSlot, Answered, AnsweredAll, CallError, Ending, Endings, HeldSlotKey, Transaction,
    count_endings,
};
use crate::store::{Store, StoreError};
use crate::sync::Mutex;

/// How often a call that must not wait tries to get a lock of another process.
const TRIES: usize = 100;

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
        // Due by the limiter's clock, which may differ from the store's.
        let now = if self.core.store().remote().is_some() { self.core.clock().now() } else { now };
        self.renew_added(py, self.slots.add(bound, &id, cost, lease, now))
    }

    /// Returns what an answer about several buckets has taken, and holds the slots of it.
    pub(crate) fn hold_all(
        self: &Arc<Self>,
        py: Python<'_>,
        transactions: Vec<Transaction>,
        shown: &[DecisionPart],
        answered: &AnsweredAll,
    ) -> Parts {
        let mut parts = Parts::with_capacity(transactions.len());
        let found = transactions.into_iter().zip(shown).zip(&answered.parts);
        for ((transaction, (id, cost, entry)), Answered { answer, .. }) in found {
            let Transaction { limit: bound, id: text, kind, adjustment, .. } = transaction;
            let cost = *cost;
            if answer.outcome != Outcome::Allowed || kind == Kind::Check {
                continue;
            }
            let lease = bound.entry().lease(Verb::Reserve, &text, cost, answer);
            let slot = lease.map(|lease| self.hold(py, &bound, &text, cost, lease, answer.now));
            let taken = Taken::new(slot, &bound, id.bind(py), adjustment.as_ref());
            parts.push(ReservedPart { entry: entry.clone_ref(py), cost, taken });
        }
        parts
    }

    /// Starts the renewal of slots that were added, if it has not begun.
    pub(crate) fn renew_added(self: &Arc<Self>, py: Python<'_>, slot: AddedSlot) -> HeldSlotKey {
        if slot.starts_renewal {
            self.start_renewal(py);
        }
        slot.key
    }

    /// Starts the thread that renews slots or, on a manual clock, the timer.
    #[cold]
    fn start_renewal(self: &Arc<Self>, py: Python<'_>) {
        let start = || -> PyResult<()> {
            let renewal = Bound::new(py, Renewal { handle: Arc::downgrade(self) })?;
            if let Ok(clock) = self.clock.bind(py).cast::<ManualClock>() {
                return renewal.get().set_timer(&renewal, clock.get());
            }
            let wake = py.import("penstock.leases")?.call_method1("start", (renewal,))?;
            let before = self.wake_renewal.lock().replace(wake.unbind());
            drop(before);
            Ok(())
        };
        if let Err(error) = start() {
            // The slots were taken, and are given back in any case.
            error.write_unraisable(py, None);
        }
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
        let ended = if waits || !self.core.store().may_wait() {
            self.run(py, |core| core.end_all(endings))
        } else if self.core.store().remote().is_some() {
            self.submit_endings(endings.into(), || {});
            Ok(())
        } else {
            self.try_end(py, endings)
        };
        if let Err(error) = &ended
            && let CallError::Store(error) = &**error
        {
            self.slots.retry(endings.into(), error, self.core.clock().now());
            self.ensure_renewal(py);
        }
        ended
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
        self.ensure_renewal(py);
        Ok(())
    }

    /// Starts the renewal, or lets its thread look again.
    fn ensure_renewal(self: &Arc<Self>, py: Python<'_>) {
        if self.slots.starts_renewal() || self.clock.bind(py).is_instance_of::<ManualClock>() {
            return self.start_renewal(py);
        }
        let wake = self.wake_renewal.lock().as_ref().map(|wake| wake.clone_ref(py));
        if let Some(Err(error)) = wake.map(|wake| wake.call0(py)) {
            error.write_unraisable(py, None);
        }
    }

    /// Applies the leases of new limits to the slots that are held.
    pub(crate) fn renew_after_reload(self: &Arc<Self>, py: Python<'_>) {
        if self.slots.held().is_empty() {
            return;
        }
        let slots = Arc::clone(&self.slots);
        self.run(py, |core| core.renew_after_reload(&slots));
        self.ensure_renewal(py);
    }

    /// Sends endings to the server. Its replies are counted on a thread of the store, which then calls
    /// `then`; it is called immediately if there is nothing to send.
    pub(crate) fn submit_endings(&self, endings: Endings, then: impl FnOnce() + Send + 'static) {
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
            let then = Arc::clone(&then);
            let done = move |replies: Result<Vec<_>, StoreError>| {
                match replies {
                    Ok(answers) => count_endings(&endings, &answers),
                    Err(error) => slots.retry(endings, &error, now),
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

#[doc = doc!(Renewal)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Renewal {
    handle: Weak<LimiterHandle>,
}

impl Renewal {
    /// Sets the timer for the slots that are due next, in place of the previous one.
    fn set_timer(&self, renewal: &Bound<'_, Renewal>, clock: &ManualClock) -> PyResult<()> {
        let Some(handle) = self.handle.upgrade() else { return Ok(()) };
        let next = handle.slots.next_due(clock.instant());
        let call = renewal.getattr("__call__")?.unbind();
        let timer = next.map(|next| clock.set_timer(next.get(), call));
        let before = std::mem::replace(&mut *handle.renewal_timer.lock(), timer);
        before.into_iter().for_each(|timer| clock.drop_timer(timer));
        Ok(())
    }
}

#[pymethods]
impl Renewal {
    #[doc = doc!(Renewal.due_in)]
    fn due_in(&self) -> Option<f64> {
        let handle = self.handle.upgrade()?;
        handle.check_open().ok()?;
        let now = handle.core.clock().now();
        let next = handle.slots.next_due(now)?;
        Some(seconds((next.get() - now.get()).max(0)))
    }

    /// Renew the slots that are due.
    fn __call__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Some(handle) = slf.get().handle.upgrade() else { return Ok(()) };
        if handle.check_open().is_err() {
            return Ok(());
        }
        let slots = Arc::clone(&handle.slots);
        handle.run(py, |core| core.renew(&slots));
        match handle.clock.bind(py).cast::<ManualClock>() {
            Ok(clock) => slf.get().set_timer(slf, clock.get()),
            Err(_) => Ok(()),
        }
    }
}
