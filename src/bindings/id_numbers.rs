//! Numbering of ids in order of first occurrence.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bindings::arrays::{Array, Column, column};
use crate::bindings::errors::at_position;
use crate::bindings::id_text::id_text;
use crate::simulate::Ids;
use crate::sync::counting::Ordering;

pub(crate) fn too_many() -> PyErr {
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
    // All bytes come from `str` objects, so they are valid UTF-8.
    let texts = seen.iter().map(|id| std::str::from_utf8(id).unwrap_or_default());
    Ok((column(py, &codes)?, PyList::new(py, texts.collect::<Vec<_>>())?))
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
