//! Python arrays, read and written by index through the buffer protocol.

use std::ops::Range;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::bindings::arguments;
use crate::simulate::{Sink, Source};
use crate::sync::{AtomicI64, AtomicU8, AtomicU32, Ordering};

/// A number type that arrays may contain.
pub(crate) trait Number: Element {
    /// The atomic type with the same layout.
    type Shared: Send + Sync;
    /// The description of its arrays in error messages.
    const KIND: &'static str;

    /// Reads a number.
    fn read(shared: &Self::Shared) -> Self;

    /// Writes a number.
    fn write(self, shared: &Self::Shared);
}

macro_rules! numbers {
    ($($number:ty, $shared:ty, $kind:literal;)*) => {$(
        impl Number for $number {
            type Shared = $shared;
            const KIND: &'static str = $kind;

            #[inline(always)]
            fn read(shared: &$shared) -> $number {
                shared.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn write(self, shared: &$shared) {
                shared.store(self, Ordering::Relaxed);
            }
        }
    )*};
}

numbers! {
    i64, AtomicI64, "a contiguous array of int64";
    u32, AtomicU32, "a contiguous array of uint32";
    u8, AtomicU8, "a contiguous array of uint8";
}

/// A Python array, which is kept alive and can be accessed without holding the GIL.
#[derive(Debug)]
pub(crate) struct Array<T: Number> {
    buffer: PyBuffer<T>,
}

impl<T: Number> Array<T> {
    /// Acquires an array through the buffer protocol.
    ///
    /// # Errors
    /// `TypeError` if the object is not a one-dimensional contiguous array of this number type.
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

    /// Acquires a writable array.
    ///
    /// # Errors
    /// The same as [`Array::of`], and `TypeError` if the array is read-only.
    pub(crate) fn writable(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Writable<T>> {
        let array = Array::of(name, given)?;
        if array.buffer.readonly() {
            let message = format!("{name} must be a writable array, found a read-only one");
            return Err(PyTypeError::new_err(message));
        }
        Ok(Writable { array })
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.buffer.item_count()
    }

    /// Returns a range of the array for reading.
    pub(crate) fn part(&self, range: Range<usize>) -> Part<'_, T> {
        Part { shared: &self.shared()[range] }
    }

    /// Returns the numbers, which other threads may write to.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &[T::Shared] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: `PyBuffer` holds the buffer until it is dropped, and has checked the type and the
        // alignment of its items. The buffer is contiguous, so it has `item_count` adjacent items. An
        // atomic has the same layout as its number. Other users of the array share its memory, which is
        // why atomics are used. Loads are allowed on read-only memory, and only `Writable` stores.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.len()) }
    }
}

/// A range of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a, T: Number> {
    shared: &'a [T::Shared],
}

impl<T: Number> Source<T> for Part<'_, T> {
    fn len(&self) -> usize {
        self.shared.len()
    }

    #[inline(always)]
    fn get(&self, index: usize) -> T {
        T::read(&self.shared[index])
    }
}

/// A writable array.
#[derive(Debug)]
pub(crate) struct Writable<T: Number> {
    array: Array<T>,
}

impl<T: Number> Writable<T> {
    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.array.len()
    }

    /// Returns a range of the array for writing.
    pub(crate) fn part(&self, range: Range<usize>) -> WritablePart<'_, T> {
        WritablePart { shared: &self.array.shared()[range] }
    }
}

/// A range of a writable array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritablePart<'a, T: Number> {
    shared: &'a [T::Shared],
}

impl<T: Number, V: Into<T>> Sink<V> for WritablePart<'_, T> {
    #[inline(always)]
    fn put(&mut self, index: usize, value: V) {
        value.into().write(&self.shared[index]);
    }
}
