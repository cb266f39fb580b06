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
use crate::bindings::wait_queues::{BucketQueue, WaiterState};
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
    /// Its number by arrival, which it has in all queues.
    pub(crate) number: u64,
    pub(crate) arrived_at: Timestamp,
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
    pub(crate) wait: Option<Nanos>,
    /// Whether that is only the latest, because slots are waited for.
    pub(crate) is_latest: bool,
    /// The shortest wait until all rates allow the call.
    pub(crate) rates: Nanos,
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

    /// Returns whether a wait that begins now ends after the deadline.
    pub(crate) fn is_too_late(&self, wait: Nanos, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| now.saturating_add(wait) > deadline)
    }

    /// Makes its queues drop it.
    pub(crate) fn finish(&self) {
        self.progress.lock().is_over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
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
        let (transactions, parts) = self.limiter.get().transactions(given)?;
        if let Some(index) = self.queue_to_join(handle, &transactions, own) {
            let (wait, is_latest, rates) = (None, false, Nanos::ZERO);
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
            rates: rates.unwrap_or(Nanos::ZERO),
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
        let (transactions, parts) = self.limiter.get().transactions(given)?;
        let verb = self.verb;
        let answered = handle.run(py, |core| core.refuse_all(verb, &transactions))?;
        let decision = several(py, Verb::Check, answered, parts)?;
        let (missing, denied) = (Argument::Missing, Some(false));
        Decision::replace(&decision, denied, None, None, None, missing, None, None, None)
    }
}
