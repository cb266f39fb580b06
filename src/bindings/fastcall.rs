//! `spend`, `check`, `reserve` and `charge` of `Limiter` and `BoundLimit`, the other verbs of `Limiter`, and
//! the block of a `Reservation`, written against the C calling convention.
//!
//! PyO3's own trampoline and argument parser, which `peek` uses, add 250 instructions to a call with one
//! argument, and more to one with optional arguments; a spend takes 1,320. These methods use neither, but
//! a calling convention of the stable ABI, and become descriptors of PyO3's classes when the module is
//! loaded. `method` alone reads what the interpreter passes.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;

use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::bound_limit::{BoundLimit, CHARGE, CHECK, RESERVE, SPEND, WaiterArgs, verb};
use crate::bindings::errors::with_cost;
use crate::bindings::id_text::utf8;
use crate::bindings::limiter::Limiter;
use crate::bindings::once::Once;
use crate::bindings::reservation::Reservation;
use crate::engine::verb::Verb;
use crate::limiter::Call;
use crate::sync::Ordering;

type RawObject = *mut ffi::PyObject;

/// The parameters after the id of verbs that decide.
const COST: &str = "cost=1, *, factor=None, keep=0";
const ESTIMATE: &str = "estimate=1, *, factor=None, keep=0, timeout=None";

/// Adds the methods to their classes.
pub(crate) fn attach(py: Python<'_>) -> PyResult<()> {
    type Documented = (ffi::PyCFunctionFastWithKeywords, &'static str);
    let (bound, limiter) = (py.get_type::<BoundLimit>(), py.get_type::<Limiter>());
    let verbs: [(&str, &str, Documented, Documented); 4] = [
        (
            "spend",
            COST,
            (method::<OfBound<SPEND>>, doc!(BoundLimit.spend)),
            (method::<OfLimiter<SPEND>>, doc!(Limiter.spend)),
        ),
        (
            "check",
            COST,
            (method::<OfBound<CHECK>>, doc!(BoundLimit.check)),
            (method::<OfLimiter<CHECK>>, doc!(Limiter.check)),
        ),
        (
            "reserve",
            ESTIMATE,
            (method::<OfBound<RESERVE>>, doc!(BoundLimit.reserve)),
            (method::<OfLimiter<RESERVE>>, doc!(Limiter.reserve)),
        ),
        (
            "charge",
            COST,
            (method::<OfBound<CHARGE>>, doc!(BoundLimit.charge)),
            (method::<OfLimiter<CHARGE>>, doc!(Limiter.charge)),
        ),
    ];
    for (verb, parameters, (of_bound, bound_docs), (of_limiter, limiter_docs)) in verbs {
        add(&bound, verb, of_bound, &format!("($self, id, {parameters})"), bound_docs)?;
        add(&limiter, verb, of_limiter, &format!("($self, name, id, {parameters})"), limiter_docs)?;
    }
    for (verb, docs, by_name, _) in BY_NAME {
        let signature: String = bound.getattr(verb)?.getattr("__text_signature__")?.extract()?;
        let signature = signature.replacen("$self, ", "$self, name, ", 1);
        add(&limiter, verb, by_name, &signature, docs)?;
    }
    let reservation = py.get_type::<Reservation>();
    add(&reservation, "__enter__", method::<EnterBlock>, "($self)", "")?;
    add(&reservation, "__exit__", method::<ExitBlock>, "($self, exc_type, exc, traceback, /)", "")
}

/// A call of a bound limit with one argument.
type CallWithOne =
    for<'py> fn(&Bound<'py, BoundLimit>, &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

/// The verbs of `Limiter` that call those of `BoundLimit`, with their docs and the call with one argument, as
/// almost all are.
const BY_NAME: [(&str, &str, ffi::PyCFunctionFastWithKeywords, CallWithOne); 5] = [
    ("refund", doc!(Limiter.refund), method::<ByName<0>>, |bound, id| {
        Ok(bound.get().refund(id, Argument::Missing, None)?.into_any())
    }),
    ("reset", doc!(Limiter.reset), method::<ByName<1>>, |bound, id| {
        Ok(PyBool::new(id.py(), bound.get().reset(id)?).to_owned().into_any())
    }),
    ("peek", doc!(Limiter.peek), method::<ByName<2>>, |bound, id| {
        Ok(bound.get().peek(id)?.into_any())
    }),
    ("spend_each", doc!(Limiter.spend_each), method::<ByName<3>>, |bound, ids| {
        bound.get().spend_each(ids, None, None)
    }),
    ("acquire", doc!(Limiter.acquire), method::<ByName<4>>, |bound, id| {
        BoundLimit::acquire(bound, id, Argument::Missing, None, None)
    }),
];

fn add(
    class: &Bound<'_, PyType>,
    name: &str,
    method: ffi::PyCFunctionFastWithKeywords,
    signature: &str,
    docs: &str,
) -> PyResult<()> {
    // Leaked, as is the definition, because the descriptor keeps their addresses for the life of the class, which
    // is the life of the process.
    let leak = |text: String| PyResult::Ok(Box::leak(CString::new(text)?.into_boxed_c_str()));
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: leak(name.to_owned())?.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: method },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        // As the interpreter separates them.
        ml_doc: leak(format!("{name}{signature}\n--\n\n{docs}"))?.as_ptr(),
    }));
    // SAFETY: the class is a type object, the definition lives forever, and its flags match
    // the signature of its function. The descriptor checks at each call that `self` is of the class.
    let descriptor = unsafe {
        let descriptor = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
        Bound::from_owned_ptr_or_err(class.py(), descriptor)?
    };
    class.setattr(name, descriptor)
}

/// A method of a class.
trait Method {
    type Class: PyClass;

    fn call<'py>(
        slf: &Bound<'py, Self::Class>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

/// The arguments of a call, as the interpreter passes them.
#[derive(Clone, Copy)]
struct Arguments<'a, 'py> {
    positional: &'a [Borrowed<'a, 'py, PyAny>],
    /// The values of the keywords, in the order of their names.
    named: &'a [Borrowed<'a, 'py, PyAny>],
    names: Option<Borrowed<'a, 'py, PyTuple>>,
}

/// Calls a method. Raises its error, or an exception for a panic, which must not unwind into the
/// interpreter.
unsafe extern "C" fn method<M: Method>(
    slf: RawObject,
    arguments: *const RawObject,
    count: ffi::Py_ssize_t,
    names: RawObject,
) -> RawObject {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the interpreter calls methods with the thread attached, and their descriptor has checked
        // the class of `slf`. `arguments` points to `count` objects, and one more for each name in the tuple
        // `names`, which is null if there is none. `Borrowed` has the layout of a pointer that is not null.
        // The interpreter keeps all objects for the length of the call.
        let (slf, arguments) = unsafe {
            let py = Python::assume_attached();
            let names = Borrowed::from_ptr_or_opt(py, names);
            let names = names.map(|names| names.cast_unchecked::<PyTuple>());
            let len = count as usize + names.map_or(0, |names| names.len());
            let all = match len {
                0 => &[],
                _ => slice::from_raw_parts(arguments.cast::<Borrowed<'_, '_, PyAny>>(), len),
            };
            let (positional, named) = all.split_at_unchecked(count as usize);
            let slf = Borrowed::from_ptr(py, slf).cast_unchecked::<M::Class>();
            (slf, Arguments { positional, named, names })
        };
        M::call(&slf, arguments).map_or_else(raise_error, Bound::into_ptr)
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
        // SAFETY: as in `method`. The interpreter is shutting down, so PyO3 does not attach.
        error.restore(unsafe { Python::assume_attached() });
    }
    null_mut()
}

/// `BoundLimit.spend(id, cost=1, *, factor=None, keep=0)`, `check`, `charge`, and
/// `reserve(id, estimate=1, *, factor=None, keep=0, timeout=None)`.
struct OfBound<const VERB: u8>;

impl<const VERB: u8> Method for OfBound<VERB> {
    type Class = BoundLimit;

    #[inline(always)]
    fn call<'py>(
        slf: &Bound<'py, BoundLimit>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let ([id], None) = (arguments.positional, arguments.names)
            && let Some(result) = call_with_id::<VERB>(slf.get(), id)
        {
            return result;
        }
        call_bound(slf, verb(VERB), arguments)
    }
}

/// Calls a bound limit with any arguments.
#[inline(never)]
fn call_bound<'py>(
    slf: &Bound<'py, BoundLimit>,
    verb: Verb,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let names = ParameterNames::interned(slf.py()).of(verb);
    let [id, rest @ .., _] = arguments.parse(&names[1..], POSITIONAL - 1)?;
    let Some(id) = id else { return Err(missing("id")) };
    call(slf, verb, id, rest)
}

/// `Limiter.spend(name, id, cost=1, *, factor=None, keep=0)`, `check`, `charge`, and
/// `reserve(name, id, estimate=1, *, factor=None, keep=0, timeout=None)`.
struct OfLimiter<const VERB: u8>;

impl<const VERB: u8> Method for OfLimiter<VERB> {
    type Class = Limiter;

    #[inline(always)]
    fn call<'py>(
        slf: &Bound<'py, Limiter>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let ([name, id], None) = (arguments.positional, arguments.names)
            && let Some(last) = last_bound(slf, name)
            && let Some(result) = call_with_id::<VERB>(last.get(), id)
        {
            return result;
        }
        call_limiter(slf, verb(VERB), arguments)
    }
}

/// Calls a limiter with any arguments.
#[inline(never)]
fn call_limiter<'py>(
    slf: &Bound<'py, Limiter>,
    verb: Verb,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let names = ParameterNames::interned(slf.py()).of(verb);
    let [name, id, rest @ ..] = arguments.parse(names, POSITIONAL)?;
    let (Some(name), Some(id)) = (name, id) else { return Err(missing("name and id")) };
    call(&bound_named(slf, name)?, verb, id, rest)
}

/// A verb of `Limiter` that is the one of `limit(name)`, by its index in the table.
struct ByName<const NUMBER: usize>;

impl<const NUMBER: usize> Method for ByName<NUMBER> {
    type Class = Limiter;

    fn call<'py>(
        slf: &Bound<'py, Limiter>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The descriptor is called with the bound limit, so that no method object is made.
        // Attached, so that references are released at once; see `raise_error`.
        if let ([name, argument], None) = (arguments.positional, arguments.names)
            && let Some(result) = Python::try_attach(|_| {
                let (.., call) = BY_NAME[NUMBER];
                call(&bound_named(slf, name)?, argument)
            })
        {
            return result;
        }
        static VERBS: [Once<Py<PyAny>>; BY_NAME.len()] = [const { Once::new() }; BY_NAME.len()];
        let py = slf.py();
        let find =
            || PyResult::Ok(py.get_type::<BoundLimit>().getattr(BY_NAME[NUMBER].0)?.unbind());
        call_by_name(slf, VERBS[NUMBER].get_or_try_init(py, find)?.bind(py), arguments)
    }
}

/// Calls a method of the bound limit whose name is the first argument, or the keyword `name`.
fn call_by_name<'py>(
    slf: &Bound<'py, Limiter>,
    verb: &Bound<'py, PyAny>,
    arguments: Arguments<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let (mut name, rest) = match arguments.positional {
        [name, rest @ ..] => (Some(&**name), rest),
        [] => (None, &[][..]),
    };
    let mut others = None;
    if let Some(keywords) = arguments.names {
        let others = others.insert(PyDict::new(py));
        for (keyword, given) in keywords.iter_borrowed().zip(arguments.named) {
            if name.is_none() && keyword.eq("name")? {
                name = Some(given);
            } else {
                others.set_item(keyword, given)?;
            }
        }
    }
    let Some(name) = name else { return Err(missing("name")) };
    let given = bound_named(slf, name)?;
    let given = std::iter::once(given.as_any()).chain(rest.iter().map(|given| &**given));
    let given = PyTuple::new(py, given.collect::<SmallVec<[_; 8]>>())?;
    verb.call(given, others.as_ref())
}

/// `Reservation.__enter__()`.
struct EnterBlock;

impl Method for EnterBlock {
    type Class = Reservation;

    #[inline(always)]
    fn call<'py>(
        slf: &Bound<'py, Reservation>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ([], None) = (arguments.positional, arguments.names) else {
            return Err(PyTypeError::new_err("__enter__ takes no arguments"));
        };
        slf.get().enter(slf.py())?;
        Ok(slf.clone().into_any())
    }
}

/// `Reservation.__exit__(exc_type, exc, traceback, /)`.
struct ExitBlock;

impl Method for ExitBlock {
    type Class = Reservation;

    #[inline(always)]
    fn call<'py>(
        slf: &Bound<'py, Reservation>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ([_, exception, _], None) = (arguments.positional, arguments.names) else {
            let count = arguments.positional.len() + arguments.named.len();
            let message = format!("__exit__ takes 3 arguments by position, found {count}");
            return Err(PyTypeError::new_err(message));
        };
        slf.get().exit(exception)?;
        Ok(slf.py().None().into_bound(slf.py()))
    }
}

/// Returns the limit of the previous call, if it has this name.
#[inline(always)]
fn last_bound<'a, 'py>(
    limiter: &'a Bound<'py, Limiter>,
    name: &Bound<'py, PyAny>,
) -> Option<Borrowed<'a, 'py, BoundLimit>> {
    // SAFETY: `last` is null or a BoundLimit in the limiter's dictionary, from which nothing is ever
    // removed, so it lives as long as the limiter does. Acquire pairs with the Release in
    // `bound_named`: a thread that sees the pointer sees the whole object.
    let last = unsafe {
        let last = limiter.get().last.load(Ordering::Acquire);
        Borrowed::from_ptr_or_opt(limiter.py(), last)?.cast_unchecked::<BoundLimit>()
    };
    (last.get().name.as_ptr() == name.as_ptr()).then_some(last)
}

/// Returns the limit with this name.
fn bound_named<'py>(
    limiter: &Bound<'py, Limiter>,
    name: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, BoundLimit>> {
    if let Some(last) = last_bound(limiter, name) {
        return Ok(last.to_owned());
    }
    let bound = limiter.get().bound(name)?;
    limiter.get().last.store(bound.as_ptr(), Ordering::Release);
    Ok(bound)
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
        return Some(reserved.map(Bound::into_any));
    }
    Some(Ok(bound.try_one::<VERB>(text, id)?.into_any()))
}

/// The arguments after the id, in the order of the parameters: tokens, factor, keep and timeout.
type Rest<'a, 'py> = [Option<&'a Bound<'py, PyAny>>; 4];

fn call<'py>(
    bound: &Bound<'py, BoundLimit>,
    verb: Verb,
    id: &Bound<'py, PyAny>,
    [cost, factor, keep, timeout]: Rest<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let what = if verb == Verb::Reserve { "estimate" } else { "cost" };
    let tokens = match cost {
        None => 1,
        Some(cost) => arguments::saturating(what, cost)?,
    };
    let adjustment = arguments::adjustment(factor, keep)?;
    if verb == Verb::Reserve {
        let given_factor = factor.filter(|factor| !factor.is_none());
        let timeout_ns = arguments::reserve_timeout_ns(timeout, given_factor)?;
        if timeout_ns.is_some() {
            let waiter = WaiterArgs { verb, id, cost, keep, timeout_ns };
            return bound.get().waiter(id.py(), waiter, None)?.wait(id.py());
        }
        let reserved = BoundLimit::reserve(bound, id, tokens, adjustment.as_ref());
        return reserved.map(Bound::into_any).map_err(|error| with_cost(error, cost));
    }
    let decision = match (adjustment, utf8(id)) {
        (None, Some(text)) => bound.get().call_text(Call::new(verb, text, tokens), id),
        (adjustment, _) => bound.get().call(verb, id, tokens, adjustment.as_ref()),
    };
    decision.map(Bound::into_any).map_err(|error| with_cost(error, cost))
}

#[cold]
fn missing(what: &str) -> PyErr {
    PyTypeError::new_err(format!("{what} must be given"))
}

/// The number of parameters of `Limiter.reserve`, which has the most.
const PARAMETERS: usize = 6;

/// How many parameters of a limiter's method can be given by position: the name, the id and the tokens.
const POSITIONAL: usize = 3;

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

    /// Returns the parameters of a limiter's method. A bound limit has the same ones without the name.
    fn of(&self, verb: Verb) -> &[Py<PyString>] {
        if verb == Verb::Reserve { &self.of_reserve } else { &self.of_spend }
    }
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// Assigns the arguments to parameters, of which the first `positional` can be given by position.
    #[inline(always)]
    fn parse(
        &self,
        names: &[Py<PyString>],
        positional: usize,
    ) -> PyResult<[Option<&'a Bound<'py, PyAny>>; PARAMETERS]> {
        let count = self.positional.len();
        if count > positional {
            let message = format!(
                "at most {positional} arguments can be given without their names, found {count}; \
                 write the others as factor=..., keep=... or timeout=..."
            );
            return Err(PyTypeError::new_err(message));
        }
        let mut values = [None; PARAMETERS];
        for (value, given) in values.iter_mut().zip(self.positional) {
            *value = Some(&**given);
        }
        if let Some(keywords) = self.names {
            self.assign_named(&keywords, names, &mut values)?;
        }
        Ok(values)
    }

    /// Assigns the values of keywords to parameters.
    fn assign_named(
        &self,
        keywords: &Bound<'_, PyTuple>,
        names: &[Py<PyString>],
        values: &mut [Option<&'a Bound<'py, PyAny>>; PARAMETERS],
    ) -> PyResult<()> {
        for (keyword, given) in keywords.iter_borrowed().zip(self.named) {
            let by_identity = names.iter().position(|name| name.is(keyword));
            let by_value = || names.iter().position(|name| keyword.eq(name).unwrap_or(false));
            let Some(parameter) = by_identity.or_else(by_value) else {
                let message = format!("there is no argument {}", keyword.repr()?);
                return Err(PyTypeError::new_err(message));
            };
            if values[parameter].replace(given).is_some() {
                let message = format!("the argument {} is given twice", keyword.repr()?);
                return Err(PyTypeError::new_err(message));
            }
        }
        Ok(())
    }
}
