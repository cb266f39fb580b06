//! The class `Waiter`.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use smallvec::smallvec;

use crate::bindings::arguments;
use crate::bindings::bound_limit::BoundLimit;
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::raise;
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::joint_call::{Verdict, arrive_at};
use crate::bindings::limiter::Limiter;
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::reservation::Reservation;
use crate::bindings::wait_driver::{Driver, arrive, drive, set_timer, too_late};
use crate::bindings::waiting_call::{
    Acquisition, Permission, Places, QueueMember, QueuePlace, WaitingCall,
};
use crate::clock::Clock;
use crate::engine::batch::Kind;
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

/// The arguments of a call about one bucket that waits.
pub(crate) struct OneWait<'a, 'py> {
    pub(crate) verb: Verb,
    pub(crate) id: &'a Bound<'py, PyAny>,
    pub(crate) cost: Option<&'a Bound<'py, PyAny>>,
    pub(crate) keep: Option<&'a Bound<'py, PyAny>>,
    pub(crate) timeout_ns: Option<i64>,
}

impl Waiter {
    /// Creates a waiter for a call about one bucket. Without `notify`, it is one of a thread.
    pub(crate) fn of_one(
        py: Python<'_>,
        bound: &BoundLimit,
        OneWait { verb, id, cost: given, keep, timeout_ns }: OneWait<'_, '_>,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Waiter> {
        let (limit, entry) = bound.snapshot(py)?;
        let what = if verb == Verb::Reserve { "estimate" } else { "cost" };
        let cost = given.map_or(Ok(1), |given| arguments::saturating(what, given))?;
        let adjustment = arguments::adjustment(None, keep)?;
        let (text, adjustment) = (id_text(id)?, adjustment.as_ref());
        bound.handle.check_cost(&limit, Call { verb, id: &text, cost, adjustment }, given)?;
        let part = (kept_id(id, &text).unbind(), cost, entry);
        let places = smallvec![QueuePlace::new(part, Kind::Spend, adjustment)];
        Ok(Waiter::new(&bound.handle, (verb, false), places, timeout_ns, notify))
    }

    /// Creates a waiter for a call about several limits, as `of_one` does.
    pub(crate) fn of_all(
        limiter: &Limiter,
        verb: Verb,
        transactions: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Waiter> {
        let (transactions, parts) = limiter.transactions(verb, transactions)?;
        let places = transactions.iter().zip(parts).map(|(transaction, part)| {
            let adjustment = transaction.adjustment.as_ref();
            if adjustment.is_some_and(|adjustment| adjustment.factor.is_some()) {
                return Err(PyTypeError::new_err("factor cannot be combined with timeout"));
            }
            Ok(QueuePlace::new(part, transaction.kind, adjustment))
        });
        let places = places.collect::<PyResult<Places>>()?;
        Ok(Waiter::new(limiter.handle(), (verb, true), places, timeout_ns, notify))
    }

    fn new(
        handle: &Arc<LimiterHandle>,
        (verb, is_joint): (Verb, bool),
        places: Places,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> Waiter {
        let timeout = timeout_ns.map(Nanos::clamped);
        let call = WaitingCall::new(handle, verb, is_joint, places, timeout, notify);
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
            self.call.drop_timers(py, &self.handle);
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
                let data = DecisionData::new(answered, verb, place.cost, id, entry);
                let decision = Py::new(py, Decision::new(data));
                let outcome = decision.map(|decision| (decision, Acquisition::Tokens(bound)));
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
            Verdict::Taken(reservation) => {
                let decision = reservation.get().decision(py)?.unbind();
                let outcome = Ok((decision, Acquisition::All(reservation)));
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
    #[new]
    #[pyo3(signature = (bound, id, cost, timeout_ns, notify, *, reserves = false, keep = None))]
    #[pyo3(text_signature = "(bound, id, cost, timeout_ns, notify, *, reserves=False, keep=0)")]
    #[expect(clippy::too_many_arguments, reason = "one per argument of a call")]
    fn py_new(
        py: Python<'_>,
        bound: &Bound<'_, BoundLimit>,
        id: &Bound<'_, PyAny>,
        cost: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: Py<PyAny>,
        reserves: bool,
        keep: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Waiter> {
        let call = OneWait { verb: verb_of(reserves), id, cost: Some(cost), keep, timeout_ns };
        Waiter::of_one(py, bound.get(), call, Some(notify))
    }

    #[doc = doc!(Waiter.of_several)]
    #[staticmethod]
    #[pyo3(signature = (limiter, transactions, timeout_ns, notify, *, reserves = false))]
    fn of_several(
        limiter: &Bound<'_, Limiter>,
        transactions: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: Py<PyAny>,
        reserves: bool,
    ) -> PyResult<Waiter> {
        let (verb, notify) = (verb_of(reserves), Some(notify));
        Waiter::of_all(limiter.get(), verb, transactions, timeout_ns, notify)
    }

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
        let reserves = self.call.verb == Verb::Reserve;
        Ok(match (taken, self.call.places.first()) {
            (Acquisition::All(reservation), _) if reserves => reservation.into_bound(py).into_any(),
            (Acquisition::All(reservation), _) => {
                reservation.get().release_nowait(py, false)?;
                decision.into_bound(py).into_any()
            }
            (Acquisition::Charge(charge), Some(place)) if reserves => {
                let id = place.id.clone_ref(py);
                Reservation::of_waiter(py, &self.handle, id, &decision, charge)?.into_any()
            }
            _ => decision.into_bound(py).into_any(),
        })
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

fn verb_of(reserves: bool) -> Verb {
    if reserves { Verb::Reserve } else { Verb::Spend }
}
