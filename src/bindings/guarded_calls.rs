//! Guards around the functions of the interpreter that may run Python code.
//!
//! While the interpreter shuts down, CPython before 3.14 ends every other thread that resumes Python code, by
//! unwinding its stack. If Rust called that code, the unwinding reaches Rust, which aborts the process. PyO3
//! stops a thread that attaches to such an interpreter; these guards stop a thread that is attached.
//!
//! The linker redirects all calls of these functions to the guards, including those that PyO3 makes and
//! those that an implicit drop makes: `build.rs` reads the names from the table below and passes them to the
//! linker. Other C libraries than that of GNU do not unwind a thread, so they need no guards.
//! `tests/python/test_exit.py` fails if the extension calls a function that neither is in the table nor is
//! known to run no Python code.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem;
use std::thread::park;

use pyo3::ffi::{Py_buffer, Py_ssize_t, PyGILState_STATE, PyMethodDef, PyType_Spec, PyTypeObject};

type Object = *mut pyo3::ffi::PyObject;
type Class = *mut PyTypeObject;
type Text = *const c_char;

/// Stops the thread when it is dropped, that is, when the stack is unwound.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread holds no lock of the interpreter, so the process ends without it.
        loop {
            park();
        }
    }
}

/// Defines `__wrap_NAME`, to which the linker redirects calls of `NAME`; `__real_NAME` is the function itself.
/// "C-unwind" keeps the compiler from assuming that the interpreter never unwinds, as PyO3 declares.
macro_rules! guard {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        const _: () = {
            unsafe extern "C-unwind" {
                #[link_name = concat!("__real_", stringify!($name))]
                fn real($($argument: $type),*) $(-> $result)?;
            }

            #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
            unsafe extern "C-unwind" fn guarded($($argument: $type),*) $(-> $result)? {
                let guard = Guard;
                // SAFETY: the caller called this very function, whose signature is that of Python's C API.
                let result = unsafe { real($($argument),*) };
                mem::forget(guard);
                result
            }
        };
    )*};
}

// In alphabetical order. Besides calls, conversions and comparisons, these are functions that drop an object,
// import a module, look up a key, or create an object that the garbage collector tracks: in CPython 3.11,
// that may run the collector, and so any destructor.
guard! {
    fn PyBuffer_Release(view: *mut Py_buffer);
    fn PyCMethod_New(method: *mut PyMethodDef, slf: Object, module: Object, class: Class) -> Object;
    fn PyDescr_NewMethod(class: Class, method: *mut PyMethodDef) -> Object;
    fn PyDict_DelItem(dict: Object, key: Object) -> c_int;
    fn PyDict_GetItemWithError(dict: Object, key: Object) -> Object;
    fn PyDict_New() -> Object;
    fn PyDict_SetItem(dict: Object, key: Object, value: Object) -> c_int;
    fn PyDict_Update(dict: Object, other: Object) -> c_int;
    fn PyErr_CheckSignals() -> c_int;
    fn PyErr_Clear();
    fn PyErr_NewExceptionWithDoc(name: Text, doc: Text, base: Object, dict: Object) -> Object;
    fn PyErr_NormalizeException(class: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_PrintEx(set_variables: c_int);
    fn PyErr_Restore(class: Object, value: Object, traceback: Object);
    fn PyErr_SetObject(class: Object, value: Object);
    fn PyErr_SetString(class: Object, message: Text);
    fn PyErr_WarnEx(category: Object, message: Text, level: Py_ssize_t) -> c_int;
    fn PyErr_WriteUnraisable(object: Object);
    fn PyException_SetCause(exception: Object, cause: Object);
    fn PyException_SetTraceback(exception: Object, traceback: Object) -> c_int;
    fn PyFloat_AsDouble(object: Object) -> f64;
    fn PyGILState_Release(state: PyGILState_STATE);
    fn PyImport_Import(name: Object) -> Object;
    fn PyIter_Next(iterator: Object) -> Object;
    fn PyList_AsTuple(list: Object) -> Object;
    fn PyList_New(len: Py_ssize_t) -> Object;
    fn PyLong_AsLong(object: Object) -> c_long;
    fn PyMapping_Items(object: Object) -> Object;
    fn PyMemoryView_FromObject(object: Object) -> Object;
    fn PyNumber_Index(object: Object) -> Object;
    fn PyOS_FSPath(path: Object) -> Object;
    fn PyObject_Call(callable: Object, arguments: Object, keywords: Object) -> Object;
    // Variadic, but PyO3 ends the arguments after the name; the convention for pointers is then the same.
    fn PyObject_CallMethodObjArgs(object: Object, name: Object, end: Object) -> Object;
    fn PyObject_CallNoArgs(callable: Object) -> Object;
    fn PyObject_ClearWeakRefs(object: Object);
    fn PyObject_DelItem(object: Object, key: Object) -> c_int;
    fn PyObject_GenericGetDict(object: Object, context: *mut c_void) -> Object;
    fn PyObject_GenericSetDict(object: Object, value: Object, context: *mut c_void) -> c_int;
    fn PyObject_GetAttr(object: Object, name: Object) -> Object;
    fn PyObject_GetBuffer(object: Object, view: *mut Py_buffer, flags: c_int) -> c_int;
    fn PyObject_GetItem(object: Object, key: Object) -> Object;
    fn PyObject_GetIter(object: Object) -> Object;
    fn PyObject_IsInstance(object: Object, class: Object) -> c_int;
    fn PyObject_IsSubclass(class: Object, base: Object) -> c_int;
    fn PyObject_IsTrue(object: Object) -> c_int;
    fn PyObject_Repr(object: Object) -> Object;
    fn PyObject_RichCompare(one: Object, other: Object, operator: c_int) -> Object;
    fn PyObject_SetAttr(object: Object, name: Object, value: Object) -> c_int;
    fn PyObject_SetAttrString(object: Object, name: Text, value: Object) -> c_int;
    fn PyObject_SetItem(object: Object, key: Object, value: Object) -> c_int;
    fn PyObject_Size(object: Object) -> Py_ssize_t;
    fn PyObject_Str(object: Object) -> Object;
    fn PyTraceBack_Print(traceback: Object, file: Object) -> c_int;
    fn PyTuple_New(len: Py_ssize_t) -> Object;
    fn PyType_FromSpec(spec: *mut PyType_Spec) -> Object;
    fn PyUnicode_AsEncodedString(text: Object, encoding: Text, errors: Text) -> Object;
    fn PyUnicode_EncodeFSDefault(text: Object) -> Object;
    fn _Py_DecRef(object: Object);
}
