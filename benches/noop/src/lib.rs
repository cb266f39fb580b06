//! A PyO3 class whose one method takes a text and does nothing.

#[pyo3::pymodule(gil_used = false)]
mod noop {
    use pyo3::prelude::*;

    /// Does nothing, by way of PyO3.
    #[pyclass(frozen)]
    struct Noop;

    #[pymethods]
    impl Noop {
        #[new]
        fn new() -> Self {
            Noop
        }

        /// Takes a text and gives `None`.
        fn call(&self, id: &str) {
            std::hint::black_box(id);
        }
    }
}
