//! Views of a store that already exists, for `penstock store`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bindings::clock::{clock_of, default_clock};
use crate::bindings::limiter::Limiter;
use crate::bindings::stats;
use crate::clock::Clock;
use crate::store::any::{OpenError, open_existing as open_existing_store};
use crate::store::url::StoreUrl;

#[doc = doc!(open_existing)]
#[pyfunction]
pub(crate) fn open_existing(url: &str, limits: &Bound<'_, PyAny>) -> PyResult<Limiter> {
    let py = limits.py();
    let parsed: StoreUrl = url.parse()?;
    let clock = default_clock(py)?.into_bound(py);
    let opened = open_existing_store(&parsed, clock_of(&clock)?)?;
    Limiter::with_store(limits, opened, url, clock)
}

#[doc = doc!(inspect_store)]
#[pyfunction]
pub(crate) fn inspect_store<'py>(
    limiter: &Bound<'py, Limiter>,
    n: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let (py, limiter) = (limiter.py(), limiter.get());
    let core = limiter.core();
    let now = core.clock().now();
    // Opening has already rejected stores that only their own process can reach.
    let store = core.store().as_inspect().ok_or(OpenError::OwnProcess)?;
    let inspection = py.detach(|| store.inspect(now, n))?;
    stats::inspection(py, limiter.url(), &inspection, now)
}
