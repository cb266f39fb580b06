//! PyO3 classes whose methods do nothing, or only what no rate limiter in memory can do without.

#[pyo3::pymodule(gil_used = false)]
mod noop {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};

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

        /// Takes a string and returns an object for a block.
        fn reserve(&self, id: &str) -> Block {
            std::hint::black_box(id);
            Block
        }
    }

    /// An object whose block does nothing.
    #[pyclass(frozen)]
    struct Block;

    #[pymethods]
    impl Block {
        fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
            slf.clone()
        }

        fn __exit__(&self, exc_type: Py<PyAny>, exc: Py<PyAny>, traceback: Py<PyAny>) {
            std::hint::black_box((exc_type, exc, traceback));
        }
    }

    /// A table with 16 bytes for each bucket, and no search for the right slot.
    #[pyclass(frozen)]
    struct Slots {
        hasher: RandomState,
        slots: Vec<[AtomicU64; 2]>,
    }

    #[pymethods]
    impl Slots {
        #[new]
        fn new(buckets: usize) -> Self {
            let slots = (1..=buckets as u64).map(|index| [index, index].map(AtomicU64::new));
            Slots { hasher: RandomState::new(), slots: slots.collect() }
        }

        /// Reads the monotonic clock, hashes a string with SipHash-1-3 under a random key, and changes
        /// the slot that the hash chooses.
        fn touch(&self, id: &str) {
            std::hint::black_box(std::time::Instant::now());
            let hash = u128::from(self.hasher.hash_one(id));
            let [key, word] = &self.slots[(hash * self.slots.len() as u128 >> 64) as usize];
            word.store(
                word.load(Ordering::Relaxed) ^ key.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
        }
    }
}
