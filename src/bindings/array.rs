//! Arrays of numbers, read where they stand.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::bindings::arguments;
use crate::sync::{AtomicI64, AtomicU8, AtomicU32, Ordering};

/// A kind of number that arrays have.
pub(crate) trait Number: Element {
    /// The same number, where others may write to it.
    type Shared: Send + Sync;
    /// What people call an array of it.
    const KIND: &'static str;

    /// Reads one.
    fn read(shared: &Self::Shared) -> Self;
}

impl Number for i64 {
    type Shared = AtomicI64;
    const KIND: &'static str = "a contiguous array of int64";

    #[inline(always)]
    fn read(shared: &AtomicI64) -> i64 {
        shared.load(Ordering::Relaxed)
    }
}

impl Number for u32 {
    type Shared = AtomicU32;
    const KIND: &'static str = "a contiguous array of uint32";

    #[inline(always)]
    fn read(shared: &AtomicU32) -> u32 {
        shared.load(Ordering::Relaxed)
    }
}

impl Number for u8 {
    type Shared = AtomicU8;
    const KIND: &'static str = "a contiguous array of uint8";

    #[inline(always)]
    fn read(shared: &AtomicU8) -> u8 {
        shared.load(Ordering::Relaxed)
    }
}

/// An array of another's, kept alive and read where it stands, also while the interpreter runs
/// other threads.
#[derive(Debug)]
pub(crate) struct Array<T: Number> {
    buffer: PyBuffer<T>,
}

impl<T: Number> Array<T> {
    /// Takes an array by the buffer protocol.
    ///
    /// # Errors
    /// `TypeError` if it is none, of another kind, or has gaps.
    pub(crate) fn of(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Array<T>> {
        match PyBuffer::<T>::get(given) {
            Ok(buffer) if buffer.dimensions() == 1 && buffer.is_c_contiguous() => {
                Ok(Array { buffer })
            }
            Ok(buffer) => Err(PyTypeError::new_err(format!(
                "{name} must be {}, found one of {} dimensions or with gaps",
                T::KIND,
                buffer.dimensions()
            ))),
            Err(_) => Err(arguments::wrong_type(name, T::KIND, given)),
        }
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> usize {
        self.buffer.item_count()
    }

    /// The numbers, which others may write to meanwhile.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &[T::Shared] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: `PyBuffer` holds the buffer until it is dropped, and has checked that its items
        // are of this type and aligned for it; there are `item_count` of them in a row, as it is
        // contiguous. An atomic has the layout of its number. Whoever writes to the array
        // meanwhile does so to memory that is shared, hence atomics: they are only loaded from,
        // which read-only memory permits.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.len()) }
    }

    /// Reads numbers from `first` on into the whole of `numbers`.
    #[inline(always)]
    pub(crate) fn read(&self, first: usize, numbers: &mut [T]) {
        let shared = &self.shared()[first..first + numbers.len()];
        for (number, shared) in numbers.iter_mut().zip(shared) {
            *number = T::read(shared);
        }
    }
}
