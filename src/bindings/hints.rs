//! Errors that say what to write instead.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Method names of other rate limiters, and ours.
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

/// A method that another library has and this class has not.
///
/// It is a descriptor, and not `__getattr__`, because a class with `__getattr__` loses the
/// interpreter's fast path for method calls.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
struct AbsentMethod {
    name: &'static str,
    ours: &'static str,
}

#[pymethods]
impl AbsentMethod {
    fn __get__(
        &self,
        instance: Option<&Bound<'_, PyAny>>,
        owner: &Bound<'_, PyType>,
    ) -> PyResult<()> {
        let _ = instance;
        let (class, name, ours) = (owner.name()?, self.name, self.ours);
        Err(PyAttributeError::new_err(format!("{class} has no method {name:?}; use {ours}()")))
    }
}

/// Have a class name our method where the caller uses a name that other rate limiters have.
#[pyfunction]
pub(crate) fn attach_hints(class_: &Bound<'_, PyType>) -> PyResult<()> {
    for (name, ours) in METHODS {
        class_.setattr(name, Bound::new(class_.py(), AbsentMethod { name, ours })?)?;
    }
    Ok(())
}
