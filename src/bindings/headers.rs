//! Fields of the `ietf` header style, as text or as ASGI servers take them, and the numbers of the others.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::once::Once;
use crate::rate_limit_fields;

/// How Python gets a field: as text, or as bytes with its name in lower case.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
enum Name {
    Policy,
    Item,
}

/// A `RateLimit-Policy` field that is the same for every request, in both forms.
#[derive(Debug)]
pub(crate) struct PolicyField {
    value: String,
    text: Py<PyTuple>,
    bytes: Py<PyTuple>,
}

/// The policy of one decision.
enum Policy<'a> {
    Kept(&'a PolicyField),
    Own(String),
}

impl Form {
    /// Returns the pair of name and value.
    fn field<'py>(self, py: Python<'py>, name: Name, value: &str) -> PyResult<Bound<'py, PyTuple>> {
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
}

impl Policy<'_> {
    fn value(&self) -> &str {
        match self {
            Policy::Kept(field) => &field.value,
            Policy::Own(value) => value,
        }
    }

    fn field<'py>(&self, py: Python<'py>, form: Form) -> PyResult<Bound<'py, PyTuple>> {
        match (self, form) {
            (Policy::Kept(field), Form::Text) => Ok(field.text.bind(py).clone()),
            (Policy::Kept(field), Form::Bytes) => Ok(field.bytes.bind(py).clone()),
            (Policy::Own(value), form) => form.field(py, Name::Policy, value),
        }
    }
}

/// Returns the policy and the item of one decision, if its limit has them.
fn of_one<'a>(
    py: Python<'_>,
    data: &'a DecisionData,
) -> PyResult<(Option<Policy<'a>>, Option<String>)> {
    let entry = data.entry.as_ref().map(Py::get);
    let Some((entry, label)) = entry.and_then(|entry| Some((entry, entry.label.as_ref()?))) else {
        return Ok((None, None));
    };
    data.with_limit(py, |limit, is_default| {
        let decision = data.decision(py);
        let policy = match &entry.policy {
            Some(policy) if is_default => Some(Policy::Kept(policy)),
            _ => rate_limit_fields::policy(label, limit, decision.now).map(Policy::Own),
        };
        (policy, rate_limit_fields::item(label, limit, &decision))
    })
}

fn fields<'py>(given: &Bound<'py, PyAny>, form: Form) -> PyResult<Bound<'py, PyList>> {
    let py = given.py();
    let Ok(decision) = given.cast::<Decision>() else { return of_several(given, form) };
    let data = &decision.get().data;
    if let Some(parts) = data.parts() {
        return of_several(parts.bind(py).as_any(), form);
    }
    let (policy, item) = of_one(py, data)?;
    let policy = policy.map(|policy| policy.field(py, form)).transpose()?;
    let item = item.map(|item| form.field(py, Name::Item, &item)).transpose()?;
    match (policy, item) {
        (Some(policy), Some(item)) => PyList::new(py, [policy, item]),
        (policy, item) => PyList::new(py, policy.into_iter().chain(item).collect::<Vec<_>>()),
    }
}

/// Joins the fields of several decisions. A limit may decide for several ids; its policy is listed once.
fn of_several<'py>(decisions: &Bound<'py, PyAny>, form: Form) -> PyResult<Bound<'py, PyList>> {
    let py = decisions.py();
    let (mut policies, mut items): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for decision in decisions.try_iter()? {
        let decision = decision?.cast_into::<Decision>()?;
        let (policy, item) = of_one(py, &decision.get().data)?;
        if let Some(policy) = policy
            && !policies.iter().any(|listed| listed == policy.value())
        {
            policies.push(policy.value().to_owned());
        }
        items.extend(item);
    }
    let fields = PyList::empty(py);
    for (name, values) in [(Name::Policy, policies), (Name::Item, items)] {
        if !values.is_empty() {
            fields.append(form.field(py, name, &values.join(", "))?)?;
        }
    }
    Ok(fields)
}

#[doc = doc!(header_fields)]
#[pyfunction]
#[pyo3(signature = (decision, /))]
pub(crate) fn header_fields<'py>(decision: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    fields(decision, Form::Text)
}

#[doc = doc!(encoded_header_fields)]
#[pyfunction]
#[pyo3(signature = (decision, /))]
pub(crate) fn encoded_header_fields<'py>(
    decision: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    fields(decision, Form::Bytes)
}

/// The label, quota, window, wait and reset of a decision, as header fields show them.
pub(crate) type HeaderValues = (Option<String>, i64, Option<i64>, i64, i64);

#[doc = doc!(header_values)]
#[pyfunction]
pub(crate) fn header_values(decision: &Bound<'_, Decision>) -> PyResult<HeaderValues> {
    let (py, data) = (decision.py(), &decision.get().data);
    let label = data.entry.as_ref().and_then(|entry| entry.get().label.clone());
    let decision = data.decision(py);
    data.with_limit(py, |limit, _| {
        let window = rate_limit_fields::window_seconds(limit, decision.now);
        let (retry, reset) = (limit.shown_retry(&decision), limit.shown_reset(&decision));
        (label, limit.capacity(), window, retry.get(), reset.get())
    })
}
