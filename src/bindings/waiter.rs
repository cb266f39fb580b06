//! The class `Waiter`: a caller that waits, in a thread or in a task.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::clock::ManualClock;
use crate::bindings::decision::{Decision, DecisionPart, several, several_data};
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{raise, rate_limited};
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::reservation::Reservation;
use crate::bindings::taken::{ReservedPart, Taken};
use crate::bindings::wakeup::Wakeup;
use crate::clock::Clock;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{Acquired, Call, Transaction, WaitOutcome, WaitingCall, Want};
use crate::sync::{AtomicBool, Ordering};

#[doc = doc!(Waiter)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter {
    handle: Arc<LimiterHandle>,
    call: Arc<WaitingCall>,
    /// The ids and limits as the decision shows them.
    shown: Vec<DecisionPart>,
    /// The number of its arrival, and the instant.
    arrival: (u64, Timestamp),
    has_arrived: AtomicBool,
    wakeup: Arc<Wakeup>,
}

impl Waiter {
    /// Creates a waiter for one limit, or for several that decide together. Without `notify`, it is one of a
    /// thread.
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        (verb, is_joint): (Verb, bool),
        wants: impl Iterator<Item = (DecisionPart, Box<str>, Kind, i64)>,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> Waiter {
        let mut shown = Vec::new();
        let wants = wants.map(|(part, id, kind, keep)| {
            let (name, cost) = (part.2.get().entry.name().as_str().into(), part.1);
            shown.push(part);
            Want { name, id, cost, kind, keep }
        });
        let (wants, timeout) = (wants.collect(), timeout_ns.map(Nanos::clamped));
        Waiter {
            handle: Arc::clone(handle),
            call: Arc::new(WaitingCall { verb, wants, timeout, is_joint }),
            shown,
            arrival: (handle.waiting.next_number(), handle.core.clock().now()),
            has_arrived: AtomicBool::new(false),
            wakeup: Arc::new(Wakeup::new(notify)),
        }
    }

    /// Blocks this thread until the call is served. Returns its decision or reservation.
    pub(crate) fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let served = loop {
            match self.step(py) {
                Ok(false) => {}
                Ok(true) => break self.result(py),
                Err(error) => break Err(error),
            }
            if let Err(error) = self.wakeup.wait(py, self.delay(py)) {
                break Err(error);
            }
        };
        let left = self.leave(py);
        served.and_then(|served| left.map(|()| served))
    }

    /// Returns the ids and limits of `transactions` as a decision shows them.
    fn shown(&self, py: Python<'_>, transactions: &[Transaction]) -> PyResult<Vec<DecisionPart>> {
        let shown = self.shown.iter().zip(transactions).map(|((id, cost, entry), transaction)| {
            let entry = LimitEntry::of(entry, py, &transaction.limit)?;
            Ok((id.clone_ref(py), *cost, entry))
        });
        shown.collect()
    }

    /// Returns the error of a call whose turn did not come in time, or would come in `wait`.
    fn too_late(&self, py: Python<'_>, wait: Option<Nanos>) -> PyResult<PyErr> {
        let transactions = self.call.transactions(&self.handle.core.snapshot())?;
        let parts = self.shown(py, &transactions)?;
        if self.call.is_joint {
            let verb = self.call.verb;
            let refused = self.handle.run(py, |core| core.refuse_all(verb, &transactions))?;
            let decision = several(py, &self.handle, refused, parts)?;
            let decision = Decision::denied(&decision, None)?;
            // Of what denies it now, another limit may take longer, such as one on slots.
            let least = decision.get().data.decision(py).retry_after.max(Nanos::clamped(1));
            return self.denied(&decision, wait.filter(|wait| *wait >= least));
        }
        let ([transaction], [(id, cost, entry)]) = (&transactions[..], &parts[..]) else {
            return Ok(raise("LimitError", "a waiter has one limit"));
        };
        let adjustment = transaction.adjustment.as_ref();
        let check = Call { adjustment, ..Call::check(&transaction.id, *cost) };
        let decided = self.handle.run(py, |core| core.refuse(&transaction.limit, check))?;
        let data = DecisionData::given(decided, *cost, id.bind(py), entry.clone_ref(py));
        self.denied(&Bound::new(py, Decision::new(data))?, wait)
    }

    fn denied(&self, decision: &Bound<'_, Decision>, wait: Option<Nanos>) -> PyResult<PyErr> {
        if let Some(wait) = wait {
            return Ok(PyErr::from_value(rate_limited_error(decision, wait.get())?));
        }
        let name = decision.getattr("name")?;
        let what = if self.call.is_joint { "not served" } else { "no slot was free" };
        let seconds = self.call.timeout.map_or(0.0, |timeout| timeout.get() as f64 / 1e9);
        let message = format!("denied by {name}: {what} within the timeout of {seconds} s");
        rate_limited(decision, &message).map(PyErr::from_value)
    }

    fn decision_data(&self, py: Python<'_>, taken: &Acquired) -> PyResult<DecisionData> {
        let (verb, answered) = (self.call.verb, taken.answered.clone());
        let mut parts = self.shown(py, &taken.transactions)?;
        if self.call.is_joint {
            return several_data(py, &self.handle, answered, parts);
        }
        let (part, answer) = (parts.pop(), answered.parts.into_iter().next());
        let found = part.zip(answer).map(|((id, cost, entry), answer)| match &taken.decided {
            Some(decided) => DecisionData::given(decided.clone(), cost, id.bind(py), entry),
            None => DecisionData::new(answer, verb, cost, id.bind(py), entry),
        });
        Ok(found.unwrap_or_default())
    }
}

#[pymethods]
impl Waiter {
    #[doc = doc!(Waiter.step)]
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        let (handle, (number, _)) = (&self.handle, self.arrival);
        let waiting = &handle.waiting;
        // Relaxed: only its caller steps.
        if !self.has_arrived.swap(true, Ordering::Relaxed) {
            handle.check_open()?;
            handle.drive(py, Some(number), |core, driven| {
                let waker = Arc::clone(&self.wakeup);
                waiting.arrive(core, self.arrival, &self.call, waker, driven)
            })??;
        } else if !waiting.is_done(number) {
            handle.drive(py, Some(number), |core, driven| waiting.step(core, number, driven))?;
        }
        match waiting.take_refusal(number) {
            Some(WaitOutcome::Failed(failure)) => Err(failure.into()),
            Some(WaitOutcome::Late(wait)) => {
                Err(self.too_late(py, wait).unwrap_or_else(|error| error))
            }
            _ => Ok(waiting.is_done(number)),
        }
    }

    #[doc = doc!(Waiter.result)]
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let taken = self.handle.waiting.take_taken(self.arrival.0);
        let taken = taken
            .ok_or_else(|| raise("ReservationError", "the waiter has nothing to take over"))?;
        let data = self.decision_data(py, &taken)?;
        if self.call.verb != Verb::Reserve {
            return Ok(Bound::new(py, Decision::new(data))?.into_any());
        }
        let shown = self.shown(py, &taken.transactions)?;
        let parts = taken.parts().map(|(index, slot)| {
            let (transaction, (id, cost, entry)) = (&taken.transactions[index], &shown[index]);
            let adjustment = transaction.adjustment.as_ref();
            let taken = Taken::new(slot, &transaction.limit, id.bind(py), adjustment);
            ReservedPart { entry: entry.clone_ref(py), cost: *cost, taken }
        });
        let reserved = Reservation::new(&self.handle, data, parts.collect());
        Ok(Bound::new(py, reserved)?.into_any())
    }

    #[doc = doc!(Waiter.delay)]
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let until = self.handle.waiting.sleep(self.arrival.0)?;
        let left = (until.get() - self.handle.core.clock().now().get()).max(0);
        if left > 0 && self.handle.clock.bind(py).is_instance_of::<ManualClock>() {
            // A timer wakes it.
            return None;
        }
        // Rounded up to a microsecond, so that the waiter does not step too early.
        Some(((left + 999) / 1000) as f64 / 1e6)
    }

    #[doc = doc!(Waiter.leave)]
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, (number, _)) = (&self.handle, self.arrival);
        let leave = |core: &_, driven: &mut _| handle.waiting.leave(core, number, driven);
        handle.drive(py, Some(number), leave)
    }
}

/// Returns the verb of a waiter that takes tokens, or reserves.
pub(crate) fn verb_of(reserves: bool) -> Verb {
    if reserves { Verb::Reserve } else { Verb::Spend }
}

/// Returns the tokens that a call must leave.
pub(crate) fn kept(adjustment: Option<&Adjustment>) -> i64 {
    adjustment.map_or(0, |adjustment| adjustment.keep)
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
