//! Calls about several limits that wait until all of them allow the call.
//!
//! Nothing is taken in advance: when a call is first in a queue, all its transactions are decided together.
//! So requests are never more than any limit allows at the time they are made, and a caller that leaves
//! has nothing to return. If another limit denies the call, it also takes a place in the queue of that
//! limit, where the time of its arrival counts. In its first place, it holds up the waiters behind it for
//! at most as long as it has waited itself; if it must wait longer, it gives that place up. So a client that
//! waits for its own limit does not stop others at a limit that they share, and none waits forever.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::decision::{Decision, DecisionPart, several};
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::taken::Parts;
use crate::bindings::wait_driver::{Driver, arrive, set_timer, too_late};
use crate::bindings::waiting_call::{
    Acquisition, BucketQueue, Permission, QueueMember, QueuePlace, WaitingCall,
};
use crate::clock::Clock;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::time::Nanos;
use crate::engine::verb::Verb;
use crate::limiter::{Call, Transaction};

/// The store's answer to a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    Taken(Py<Decision>, Parts),
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

impl WaitingCall {
    /// Decides all transactions together, unless others have waited longer for one of them. `own` is the
    /// transaction in whose queue the call is first.
    pub(crate) fn decide(
        &self,
        py: Python<'_>,
        handle: &Arc<LimiterHandle>,
        own: Option<usize>,
    ) -> PyResult<Verdict> {
        let (transactions, parts) = self.transactions(py, handle)?;
        if let Some(index) = self.queue_to_join(handle, &transactions, own) {
            let (wait, is_latest, rates) = (None, false, None);
            return Ok(Verdict::Denied(Denial { index, wait, is_latest, rates }));
        }
        let verb = self.verb;
        let answered = handle.run(py, |core| core.place_all(verb, &transactions))?;
        let decided = answered.clone().decided(verb, &transactions);
        let Some(index) = decided.binding.filter(|_| !decided.decision.allowed) else {
            let taken = handle.hold_all(py, transactions, &parts, &answered);
            return Ok(Verdict::Taken(several(py, handle, verb, answered, parts)?.unbind(), taken));
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

    /// Returns its transactions, under the limits that are active now.
    fn transactions(
        &self,
        py: Python<'_>,
        handle: &LimiterHandle,
    ) -> PyResult<(Vec<Transaction>, Vec<DecisionPart>)> {
        handle.check_open()?;
        let active = handle.core.snapshot();
        let transactions = self.places.iter().map(|place| {
            let &QueuePlace { ref entry, ref id, cost, kind, keep, .. } = place;
            let (limit, entry) = LimitEntry::active_in(entry, py, &active)?;
            let (text, shown) = (id_text(id.bind(py))?.into_owned(), id.clone_ref(py));
            let adjustment = Adjustment::keeping(keep);
            Ok((Transaction { limit, id: text, cost, kind, adjustment }, (shown, cost, entry)))
        });
        transactions.collect()
    }

    /// Returns the first place in whose queue others have waited longer.
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
        let found = others.find(|(index, Transaction { limit, id, .. })| {
            let Ok(id) = handle.core.waiter_id(limit, Call::check(id, 0)) else { return false };
            let queue = handle.waiting.of_bucket(limit.entry().name().as_str(), &id);
            let ticket = self.ticket(&self.places[*index]);
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
        let verb = self.verb;
        let (transactions, parts) = self.transactions(py, handle)?;
        let answered = handle.run(py, |core| core.refuse_all(verb, &transactions))?;
        Decision::denied(&several(py, handle, Verb::Check, answered, parts)?, None)
    }
}

/// Adds a call to the queue of one of its limits, unless it waits there. Returns that queue, if it must
/// be driven.
pub(crate) fn arrive_at(
    py: Python<'_>,
    handle: &Arc<LimiterHandle>,
    member: &QueueMember,
) -> PyResult<Option<Arc<BucketQueue>>> {
    if member.place().queue().is_some() {
        return Ok(None);
    }
    let queue = arrive(py, handle, member)?;
    if member.call.is_over() {
        // The caller has left meanwhile, and may not have seen this place.
        queue.waiters.lock().on_departure(member.ticket(), handle.core.clock().now());
    } else {
        let until = queue.waiters.lock().sleep(member.ticket());
        set_timer(py, handle, member, until);
    }
    Ok(Some(queue))
}

impl Driver<'_, '_> {
    /// Decides a call that is first in `queue`. Returns it if it is finished, or must compute its delay
    /// again.
    pub(crate) fn ask_together(
        &mut self,
        queue: &Arc<BucketQueue>,
        member: &QueueMember,
    ) -> Option<QueueMember> {
        let (py, ticket, call) = (self.py, member.ticket(), &member.call);
        match call.begin(Some(queue)) {
            Permission::Granted => {}
            // The thread that asks drives this queue afterwards.
            Permission::Busy => return None,
            Permission::Over => {
                queue.waiters.lock().on_end(ticket, self.now());
                return None;
            }
        }
        let verdict = call.decide(py, self.handle, Some(member.index));
        let now = self.now();
        let changed = match verdict {
            Ok(Verdict::Denied(denial)) => self.keep_waiting(queue, member, denial),
            Ok(Verdict::Taken(decision, parts)) => {
                let active = self.handle.active(py, &member.place().entry);
                let is_polled = active.is_ok_and(|(bound, _)| self.is_polled(&bound, queue));
                let present = queue.waiters.lock().on_taken(ticket, is_polled, now);
                self.queues.extend(call.leave_queues(now).0);
                self.finish(call, Ok((decision, Acquisition::Parts(parts))));
                present
            }
            Err(error) => {
                let present = queue.waiters.lock().on_end(ticket, now);
                self.finish(call, Err(error));
                present
            }
        };
        self.queues.extend(call.end(now));
        changed
    }

    /// Lets a call that was denied wait in the queue of the limit that denied it. It keeps its place in
    /// `queue` if it waits no longer than it has already waited.
    fn keep_waiting(
        &mut self,
        queue: &Arc<BucketQueue>,
        member: &QueueMember,
        denial: Denial,
    ) -> Option<QueueMember> {
        let Denial { index: denied_by, wait, is_latest, rates } = denial;
        let (py, handle, now) = (self.py, self.handle, self.now());
        let (call, ticket, is_own) = (&member.call, member.ticket(), denied_by == member.index);
        let mut is_late = call.is_too_late(rates, now);
        let waited = now.get() - call.arrived_at.get();
        let wait = wait.filter(|wait| is_own || wait.get() <= waited);
        let has_left = match wait {
            Some(wait) if !is_late => {
                let is_polled = is_own && is_latest && handle.core.store().is_shared();
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
            member.place().set_queue(None);
            set_timer(py, handle, member, None);
        }
        if is_late {
            let error = too_late(py, handle, member, &queue.id, rates);
            self.finish(call, Err(error));
        } else if !is_own {
            match arrive_at(py, handle, &QueueMember { index: denied_by, ..member.clone() }) {
                Ok(joined) => self.queues.extend(joined),
                Err(error) => {
                    queue.waiters.lock().on_departure(ticket, now);
                    self.finish(call, Err(error));
                }
            }
        } else {
            return None;
        }
        Some(member.clone())
    }
}
