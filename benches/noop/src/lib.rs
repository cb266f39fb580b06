//! A PyO3 class with a method that takes a string and does nothing, and one that only reads the clock.

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

        /// Takes a string and reads the monotonic clock, as every decision must.
        fn call_and_read_clock(&self, id: &str) {
            std::hint::black_box((id, std::time::Instant::now()));
        }
    }
}
