//! The class `Limiter`.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeWarning, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::bindings::arguments::{self, Argument};
use crate::bindings::bound_limit::BoundLimit;
use crate::bindings::clock::{SystemClock, clock_of, default_clock};
use crate::bindings::decision::{Decision, DecisionPart, several};
use crate::bindings::errors::not_picklable;
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::limit::limit_or_text;
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::limits::Limits;
use crate::bindings::reservation::Reservation;
use crate::bindings::stats;
use crate::bindings::transaction::CallArgs;
use crate::clock::AnyClock;
use crate::engine::operation::Verb;
use crate::limiter::Transaction;
use crate::store::Store;
use crate::store::any::{Opened, open};
use crate::store::url::{self, StoreUrl};
use crate::store::url_parts;
use crate::sync::AtomicPtr;

/// Rate limiter with its limits, store and clock.
///
/// It can be shared between threads. A `with` block closes it at the end.
///
/// Args:
///     limits: `Limits`, the path of a limits file, or a dict of names to limits or rate texts.
///     store: URL of the store, such as `shm://myapp` or `redis://localhost`.
///     clock: Time source; the system clock by default.
///
/// Raises:
///     ConfigError: The limits or the URL are invalid.
///     LimitError: A rate text is invalid.
///
/// Examples:
///     >>> limiter = penstock.Limiter({"Orders": "100/minute"})
///     >>> limiter.spend("Orders", "ada").allowed
///     True
#[pyclass(frozen, weakref, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Limiter {
    handle: Arc<LimiterHandle>,
    /// The bound limits that have been used, by name. Entries are never removed or replaced.
    bound: Py<PyDict>,
    /// The bound limit that was used last, for `fastcall.rs`.
    pub(crate) last: AtomicPtr<ffi::PyObject>,
    clock: Py<PyAny>,
}

impl Limiter {
    /// Returns the bound limit of this name, created on first use.
    #[inline]
    pub(crate) fn bound<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, BoundLimit>> {
        let py = name.py();
        let name = arguments::string("name", name)?;
        match self.bound.bind(py).get_item(name)? {
            Some(found) => found.cast_into::<BoundLimit>().map_err(PyErr::from),
            None => self.bind(name),
        }
    }

    /// Creates a limiter with an open store. `clock` is the Python object of the clock with which the
    /// store was opened.
    pub(crate) fn with_store(
        limits: &Bound<'_, PyAny>,
        opened: Opened,
        url: &str,
        clock: Bound<'_, PyAny>,
    ) -> PyResult<Limiter> {
        let py = limits.py();
        let clock = match &opened.clock {
            // A shared table has replaced it.
            AnyClock::System(clock) => Bound::new(py, SystemClock { clock: *clock })?.into_any(),
            AnyClock::Manual(_) => clock,
        };
        let registry = Limits::registry_or_file(limits)?;
        let core = crate::limiter::Limiter::new(registry, opened.store, opened.clock);
        Ok(Limiter {
            handle: Arc::new(LimiterHandle::new(core, &clock, url_parts::without_password(url))),
            bound: PyDict::new(py).unbind(),
            last: AtomicPtr::new(null_mut()),
            clock: clock.unbind(),
        })
    }

    /// Returns the limiter of the core.
    pub(crate) fn core(&self) -> &AnyLimiter {
        &self.handle.core
    }

    #[cold]
    fn bind<'py>(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, BoundLimit>> {
        arguments::limit_name(name.as_any())?;
        let bound = Bound::new(name.py(), BoundLimit::new(&self.handle, name)?)?;
        // The dictionary cannot grow without bound, because only names of existing limits get here.
        // `setdefault`, because another thread may have added the name and `fastcall.rs` may point at
        // its entry, which must not be replaced.
        let stored = self.bound.bind(name.py()).call_method1("setdefault", (name, bound))?;
        stored.cast_into::<BoundLimit>().map_err(PyErr::from)
    }

    fn call_all<'py>(
        &self,
        verb: Verb,
        transactions: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        let py = transactions.py();
        let (transactions, parts) = self.transactions(transactions)?;
        let answered = self.handle.run(py, |core| core.answer_all(verb, &transactions))?;
        if verb == Verb::Refund {
            for transaction in &transactions {
                self.handle.wake_after_refund(py, &transaction.limit, &transaction.id)?;
            }
        }
        several(py, verb, answered, parts)
    }

    /// Converts transactions. All use the limits that are active after the last conversion.
    pub(crate) fn transactions(
        &self,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<Transaction>, Vec<DecisionPart>)> {
        let py = given.py();
        self.handle.check_open()?;
        let converted = given
            .try_iter()?
            .map(|transaction| {
                let CallArgs { name, id, cost, kind, adjustment } = CallArgs::of(&transaction?)?;
                let bound = self.bound(name.as_any())?;
                let text = id_text(&id)?;
                let cost = cost.map_or(Ok(1), |cost| arguments::saturating("cost", &cost))?;
                let shown = kept_id(&id, &text).unbind();
                Ok((bound, shown, text.into_owned(), cost, kind, adjustment))
            })
            .collect::<PyResult<Vec<_>>>()?;
        // After all conversions, which may run Python code that reloads or closes.
        self.handle.check_open()?;
        let active = self.handle.core.snapshot();
        let transactions =
            converted.into_iter().map(|(bound, shown, id, cost, kind, adjustment)| {
                let (limit, entry) = bound.get().snapshot_of(py, &active)?;
                Ok((Transaction { limit, id, cost, kind, adjustment }, (shown, cost, entry)))
            });
        transactions.collect()
    }

    /// Returns the handle that this object shares with its bound limits.
    pub(crate) fn handle(&self) -> &Arc<LimiterHandle> {
        &self.handle
    }
}

// `fastcall.rs` adds `spend` and `check`.
#[pymethods]
impl Limiter {
    #[new]
    #[pyo3(signature = (limits, store = Argument::Missing, clock = None))]
    #[pyo3(text_signature = "(limits, store='memory://', clock=None)")]
    fn new(
        limits: &Bound<'_, PyAny>,
        store: Argument<'_>,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limiter> {
        let py = limits.py();
        let store = match store.given() {
            None => url::DEFAULT,
            Some(store) => {
                arguments::utf8("ConfigError", "store", arguments::string("store", store)?)?
            }
        };
        // Imported now, so that no call imports a module: a child process that is forked while another
        // thread imports a module would wait for that import forever.
        for module in [
            "logging",
            "penstock.decisions",
            "penstock.headers",
            "penstock.leases",
            "penstock.wait_queue",
        ] {
            py.import(module)?;
        }
        let url: StoreUrl = store.parse()?;
        let clock = match clock {
            Some(clock) => clock.clone(),
            None => default_clock(py)?.into_bound(py),
        };
        let core_clock = clock_of(&clock)?;
        // Opening may wait for a server or a lock.
        let opened = py.detach(|| open(&url, core_clock))?;
        let policy = py.detach(|| opened.store.eviction_policy());
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            let message = format!(
                "the server of {} evicts buckets when its memory is full (maxmemory-policy is \
                 {policy}), and their clients then start with full buckets; use noeviction",
                url_parts::without_password(store)
            );
            let message = CString::new(message).unwrap_or_default();
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1)?;
        }
        Limiter::with_store(limits, opened, store, clock)
    }

    /// The active limits, including those added with `define`.
    #[getter]
    fn limits(&self) -> Limits {
        Limits::from(self.handle.core.snapshot().registry().clone())
    }

    /// The clock of the limiter.
    #[getter]
    fn clock(&self, py: Python<'_>) -> Py<PyAny> {
        self.clock.clone_ref(py)
    }

    /// The URL of the store, without its password.
    #[getter(store)]
    pub(crate) fn url(&self) -> &str {
        &self.handle.url
    }

    /// Whether the store's buckets can be shared with other processes.
    #[getter]
    fn is_shared(&self) -> bool {
        self.handle.core.store().is_shared()
    }

    /// Whether the store is a remote server, so that a call waits for a reply.
    #[getter]
    fn is_remote(&self) -> bool {
        self.handle.core.store().remote().is_some()
    }

    /// Whether a call may wait for a server or for another process.
    #[getter]
    fn may_wait(&self) -> bool {
        self.handle.core.store().may_wait()
    }

    /// Return `cost` tokens to the bucket of `id` under the limit `name`.
    ///
    /// A refund never fills a bucket beyond full. Raises as `spend` does.
    ///
    /// Returns:
    ///     The decision; it is allowed if tokens were returned.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.spend("Orders", "ada").remaining, limiter.refund("Orders", "ada").remaining
    ///     (1, 2)
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

    /// Take `estimate` tokens before the cost is known, or slots for requests in flight.
    ///
    /// Tokens are settled later; slots are given back at the end of the reservation. A denied
    /// reservation takes nothing. A reservation is settled under the limit that was active when it
    /// was made, even after a `reload`. Raises as `spend` does.
    ///
    /// With a `timeout`, the call waits in order of arrival: for tokens as `acquire` does, and for
    /// slots until one is returned. When that happens is unknown, so an error is raised at the end
    /// of the timeout.
    ///
    /// Args:
    ///     name: Name of a loaded limit.
    ///     id: The client.
    ///     estimate: Tokens, from 0 to the limit's `max_cost`.
    ///     factor: As in `spend`.
    ///     keep: As in `spend`. Settling may take these tokens.
    ///     timeout: Longest acceptable wait: a text such as `"5s"`, seconds, or a `timedelta`; 0
    ///         never waits. `None` never waits either, and returns a denied reservation in place of
    ///         an error.
    ///
    /// Raises:
    ///     RateLimited: Nothing could be reserved within the timeout.
    ///     TypeError: `factor` is given together with `timeout`.
    ///
    /// Examples:
    ///     >>> clock = penstock.ManualClock()
    ///     >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
    ///     >>> reservation = limiter.reserve("Tokens", "ada", 600)
    ///     >>> bool(reservation), reservation.settle(450).remaining
    ///     (True, 550)
    #[pyo3(signature = (
        name, id, estimate = Argument::Missing, *, factor = None, keep = None, timeout = None
    ))]
    #[pyo3(text_signature = "($self, name, id, estimate=1, *, factor=None, keep=0, timeout=None)")]
    fn reserve<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        estimate: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Reservation>> {
        BoundLimit::reserve(&self.bound(name)?, id, estimate, factor, keep, timeout)
    }

    /// Take tokens and slots of several limits in one decision: all of them or none.
    ///
    /// The end of the reservation is one call, too: slots are given back, and what was settled is
    /// charged. Tokens that were not settled stay spent, or are refunded if the body raises.
    ///
    /// Args:
    ///     transactions: As for `spend_all`.
    ///
    /// Raises:
    ///     TransactionError: Two transactions have the same bucket.
    ///     Error: As `reserve` raises. Nothing is taken then.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter(
    ///     ...     {"Tokens": "1000/minute", "Calls": "5 in flight"}, clock=penstock.ManualClock()
    ///     ... )
    ///     >>> with limiter.reserve_all([("Tokens", "ada", 600), ("Calls", "ada")]) as reservation:
    ///     ...     reservation.settle("Tokens", 450)
    ///     >>> limiter.peek("Tokens", "ada").remaining, limiter.peek("Calls", "ada").remaining
    ///     (550, 5)
    fn reserve_all<'py>(
        &self,
        transactions: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let py = transactions.py();
        let (transactions, parts) = self.transactions(transactions)?;
        let answered = self.handle.run(py, |core| core.answer_all(Verb::Reserve, &transactions))?;
        Reservation::of_several(py, &self.handle, transactions, parts, answered)
    }

    /// Wait until the bucket of `id` under `name` has `cost` tokens, and take them.
    ///
    /// Waiters are served in order of arrival. Other threads can run while this one waits; in a
    /// coroutine, use `AsyncLimiter.acquire`. With a `ManualClock`, the call waits until another
    /// thread moves the clock.
    ///
    /// Waiters that keep tokens come after those that keep fewer, and take none in advance: other
    /// calls may take the tokens that they wait for.
    ///
    /// Args:
    ///     name: Name of a loaded limit.
    ///     id: The client.
    ///     cost: Tokens, from 0 to the limit's `max_cost`.
    ///     timeout: Longest acceptable wait: a text such as `"5s"`, seconds, or a `timedelta`; 0
    ///         never waits, `None` waits as long as necessary.
    ///     keep: As in `spend`.
    ///
    /// Returns:
    ///     The allowed decision, with the numbers of the bucket at that time.
    ///
    /// Raises:
    ///     RateLimited: The wait would exceed the timeout. Raised as soon as this is known, usually
    ///         immediately. The `retry_after` of its decision is the wait.
    ///     ValueError: `timeout` is negative or not a number.
    ///     Error: As `spend` raises. No tokens are taken then.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> [limiter.acquire("Orders", "ada").remaining for _ in range(2)]
    ///     [1, 0]
    ///     >>> try:
    ///     ...     limiter.acquire("Orders", "ada", timeout=10)
    ///     ... except penstock.RateLimited as error:
    ///     ...     error.decision.retry_after
    ///     30.0
    #[pyo3(signature = (name, id, cost = Argument::Missing, timeout = None, *, keep = None))]
    #[pyo3(text_signature = "($self, name, id, cost=1, timeout=None, *, keep=0)")]
    fn acquire<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        BoundLimit::acquire(&self.bound(name)?, id, cost, timeout, keep)
    }

    /// Clear the bucket of `id` under the limit `name`, and return whether it existed.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has this name.
    ///     InvalidId: The id does not have the limit's id format.
    ///     StoreError: The store failed, or the limiter is closed.
    fn reset(&self, name: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.bound(name)?.get().reset(id)
    }

    /// Return the bucket of `id` as it is now, without taking tokens.
    ///
    /// The same as `check` with a cost of 0. Raises as `spend` does.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.peek("Orders", "ada").remaining
    ///     2
    fn peek<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Decision>> {
        self.bound(name)?.get().peek(id)
    }

    /// Clear several buckets, and return how many of them existed.
    ///
    /// All names and ids are checked before the first bucket is cleared.
    ///
    /// Args:
    ///     buckets: Tuples of a limit name and an id. `None` means all buckets of the store,
    ///         including those of other processes that share it.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has one of the names.
    ///     InvalidId: An id does not have its limit's id format.
    ///     StoreError: The store failed, or the limiter is closed.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> decision = limiter.spend("Orders", "ada")
    ///     >>> limiter.reset_all([("Orders", "ada"), ("Orders", "grace")])
    ///     1
    ///     >>> limiter.reset_all()
    ///     0
    #[pyo3(signature = (buckets = None))]
    fn reset_all(&self, py: Python<'_>, buckets: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let Some(buckets) = buckets else {
            let store = self.core().store();
            // A store in memory needs the GIL.
            let cleared =
                if store.may_wait() { py.detach(|| store.clear()) } else { store.clear() };
            return Ok(cleared? as usize);
        };
        let buckets = buckets.try_iter()?.map(|bucket| {
            let bucket = bucket?;
            let Ok((name, id)) = bucket.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
                return Err(arguments::wrong_type("bucket", "a tuple (name, id)", &bucket));
            };
            let bound = self.bound(&name)?;
            bound.get().check_id(&id)?;
            Ok((bound, id))
        });
        let buckets = buckets.collect::<PyResult<Vec<_>>>()?;
        buckets
            .iter()
            .try_fold(0, |count, (bound, id)| Ok(count + usize::from(bound.get().reset(id)?)))
    }

    /// Take tokens from several buckets in one decision: from all of them or from none.
    ///
    /// The result has the numbers of the strictest limit: denied before allowed, then the longer
    /// wait, then fewer remaining tokens. Its `parts` are the decisions of all transactions.
    ///
    /// Args:
    ///     transactions: `Transaction` objects, or tuples of a name, an id, a cost and a kind.
    ///
    /// Raises:
    ///     TransactionError: Two transactions have the same bucket.
    ///     Error: As `spend` raises for one transaction. No tokens are taken then.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"User": "9/minute", "Address": "1/minute"})
    ///     >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).allowed
    ///     True
    ///     >>> limiter.spend_all([("User", "ada"), ("Address", "192.0.2.1")]).binding
    ///     'Address'
    fn spend_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Spend, transactions)
    }

    /// Return the decision that `spend_all` would return, without taking tokens.
    fn check_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Check, transactions)
    }

    /// Return tokens to several buckets, as independent refunds. Raises as `spend_all` does.
    fn refund_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Refund, transactions)
    }

    /// Take tokens for many ids under one limit in one call, as independent decisions.
    ///
    /// All are decided at the same instant, in order.
    ///
    /// Args:
    ///     name: Name of a loaded limit.
    ///     ids: The clients.
    ///     costs: One cost for all, one per id, or `None` for 1 each.
    ///     keep: As in `spend`, for each id.
    ///
    /// Raises:
    ///     ValueError: `ids` and `costs` differ in length.
    ///     Error: As `spend` raises for one id, with a note that gives its position. If an id or a
    ///         cost is invalid, no tokens are taken.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> limiter.spend_each("Orders", ["ada", "ada", "ada", "grace"]).remaining.tolist()
    ///     [1, 0, 0, 1]
    #[pyo3(signature = (name, ids, costs = None, *, keep = None))]
    #[pyo3(text_signature = "($self, name, ids, costs=None, *, keep=0)")]
    fn spend_each<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.bound(name)?.get().spend_each(ids, costs, keep)
    }

    /// Return one limit, with the same methods without the name: the fast path.
    ///
    /// A `reload` applies to it. If the limit no longer exists, its methods raise `UnknownLimit`.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has this name.
    fn limit<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, BoundLimit>> {
        let bound = self.bound(name)?;
        bound.get().snapshot(name.py())?;
        Ok(bound)
    }

    /// Add a limit, which is kept by `reload`.
    ///
    /// Raises:
    ///     ConfigError: The name is taken or invalid.
    ///     LimitError: The rate text is invalid.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"})
    ///     >>> limiter.define("Searches", "30/minute").name
    ///     'Searches'
    fn define<'py>(
        &self,
        name: &Bound<'py, PyString>,
        limit: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, BoundLimit>> {
        self.handle.check_open()?;
        let text = arguments::utf8("ConfigError", "name", name)?;
        let limit = limit_or_text("limit", limit, Some(text))?;
        self.handle.core.define(text, limit)?;
        self.bound(name.as_any())
    }

    /// Replace the limits atomically. Buckets keep their state, and defined limits are kept.
    ///
    /// Takes limits as the constructor does.
    ///
    /// Raises:
    ///     ConfigError: The limits are invalid, or a limit has the name of a different one that was
    ///         added with `define`. The active limits are then unchanged.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute", "Mails": "9/hour"})
    ///     >>> limiter.reload(limiter.limits | {"Orders": "3/minute"})
    ///     >>> limiter.limits["Orders"].count, limiter.limits["Mails"].count
    ///     (3, 9)
    fn reload(&self, limits: &Bound<'_, PyAny>) -> PyResult<()> {
        self.handle.check_open()?;
        let registry = Limits::registry_or_file(limits)?;
        self.handle.run(limits.py(), |core| core.reload(registry))?;
        self.handle.renew_after_reload(limits.py());
        self.handle.wake_after_reload(limits.py())
    }

    /// Return the statistics of the store.
    ///
    /// `store` is its URL. The other values are numbers, or `None` if the store does not count
    /// them. `buckets` is the number of buckets that are not full, `capacity` is `None` if the
    /// store can grow, and `forgotten` is the number of full buckets that were removed. For a
    /// bounded store without free space, `evicted` counts evicted buckets, `shared` calls that used
    /// the bucket shared by new ids, and `refused` refused calls. `recovered_locks` counts locks
    /// that the kernel released because a process was killed while it added a bucket to a shared
    /// table.
    ///
    /// For a server, `failing` is whether calls fail immediately because previous calls failed, and
    /// `failures` counts how often this state began. `denied_locally` counts calls denied without
    /// asking the server, and `healed` counts foreign values that were replaced by buckets.
    /// `calls` has the latencies of all calls to the server, by operation (`spend`, `check`,
    /// `refund`, `charge`, `several`, `reset` or `other`) and then by result (`answered`, `error`,
    /// `timeout`, `lost` or `unavailable`). These values are per process.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.handle.check_open()?;
        let stats = self.handle.run(py, |core| core.stats())?;
        let figures = PyDict::new(py);
        figures.set_item("store", self.url())?;
        stats::add_stats(&figures, &stats)?;
        #[cfg(feature = "redis")]
        if let Some(health) = self.handle.core.store().health() {
            figures.set_item("failing", health.is_failing)?;
            figures.set_item("failures", health.failures)?;
            figures.set_item("denied_locally", health.denied_locally)?;
            figures.set_item("healed", health.healed)?;
            figures.set_item("calls", stats::calls(py, &health.times)?)?;
        }
        Ok(figures)
    }

    /// Return the numbers of decisions by limit name since the limiter was created.
    ///
    /// Limits removed by `reload` are included, so no number ever decreases. Calls that raise are
    /// not counted. In a call about several limits, each limit counts its own decision. Also works
    /// on a closed limiter.
    ///
    /// Of a limit on requests in flight, `held` is how many slots this process holds, `expired` how
    /// often slots had expired when they were given back, and `renewed_late` when they were
    /// renewed.
    ///
    /// `timed` has the latencies, in real time, of about 1 in 256 calls of `spend`, `check` and
    /// `refund`, including calls about several limits; `spend_each` is not timed.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> for _ in range(3):
    ///     ...     decision = limiter.spend("Orders", "ada")
    ///     >>> limiter.counts()["Orders"]["spends"]
    ///     {'allowed': 2, 'denied': 1, 'shadow_denied': 0}
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        let held = self.handle.slots.held();
        for (name, limit_counts) in self.handle.core.counts() {
            let held = held.iter().find(|(other, _)| other == name.as_str());
            let figures = stats::counts(py, &limit_counts)?;
            figures.set_item("held", held.map_or(0, |&(_, held)| held))?;
            counts.set_item(name.as_str(), figures)?;
        }
        Ok(counts)
    }

    /// Return the buckets with the most denials, in descending order.
    ///
    /// Denials of `spend` and `check` count, including those of limits in shadow mode. Each limit
    /// tracks 64 ids. A count may be too high by at most `error`, which is at most 1/64 of the
    /// limit's denials, and an id with more than 1/64 of them is always listed. After the first
    /// 1,024 denials of a thread, about 1 in 16 is recorded, with a weight of 16. Ids are truncated
    /// to 128 bytes.
    ///
    /// Args:
    ///     name: One limit; `None` for all.
    ///     n: Maximum number of buckets.
    ///
    /// Raises:
    ///     UnknownLimit: No limit has this name.
    ///     ValueError: `n` is below 0.
    ///
    /// Examples:
    ///     >>> limiter = penstock.Limiter({"Orders": "2/minute"}, clock=penstock.ManualClock())
    ///     >>> for _ in range(5):
    ///     ...     decision = limiter.spend("Orders", "ada")
    ///     >>> limiter.top_denied()
    ///     [{'bucket_key': 'Orders:ada', 'name': 'Orders', 'id': 'ada', 'denied': 3, 'error': 0}]
    #[pyo3(signature = (name = None, n = Argument::Missing), text_signature = "($self, name=None, n=10)")]
    fn top_denied<'py>(
        &self,
        py: Python<'py>,
        name: Option<&Bound<'py, PyString>>,
        n: Argument<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let n = n.or_int("n", 10)?;
        let n = usize::try_from(n)
            .map_err(|_| PyValueError::new_err(format!("n must be at least 0, found {n}")))?;
        let name = name.map(|name| arguments::limit_name(name)).transpose()?;
        let top_denied = self.handle.core.top_denied(name, n)?;
        stats::top_denied(py, &top_denied)
    }

    /// Close the store; later calls raise `StoreError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.handle.check_open()?;
        let stats = self.handle.run(py, |core| core.stats())?;
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
        let noun = if limits == 1 { "limit" } else { "limits" };
        format!("<Limiter of {limits} {noun} at {}>", self.url())
    }
}

/// Add the limit `name` of `limits`, with its overrides, if the limiter has none of this name.
///
/// The next `reload` removes it. Returns whether it was added.
#[pyfunction]
pub(crate) fn restore_limit(
    limiter: &Bound<'_, Limiter>,
    name: &str,
    limits: &Bound<'_, Limits>,
) -> PyResult<bool> {
    let (py, handle) = (limiter.py(), limiter.get().handle());
    handle.check_open()?;
    let Some(entry) = limits.get().registry().entry(name) else { return Ok(false) };
    let is_added = handle.run(py, |core| core.restore(entry));
    if is_added {
        handle.wake_after_reload(py)?;
    }
    Ok(is_added)
}
