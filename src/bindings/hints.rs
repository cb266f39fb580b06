//! Hints for callers who use a method name of another rate limiter.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Method names of other rate limiters, and the corresponding ones here.
const METHODS: [(&str, &str); 9] = [
    ("allow", "spend"),
    ("clear", "reset"),
    ("consume", "spend"),
    ("hit", "spend"),
    ("release", "refund"),
    ("take", "spend"),
    ("test", "check"),
    ("try_acquire", "spend"),
    ("wait", "acquire"),
];

/// Descriptor that raises an `AttributeError` with the name of the method to use.
///
/// Not `__getattr__`, because a class with `__getattr__` loses the interpreter's fast path for method
/// calls.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
struct AbsentMethod {
    name: &'static str,
    replacement: &'static str,
}

#[pymethods]
impl AbsentMethod {
    fn __get__(
        &self,
        instance: Option<&Bound<'_, PyAny>>,
        owner: &Bound<'_, PyType>,
    ) -> PyResult<()> {
        let _ = instance;
        let AbsentMethod { name, replacement } = self;
        let message = format!("{} has no method {name:?}; use {replacement}()", owner.name()?);
        Err(PyAttributeError::new_err(message))
    }
}

/// Return the names of an object's attributes, without those that only raise a hint.
#[pyfunction]
pub(crate) fn visible_names(instance: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let names = instance.py().get_type::<PyAny>().call_method1("__dir__", (instance,))?;
    let names = names.try_iter()?.map(|name| name?.extract());
    let is_visible = |name: &String| METHODS.iter().all(|(hint, _)| name != hint);
    names.filter(|name| name.as_ref().map_or(true, is_visible)).collect()
}

/// Add hints to a class for the method names that other rate limiters use.
#[pyfunction]
pub(crate) fn attach_hints(class_: &Bound<'_, PyType>) -> PyResult<()> {
    for (name, replacement) in METHODS {
        class_.setattr(name, Bound::new(class_.py(), AbsentMethod { name, replacement })?)?;
    }
    Ok(())
}
