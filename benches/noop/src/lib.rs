//! A PyO3 class with one method, which takes a string and does nothing.

#[pyo3::pymodule(gil_used = false)]
mod noop {
    use pyo3::prelude::*;

    /// The baseline for the cost of a call through PyO3.
    #[pyclass(frozen)]
    struct Noop;

    #[pymethods]
    impl Noop {
        #[new]
        fn new() -> Self {
            Noop
        }

        /// Takes a string and returns `None`.
        fn call(&self, id: &str) {
            std::hint::black_box(id);
        }
    }
}
