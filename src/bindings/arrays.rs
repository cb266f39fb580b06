//! Arrays of Python, and the columns of events and results.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::bindings::arguments;
use crate::bindings::errors::at_position;
use crate::bindings::id_text::id_text;
use crate::simulate::Ids;
use crate::simulate::{Columns, Events, Simulator};
use crate::sync::counting::Ordering;
use crate::sync::counting::{AtomicI64, AtomicU8, AtomicU32};

/// A number type that arrays may contain.
pub(crate) trait Number: Element {
    /// The atomic type with the same layout.
    type Shared: Send + Sync;
    /// The description of its arrays in error messages.
    const KIND: &'static str;
    /// The format of its columns, as the module `struct` writes it.
    const FORMAT: &'static str;

    /// Copies a number to its bytes in a column.
    fn copy_to(self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty, $shared:ty, $format:literal, $kind:literal;)*) => {$(
        impl Number for $number {
            type Shared = $shared;
            const KIND: &'static str = $kind;
            const FORMAT: &'static str = $format;

            #[inline(always)]
            fn copy_to(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

numbers! {
    i64, AtomicI64, "q", "a contiguous array of int64";
    u32, AtomicU32, "I", "a contiguous array of uint32";
    u8, AtomicU8, "B", "a contiguous array of uint8";
}

/// A column of numbers: a `memoryview` of a copy.
pub(crate) type Column<'py> = Bound<'py, PyAny>;

/// Creates a column.
pub(crate) fn column<'py, T: Number>(py: Python<'py>, numbers: &[T]) -> PyResult<Column<'py>> {
    let bytes = PyBytes::new_with(py, size_of_val(numbers), |bytes| {
        let places = bytes.chunks_exact_mut(size_of::<T>());
        places.zip(numbers).for_each(|(place, number)| number.copy_to(place));
        Ok(())
    })?;
    PyMemoryView::from(&bytes)?.call_method1("cast", (T::FORMAT,))
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

    /// Acquires an array that is written to.
    ///
    /// # Errors
    /// The same as [`Array::of`], and `TypeError` if the array is read-only.
    pub(crate) fn writable(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Array<T>> {
        let array = Array::of(name, given)?;
        if array.buffer.readonly() {
            let message = format!("{name} must be a writable array, found a read-only one");
            return Err(PyTypeError::new_err(message));
        }
        Ok(array)
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.buffer.item_count()
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
        // why atomics are used. Loads are allowed on read-only memory, and only arrays from `writable`
        // are stored to.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.len()) }
    }
}

/// An optional column argument.
type ColumnArgument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The columns of the events.
pub(crate) struct EventColumns {
    times: Array<i64>,
    clients: Option<Array<u32>>,
    costs: Option<Array<i64>>,
    durations: Option<Array<i64>>,
}

impl EventColumns {
    pub(crate) fn of(
        times: &Bound<'_, PyAny>,
        clients: ColumnArgument<'_, '_>,
        costs: ColumnArgument<'_, '_>,
        durations: ColumnArgument<'_, '_>,
    ) -> PyResult<EventColumns> {
        let times: Array<i64> = Array::of("times", times)?;
        let mut events = EventColumns { times, clients: None, costs: None, durations: None };
        events.clients = clients.map(|given| events.column("clients", given)).transpose()?;
        events.costs = costs.map(|given| events.column("costs", given)).transpose()?;
        events.durations = durations.map(|given| events.column("durations", given)).transpose()?;
        Ok(events)
    }

    /// Checks that there are durations if a limit of the simulator is one on requests in flight.
    ///
    /// # Errors
    /// `ValueError` if there are none.
    pub(crate) fn check_for(&self, simulator: &Simulator) -> PyResult<()> {
        if self.durations.is_some() || !simulator.has_slots() {
            return Ok(());
        }
        let message = "a limit on requests in flight needs the durations of requests; \
                       pass durations=, or duration= for a log";
        Err(PyValueError::new_err(message))
    }

    fn check_length<T: Number>(&self, name: &str, column: Array<T>) -> PyResult<Array<T>> {
        let (found, expected) = (column.len(), self.times.len());
        if found == expected {
            return Ok(column);
        }
        let message = format!("{name} must be as long as times, found {found} for {expected}");
        Err(PyValueError::new_err(message))
    }

    /// Acquires an array with one number per event.
    pub(crate) fn column<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Array<T>> {
        self.check_length(name, Array::of(name, given)?)
    }

    /// Acquires an array that receives one number per event.
    pub(crate) fn result<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Array<T>> {
        self.check_length(name, Array::writable(name, given)?)
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> Events<'_> {
        Events {
            times: self.times.shared(),
            clients: self.clients.as_ref().map(Array::shared),
            costs: self.costs.as_ref().map(Array::shared),
            durations: self.durations.as_ref().map(Array::shared),
        }
    }
}

/// The requested columns of the results.
pub(crate) struct ResultColumns {
    allowed: Array<u8>,
    remaining: Option<Array<i64>>,
    retry_after: Option<Array<i64>>,
    reset_after: Option<Array<i64>>,
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

    /// Returns the columns to write to.
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns {
            allowed: self.allowed.shared(),
            remaining: self.remaining.as_ref().map(Array::shared),
            retry_after: self.retry_after.as_ref().map(Array::shared),
            reset_after: self.reset_after.as_ref().map(Array::shared),
        }
    }
}

/// Returns ids by number.
pub(crate) fn id_list<'py>(py: Python<'py>, ids: &Ids) -> PyResult<Bound<'py, PyList>> {
    // All bytes come from `str` objects, so they are valid UTF-8.
    let texts = ids.iter().map(|id| std::str::from_utf8(id).unwrap_or_default());
    PyList::new(py, texts.collect::<Vec<_>>())
}

fn too_many() -> PyErr {
    PyValueError::new_err("there are more than 2**32 ids")
}

#[doc = doc!(factorise)]
#[pyfunction]
pub(crate) fn factorise<'py>(
    ids: &Bound<'py, PyList>,
) -> PyResult<(Column<'py>, Bound<'py, PyList>)> {
    let py = ids.py();
    let mut seen = Ids::default();
    let mut codes = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let text = id_text(&id);
        let text = text.map_err(|error| at_position(py, error, "id", index, ids.len()))?;
        codes.push(seen.number(text.as_bytes()).ok_or_else(too_many)?);
    }
    Ok((column(py, &codes)?, id_list(py, &seen)?))
}

#[doc = doc!(factorise_fixed)]
#[pyfunction]
pub(crate) fn factorise_fixed<'py>(
    items: &Bound<'py, PyAny>,
    width: usize,
) -> PyResult<(Column<'py>, Column<'py>)> {
    let py = items.py();
    let words: Array<u32> = Array::of("items", items)?;
    if width == 0 || !words.len().is_multiple_of(width) {
        let found = words.len();
        let message = format!("items must be a multiple of {width} words, found {found}");
        return Err(PyValueError::new_err(message));
    }
    let (codes, firsts) = py.detach(|| numbers(&words, width)).ok_or_else(too_many)?;
    Ok((column(py, &codes)?, column(py, &firsts)?))
}

fn numbers(words: &Array<u32>, width: usize) -> Option<(Vec<u32>, Vec<i64>)> {
    let mut seen = Ids::default();
    let mut codes = Vec::with_capacity(words.len() / width);
    let mut firsts: Vec<i64> = Vec::new();
    let mut item = vec![0; 4 * width.min(words.len())];
    for (index, words) in words.shared().chunks_exact(width).enumerate() {
        for (bytes, word) in item.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let code = seen.number(&item)?;
        if code as usize == firsts.len() {
            firsts.push(index as i64);
        }
        codes.push(code);
    }
    Some((codes, firsts))
}
