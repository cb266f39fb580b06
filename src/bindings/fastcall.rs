//! `spend`, `check` and `reserve` of `Limiter` and `BoundLimit`, and the block of a `Reservation`, written
//! against the C calling convention.
//!
//! PyO3's own trampoline and argument parser take about as long as a whole decision; these methods
//! use neither. They use calling conventions of the stable ABI, and become descriptors of PyO3's
//! classes when the module is loaded. The `unsafe` that this needs is here:
//! reading the interpreter's argument array, and casting to types that the interpreter has checked.

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::bindings::arguments;
use crate::bindings::bound_limit::BoundLimit;
use crate::bindings::errors::with_cost;
use crate::bindings::id_text::utf8;
use crate::bindings::limiter::Limiter;
use crate::bindings::once::Once;
use crate::bindings::reservation::Reservation;
use crate::engine::operation::Verb;
use crate::limiter::Call;
use crate::sync::Ordering;

type RawObject = *mut ffi::PyObject;

/// Expands to the documentation of a method with its signature, as the interpreter separates them.
macro_rules! signed {
    ($signature:literal, $doc:expr) => {
        ffi::c_str!(concat!($signature, "\n--\n\n", $doc))
    };
}

/// Adds the methods to their classes.
pub(crate) fn attach(py: Python<'_>) -> PyResult<()> {
    let bound = py.get_type::<BoundLimit>();
    let spend = signed!("spend($self, id, cost=1, factor=None, *, keep=0)", doc!(BoundLimit.spend));
    let check = signed!("check($self, id, cost=1, factor=None, *, keep=0)", doc!(BoundLimit.check));
    let reserve = signed!(
        "reserve($self, id, estimate=1, *, factor=None, keep=0, timeout=None)",
        doc!(BoundLimit.reserve)
    );
    add(&bound, c"spend", with_keywords(bound_call::<SPEND>), spend)?;
    add(&bound, c"check", with_keywords(bound_call::<CHECK>), check)?;
    add(&bound, c"reserve", with_keywords(bound_call::<RESERVE>), reserve)?;
    let limiter = py.get_type::<Limiter>();
    let spend =
        signed!("spend($self, name, id, cost=1, factor=None, *, keep=0)", doc!(Limiter.spend));
    let check =
        signed!("check($self, name, id, cost=1, factor=None, *, keep=0)", doc!(Limiter.check));
    let reserve = signed!(
        "reserve($self, name, id, estimate=1, *, factor=None, keep=0, timeout=None)",
        doc!(Limiter.reserve)
    );
    add(&limiter, c"spend", with_keywords(limiter_call::<SPEND>), spend)?;
    add(&limiter, c"check", with_keywords(limiter_call::<CHECK>), check)?;
    add(&limiter, c"reserve", with_keywords(limiter_call::<RESERVE>), reserve)?;
    let reservation = py.get_type::<Reservation>();
    let enter = ffi::PyMethodDefPointer { PyCFunction: enter_block };
    add(&reservation, c"__enter__", (enter, ffi::METH_NOARGS), signed!("__enter__($self)", ""))?;
    let exit = ffi::PyMethodDefPointer { PyCFunctionFast: exit_block };
    let docs = signed!("__exit__($self, exc_type, exc, traceback, /)", "");
    add(&reservation, c"__exit__", (exit, ffi::METH_FASTCALL), docs)
}

/// A function, and the flags of its calling convention.
type Method = (ffi::PyMethodDefPointer, c_int);

fn with_keywords(method: ffi::PyCFunctionFastWithKeywords) -> Method {
    let pointer = ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: method };
    (pointer, ffi::METH_FASTCALL | ffi::METH_KEYWORDS)
}

fn add(
    class: &Bound<'_, PyType>,
    name: &'static CStr,
    (ml_meth, ml_flags): Method,
    docs: &'static CStr,
) -> PyResult<()> {
    let definition =
        ffi::PyMethodDef { ml_name: name.as_ptr(), ml_meth, ml_flags, ml_doc: docs.as_ptr() };
    // Leaked, because the descriptor keeps the address of the definition for the life of the class, which
    // is the life of the process.
    let definition = Box::leak(Box::new(definition));
    // SAFETY: the class is a type object, the definition lives forever, and its flags match
    // the signature of its function. The descriptor checks at each call that `self` is of the class.
    let descriptor = unsafe {
        let descriptor = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
        Bound::from_owned_ptr_or_err(class.py(), descriptor)?
    };
    let name = name.to_str().unwrap_or_default();
    class.setattr(name, descriptor)
}

/// The verbs of the compiled calls.
const SPEND: u8 = 0;
const CHECK: u8 = 1;
const RESERVE: u8 = 2;

pub(crate) const fn verb(number: u8) -> Verb {
    match number {
        SPEND => Verb::Spend,
        CHECK => Verb::Check,
        _ => Verb::Reserve,
    }
}

/// `BoundLimit.spend(id, cost=1, factor=None, *, keep=0)`, `check`, and
/// `reserve(id, estimate=1, *, factor=None, keep=0, timeout=None)`.
unsafe extern "C" fn bound_call<const VERB: u8>(
    slf: RawObject,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    keywords: RawObject,
) -> RawObject {
    enter(|py| {
        // SAFETY: the method's descriptor has checked the class of `slf`.
        let slf = unsafe { Borrowed::from_ptr(py, slf).cast_unchecked::<BoundLimit>() };
        if count == 1 && keywords.is_null() {
            // SAFETY: the interpreter calls with `count` valid objects, and keeps them for the length
            // of the call.
            let id = unsafe { Borrowed::from_ptr(py, *arguments) };
            if let Some(result) = call_with_id::<VERB>(slf.get(), &id) {
                return result;
            }
        }
        // SAFETY: as above; one more object follows for each name in `keywords`.
        unsafe { bound_call_with(&slf, verb(VERB), arguments, count, keywords) }
    })
}

/// Does the same as `bound_call`, with any arguments.
///
/// # Safety
/// The same as for `parse`.
#[inline(never)]
unsafe fn bound_call_with<'py>(
    slf: &Bound<'py, BoundLimit>,
    verb: Verb,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    keywords: RawObject,
) -> PyResult<Bound<'py, PyAny>> {
    let (names, positional) = ParameterNames::interned(slf.py()).of(verb);
    let names = &names[1..];
    // SAFETY: guaranteed by the caller.
    let [id, rest @ .., _] =
        unsafe { parse(slf.py(), arguments, count, keywords, names, positional - 1)? };
    let Some(id) = id else { return Err(missing("id")) };
    call(slf, verb, &id, rest)
}

/// `Limiter.spend(name, id, cost=1, factor=None, *, keep=0)`, `check`, and
/// `reserve(name, id, estimate=1, *, factor=None, keep=0, timeout=None)`.
unsafe extern "C" fn limiter_call<const VERB: u8>(
    slf: RawObject,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    keywords: RawObject,
) -> RawObject {
    enter(|py| {
        // SAFETY: as in `bound_call`.
        let slf = unsafe { Borrowed::from_ptr(py, slf).cast_unchecked::<Limiter>() };
        if count == 2 && keywords.is_null() {
            // SAFETY: as in `bound_call`.
            let (name, id) = unsafe {
                (Borrowed::from_ptr(py, *arguments), Borrowed::from_ptr(py, *arguments.add(1)))
            };
            if let Some(last) = last_bound(&slf, &name)
                && let Some(result) = call_with_id::<VERB>(last.get(), &id)
            {
                return result;
            }
        }
        // SAFETY: as in `bound_call`.
        unsafe { limiter_call_with(&slf, verb(VERB), arguments, count, keywords) }
    })
}

/// Does the same as `limiter_call`, with any arguments.
///
/// # Safety
/// The same as for `parse`.
#[inline(never)]
unsafe fn limiter_call_with<'py>(
    slf: &Bound<'py, Limiter>,
    verb: Verb,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    keywords: RawObject,
) -> PyResult<Bound<'py, PyAny>> {
    let (names, positional) = ParameterNames::interned(slf.py()).of(verb);
    // SAFETY: guaranteed by the caller.
    let [name, id, rest @ ..] =
        unsafe { parse(slf.py(), arguments, count, keywords, names, positional)? };
    let (Some(name), Some(id)) = (name, id) else { return Err(missing("name and id")) };
    if let Some(last) = last_bound(slf, &name) {
        return call(&last, verb, &id, rest);
    }
    let bound = slf.get().bound(&name)?;
    slf.get().last.store(bound.as_ptr(), Ordering::Release);
    call(&bound, verb, &id, rest)
}

/// `Reservation.__enter__()`.
unsafe extern "C" fn enter_block(slf: RawObject, _: RawObject) -> RawObject {
    enter(|py| {
        // SAFETY: as in `bound_call`.
        let slf = unsafe { Borrowed::from_ptr(py, slf).cast_unchecked::<Reservation>() };
        slf.get().enter(py)?;
        Ok(slf.to_owned().into_any())
    })
}

/// `Reservation.__exit__(exc_type, exc, traceback, /)`.
unsafe extern "C" fn exit_block(
    slf: RawObject,
    arguments: *mut RawObject,
    count: ffi::Py_ssize_t,
) -> RawObject {
    enter(|py| {
        if count != 3 {
            let message = format!("__exit__ takes 3 arguments, found {count}");
            return Err(PyTypeError::new_err(message));
        }
        // SAFETY: as in `bound_call`.
        let (slf, exception) = unsafe {
            let slf = Borrowed::from_ptr(py, slf).cast_unchecked::<Reservation>();
            (slf, Borrowed::from_ptr(py, *arguments.add(1)))
        };
        slf.get().exit(&exception)?;
        Ok(py.None().into_bound(py))
    })
}

/// Returns the limit of the previous call, if it has this name.
#[inline(always)]
fn last_bound<'a, 'py>(
    limiter: &'a Bound<'py, Limiter>,
    name: &Bound<'py, PyAny>,
) -> Option<Borrowed<'a, 'py, BoundLimit>> {
    // SAFETY: `last` is null or a BoundLimit in the limiter's dictionary, from which nothing is ever
    // removed, so it lives as long as the limiter does. Acquire pairs with the Release in
    // `limiter_call_with`: a thread that sees the pointer sees the whole object.
    let last = unsafe {
        let last = limiter.get().last.load(Ordering::Acquire);
        Borrowed::from_ptr_or_opt(limiter.py(), last)?.cast_unchecked::<BoundLimit>()
    };
    (last.get().name.as_ptr() == name.as_ptr()).then_some(last)
}

/// Makes a call whose only argument is an id of type `str`, as in almost all calls. Returns `None` if
/// the slow path is needed; nothing was then read or written.
#[inline(always)]
fn call_with_id<'py, const VERB: u8>(
    bound: &BoundLimit,
    id: &Bound<'py, PyAny>,
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let text = utf8(id)?;
    if VERB == RESERVE {
        let reserved = bound.try_reserve(Call::new(Verb::Reserve, text, 1), id)?;
        return Some(reserved.map(Bound::into_any).map_err(|error| *error));
    }
    Some(Ok(bound.try_one::<VERB>(text, id)?.into_any()))
}

/// The arguments after the id, in the order of the parameters: tokens, factor, keep and timeout.
type Rest<'a, 'py> = [Option<Borrowed<'a, 'py, PyAny>>; 4];

fn call<'py>(
    bound: &Bound<'py, BoundLimit>,
    verb: Verb,
    id: &Bound<'py, PyAny>,
    [cost, factor, keep, timeout]: Rest<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let what = if verb == Verb::Reserve { "estimate" } else { "cost" };
    let tokens = match cost {
        None => 1,
        Some(cost) => arguments::saturating(what, &cost)?,
    };
    let adjustment = arguments::adjustment(factor.as_deref(), keep.as_deref())?;
    if verb == Verb::Reserve {
        let factor = factor.filter(|factor| !factor.is_none());
        let timeout = arguments::reserve_timeout_ns(timeout.as_deref(), factor.as_deref())?;
        let reserved = BoundLimit::reserve(bound, id, tokens, adjustment.as_ref(), timeout);
        return reserved.map(Bound::into_any).map_err(|error| with_cost(error, cost.as_deref()));
    }
    let decision = match (adjustment, utf8(id)) {
        (None, Some(text)) => bound.get().call_text(Call::new(verb, text, tokens), id),
        (adjustment, _) => bound.get().call(verb, id, tokens, adjustment.as_ref()),
    };
    decision.map(Bound::into_any).map_err(|error| with_cost(error, cost.as_deref()))
}

/// Runs the body of a method. Raises its error, or an exception for a panic, which must not unwind into
/// the interpreter.
#[inline(always)]
fn enter<'py>(body: impl FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>) -> RawObject {
    // SAFETY: the interpreter calls its methods with the thread attached.
    let py = unsafe { Python::assume_attached() };
    // The closure returns a pointer, because moving a whole result is slower.
    let outcome = catch_unwind(AssertUnwindSafe(|| match body(py) {
        Ok(result) => result.into_ptr(),
        Err(error) => raise_error(error),
    }));
    outcome.unwrap_or_else(|_| {
        let message = "the Rust core panicked; this is a bug in penstock";
        raise_error(PanicException::new_err(message))
    })
}

/// Raises `error`.
///
/// PyO3 does not know that this thread is attached, so it defers the release of references until the next
/// time it attaches. This function attaches; otherwise an application whose calls all fail would leak.
#[cold]
fn raise_error(error: PyErr) -> RawObject {
    let mut error = Some(error);
    Python::try_attach(|py| error.take().map(|error| error.restore(py)));
    if let Some(error) = error {
        // SAFETY: as in `enter`. The interpreter is shutting down, so PyO3 does not attach.
        error.restore(unsafe { Python::assume_attached() });
    }
    null_mut()
}

#[cold]
fn missing(what: &str) -> PyErr {
    PyTypeError::new_err(format!("{what} must be given"))
}

/// The number of parameters of `Limiter.reserve`, which has the most.
const PARAMETERS: usize = 6;

/// The interned names of the parameters. The interpreter also interns the keywords in source code, so they
/// are almost always the same objects.
struct ParameterNames {
    of_spend: [Py<PyString>; PARAMETERS - 1],
    of_reserve: [Py<PyString>; PARAMETERS],
}

impl ParameterNames {
    fn interned(py: Python<'_>) -> &'static ParameterNames {
        static NAMES: Once<ParameterNames> = Once::new();
        let interned = |name| PyString::intern(py, name).unbind();
        NAMES.get_or_init(py, || ParameterNames {
            of_spend: ["name", "id", "cost", "factor", "keep"].map(interned),
            of_reserve: ["name", "id", "estimate", "factor", "keep", "timeout"].map(interned),
        })
    }

    /// Returns the parameters of a limiter's method, and how many of them can be given by position. A bound
    /// limit has the same ones without the name.
    fn of(&self, verb: Verb) -> (&[Py<PyString>], usize) {
        if verb == Verb::Reserve { (&self.of_reserve, 3) } else { (&self.of_spend, 4) }
    }
}

/// Assigns the arguments of a call to parameters.
///
/// # Safety
/// `arguments` must point to `count` valid objects and one more for each name in `keywords`, which
/// is null or a tuple.
#[inline(always)]
unsafe fn parse<'a, 'py>(
    py: Python<'py>,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    keywords: RawObject,
    names: &[Py<PyString>],
    positional: usize,
) -> PyResult<[Option<Borrowed<'a, 'py, PyAny>>; PARAMETERS]> {
    let count = count as usize;
    if count > positional {
        let message = format!("at most {positional} arguments can be given, found {count}");
        return Err(PyTypeError::new_err(message));
    }
    let mut values = [None; PARAMETERS];
    for (index, value) in values.iter_mut().enumerate().take(count) {
        // SAFETY: there are `count` valid objects, and the interpreter keeps them for the length of
        // the call.
        *value = Some(unsafe { Borrowed::from_ptr(py, *arguments.add(index)) });
    }
    if !keywords.is_null() {
        // SAFETY: as above; the values of the keywords follow the positional ones.
        unsafe { parse_keywords(py, arguments.add(count), keywords, names, &mut values)? };
    }
    Ok(values)
}

/// Assigns the values of keywords to parameters.
///
/// # Safety
/// `arguments` must point to one valid object for each name in the tuple `keywords`.
unsafe fn parse_keywords<'a, 'py>(
    py: Python<'py>,
    arguments: *const RawObject,
    keywords: RawObject,
    names: &[Py<PyString>],
    values: &mut [Option<Borrowed<'a, 'py, PyAny>>; PARAMETERS],
) -> PyResult<()> {
    // SAFETY: the interpreter gives the names as a tuple.
    let keywords = unsafe { Borrowed::from_ptr(py, keywords).cast_unchecked::<PyTuple>() };
    for (index, keyword) in keywords.iter_borrowed().enumerate() {
        let by_identity = names.iter().position(|name| name.is(keyword));
        let by_value = || names.iter().position(|name| keyword.eq(name).unwrap_or(false));
        let Some(parameter) = by_identity.or_else(by_value) else {
            return Err(PyTypeError::new_err(format!("there is no argument {}", keyword.repr()?)));
        };
        if values[parameter].is_some() {
            return Err(PyTypeError::new_err(format!(
                "the argument {} is given twice",
                keyword.repr()?
            )));
        }
        // SAFETY: there is one valid object for each name, and the interpreter keeps them for the
        // length of the call.
        values[parameter] = Some(unsafe { Borrowed::from_ptr(py, *arguments.add(index)) });
    }
    Ok(())
}
