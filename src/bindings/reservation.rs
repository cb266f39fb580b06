//! What the Python class `Reservation` has taken.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bindings::arguments::{self, seconds};
use crate::bindings::clock::ManualClock;
use crate::bindings::decision::{Decision, DecisionPart, several};
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::raise;
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter::Limiter;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::once::Once;
use crate::clock::Clock;
use crate::engine::algorithm::in_flight::Lease;
use crate::engine::answer::Outcome;
use crate::engine::batch::Kind;
use crate::engine::cost::CostError;
use crate::engine::factor::Adjustment;
use crate::engine::operation::Verb;
use crate::engine::time::Timestamp;
use crate::limiter::{
    self, Answered, AnsweredAll, Call, CallError, Ending, HeldSlot, Progress, Stage, Transaction,
    count_endings,
};
use crate::store::{Store, StoreError};
use crate::sync::{Mutex, forks};

/// How often a call that must not wait tries to get a lock of another process.
const TRIES: usize = 100;

/// Tokens and slots of a `penstock.Reservation`, and the limits under which they were taken.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct ReservedTokens {
    handle: Arc<LimiterHandle>,
    decision: Py<Decision>,
    /// What was taken; empty if it was denied.
    parts: Vec<ReservedPart>,
    progress: Progress,
    /// The forks of the process that reserved. A child process has nothing to return.
    forks: u32,
}

/// Tokens or slots of one bucket.
#[derive(Debug)]
struct ReservedPart {
    /// The limit at the time of the charge. A refund uses it even after a reload.
    bound: Arc<limiter::BoundLimit>,
    entry: Py<LimitEntry>,
    id: Py<PyAny>,
    cost: i64,
    adjustment: Option<Adjustment>,
    /// The slots; `None` for tokens.
    slot: Option<Arc<HeldSlot>>,
    /// The actual cost, to be charged at the end; `None` before it is known.
    actual: Mutex<Option<i64>>,
}

impl ReservedPart {
    /// Returns the operation that ends this part; `None` if nothing changes.
    fn ending(&self, py: Python<'_>, handle: &LimiterHandle, is_cancelled: bool) -> Option<Ending> {
        if let Some(slot) = &self.slot {
            return handle.slots.end(slot);
        }
        let actual = self.actual.lock().unwrap_or(if is_cancelled { 0 } else { self.cost });
        let (verb, cost) = match actual.saturating_sub(self.cost) {
            0 => return None,
            more @ 1.. => (Verb::ChargePartial, more),
            less => (Verb::Refund, -less),
        };
        let id = id_text(self.id.bind(py)).ok()?.into();
        Some(Ending {
            limit: Arc::clone(&self.bound),
            id,
            adjustment: self.adjustment.clone(),
            verb,
            cost,
        })
    }
}

impl ReservedTokens {
    /// Creates a Python `Reservation`.
    fn reservation<'py>(
        py: Python<'py>,
        handle: &Arc<LimiterHandle>,
        decision: Py<Decision>,
        parts: Vec<ReservedPart>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = Arc::clone(handle);
        let progress = Progress::new();
        let tokens = ReservedTokens { handle, decision, parts, progress, forks: forks() };
        static CLASS: Once<Py<PyAny>> = Once::new();
        let class = CLASS.import(py, "penstock.reservation", "Reservation")?;
        class.call1((Bound::new(py, tokens)?,))
    }

    /// Creates a Python `Reservation` for the answer to one call.
    pub(crate) fn of_one<'py>(
        handle: &Arc<LimiterHandle>,
        (bound, entry): ActiveLimit,
        id: &Bound<'py, PyAny>,
        cost: i64,
        adjustment: Option<Adjustment>,
        answered: Answered,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = id.py();
        let (text, answer) = (id_text(id)?, answered.answer);
        let is_taken = answer.outcome == Outcome::Allowed;
        let lease = bound.entry().lease(Verb::Reserve, &text, cost, &answer);
        let slot = lease.map(|lease| handle.hold(py, &bound, &text, cost, lease, answer.now));
        let data = DecisionData::new(answered, Verb::Reserve, cost, id, entry.clone_ref(py));
        let decision = Py::new(py, Decision::new(data))?;
        let (id, actual) = (id.clone().unbind(), Mutex::new(None));
        let part = ReservedPart { bound, entry, id, cost, adjustment, slot, actual };
        let parts = if is_taken { vec![part] } else { Vec::new() };
        ReservedTokens::reservation(py, handle, decision, parts)
    }

    /// Creates a Python `Reservation` for the answer to one call about several buckets.
    pub(crate) fn of_several<'py>(
        py: Python<'py>,
        handle: &Arc<LimiterHandle>,
        transactions: Vec<Transaction>,
        shown: Vec<DecisionPart>,
        answered: AnsweredAll,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut parts = Vec::with_capacity(transactions.len());
        let found = transactions.into_iter().zip(&shown).zip(&answered.parts);
        for ((transaction, (id, cost, entry)), Answered { answer, .. }) in found {
            let Transaction { limit: bound, id: text, kind, adjustment, .. } = transaction;
            if answer.outcome != Outcome::Allowed || kind == Kind::Check {
                continue;
            }
            let lease = bound.entry().lease(Verb::Reserve, &text, *cost, answer);
            let slot = lease.map(|lease| handle.hold(py, &bound, &text, *cost, lease, answer.now));
            let (entry, id) = (entry.clone_ref(py), id.clone_ref(py));
            let adjustment = adjustment.and_then(Adjustment::after_spend);
            let (cost, actual) = (*cost, Mutex::new(None));
            parts.push(ReservedPart { bound, entry, id, cost, adjustment, slot, actual });
        }
        let decision = several(py, Verb::Reserve, answered, shown)?.unbind();
        ReservedTokens::reservation(py, handle, decision, parts)
    }

    /// Replaces the charge of the estimate by one of `actual`. After an error, the reservation is open
    /// again or its stage is unknown.
    fn replace_charge<'py>(
        &self,
        py: Python<'py>,
        part: &ReservedPart,
        actual: i64,
    ) -> PyResult<Bound<'py, Decision>> {
        let text = self.handle.check_open().and_then(|()| id_text(part.id.bind(py)));
        let text = text.inspect_err(|_| self.progress.reopen())?;
        let adjustment = part.adjustment.as_ref();
        let spend = Call { adjustment, ..Call::spend(&text, part.cost) };
        let decided = self.handle.run(py, |core| core.settle(&part.bound, spend, actual));
        let decided = decided.map_err(|error| {
            self.progress.fail(&error);
            PyErr::from(error)
        })?;
        let entry = part.entry.clone_ref(py);
        let data = DecisionData::given(decided, actual, part.id.bind(py), entry);
        let decision = Bound::new(py, Decision::new(data))?;
        self.handle.wake_after_refund(py, &part.bound, &text)?;
        Ok(decision)
    }

    /// Ends the reservation, and returns the operations to execute; `None` if it is not open.
    fn endings(&self, py: Python<'_>, is_cancelled: bool) -> Option<Vec<Ending>> {
        let stage = if is_cancelled { Stage::Cancelled } else { Stage::Settled };
        if self.parts.is_empty() || !self.is_of_this_process() || self.progress.end(stage).is_err()
        {
            return None;
        }
        let endings = self.parts.iter();
        Some(endings.filter_map(|part| part.ending(py, &self.handle, is_cancelled)).collect())
    }

    /// Sends the end of the reservation to the server. `then` is called on any thread when it has replied,
    /// or immediately if there is nothing to send.
    pub(crate) fn submit_end(
        &self,
        py: Python<'_>,
        is_cancelled: bool,
        then: impl FnOnce() + Send + 'static,
    ) {
        let endings = self.endings(py, is_cancelled).unwrap_or_default();
        self.handle.submit_endings(endings, then);
    }

    pub(crate) fn handle(&self) -> &Arc<LimiterHandle> {
        &self.handle
    }

    fn is_of_this_process(&self) -> bool {
        self.forks == forks()
    }

    /// Returns the error for a reservation that cannot be settled any more.
    fn ended(stage: Stage) -> PyErr {
        let message = match stage {
            Stage::Cancelled => "the reservation was cancelled; make a new one to take tokens",
            Stage::Unknown => {
                "the store's reply to an earlier call was lost, so it is unknown what is charged; \
                 settling again could charge twice"
            }
            Stage::Open | Stage::Settled => {
                "the reservation is already settled; it can be settled only once"
            }
        };
        raise("ReservationError", message)
    }

    fn has_slots(&self) -> bool {
        self.parts.iter().any(|part| part.slot.is_some())
    }
}

#[pymethods]
impl ReservedTokens {
    /// The decision about the estimates.
    #[getter]
    pub(crate) fn decision(&self, py: Python<'_>) -> Py<Decision> {
        self.decision.clone_ref(py)
    }

    /// `"open"`, `"settled"`, `"cancelled"`, `"denied"`, or `"unknown"` if a reply was lost.
    #[getter]
    fn stage(&self) -> &'static str {
        match self.progress.stage() {
            _ if self.parts.is_empty() => "denied",
            Stage::Settled => "settled",
            Stage::Cancelled => "cancelled",
            Stage::Unknown => "unknown",
            Stage::Open => "open",
        }
    }

    /// Whether a server executes the end of the reservation.
    #[getter]
    fn is_remote(&self) -> bool {
        self.handle.core.store().remote().is_some()
    }

    /// Whether slots or tokens are held that the end of the reservation may change.
    #[getter]
    fn is_pending(&self) -> bool {
        self.progress.stage() == Stage::Open
            && self.is_of_this_process()
            && self.parts.iter().any(|part| part.cost > 0)
    }

    /// See `Reservation.settle`.
    fn settle<'py>(
        &self,
        py: Python<'py>,
        actual: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        let actual = arguments::saturating("actual", actual)?;
        let part = match self.parts.as_slice() {
            [] => return Ok(self.decision.bind(py).clone()),
            [part] if part.slot.is_none() => part,
            [_] => {
                let message = "slots are given back at the end; there is nothing to settle";
                return Err(raise("ReservationError", message));
            }
            _ => {
                let message = "several limits are reserved; settle one with settle(name, actual)";
                return Err(raise("ReservationError", message));
            }
        };
        match self.progress.end(Stage::Settled) {
            Ok(()) => self.replace_charge(py, part, actual),
            Err(stage) => Err(ReservedTokens::ended(stage)),
        }
    }

    /// See `Reservation.settle`.
    fn settle_later(&self, py: Python<'_>, name: &str, actual: &Bound<'_, PyAny>) -> PyResult<()> {
        let actual = arguments::saturating("actual", actual)?;
        if actual < 0 {
            let (limit, source) = (name.to_owned(), CostError::Negative { found: actual });
            return Err(Box::new(CallError::Cost { limit, source }).into());
        }
        if self.parts.is_empty() {
            return Ok(());
        }
        let mut named = self.parts.iter().filter(|part| part.bound.entry().name().as_str() == name);
        let message = match (named.next(), named.next()) {
            (None, _) => {
                let decision = self.decision.bind(py);
                let parts: Bound<'_, PyTuple> = decision.getattr("parts")?.cast_into()?;
                // Not charged, because it only took part in the decision.
                let is_known = parts.iter().any(|part| {
                    part.getattr("name").is_ok_and(|other| other.eq(name).unwrap_or(false))
                });
                if is_known {
                    return Ok(());
                }
                format!("{name} is not among the limits of this reservation")
            }
            (Some(_), Some(_)) => format!("{name} is reserved for several ids"),
            (Some(part), None) if part.slot.is_some() => {
                format!("{name}: slots are given back at the end; there is nothing to settle")
            }
            (Some(part), None) => match self.progress.stage() {
                Stage::Open => {
                    *part.actual.lock() = Some(actual);
                    return Ok(());
                }
                stage => return Err(ReservedTokens::ended(stage)),
            },
        };
        Err(raise("ReservationError", &message))
    }

    /// Return slots, and charge what was settled; return whether the reservation was open.
    ///
    /// Args:
    ///     is_cancelled: Whether tokens that were not settled are refunded.
    ///     waits: Whether to wait for the store. If not, the call never blocks.
    fn end(&self, py: Python<'_>, is_cancelled: bool, waits: bool) -> PyResult<bool> {
        let Some(endings) = self.endings(py, is_cancelled) else { return Ok(false) };
        let has_slots = self.has_slots();
        if !has_slots && !endings.is_empty() {
            self.handle.check_open().inspect_err(|_| self.progress.reopen())?;
        }
        match self.handle.end(py, endings, waits) {
            // Slots are returned later, or expire.
            Err(error) if !has_slots => {
                self.progress.fail(&error);
                Err(error.into())
            }
            _ => Ok(true),
        }
    }

    /// See `Reservation.abandon`.
    fn abandon(&self) {
        if self.progress.end(Stage::Cancelled).is_ok() {
            self.parts
                .iter()
                .filter_map(|part| part.slot.as_ref())
                .for_each(|slot| self.handle.slots.abandon(slot));
        }
    }
}

impl LimiterHandle {
    /// Holds slots that were taken, and renews them until they are given back.
    fn hold(
        self: &Arc<Self>,
        py: Python<'_>,
        bound: &Arc<limiter::BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        now: Timestamp,
    ) -> Arc<HeldSlot> {
        let id = bound.entry().canonical(id).unwrap_or(id.into());
        // Due by the limiter's clock, which may differ from the store's.
        let now = if self.core.store().remote().is_some() { self.core.clock().now() } else { now };
        let (slot, is_first) = self.slots.add(bound, &id, cost, lease, now);
        if is_first {
            self.start_renewal(py);
        }
        slot
    }

    /// Starts the thread that renews slots or, on a manual clock, the timer.
    fn start_renewal(self: &Arc<Self>, py: Python<'_>) {
        let start = || -> PyResult<()> {
            let renewal = Bound::new(py, Renewal { handle: Arc::downgrade(self) })?;
            if let Ok(clock) = self.clock.bind(py).cast::<ManualClock>() {
                return renewal.get().set_timer(&renewal, clock.get());
            }
            let wake = py.import("penstock.leases")?.call_method1("start", (renewal,))?;
            let before = self.wake_renewal.lock().replace(wake.unbind());
            drop(before);
            Ok(())
        };
        if let Err(error) = start() {
            // The slots were taken, and are given back in any case.
            error.write_unraisable(py, None);
        }
    }

    /// Executes the ends of a reservation. Without `waits`, never blocks: what cannot be executed now is
    /// left to the renewal.
    fn end(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: Vec<Ending>,
        waits: bool,
    ) -> Result<(), limiter::Failure> {
        if endings.is_empty() {
            return Ok(());
        }
        let ended = if waits || !self.core.store().may_wait() {
            self.run(py, |core| core.end_all(&endings))
        } else if self.core.store().remote().is_some() {
            self.submit_endings(endings, || {});
            return Ok(());
        } else {
            self.try_end(py, &endings)
        };
        if let Err(error) = ended {
            if let CallError::Store(error) = &*error {
                self.slots.retry(endings, error, self.core.clock().now());
                self.ensure_renewal(py);
            }
            return Err(error);
        }
        for ending in &endings {
            if !self.waiting.is_empty() && ending.verb == Verb::Refund {
                // Waiters also move up by themselves.
                let _ = self.wake_after_refund(py, &ending.limit, &ending.id);
            }
        }
        Ok(())
    }

    fn try_end(
        self: &Arc<Self>,
        py: Python<'_>,
        endings: &[Ending],
    ) -> Result<(), limiter::Failure> {
        for _ in 0..TRIES {
            if self.core.try_end_all(endings)? {
                return Ok(());
            }
            std::thread::yield_now();
        }
        // Another process holds the lock for long; it may be stopped.
        self.slots.retry_later(endings.to_vec(), self.core.clock().now());
        self.ensure_renewal(py);
        Ok(())
    }

    /// Starts the renewal, or lets its thread look again.
    fn ensure_renewal(self: &Arc<Self>, py: Python<'_>) {
        if self.slots.starts_renewal() || self.clock.bind(py).is_instance_of::<ManualClock>() {
            return self.start_renewal(py);
        }
        let wake = self.wake_renewal.lock().as_ref().map(|wake| wake.clone_ref(py));
        if let Some(Err(error)) = wake.map(|wake| wake.call0(py)) {
            error.write_unraisable(py, None);
        }
    }

    /// Applies the leases of new limits to the slots that are held.
    pub(crate) fn renew_after_reload(self: &Arc<Self>, py: Python<'_>) {
        if self.slots.held().is_empty() {
            return;
        }
        let slots = Arc::clone(&self.slots);
        self.run(py, |core| core.renew_after_reload(&slots));
        self.ensure_renewal(py);
    }

    /// Sends endings to the server. Its replies are counted on a thread of the store, which then calls
    /// `then`.
    fn submit_endings(&self, endings: Vec<Ending>, then: impl FnOnce() + Send + 'static) {
        let then = Arc::new(OnDrop(Mutex::new(Some(then))));
        let Some(store) = self.core.store().remote() else { return };
        let Ok(call) = self.core.submission_of_endings(&endings) else { return };
        let calls = if store.is_one_call(&call) {
            vec![(call, endings)]
        } else {
            let each = endings.into_iter().filter_map(|ending| {
                let endings = vec![ending];
                Some((self.core.submission_of_endings(&endings).ok()?, endings))
            });
            each.collect()
        };
        for (call, endings) in calls {
            let (slots, now) = (Arc::clone(&self.slots), self.core.clock().now());
            let then = Arc::clone(&then);
            let done = move |replies: Result<Vec<_>, StoreError>| {
                match replies {
                    Ok(answers) => count_endings(&endings, &answers),
                    Err(error) => slots.retry(endings, &error, now),
                }
                drop(then);
            };
            if !call.ops.is_empty() {
                store.submit(call, Box::new(done));
            }
        }
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(then) = self.0.get_mut().take() {
            then();
        }
    }
}

/// Renews the slots of a limiter while it exists.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Renewal {
    handle: Weak<LimiterHandle>,
}

impl Renewal {
    /// Sets the timer for the slots that are due next, in place of the previous one.
    fn set_timer(&self, renewal: &Bound<'_, Renewal>, clock: &ManualClock) -> PyResult<()> {
        let Some(handle) = self.handle.upgrade() else { return Ok(()) };
        let next = handle.slots.next_due(clock.instant());
        let call = renewal.getattr("__call__")?.unbind();
        let timer = next.map(|next| clock.set_timer(next.get(), call));
        let before = std::mem::replace(&mut *handle.renewal_timer.lock(), timer);
        before.into_iter().for_each(|timer| clock.drop_timer(timer));
        Ok(())
    }
}

#[pymethods]
impl Renewal {
    #[new]
    fn new(limiter: &Limiter) -> Renewal {
        Renewal { handle: Arc::downgrade(limiter.handle()) }
    }

    /// Return the seconds until slots are due; `None` if none are held, and the renewal ends.
    fn due_in(&self) -> Option<f64> {
        let handle = self.handle.upgrade()?;
        handle.check_open().ok()?;
        let now = handle.core.clock().now();
        let next = handle.slots.next_due(now)?;
        Some(seconds((next.get() - now.get()).max(0)))
    }

    /// Renew the slots that are due.
    fn __call__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Some(handle) = slf.get().handle.upgrade() else { return Ok(()) };
        if handle.check_open().is_err() {
            return Ok(());
        }
        let slots = Arc::clone(&handle.slots);
        handle.run(py, |core| core.renew(&slots));
        match handle.clock.bind(py).cast::<ManualClock>() {
            Ok(clock) => slf.get().set_timer(slf, clock.get()),
            Err(_) => Ok(()),
        }
    }
}

/// Take what `Limiter.reserve_all` takes, if that need not wait for another process.
///
/// None if it would have to wait: nothing was taken, and `reserve_all` is to be called on another
/// thread.
#[pyfunction]
pub(crate) fn try_reserve_all<'py>(
    limiter: &Bound<'py, Limiter>,
    transactions: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (transactions, parts) = limiter.get().transactions(transactions)?;
    let handle = limiter.get().handle();
    let answered = handle.core.try_answer_all(Verb::Reserve, &transactions)?;
    let py = limiter.py();
    let reserved = answered
        .map(|answered| ReservedTokens::of_several(py, handle, transactions, parts, answered));
    reserved.transpose()
}
