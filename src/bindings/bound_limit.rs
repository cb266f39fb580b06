//! The class `BoundLimit`, which handles all calls on a single bucket.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::{not_picklable, with_cost};
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::limit_entry::{ActiveLimit, LimitEntry};
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::pool::{DecisionPool, Shared};
use crate::bindings::reservation::Reservation;
use crate::bindings::spend_each::spend_each;
use crate::bindings::waiter::{Waiter, kept, verb_of};
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::id::IPV6_PREFIX;
use crate::engine::verb::Verb;
use crate::limiter::{self, Answered, BucketChange, Call};
use crate::store::{Store, Wait};

/// The verbs of the compiled calls.
pub(crate) const SPEND: u8 = 0;
pub(crate) const CHECK: u8 = 1;
pub(crate) const RESERVE: u8 = 2;
pub(crate) const CHARGE: u8 = 3;

pub(crate) const fn verb(number: u8) -> Verb {
    match number {
        SPEND => Verb::Spend,
        CHECK => Verb::Check,
        CHARGE => Verb::ChargeAfter,
        _ => Verb::Reserve,
    }
}

/// Returns the verb of this name.
pub(crate) fn verb_named(name: &str) -> PyResult<Verb> {
    match name {
        "spend" => Ok(Verb::Spend),
        "check" => Ok(Verb::Check),
        "reserve" => Ok(Verb::Reserve),
        "refund" => Ok(Verb::Refund),
        "charge" => Ok(Verb::ChargeAfter),
        _ => Err(PyValueError::new_err(format!("no verb {name:?}"))),
    }
}

/// The arguments of a call about one bucket that waits.
pub(crate) struct WaiterArgs<'a, 'py> {
    pub(crate) verb: Verb,
    pub(crate) id: &'a Bound<'py, PyAny>,
    pub(crate) cost: Option<&'a Bound<'py, PyAny>>,
    pub(crate) keep: Option<&'a Bound<'py, PyAny>>,
    pub(crate) timeout_ns: Option<i64>,
}

/// The active limit, and the generation it belongs to.
#[derive(Debug)]
struct Current {
    generation: u64,
    bound: Arc<limiter::BoundLimit>,
    entry: Py<LimitEntry>,
}

#[doc = doc!(BoundLimit)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct BoundLimit {
    pub(crate) handle: Arc<LimiterHandle>,
    pub(crate) name: Py<PyString>,
    current: Shared<Current>,
    decisions: DecisionPool,
}

impl Current {
    fn of(py: Python<'_>, handle: &LimiterHandle, name: &Py<PyString>) -> PyResult<Arc<Current>> {
        // The generation is read before the limits. If a reload comes between, the generation is
        // outdated, and the next call refreshes again.
        let generation = handle.core.generation();
        let snapshot = handle.core.snapshot();
        let bound = snapshot.limit(arguments::limit_name(name.bind(py))?)?;
        let (entry, clock) = (Arc::clone(bound.entry()), Some(handle.decision_clock()));
        let entry = LimitEntry::new(py, name.clone_ref(py), entry, clock)?;
        Ok(Arc::new(Current { generation, bound: Arc::clone(bound), entry: Py::new(py, entry)? }))
    }
}

impl BoundLimit {
    pub(crate) fn new(
        handle: &Arc<LimiterHandle>,
        name: &Bound<'_, PyString>,
    ) -> PyResult<BoundLimit> {
        handle.check_open()?;
        let (py, name) = (name.py(), name.clone().unbind());
        let current = Current::of(py, handle, &name)?;
        let (handle, decisions) = (Arc::clone(handle), DecisionPool::default());
        Ok(BoundLimit { handle, name, current: Shared::new(current), decisions })
    }

    /// Loads the active limit if the limits were replaced.
    #[inline]
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let generation = self.handle.core.generation();
        if self.current.with(py, |current| current.generation == generation) {
            Ok(())
        } else {
            self.reload_current(py)
        }
    }

    #[cold]
    fn reload_current(&self, py: Python<'_>) -> PyResult<()> {
        // Closing the limiter changes the generation too, so calls need not check for it.
        self.handle.check_open()?;
        self.current.replace(py, Current::of(py, &self.handle, &self.name)?);
        Ok(())
    }

    /// Returns the active limit, for a call that may wait or has several buckets.
    pub(crate) fn snapshot(&self, py: Python<'_>) -> PyResult<ActiveLimit> {
        self.refresh(py)?;
        Ok(self
            .current
            .with(py, |current| (Arc::clone(&current.bound), current.entry.clone_ref(py))))
    }

    /// Returns this limit as it is in `active`.
    pub(crate) fn snapshot_of(
        &self,
        py: Python<'_>,
        active: &limiter::Snapshot,
    ) -> PyResult<ActiveLimit> {
        let entry = self.current.with(py, |current| current.entry.clone_ref(py));
        LimitEntry::active_in(&entry, py, active)
    }

    /// Applies `verb` to the bucket of `id`.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        verb: Verb,
        id: &Bound<'py, PyAny>,
        cost: i64,
        adjustment: Option<&Adjustment>,
    ) -> PyResult<Bound<'py, Decision>> {
        let text = id_text(id)?;
        let call = Call { verb, id: &text, cost, adjustment };
        self.call_text(call, &kept_id(id, &text))
    }

    /// Makes a call. Its decision shows `id`, whose text is that of the call.
    pub(crate) fn call_text<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        match self.try_call(call, id) {
            Some(decision) => Ok(decision),
            None => self.call_waiting(call, id),
        }
    }

    /// Does the same as [`BoundLimit::call_text`] if the call is valid, need not wait and needs no
    /// new decision. Otherwise reads and writes nothing and returns `None`.
    #[inline(never)]
    pub(crate) fn try_call<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
    ) -> Option<Bound<'py, Decision>> {
        self.fill_idle(
            call,
            id,
            #[inline(always)]
            |core, bound, answered| core.try_answer(bound, call, answered),
        )
    }

    /// [`BoundLimit::try_call`], compiled for a spend or check of one token: saves 20 of 1,340 instructions.
    #[inline(never)]
    pub(crate) fn try_one<'py, const VERB: u8>(
        &self,
        text: &str,
        id: &Bound<'py, PyAny>,
    ) -> Option<Bound<'py, Decision>> {
        let call = Call::new(verb(VERB), text, 1);
        self.fill_idle(
            call,
            id,
            #[inline(always)]
            |core, bound, answered| core.try_answer(bound, call, answered),
        )
    }

    /// Makes a call if it is allowed and need not wait. Otherwise takes nothing and returns `None`.
    fn try_take<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Decision>>> {
        self.make_now(call, id, |core, bound, answered| {
            let taken = core.take(bound, call, Wait::Never, answered);
            taken.is_ok_and(|is_allowed| is_allowed).then_some(())
        })
    }

    /// Creates a waiter for a call. Without `notify`, it is one of a thread.
    pub(crate) fn waiter(
        &self,
        py: Python<'_>,
        WaiterArgs { verb, id, cost: given, keep, timeout_ns }: WaiterArgs<'_, '_>,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Waiter> {
        let (limit, entry) = self.snapshot(py)?;
        let what = if verb == Verb::Reserve { "estimate" } else { "cost" };
        let cost = given.map_or(Ok(1), |given| arguments::saturating(what, given))?;
        let adjustment = arguments::adjustment(None, keep)?;
        let (text, adjustment) = (id_text(id)?, adjustment.as_ref());
        self.handle.check_cost(&limit, Call { verb, id: &text, cost, adjustment }, given)?;
        let part = (kept_id(id, &text).unbind(), cost, entry);
        let want = (part, text.into(), Kind::Spend, kept(adjustment));
        Ok(Waiter::new(&self.handle, (verb, false), [want].into_iter(), timeout_ns, notify))
    }

    /// Takes tokens or slots.
    pub(crate) fn reserve<'py>(
        slf: &Bound<'py, Self>,
        id: &Bound<'py, PyAny>,
        cost: i64,
        adjustment: Option<&Adjustment>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let (py, handle) = (slf.py(), &slf.get().handle);
        let text = id_text(id)?;
        let (call, id) =
            (Call { verb: Verb::Reserve, id: &text, cost, adjustment }, kept_id(id, &text));
        if let Some(reserved) = slf.get().try_reserve(call, &id) {
            return reserved;
        }
        let (bound, entry) = slf.get().snapshot(py)?;
        let mut answered = Answered::default();
        let slot = handle.run(py, |core| {
            core.reserve(&bound, call, &handle.slots, Wait::Allowed, &mut answered)
        })?;
        let slot = slot.map(|slot| handle.renew_added(py, slot));
        Bound::new(py, Reservation::of_one(handle, (&bound, &entry), call, &id, slot, answered))
    }

    /// Does the same as [`BoundLimit::reserve`] if the call is valid and need not wait. Otherwise takes
    /// nothing and returns `None`.
    #[inline]
    pub(crate) fn try_reserve<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
    ) -> Option<PyResult<Bound<'py, Reservation>>> {
        let (py, handle) = (id.py(), &self.handle);
        let (slot, reserved) = self.current.with(
            py,
            #[inline(always)]
            |current| {
                if current.generation != handle.core.generation() {
                    return None;
                }
                let (bound, core) = (&current.bound, &handle.core);
                let mut answered = Answered::default();
                let slot = core.reserve(bound, call, &handle.slots, Wait::Never, &mut answered);
                let (slot, active) = (slot.ok()?, (bound, &current.entry));
                let key = slot.map(|slot| slot.key);
                let reserved = Reservation::of_one(handle, active, call, id, key, answered);
                Some((slot, Bound::new(py, reserved)))
            },
        )?;
        if let Some(slot) = slot {
            handle.renew_added(py, slot);
        }
        Some(reserved)
    }

    /// Fills an unused decision, unless `answer` returns `None`.
    #[inline(always)]
    fn fill_idle<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
        answer: impl FnOnce(&AnyLimiter, &limiter::BoundLimit, &mut Answered) -> Option<()>,
    ) -> Option<Bound<'py, Decision>> {
        let (py, core) = (id.py(), &self.handle.core);
        let idle = self.decisions.idle(py)?;
        let (decision, stale) = self.current.with(py, |current| {
            if current.generation != core.generation() {
                return None;
            }
            idle.fill(
                #[inline(always)]
                |data| {
                    answer(core, &current.bound, &mut data.answered)?;
                    Some(data.refill((call.verb, call.cost), id, &current.entry))
                },
            )
        })?;
        stale.drop(py);
        Some(decision)
    }

    /// Fills an unused decision or a new one, unless `answer` returns `None`.
    fn make_now<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
        answer: impl Fn(&AnyLimiter, &limiter::BoundLimit, &mut Answered) -> Option<()>,
    ) -> PyResult<Option<Bound<'py, Decision>>> {
        if let Some(decision) = self.fill_idle(call, id, &answer) {
            return Ok(Some(decision));
        }
        let (bound, entry) = self.snapshot(id.py())?;
        let mut answered = Answered::default();
        if answer(&self.handle.core, &bound, &mut answered).is_none() {
            return Ok(None);
        }
        let data = DecisionData::new(answered, call.verb, call.cost, id, entry);
        self.decisions.make(id.py(), data).map(Some)
    }

    /// Checks that this limit accepts the id.
    pub(crate) fn check_id(&self, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (_, entry) = self.snapshot(id.py())?;
        let entry = &entry.get().entry;
        let accepted = entry.canonical(&id_text(id)?).map(|_| ());
        accepted.map_err(|error| limiter::invalid_id(entry, error).into())
    }

    /// Does the same as [`BoundLimit::call_text`], but detaches from the interpreter while the store may
    /// wait.
    #[cold]
    #[inline(never)]
    fn call_waiting<'py>(
        &self,
        call: Call<'_>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        let (bound, entry) = self.snapshot(id.py())?;
        let answered = self.handle.run(id.py(), |core| core.answer(&bound, call))?;
        let data = DecisionData::new(answered, call.verb, call.cost, id, entry);
        self.decisions.make(id.py(), data)
    }
}

// `fastcall.rs` adds `spend`, `check`, `reserve` and `charge`.
#[pymethods]
impl BoundLimit {
    #[doc = doc!(BoundLimit.name)]
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[doc = doc!(BoundLimit.address_id)]
    #[pyo3(signature = (address, ipv6_prefix=IPV6_PREFIX))]
    fn address_id(
        &self,
        py: Python<'_>,
        address: &Bound<'_, PyString>,
        ipv6_prefix: u8,
    ) -> PyResult<Option<String>> {
        self.refresh(py)?;
        let Ok(address) = address.to_str() else { return Ok(None) };
        Ok(self.current.with(py, |current| {
            current.bound.entry().address_id(address, ipv6_prefix).map(Cow::into_owned)
        }))
    }

    #[doc = doc!(BoundLimit.is_remote)]
    #[getter]
    fn is_remote(&self) -> bool {
        self.handle.core.store().remote().is_some()
    }

    #[doc = doc!(BoundLimit.may_wait)]
    #[getter]
    fn may_wait(&self) -> bool {
        self.handle.core.store().may_wait()
    }

    #[doc = doc!(BoundLimit.refund)]
    #[pyo3(signature = (id, cost = Argument::Missing, *, factor = None))]
    #[pyo3(text_signature = "($self, id, cost=1, *, factor=None)")]
    pub(crate) fn refund<'py>(
        &self,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        let (tokens, adjustment) = (cost.or_int("cost", 1)?, arguments::adjustment(factor, None)?);
        let refunded = self.call(Verb::Refund, id, tokens, adjustment.as_ref());
        let decision = refunded.map_err(|error| with_cost(error, cost.given()))?;
        if !self.handle.waiting.is_empty() {
            let (bound, text) = (self.snapshot(id.py())?.0, id_text(id)?);
            self.handle.wake_waiters(id.py(), Some((&bound, &text)), BucketChange::Refund)?;
        }
        Ok(decision)
    }

    #[doc = doc!(BoundLimit.reset)]
    pub(crate) fn reset(&self, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, text, (bound, _)) = (id.py(), id_text(id)?, self.snapshot(id.py())?);
        let forgotten = self.handle.run(py, |core| core.reset(&bound, &text));
        let forgotten = forgotten?;
        self.handle.wake_waiters(py, Some((&bound, &text)), BucketChange::Reset)?;
        Ok(forgotten)
    }

    #[doc = doc!(BoundLimit.peek)]
    pub(crate) fn peek<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call(Verb::Check, id, 0, None)
    }

    #[doc = doc!(BoundLimit.spend_each)]
    #[pyo3(signature = (ids, costs = None, *, keep = None))]
    #[pyo3(text_signature = "($self, ids, costs=None, *, keep=0)")]
    pub(crate) fn spend_each<'py>(
        &self,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        spend_each(&self.handle, || self.snapshot(ids.py()), ids, costs, keep)
    }

    #[doc = doc!(BoundLimit.acquire)]
    #[pyo3(signature = (id, cost = Argument::Missing, *, timeout = None, keep = None))]
    #[pyo3(text_signature = "($self, id, cost=1, *, timeout=None, keep=0)")]
    pub(crate) fn acquire<'py>(
        slf: &Bound<'py, Self>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, slf) = (slf.py(), slf.get());
        let timeout_ns = arguments::timeout_ns(timeout)?;
        let (tokens, adjustment) = (cost.or_int("cost", 1)?, arguments::adjustment(None, keep)?);
        let (verb, text) = (Verb::Spend, id_text(id)?);
        let call = Call { verb, id: &text, cost: tokens, adjustment: adjustment.as_ref() };
        if slf.handle.waiting.is_empty()
            && let Some(decision) = slf.try_take(call, &kept_id(id, &text))?
        {
            return Ok(decision.into_any());
        }
        let waiter = WaiterArgs { verb, id, cost: cost.given(), keep, timeout_ns };
        slf.waiter(py, waiter, None)?.wait(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable(
            "BoundLimit",
            "pickle the limits of its Limiter, and call `limiter.limit(name)` in the other process",
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<BoundLimit {}>", self.name.bind(py).repr()?))
    }
}

#[doc = doc!(waiter)]
#[pyfunction]
#[pyo3(signature = (bound, id, cost, timeout_ns, notify, *, reserves = false, keep = None))]
#[pyo3(text_signature = "(bound, id, cost, timeout_ns, notify, *, reserves=False, keep=0)")]
#[expect(clippy::too_many_arguments, reason = "one per argument of a call")]
pub(crate) fn waiter(
    py: Python<'_>,
    bound: &Bound<'_, BoundLimit>,
    id: &Bound<'_, PyAny>,
    cost: &Bound<'_, PyAny>,
    timeout_ns: Option<i64>,
    notify: Py<PyAny>,
    reserves: bool,
    keep: Option<&Bound<'_, PyAny>>,
) -> PyResult<Waiter> {
    let call = WaiterArgs { verb: verb_of(reserves), id, cost: Some(cost), keep, timeout_ns };
    bound.get().waiter(py, call, Some(notify))
}

#[doc = doc!(try_spend)]
#[pyfunction]
#[pyo3(signature = (bound, id, cost = Argument::Missing), text_signature = "(bound, id, cost=1)")]
pub(crate) fn try_spend<'py>(
    bound: &Bound<'py, BoundLimit>,
    id: &Bound<'py, PyAny>,
    cost: Argument<'py>,
) -> PyResult<Option<Bound<'py, Decision>>> {
    let (text, cost) = (id_text(id)?, cost.or_int("cost", 1)?);
    let call = Call::new(Verb::Spend, &text, cost);
    bound.get().make_now(call, &kept_id(id, &text), |core, bound, answered| {
        core.try_answer(bound, call, answered)
    })
}
