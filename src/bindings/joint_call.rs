//! Calls about several limits that wait until all of them allow the call.
//!
//! Nothing is taken in advance: when a call is first in a queue, all its transactions are decided together.
//! So requests are never more than any limit allows at the time they are made, and a caller that leaves
//! has nothing to return. If another limit denies the call, it also takes a place in the queue of that
//! limit, where the time of its arrival counts. In its first place, it holds up the waiters behind it for
//! at most as long as it has waited itself; if it must wait longer, it gives that place up. So a client that
//! waits for its own limit does not stop others at a limit that they share, and none waits forever.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bindings::arguments::Argument;
use crate::bindings::decision::{Decision, several};
use crate::bindings::limiter::Limiter;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::reservation::Reservation;
use crate::bindings::wait_driver::{Wakeups, arrive, give_back, too_late};
use crate::bindings::wait_queues::{Acquisition, BucketQueue, WaiterState};
use crate::clock::Clock;
use crate::engine::batch::Kind;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{Call, Ticket, Transaction};
use crate::sync::Mutex;

/// A call about several limits that waits.
#[derive(Debug)]
pub(crate) struct JointCall {
    limiter: Py<Limiter>,
    transactions: Py<PyTuple>,
    /// A spend or a reservation.
    verb: Verb,
    /// Its arrival number, the same in all queues.
    pub(crate) number: u64,
    arrived_at: Timestamp,
    pub(crate) deadline: Option<Timestamp>,
    progress: Mutex<JointProgress>,
}

#[derive(Debug, Default)]
struct JointProgress {
    /// The waiters in the queues of its transactions, in order.
    waiters: Vec<Weak<WaiterState>>,
    /// Whether a thread asks the store.
    is_asked: bool,
    /// Whether it was served or has failed, or the caller has left.
    is_over: bool,
    /// The queues that wanted to ask meanwhile.
    busy: Vec<Arc<BucketQueue>>,
    /// What was taken, until the caller takes it over.
    reservation: Option<Py<Reservation>>,
}

/// Whether a driver may ask the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Granted,
    /// Another thread asks.
    Busy,
    Over,
}

/// The store's answer to a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    Taken(Py<Reservation>),
    Denied(Denial),
}

/// A denial of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denial {
    /// The transaction to wait for.
    pub(crate) index: usize,
    /// How long; `None` if unknown, because others wait for it.
    wait: Option<Nanos>,
    /// Whether that is only the latest, because slots are waited for.
    is_latest: bool,
    /// The shortest wait until all rates allow the call; `None` if only slots are waited for.
    pub(crate) rates: Option<Nanos>,
}

impl JointCall {
    /// Creates a call of `transactions`, with one waiter for each.
    pub(crate) fn create(
        limiter: &Bound<'_, Limiter>,
        transactions: &Bound<'_, PyTuple>,
        timeout: Option<Nanos>,
        verb: Verb,
    ) -> JointCall {
        let handle = limiter.get().handle();
        let arrived_at = handle.core.clock().now();
        JointCall {
            limiter: limiter.clone().unbind(),
            transactions: transactions.clone().unbind(),
            verb,
            number: handle.waiting.next_number(),
            arrived_at,
            deadline: timeout.map(|timeout| arrived_at.saturating_add(timeout)),
            progress: Mutex::new(JointProgress::default()),
        }
    }

    /// Sets the waiters in the queues of its transactions.
    pub(crate) fn set_waiters(&self, waiters: &[Arc<WaiterState>]) {
        self.progress.lock().waiters = waiters.iter().map(Arc::downgrade).collect();
    }

    /// Returns the waiter for a transaction; `None` if the caller is gone.
    pub(crate) fn waiter(&self, index: usize) -> Option<Arc<WaiterState>> {
        self.progress.lock().waiters.get(index)?.upgrade()
    }

    /// Asks for permission to ask the store on behalf of `queue`. If granted, [`end`](Self::end) must
    /// follow.
    pub(crate) fn begin(&self, queue: Option<&Arc<BucketQueue>>) -> Permission {
        let mut progress = self.progress.lock();
        if progress.is_over {
            return Permission::Over;
        }
        if std::mem::replace(&mut progress.is_asked, true) {
            progress.busy.extend(queue.cloned());
            return Permission::Busy;
        }
        Permission::Granted
    }

    /// Ends a question to the store. Returns the queues that wanted to ask meanwhile.
    pub(crate) fn end(&self) -> Vec<Arc<BucketQueue>> {
        let mut progress = self.progress.lock();
        progress.is_asked = false;
        std::mem::take(&mut progress.busy)
    }

    /// Holds what was taken for the caller.
    pub(crate) fn hold(&self, reservation: Py<Reservation>) {
        self.progress.lock().reservation = Some(reservation);
    }

    pub(crate) fn take_reservation(&self) -> Option<Py<Reservation>> {
        self.progress.lock().reservation.take()
    }

    /// Returns whether a wait that begins now ends after the deadline; if `None`, whether it has passed.
    pub(crate) fn is_too_late(&self, wait: Option<Nanos>, now: Timestamp) -> bool {
        let end = wait.map_or(now, |wait| now.saturating_add(wait));
        self.deadline.is_some_and(|deadline| end > deadline)
    }

    /// Makes its queues drop it.
    pub(crate) fn finish(&self) {
        self.progress.lock().is_over = true;
    }

    /// Leaves all queues, because those behind it count its demands. Returns the queues.
    fn leave_queues(&self, now: Timestamp) -> Vec<Arc<BucketQueue>> {
        let waiters = self.progress.lock().waiters.clone();
        let places = waiters.iter().filter_map(Weak::upgrade).filter_map(|waiter| {
            let progress = waiter.progress.lock();
            Some((progress.queue.clone()?, progress.ticket))
        });
        let left = places.map(|(queue, ticket)| {
            queue.waiters.lock().on_departure(ticket, now);
            queue
        });
        left.collect()
    }

    fn is_over(&self) -> bool {
        self.progress.lock().is_over
    }

    /// Decides all transactions together, unless others have waited longer for one of them. `own` is the
    /// transaction in whose queue the call is first.
    pub(crate) fn decide(
        &self,
        py: Python<'_>,
        handle: &Arc<LimiterHandle>,
        own: Option<usize>,
    ) -> PyResult<Verdict> {
        let given = self.transactions.bind(py);
        let (transactions, parts) = self.limiter.get().transactions(self.verb, given)?;
        if let Some(index) = self.queue_to_join(handle, &transactions, own) {
            let (wait, is_latest, rates) = (None, false, None);
            return Ok(Verdict::Denied(Denial { index, wait, is_latest, rates }));
        }
        let verb = self.verb;
        let answered = handle.run(py, |core| core.place_all(verb, &transactions))?;
        let decided = answered.clone().decided(verb, &transactions);
        let Some(index) = decided.binding.filter(|_| !decided.decision.allowed) else {
            let reservation = Reservation::of_several(py, handle, transactions, parts, answered)?;
            return Ok(Verdict::Taken(reservation.unbind()));
        };
        let has_slots = |transaction: &Transaction| {
            let id = handle.core.waiter_id(&transaction.limit, Call::check(&transaction.id, 0));
            id.is_ok_and(|id| transaction.limit.has_slots(&id))
        };
        let of_rates = transactions.iter().zip(&decided.parts).filter(|(transaction, part)| {
            transaction.kind != Kind::SpendOnly && !part.allowed() && !has_slots(transaction)
        });
        let rates = of_rates.map(|(_, part)| part.decision.retry_after).max();
        Ok(Verdict::Denied(Denial {
            index,
            wait: Some(decided.decision.retry_after),
            is_latest: has_slots(&transactions[index]),
            rates,
        }))
    }

    /// Returns the first transaction that others have waited longer for.
    fn queue_to_join(
        &self,
        handle: &LimiterHandle,
        transactions: &[Transaction],
        own: Option<usize>,
    ) -> Option<usize> {
        if handle.waiting.is_empty() {
            return None;
        }
        let mut others = transactions.iter().enumerate().filter(|(index, transaction)| {
            Some(*index) != own && transaction.kind != Kind::SpendOnly
        });
        let found = others.find(|(_, Transaction { limit, id, adjustment, .. })| {
            let Ok(id) = handle.core.waiter_id(limit, Call::check(id, 0)) else { return false };
            let keep = adjustment.as_ref().map_or(0, |adjustment| adjustment.keep);
            let queue = handle.waiting.of_bucket(limit.entry().name().as_str(), &id);
            let ticket = Ticket::new(keep, self.number);
            queue.is_some_and(|queue| queue.waiters.lock().has_before(ticket))
        });
        found.map(|(index, _)| index)
    }

    /// Returns the decision of a call that leaves without what it wanted, and counts a denial.
    pub(crate) fn refuse<'py>(
        &self,
        py: Python<'py>,
        handle: &Arc<LimiterHandle>,
    ) -> PyResult<Bound<'py, Decision>> {
        let given = self.transactions.bind(py);
        let verb = self.verb;
        let (transactions, parts) = self.limiter.get().transactions(verb, given)?;
        let answered = handle.run(py, |core| core.refuse_all(verb, &transactions))?;
        let decision = several(py, Verb::Check, answered, parts)?;
        let (missing, denied) = (Argument::Missing, Some(false));
        Decision::replace(&decision, denied, None, None, None, missing, None, None, None)
    }
}

/// Adds a call to the queue of one of its transactions, unless it waits there. Returns that queue, if
/// it must be driven.
pub(crate) fn arrive_at(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    call: &JointCall,
    index: usize,
) -> PyResult<Option<Arc<BucketQueue>>> {
    let waiter = call.waiter(index).filter(|waiter| waiter.progress.lock().queue.is_none());
    let Some(waiter) = waiter else { return Ok(None) };
    let queue = arrive(py, handle, &waiter)?;
    if call.is_over() {
        // The caller has left meanwhile, and may not have seen this place.
        queue.waiters.lock().on_departure(waiter.ticket(), handle.core.clock().now());
    } else {
        let until = queue.waiters.lock().sleep(waiter.ticket());
        waiter.set_timer(py, handle, until);
    }
    Ok(Some(queue))
}

/// Decides the call of a waiter that is first in `queue`. Returns the waiter if it is finished, or must
/// compute its delay again.
pub(crate) fn ask_together(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    ticket: Ticket,
    waiter: &Arc<WaiterState>,
    (call, index): (&Arc<JointCall>, usize),
    wakeups: &mut Wakeups,
) -> Option<Arc<WaiterState>> {
    match call.begin(Some(queue)) {
        Permission::Granted => {}
        // The thread that asks drives this queue afterwards.
        Permission::Busy => return None,
        Permission::Over => {
            queue.waiters.lock().on_end(ticket, handle.core.clock().now());
            return None;
        }
    }
    let verdict = call.decide(py, handle, Some(index));
    let now = handle.core.clock().now();
    let changed = match verdict {
        Ok(Verdict::Denied(denial)) => {
            keep_waiting(py, handle, queue, ticket, waiter, (call, index), denial, wakeups)
        }
        Ok(Verdict::Taken(reservation)) => {
            call.finish();
            let present = queue.waiters.lock().on_end(ticket, now);
            wakeups.queues.extend(call.leave_queues(now));
            let decision = reservation.get().decision(py).map(Bound::unbind);
            let outcome = decision.map(|decision| (decision, Acquisition::All(reservation)));
            let unwanted = match &present {
                Some(waiter) => waiter.finish(outcome),
                None => outcome.ok().map(|(_, taken)| taken),
            };
            if let Some(taken) = unwanted {
                give_back(py, handle, queue, ticket, &taken);
            }
            present
        }
        Err(error) => {
            call.finish();
            let present = queue.waiters.lock().on_end(ticket, now);
            if let Some(waiter) = &present {
                waiter.finish(Err(error));
            }
            present
        }
    };
    for busy in call.end() {
        busy.waiters.lock().on_busy(now);
        wakeups.queues.push(busy);
    }
    changed
}

/// Lets a call that was denied wait in the queue of the limit that denied it. It keeps its place in
/// `queue` if it waits no longer than it has already waited.
#[expect(clippy::too_many_arguments, reason = "a part of `ask_together`")]
fn keep_waiting(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    queue: &Arc<BucketQueue>,
    ticket: Ticket,
    waiter: &Arc<WaiterState>,
    (call, index): (&Arc<JointCall>, usize),
    denial: Denial,
    wakeups: &mut Wakeups,
) -> Option<Arc<WaiterState>> {
    let Denial { index: denied_by, wait, is_latest, rates } = denial;
    let now = handle.core.clock().now();
    let mut is_late = call.is_too_late(rates, now);
    let waited = now.get() - call.arrived_at.get();
    let wait = wait.filter(|wait| denied_by == index || wait.get() <= waited);
    let has_left = match wait {
        Some(wait) if !is_late => {
            let is_polled = denied_by == index && is_latest && handle.core.store().is_shared();
            let mut waiters = queue.waiters.lock();
            is_late = waiters.on_denial(ticket, wait, is_latest, is_polled, now).is_some();
            is_late
        }
        _ => {
            queue.waiters.lock().on_end(ticket, now);
            true
        }
    };
    if has_left {
        waiter.progress.lock().queue = None;
        waiter.set_timer(py, handle, None);
    }
    if is_late {
        call.finish();
        waiter.finish(Err(too_late(py, handle, waiter, &queue.id, rates)));
    } else if denied_by != index {
        match arrive_at(py, handle, call, denied_by) {
            Ok(joined) => wakeups.queues.extend(joined),
            Err(error) => {
                call.finish();
                queue.waiters.lock().on_departure(ticket, now);
                waiter.finish(Err(error));
            }
        }
    } else {
        return None;
    }
    Some(Arc::clone(waiter))
}
