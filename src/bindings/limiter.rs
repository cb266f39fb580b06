//! `Limiter`.

use std::borrow::Cow;
use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::bindings::arguments::{self, Argument};
use crate::bindings::bound_limit::{BoundLimit, LimiterHandle};
use crate::bindings::clock::AnyClock;
use crate::bindings::decision::{Decision, DecisionData, over_several};
use crate::bindings::decisions::Decisions;
use crate::bindings::default_clock::default_clock;
use crate::bindings::errors::ToPyErr;
use crate::bindings::hints::not_picklable;
use crate::bindings::id_text::id_text;
use crate::bindings::limit::{Limit, parsed};
use crate::bindings::limits::Limits;
use crate::bindings::reservation::Reservation;
use crate::bindings::stats;
use crate::bindings::transaction::CallArgs;
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::limiter::{self, Transaction};
use crate::store::any::open;
use crate::store::url::{self, StoreUrl};
use crate::sync::AtomicPtr;

/// Limits, a store and a clock: what decides.
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Limiter {
    handle: Arc<LimiterHandle>,
    /// The limits that were asked for, by name. Only ever added to.
    bound: Py<PyDict>,
    /// The one of them that was asked for last, for `fastcall.rs`.
    pub(crate) last: AtomicPtr<ffi::PyObject>,
    clock: Py<PyAny>,
    url: String,
}

impl Limiter {
    /// The limit of this name, made at the first call.
    #[inline]
    pub(crate) fn bound<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, BoundLimit>> {
        let py = name.py();
        let Ok(name) = name.cast::<PyString>() else {
            return Err(arguments::wrong_type("name", "a str", name));
        };
        match self.bound.bind(py).get_item(name)? {
            Some(found) => found.cast_into::<BoundLimit>().map_err(PyErr::from),
            None => self.bind(name),
        }
    }

    #[cold]
    fn bind<'py>(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, BoundLimit>> {
        let bound = Bound::new(name.py(), BoundLimit::new(&self.handle, name)?)?;
        // Only names of limits get here, so the dictionary ends; a name that a reload drops raises
        // when it is used.
        // Never in place of another: `fastcall.rs` may point at what another thread put there meanwhile.
        let kept = self.bound.bind(name.py()).call_method1("setdefault", (name, bound))?;
        kept.cast_into::<BoundLimit>().map_err(PyErr::from)
    }

    fn call_all<'py>(
        &self,
        verb: Verb,
        transactions: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = transactions.py();
        self.handle.refuse_closed()?;
        let given = transactions
            .try_iter()?
            .map(|given| CallArgs::of(&given?))
            .collect::<PyResult<Vec<_>>>()?;
        let converted = given
            .iter()
            .map(|one| {
                let cost = one.cost.as_ref();
                Ok(Converted {
                    bound: self.bound(one.name.as_any())?,
                    id: id_text(&one.id)?,
                    cost: cost.map_or(Ok(1), |cost| arguments::saturating("cost", cost))?,
                    factor: one.factor.as_ref().map_or(Ok(None), arguments::factor)?,
                })
            })
            .collect::<PyResult<Vec<_>>>()?;
        // Only now, and once: converting ids runs Python code, which may reload or close.
        self.handle.refuse_closed()?;
        let active = self.handle.core.snapshot();
        let limits = converted.iter().map(|one| one.bound.get().snapshot_of(py, &active));
        let limits = limits.collect::<PyResult<Vec<_>>>()?;
        let transactions: Vec<_> = converted
            .iter()
            .zip(&given)
            .zip(&limits)
            .map(|((one, given), (limit, _))| Transaction {
                limit,
                id: &one.id,
                cost: one.cost,
                kind: given.kind,
                factor: one.factor.as_ref(),
            })
            .collect();
        let decided = self.handle.run(py, |core| core.decide_all(verb, &transactions));
        let decided = decided.map_err(|error| error.to_py_err())?;
        if verb == Verb::Refund {
            for one in &transactions {
                self.handle.wake_after_refund(py, one.limit, one.id)?;
            }
        }
        let parts = decided.parts.into_iter().zip(&converted).zip(&given).zip(limits).map(
            |(((decided, one), given), (_, entry))| {
                DecisionData::single(decided, one.cost, &given.id, entry)
            },
        );
        over_several(py, decided.decision, decided.binding, parts.collect())
    }
}

/// A transaction's arguments in the core's types.
struct Converted<'a, 'py> {
    bound: Bound<'py, BoundLimit>,
    id: Cow<'a, str>,
    cost: i64,
    factor: Option<Factor>,
}

// `spend` and `check` are attached by `fastcall.rs`.
#[pymethods]
impl Limiter {
    #[new]
    #[pyo3(signature = (limits, store = url::DEFAULT, clock = None))]
    #[pyo3(text_signature = "(limits, store='memory://', clock=None)")]
    fn new(
        limits: &Bound<'_, PyAny>,
        store: &str,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limiter> {
        let py = limits.py();
        // A child that is forked while another thread imports a module waits for it for ever, so
        // nothing is left to be imported by a call.
        for module in ["penstock.headers", "penstock.wait_queue"] {
            py.import(module)?;
        }
        let url: StoreUrl = store.parse().map_err(|error: url::UrlError| error.to_py_err())?;
        let clock = match clock {
            Some(clock) => clock.clone(),
            None => default_clock(py)?.into_bound(py),
        };
        let opened = open(&url, AnyClock::of(&clock)?);
        let mut core =
            limiter::Limiter::new(Limits::registry_of(limits)?, opened.store, opened.clock);
        // A call that never waits keeps the interpreter's lock, where there is one, to its end.
        if cfg!(not(Py_GIL_DISABLED)) && !core.store().may_wait() {
            core = core.assume_serialized();
        }
        Ok(Limiter {
            handle: Arc::new(LimiterHandle::new(core, &clock)),
            bound: PyDict::new(py).unbind(),
            last: AtomicPtr::new(null_mut()),
            clock: clock.unbind(),
            url: store.to_owned(),
        })
    }

    /// The limits in force, those of `define` included.
    #[getter]
    fn limits(&self) -> Limits {
        Limits::from(self.handle.core.snapshot().registry().clone())
    }

    /// The clock that decides.
    #[getter]
    fn clock(&self, py: Python<'_>) -> Py<PyAny> {
        self.clock.clone_ref(py)
    }

    /// The URL of the store.
    #[getter]
    fn store(&self) -> &str {
        &self.url
    }

    /// Whether other processes count in the same buckets.
    #[getter]
    fn is_shared(&self) -> bool {
        self.handle.core.store().is_shared()
    }

    /// Give `cost` tokens back to the bucket of `id` under the limit `name`.
    ///
    /// Never above full; `allowed` says whether anything was given back. Raises as `spend` does.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    /// >>> limiter.spend("Orders", "ada").remaining, limiter.refund("Orders", "ada").remaining
    /// (1, 2)
    #[pyo3(signature = (name, id, cost = Argument::Missing, factor = None))]
    #[pyo3(text_signature = "($self, name, id, cost=1, factor=None)")]
    fn refund<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Decision>> {
        self.bound(name)?.get().refund(id, cost, factor)
    }

    /// Take `estimate` tokens before the cost is known; settle it once it is.
    ///
    /// A denied reservation has taken nothing. What was taken is given back, or added to, under the
    /// limit as it was when reserved, also after a `reload`.
    ///
    /// Args:
    ///     name: A limit from the loaded limits.
    ///     id: Who is asking.
    ///     estimate: Tokens, 0 to what the limit can ever allow.
    ///     factor: As in `spend`.
    ///
    /// Raises as `spend` does.
    ///
    /// >>> clock = penstock.ManualClock()
    /// >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
    /// >>> reservation = limiter.reserve("Tokens", "ada", 600)
    /// >>> bool(reservation), reservation.settle(450).remaining
    /// (True, 550)
    #[pyo3(signature = (name, id, estimate = Argument::Missing, *, factor = None))]
    #[pyo3(text_signature = "($self, name, id, estimate=1, *, factor=None)")]
    fn reserve<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        estimate: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Reservation>> {
        self.bound(name)?.get().reserve(id, estimate, factor)
    }

    /// Wait until the bucket of `id` under `name` has `cost` tokens, and take them.
    ///
    /// Who came first is served first. Other threads go on meanwhile; in a coroutine use
    /// `AsyncLimiter.acquire`. On a `ManualClock` it waits until another thread moves the clock.
    ///
    /// Args:
    ///     name: A limit from the loaded limits.
    ///     id: Who is asking.
    ///     cost: Tokens, 0 to what the limit can ever allow.
    ///     timeout: The longest wait that will do, in seconds or as a `timedelta`; 0 never waits,
    ///         `None` waits as long as it takes.
    ///
    /// Returns:
    ///     The decision, which is allowed, with the bucket's numbers as they stand then.
    ///
    /// Raises:
    ///     RateLimited: The wait would be longer than the timeout: raised at once, or as soon as
    ///         that is known. Its decision's `retry_after` is the wait.
    ///     ValueError: `timeout` is negative or no number.
    ///
    /// Raises as `spend` does besides; nothing has then been taken.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    /// >>> limiter.acquire("Orders", "ada").remaining, limiter.acquire("Orders", "ada").remaining
    /// (1, 0)
    /// >>> try:
    /// ...     limiter.acquire("Orders", "ada", timeout=10)
    /// ... except penstock.RateLimited as error:
    /// ...     error.decision.retry_after
    /// 30.0
    #[pyo3(signature = (name, id, cost = Argument::Missing, timeout = None))]
    #[pyo3(text_signature = "($self, name, id, cost=1, timeout=None)")]
    fn acquire<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        BoundLimit::acquire(&self.bound(name)?, id, cost, timeout)
    }

    /// Forget the bucket of `id` under the limit `name`; whether there was one.
    fn reset(&self, name: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.bound(name)?.get().reset(id)
    }

    /// Return the bucket of `id` as it is now, without taking anything.
    ///
    /// The same as a `check` of cost 0.
    fn peek<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        self.bound(name)?.get().peek(id)
    }

    /// Clear several buckets, and return how many of them existed.
    fn reset_all(&self, buckets: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buckets = buckets.try_iter()?.map(|bucket| {
            let bucket = bucket?;
            let Ok((name, id)) = bucket.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
                return Err(arguments::wrong_type("bucket", "a tuple (name, id)", &bucket));
            };
            // Every name and id is checked before the first bucket is cleared.
            let bound = self.bound(&name)?;
            bound.get().check_id(&id)?;
            Ok((bound, id))
        });
        let buckets = buckets.collect::<PyResult<Vec<_>>>()?;
        buckets
            .iter()
            .try_fold(0, |count, (bound, id)| Ok(count + usize::from(bound.get().reset(id)?)))
    }

    /// Take from several buckets, all or nothing, as one decision.
    ///
    /// The strictest decision answers: denied before allowed, then the longer wait, then the fewer
    /// left.
    ///
    /// Raises:
    ///     TransactionError: One bucket is named twice.
    ///
    /// Each transaction raises as in `spend`; nothing has then been taken.
    ///
    /// >>> limiter = penstock.Limiter({"User": "9/minute", "Address": "1/minute"})
    /// >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).allowed
    /// True
    /// >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).binding
    /// 'Address'
    fn spend_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Spend, transactions)
    }

    /// Ask whether `spend_all` would be allowed, without taking anything.
    fn check_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Check, transactions)
    }

    /// Give back to several buckets, each on its own.
    fn refund_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Refund, transactions)
    }

    /// Decide for many ids under the limit `name`, each on its own, at one instant.
    ///
    /// Args:
    ///     name: A limit from the loaded limits.
    ///     ids: Who is asking.
    ///     costs: One cost for all, one for each id, or `None` for 1.
    ///
    /// Raises:
    ///     ValueError: There are not as many costs as ids.
    ///
    /// Each id raises as in `spend`; nothing has then been taken.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    /// >>> limiter.spend_each("Orders", ["ada", "ada", "ada", "grace"]).remaining.tolist()
    /// [1, 0, 0, 1]
    #[pyo3(signature = (name, ids, costs = None))]
    fn spend_each<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decisions> {
        self.bound(name)?.get().spend_each(ids, costs)
    }

    /// Give one limit with the same verbs less the name: the fast path.
    ///
    /// It follows a `reload`; if the name is then gone, its calls raise `UnknownLimit`.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has this name.
    fn limit<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, BoundLimit>> {
        let bound = self.bound(name)?;
        bound.get().snapshot(name.py())?;
        Ok(bound)
    }

    /// Add a limit beside the loaded ones; it survives `reload`.
    ///
    /// Raises:
    ///     ConfigError: The name is taken, or can be no name.
    ///     LimitError: The text says no limit.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"})
    /// >>> limiter.define("Searches", "30/minute").name
    /// 'Searches'
    fn define<'py>(
        &self,
        name: &Bound<'py, PyString>,
        limit: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, BoundLimit>> {
        self.handle.refuse_closed()?;
        let limit = if let Ok(limit) = limit.cast::<Limit>() {
            limit.get().limit
        } else if let Ok(text) = limit.cast::<PyString>() {
            parsed(limit.py(), text.to_str()?)?
        } else {
            return Err(arguments::wrong_type(
                "limit",
                "a Limit or a text such as '100/minute'",
                limit,
            ));
        };
        self.handle.core.define(name.to_str()?, limit).map_err(|error| error.to_py_err())?;
        self.bound(name.as_any())
    }

    /// Replace the limits in one step; buckets stay.
    ///
    /// Raises:
    ///     ConfigError: The limits cannot be used; those in force are left alone.
    fn reload(&self, limits: &Bound<'_, PyAny>) -> PyResult<()> {
        self.handle.refuse_closed()?;
        let registry = Limits::registry_of(limits)?;
        self.handle.core.reload(registry).map_err(|error| error.to_py_err())?;
        self.handle.wake_after_reload(limits.py())
    }

    /// Give the store's figures: buckets, slots, bytes, what was forgotten and evicted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.handle.refuse_closed()?;
        let stats = self.handle.run(py, |core| core.stats()).map_err(|error| error.to_py_err())?;
        let figures = PyDict::new(py);
        figures.set_item("store", &self.url)?;
        figures.set_item("buckets", stats.buckets)?;
        figures.set_item("slots", stats.slots)?;
        figures.set_item("bytes", stats.bytes)?;
        figures.set_item("forgotten", stats.forgotten)?;
        figures.set_item("evicted", stats.evicted)?;
        Ok(figures)
    }

    /// Give what was decided under each limit since the limiter was made.
    ///
    /// By limit name; a limit that `reload` has dropped stays, so no number ever goes down. Only
    /// answers are counted: a call that raises is none. In a call about several limits each counts
    /// its own decision. A closed limiter still tells what it has counted.
    ///
    /// `timed` are the times of about 1 call in 256, of those about one bucket (`spend`, `check`,
    /// `refund`) and of those about several limits; `spend_each` is not timed. They are real time,
    /// whatever the clock.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    /// >>> for _ in range(3):
    /// ...     decision = limiter.spend("Orders", "ada")
    /// >>> limiter.counts()["Orders"]["spends"]
    /// {'allowed': 2, 'denied': 1, 'shadow_denied': 0}
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (name, counted) in self.handle.core.counts() {
            counts.set_item(name.as_str(), stats::counts(py, &counted)?)?;
        }
        Ok(counts)
    }

    /// Give the buckets that are denied most, most denied first.
    ///
    /// Each limit watches 64 ids, so a count may be too high, by no more than `error` and never by
    /// more than 1/64 of the limit's denials; an id with more than 1/64 of them is always there.
    /// Beyond 1024 denials in one thread about 1 in 16 is noted, as 16, which adds chance to that;
    /// a denial that finds the list in use is not noted. Spends, checks, and what a shadow limit
    /// would have denied all count. Ids are shown up to 128 bytes.
    ///
    /// Args:
    ///     name: One limit; `None` for all.
    ///     n: At most so many.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has this name.
    ///     ValueError: `n` is below 0.
    ///
    /// >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    /// >>> for _ in range(5):
    /// ...     decision = limiter.spend("Orders", "ada")
    /// >>> limiter.top_denied()
    /// [{'bucket_key': 'Orders:ada', 'name': 'Orders', 'id': 'ada', 'denied': 3, 'error': 0}]
    #[pyo3(signature = (name = None, n = Argument::Missing), text_signature = "($self, name=None, n=10)")]
    fn top_denied<'py>(
        &self,
        py: Python<'py>,
        name: Option<&Bound<'py, PyString>>,
        n: Argument<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let n = n.given().map_or(Ok(10), |n| arguments::saturating("n", n))?;
        let n = usize::try_from(n)
            .map_err(|_| PyValueError::new_err(format!("n must be at least 0, found {n}")))?;
        let name = name.map(|name| name.to_str()).transpose()?;
        let top_denied = self.handle.core.top_denied(name, n).map_err(|error| error.to_py_err())?;
        stats::top_denied(py, &top_denied)
    }

    /// Let go of the store; later calls raise `StoreError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.handle.refuse_closed()?;
        let stats = self.handle.run(py, |core| core.stats()).map_err(|error| error.to_py_err())?;
        match stats.buckets {
            Some(buckets) => Ok(buckets as usize),
            None => Err(PyTypeError::new_err("this store cannot count its buckets")),
        }
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __exit__(
        &self,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        self.handle.close(exc.py())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_picklable(
            "Limiter",
            "pickle its `limits`, and make a Limiter from them in the other process",
        ))
    }

    fn __repr__(&self) -> String {
        let limits = self.handle.core.snapshot().registry().entries().len();
        format!("<Limiter of {limits} limits at {}>", self.url)
    }
}
