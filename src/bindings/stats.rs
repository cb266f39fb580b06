//! Conversion of statistics to dictionaries.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

use crate::bindings::arguments::seconds;
use crate::engine::time::Timestamp;
use crate::latencies::{LATENCIES, Latencies};
use crate::limiter::{Counts, DeniedBucket, Outcomes};
use crate::store::Stats;
use crate::store::inspect::{Inspection, RESET_WITHIN};
#[cfg(feature = "redis")]
use crate::store::redis::{CallKind, CallResult};

/// Converts the counts of one limit.
pub(crate) fn counts<'py>(py: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("spends", outcomes(py, &counts.spends)?)?;
    figures.set_item("checks", outcomes(py, &counts.checks)?)?;
    figures.set_item("refunds", counts.refunds)?;
    figures.set_item("store_errors", counts.store_errors)?;
    figures.set_item("expired", counts.expired)?;
    figures.set_item("renewed_late", counts.renewed_late)?;
    figures.set_item("timed", timed(py, &counts.latencies)?)?;
    Ok(figures)
}

fn outcomes<'py>(py: Python<'py>, outcomes: &Outcomes) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("allowed", outcomes.allowed)?;
    figures.set_item("denied", outcomes.denied)?;
    figures.set_item("shadow_denied", outcomes.shadow_denied)?;
    Ok(figures)
}

fn timed<'py>(py: Python<'py>, latencies: &Latencies) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    let bounds = (0..LATENCIES).filter_map(Latencies::max_ns);
    figures.set_item("at_most_ns", PyTuple::new(py, bounds.collect::<Vec<_>>())?)?;
    figures.set_item("calls", PyTuple::new(py, latencies.calls)?)?;
    figures.set_item("total_ns", latencies.total_ns)?;
    Ok(figures)
}

/// Converts the latencies of calls to a server.
#[cfg(feature = "redis")]
pub(crate) fn calls<'py>(
    py: Python<'py>,
    times: &[(CallKind, CallResult, Latencies)],
) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    for (call, result, latencies) in times {
        let by_result = match figures.get_item(call.as_str())? {
            Some(existing) => existing.cast_into::<PyDict>()?,
            None => {
                let new = PyDict::new(py);
                figures.set_item(call.as_str(), &new)?;
                new
            }
        };
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

/// Converts an inspection of a store.
pub(crate) fn inspection<'py>(
    py: Python<'py>,
    url: &str,
    inspection: &Inspection,
    now: Timestamp,
) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("store", url)?;
    figures.set_item("file", inspection.file.as_ref().map(|file| file.as_os_str()))?;
    let age = inspection.created.map(|created| seconds(now.get() - created.get()));
    figures.set_item("age", age)?;
    add_stats(&figures, &inspection.stats)?;
    let reset_within = inspection.reset_within.as_ref().map(|counts| {
        let names = RESET_WITHIN.map(|(name, _)| name).into_iter().chain(["later"]);
        names.zip(counts).into_py_dict(py)
    });
    figures.set_item("reset_within", reset_within.transpose()?)?;
    let slowest = PyList::empty(py);
    for bucket in &inspection.slowest {
        let row = PyDict::new(py);
        row.set_item("reset_after", seconds(bucket.reset_after.get()))?;
        row.set_item("tally", bucket.tally)?;
        row.set_item("slots", bucket.slots)?;
        row.set_item("bucket_key", bucket.bucket_key.as_deref())?;
        slowest.append(row)?;
    }
    figures.set_item("slowest", slowest)?;
    Ok(figures)
}

/// Converts the buckets with the most denials.
pub(crate) fn top_denied<'py>(
    py: Python<'py>,
    top_denied: &[DeniedBucket],
) -> PyResult<Bound<'py, PyList>> {
    let rows = PyList::empty(py);
    for (bucket_key, name, entry) in top_denied {
        let figures = PyDict::new(py);
        figures.set_item("bucket_key", bucket_key)?;
        figures.set_item("name", name.as_str())?;
        figures.set_item("id", &entry.id)?;
        figures.set_item("denied", entry.denied)?;
        figures.set_item("error", entry.error)?;
        rows.append(figures)?;
    }
    Ok(rows)
}
