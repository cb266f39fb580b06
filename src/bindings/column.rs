//! A column of numbers, shared with Python through the buffer protocol.

use std::array;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Column of numbers, read through the buffer protocol without copying.
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Column {
    data: Data,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

#[derive(Debug)]
enum Data {
    Flags(Vec<bool>),
    /// Numbers that several columns share, and the index of the first one of this column.
    Numbers(Arc<Vec<i64>>, usize),
    Codes(Vec<u32>),
}

impl From<Vec<bool>> for Column {
    fn from(flags: Vec<bool>) -> Column {
        Column { shape: [flags.len() as ffi::Py_ssize_t], strides: [1], data: Data::Flags(flags) }
    }
}

impl From<Vec<i64>> for Column {
    fn from(numbers: Vec<i64>) -> Column {
        let [column] = Column::split(numbers);
        column
    }
}

impl From<Vec<u32>> for Column {
    fn from(codes: Vec<u32>) -> Column {
        Column { shape: [codes.len() as ffi::Py_ssize_t], strides: [4], data: Data::Codes(codes) }
    }
}

impl PartialEq for Column {
    fn eq(&self, other: &Column) -> bool {
        (self.flags(), self.numbers()) == (other.flags(), other.numbers())
    }
}

impl Column {
    /// Splits numbers into columns of the same length, which share their memory.
    pub(crate) fn split<const N: usize>(numbers: Vec<i64>) -> [Column; N] {
        let (len, numbers) = (numbers.len() / N, Arc::new(numbers));
        array::from_fn(|index| Column {
            shape: [len as ffi::Py_ssize_t],
            strides: [8],
            data: Data::Numbers(Arc::clone(&numbers), index * len),
        })
    }

    pub(crate) fn flags(&self) -> &[bool] {
        match &self.data {
            Data::Flags(flags) => flags,
            Data::Numbers(..) | Data::Codes(_) => &[],
        }
    }

    pub(crate) fn numbers(&self) -> &[i64] {
        match &self.data {
            Data::Flags(_) | Data::Codes(_) => &[],
            Data::Numbers(numbers, first) => &numbers[*first..][..self.shape[0] as usize],
        }
    }
}

#[pymethods]
impl Column {
    /// # Safety
    /// `view` must be null or valid for writing, as the interpreter guarantees.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a column of decisions is read-only"));
        }
        let column = slf.get();
        let (data, size, format): (*const c_void, _, &CStr) = match &column.data {
            Data::Flags(flags) => (flags.as_ptr().cast(), 1, c"?"),
            Data::Numbers(..) => (column.numbers().as_ptr().cast(), 8, c"q"),
            Data::Codes(codes) => (codes.as_ptr().cast(), 4, c"I"),
        };
        let has_flag = |flag| flags & flag == flag;
        let shape = column.shape.as_ptr().cast_mut();
        let strides = column.strides.as_ptr().cast_mut();
        // SAFETY: the view is valid for writing. All pointers point into the column, which is frozen and
        // which the view keeps alive through `obj`. The view is read-only, so no code writes through the
        // pointers.
        unsafe {
            (*view).buf = data.cast_mut();
            (*view).len = column.shape[0] * size;
            (*view).readonly = 1;
            (*view).itemsize = size;
            (*view).ndim = 1;
            (*view).format =
                if has_flag(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { null_mut() };
            (*view).shape = if has_flag(ffi::PyBUF_ND) { shape } else { null_mut() };
            (*view).strides = if has_flag(ffi::PyBUF_STRIDES) { strides } else { null_mut() };
            (*view).suboffsets = null_mut();
            (*view).internal = null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.shape[0] as usize
    }
}
