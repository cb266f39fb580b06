//! A limit as the objects of Python share it, and the header fields that it always has.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::bindings::once::Once;
use crate::clock::AnyClock;
use crate::engine::limit::Limit;
use crate::engine::registry::Entry;
use crate::engine::time::{Timeline, Timestamp};
use crate::limiter::{BoundLimit, Snapshot};
use crate::rate_limit_fields;

/// A limit of the core, and its Python counterpart that decisions refer to.
pub(crate) type ActiveLimit = (Arc<BoundLimit>, Py<LimitEntry>);

#[doc = doc!(LimitEntry)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct LimitEntry {
    pub(crate) name: Py<PyString>,
    pub(crate) entry: Arc<Entry>,
    /// The name as a quoted header value; `None` if header fields cannot represent it.
    pub(crate) label: Option<String>,
    /// The `RateLimit-Policy` field of the default limit; `None` if it cannot represent it, or if
    /// it changes from window to window.
    pub(crate) policy: Option<PolicyField>,
    /// The clock of its decisions; `None` if they have Unix times.
    pub(crate) clock: Option<DecisionClock>,
}

/// The clock of the decisions of a limiter.
#[derive(Clone, Debug)]
pub(crate) struct DecisionClock {
    pub(crate) clock: AnyClock,
    /// Whether a server decides, at its own time.
    pub(crate) has_server_time: bool,
}

impl DecisionClock {
    /// Returns the Unix time of an instant at which a limit was applied.
    pub(crate) fn unix_time(&self, at: Timestamp, limit: &Limit) -> Timestamp {
        // No server is asked about an id without a limit.
        let has_unix_time =
            !limit.is_unlimited() && (self.has_server_time || limit.timeline() == Timeline::Wall);
        if has_unix_time { at } else { self.clock.unix_time(at) }
    }
}

impl LimitEntry {
    pub(crate) fn new(
        py: Python<'_>,
        name: Py<PyString>,
        entry: Arc<Entry>,
        clock: Option<DecisionClock>,
    ) -> PyResult<LimitEntry> {
        let label = rate_limit_fields::string(entry.name().as_str());
        let limit = &entry.default_rule().limit;
        let label_of_fixed = label.as_ref().filter(|_| !limit.window_varies());
        let policy = label_of_fixed
            .and_then(|label| rate_limit_fields::policy(label, limit, Timestamp::ORIGIN));
        let policy = policy.map(|policy| PolicyField::new(py, policy));
        Ok(LimitEntry { name, entry, label, policy: policy.transpose()?, clock })
    }

    /// Returns the limit in `active` with the same name as `previous`. Reuses `previous` unless a
    /// reload has replaced its entry.
    pub(crate) fn active_in(
        previous: &Py<LimitEntry>,
        py: Python<'_>,
        active: &Snapshot,
    ) -> PyResult<ActiveLimit> {
        let bound = active.limit(previous.get().entry.name().as_str())?;
        Ok((Arc::clone(bound), LimitEntry::of(previous, py, bound)?))
    }

    /// Returns the counterpart of `bound`, which has the same name as `previous`.
    pub(crate) fn of(
        previous: &Py<LimitEntry>,
        py: Python<'_>,
        bound: &BoundLimit,
    ) -> PyResult<Py<LimitEntry>> {
        let LimitEntry { name, entry, clock, .. } = previous.get();
        if Arc::ptr_eq(bound.entry(), entry) {
            return Ok(previous.clone_ref(py));
        }
        let (name, clock) = (name.clone_ref(py), clock.clone());
        Py::new(py, LimitEntry::new(py, name, Arc::clone(bound.entry()), clock)?)
    }
}

/// How Python gets a field: as text, or as bytes with its name in lower case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Text,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Name {
    Policy,
    Item,
}

/// A `RateLimit-Policy` field that is the same for every request, in both forms.
#[derive(Debug)]
pub(crate) struct PolicyField {
    pub(crate) value: String,
    text: Py<PyTuple>,
    bytes: Py<PyTuple>,
}

impl Form {
    /// Returns the pair of name and value.
    pub(crate) fn field<'py>(
        self,
        py: Python<'py>,
        name: Name,
        value: &str,
    ) -> PyResult<Bound<'py, PyTuple>> {
        static TEXTS: [Once<Py<PyString>>; 2] = [const { Once::new() }; 2];
        static BYTES: [Once<Py<PyBytes>>; 2] = [const { Once::new() }; 2];
        let (index, name) = match name {
            Name::Policy => (0, "RateLimit-Policy"),
            Name::Item => (1, "RateLimit"),
        };
        match self {
            Form::Text => {
                let name = TEXTS[index].get_or_init(py, || PyString::intern(py, name).unbind());
                (name.bind(py), PyString::new(py, value)).into_pyobject(py)
            }
            Form::Bytes => {
                let lowercase = || PyBytes::new(py, name.to_lowercase().as_bytes()).unbind();
                let name = BYTES[index].get_or_init(py, lowercase);
                (name.bind(py), PyBytes::new(py, value.as_bytes())).into_pyobject(py)
            }
        }
    }
}

impl PolicyField {
    pub(crate) fn new(py: Python<'_>, value: String) -> PyResult<PolicyField> {
        let text = Form::Text.field(py, Name::Policy, &value)?.unbind();
        let bytes = Form::Bytes.field(py, Name::Policy, &value)?.unbind();
        Ok(PolicyField { value, text, bytes })
    }

    pub(crate) fn field<'py>(&self, py: Python<'py>, form: Form) -> Bound<'py, PyTuple> {
        match form {
            Form::Text => self.text.bind(py).clone(),
            Form::Bytes => self.bytes.bind(py).clone(),
        }
    }
}
