//! The class `ExistingStore`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bindings::clock::clock_of;
use crate::bindings::default_clock::default_clock;
use crate::bindings::limiter::Limiter;
use crate::bindings::stats;
use crate::clock::Clock;
use crate::store::any::{OpenError, open_existing};
use crate::store::inspect::Inspect;
use crate::store::url::StoreUrl;

/// Store that already exists, for `penstock store`. It is opened but never created.
///
/// Args:
///     url: URL of the store. Options for new stores have no effect.
///     limits: The limits of `limiter`, a `Limits` or a dict.
///
/// Raises:
///     ConfigError: The URL or the limits are invalid.
///     StoreUnavailable: The store does not exist, or only its own process can reach it.
///
/// Examples:
///     >>> import tempfile
///     >>> from penstock._core import ExistingStore
///     >>> with tempfile.TemporaryDirectory() as folder:
///     ...     url = f"shm://{folder}/table"
///     ...     with penstock.Limiter({"Orders": "2/minute"}, store=url) as limiter:
///     ...         decision = limiter.spend("Orders", "ada")
///     ...     store = ExistingStore(url, {})
///     ...     store.inspect(10)["buckets"], store.clear()
///     (1, 1)
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct ExistingStore {
    limiter: Py<Limiter>,
}

#[pymethods]
impl ExistingStore {
    #[new]
    fn new(url: &str, limits: &Bound<'_, PyAny>) -> PyResult<ExistingStore> {
        let py = limits.py();
        let parsed: StoreUrl = url.parse()?;
        let clock = default_clock(py)?.into_bound(py);
        let opened = open_existing(&parsed, clock_of(&clock)?)?;
        let limiter = Py::new(py, Limiter::with_store(limits, opened, url, clock)?)?;
        Ok(ExistingStore { limiter })
    }

    /// A limiter with this store.
    #[getter]
    fn limiter(&self, py: Python<'_>) -> Py<Limiter> {
        self.limiter.clone_ref(py)
    }

    /// Return the store's statistics and its slowest buckets.
    ///
    /// Returns:
    ///     A dict with stable keys: those of `Limiter.stats`; `file`, the path; `age`, the seconds
    ///     since creation; `reset_within`, the numbers of buckets that are full again within a
    ///     second, a minute, an hour, a day or later; and `slowest`, the `n` buckets that are full
    ///     again last. Each of these has `bucket_key`, `reset_after` in seconds (an upper bound if
    ///     there is a tally), and `tally`, the tokens counted by a window or a leaky bucket.
    ///     A value is `None` if the store does not know it.
    ///
    /// Raises:
    ///     StoreError: The store failed.
    fn inspect<'py>(&self, py: Python<'py>, n: usize) -> PyResult<Bound<'py, PyDict>> {
        let core = self.limiter.get().core();
        let now = core.clock().now();
        let store = store_of(core.store().as_inspect())?;
        let inspection = py.detach(|| store.inspect(now, n))?;
        stats::inspection(py, self.limiter.get().url(), &inspection, now)
    }

    /// Reset all buckets, and return their number.
    ///
    /// Raises:
    ///     StoreError: The store failed.
    fn clear(&self, py: Python<'_>) -> PyResult<u64> {
        let store = store_of(self.limiter.get().core().store().as_inspect())?;
        py.detach(|| store.clear()).map_err(PyErr::from)
    }
}

/// Returns the store. Opening has already rejected stores that only their own process can reach.
fn store_of(store: Option<&dyn Inspect>) -> PyResult<&dyn Inspect> {
    store.ok_or_else(|| OpenError::OwnProcess.into())
}
