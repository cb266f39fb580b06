//! The text of an id.

use std::borrow::Cow;
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::bindings::arguments::{spelled_by, wrong_type};
use crate::bindings::errors::{at_position, raise, shown};
use crate::prefetch::prefetch;

/// How many ids are requested at a time: they lie scattered in memory.
const FETCHED: usize = 32;
/// About where the text of a `str` is. Another interpreter may have it elsewhere, and then the hint is
/// useless, and harmless.
const TEXT_OFFSET: usize = 48;

/// Returns the text of an id: a `str`, an `int` in decimal, UTF-8 `bytes`, a `uuid.UUID`, or an
/// address of `ipaddress`.
#[inline(always)]
pub(crate) fn id_text<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    match given.cast::<PyString>() {
        Ok(text) => match text.to_str() {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(_) => Err(not_utf8(given)),
        },
        Err(_) => other_id_text(given),
    }
}

#[cold]
fn not_utf8(given: &Bound<'_, PyAny>) -> PyErr {
    let message = format!("id must be encodable as UTF-8, found {}", shown(given));
    raise(given.py(), "InvalidId", &message, &[])
}

fn other_id_text<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    let wanted = "a str, int, bytes, UUID, IPv4Address or IPv6Address";
    if given.is_instance_of::<PyBool>() {
        return Err(wrong_type("id", wanted, given));
    }
    if given.is_instance_of::<PyInt>() {
        return Ok(match given.extract::<i64>() {
            Ok(number) => Cow::Owned(number.to_string()),
            // int's own repr: a subclass may have another.
            Err(_) => Cow::Owned(spelled_by::<PyInt>(given)?),
        });
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return std::str::from_utf8(bytes.as_bytes())
            .map(Cow::Borrowed)
            .map_err(|_| not_utf8(given));
    }
    if has_text_form(given)? {
        return Ok(Cow::Owned(given.str()?.to_str()?.to_owned()));
    }
    // The integers of NumPy, also inside its columns and those of pandas.
    match whole_number(given) {
        Some(number) => Ok(Cow::Owned(spelled_by::<PyInt>(&number)?)),
        None => Err(wrong_type("id", wanted, given)),
    }
}

/// Returns the integer that an object stands for, if any.
fn whole_number<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the object is valid; the function returns a new reference, or null with an error.
    let number =
        unsafe { Bound::from_owned_ptr_or_err(given.py(), ffi::PyNumber_Index(given.as_ptr())) };
    number.ok()
}

/// Returns the id for a decision to keep: its text, if it is of another class than `str`, `int` and
/// `bytes`. An object of such a class may refer to the decision, and the garbage collector would
/// not see the cycle.
pub(crate) fn kept_id<'py>(given: &Bound<'py, PyAny>, text: &str) -> Bound<'py, PyAny> {
    let is_plain = given.is_exact_instance_of::<PyString>()
        || given.is_exact_instance_of::<PyInt>()
        || given.is_exact_instance_of::<PyBytes>();
    if is_plain { given.clone() } else { PyString::new(given.py(), text).into_any() }
}

/// Whether `str(given)` is the text of an id.
fn has_text_form(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CLASSES: [(&str, &str, PyOnceLock<Py<PyType>>); 3] = [
        ("uuid", "UUID", PyOnceLock::new()),
        ("ipaddress", "IPv4Address", PyOnceLock::new()),
        ("ipaddress", "IPv6Address", PyOnceLock::new()),
    ];
    let py = given.py();
    for (module, name, class) in &CLASSES {
        // A value of these classes exists only if its module is imported already.
        if given.is_instance(class.import(py, module, name)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the text of a plain `str` that can be encoded as UTF-8, and `None` for anything else.
#[inline(always)]
pub(crate) fn utf8<'a>(id: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    let mut length = 0;
    // SAFETY: the type is checked first. The interpreter keeps the text, as UTF-8, for as long as
    // the `str` lives, which is at least as long as `id`; a `str` never changes.
    unsafe {
        if ffi::PyUnicode_CheckExact(id.as_ptr()) == 0 {
            return None;
        }
        let text = ffi::PyUnicode_AsUTF8AndSize(id.as_ptr(), &raw mut length);
        if text.is_null() {
            // The slow path reports the error.
            ffi::PyErr_Clear();
            return None;
        }
        Some(str::from_utf8_unchecked(slice::from_raw_parts(text.cast(), length as usize)))
    }
}

/// Returns the texts of ids; they live as long as the tuple.
pub(crate) fn id_texts<'a>(ids: &'a Bound<'_, PyTuple>) -> PyResult<Vec<Cow<'a, str>>> {
    let mut texts = Vec::with_capacity(ids.len());
    for first in (0..ids.len()).step_by(FETCHED) {
        // First all ids of a block are requested, then each is read.
        let block = first..ids.len().min(first + FETCHED);
        let block = block.map(|index| ids.get_borrowed_item(index));
        let block = block.collect::<PyResult<SmallVec<[_; FETCHED]>>>()?;
        for id in &block {
            let object = id.as_ptr().cast::<u8>();
            prefetch(object);
            // A short text lies behind its header, and the two seldom share a cache line.
            prefetch(object.wrapping_add(TEXT_OFFSET));
        }
        for (index, id) in (first..).zip(&block) {
            texts.push(match utf8(id) {
                // SAFETY: the text lives as long as its `str`, which the tuple owns, so as long as `ids`.
                Some(text) => Cow::Borrowed(unsafe { &*std::ptr::from_ref(text) }),
                None => {
                    let text = id_text(id);
                    let text =
                        text.map_err(|error| at_position(ids.py(), error, "id", index, ids.len()));
                    Cow::Owned(text?.into_owned())
                }
            });
        }
    }
    Ok(texts)
}
