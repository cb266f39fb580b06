//! Arrays of Python, read and written by index, and the columns of simulated events made of them.

use std::ops::Range;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::bindings::arguments;
use crate::simulate::{Columns, Events, Sink, Source};
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
    pub(crate) fn part(&self, range: Range<usize>) -> ArrayPart<'_, T> {
        ArrayPart { shared: &self.shared()[range] }
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
pub(crate) struct ArrayPart<'a, T: Number> {
    shared: &'a [T::Shared],
}

impl<T: Number> Source<T> for ArrayPart<'_, T> {
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

/// An optional column argument.
type ColumnArgument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The columns of the events.
pub(crate) struct EventColumns {
    times: Array<i64>,
    clients: Option<Array<u32>>,
    costs: Option<Array<i64>>,
}

impl EventColumns {
    pub(crate) fn of(
        times: &Bound<'_, PyAny>,
        clients: ColumnArgument<'_, '_>,
        costs: ColumnArgument<'_, '_>,
    ) -> PyResult<EventColumns> {
        let times: Array<i64> = Array::of("times", times)?;
        let clients = clients.map(|clients| Array::of("clients", clients)).transpose()?;
        let costs = costs.map(|costs| Array::of("costs", costs)).transpose()?;
        let events = EventColumns { times, clients, costs };
        events.check_length("clients", events.clients.as_ref().map(Array::len))?;
        events.check_length("costs", events.costs.as_ref().map(Array::len))?;
        Ok(events)
    }

    /// Returns the number of events.
    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }

    fn check_length(&self, name: &str, found: Option<usize>) -> PyResult<()> {
        let expected = self.len();
        let Some(found) = found.filter(|&found| found != expected) else { return Ok(()) };
        let message = format!("{name} must be as long as times, found {found} for {expected}");
        Err(PyValueError::new_err(message))
    }

    /// Acquires an array with one number per event.
    pub(crate) fn column<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Array<T>> {
        let column: Array<T> = Array::of(name, given)?;
        self.check_length(name, Some(column.len())).map(|()| column)
    }

    /// Acquires an array that receives one number per event.
    pub(crate) fn result<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Writable<T>> {
        let column = Array::writable(name, given)?;
        self.check_length(name, Some(column.len())).map(|()| column)
    }

    pub(crate) fn part(
        &self,
        range: Range<usize>,
    ) -> Events<ArrayPart<'_, i64>, ArrayPart<'_, u32>, ArrayPart<'_, i64>> {
        Events {
            times: self.times.part(range.clone()),
            clients: self.clients.as_ref().map(|clients| clients.part(range.clone())),
            costs: self.costs.as_ref().map(|costs| costs.part(range)),
        }
    }
}

/// The requested columns of the results.
pub(crate) struct ResultColumns {
    allowed: Writable<u8>,
    remaining: Option<Writable<i64>>,
    retry_after: Option<Writable<i64>>,
    reset_after: Option<Writable<i64>>,
}

impl ResultColumns {
    pub(crate) fn of<'py>(
        events: &EventColumns,
        allowed: &Bound<'py, PyAny>,
        remaining: ColumnArgument<'_, 'py>,
        retry_after_ns: ColumnArgument<'_, 'py>,
        reset_after_ns: ColumnArgument<'_, 'py>,
    ) -> PyResult<ResultColumns> {
        let column = |name: &str, given: ColumnArgument<'_, 'py>| {
            given.map(|given| events.result(name, given)).transpose()
        };
        Ok(ResultColumns {
            allowed: events.result("allowed", allowed)?,
            remaining: column("remaining", remaining)?,
            retry_after: column("retry_after_ns", retry_after_ns)?,
            reset_after: column("reset_after_ns", reset_after_ns)?,
        })
    }

    pub(crate) fn part(
        &self,
        range: Range<usize>,
    ) -> Columns<WritablePart<'_, u8>, WritablePart<'_, i64>> {
        Columns {
            allowed: self.allowed.part(range.clone()),
            remaining: self.remaining.as_ref().map(|column| column.part(range.clone())),
            retry_after: self.retry_after.as_ref().map(|column| column.part(range.clone())),
            reset_after: self.reset_after.as_ref().map(|column| column.part(range.clone())),
        }
    }
}

/// Acquires the durations of events, which limits on requests in flight need.
pub(crate) fn durations_of(
    events: &EventColumns,
    durations: ColumnArgument<'_, '_>,
    has_slots: bool,
) -> PyResult<Option<Array<i64>>> {
    if has_slots && durations.is_none() {
        let message = "a limit on requests in flight needs the durations of requests; \
                       pass durations=, or for a log duration= (penstock replay --duration)";
        return Err(PyValueError::new_err(message));
    }
    durations.map(|durations| events.column("durations", durations)).transpose()
}
