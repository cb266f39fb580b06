//! Drivers of the wait queues: they ask the store, serve waiters and notify them.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::clock::ManualClock;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::rate_limited;
use crate::bindings::id_text::id_text;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::waiting_call::{Acquisition, BucketQueue, Charge, QueueMember, WaitingCall};
use crate::clock::Clock;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{self, Call, Decided, Ending, Endings, QueueStep, Rejected};
use crate::store::{Store, StoreError};

impl LimiterHandle {
    /// Applies a replacement of the limits to all waiters.
    pub(crate) fn wake_after_reload(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        for queue in self.waiting.all() {
            self.apply_reload(py, &queue);
            drive(py, self, &queue, None)?;
        }
        Ok(())
    }

    /// Applies a replacement of the limits to the waiters of a bucket.
    fn apply_reload(self: &Arc<Self>, py: Python<'_>, queue: &BucketQueue) {
        let waiter = queue.waiters.lock().any().cloned();
        let bound = waiter.and_then(|member| self.active(py, &member.place().entry).ok());
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
    }

    /// Executes the ends of a reservation, and wakes waiters.
    pub(crate) fn end(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: &[Ending],
        waits: bool,
    ) -> Result<(), limiter::Failure> {
        self.execute(py, endings, waits)?;
        for ending in endings {
            if !self.waiting.is_empty() && ending.verb == Verb::Refund {
                // Waiters also move up by themselves.
                let _ = self.wake_after_refund(py, &ending.limit, &ending.id);
            }
        }
        self.wake_after_releases(py, endings);
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
            let mut driver = Driver::new(py, self);
            if store.may_wait() {
                while driver.wake_moved(&queue) {}
                self.waiting.remove_if_empty(&queue);
            } else {
                driver.queues.push(queue);
                driver.drive_queues();
            }
            let woken = driver.result();
            if let Err(error) = woken {
                // The slots are returned in any case.
                error.write_unraisable(py, None);
            }
        }
    }

    /// Returns what is held, and closes the store. All waiters raise an error.
    pub(crate) fn close(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        if !self.is_closed() {
            self.return_slots(py)?;
        }
        self.close_store();
        let mut driver = Driver::new(py, self);
        for queue in self.waiting.all() {
            let (waiters, charges) = queue.waiters.lock().on_close();
            for member in waiters {
                member.call.finish(Err(StoreError::Closed.into()));
                driver.wake(&member);
            }
            self.forget(charges);
            self.waiting.remove_if_empty(&queue);
        }
        driver.result()
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
        drive(py, self, &queue, None)
    }

    /// Moves the waiters of a bucket up after a refund.
    pub(crate) fn wake_after_refund(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &limiter::BoundLimit,
        id: &str,
    ) -> PyResult<()> {
        let Some(queue) = self.queue_of(bound, id) else { return Ok(()) };
        let peek = self.run(py, |core| core.peek(bound, Call::check(&queue.id, 0)));
        let wait = peek.map_or(Nanos::MAX, |peek| peek.decision.retry_after);
        queue.waiters.lock().on_refund(wait, self.core.clock().now());
        drive(py, self, &queue, None)
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

/// Returns the error of a waiter whose turn would come after its deadline, in `wait`; `None` if that is
/// unknown.
pub(crate) fn too_late(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    member: &QueueMember,
    id: &str,
    wait: Option<Nanos>,
) -> PyErr {
    let (call, place) = (&member.call, member.place());
    let build = || -> PyResult<PyErr> {
        if call.is_joint {
            let decision = call.refuse(py, handle)?;
            // Of what denies it now, another limit may take longer, such as one on slots.
            let least = decision.get().data.decision(py).retry_after.max(Nanos::clamped(1));
            return denied(&decision, call, wait.filter(|wait| *wait >= least));
        }
        let (bound, entry) = handle.active(py, &place.entry)?;
        let adjustment = Adjustment::keeping(place.keep);
        let check = Call { adjustment: adjustment.as_ref(), ..Call::check(id, place.cost) };
        let decided = handle.run(py, |core| core.refuse(&bound, check))?;
        let data = DecisionData::given(decided, place.cost, place.id.bind(py), entry);
        denied(&Bound::new(py, Decision::new(data))?, call, wait)
    };
    build().unwrap_or_else(|error| error)
}

/// Returns the error for the decision of a waiter whose turn would come in `wait`; `None` if unknown.
fn denied(
    decision: &Bound<'_, Decision>,
    call: &WaitingCall,
    wait: Option<Nanos>,
) -> PyResult<PyErr> {
    match wait {
        Some(wait) => Ok(PyErr::from_value(rate_limited_error(decision, wait.get())?)),
        None => timeout_error(decision, call),
    }
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

/// Returns the error for a caller whose turn did not come until its deadline, and may come at any time.
fn timeout_error(decision: &Bound<'_, Decision>, call: &WaitingCall) -> PyResult<PyErr> {
    let name = decision.getattr("name")?;
    let what = if call.is_joint { "not served" } else { "no slot was free" };
    let seconds = call.timeout.map_or(0.0, |timeout| timeout.get() as f64 / 1e9);
    let message = format!("denied by {name}: {what} within the timeout of {seconds} s");
    rate_limited(decision, &message).map(PyErr::from_value)
}

/// Performs all due steps of a queue: asks the store for the first waiter, serves waiters whose turn
/// has come, and notifies waiters that moved up. `own` is the waiter of the caller, and whether it needs
/// no notification.
pub(crate) fn drive(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    own: Option<(&QueueMember, bool)>,
) -> PyResult<()> {
    let mut driver = Driver::new(py, handle);
    driver.drive(queue, own);
    driver.drive_queues();
    driver.result()
}

/// A thread that drives queues.
pub(crate) struct Driver<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) handle: &'a Arc<LimiterHandle>,
    /// The first interruption, such as `KeyboardInterrupt`.
    error: Option<PyErr>,
    /// Other queues with due steps.
    pub(crate) queues: Vec<Arc<BucketQueue>>,
}

impl<'a, 'py> Driver<'a, 'py> {
    pub(crate) fn new(py: Python<'py>, handle: &'a Arc<LimiterHandle>) -> Driver<'a, 'py> {
        Driver { py, handle, error: None, queues: Vec::new() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.handle.core.clock().now()
    }

    /// Drives the other queues with due steps.
    pub(crate) fn drive_queues(&mut self) {
        while let Some(queue) = self.queues.pop() {
            self.drive(&queue, None);
        }
    }

    /// Returns the first interruption.
    pub(crate) fn result(self) -> PyResult<()> {
        self.error.map_or(Ok(()), Err)
    }

    fn drive(&mut self, queue: &Arc<BucketQueue>, own: Option<(&QueueMember, bool)>) {
        let (own, is_awake) = own.map_or((None, false), |(own, is_awake)| (Some(own), is_awake));
        loop {
            let step = queue.waiters.lock().step(own.map(QueueMember::ticket), self.now());
            let finished = match step {
                QueueStep::Ask { waiter, .. } if waiter.call.is_joint => {
                    self.ask_together(queue, &waiter)
                }
                QueueStep::Ask { waiter, .. } => self.ask(queue, &waiter),
                QueueStep::Serve { waiter, charge } => {
                    let decision = self.serve(queue, &waiter, &charge);
                    let outcome = decision.map(|decision| (decision, Acquisition::Charge(charge)));
                    self.finish(&waiter.call, outcome);
                    Some(waiter)
                }
                QueueStep::Overdue { demands } => own.map(|own| {
                    let bound = self.handle.active(self.py, &own.place().entry);
                    let bound = bound.ok().filter(|(bound, _)| !bound.has_slots(&queue.id));
                    let wait = bound.map(|(bound, _)| {
                        let estimate = self
                            .handle
                            .run(self.py, |core| core.estimate(&bound, &queue.id, &demands, None));
                        estimate.ok().flatten().map_or(Nanos::ZERO, |estimate| estimate.wait())
                    });
                    let error = too_late(self.py, self.handle, own, &queue.id, wait);
                    self.finish(&own.call, Err(error));
                    own.clone()
                }),
                QueueStep::Sleep => {
                    if let Some(own) = own {
                        let until = queue.waiters.lock().sleep(own.ticket());
                        set_timer(self.py, self.handle, own, until);
                    }
                    if !self.wake_moved(queue) {
                        break;
                    }
                    None
                }
            };
            let is_own =
                |member: &QueueMember| own.is_some_and(|own| Arc::ptr_eq(&own.call, &member.call));
            if let Some(member) = finished.filter(|member| !is_awake || !is_own(member)) {
                self.wake(&member);
            }
        }
        self.handle.waiting.remove_if_empty(queue);
    }

    /// Notifies a waiter. One that cannot be notified is removed from its queues. Returns whether it was.
    fn wake(&mut self, member: &QueueMember) -> bool {
        let Err(error) = member.call.wakeup.notify(self.py) else { return false };
        if error.is_instance_of::<PyException>(self.py) {
            // The waiter's event loop is closed.
            self.depart(&member.call);
            return true;
        }
        // The interruption is meant for this thread. The waiter must be notified nevertheless.
        let _ = member.call.wakeup.notify(self.py);
        self.error.get_or_insert(error);
        false
    }

    /// Notifies the waiters that moved up. Returns whether one of them could not be notified, so that
    /// others move up.
    fn wake_moved(&mut self, queue: &BucketQueue) -> bool {
        let moved = queue.waiters.lock().waiters_to_notify();
        let mut has_departed = false;
        for member in moved {
            let until = queue.waiters.lock().sleep(member.ticket());
            if !set_timer(self.py, self.handle, &member, until) {
                has_departed |= self.wake(&member);
            }
        }
        has_departed
    }

    /// Stores the outcome of a call. Returns what was taken to the store if the caller has left.
    pub(crate) fn finish(
        &mut self,
        call: &WaitingCall,
        outcome: PyResult<(Py<Decision>, Acquisition)>,
    ) {
        if let Some(taken) = call.finish(outcome) {
            self.give_back(call, taken);
        }
    }

    /// Removes a call from its queues, and returns what was taken for it, unless the caller has taken it
    /// over. The queues must then be driven.
    pub(crate) fn depart(&mut self, call: &WaitingCall) {
        let outcome = call.abandon().and_then(Result::ok);
        drop_timers(self.py, self.handle, call);
        let (queues, charge) = call.leave_queues(self.now());
        let taken = outcome.map(|(_, taken)| taken).or(charge.map(Acquisition::Charge));
        if let Some(taken) = taken {
            self.give_back(call, taken);
        }
        self.queues.extend(queues);
    }

    /// Asks the store to charge a waiter's cost. Returns the waiter if it is finished.
    fn ask(&mut self, queue: &Arc<BucketQueue>, member: &QueueMember) -> Option<QueueMember> {
        let (py, handle, place) = (self.py, self.handle, member.place());
        let (verb, cost, ticket) = (member.call.verb, place.cost, member.ticket());
        let generation = handle.core.generation();
        let answer = handle.active(py, &place.entry).and_then(|(bound, entry)| {
            let adjustment = Adjustment::keeping(place.keep);
            let call = Call { verb, id: &queue.id, cost, adjustment: adjustment.as_ref() };
            let answer = handle.run(py, |core| core.place(&bound, call));
            Ok((answer?, bound, entry))
        });
        let received_at = self.now();
        let (mut answer, bound, entry) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let member = queue.waiters.lock().on_end(ticket, received_at)?;
                self.finish(&member.call, Err(error));
                return Some(member);
            }
        };
        let (pace, now) = (answer.pace, answer.decided.decision.now);
        answer.is_polled = self.is_polled(&bound, queue);
        let slot = answer.lease.map(|lease| handle.hold(py, &bound, &queue.id, cost, lease, now));
        let charge = |decided| Charge { bound, entry, decided, cost, pace, slot };
        let rejected = queue.waiters.lock().on_answer(ticket, answer, charge, received_at);
        if handle.core.generation() != generation {
            // The reload has not seen this charge.
            handle.apply_reload(py, queue);
        }
        match rejected? {
            Rejected::Unwanted(charge) => {
                self.give_back(&member.call, Acquisition::Charge(charge));
                None
            }
            Rejected::TooLate(member, wait, charge) => {
                if let Some(charge) = charge {
                    self.give_back(&member.call, Acquisition::Charge(charge));
                }
                let error = too_late(py, handle, &member, &queue.id, Some(wait));
                self.finish(&member.call, Err(error));
                Some(member)
            }
        }
    }

    /// Returns whether other processes may return slots, so that the store must be asked again and again.
    pub(crate) fn is_polled(&self, bound: &limiter::BoundLimit, queue: &BucketQueue) -> bool {
        bound.has_slots(&queue.id) && self.handle.core.store().is_shared()
    }

    /// Counts a waiter whose turn has come. Returns its decision, with the bucket's current numbers.
    fn serve(
        &self,
        queue: &BucketQueue,
        member: &QueueMember,
        charge: &Charge,
    ) -> PyResult<Py<Decision>> {
        let (py, handle, place) = (self.py, self.handle, member.place());
        let decision = |decided: Decided, entry| {
            let data = DecisionData::given(decided, place.cost, place.id.bind(py), entry);
            Py::new(py, Decision::new(data))
        };
        handle.core.count_served(&charge.bound, &queue.id, &charge.decided);
        // Slots were taken just now.
        let is_current = charge.slot.is_some() || !charge.decided.decision.allowed;
        if member.call.verb == Verb::Reserve && is_current {
            return decision(charge.decided.clone(), charge.entry.clone_ref(py));
        }
        let current = handle.active(py, &place.entry).and_then(|(bound, entry)| {
            let adjustment = Adjustment::keeping(place.keep);
            let check = Call::check(&queue.id, place.cost);
            let check = Call { adjustment: adjustment.as_ref(), ..check };
            Ok((handle.run(py, |core| core.served(&bound, check))?, entry))
        });
        // If the limit was removed or the store does not answer, the numbers of the charge are used.
        let (decided, entry) = current.unwrap_or_else(|_| {
            let mut decided = charge.decided.clone();
            (decided.decision.allowed, decided.decision.retry_after) = (true, Nanos::ZERO);
            (decided, charge.entry.clone_ref(py))
        });
        decision(decided, entry)
    }

    /// Returns to the store what was taken for a call that its caller has left. If the store fails, tokens
    /// come back with time.
    fn give_back(&mut self, call: &WaitingCall, taken: Acquisition) {
        let (py, handle) = (self.py, self.handle);
        let returned = match taken {
            Acquisition::Parts(parts) => {
                let endings = parts.iter().filter_map(|part| part.ending(py, &handle.slots, true));
                handle.end(py, &endings.collect::<Endings>(), true).map_err(PyErr::from)
            }
            Acquisition::Charge(charge) => {
                let places = call.places.iter();
                for (queue, ticket) in places.filter_map(|place| call.queue_and_ticket(place)) {
                    if handle.refund_charge(py, &charge, &queue.id) {
                        let (Charge { cost, pace, .. }, now) = (&charge, self.now());
                        queue.waiters.lock().on_returned(ticket, *cost, *pace, now);
                        // Those behind it move up.
                        self.queues.push(queue);
                    }
                }
                Ok(())
            }
        };
        if let Err(error) = returned {
            error.write_unraisable(py, None);
        }
    }
}

/// Adds a waiter to the queue of its bucket.
///
/// # Errors
/// `RateLimited`, if its turn would come after its deadline.
pub(crate) fn arrive(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    member: &QueueMember,
) -> PyResult<Arc<BucketQueue>> {
    let place = member.place();
    let (limit, _) = handle.active(py, &place.entry)?;
    let (text, adjustment) = (id_text(place.id.bind(py))?, Adjustment::keeping(place.keep));
    let (verb, cost, adjustment) = (member.call.verb, place.cost, adjustment.as_ref());
    let id = handle.core.waiter_id(&limit, Call { verb, id: &text, cost, adjustment })?;
    let name = limit.entry().name().as_str();
    let queue = handle.waiting.of_bucket(name, &id).filter(|_| !limit.has_slots(&id));
    let (ticket, now) = (member.ticket(), handle.core.clock().now());
    let arguments =
        queue.and_then(|queue| queue.waiters.lock().estimate_arguments(ticket, cost, now));
    let estimate = match arguments {
        Some((demands, after)) => {
            handle.run(py, |core| core.estimate(&limit, &id, &demands, after))?
        }
        None => None,
    };
    let now = handle.core.clock().now();
    let joined = handle.waiting.join(member, name, &id, estimate, now);
    joined.map_err(|wait| too_late(py, handle, member, &id, Some(wait)))
}

/// Sets a timer on a `ManualClock`, so that a waiter is served when the clock passes `until`, even in a
/// single large move. Returns whether a timer handles the wake-up; otherwise the waiter must be notified
/// or wake by itself.
pub(crate) fn set_timer(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    member: &QueueMember,
    until: Option<Timestamp>,
) -> bool {
    let Ok(clock) = handle.clock.bind(py).cast::<ManualClock>() else { return false };
    let is_due = until.is_some_and(|until| until <= handle.core.clock().now());
    let timer = until.filter(|_| !is_due).and_then(|until| {
        let timer = Timer { handle: Arc::clone(handle), member: member.clone() };
        Some(clock.get().set_timer(until.get(), Py::new(py, timer).ok()?.into_any()))
    });
    let previous = std::mem::replace(&mut *member.place().timer.lock(), timer);
    previous.into_iter().for_each(|timer| clock.get().drop_timer(timer));
    !is_due
}

/// Drops the timers of a call.
pub(crate) fn drop_timers(py: Python<'_>, handle: &LimiterHandle, call: &WaitingCall) {
    let Ok(clock) = handle.clock.bind(py).cast::<ManualClock>() else { return };
    for place in &call.places {
        let timer = place.timer.lock().take();
        timer.into_iter().for_each(|timer| clock.get().drop_timer(timer));
    }
}

/// Callback that a `ManualClock` calls when it passes a waiter's turn.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
struct Timer {
    handle: Arc<LimiterHandle>,
    member: QueueMember,
}

#[pymethods]
impl Timer {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let Timer { handle, member } = self;
        match member.place().queue().filter(|queue| handle.waiting.has(queue)) {
            Some(queue) => drive(py, handle, &queue, Some((member, false))),
            None => Ok(()),
        }
    }
}
