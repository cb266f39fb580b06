//! The class `Waiter`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::joint_call::{Verdict, arrive_at};
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::reservation::Reservation;
use crate::bindings::taken::{Parts, ReservedPart, Taken};
use crate::bindings::wait_driver::{Driver, arrive, drive, drop_timers, set_timer, too_late};
use crate::bindings::waiting_call::{Acquisition, Permission, Places, QueueMember, WaitingCall};
use crate::clock::Clock;
use crate::engine::answer::Outcome;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{Answered, Call};
use crate::store::Wait;

#[doc = doc!(Waiter)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter {
    handle: Arc<LimiterHandle>,
    call: Arc<WaitingCall>,
}

impl Waiter {
    /// Creates a waiter. Without `notify`, it is one of a thread.
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        (verb, is_joint): (Verb, bool),
        places: Places,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> Waiter {
        let timeout = timeout_ns.map(Nanos::clamped);
        let arrival = (handle.core.clock().now(), handle.waiting.next_number());
        let call = WaitingCall::new(verb, is_joint, places, timeout, arrival, notify);
        Waiter { handle: Arc::clone(handle), call: Arc::new(call) }
    }

    /// Blocks this thread until the call is served. Returns its decision or reservation.
    pub(crate) fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let served = loop {
            match self.step(py) {
                Ok(false) => {}
                Ok(true) => break self.result(py),
                Err(error) => break Err(error),
            }
            if let Err(error) = self.call.wakeup.wait(py, self.delay(py)) {
                break Err(error);
            }
        };
        let left = self.leave(py);
        served.and_then(|served| left.map(|()| served))
    }

    fn member(&self, index: usize) -> QueueMember {
        QueueMember { call: Arc::clone(&self.call), index }
    }

    /// Drives its queues. Returns whether it was served.
    fn advance(&self, py: Python<'_>) -> PyResult<bool> {
        for (index, place) in self.call.places.iter().enumerate() {
            if let Some(queue) = place.queue()
                && !self.call.is_served()?
            {
                drive(py, &self.handle, &queue, Some((&self.member(index), true)))?;
            }
        }
        let is_served = self.call.is_served()?;
        if is_served {
            drop_timers(py, &self.handle, &self.call);
        }
        Ok(is_served)
    }

    /// Takes the cost if the limiter has no waiters, otherwise joins the queue of the bucket.
    fn arrive(&self, py: Python<'_>) -> PyResult<()> {
        let (member, handle) = (self.member(0), &self.handle);
        let (place, verb) = (member.place(), self.call.verb);
        if verb == Verb::Spend && handle.waiting.is_empty() {
            let (id, adjustment) = (place.id.bind(py), Adjustment::keeping(place.keep));
            let (text, mut answered) = (id_text(id)?, Answered::default());
            let call = Call { verb, id: &text, cost: place.cost, adjustment: adjustment.as_ref() };
            let (bound, entry) = handle.active(py, &place.entry)?;
            let take = |core: &AnyLimiter| core.take(&bound, call, Wait::Allowed, &mut answered);
            if handle.run(py, take)? {
                let mut parts = Parts::new();
                if answered.answer.outcome == Outcome::Allowed {
                    let (entry, taken) = (entry.clone_ref(py), Taken::new(None, &bound, id, None));
                    parts.push(ReservedPart { entry, cost: place.cost, taken });
                }
                let data = DecisionData::new(answered, verb, place.cost, id, entry);
                let decision = Py::new(py, Decision::new(data));
                let outcome = decision.map(|decision| (decision, Acquisition::Parts(parts)));
                Driver::new(py, handle).finish(&self.call, outcome);
                return Ok(());
            }
        }
        arrive(py, handle, &member).map(drop)
    }

    /// Takes everything if the limits allow it, otherwise joins the queue of the one that denies it.
    fn arrive_together(&self, py: Python<'_>) -> PyResult<()> {
        let (call, handle) = (&self.call, &self.handle);
        if call.begin(None) != Permission::Granted {
            // Another thread has an answer, and notifies this waiter.
            return Ok(());
        }
        let verdict = call.decide(py, handle, None);
        let now = handle.core.clock().now();
        let arrived = verdict.and_then(|verdict| match verdict {
            Verdict::Taken(decision, parts) => {
                let outcome = Ok((decision, Acquisition::Parts(parts)));
                Driver::new(py, handle).finish(call, outcome);
                Ok(())
            }
            Verdict::Denied(denial) => {
                let member = self.member(denial.index);
                if call.is_too_late(denial.rates, now) {
                    return Err(too_late(py, handle, &member, "", denial.rates));
                }
                arrive_at(py, handle, &member).map(drop)
            }
        });
        // Another thread may have driven the queue that it has joined; this one drives it next.
        call.end(now);
        arrived
    }
}

#[pymethods]
impl Waiter {
    #[doc = doc!(Waiter.step)]
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        if self.advance(py)? {
            return Ok(true);
        }
        if self.call.places.iter().any(|place| place.queue().is_some()) {
            return Ok(false);
        }
        if self.call.is_joint { self.arrive_together(py) } else { self.arrive(py) }?;
        self.advance(py)
    }

    #[doc = doc!(Waiter.result)]
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.call.take_outcome();
        let outcome = outcome
            .ok_or_else(|| raise("ReservationError", "the waiter has nothing to take over"))?;
        let (decision, taken) = outcome?;
        let (Verb::Reserve, Some(place)) = (self.call.verb, self.call.places.first()) else {
            return Ok(decision.into_bound(py).into_any());
        };
        let parts = match taken {
            Acquisition::Parts(parts) => parts,
            Acquisition::Charge(charge) => charge.into_parts(place.id.bind(py)),
        };
        Ok(Reservation::of_waiter(py, &self.handle, &decision, parts)?.into_any())
    }

    #[doc = doc!(Waiter.delay)]
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let mut earliest: Option<Timestamp> = None;
        for (index, place) in self.call.places.iter().enumerate() {
            let Some((queue, ticket)) = self.call.queue_and_ticket(place) else { continue };
            let until = queue.waiters.lock().sleep(ticket);
            // A call of several may have joined this queue after it was driven.
            if !set_timer(py, &self.handle, &self.member(index), until) {
                earliest = earliest.into_iter().chain(until).min();
            }
        }
        let until = earliest?;
        // Rounded up to a microsecond, so that the waiter does not step too early.
        let left = (until.get() - self.handle.core.clock().now().get()).max(0);
        Some(((left + 999) / 1000) as f64 / 1e6)
    }

    #[doc = doc!(Waiter.leave)]
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let mut driver = Driver::new(py, &self.handle);
        driver.depart(&self.call);
        driver.drive_queues();
        driver.result()
    }
}

/// Returns the verb of a waiter that takes tokens, or reserves.
pub(crate) fn verb_of(reserves: bool) -> Verb {
    if reserves { Verb::Reserve } else { Verb::Spend }
}
