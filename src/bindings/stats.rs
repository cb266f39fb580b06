//! Conversion of statistics to dictionaries.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

use crate::bindings::arguments::seconds;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::clock::Clock;
use crate::engine::time::Timeline;
use crate::latencies::{LATENCIES, Latencies};
use crate::limiter::{Counts, DeniedBucket, Outcomes};
use crate::store::Stats;
use crate::store::any::OpenError;
use crate::store::inspect::RESET_WITHIN;
#[cfg(feature = "redis")]
use crate::store::redis::{CallKind, CallResult};

/// Converts the counts of one limit.
pub(crate) fn counts<'py>(py: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict! {
        py,
        "spends": outcomes(py, &counts.spends)?,
        "checks": outcomes(py, &counts.checks)?,
        "refunds": counts.refunds,
        "store_errors": counts.store_errors,
        "expired": counts.expired,
        "renewed_late": counts.renewed_late,
        "timed": timed(py, &counts.latencies)?,
    })
}

fn outcomes<'py>(py: Python<'py>, outcomes: &Outcomes) -> PyResult<Bound<'py, PyDict>> {
    let &Outcomes { allowed, denied, shadow_denied } = outcomes;
    Ok(dict! { py, "allowed": allowed, "denied": denied, "shadow_denied": shadow_denied })
}

fn timed<'py>(py: Python<'py>, latencies: &Latencies) -> PyResult<Bound<'py, PyDict>> {
    let bounds = (0..LATENCIES).filter_map(Latencies::max_ns).collect::<Vec<_>>();
    Ok(dict! {
        py,
        "at_most_ns": PyTuple::new(py, bounds)?,
        "calls": PyTuple::new(py, latencies.calls)?,
        "total_ns": latencies.total_ns,
    })
}

/// Converts the latencies of calls to a server.
#[cfg(feature = "redis")]
pub(crate) fn calls<'py>(
    py: Python<'py>,
    times: &[(CallKind, CallResult, Latencies)],
) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    for (call, result, latencies) in times {
        let by_result =
            figures.as_any().call_method1("setdefault", (call.as_str(), PyDict::new(py)))?;
        by_result.set_item(result.as_str(), timed(py, latencies)?)?;
    }
    Ok(figures)
}

/// Adds a store's statistics to a dictionary.
pub(crate) fn add_stats(figures: &Bound<'_, PyDict>, stats: &Stats) -> PyResult<()> {
    let &Stats {
        buckets,
        capacity,
        slots,
        bytes,
        forgotten,
        evicted,
        shared,
        refused,
        recovered_locks,
    } = stats;
    for (name, figure) in [
        ("buckets", buckets),
        ("capacity", capacity),
        ("slots", slots),
        ("bytes", bytes),
        ("forgotten", forgotten),
        ("evicted", evicted),
        ("shared", shared),
        ("refused", refused),
        ("recovered_locks", recovered_locks),
    ] {
        figures.set_item(name, figure)?;
    }
    Ok(())
}

/// Returns the statistics of a store and its `n` slowest buckets.
pub(crate) fn inspection<'py>(
    py: Python<'py>,
    handle: &LimiterHandle,
    n: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let core = &handle.core;
    let now = core.clock().read(Timeline::Wall);
    // Opening has already rejected stores that only their own process can reach.
    let store = core.store().as_inspect().ok_or(OpenError::OwnProcess)?;
    let inspection = py.detach(|| store.inspect(now, n))?;
    let reset_within = inspection.reset_within.as_ref().map(|counts| {
        let names = RESET_WITHIN.map(|(name, _)| name).into_iter().chain(["later"]);
        names.zip(counts).into_py_dict(py)
    });
    let slowest = inspection.slowest.iter().map(|bucket| {
        Ok(dict! {
            py,
            "reset_after": seconds(bucket.reset_after.get()),
            "tally": bucket.tally,
            "slots": bucket.slots,
            "bucket_key": bucket.bucket_key.as_deref(),
        })
    });
    let figures = dict! {
        py,
        "store": &handle.url,
        "file": inspection.file.as_ref().map(|file| file.as_os_str()),
        "age": inspection.created.map(|created| seconds(now.steady.get() - created.get())),
        "reset_within": reset_within.transpose()?,
        "slowest": slowest.collect::<PyResult<Vec<_>>>()?,
    };
    add_stats(&figures, &inspection.stats)?;
    Ok(figures)
}

/// Converts the buckets with the most denials.
pub(crate) fn top_denied<'py>(
    py: Python<'py>,
    top_denied: &[DeniedBucket],
) -> PyResult<Bound<'py, PyList>> {
    let rows = top_denied.iter().map(|(bucket_key, name, entry)| {
        Ok(dict! {
            py,
            "bucket_key": bucket_key,
            "name": name.as_str(),
            "id": &entry.id,
            "denied": entry.denied,
            "error": entry.error,
        })
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
