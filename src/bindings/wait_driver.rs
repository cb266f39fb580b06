//! Drivers of the wait queues: they ask the store, serve waiters and notify them.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::arguments::Argument;
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::id_text::id_text;
use crate::bindings::joint_call::ask_together;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::reservation::Reservation;
use crate::bindings::wait_queues::{Acquisition, BucketQueue, Charge, WaiterState};
use crate::clock::Clock;
use crate::engine::factor::Adjustment;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Call, Decided, Ending, QueueStep, Rejected, Ticket};
use crate::store::{Store, StoreError};

impl LimiterHandle {
    /// Applies a replacement of the limits to all waiters.
    pub(crate) fn wake_after_reload(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        for queue in self.waiting.all() {
            let waiter = queue.waiters.lock().any().cloned();
            let bound = waiter.and_then(|waiter| self.active(py, &waiter.entry).ok());
            let rule = bound.as_ref().map(|(bound, _)| bound.entry().rule_for(&queue.id));
            let is_limited = rule.is_none_or(|rule| !rule.limit.is_unlimited() && !rule.shadow);
            let has_changed = |charge: &Charge| {
                let limit = charge.bound.entry().rule_for(&queue.id).limit;
                rule.is_some_and(|rule| rule.limit != limit)
            };
            let now = self.core.clock().now();
            let charges = {
                let mut waiters = queue.waiters.lock();
                if is_limited && waiters.charges().any(has_changed) {
                    waiters.queue_again(now)
                } else {
                    waiters.on_reload(is_limited, now);
                    Vec::new()
                }
            };
            for charge in charges {
                self.refund_charge(py, &charge, &queue.id);
            }
            drive(py, self, &queue, None, false)?;
        }
        Ok(())
    }

    /// Asks for the first waiters after slots were returned. A store that may wait is asked by the waiters
    /// themselves, because this may run on an event loop.
    pub(crate) fn wake_after_releases(self: &Arc<Self>, py: Python<'_>, endings: &[Ending]) {
        if self.waiting.is_empty() {
            return;
        }
        let releases = endings.iter().filter(|ending| matches!(ending.verb, Verb::Release(_)));
        for Ending { limit, id, .. } in releases {
            let Some(queue) = self.queue_of(limit, id) else { continue };
            let (store, now) = (self.core.store(), self.core.clock().now());
            queue.waiters.lock().on_release(store.is_shared(), now);
            let woken = if store.may_wait() {
                let mut wakeups = Wakeups::default();
                wakeups.wake_moved(py, self, &queue);
                while let Some(dead) = wakeups.dead.pop() {
                    depart(py, self, &queue, &dead);
                    wakeups.wake_moved(py, self, &queue);
                }
                self.waiting.remove_if_empty(&queue);
                wakeups.result()
            } else {
                drive(py, self, &queue, None, false)
            };
            if let Err(error) = woken {
                // The slots are returned in any case.
                error.write_unraisable(py, None);
            }
        }
    }

    /// Closes the store. All waiters raise an error.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_store();
        let mut wakeups = Wakeups::default();
        for queue in self.waiting.all() {
            let (waiters, charges) = queue.waiters.lock().on_close();
            for waiter in waiters {
                waiter.finish(Err(StoreError::Closed.into()));
                wakeups.wake(py, &waiter);
            }
            self.forget(charges);
            self.waiting.remove_if_empty(&queue);
        }
        wakeups.result()
    }

    /// Applies a reset of a bucket, which also removed the charges of its waiters.
    pub(crate) fn wake_after_reset(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &limiter::BoundLimit,
        id: &str,
    ) -> PyResult<()> {
        let Some(queue) = self.queue_of(bound, id) else { return Ok(()) };
        let charges = queue.waiters.lock().queue_again(self.core.clock().now());
        self.forget(charges);
        drive(py, self, &queue, None, false)
    }

    /// Moves the waiters of a bucket up after a refund.
    pub(crate) fn wake_after_refund(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &limiter::BoundLimit,
        id: &str,
    ) -> PyResult<()> {
        let Some(queue) = self.queue_of(bound, id) else { return Ok(()) };
        let wait = peek(py, self, bound, &queue.id, 0, 0).map(|peek| peek.decision.retry_after);
        queue.waiters.lock().on_refund(wait.unwrap_or(Nanos::MAX), self.core.clock().now());
        drive(py, self, &queue, None, false)
    }

    fn queue_of(&self, bound: &limiter::BoundLimit, id: &str) -> Option<Arc<BucketQueue>> {
        if self.waiting.is_empty() {
            return None;
        }
        let id = self.core.waiter_id(bound, Call::check(id, 0)).ok()?;
        self.waiting.of_bucket(bound.entry().name().as_str(), &id)
    }

    /// Refunds a charge to the store. Returns whether this succeeded. Otherwise the tokens come back
    /// with time.
    fn refund_charge(self: &Arc<Self>, py: Python<'_>, charge: &Charge, id: &str) -> bool {
        if let Some(slot) = charge.slot {
            let endings: Vec<_> = self.slots.end(slot).into_iter().collect();
            return self.execute(py, &endings, true).is_ok();
        }
        charge.decided.decision.allowed
            && self.check_open().is_ok()
            && self
                .run(py, |core| core.settle(&charge.bound, Call::spend(id, charge.cost), 0))
                .is_ok()
    }

    /// Drops charges that the store has not any more, or that it need not return.
    fn forget(&self, charges: Vec<Charge>) {
        for slot in charges.iter().filter_map(|charge| charge.slot) {
            self.slots.abandon(slot);
        }
    }
}

/// Checks `cost` in a bucket, of which `keep` tokens must be left. Returns `None` if the call fails.
fn peek(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    bound: &limiter::BoundLimit,
    id: &str,
    cost: i64,
    keep: i64,
) -> Option<Decided> {
    let adjustment = Adjustment::keeping(keep);
    let call = Call { adjustment: adjustment.as_ref(), ..Call::check(id, cost) };
    handle.run(py, |core| core.peek(bound, call)).ok()
}

/// Returns the error of a waiter whose turn would come after its deadline, in `wait`; `None` if that is
/// unknown.
pub(crate) fn too_late(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    waiter: &WaiterState,
    id: &str,
    wait: Option<Nanos>,
) -> PyErr {
    let build = || -> PyResult<PyErr> {
        if let Some((call, _)) = &waiter.joint {
            let decision = call.refuse(py, handle)?;
            // Of what denies it now, another limit may take longer, such as one on slots.
            let least = decision.get().data.decision(py).retry_after.max(Nanos::clamped(1));
            return denied(&decision, waiter, wait.filter(|wait| *wait >= least));
        }
        let (bound, entry) = handle.active(py, &waiter.entry)?;
        let adjustment = Adjustment::keeping(waiter.keep);
        let check = Call { adjustment: adjustment.as_ref(), ..Call::check(id, waiter.cost) };
        let decided = handle.run(py, |core| core.refuse(&bound, check))?;
        let data = DecisionData::given(decided, waiter.cost, waiter.id.bind(py), entry);
        denied(&Bound::new(py, Decision::new(data))?, waiter, wait)
    };
    build().unwrap_or_else(|error| error)
}

/// Returns the error for the decision of a waiter whose turn would come in `wait`; `None` if unknown.
fn denied(
    decision: &Bound<'_, Decision>,
    waiter: &WaiterState,
    wait: Option<Nanos>,
) -> PyResult<PyErr> {
    match wait {
        Some(wait) => Ok(PyErr::from_value(rate_limited_error(decision, wait.get())?)),
        None => timeout_error(decision, waiter),
    }
}

#[doc = doc!(rate_limited_error)]
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

/// Returns the error for a caller whose turn did not come until its deadline, and may come at any time.
fn timeout_error(decision: &Bound<'_, Decision>, waiter: &WaiterState) -> PyResult<PyErr> {
    let (py, name) = (decision.py(), decision.getattr("name")?);
    let what = if waiter.joint.is_some() { "not served" } else { "no slot was free" };
    let seconds = waiter.timeout.map_or(0.0, |timeout| timeout.get() as f64 / 1e9);
    let message = format!("denied by {name}: {what} within the timeout of {seconds} s");
    let class = py.import("penstock.errors")?.getattr("RateLimited")?;
    Ok(PyErr::from_value(class.call1((message, decision))?))
}

/// The results of notifying waiters.
#[derive(Default)]
pub(crate) struct Wakeups {
    /// Waiters that could not be notified.
    dead: Vec<Arc<WaiterState>>,
    /// The first interruption, such as `KeyboardInterrupt`.
    error: Option<PyErr>,
    /// Other queues with due steps.
    pub(crate) queues: Vec<Arc<BucketQueue>>,
}

impl Wakeups {
    fn wake(&mut self, py: Python<'_>, waiter: &Arc<WaiterState>) {
        let Err(error) = waiter.notify.call0(py) else { return };
        if error.is_instance_of::<PyException>(py) {
            // The waiter's event loop is closed.
            self.dead.push(Arc::clone(waiter));
        } else {
            // The interruption is meant for this thread. The waiter must be notified nevertheless.
            let _ = waiter.notify.call0(py);
            self.error.get_or_insert(error);
        }
    }

    /// Notifies the waiters that moved up.
    fn wake_moved(&mut self, py: Python<'_>, handle: &Arc<LimiterHandle>, queue: &BucketQueue) {
        let waiters = queue.waiters.lock().waiters_to_notify();
        for waiter in waiters {
            let until = queue.waiters.lock().sleep(waiter.ticket());
            if !waiter.set_timer(py, handle, until) {
                self.wake(py, &waiter);
            }
        }
    }

    fn result(self) -> PyResult<()> {
        self.error.map_or(Ok(()), Err)
    }
}

/// Performs all due steps of a queue: asks the store for the first waiter, serves waiters whose turn
/// has come, and notifies waiters that moved up. `own` is the waiter of the caller; `is_awake` is
/// whether it needs no notification.
pub(crate) fn drive(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    own: Option<(&Arc<WaiterState>, Ticket)>,
    is_awake: bool,
) -> PyResult<()> {
    let mut wakeups = Wakeups::default();
    drive_one(py, handle, queue, own, is_awake, &mut wakeups);
    while let Some(queue) = wakeups.queues.pop() {
        drive_one(py, handle, &queue, None, false, &mut wakeups);
    }
    wakeups.result()
}

fn drive_one(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    own: Option<(&Arc<WaiterState>, Ticket)>,
    is_awake: bool,
    wakeups: &mut Wakeups,
) {
    let is_asleep = |waiter: &Arc<WaiterState>| {
        !is_awake || own.is_none_or(|(own, _)| !Arc::ptr_eq(own, waiter))
    };
    loop {
        let now = handle.core.clock().now();
        let step = queue.waiters.lock().step(own.map(|(_, ticket)| ticket), now);
        let finished = match step {
            QueueStep::Ask { ticket, waiter, cost } => match &waiter.joint {
                Some((call, index)) => {
                    ask_together(py, handle, queue, ticket, &waiter, (call, *index), wakeups)
                }
                None => ask(py, handle, queue, ticket, &waiter, cost),
            },
            QueueStep::Serve { waiter, charge } => {
                let decision = serve(py, handle, queue, &waiter, &charge);
                let outcome = decision.map(|decision| (decision, Acquisition::One(charge)));
                if let Some(taken) = waiter.finish(outcome) {
                    give_back(py, handle, queue, waiter.ticket(), &taken);
                }
                Some(waiter)
            }
            QueueStep::Overdue { demands } => own.map(|(own, _)| {
                let bound = handle.active(py, &own.entry).map(|(bound, _)| bound);
                let estimated = bound.ok().filter(|bound| !bound.has_slots(&queue.id));
                let wait = estimated.map(|bound| {
                    let estimate =
                        handle.run(py, |core| core.estimate(&bound, &queue.id, &demands, None));
                    estimate.ok().flatten().map_or(Nanos::ZERO, |estimate| estimate.wait())
                });
                own.finish(Err(too_late(py, handle, own, &queue.id, wait)));
                Arc::clone(own)
            }),
            QueueStep::Sleep => {
                if let Some((own, ticket)) = own {
                    let until = queue.waiters.lock().sleep(ticket);
                    own.set_timer(py, handle, until);
                }
                wakeups.wake_moved(py, handle, queue);
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
}

/// Adds a waiter to the queue of its bucket.
///
/// # Errors
/// `RateLimited`, if its turn would come after its deadline.
pub(crate) fn arrive(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    waiter: &Arc<WaiterState>,
) -> PyResult<Arc<BucketQueue>> {
    let (limit, _) = handle.active(py, &waiter.entry)?;
    let (text, adjustment) = (id_text(waiter.id.bind(py))?, Adjustment::keeping(waiter.keep));
    let (verb, cost, adjustment) = (waiter.verb, waiter.cost, adjustment.as_ref());
    let id = handle.core.waiter_id(&limit, Call { verb, id: &text, cost, adjustment })?;
    let name = limit.entry().name().as_str();
    let queue = handle.waiting.of_bucket(name, &id).filter(|_| !limit.has_slots(&id));
    let (ticket, now) = (waiter.next_ticket(&handle.waiting), handle.core.clock().now());
    let arguments =
        queue.and_then(|queue| queue.waiters.lock().estimate_arguments(ticket, cost, now));
    let estimate = match arguments {
        Some((demands, after)) => {
            handle.run(py, |core| core.estimate(&limit, &id, &demands, after))?
        }
        None => None,
    };
    let now = handle.core.clock().now();
    let joined = handle.waiting.join(waiter, name, &id, ticket, estimate, now);
    joined.map_err(|wait| too_late(py, handle, waiter, &id, Some(wait)))
}

/// Asks the store to charge a waiter's cost. Returns the waiter if it is finished.
fn ask(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    ticket: Ticket,
    waiter: &Arc<WaiterState>,
    cost: i64,
) -> Option<Arc<WaiterState>> {
    let answer = handle.active(py, &waiter.entry).and_then(|(bound, entry)| {
        let (verb, adjustment) = (waiter.verb, Adjustment::keeping(waiter.keep));
        let call = Call { verb, id: &queue.id, cost, adjustment: adjustment.as_ref() };
        let answer = handle.run(py, |core| core.place(&bound, call));
        Ok((answer?, bound, entry))
    });
    let received_at = handle.core.clock().now();
    let (mut answer, bound, entry) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let waiter = queue.waiters.lock().on_end(ticket, received_at)?;
            waiter.finish(Err(error));
            return Some(waiter);
        }
    };
    let (pace, now) = (answer.pace, answer.decided.decision.now);
    answer.is_polled = bound.has_slots(&queue.id) && handle.core.store().is_shared();
    let slot = answer.lease.map(|lease| handle.hold(py, &bound, &queue.id, cost, lease, now));
    let charge = |decided| Charge { bound, entry, decided, cost, pace, slot };
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
            waiter.finish(Err(too_late(py, handle, &waiter, &queue.id, Some(wait))));
            Some(waiter)
        }
    }
}

/// Counts a waiter whose turn has come. Returns its decision, with the bucket's current numbers.
fn serve(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &BucketQueue,
    waiter: &WaiterState,
    charge: &Charge,
) -> PyResult<Py<Decision>> {
    handle.core.count_served(&charge.bound, &queue.id, &charge.decided);
    // Slots were taken just now.
    let is_current = charge.slot.is_some() || !charge.decided.decision.allowed;
    if waiter.verb == Verb::Reserve && is_current {
        let (decided, entry) = (charge.decided.clone(), charge.entry.clone_ref(py));
        let data = DecisionData::given(decided, waiter.cost, waiter.id.bind(py), entry);
        return Py::new(py, Decision::new(data));
    }
    let current = handle.active(py, &waiter.entry).ok().and_then(|(bound, entry)| {
        let next = peek(py, handle, &bound, &queue.id, waiter.cost, waiter.keep)?.decision;
        let mut decided = peek(py, handle, &bound, &queue.id, 0, waiter.keep)?;
        decided.decision.retry_after = if next.allowed { Nanos::ZERO } else { next.retry_after };
        Some((decided, entry))
    });
    // If the limit was removed or the store does not answer, the numbers of the charge are used.
    let (mut decided, entry) = current.unwrap_or_else(|| {
        let mut decided = charge.decided.clone();
        decided.decision.retry_after = Nanos::ZERO;
        (decided, charge.entry.clone_ref(py))
    });
    decided.decision.allowed = true;
    let data = DecisionData::given(decided, waiter.cost, waiter.id.bind(py), entry);
    Py::new(py, Decision::new(data))
}

/// Returns to the store what was taken for a waiter.
pub(crate) fn give_back(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &BucketQueue,
    ticket: Ticket,
    taken: &Acquisition,
) {
    match taken {
        Acquisition::One(charge) => return_charge(py, handle, queue, ticket, charge),
        Acquisition::All(reservation) => cancel(py, reservation),
    }
}

/// Cancels a reservation of a caller that has left. If the store fails, its tokens come back with time.
pub(crate) fn cancel(py: Python<'_>, reservation: &Py<Reservation>) {
    if let Err(error) = reservation.get().release_nowait(py, true) {
        error.write_unraisable(py, None);
    }
}

pub(crate) fn return_charge(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &BucketQueue,
    ticket: Ticket,
    charge: &Charge,
) {
    if handle.refund_charge(py, charge, &queue.id) {
        let now = handle.core.clock().now();
        queue.waiters.lock().on_returned(ticket, charge.cost, charge.pace, now);
    }
}

/// Removes a waiter from its queue, and refunds its charge unless the caller has the decision.
pub(crate) fn depart(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    waiter: &Arc<WaiterState>,
) {
    let (ticket, outcome) = {
        let mut progress = waiter.progress.lock();
        if progress.is_over {
            return;
        }
        progress.is_over = true;
        (progress.ticket, progress.outcome.take())
    };
    waiter.set_timer(py, handle, None);
    let taken = match outcome {
        Some(Ok((_, taken))) => Some(taken),
        Some(Err(_)) => None,
        None => {
            let now = handle.core.clock().now();
            let departed = queue.waiters.lock().on_departure(ticket, now);
            departed.and_then(|(_, charge)| charge).map(Acquisition::One)
        }
    };
    if let Some(taken) = taken {
        give_back(py, handle, queue, ticket, &taken);
    }
}

impl WaiterState {
    /// Sets a timer on a `ManualClock`, so that the waiter is served when the clock passes `until`, even
    /// in a single large move. Returns whether a timer handles the wake-up; otherwise the waiter must
    /// be notified or wake by itself.
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
        let previous = std::mem::replace(&mut *self.timer.lock(), timer);
        if let Some(previous) = previous {
            clock.get().drop_timer(previous);
        }
        !is_due
    }
}

/// Callback that a `ManualClock` calls when it passes a waiter's turn.
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
            let progress = waiter.progress.lock();
            (progress.queue.clone(), progress.ticket)
        };
        match queue.filter(|queue| handle.waiting.has(queue)) {
            Some(queue) => drive(py, handle, &queue, Some((waiter, ticket)), false),
            None => Ok(()),
        }
    }
}
