//! Logging of store events through Python's `logging`.

use pyo3::prelude::*;

use crate::store::any::AnyStore;
#[cfg(feature = "redis")]
use crate::store::redis::StoreEvent;

/// Logs the events of the store at `url` since the last call. Runs Python code.
#[inline]
pub(crate) fn log_events(py: Python<'_>, store: &AnyStore, url: &str) {
    #[cfg(feature = "redis")]
    for event in store.take_events() {
        if let Err(error) = log(py, url, &event) {
            // An error in a log handler must not fail the call.
            error.write_unraisable(py, None);
        }
    }
    let _ = (py, store, url);
}

#[cfg(feature = "redis")]
#[cold]
fn log(py: Python<'_>, url: &str, event: &StoreEvent) -> PyResult<()> {
    let name = match event {
        StoreEvent::Failing { .. } => "failing",
        StoreEvent::Answering { .. } => "answering",
        StoreEvent::Healed { .. } => "healed",
    };
    let options = dict! { py, "extra": dict! { py, "store": url, "event": name } };
    let logger = py.import("logging")?.call_method1("getLogger", ("penstock",))?;
    let record = ("%s: %s", url, event.to_string());
    logger.call_method("warning", record, Some(&options))?;
    Ok(())
}
