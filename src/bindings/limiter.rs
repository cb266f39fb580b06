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
use crate::bindings::clock::{ManualClock, SystemClock, clock_of, default_clock};
use crate::bindings::decision::{Decision, several};
use crate::bindings::errors::{not_picklable, raise};
use crate::bindings::limit::limit_or_text;
use crate::bindings::limiter_handle::{AnyLimiter, LimiterHandle};
use crate::bindings::limits::Limits;
use crate::bindings::reservation::Reservation;
use crate::bindings::stats;
use crate::bindings::waiter::{Waiter, kept, verb_of};
use crate::clock::AnyClock;
use crate::engine::verb::Verb;
use crate::limiter::BucketChange;
use crate::store::Store;
use crate::store::any::{self, Opened, open};
use crate::store::remote::RemoteStore;
use crate::store::url::{self, StoreUrl};
use crate::store::url_parts;
use crate::sync::AtomicPtr;

#[doc = doc!(Limiter)]
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
        let (transactions, parts) = self.transactions(verb, transactions)?;
        let answered = self.handle.run(py, |core| core.answer_all(verb, &transactions))?;
        if verb == Verb::Refund {
            for transaction in &transactions {
                let bucket = (&*transaction.limit, &*transaction.id);
                self.handle.wake_waiters(py, Some(bucket), BucketChange::Refund)?;
            }
        }
        several(py, &self.handle, answered, parts)
    }

    /// Creates a waiter for a call about several limits. Without `notify`, it is one of a thread.
    fn waiter(
        &self,
        verb: Verb,
        transactions: &Bound<'_, PyAny>,
        timeout_ns: Option<i64>,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Waiter> {
        // No charge is among them, whatever the verb.
        let (transactions, parts) = self.transactions(Verb::Reserve, transactions)?;
        let wants = transactions.into_iter().zip(parts).map(|(transaction, part)| {
            let adjustment = transaction.adjustment.as_ref();
            if adjustment.is_some_and(|adjustment| adjustment.factor.is_some()) {
                return Err(PyTypeError::new_err("factor cannot be combined with timeout"));
            }
            Ok((part, transaction.id.into(), transaction.kind, kept(adjustment)))
        });
        let wants = wants.collect::<PyResult<Vec<_>>>()?;
        Ok(Waiter::new(&self.handle, (verb, true), wants.into_iter(), timeout_ns, notify))
    }

    /// Returns the handle that this object shares with its bound limits.
    pub(crate) fn handle(&self) -> &Arc<LimiterHandle> {
        &self.handle
    }
}

// `fastcall.rs` adds the verbs of one bucket.
#[pymethods]
impl Limiter {
    #[new]
    #[pyo3(signature = (limits, store = Argument::Missing, clock = None, **others))]
    #[pyo3(text_signature = "(limits, store='memory://', clock=None)")]
    fn new(
        limits: &Bound<'_, PyAny>,
        store: Argument<'_>,
        clock: Option<&Bound<'_, PyAny>>,
        others: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Limiter> {
        let py = limits.py();
        if let Some((name, _)) = others.and_then(|others| others.iter().next()) {
            let is_store = ["storage", "backend", "redis", "url", "uri"]
                .iter()
                .any(|word| name.to_string().contains(word));
            let hint = if is_store { "use store=" } else { "it has limits, store and clock" };
            return Err(PyTypeError::new_err(format!("Limiter has no argument {name}; {hint}")));
        }
        let store = match store.given() {
            None => url::DEFAULT,
            Some(store) => {
                arguments::utf8("ConfigError", "store", arguments::string("store", store)?)?
            }
        };
        // Imported now, so that no call imports a module: a child process that is forked while another
        // thread imports a module would wait for that import forever.
        for module in ["logging", "penstock._decisions", "penstock.headers", "penstock._wait_queue"]
        {
            py.import(module)?;
        }
        let url: StoreUrl = store.parse()?;
        let clock = match clock {
            Some(clock) => clock.clone(),
            None => clock_for(&url, store, py)?,
        };
        let core_clock = clock_of(&clock)?;
        // Opening may wait for a server or a lock.
        let opened = py.detach(|| open(&url, core_clock))?;
        let server = opened.store.remote();
        let policy = py.detach(|| server.and_then(RemoteStore::eviction_policy));
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            let message = format!(
                "the server of {} evicts buckets when its memory is full (maxmemory-policy is \
                 {policy}), and their clients then start with full buckets; use noeviction",
                url_parts::without_password(store)
            );
            warn(py, message)?;
        }
        if let Some(file) = any::table_of_other_user(&url) {
            warn(
                py,
                format!(
                    "{} is a table of another user, which does not count together with that of this \
                     process; run all of them as one user, or remove a table that is not in use",
                    file.display()
                ),
            )?;
        }
        Limiter::with_store(limits, opened, store, clock)
    }

    #[doc = doc!(Limiter.limits)]
    #[getter]
    fn limits(&self) -> Limits {
        Limits::from(self.handle.core.snapshot().registry().clone())
    }

    #[doc = doc!(Limiter.clock)]
    #[getter]
    fn clock(&self, py: Python<'_>) -> Py<PyAny> {
        self.clock.clone_ref(py)
    }

    #[doc = doc!(Limiter.store)]
    #[getter(store)]
    pub(crate) fn url(&self) -> &str {
        &self.handle.url
    }

    #[doc = doc!(Limiter.is_shared)]
    #[getter]
    fn is_shared(&self) -> bool {
        self.handle.core.store().is_shared()
    }

    #[doc = doc!(Limiter.is_remote)]
    #[getter]
    fn is_remote(&self) -> bool {
        self.handle.core.store().remote().is_some()
    }

    #[doc = doc!(Limiter.may_wait)]
    #[getter]
    fn may_wait(&self) -> bool {
        self.handle.core.store().may_wait()
    }

    #[doc = doc!(Limiter.reserve_all)]
    #[pyo3(signature = (transactions, *, timeout = None))]
    fn reserve_all<'py>(
        &self,
        transactions: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let py = transactions.py();
        if let Some(timeout_ns) = arguments::timeout_ns(timeout)? {
            let waiter = self.waiter(Verb::Reserve, transactions, Some(timeout_ns), None)?;
            return Ok(waiter.wait(py)?.cast_into()?);
        }
        let (transactions, parts) = self.transactions(Verb::Reserve, transactions)?;
        let handle = &self.handle;
        let answered = handle.run(py, |core| core.answer_all(Verb::Reserve, &transactions))?;
        Reservation::of_several(py, handle, transactions, parts, answered)
    }

    #[doc = doc!(Limiter.acquire_all)]
    #[pyo3(signature = (transactions, *, timeout = None))]
    fn acquire_all<'py>(
        &self,
        transactions: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout_ns = arguments::timeout_ns(timeout)?;
        self.waiter(Verb::Spend, transactions, timeout_ns, None)?.wait(transactions.py())
    }

    #[doc = doc!(Limiter.reset_all)]
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

    #[doc = doc!(Limiter.spend_all)]
    fn spend_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Spend, transactions)
    }

    #[doc = doc!(Limiter.check_all)]
    fn check_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Check, transactions)
    }

    #[doc = doc!(Limiter.refund_all)]
    fn refund_all<'py>(&self, transactions: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Decision>> {
        self.call_all(Verb::Refund, transactions)
    }

    #[doc = doc!(Limiter.limit)]
    fn limit<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, BoundLimit>> {
        let bound = self.bound(name)?;
        bound.get().snapshot(name.py())?;
        Ok(bound)
    }

    #[doc = doc!(Limiter.define)]
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

    #[doc = doc!(Limiter.reload)]
    fn reload(&self, limits: &Bound<'_, PyAny>) -> PyResult<()> {
        self.handle.check_open()?;
        let registry = Limits::registry_or_file(limits)?;
        self.handle.run(limits.py(), |core| core.reload(registry))?;
        self.handle.renew_after_reload(limits.py());
        self.handle.wake_waiters(limits.py(), None, BucketChange::Reload)
    }

    #[doc = doc!(Limiter.stats)]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.handle.check_open()?;
        let stats = self.handle.run(py, |core| core.stats())?;
        let figures = PyDict::new(py);
        figures.set_item("store", self.url())?;
        stats::add_stats(&figures, &stats)?;
        #[cfg(feature = "redis")]
        if let Some(health) =
            self.handle.core.store().redis().map(crate::store::redis::RedisStore::health)
        {
            figures.set_item("failing", health.is_failing)?;
            figures.set_item("failures", health.failures)?;
            figures.set_item("denied_locally", health.denied_locally)?;
            figures.set_item("healed", health.healed)?;
            figures.set_item("calls", stats::calls(py, &health.times)?)?;
        }
        Ok(figures)
    }

    #[doc = doc!(Limiter.counts)]
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

    #[doc = doc!(Limiter.top_denied)]
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

    #[doc = doc!(Limiter.close)]
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

#[doc = doc!(restore_limit)]
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
        handle.wake_waiters(py, None, BucketChange::Reload)?;
    }
    Ok(is_added)
}

/// Issues a `RuntimeWarning` about the store of a limiter that is created.
fn warn(py: Python<'_>, message: String) -> PyResult<()> {
    let message = CString::new(message).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1)
}

/// Returns the clock of a limiter that is created without one.
fn clock_for<'py>(url: &StoreUrl, store: &str, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let clock = default_clock(py)?.into_bound(py);
    // A server that uses the same buckets would deny its clients until the time of the test.
    if url.is_shared() && clock.is_instance_of::<ManualClock>() {
        let message = format!(
            "{} is shared with other processes, which do not have the clock of this test; use \
             store='memory://' in tests, or pass clock=",
            url_parts::without_password(store)
        );
        return Err(raise("ConfigError", &message));
    }
    Ok(clock)
}

#[doc = doc!(waiter_of_several)]
#[pyfunction]
#[pyo3(signature = (limiter, transactions, timeout_ns, notify, *, reserves = false))]
pub(crate) fn waiter_of_several(
    limiter: &Bound<'_, Limiter>,
    transactions: &Bound<'_, PyAny>,
    timeout_ns: Option<i64>,
    notify: Py<PyAny>,
    reserves: bool,
) -> PyResult<Waiter> {
    limiter.get().waiter(verb_of(reserves), transactions, timeout_ns, Some(notify))
}

#[doc = doc!(open_existing)]
#[pyfunction]
pub(crate) fn open_existing(url: &str, limits: &Bound<'_, PyAny>) -> PyResult<Limiter> {
    let py = limits.py();
    let parsed: StoreUrl = url.parse()?;
    let clock = default_clock(py)?.into_bound(py);
    let opened = any::open_existing(&parsed, clock_of(&clock)?)?;
    Limiter::with_store(limits, opened, url, clock)
}
