"""The end of the interpreter while daemon threads are in calls that run Python code."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest
from programs import run

from penstock import _core

# Calls in which the core runs Python code: functions of the package, and methods of the arguments.
CALLS = {
    "acquire": "limiter.acquire('Calls', 'ada', timeout=0.001)",
    "acquire_all": "limiter.acquire_all([('Calls', 'ada')], timeout=0.001)",
    "reserve, which waits": "limiter.reserve('Calls', 'ada', timeout=0.001)",
    "reserve_all, which waits": "limiter.reserve_all([('Calls', 'ada')], timeout=0.001)",
    "a slot": "limiter.reserve('Slots', 'ada', timeout=0.001)",
    "await acquire": "asyncio.run(wait_in_a_task())",
    "spend_each": "limiter.spend_each('Calls', ['ada'] * 4)",
    "ids of an iterator": "limiter.spend_each('Calls', iterator())",
    "transactions of an iterator": "limiter.spend_all(('Calls', id) for id in iterator())",
    "ids with a destructor": "limiter.spend_each('Calls', (Id() for _ in range(4)))",
    "an id with a text": "limiter.spend('Calls', Address('192.0.2.1'))",
    "an id with a number": "limiter.spend('Calls', Number())",
    "a cost with a number": "limiter.spend('Calls', 'ada', Number())",
    "a factor with a text": "limiter.spend('Calls', 'ada', 1, factor=Factor('1.5'))",
    "a timeout": "limiter.acquire('Calls', 'ada', timeout=Timeout(0, 0, 1000))",
    "a name with a hash": "limiter.spend(Name('Calls'), 'ada')",
    "an unknown name": "limiter.spend('Other', 'ada')",
    "an invalid argument": "limiter.spend('Calls', Shown())",
    "raise_if_denied": "limiter.check('Empty', 'ada', 1).raise_if_denied()",
    "settle": "limiter.reserve('Calls', 'ada', 0).settle(Number())",
    "headers": "limiter.peek('Calls', 'ada').headers(Styles())",
    "HTML": "limiter.peek('Calls', 'ada')._repr_html_()",
    "explain": "limiter.limits.explain('Calls', Address('192.0.2.1'))",
    "reload": "limiter.reload(Limits(limits))",
    "limits from a file": "penstock.Limits.load(Path())",
    "fields": "penstock.Limit.from_fields('token_bucket', Limits(burst=1, count=1, period='1s'))",
    "callbacks of a clock": "advance()",
    "statistics": "limiter.stats(), limiter.counts(), limiter.top_denied()",
    "garbage": "limiter.spend('Calls', 'ada'), make_garbage()",
}

# Ends when as many calls were made as there are threads; these are then in the middle of others.
PROGRAM = """
import asyncio, contextlib, datetime, decimal, gc, ipaddress, sys, threading, penstock

def work():
    for _ in range(300):
        pass

def iterator():
    for _ in range(4):
        work()
        yield "ada"

class Id(str):
    def __del__(self): work()

class Address(ipaddress.IPv4Address):
    def __str__(self): return work() or super().__str__()

class Factor(decimal.Decimal):
    def __str__(self): return work() or super().__str__()

class Number:
    def __index__(self): return work() or 1

class Timeout(datetime.timedelta):
    days = property(lambda self: work() or 0)

class Name(str):
    def __hash__(self): return work() or str.__hash__(self)
    def __eq__(self, other): return work() or str.__eq__(self, other)

class Shown:
    def __repr__(self): return work() or "shown"

class Path:
    def __fspath__(self): return work() or "/nowhere"

class Styles(list):
    def __iter__(self): return work() or iter(["ietf"])

class Limits(dict):
    def items(self): return work() or super().items()
    def keys(self): return work() or super().keys()
    def __getitem__(self, name): return work() or super().__getitem__(name)

class Garbage:
    def __init__(self): self.cycle = self
    def __del__(self): work()

def make_garbage():
    for _ in range(10):
        Garbage()

async def wait_in_a_task():
    with contextlib.suppress(penstock.Error):
        await penstock.AsyncLimiter(limiter).acquire("Calls", "ada", timeout=0.001)

def advance():
    clock = penstock.ManualClock()
    for at in range(4):
        clock.set_timer(at, work)
    clock.advance(1)

def repeat(source, ready):
    call = compile(source, source, "eval")
    while True:
        try:
            eval(call)
        except (penstock.Error, TypeError, ValueError, OSError):
            pass
        ready.release()

store, *sources = sys.argv[1:]
sys.setswitchinterval(0.001)
gc.set_threshold(50)
limits = {"Calls": "500/second, burst 1", "Empty": "1/hour", "Slots": "1 in flight"}
limiter = penstock.Limiter(limits, store=store)
limiter.spend("Empty", "ada")
ready = threading.Semaphore(0)
for source in sources:
    threading.Thread(target=repeat, args=(source, ready), daemon=True).start()
for _ in sources:
    ready.acquire()
"""


def test_the_interpreter_ends_while_threads_are_in_calls(any_store: str) -> None:
    for _ in range(2):
        run(PROGRAM, any_store, *CALLS.values())


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_the_interpreter_ends_while_threads_are_in_a_call(call: str) -> None:
    run(PROGRAM, "memory://", *[CALLS[call]] * 9)


# Functions of the interpreter that run no Python code, and those in which PyO3 stops the thread.
UNGUARDED = """
PyBuffer_IsContiguous PyBuffer_ToContiguous PyByteArray_AsString PyByteArray_Size PyBytes_AsString
PyBytes_FromStringAndSize PyBytes_Size PyCapsule_GetName PyCapsule_GetPointer PyCapsule_New
PyDict_Next PyDict_Size PyErr_ExceptionMatches PyErr_Fetch PyErr_GivenExceptionMatches
PyErr_Occurred PyEval_RestoreThread PyEval_SaveThread PyException_GetTraceback PyFloat_FromDouble
PyGILState_Ensure PyInterpreterState_Get PyInterpreterState_GetID PyList_Append PyList_GetItem
PyList_SetItem PyList_Size PyLong_AsLongLongAndOverflow PyLong_AsUnsignedLongLong PyLong_FromLong
PyLong_FromSsize_t PyLong_FromUnsignedLongLong PyModuleDef_Init PyModule_GetNameObject
PyObject_GC_UnTrack PySequence_Check PyTuple_GetItem PyTuple_SetItem PyTuple_Size PyType_GetFlags
PyType_GetName PyType_GetQualName PyType_GetSlot PyType_IsSubtype PyUnicode_AsUTF8AndSize
PyUnicode_DecodeFSDefaultAndSize PyUnicode_FromStringAndSize PyUnicode_InternInPlace Py_DecRef
Py_IsInitialized Py_NewRef _Py_IncRef
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or sys.version_info >= (3, 14),
    reason="only the C library of GNU unwinds threads, and CPython 3.14 stops them itself",
)
def test_each_function_that_may_run_python_code_is_guarded() -> None:
    names = re.findall(rb"\0((?:__wrap_)?_?Py_?[A-Z]\w+)(?=\0)", Path(_core.__file__).read_bytes())
    found = {name.decode() for name in names}
    guarded = {name.removeprefix("__wrap_") for name in found if name.startswith("__wrap_")}
    called = {
        name
        for name in found - guarded
        if not re.match(r"__|PyInit_|PyExc_|.*(_Type|Struct)$", name)
    }
    assert len(guarded) > 50
    assert called <= set(UNGUARDED.split())
