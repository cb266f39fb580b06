//! Driving the wait queues of a limiter.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::arguments::Argument;
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::limiter_handle::{Core, LimiterHandle};
use crate::bindings::wait_queues::{BucketQueue, Charge, WaiterState};
use crate::clock::Clock;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Decided, Rejected, Step, Ticket};
use crate::store::StoreError;

impl LimiterHandle {
    /// The limits were replaced: waiters are served under the new ones.
    pub(crate) fn wake_after_reload(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        for queue in self.waiting.all() {
            let waiter = queue.waiters.lock().any().cloned();
            let bound = waiter.and_then(|waiter| self.active(py, &waiter.entry).ok());
            let peek = bound.and_then(|(bound, _)| peek(py, self, &bound, &queue.id, 0));
            let is_limited = peek.is_none_or(|peek| !peek.decision.unlimited && !peek.shadow);
            queue.waiters.lock().on_reload(is_limited, self.core.clock().now());
            drive(py, self, &queue, None, false)?;
        }
        Ok(())
    }

    /// Closes the store: waiters raise.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_store();
        let mut wakeups = Wakeups::default();
        for queue in self.waiting.all() {
            let (waiters, charges) = queue.waiters.lock().on_close();
            for waiter in waiters {
                waiter.finish(Err(StoreError::Closed.into()));
                wakeups.wake(py, &waiter);
            }
            drop(charges);
            self.waiting.remove_if_empty(&queue);
        }
        wakeups.result()
    }

    /// The bucket was forgotten, and with it what was charged for its waiters.
    pub(crate) fn wake_after_reset(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &limiter::BoundLimit,
        id: &str,
    ) -> PyResult<()> {
        let Some(queue) = self.queue_of(bound, id) else { return Ok(()) };
        let charges = queue.waiters.lock().on_reset(self.core.clock().now());
        drop(charges);
        drive(py, self, &queue, None, false)
    }

    /// Tokens were returned to the bucket: its waiters move up.
    pub(crate) fn wake_after_refund(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &limiter::BoundLimit,
        id: &str,
    ) -> PyResult<()> {
        let Some(queue) = self.queue_of(bound, id) else { return Ok(()) };
        let wait = peek(py, self, bound, &queue.id, 0).map(|peek| peek.decision.retry_after);
        queue.waiters.lock().on_refund(wait.unwrap_or(Nanos::MAX), self.core.clock().now());
        drive(py, self, &queue, None, false)
    }

    fn queue_of(&self, bound: &limiter::BoundLimit, id: &str) -> Option<Arc<BucketQueue>> {
        if self.waiting.is_empty() {
            return None;
        }
        let id = self.core.waiter_id(bound, id, 0).ok()?;
        self.waiting.of_bucket(bound.entry().name().as_str(), &id)
    }

    /// Returns a charge to the store; whether that succeeded. If not, it drains as time goes by.
    fn give_back(&self, py: Python<'_>, charge: &Charge, id: &str) -> bool {
        charge.decided.decision.allowed
            && self.refuse_closed().is_ok()
            && self.run(py, |core| core.settle(&charge.bound, id, charge.cost, 0, None)).is_ok()
    }
}

/// A check of `cost`; `None` if it fails.
fn peek(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    bound: &limiter::BoundLimit,
    id: &str,
    cost: i64,
) -> Option<Decided> {
    handle.run(py, |core| core.decide(bound, Verb::Check, id, cost, None)).ok()
}

/// The error of a waiter whose turn would come too late, in `wait`.
pub(crate) fn too_late(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    waiter: &WaiterState,
    id: &str,
    wait: Nanos,
) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let (bound, entry) = handle.active(py, &waiter.entry)?;
        let check = |core: &Core| core.decide(&bound, Verb::Check, id, waiter.cost, None);
        let decided = handle.run(py, check);
        let decided = decided?;
        let content = DecisionData::boxed(decided, waiter.cost, waiter.id.bind(py), entry);
        let decision = Bound::new(py, Decision::new(*content))?;
        Ok(PyErr::from_value(rate_limited_error(&decision, wait.get())?))
    };
    made().unwrap_or_else(|error| error)
}

/// Return the `RateLimited` for a caller whose turn would come too late, after `wait_ns`.
#[pyfunction]
pub(crate) fn rate_limited_error<'py>(
    decision: &Bound<'py, Decision>,
    wait_ns: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = decision.py();
    let denied = Decision::replace(
        decision,
        Some(false),
        None,
        None,
        Some(wait_ns),
        Argument::Missing,
        None,
        None,
        None,
    )?;
    let (name, wait) = (decision.getattr("name")?, wait_ns as f64 / 1e9);
    let message = format!("denied by {name}: the turn would come in {wait} s, too late");
    py.import("penstock.errors")?.getattr("RateLimited")?.call1((message, denied))
}

/// Who is to be woken, and what went wrong on the way.
#[derive(Default)]
struct Wakeups {
    dead: Vec<Arc<WaiterState>>,
    error: Option<PyErr>,
}

impl Wakeups {
    fn wake(&mut self, py: Python<'_>, waiter: &Arc<WaiterState>) {
        let Err(error) = waiter.notify.call0(py) else { return };
        if error.is_instance_of::<PyException>(py) {
            // Its event loop is closed.
            self.dead.push(Arc::clone(waiter));
        } else {
            // An interruption is the caller's, and must not cost the waiter its wake-up.
            let _ = waiter.notify.call0(py);
            self.error.get_or_insert(error);
        }
    }

    fn result(self) -> PyResult<()> {
        self.error.map_or(Ok(()), Err)
    }
}

/// Does all that is due in a queue: asks for the first, serves those whose turn has come, wakes
/// those that come earlier. `own` is a waiter that this is done for; it `is_awake` if it need not
/// be woken.
pub(crate) fn drive(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    own: Option<(&Arc<WaiterState>, Ticket)>,
    is_awake: bool,
) -> PyResult<()> {
    let mut wakeups = Wakeups::default();
    let is_asleep = |waiter: &Arc<WaiterState>| {
        !is_awake || own.is_none_or(|(own, _)| !Arc::ptr_eq(own, waiter))
    };
    loop {
        let now = handle.core.clock().now();
        let step = queue.waiters.lock().step(own.map(|(_, ticket)| ticket), now);
        let finished = match step {
            Step::Ask { ticket, waiter, cost } => ask(py, handle, queue, ticket, &waiter, cost),
            Step::Serve { waiter, charge } => {
                let decision = served(py, handle, queue, &waiter, &charge);
                let outcome = decision.map(|decision| (decision, charge));
                if let Some(charge) = waiter.finish(outcome) {
                    return_charge(py, handle, queue, waiter.ticket(), &charge);
                }
                Some(waiter)
            }
            Step::Overdue { costs } => own.map(|(own, _)| {
                let bound = handle.active(py, &own.entry);
                let wait = bound.ok().and_then(|(bound, _)| {
                    handle
                        .run(py, |core| core.estimate(&bound, &queue.id, &costs, None))
                        .ok()
                        .flatten()
                });
                let wait = wait.map_or(Nanos::ZERO, |estimate| estimate.wait());
                own.finish(Err(too_late(py, handle, own, &queue.id, wait)));
                Arc::clone(own)
            }),
            Step::Sleep => {
                if let Some((own, ticket)) = own {
                    let until = queue.waiters.lock().sleep(ticket);
                    own.set_timer(py, handle, until);
                }
                let oversleepers = queue.waiters.lock().oversleepers();
                for waiter in oversleepers {
                    let until = queue.waiters.lock().sleep(waiter.ticket());
                    if !waiter.set_timer(py, handle, until) {
                        wakeups.wake(py, &waiter);
                    }
                }
                match wakeups.dead.pop() {
                    None => break,
                    Some(dead) => {
                        depart(py, handle, queue, &dead);
                        None
                    }
                }
            }
        };
        if let Some(waiter) = finished.filter(is_asleep) {
            wakeups.wake(py, &waiter);
        }
    }
    handle.waiting.remove_if_empty(queue);
    wakeups.result()
}

/// Asks the store to charge a waiter's cost; returns the waiter if it is finished.
fn ask(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    ticket: Ticket,
    waiter: &Arc<WaiterState>,
    cost: i64,
) -> Option<Arc<WaiterState>> {
    let answer = handle.active(py, &waiter.entry).and_then(|(bound, entry)| {
        let answer = handle.run(py, |core| core.place(&bound, &queue.id, cost));
        Ok((answer?, bound, entry))
    });
    let received_at = handle.core.clock().now();
    let (answer, bound, entry) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let waiter = queue.waiters.lock().on_failure(ticket, received_at)?;
            waiter.finish(Err(error));
            return Some(waiter);
        }
    };
    let pace = answer.pace;
    let charge = |decided| Charge { bound, entry, decided, cost, pace };
    let rejected = queue.waiters.lock().on_answer(ticket, answer, charge, received_at)?;
    match rejected {
        Rejected::Unwanted(charge) => {
            return_charge(py, handle, queue, ticket, &charge);
            None
        }
        Rejected::TooLate(waiter, wait, charge) => {
            if let Some(charge) = charge {
                return_charge(py, handle, queue, ticket, &charge);
            }
            waiter.finish(Err(too_late(py, handle, &waiter, &queue.id, wait)));
            Some(waiter)
        }
    }
}

/// The decision of a waiter whose turn has come, with the bucket's current numbers.
fn served(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &BucketQueue,
    waiter: &WaiterState,
    charge: &Charge,
) -> PyResult<Py<Decision>> {
    let current = handle.active(py, &waiter.entry).ok().and_then(|(bound, entry)| {
        let again = peek(py, handle, &bound, &queue.id, waiter.cost)?.decision;
        let mut decided = peek(py, handle, &bound, &queue.id, 0)?;
        decided.decision.retry_after = if again.allowed { Nanos::ZERO } else { again.retry_after };
        Some((decided, entry))
    });
    // The limit may be gone, or the store out of reach; the cost was charged before.
    let (mut decided, entry) = current.unwrap_or_else(|| {
        let mut decided = charge.decided.clone();
        decided.decision.retry_after = Nanos::ZERO;
        (decided, charge.entry.clone_ref(py))
    });
    decided.decision.allowed = true;
    let content = DecisionData::boxed(decided, waiter.cost, waiter.id.bind(py), entry);
    Py::new(py, Decision::new(*content))
}

fn return_charge(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &BucketQueue,
    ticket: Ticket,
    charge: &Charge,
) {
    if handle.give_back(py, charge, &queue.id) {
        let now = handle.core.clock().now();
        queue.waiters.lock().on_returned(ticket, charge.cost, charge.pace, now);
    }
}

/// Takes a waiter out of its queue, and returns its charge unless the caller has the decision.
pub(crate) fn depart(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    waiter: &Arc<WaiterState>,
) {
    let (ticket, outcome) = {
        let mut standing = waiter.standing.lock();
        if standing.is_over {
            return;
        }
        standing.is_over = true;
        (standing.ticket, standing.outcome.take())
    };
    waiter.set_timer(py, handle, None);
    let charge = match outcome {
        Some(Ok((_, charge))) => Some(charge),
        Some(Err(_)) => None,
        None => {
            let now = handle.core.clock().now();
            let departed = queue.waiters.lock().on_departure(ticket, now);
            departed.and_then(|(_, charge)| charge)
        }
    };
    if let Some(charge) = charge {
        return_charge(py, handle, queue, ticket, &charge);
    }
}

impl WaiterState {
    /// On a `ManualClock`: has the waiter served as the clock passes `until`, however far it is
    /// moved at once. Returns false if the waiter must wake by itself.
    pub(crate) fn set_timer(
        self: &Arc<Self>,
        py: Python<'_>,
        handle: &Arc<LimiterHandle>,
        until: Option<Timestamp>,
    ) -> bool {
        let Ok(clock) = handle.clock.bind(py).cast::<ManualClock>() else { return false };
        let is_due = until.is_some_and(|until| until <= handle.core.clock().now());
        let timer = until.filter(|_| !is_due).and_then(|until| {
            let timer =
                Py::new(py, Timer { handle: Arc::clone(handle), waiter: Arc::clone(self) }).ok()?;
            Some(clock.get().set_timer(until.get(), timer.into_any()))
        });
        let before = std::mem::replace(&mut *self.timer.lock(), timer);
        if let Some(before) = before {
            clock.get().drop_timer(before);
        }
        !is_due
    }
}

/// What a `ManualClock` calls as it passes a waiter's turn.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
struct Timer {
    handle: Arc<LimiterHandle>,
    waiter: Arc<WaiterState>,
}

#[pymethods]
impl Timer {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let Timer { handle, waiter } = self;
        let (queue, ticket) = {
            let standing = waiter.standing.lock();
            (standing.queue.clone(), standing.ticket)
        };
        match queue.filter(|queue| handle.waiting.has(queue)) {
            Some(queue) => drive(py, handle, &queue, Some((waiter, ticket)), false),
            None => Ok(()),
        }
    }
}
