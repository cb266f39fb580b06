//! Waiting for a turn: the queues of a limiter, and what drives them.
//!
//! No lock of a queue is held while the store is asked or Python code runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::bindings::arguments::Argument;
use crate::bindings::bound_limit::{BoundLimit, Core, LimiterHandle};
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::{Decision, DecisionData};
use crate::bindings::errors::ToPyErr;
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::LimitEntry;
use crate::clock::Clock;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Decided, Pace, Rejected, Step, Ticket, WaitQueue};
use crate::store::StoreError;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// What was charged for a waiter.
#[derive(Debug)]
pub(crate) struct Charge {
    /// The limit at that time: the charge is returned under it, whatever a reload has put in its
    /// place.
    bound: Arc<limiter::BoundLimit>,
    entry: Py<LimitEntry>,
    decided: Decided,
    cost: i64,
    pace: Pace,
}

/// The waiters of one bucket.
#[derive(Debug)]
struct BucketQueue {
    name: String,
    id: String,
    waiters: Mutex<WaitQueue<Arc<WaiterState>, Charge>>,
}

/// The wait queues of a limiter. A queue exists while it has waiters.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    count: AtomicUsize,
    registry: Mutex<Registry>,
}

#[derive(Debug)]
struct Registry {
    /// After a fork the waiters are in the other process.
    process: u32,
    queues: BTreeMap<(String, String), Arc<BucketQueue>>,
}

impl WaitQueues {
    pub(crate) fn new() -> WaitQueues {
        let registry = Registry { process: std::process::id(), queues: BTreeMap::new() };
        WaitQueues { count: AtomicUsize::new(0), registry: Mutex::new(registry) }
    }

    /// Whether no caller waits at this limiter.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a waiter that arrives at the same time may as well arrive later.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn with_registry<T>(&self, action: impl FnOnce(&mut Registry) -> T) -> T {
        let mut stale = BTreeMap::new();
        let mut registry = self.registry.lock();
        if registry.process != std::process::id() {
            registry.process = std::process::id();
            stale = std::mem::take(&mut registry.queues);
        }
        let result = action(&mut registry);
        self.count.store(registry.queues.len(), Ordering::Relaxed);
        drop(registry);
        // Outside the lock: this may run Python code.
        drop(stale);
        result
    }

    fn all(&self) -> Vec<Arc<BucketQueue>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.with_registry(|registry| registry.queues.values().cloned().collect())
    }

    fn of_bucket(&self, name: &str, id: &str) -> Option<Arc<BucketQueue>> {
        let key = (name.to_owned(), id.to_owned());
        self.with_registry(|registry| registry.queues.get(&key).cloned())
    }

    /// Whether the queue is of this process.
    fn has(&self, queue: &Arc<BucketQueue>) -> bool {
        self.of_bucket(&queue.name, &queue.id).is_some_and(|known| Arc::ptr_eq(&known, queue))
    }

    fn remove_if_empty(&self, queue: &Arc<BucketQueue>) {
        self.with_registry(|registry| {
            let key = (queue.name.clone(), queue.id.clone());
            let is_known = registry.queues.get(&key).is_some_and(|known| Arc::ptr_eq(known, queue));
            if is_known && queue.waiters.lock().is_empty() {
                registry.queues.remove(&key);
            }
        });
    }
}

impl LimiterHandle {
    /// The limits were replaced: waiters are served under the new ones.
    pub(crate) fn wake_after_reload(&self, py: Python<'_>) -> PyResult<()> {
        for queue in self.waiting.all() {
            let waiter = queue.waiters.lock().any().cloned();
            let bound = waiter.and_then(|waiter| waiter.bound.get().snapshot(py).ok());
            let peek = bound.and_then(|(bound, _)| peek(py, self, &bound, &queue.id, 0));
            let is_limited = peek.is_none_or(|peek| !peek.decision.unlimited && !peek.shadow);
            queue.waiters.lock().on_reload(is_limited, self.core.clock().now());
            drive(py, self, &queue, None, false)?;
        }
        Ok(())
    }

    /// The limiter is closed: waiters raise.
    pub(crate) fn wake_after_close(&self, py: Python<'_>) -> PyResult<()> {
        let mut wakeups = Wakeups::default();
        for queue in self.waiting.all() {
            let (waiters, charges) = queue.waiters.lock().on_close();
            for waiter in waiters {
                waiter.finish(Err(StoreError::Closed.to_py_err()));
                wakeups.wake(py, &waiter);
            }
            drop(charges);
            self.waiting.remove_if_empty(&queue);
        }
        wakeups.result()
    }

    /// The bucket was forgotten, and with it what was charged for its waiters.
    pub(crate) fn wake_after_reset(
        &self,
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
        &self,
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
    handle: &LimiterHandle,
    bound: &limiter::BoundLimit,
    id: &str,
    cost: i64,
) -> Option<Decided> {
    handle.run(py, |core| core.decide(bound, Verb::Check, id, cost, None)).ok()
}

/// The error of a waiter whose turn would come too late, in `wait`.
fn too_late(
    py: Python<'_>,
    handle: &LimiterHandle,
    waiter: &WaiterState,
    id: &str,
    wait: Nanos,
) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let (bound, entry) = waiter.bound.get().snapshot(py)?;
        let check = |core: &Core| core.decide(&bound, Verb::Check, id, waiter.cost, None);
        let decided = handle.run(py, check);
        let decided = decided.map_err(|error| error.to_py_err())?;
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
fn drive(
    py: Python<'_>,
    handle: &LimiterHandle,
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
                let bound = own.bound.get().snapshot(py);
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
    handle: &LimiterHandle,
    queue: &Arc<BucketQueue>,
    ticket: Ticket,
    waiter: &Arc<WaiterState>,
    cost: i64,
) -> Option<Arc<WaiterState>> {
    let answer = waiter.bound.get().snapshot(py).and_then(|(bound, entry)| {
        let answer = handle.run(py, |core| core.place(&bound, &queue.id, cost));
        Ok((answer.map_err(|error| error.to_py_err())?, bound, entry))
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
    handle: &LimiterHandle,
    queue: &BucketQueue,
    waiter: &WaiterState,
    charge: &Charge,
) -> PyResult<Py<Decision>> {
    let current = waiter.bound.get().snapshot(py).ok().and_then(|(bound, entry)| {
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
    handle: &LimiterHandle,
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
fn depart(
    py: Python<'_>,
    handle: &LimiterHandle,
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

/// One waiter, as its queue holds it.
#[derive(Debug)]
struct WaiterState {
    bound: Py<BoundLimit>,
    id: Py<PyAny>,
    cost: i64,
    timeout: Option<Nanos>,
    notify: Py<PyAny>,
    standing: Mutex<Standing>,
    /// What wakes the waiter on a `ManualClock`.
    timer: Mutex<Option<(i64, u64)>>,
}

#[derive(Debug, Default)]
struct Standing {
    queue: Option<Arc<BucketQueue>>,
    ticket: Ticket,
    outcome: Option<PyResult<(Py<Decision>, Charge)>>,
    /// Whether the caller has the outcome, or has left.
    is_over: bool,
}

impl WaiterState {
    fn ticket(&self) -> Ticket {
        self.standing.lock().ticket
    }

    /// Keeps the outcome for the caller; returns the charge if the caller has left.
    fn finish(&self, outcome: PyResult<(Py<Decision>, Charge)>) -> Option<Charge> {
        let mut standing = self.standing.lock();
        if standing.is_over {
            drop(standing);
            return outcome.ok().map(|(_, charge)| charge);
        }
        standing.outcome = Some(outcome);
        None
    }

    /// On a `ManualClock`: has the waiter served as the clock passes `until`, however far it is
    /// moved at once. Returns false if the waiter must wake by itself.
    fn set_timer(
        self: &Arc<Self>,
        py: Python<'_>,
        handle: &LimiterHandle,
        until: Option<Timestamp>,
    ) -> bool {
        let Ok(clock) = handle.clock.bind(py).cast::<ManualClock>() else { return false };
        let is_due = until.is_some_and(|until| until <= handle.core.clock().now());
        let timer = until.filter(|_| !is_due).and_then(|until| {
            let waiter = Py::new(py, Waiter(Arc::clone(self))).ok()?;
            Some(clock.get().set_timer(until.get(), waiter.into_any()))
        });
        let before = std::mem::replace(&mut *self.timer.lock(), timer);
        if let Some(before) = before {
            clock.get().drop_timer(before);
        }
        !is_due
    }
}

/// A caller that waits until a limit allows its cost.
///
/// `notify` is called, from any thread, when `step` has news; it must not wait. A waiter that was
/// stepped must `leave`.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter(Arc<WaiterState>);

#[pymethods]
impl Waiter {
    #[new]
    #[pyo3(signature = (bound, id, cost, timeout_ns, notify))]
    fn new(
        bound: Py<BoundLimit>,
        id: Py<PyAny>,
        cost: i64,
        timeout_ns: Option<i64>,
        notify: Py<PyAny>,
    ) -> Waiter {
        let timeout = timeout_ns.map(Nanos::clamped);
        let (standing, timer) = (Mutex::new(Standing::default()), Mutex::new(None));
        Waiter(Arc::new(WaiterState { bound, id, cost, timeout, notify, standing, timer }))
    }

    /// Return the decision if it is the waiter's turn, else `None`.
    ///
    /// Step again after `delay()`, or when notified.
    ///
    /// Raises:
    ///     RateLimited: The wait would be longer than the timeout.
    ///     Error: As `BoundLimit.spend` raises.
    fn step(&self, py: Python<'_>) -> PyResult<Option<Py<Decision>>> {
        let waiter = &self.0;
        let handle = &waiter.bound.get().handle;
        let queue = waiter.standing.lock().queue.clone();
        let queue = match queue {
            Some(queue) => queue,
            None => match self.arrive(py)? {
                Ok(queue) => queue,
                Err(decision) => return Ok(Some(decision)),
            },
        };
        let ticket = waiter.ticket();
        if waiter.standing.lock().outcome.is_none() {
            drive(py, handle, &queue, Some((waiter, ticket)), true)?;
        }
        let outcome = {
            let mut standing = waiter.standing.lock();
            standing.is_over |= standing.outcome.is_some();
            standing.outcome.take()
        };
        if outcome.is_some() {
            waiter.set_timer(py, handle, None);
        }
        outcome.transpose().map(|outcome| outcome.map(|(decision, _)| decision))
    }

    /// Return the seconds until the next `step`; `None` if only `notify` says when.
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let handle = &self.0.bound.get().handle;
        if handle.clock.bind(py).cast::<ManualClock>().is_ok() {
            return None;
        }
        let (queue, ticket) = {
            let standing = self.0.standing.lock();
            (standing.queue.clone()?, standing.ticket)
        };
        let until = queue.waiters.lock().sleep(ticket)?;
        // Rounded up to a microsecond: a waiter must not come early.
        let left = (until.get() - handle.core.clock().now().get()).max(0);
        Some(((left + 999) / 1000) as f64 / 1e6)
    }

    /// Leave the queue.
    ///
    /// Unless the waiter has its decision, its cost is returned and those behind it move up.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.0.standing.lock().queue.clone();
        let Some(queue) = queue else { return Ok(()) };
        if self.0.standing.lock().is_over {
            return Ok(());
        }
        let handle = &self.0.bound.get().handle;
        depart(py, handle, &queue, &self.0);
        drive(py, handle, &queue, None, false)
    }

    /// A `ManualClock` passes the waiter's turn.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.0.standing.lock().queue.clone();
        let Some(queue) = queue else { return Ok(()) };
        let handle = &self.0.bound.get().handle;
        if !handle.waiting.has(&queue) {
            return Ok(());
        }
        let ticket = self.0.ticket();
        drive(py, handle, &queue, Some((&self.0, ticket)), false)
    }
}

impl Waiter {
    /// Takes the cost if no caller waits at this limiter, else joins the queue of the bucket.
    fn arrive(&self, py: Python<'_>) -> PyResult<Result<Arc<BucketQueue>, Py<Decision>>> {
        let waiter = &self.0;
        let (bound, handle) = (waiter.bound.get(), &waiter.bound.get().handle);
        if let Some(decision) = take(bound, waiter.id.bind(py), waiter.cost)? {
            waiter.standing.lock().is_over = true;
            return Ok(Err(decision.unbind()));
        }
        let (limit, _) = bound.snapshot(py)?;
        let text = id_text(waiter.id.bind(py))?;
        let id = handle.core.waiter_id(&limit, &text, waiter.cost);
        let id = id.map_err(|error| error.to_py_err())?;
        let name = limit.entry().name().to_string();
        let queue = handle.waiting.of_bucket(&name, &id);
        let now = handle.core.clock().now();
        let behind = queue.and_then(|queue| queue.waiters.lock().behind(waiter.cost, now));
        let estimate = behind.map(|(costs, after)| {
            handle
                .run(py, |core| core.estimate(&limit, &id, &costs, after))
                .map_err(|error| error.to_py_err())
        });
        let estimate = estimate.transpose()?.flatten();
        let now = handle.core.clock().now();
        let arrived = handle.waiting.with_registry(|registry| {
            let key = (name.clone(), id.clone());
            let queue = registry.queues.entry(key).or_insert_with(|| {
                let (name, id) = (name.clone(), id.clone());
                Arc::new(BucketQueue { name, id, waiters: Mutex::new(WaitQueue::default()) })
            });
            let (own, cost) = (Arc::clone(waiter), waiter.cost);
            let arrived = queue.waiters.lock().on_arrival(own, cost, waiter.timeout, estimate, now);
            arrived.map(|ticket| {
                let mut standing = waiter.standing.lock();
                (standing.queue, standing.ticket) = (Some(Arc::clone(queue)), ticket);
                Arc::clone(queue)
            })
        });
        match arrived {
            Ok(queue) => Ok(Ok(queue)),
            Err(wait) => {
                if let Some(queue) = handle.waiting.of_bucket(&name, &id) {
                    handle.waiting.remove_if_empty(&queue);
                }
                Err(too_late(py, handle, waiter, &id, wait))
            }
        }
    }
}

/// Takes `cost` if it is available and no caller waits at this limiter.
pub(crate) fn take<'py>(
    bound: &BoundLimit,
    id: &Bound<'py, PyAny>,
    cost: i64,
) -> PyResult<Option<Bound<'py, Decision>>> {
    if !bound.handle.waiting.is_empty() {
        return Ok(None);
    }
    let decision = bound.call(Verb::Spend, id, cost, None)?;
    Ok(if decision.is_truthy()? { Some(decision) } else { None })
}
