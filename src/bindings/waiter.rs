//! The class `Waiter`.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bindings::arguments;
use crate::bindings::bound_limit::BoundLimit;
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::Decision;
use crate::bindings::errors::raise;
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::joint_call::{JointCall, Permission, Verdict, arrive_at};
use crate::bindings::limiter::Limiter;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::reservation::Reservation;
use crate::bindings::wait_driver::{arrive, cancel, depart, drive, return_charge, too_late};
use crate::bindings::wait_queues::{Acquisition, WaiterProgress, WaiterState};
use crate::clock::Clock;
use crate::engine::factor::Adjustment;
use crate::engine::operation::Verb;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::Call;
use crate::sync::Mutex;

#[doc = doc!(Waiter)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter {
    handle: Arc<LimiterHandle>,
    call: WaiterCall,
    /// One, or one for each transaction.
    states: Vec<Arc<WaiterState>>,
}

/// What a waiter wants.
#[derive(Debug)]
enum WaiterCall {
    One(Py<BoundLimit>),
    Joint(Arc<JointCall>),
}

#[pymethods]
impl Waiter {
    #[new]
    #[pyo3(signature = (bound, id, cost, timeout_ns, notify, *, reserves = false, keep = None))]
    #[pyo3(text_signature = "(bound, id, cost, timeout_ns, notify, *, reserves=False, keep=0)")]
    #[expect(clippy::too_many_arguments, reason = "one per argument of a call")]
    fn new(
        py: Python<'_>,
        bound: Py<BoundLimit>,
        id: &Bound<'_, PyAny>,
        cost: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: Py<PyAny>,
        reserves: bool,
        keep: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Waiter> {
        let (limit, entry) = bound.get().snapshot(py)?;
        let (verb, given) = (verb_of(reserves), cost);
        let what = if reserves { "estimate" } else { "cost" };
        let cost = arguments::saturating(what, given)?;
        let adjustment = arguments::adjustment(None, keep)?;
        let (text, adjustment) = (id_text(id)?, adjustment.as_ref());
        let (keep, call) = (
            adjustment.map_or(0, |adjustment| adjustment.keep),
            Call { verb, id: &text, cost, adjustment },
        );
        bound.get().handle.check_cost(&limit, call, Some(given))?;
        let id = kept_id(id, &text).unbind();
        let timeout = timeout_ns.map(Nanos::clamped);
        let (progress, timer) = (Mutex::new(WaiterProgress::default()), Mutex::new(None));
        let joint = None;
        let state =
            WaiterState { entry, verb, id, cost, keep, timeout, notify, progress, timer, joint };
        let (handle, states) = (Arc::clone(&bound.get().handle), vec![Arc::new(state)]);
        Ok(Waiter { handle, call: WaiterCall::One(bound), states })
    }

    #[doc = doc!(Waiter.of_several)]
    #[staticmethod]
    #[pyo3(signature = (limiter, transactions, timeout_ns, notify, *, reserves = true))]
    fn of_several(
        limiter: &Bound<'_, Limiter>,
        transactions: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: &Bound<'_, PyAny>,
        reserves: bool,
    ) -> PyResult<Waiter> {
        let given = transactions.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let given = PyTuple::new(limiter.py(), given)?;
        let (timeout, verb) = (timeout_ns.map(Nanos::clamped), verb_of(reserves));
        let (transactions, parts) = limiter.get().transactions(verb, given.as_any())?;
        let call = Arc::new(JointCall::create(limiter, &given, timeout, verb));
        let mut states = Vec::with_capacity(parts.len());
        for (index, (transaction, (id, cost, entry))) in transactions.iter().zip(parts).enumerate()
        {
            let adjustment = transaction.adjustment.as_ref();
            if adjustment.is_some_and(|adjustment| adjustment.factor.is_some()) {
                return Err(PyTypeError::new_err("factor cannot be combined with timeout"));
            }
            let keep = adjustment.map_or(0, |adjustment| adjustment.keep);
            let (progress, timer) = (Mutex::new(WaiterProgress::default()), Mutex::new(None));
            let (notify, joint) = (notify.clone().unbind(), Some((Arc::clone(&call), index)));
            states.push(Arc::new(WaiterState {
                entry,
                verb,
                id,
                cost,
                keep,
                timeout,
                notify,
                progress,
                timer,
                joint,
            }));
        }
        call.set_waiters(&states);
        let handle = Arc::clone(limiter.get().handle());
        Ok(Waiter { handle, call: WaiterCall::Joint(call), states })
    }

    #[doc = doc!(Waiter.step)]
    fn step(&self, py: Python<'_>) -> PyResult<Option<Py<Decision>>> {
        let served = self.advance(py)?;
        if served.is_some() || self.has_place() {
            return Ok(served);
        }
        let taken = match &self.call {
            WaiterCall::One(bound) => self.arrive(py, bound.get())?,
            WaiterCall::Joint(call) => self.arrive_together(py, call)?,
        };
        if taken.is_some() { Ok(taken) } else { self.advance(py) }
    }

    #[doc = doc!(Waiter.reservation)]
    fn reservation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Reservation>> {
        if let WaiterCall::Joint(call) = &self.call
            && let Some(reservation) = call.take_reservation()
        {
            return Ok(reservation.into_bound(py));
        }
        for state in &self.states {
            let reserved = state.progress.lock().reserved.take();
            if let Some((decision, charge)) = reserved {
                let id = state.id.clone_ref(py);
                return Reservation::of_waiter(py, &self.handle, id, &decision, charge);
            }
        }
        Err(raise("ReservationError", "the waiter has nothing reserved"))
    }

    #[doc = doc!(Waiter.delay)]
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let is_manual = self.handle.clock.bind(py).cast::<ManualClock>().is_ok();
        let mut earliest: Option<Timestamp> = None;
        for state in &self.states {
            let (queue, ticket) = {
                let progress = state.progress.lock();
                (progress.queue.clone(), progress.ticket)
            };
            let Some(queue) = queue else { continue };
            let until = queue.waiters.lock().sleep(ticket);
            // A call of several may have joined this queue after it was driven.
            if !is_manual || !state.set_timer(py, &self.handle, until) {
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
        if let WaiterCall::Joint(call) = &self.call {
            call.finish();
            if let Some(reservation) = call.take_reservation() {
                cancel(py, &reservation);
            }
        }
        let mut left = Ok(());
        for state in &self.states {
            let (queue, ticket, reserved, is_over) = {
                let mut progress = state.progress.lock();
                let reserved = progress.reserved.take();
                (progress.queue.clone(), progress.ticket, reserved, progress.is_over)
            };
            let Some(queue) = queue else { continue };
            if let Some((_, charge)) = reserved {
                return_charge(py, &self.handle, &queue, ticket, &charge);
            } else if is_over {
                continue;
            }
            depart(py, &self.handle, &queue, state);
            // The others must leave, too, if this thread is interrupted.
            left = left.and(drive(py, &self.handle, &queue, None, false));
        }
        left
    }
}

impl Waiter {
    /// Returns whether it waits in a queue.
    fn has_place(&self) -> bool {
        self.states.iter().any(|state| state.progress.lock().queue.is_some())
    }

    /// Drives its queues. Returns the decision if it was served.
    fn advance(&self, py: Python<'_>) -> PyResult<Option<Py<Decision>>> {
        for state in &self.states {
            let (queue, ticket, is_finished) = {
                let progress = state.progress.lock();
                (progress.queue.clone(), progress.ticket, progress.outcome.is_some())
            };
            if let Some(queue) = queue.filter(|_| !is_finished) {
                drive(py, &self.handle, &queue, Some((state, ticket)), true)?;
            }
            let outcome = {
                let mut progress = state.progress.lock();
                progress.is_over |= progress.outcome.is_some();
                progress.outcome.take()
            };
            let Some(outcome) = outcome else { continue };
            state.set_timer(py, &self.handle, None);
            let (decision, taken) = outcome?;
            match (taken, &self.call) {
                (Acquisition::All(reservation), WaiterCall::Joint(call)) => call.hold(reservation),
                (Acquisition::One(charge), _) if state.verb == Verb::Reserve => {
                    let reserved = Some((decision.clone_ref(py), charge));
                    state.progress.lock().reserved = reserved;
                }
                _ => {}
            }
            return Ok(Some(decision));
        }
        Ok(None)
    }

    /// Takes the cost if the limiter has no waiters, otherwise joins the queue of the bucket.
    fn arrive(&self, py: Python<'_>, bound: &BoundLimit) -> PyResult<Option<Py<Decision>>> {
        let Some(waiter) = self.states.first() else { return Ok(None) };
        let adjustment = Adjustment::keeping(waiter.keep);
        if waiter.verb == Verb::Spend
            && let Some(decision) =
                bound.take(waiter.id.bind(py), waiter.cost, adjustment.as_ref())?
        {
            waiter.progress.lock().is_over = true;
            return Ok(Some(decision.unbind()));
        }
        arrive(py, &self.handle, waiter).map(|_| None)
    }

    /// Takes everything if the limits allow it, otherwise joins the queue of the one that denies it.
    fn arrive_together(
        &self,
        py: Python<'_>,
        call: &Arc<JointCall>,
    ) -> PyResult<Option<Py<Decision>>> {
        if call.begin(None) != Permission::Granted {
            // Another thread has an answer, and notifies this waiter.
            return Ok(None);
        }
        let taken = call.decide(py, &self.handle, None).and_then(|verdict| match verdict {
            Verdict::Taken(reservation) => {
                let decision = reservation.get().decision(py)?.unbind();
                call.finish();
                call.hold(reservation);
                Ok(Some(decision))
            }
            Verdict::Denied(denial) => {
                let now = self.handle.core.clock().now();
                match call.waiter(denial.index) {
                    Some(waiter) if call.is_too_late(denial.rates, now) => {
                        Err(too_late(py, &self.handle, &waiter, "", denial.rates))
                    }
                    _ => arrive_at(py, &self.handle, call, denial.index).map(|_| None),
                }
            }
        });
        // Another thread may have driven the queue that it has joined; this one drives it next.
        let now = self.handle.core.clock().now();
        call.end().iter().for_each(|queue| queue.waiters.lock().on_busy(now));
        taken
    }
}

fn verb_of(reserves: bool) -> Verb {
    if reserves { Verb::Reserve } else { Verb::Spend }
}
