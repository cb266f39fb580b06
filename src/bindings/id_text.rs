//! Conversion of Python ids and addresses to text.

use std::borrow::Cow;
use std::ops::Range;
use std::ptr::null_mut;
use std::{array, mem};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple};

use crate::bindings::arguments::{as_integer, builtin_repr, int_and_overflow, wrong_type};
use crate::bindings::errors::{at_position, raise, shown};
use crate::bindings::once::Once;
use crate::engine::id::client_address;
use crate::limiter::IdList;
use crate::prefetch::prefetch;

/// The approximate offset of the text in a `str` object. If an interpreter uses a different layout, the
/// prefetch is useless but harmless.
const TEXT_OFFSET: usize = 48;

/// The number of ids that are prefetched at a time.
const FETCHED: usize = 16;

/// Returns the text of an id, which is a `str`, an `int` (in decimal), UTF-8 `bytes`, a `uuid.UUID` or
/// an address of `ipaddress`.
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
    raise("InvalidId", &message)
}

fn other_id_text<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    let expected = "a str, int, bytes, UUID, IPv4Address or IPv6Address";
    if given.is_instance_of::<PyBool>() {
        return Err(wrong_type("id", expected, given));
    }
    if given.is_instance_of::<PyInt>() {
        return Ok(Cow::Owned(match int_and_overflow(given) {
            (number, 0) => number.to_string(),
            _ => builtin_repr::<PyInt>(given)?,
        }));
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return std::str::from_utf8(bytes.as_bytes())
            .map(Cow::Borrowed)
            .map_err(|_| not_utf8(given));
    }
    if has_text_form(given)? {
        return Ok(Cow::Owned(given.str()?.to_str()?.to_owned()));
    }
    // NumPy integers, including the items of NumPy and pandas columns.
    match as_integer(given) {
        Some(number) => Ok(Cow::Owned(builtin_repr::<PyInt>(&number)?)),
        None => Err(wrong_type("id", expected, given)),
    }
}

/// Returns the object that a decision keeps as its id: the id itself if its class is exactly `str`,
/// `int` or `bytes`, and its text otherwise. An object of another class could refer to the decision,
/// and the garbage collector would not find that cycle.
pub(crate) fn kept_id<'py>(given: &Bound<'py, PyAny>, text: &str) -> Bound<'py, PyAny> {
    let is_plain = given.is_exact_instance_of::<PyString>()
        || given.is_exact_instance_of::<PyInt>()
        || given.is_exact_instance_of::<PyBytes>();
    if is_plain { given.clone() } else { PyString::new(given.py(), text).into_any() }
}

/// Drops the id that a decision kept.
#[inline(always)]
pub(crate) fn drop_kept_id(_py: Python<'_>, id: Option<Py<PyAny>>) {
    // SAFETY: the thread is attached, and the reference is released once. This function ignores null. It has no
    // guard, and needs none: the classes of kept ids have no destructor that runs Python code.
    unsafe { ffi::Py_DecRef(id.map_or_else(null_mut, Py::into_ptr)) };
}

/// Returns whether `str(given)` is the text of the id.
fn has_text_form(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CLASSES: [(&str, &str, Once<Py<PyAny>>); 3] = [
        ("uuid", "UUID", Once::new()),
        ("ipaddress", "IPv4Address", Once::new()),
        ("ipaddress", "IPv6Address", Once::new()),
    ];
    let py = given.py();
    for (module, name, class) in &CLASSES {
        // This imports nothing new for valid ids: an instance exists only if its module is imported.
        if given.is_instance(class.import(py, module, name)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the text of an exact `str` that UTF-8 can encode, or `None` for anything else.
#[inline(always)]
pub(crate) fn utf8<'a>(id: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    // The slow path reports the error.
    id.cast_exact::<PyString>().ok()?.to_str().ok()
}

/// Ids of which each that is not an exact `str` counts as empty.
pub(crate) struct StrIds<'a, 'py> {
    ids: &'a Bound<'py, PyTuple>,
    len: usize,
}

impl<'a, 'py> StrIds<'a, 'py> {
    pub(crate) fn new(ids: &'a Bound<'py, PyTuple>) -> StrIds<'a, 'py> {
        StrIds { ids, len: ids.len() }
    }

    #[inline(always)]
    fn object(&self, index: usize) -> Option<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: the tuple has an object at each index below its length, and keeps it.
        (index < self.len).then(|| unsafe {
            let object = ffi::PyTuple_GetItem(self.ids.as_ptr(), index as ffi::Py_ssize_t);
            Borrowed::from_ptr(self.ids.py(), object)
        })
    }

    /// Prefetches some ids, and returns those that exist.
    ///
    /// An instruction for a prefetch lasts until the processor has the address of the page. A short
    /// loop of them waits for several pages at once: a quarter less time for a million ids in random order.
    #[inline(always)]
    fn fetch(&self, first: usize) -> [Option<Borrowed<'a, 'py, PyAny>>; FETCHED] {
        array::from_fn(|offset| {
            let id = self.object(first + offset)?;
            let object = id.as_ptr().cast::<u8>();
            prefetch(object);
            // The text of a short `str` follows its header, often on the next cache line.
            prefetch(object.wrapping_add(TEXT_OFFSET));
            Some(id)
        })
    }

    /// Returns the text of an exact `str` of the tuple, which lives as long as the tuple.
    #[inline(always)]
    fn text(&self, id: Borrowed<'a, 'py, PyAny>) -> Option<&'a str> {
        // SAFETY: the text lives as long as its `str`, which the tuple keeps alive, so as long as `ids`.
        utf8(&id).map(|text| unsafe { &*std::ptr::from_ref(text) })
    }
}

impl IdList for StrIds<'_, '_> {
    #[inline(always)]
    fn try_for_each<'a, E>(
        &'a self,
        range: Range<usize>,
        mut visit: impl FnMut(usize, &'a str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = self.fetch(range.start);
        for first in range.clone().step_by(FETCHED) {
            // Beyond the range, too, because the next one follows.
            let ids = mem::replace(&mut next, self.fetch(first + FETCHED));
            for (index, id) in (first..range.end).zip(ids.into_iter().flatten()) {
                visit(index, self.text(id).unwrap_or_default())?;
            }
        }
        Ok(())
    }
}

/// Returns the strings of ids, which live as long as the tuple.
pub(crate) fn id_texts<'a>(ids: &'a Bound<'_, PyTuple>) -> PyResult<Vec<Cow<'a, str>>> {
    let texts = StrIds::new(ids);
    let text = |index| {
        if let Some(text) = texts.object(index).and_then(|id| texts.text(id)) {
            return Ok(Cow::Borrowed(text));
        }
        let id = ids.get_borrowed_item(index)?;
        match id_text(&id) {
            Ok(text) => Ok(Cow::Owned(text.into_owned())),
            Err(error) => Err(at_position(ids.py(), error, "id", index, ids.len())),
        }
    };
    (0..ids.len()).map(text).collect()
}

#[doc = doc!(canonical_address)]
#[pyfunction]
pub(crate) fn canonical_address(text: &str, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
    client_address(text, ipv6_prefix)
}
