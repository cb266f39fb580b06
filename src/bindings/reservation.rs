//! The class `Reservation`: tokens and slots that a call has taken, and the operations that end them.

use std::ffi::CString;
use std::sync::Arc;

use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

use crate::bindings::arguments;
use crate::bindings::decision::{Decision, DecisionPart, several_data};
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{not_picklable, raise};
use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::once::Once;
use crate::bindings::pool::Flag;
use crate::engine::answer::Outcome;
use crate::engine::cost::CostError;
use crate::engine::factor::Adjustment;
use crate::engine::verb::Verb;
use crate::limiter::{
    self, Acquired, Answered, AnsweredAll, BucketChange, Call, CallError, Ending, Endings,
    HeldSlotKey, OpenSlots, Progress, Stage, Transaction,
};
use crate::sync::{AtomicBool, Mutex, Ordering, forks};

/// How many characters of an id are shown.
const MAX_ID: usize = 60;

const SLOTS_HAVE_NO_COST: &str = "slots are given back at the end; there is nothing to settle";

/// What was taken from each bucket of a call.
pub(crate) type Parts = SmallVec<[ReservedPart; 1]>;

/// Tokens or slots of one bucket.
#[derive(Debug)]
pub(crate) struct ReservedPart {
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) cost: i64,
    pub(crate) taken: Taken,
}

/// What was taken from a bucket.
#[derive(Debug)]
pub(crate) enum Taken {
    Slots(HeldSlotKey),
    Tokens(TakenTokens),
}

/// Tokens that were taken from a bucket.
#[derive(Debug)]
pub(crate) struct TakenTokens {
    /// The limit at the time of the charge. A refund uses it even after a reload.
    pub(crate) bound: Arc<limiter::BoundLimit>,
    pub(crate) id: Py<PyAny>,
    pub(crate) adjustment: Option<Adjustment>,
    /// The actual cost, to be charged at the end; `None` before it is known.
    pub(crate) actual: Mutex<Option<i64>>,
}

impl Taken {
    #[inline(always)]
    pub(crate) fn new(
        slot: Option<HeldSlotKey>,
        bound: &Arc<limiter::BoundLimit>,
        id: &Bound<'_, PyAny>,
        adjustment: Option<&Adjustment>,
    ) -> Taken {
        slot.map_or_else(
            || {
                let adjustment = adjustment.cloned().and_then(Adjustment::after_spend);
                let (bound, id) = (Arc::clone(bound), id.clone().unbind());
                Taken::Tokens(TakenTokens { bound, id, adjustment, actual: Mutex::new(None) })
            },
            Taken::Slots,
        )
    }
}

impl ReservedPart {
    /// Returns what a call has taken from each bucket; `shown` are its ids and limits.
    pub(crate) fn all(py: Python<'_>, taken: &Acquired, shown: &[DecisionPart]) -> Parts {
        let parts = taken.parts().map(|(index, slot)| {
            let (transaction, (id, cost, entry)) = (&taken.transactions[index], &shown[index]);
            let adjustment = transaction.adjustment.as_ref();
            let taken = Taken::new(slot, &transaction.limit, id.bind(py), adjustment);
            ReservedPart { entry: entry.clone_ref(py), cost: *cost, taken }
        });
        parts.collect()
    }

    /// Returns the operation that ends this part; `None` if nothing changes.
    pub(crate) fn ending(
        &self,
        py: Python<'_>,
        slots: &OpenSlots,
        is_cancelled: bool,
    ) -> Option<Ending> {
        match &self.taken {
            Taken::Slots(slot) => slots.end(*slot),
            Taken::Tokens(tokens) => tokens.ending(py, self.cost, is_cancelled),
        }
    }

    pub(crate) fn slot(&self) -> Option<HeldSlotKey> {
        if let Taken::Slots(slot) = self.taken { Some(slot) } else { None }
    }
}

impl TakenTokens {
    #[inline(never)]
    fn ending(&self, py: Python<'_>, estimate: i64, is_cancelled: bool) -> Option<Ending> {
        let actual = self.actual.lock().unwrap_or(if is_cancelled { 0 } else { estimate });
        let (verb, cost) = match actual.saturating_sub(estimate) {
            0 => return None,
            more @ 1.. => (Verb::ChargePartial, more),
            less => (Verb::Refund, -less),
        };
        let id = id_text(self.id.bind(py)).ok()?.into();
        Some(Ending {
            limit: Arc::clone(&self.bound),
            id,
            id_hash: None,
            adjustment: self.adjustment.clone(),
            verb,
            cost,
        })
    }
}

#[doc = doc!(Reservation)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Reservation {
    handle: Arc<LimiterHandle>,
    /// The decision about the estimates; created when it is read, because few callers do.
    data: DecisionData,
    decision: Mutex<Option<Py<Decision>>>,
    /// What was taken; empty if it was denied.
    parts: Parts,
    progress: Progress,
    /// Whether a block has begun with it.
    is_entered: Flag,
    /// Whether a call has tried to end it.
    is_handled: AtomicBool,
    /// The forks of the process that reserved. A child process has nothing to return.
    forks: u32,
}

impl Reservation {
    #[inline(always)]
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        data: DecisionData,
        parts: Parts,
    ) -> Reservation {
        let (handle, decision) = (Arc::clone(handle), Mutex::new(None));
        let (progress, is_entered) = (Progress::new(), Flag::default());
        let (is_handled, forks) = (AtomicBool::new(false), forks());
        Reservation { handle, data, decision, parts, progress, is_entered, is_handled, forks }
    }

    /// Creates a reservation for the answer to one call, which has taken `slot`.
    // Inlined, so that it is written where the caller needs it: it is large.
    #[inline(always)]
    pub(crate) fn of_one(
        handle: &Arc<LimiterHandle>,
        (bound, entry): (&Arc<limiter::BoundLimit>, &Py<LimitEntry>),
        Call { verb, cost, adjustment, .. }: Call<'_>,
        id: &Bound<'_, PyAny>,
        slot: Option<HeldSlotKey>,
        answered: Answered,
    ) -> Reservation {
        let py = id.py();
        let mut parts = Parts::new();
        if answered.answer.outcome == Outcome::Allowed {
            let taken = Taken::new(slot, bound, id, adjustment);
            parts.push(ReservedPart { entry: entry.clone_ref(py), cost, taken });
        }
        let data = DecisionData::new(answered, verb, cost, id, entry.clone_ref(py));
        Reservation::new(handle, data, parts)
    }

    /// Creates a reservation for a server's answer to one call.
    pub(crate) fn of_answer<'py>(
        handle: &Arc<LimiterHandle>,
        (bound, entry): &ActiveLimit,
        id: &Bound<'py, PyAny>,
        cost: i64,
        adjustment: Option<&Adjustment>,
        answered: Answered,
    ) -> PyResult<Bound<'py, Reservation>> {
        let (py, text) = (id.py(), id_text(id)?);
        let call = Call { verb: Verb::Reserve, id: &text, cost, adjustment };
        let answer = &answered.answer;
        let lease = bound.entry().lease(call.verb, &text, cost, answer);
        let slot = lease.map(|lease| handle.hold(py, bound, &text, cost, lease, answer.now));
        Bound::new(py, Reservation::of_one(handle, (bound, entry), call, id, slot, answered))
    }

    /// Creates a reservation for the answer to one call about several buckets.
    pub(crate) fn of_several<'py>(
        py: Python<'py>,
        handle: &Arc<LimiterHandle>,
        transactions: Vec<Transaction>,
        shown: Vec<DecisionPart>,
        answered: AnsweredAll,
    ) -> PyResult<Bound<'py, Reservation>> {
        let taken = handle.hold_all(py, transactions, answered);
        let parts = ReservedPart::all(py, &taken, &shown);
        let data = several_data(py, handle, taken.answered, shown)?;
        Bound::new(py, Reservation::new(handle, data, parts))
    }

    /// Replaces the charge of the estimate by one of `actual`. After an error, the reservation is open
    /// again or its stage is unknown.
    fn replace_charge<'py>(
        &self,
        py: Python<'py>,
        part: &ReservedPart,
        TakenTokens { bound, id, adjustment, .. }: &TakenTokens,
        actual: i64,
    ) -> PyResult<Bound<'py, Decision>> {
        let text = self.handle.check_open().and_then(|()| id_text(id.bind(py)));
        let text = text.inspect_err(|_| self.progress.reopen())?;
        let adjustment = adjustment.as_ref();
        let spend = Call { adjustment, ..Call::spend(&text, part.cost) };
        let decided = self.handle.run(py, |core| core.settle(bound, spend, actual));
        let decided = decided.map_err(|error| {
            self.progress.fail(&error);
            PyErr::from(error)
        })?;
        let entry = part.entry.clone_ref(py);
        let data = DecisionData::given(decided, actual, id.bind(py), entry);
        let decision = Bound::new(py, Decision::new(data))?;
        self.handle.wake_waiters(py, Some((bound, &text)), BucketChange::Refund)?;
        Ok(decision)
    }

    /// Ends the reservation. Returns whether it was open.
    fn close(&self, is_cancelled: bool) -> bool {
        let stage = if is_cancelled { Stage::Cancelled } else { Stage::Settled };
        !self.parts.is_empty() && self.is_of_this_process() && self.progress.end(stage).is_ok()
    }

    /// Returns the operations that end it.
    fn endings(&self, py: Python<'_>, is_cancelled: bool) -> Endings {
        let slots = &self.handle.slots;
        self.parts.iter().filter_map(|part| part.ending(py, slots, is_cancelled)).collect()
    }

    /// Ends the reservation, and adds the operations to execute to `endings`. Returns whether it was open.
    pub(crate) fn add_endings(
        &self,
        py: Python<'_>,
        is_cancelled: bool,
        endings: &mut Endings,
    ) -> bool {
        let was_open = self.close(is_cancelled);
        if was_open {
            endings.extend(self.endings(py, is_cancelled));
        }
        was_open
    }

    pub(crate) fn handle(&self) -> &Arc<LimiterHandle> {
        &self.handle
    }

    fn is_of_this_process(&self) -> bool {
        self.forks == forks()
    }

    /// Returns the error for a reservation that is not for another block.
    #[cold]
    fn used() -> PyErr {
        let message = "the reservation was used before; make a new one for each block";
        raise("ReservationError", message)
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
        self.parts.iter().any(|part| part.slot().is_some())
    }

    fn stage(&self) -> &'static str {
        match self.progress.stage() {
            _ if !self.data.allowed() => "denied",
            Stage::Settled => "settled",
            Stage::Cancelled => "cancelled",
            Stage::Unknown => "unknown",
            Stage::Open => "open",
        }
    }

    /// Returns whether slots or tokens are held that the end of the reservation may change.
    fn is_pending(&self) -> bool {
        self.progress.stage() == Stage::Open
            && self.is_of_this_process()
            && self.parts.iter().any(|part| part.cost > 0)
    }

    /// Ends a reservation that its owner has dropped.
    #[cold]
    fn warn_of_drop(&self, py: Python<'_>) {
        // It may be dropped while an exception is raised, which must not be replaced.
        let raised = PyErr::take(py);
        let shown = self.__repr__(py).unwrap_or_default();
        let message =
            format!("{shown} was dropped: settle, release or cancel it; its tokens stay spent");
        let ended = self.end(py, false, false).map(|_| ());
        let warned = CString::new(message.replace('\0', ""))
            .map_err(PyErr::from)
            .and_then(|message| PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &message, 1));
        for error in [ended, warned].into_iter().filter_map(Result::err) {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    }

    /// Settles a reservation of one limit. See `settle`.
    fn settle_now<'py>(&self, actual: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        let py = actual.py();
        let actual = arguments::saturating("actual", actual)?;
        let (part, tokens) = match self.parts.as_slice() {
            [] => return self.decision(py),
            [part] => match &part.taken {
                Taken::Tokens(tokens) => (part, tokens),
                Taken::Slots(_) => return Err(raise("ReservationError", SLOTS_HAVE_NO_COST)),
            },
            _ => {
                let message = "several limits are reserved; settle one with settle(name, actual)";
                return Err(raise("ReservationError", message));
            }
        };
        match self.progress.end(Stage::Settled) {
            Ok(()) => self.replace_charge(py, part, tokens, actual),
            Err(stage) => Err(Reservation::ended(stage)),
        }
    }

    /// Settles one of several limits, with the call that ends the reservation. See `settle`.
    fn settle_later(&self, py: Python<'_>, name: &str, actual: &Bound<'_, PyAny>) -> PyResult<()> {
        let actual = arguments::saturating("actual", actual)?;
        if actual < 0 {
            let (limit, source) = (name.to_owned(), CostError::Negative { found: actual });
            return Err(Box::new(CallError::Cost { limit, source }).into());
        }
        if self.parts.is_empty() {
            return Ok(());
        }
        let is_named = |part: &&ReservedPart| part.entry.get().entry.name().as_str() == name;
        let mut named = self.parts.iter().filter(is_named);
        let message = match (named.next(), named.next()) {
            (None, _) => {
                let decision = self.decision(py)?;
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
            (Some(part), None) => match (&part.taken, self.progress.stage()) {
                (Taken::Slots(_), _) => format!("{name}: {SLOTS_HAVE_NO_COST}"),
                (Taken::Tokens(tokens), Stage::Open) => {
                    *tokens.actual.lock() = Some(actual);
                    return Ok(());
                }
                (Taken::Tokens(_), stage) => return Err(Reservation::ended(stage)),
            },
        };
        Err(raise("ReservationError", &message))
    }

    /// Begins a block, which raises `RateLimited` if the reservation is denied.
    #[inline]
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<()> {
        if !self.data.allowed() {
            return Decision::raise_if_denied(&self.decision(py)?);
        }
        // Of two threads without the interpreter's lock, only one may enter.
        if self.progress.stage() != Stage::Open || self.is_entered.set(py) {
            return Err(Reservation::used());
        }
        Ok(())
    }

    /// Ends a block that raised `exception`, which is `None` if it did not raise.
    #[inline]
    pub(crate) fn exit(&self, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = exception.py();
        if exception.is_none() {
            return self.end(py, false, true).map(|_| ());
        }
        if let Err(error) = self.end(py, true, true) {
            // The exception of the block takes precedence.
            let note = format!("the reservation could not be cancelled: {}", error.value(py));
            exception.call_method1("add_note", (note,))?;
        }
        Ok(())
    }

    /// Returns slots, and charges what was settled. Returns whether the reservation was open.
    ///
    /// `is_cancelled`: whether tokens that were not settled are refunded. Without `waits`, never blocks.
    fn end(&self, py: Python<'_>, is_cancelled: bool, waits: bool) -> PyResult<bool> {
        self.is_handled.store(true, Ordering::Relaxed);
        if !self.close(is_cancelled) {
            return Ok(false);
        }
        if let [ReservedPart { taken: Taken::Slots(slot), .. }] = self.parts.as_slice()
            && self.handle.try_return(py, *slot)
        {
            return Ok(true);
        }
        let endings = self.endings(py, is_cancelled);
        let has_slots = self.has_slots();
        if !has_slots && !endings.is_empty() {
            self.handle.check_open().inspect_err(|_| self.progress.reopen())?;
        }
        match self.handle.end(py, &endings, waits) {
            // The caller may end it again, so nothing else must.
            Err(error) if !has_slots => {
                self.progress.fail(&error);
                return Err(error.into());
            }
            // Slots are returned later, or expire.
            Err(error) => self.handle.retry(py, endings, &error),
            Ok(()) => {}
        }
        Ok(true)
    }
}

// `fastcall.rs` adds `__enter__` and `__exit__`.
#[pymethods]
impl Reservation {
    #[doc = doc!(Reservation.decision)]
    #[getter]
    pub(crate) fn decision<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Decision>> {
        if let Some(decision) = &*self.decision.lock() {
            return Ok(decision.bind(py).clone());
        }
        let created = Bound::new(py, Decision::new(self.data.clone_ref(py)))?;
        // Another thread may have created it meanwhile.
        let mut decision = self.decision.lock();
        Ok(decision.get_or_insert_with(|| created.unbind()).bind(py).clone())
    }

    #[doc = doc!(Reservation.estimate)]
    #[getter]
    fn estimate(&self) -> i64 {
        self.data.cost
    }

    #[doc = doc!(Reservation.settle)]
    #[pyo3(signature = (name_or_actual, actual = None, /))]
    fn settle<'py>(
        &self,
        name_or_actual: &Bound<'py, PyAny>,
        actual: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, Decision>>> {
        let Some(actual) = actual else {
            self.is_handled.store(true, Ordering::Relaxed);
            return self.settle_now(name_or_actual).map(Some);
        };
        let name = arguments::string("name", name_or_actual)?;
        self.settle_later(name.py(), arguments::utf8("ReservationError", "name", name)?, actual)?;
        Ok(None)
    }

    #[doc = doc!(Reservation.release)]
    fn release(&self, py: Python<'_>) -> PyResult<bool> {
        self.end(py, false, true)
    }

    #[doc = doc!(Reservation.release_nowait)]
    #[pyo3(signature = (*, is_cancelled = false))]
    pub(crate) fn release_nowait(&self, py: Python<'_>, is_cancelled: bool) -> PyResult<bool> {
        self.end(py, is_cancelled, false)
    }

    #[doc = doc!(Reservation.cancel)]
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.end(py, true, true)
    }

    #[doc = doc!(Reservation.abandon)]
    fn abandon(&self) {
        self.is_handled.store(true, Ordering::Relaxed);
        if self.progress.end(Stage::Cancelled).is_ok() {
            let slots = self.parts.iter().filter_map(ReservedPart::slot);
            slots.for_each(|slot| self.handle.slots.abandon(slot));
        }
    }

    fn __bool__(&self) -> bool {
        self.data.allowed()
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().enter(slf.py())?;
        ready(slf.clone().into_any())
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __aexit__<'py>(
        &self,
        exc_type: &Bound<'py, PyAny>,
        exc: &Bound<'py, PyAny>,
        traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (exc_type, traceback);
        self.end(exc.py(), !exc.is_none(), false)?;
        ready(exc.py().None().into_bound(exc.py()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable("Reservation", "end it in the process that reserved"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.data.name(py).map_or_else(|| "None".to_owned(), |name| name.to_string());
        let id: String = self.data.id(py)?.unwrap_or_default().chars().take(MAX_ID).collect();
        let id = PyString::new(py, &id).repr()?.to_string();
        let id = id.get(1..id.len() - 1).unwrap_or_default();
        Ok(format!("<Reservation {name} {id}: {}, {}>", self.estimate(), self.stage()))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_handled.load(Ordering::Relaxed) && self.is_pending() {
            // `None` means that the interpreter is shutting down.
            let _ = Python::try_attach(|py| self.warn_of_drop(py));
        }
    }
}

/// Returns an awaitable that completes immediately with `value`.
fn ready<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once<Py<PyAny>> = Once::new();
    CLASS.import(value.py(), "penstock._wait_queue", "Ready")?.call1((value,))
}
