//! The class `Waiter`, and what changes wait queues and wakes their callers; the queues are in
//! `limiter/waiting/`.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::clock::ManualClock;
use crate::bindings::decision::{Decision, DecisionPart, several, several_data};
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{raise, rate_limited};
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle, Wakeup};
use crate::bindings::reservation::{Reservation, ReservedPart};
use crate::clock::Clock;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{
    self, Acquired, BoundLimit, BucketChange, Call, Driven, Ending, Transaction, WaitOutcome,
    WaitingCall, Want,
};
use crate::store::Store;
use crate::sync::{AtomicBool, Ordering};

#[doc = doc!(Waiter)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter {
    handle: Arc<LimiterHandle>,
    call: Arc<WaitingCall>,
    /// The ids and limits as the decision shows them.
    shown: Vec<DecisionPart>,
    /// The number of its arrival, and the instant.
    arrival: (u64, Timestamp),
    has_arrived: AtomicBool,
    wakeup: Arc<Wakeup>,
}

impl Waiter {
    /// Creates a waiter for one limit, or for several that decide together. Without `notify`, it is one of a
    /// thread.
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        (verb, is_joint): (Verb, bool),
        wants: impl Iterator<Item = (DecisionPart, Box<str>, Kind, i64)>,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> Waiter {
        let mut shown = Vec::new();
        let wants = wants.map(|(part, id, kind, keep)| {
            let (name, cost) = (part.2.get().entry.name().as_str().into(), part.1);
            shown.push(part);
            Want { name, id, cost, kind, keep }
        });
        let (wants, timeout) = (wants.collect(), timeout_ns.map(Nanos::clamped));
        Waiter {
            handle: Arc::clone(handle),
            call: Arc::new(WaitingCall { verb, wants, timeout, is_joint }),
            shown,
            arrival: (handle.waiting.next_number(), handle.core.clock().now()),
            has_arrived: AtomicBool::new(false),
            wakeup: Arc::new(Wakeup::new(notify)),
        }
    }

    /// Blocks this thread until the call is served. Returns its decision or reservation.
    pub(crate) fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let served = loop {
            match self.step(py) {
                Ok(false) => {}
                Ok(true) => break self.result(py),
                Err(error) => break Err(error),
            }
            if let Err(error) = self.wakeup.wait(py, self.delay(py)) {
                break Err(error);
            }
        };
        let left = self.leave(py);
        served.and_then(|served| left.map(|()| served))
    }

    /// Returns the ids and limits of `transactions` as a decision shows them.
    fn shown(&self, py: Python<'_>, transactions: &[Transaction]) -> PyResult<Vec<DecisionPart>> {
        let shown = self.shown.iter().zip(transactions).map(|((id, cost, entry), transaction)| {
            let entry = LimitEntry::of(entry, py, &transaction.limit)?;
            Ok((id.clone_ref(py), *cost, entry))
        });
        shown.collect()
    }

    /// Returns the error of a call whose turn did not come in time, or would come in `wait`.
    fn too_late(&self, py: Python<'_>, wait: Option<Nanos>) -> PyResult<PyErr> {
        let transactions = self.call.transactions(&self.handle.core.snapshot())?;
        let parts = self.shown(py, &transactions)?;
        if self.call.is_joint {
            let verb = self.call.verb;
            let refused = self.handle.run(py, |core| core.refuse_all(verb, &transactions))?;
            let decision = several(py, &self.handle, refused, parts)?;
            let decision = Decision::denied(&decision, None)?;
            // Of what denies it now, another limit may take longer, such as one on slots.
            let least = decision.get().data.decision(py).retry_after.max(Nanos::clamped(1));
            return self.denied(&decision, wait.filter(|wait| *wait >= least));
        }
        let ([transaction], [(id, cost, entry)]) = (&transactions[..], &parts[..]) else {
            return Ok(raise("LimitError", "a waiter has one limit"));
        };
        let adjustment = transaction.adjustment.as_ref();
        let check = Call { adjustment, ..Call::check(&transaction.id, *cost) };
        let decided = self.handle.run(py, |core| core.refuse(&transaction.limit, check))?;
        let data = DecisionData::given(decided, *cost, id.bind(py), entry.clone_ref(py));
        self.denied(&Bound::new(py, Decision::new(data))?, wait)
    }

    fn denied(&self, decision: &Bound<'_, Decision>, wait: Option<Nanos>) -> PyResult<PyErr> {
        if let Some(wait) = wait {
            return Ok(PyErr::from_value(rate_limited_error(decision, wait.get())?));
        }
        let name = decision.getattr("name")?;
        let what = if self.call.is_joint { "not served" } else { "no slot was free" };
        let seconds = self.call.timeout.map_or(0.0, |timeout| timeout.get() as f64 / 1e9);
        let message = format!("denied by {name}: {what} within the timeout of {seconds} s");
        rate_limited(decision, &message).map(PyErr::from_value)
    }

    fn decision_data(&self, py: Python<'_>, taken: &Acquired) -> PyResult<DecisionData> {
        let (verb, answered) = (self.call.verb, taken.answered.clone());
        let mut parts = self.shown(py, &taken.transactions)?;
        if self.call.is_joint {
            return several_data(py, &self.handle, answered, parts);
        }
        let (part, answer) = (parts.pop(), answered.parts.into_iter().next());
        let found = part.zip(answer).map(|((id, cost, entry), answer)| match &taken.decided {
            Some(decided) => DecisionData::given(decided.clone(), cost, id.bind(py), entry),
            None => DecisionData::new(answer, verb, cost, id.bind(py), entry),
        });
        Ok(found.unwrap_or_default())
    }
}

#[pymethods]
impl Waiter {
    #[doc = doc!(Waiter.step)]
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        let (handle, (number, _)) = (&self.handle, self.arrival);
        let waiting = &handle.waiting;
        // Relaxed: only its caller steps.
        if !self.has_arrived.swap(true, Ordering::Relaxed) {
            handle.check_open()?;
            handle.drive(py, Some(number), |core, driven| {
                let waker = Arc::clone(&self.wakeup);
                waiting.arrive(core, self.arrival, &self.call, waker, driven)
            })??;
        } else if !waiting.is_done(number) {
            handle.drive(py, Some(number), |core, driven| waiting.step(core, number, driven))?;
        }
        match waiting.take_refusal(number) {
            Some(WaitOutcome::Failed(failure)) => Err(failure.into()),
            Some(WaitOutcome::Late(wait)) => {
                Err(self.too_late(py, wait).unwrap_or_else(|error| error))
            }
            _ => Ok(waiting.is_done(number)),
        }
    }

    #[doc = doc!(Waiter.result)]
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let taken = self.handle.waiting.take_taken(self.arrival.0);
        let taken = taken
            .ok_or_else(|| raise("ReservationError", "the waiter has nothing to take over"))?;
        let data = self.decision_data(py, &taken)?;
        if self.call.verb != Verb::Reserve {
            return Ok(Bound::new(py, Decision::new(data))?.into_any());
        }
        let shown = self.shown(py, &taken.transactions)?;
        let parts = ReservedPart::all(py, &taken, &shown);
        let reserved = Reservation::new(&self.handle, data, parts);
        Ok(Bound::new(py, reserved)?.into_any())
    }

    #[doc = doc!(Waiter.delay)]
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let until = self.handle.waiting.sleep(self.arrival.0)?;
        let left = (until.get() - self.handle.core.clock().now().get()).max(0);
        if left > 0 && self.handle.clock.bind(py).is_instance_of::<ManualClock>() {
            // A timer wakes it.
            return None;
        }
        // Rounded up to a microsecond, so that the waiter does not step too early.
        Some(((left + 999) / 1000) as f64 / 1e6)
    }

    #[doc = doc!(Waiter.leave)]
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, (number, _)) = (&self.handle, self.arrival);
        let leave = |core: &_, driven: &mut _| handle.waiting.leave(core, number, driven);
        handle.drive(py, Some(number), leave)
    }
}

/// Returns the verb of a waiter that takes tokens, or reserves.
pub(crate) fn verb_of(reserves: bool) -> Verb {
    if reserves { Verb::Reserve } else { Verb::Spend }
}

/// Returns the tokens that a call must leave.
pub(crate) fn kept(adjustment: Option<&Adjustment>) -> i64 {
    adjustment.map_or(0, |adjustment| adjustment.keep)
}

#[doc = doc!(rate_limited_error)]
#[pyfunction]
pub(crate) fn rate_limited_error<'py>(
    decision: &Bound<'py, Decision>,
    wait_ns: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let denied = Decision::denied(decision, Some(Nanos::clamped(wait_ns)))?;
    let (name, wait) = (decision.getattr("name")?, wait_ns as f64 / 1e9);
    let message = format!("denied by {name}: the turn would come in {wait} s, too late");
    rate_limited(&denied, &message)
}

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
