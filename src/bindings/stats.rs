//! Conversion of statistics to dictionaries.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::latencies::{LATENCIES, Latencies};
use crate::limiter::{Counts, DeniedBucket, Outcomes};
use crate::store::Stats;
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
