//! The class `Waiter`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::bound_limit::BoundLimit;
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::Decision;
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::reservation::Reservation;
use crate::bindings::wait_driver::{depart, drive, has_slots, return_charge, too_late};
use crate::bindings::wait_queues::{BucketQueue, WaiterProgress, WaiterState};
use crate::clock::Clock;
use crate::engine::factor::Adjustment;
use crate::engine::operation::Verb;
use crate::engine::time::Nanos;
use crate::limiter::Call;
use crate::sync::Mutex;

#[doc = doc!(Waiter)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Waiter {
    bound: Py<BoundLimit>,
    state: Arc<WaiterState>,
}

#[pymethods]
impl Waiter {
    #[new]
    #[pyo3(signature = (bound, id, cost, timeout_ns, notify, *, reserves = false, keep = 0))]
    #[expect(clippy::too_many_arguments, reason = "one per argument of a call")]
    fn new(
        py: Python<'_>,
        bound: Py<BoundLimit>,
        id: Py<PyAny>,
        cost: i64,
        timeout_ns: Option<i64>,
        notify: Py<PyAny>,
        reserves: bool,
        keep: i64,
    ) -> PyResult<Waiter> {
        let (_, entry) = bound.get().snapshot(py)?;
        let timeout = timeout_ns.map(Nanos::clamped);
        let (progress, timer) = (Mutex::new(WaiterProgress::default()), Mutex::new(None));
        let verb = if reserves { Verb::Reserve } else { Verb::Spend };
        let state = WaiterState { entry, verb, id, cost, keep, timeout, notify, progress, timer };
        Ok(Waiter { bound, state: Arc::new(state) })
    }

    #[doc = doc!(Waiter.step)]
    fn step(&self, py: Python<'_>) -> PyResult<Option<Py<Decision>>> {
        let waiter = &self.state;
        let handle = self.handle();
        let queue = waiter.progress.lock().queue.clone();
        let queue = match queue {
            Some(queue) => queue,
            None => match self.arrive(py)? {
                Ok(queue) => queue,
                Err(decision) => return Ok(Some(decision)),
            },
        };
        let ticket = waiter.ticket();
        if waiter.progress.lock().outcome.is_none() {
            drive(py, handle, &queue, Some((waiter, ticket)), true)?;
        }
        let outcome = {
            let mut progress = waiter.progress.lock();
            progress.is_over |= progress.outcome.is_some();
            progress.outcome.take()
        };
        if outcome.is_some() {
            waiter.set_timer(py, handle, None);
        }
        let Some((decision, charge)) = outcome.transpose()? else { return Ok(None) };
        if waiter.verb == Verb::Reserve {
            waiter.progress.lock().reserved = Some((decision.clone_ref(py), charge));
        }
        Ok(Some(decision))
    }

    #[doc = doc!(Waiter.reservation)]
    fn reservation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Reservation>> {
        let reserved = self.state.progress.lock().reserved.take();
        let Some((decision, charge)) = reserved else {
            return Err(raise("ReservationError", "the waiter has nothing reserved"));
        };
        let id = self.state.id.clone_ref(py);
        Reservation::of_waiter(py, self.handle(), id, &decision, charge)
    }

    #[doc = doc!(Waiter.delay)]
    fn delay(&self, py: Python<'_>) -> Option<f64> {
        let handle = self.handle();
        if handle.clock.bind(py).cast::<ManualClock>().is_ok() {
            return None;
        }
        let (queue, ticket) = {
            let progress = self.state.progress.lock();
            (progress.queue.clone()?, progress.ticket)
        };
        let until = queue.waiters.lock().sleep(ticket)?;
        // Rounded up to a microsecond, so that the waiter does not step too early.
        let left = (until.get() - handle.core.clock().now().get()).max(0);
        Some(((left + 999) / 1000) as f64 / 1e6)
    }

    #[doc = doc!(Waiter.leave)]
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.state.progress.lock().queue.clone();
        let Some(queue) = queue else { return Ok(()) };
        let handle = self.handle();
        let reserved = self.state.progress.lock().reserved.take();
        if let Some((_, charge)) = reserved {
            return_charge(py, handle, &queue, self.state.ticket(), &charge);
        } else if self.state.progress.lock().is_over {
            return Ok(());
        }
        depart(py, handle, &queue, &self.state);
        drive(py, handle, &queue, None, false)
    }
}

impl Waiter {
    fn handle(&self) -> &Arc<LimiterHandle> {
        &self.bound.get().handle
    }

    /// Takes the cost if the limiter has no waiters, otherwise joins the queue of the bucket.
    fn arrive(&self, py: Python<'_>) -> PyResult<Result<Arc<BucketQueue>, Py<Decision>>> {
        let (waiter, bound, handle) = (&self.state, self.bound.get(), self.handle());
        let adjustment = Adjustment::keeping(waiter.keep);
        let adjustment = adjustment.as_ref();
        if waiter.verb == Verb::Spend
            && let Some(decision) = bound.take(waiter.id.bind(py), waiter.cost, adjustment)?
        {
            waiter.progress.lock().is_over = true;
            return Ok(Err(decision.unbind()));
        }
        let (limit, _) = bound.snapshot(py)?;
        let text = id_text(waiter.id.bind(py))?;
        let call = Call { verb: waiter.verb, id: &text, cost: waiter.cost, adjustment };
        let id = handle.core.waiter_id(&limit, call)?;
        let name = limit.entry().name().as_str();
        let queue = handle.waiting.of_bucket(name, &id).filter(|_| !has_slots(&limit, &id));
        let now = handle.core.clock().now();
        let arguments = queue.and_then(|queue| {
            queue.waiters.lock().estimate_arguments((waiter.cost, waiter.keep), now)
        });
        let estimate = match arguments {
            Some((demands, after)) => {
                handle.run(py, |core| core.estimate(&limit, &id, &demands, after))?
            }
            None => None,
        };
        let joined = handle.waiting.join(waiter, name, &id, estimate, handle.core.clock().now());
        joined.map(Ok).map_err(|wait| too_late(py, handle, waiter, &id, Some(wait)))
    }
}
