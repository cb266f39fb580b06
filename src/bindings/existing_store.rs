//! Views of a store that already exists, for `penstock store`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bindings::clock::{clock_of, default_clock};
use crate::bindings::limiter::Limiter;
use crate::bindings::stats;
use crate::clock::Clock;
use crate::store::any::{OpenError, open_existing as open_existing_store};
use crate::store::inspect::Inspect;
use crate::store::url::StoreUrl;

/// Open a store that exists, and return a limiter with it.
///
/// Args:
///     url: URL of the store. Options for new stores have no effect.
///     limits: The limits of the limiter, as its constructor takes them.
///
/// Raises:
///     ConfigError: The URL or the limits are invalid.
///     StoreUnavailable: The store does not exist, or only its own process can reach it.
#[pyfunction]
pub(crate) fn open_existing(url: &str, limits: &Bound<'_, PyAny>) -> PyResult<Limiter> {
    let py = limits.py();
    let parsed: StoreUrl = url.parse()?;
    let clock = default_clock(py)?.into_bound(py);
    let opened = open_existing_store(&parsed, clock_of(&clock)?)?;
    Limiter::with_store(limits, opened, url, clock)
}

/// Return the statistics of a limiter's store and its slowest buckets.
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
///
/// Examples:
///     >>> import tempfile
///     >>> from penstock._core import inspect_store, open_existing
///     >>> with tempfile.TemporaryDirectory() as folder:
///     ...     url = f"shm://{folder}/table"
///     ...     with penstock.Limiter({"Orders": "2/minute"}, store=url) as limiter:
///     ...         decision = limiter.spend("Orders", "ada")
///     ...     limiter = open_existing(url, {})
///     ...     inspect_store(limiter, 10)["buckets"], limiter.reset_all()
///     (1, 1)
#[pyfunction]
pub(crate) fn inspect_store<'py>(
    limiter: &Bound<'py, Limiter>,
    n: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let (py, limiter) = (limiter.py(), limiter.get());
    let core = limiter.core();
    let now = core.clock().now();
    let store = store_of(core.store().as_inspect())?;
    let inspection = py.detach(|| store.inspect(now, n))?;
    stats::inspection(py, limiter.url(), &inspection, now)
}

/// Returns the store. Opening has already rejected stores that only their own process can reach.
fn store_of(store: Option<&dyn Inspect>) -> PyResult<&dyn Inspect> {
    store.ok_or_else(|| OpenError::OwnProcess.into())
}
