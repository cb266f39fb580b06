//! Fields of the `ietf` header style, as text or as ASGI servers take them, and the numbers of the others.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use crate::bindings::decision::Decision;
use crate::bindings::decision_data::DecisionData;
use crate::bindings::limit_entry::{Form, Name, PolicyField};
use crate::rate_limit_fields;

/// The policy of one decision.
enum Policy<'a> {
    Kept(&'a PolicyField),
    Own(String),
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
            (Policy::Kept(field), form) => Ok(field.field(py, form)),
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

/// The policy and the item, if there are any.
type Pair<'py> = [Option<Bound<'py, PyTuple>>; 2];

/// Returns the fields of `own`, and those of one or several decisions.
fn fields<'py>(
    given: &Bound<'py, PyAny>,
    own: Option<&Bound<'py, PyAny>>,
    form: Form,
) -> PyResult<Bound<'py, PyList>> {
    let py = given.py();
    let data = given.cast::<Decision>().ok().map(|decision| &decision.get().data);
    let pair = match data {
        Some(data) if data.parts().is_none() => {
            let (policy, item) = of_one(py, data)?;
            let policy = policy.map(|policy| policy.field(py, form)).transpose()?;
            [policy, item.map(|item| form.field(py, Name::Item, &item)).transpose()?]
        }
        _ => of_several(given, form)?,
    };
    // Most responses have fewer, and then the list is the only allocation.
    let mut all = SmallVec::<[Bound<'py, PyAny>; 8]>::new();
    if let Some(Ok(list)) = own.map(|own| own.cast::<PyList>()) {
        // An iterator of Python would add 300 instructions.
        all.extend(list.iter());
    } else if let Some(own) = own {
        for field in own.try_iter()? {
            all.push(field?);
        }
    }
    all.extend(pair.into_iter().flatten().map(Bound::into_any));
    PyList::new(py, all)
}

/// Joins the fields of several decisions, or of the parts of one. A limit may decide for several ids; its policy
/// is listed once.
fn of_several<'py>(decisions: &Bound<'py, PyAny>, form: Form) -> PyResult<Pair<'py>> {
    let py = decisions.py();
    let (mut policies, mut items): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let parts = decisions.cast::<Decision>().ok().and_then(|decision| decision.get().data.parts());
    let decisions = parts.map_or(decisions, |parts| parts.bind(py).as_any());
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
    let joined = |name, values: Vec<String>| match values.is_empty() {
        true => Ok(None),
        false => form.field(py, name, &values.join(", ")).map(Some),
    };
    Ok([joined(Name::Policy, policies)?, joined(Name::Item, items)?])
}

#[doc = doc!(header_fields)]
#[pyfunction]
#[pyo3(signature = (decision, own = None, /))]
pub(crate) fn header_fields<'py>(
    decision: &Bound<'py, PyAny>,
    own: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    fields(decision, own, Form::Text)
}

#[doc = doc!(encoded_header_fields)]
#[pyfunction]
#[pyo3(signature = (decision, own = None, /))]
pub(crate) fn encoded_header_fields<'py>(
    decision: &Bound<'py, PyAny>,
    own: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    fields(decision, own, Form::Bytes)
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
