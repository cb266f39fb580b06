"""A shared table whose file is truncated while processes use it.

1. No process ends. Its calls decide as before or fail with `StoreUnavailable`, and each process
   admits at most one request too many.
2. That includes calls about the whole table, calls of several threads, forked processes, and a
   table that takes over the buckets of a truncated one. Other tables go on.
3. Any other SIGBUS does what it would have done without penstock.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {"Orders": "20/day", "Pages": "20/day"}
IDS = [f"id {number}" for number in range(100)]
LOADS = ["spend", "new", "all", "each", "peek", "stats", "clear", "threads"]
WHOLE = 4096 + (500_000 + 7) * 64
"""The bytes of a table with `capacity=1000000`, which no test fills: ids would share buckets."""

BEGINNING = """
import collections, ctypes, faulthandler, itertools, json, mmap, os, signal, sys, threading
import penstock
from penstock import StoreUnavailable

LIMITS = {"Orders": "20/day", "Pages": "20/day"}
IDS = [f"id {number}" for number in range(100)]
url = sys.argv[1]
path = url.removeprefix("shm://").partition("?")[0]
libc = ctypes.CDLL(None)

def opened(url=url):
    return penstock.Limiter(LIMITS, store=url)

def is_refused(call, *arguments):
    try:
        call(*arguments)
    except StoreUnavailable as error:
        # On a busy machine, a lock may not come in time.
        return "in time" not in str(error)
    return False

def are_refused(limiter):
    \"\"\"Whether every kind of call that needs a new bucket, or the whole table, fails.\"\"\"
    new = f"refused {os.getpid()}"
    calls = [
        (limiter.spend, "Orders", new),
        (limiter.spend_all, [("Orders", new), ("Pages", new)]),
        (limiter.spend_each, "Orders", [new, new]),
        (limiter.reserve, "Orders", new),
    ]
    return all(is_refused(*call) for call in calls)

def fault():
    \"\"\"Read a page that is gone from a map that is not penstock's.\"\"\"
    with open("other", "wb+") as file:
        file.truncate(mmap.PAGESIZE)
        other = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        return other[0]

def send():
    os.kill(os.getpid(), signal.SIGBUS)
"""

# Calls of one kind until the table fails. Prints what was admitted.
LOAD = """
kind = sys.argv[2]
limiter = opened()
admitted = collections.Counter()
numbers = itertools.count()

def spend(name, id):
    if limiter.spend(name, id):
        admitted[f"{name} {id}"] += 1

def new():
    spend("Orders", f"{os.getpid()} {next(numbers)}")

def call():
    number = next(numbers)
    id = IDS[number % len(IDS)]
    match kind:
        case "spend":
            spend("Orders", id)
        case "all":
            if limiter.spend_all([("Orders", id), ("Pages", id)]):
                admitted.update([f"Orders {id}", f"Pages {id}"])
        case "each":
            for id, allowed in zip(IDS, limiter.spend_each("Pages", IDS).allowed):
                admitted[f"Pages {id}"] += int(allowed)
        case "peek":
            limiter.peek("Orders", id)
        case "stats":
            assert limiter.stats()["buckets"] >= len(IDS)
        case "clear":
            limiter.reset("Orders", f"{os.getpid()} {number}")
    # Some truncations leave all buckets that there are.
    if number % 100 == 0:
        new()

def run():
    while not is_refused(new if kind == "new" else call):
        pass

threads = [threading.Thread(target=run) for _ in range(4 if kind == "threads" else 1)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
assert are_refused(limiter)
print(json.dumps(admitted))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a table that no other test uses."""
    return f"shm://{tmp_path}/table?capacity=1000000"


def truncate(table: Path, size: int) -> None:
    """Shorten a table's file."""
    with table.open("rb+") as file:
        file.truncate(size)


def start(program: str, url: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program in the folder of the table."""
    return subprocess.Popen(
        [sys.executable, "-c", BEGINNING + program, url, *arguments],
        cwd=Path(url.removeprefix("shm://")).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, url: str) -> tuple[int, str, str]:
    """Run a program. Return its status and what it wrote to stdout and stderr."""
    with start(program, url) as process:
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error


def refused(limiter: penstock.Limiter) -> Iterator[bool]:
    """Spend for every id. Yield whether each call failed; none may be allowed."""
    for id in IDS:
        try:
            assert not limiter.spend("Orders", id)
            yield False
        except penstock.StoreUnavailable:
            yield True


@pytest.mark.parametrize("size", [0, WHOLE // 2, WHOLE - 10])
def test_truncation_under_load_ends_no_process_and_admits_no_more(
    url: str, tmp_path: Path, size: int
) -> None:
    limiter = penstock.Limiter(LIMITS, store=url)
    total: dict[str, int] = {}
    for name in LIMITS:
        for number, id in enumerate(IDS):
            # Half of them are exhausted.
            total[f"{name} {id}"] = cost = 20 if number % 2 else 5
            assert limiter.spend(name, id, cost)
    loads = [start(LOAD, url, kind) for kind in LOADS]
    try:
        for load in loads:
            assert load.stdout is not None
            assert load.stdout.readline() == "ready\n"
        truncate(tmp_path / "table", size)
        ends = [(*load.communicate(timeout=60), load.returncode) for load in loads]
    finally:
        for load in loads:
            load.kill()
            load.wait()
    assert [(status, error) for _, error, status in ends] == [(0, "")] * len(LOADS)
    for out, _, _ in ends:
        for bucket, admitted in json.loads(out).items():
            total[bucket] = total.get(bucket, 0) + admitted
    too_many = sum(max(0, admitted - 20) for admitted in total.values())
    assert too_many <= len(LOADS), total
    # This process had the table open all the time.
    with pytest.raises(penstock.StoreUnavailable):
        limiter.spend("Orders", "new")


@pytest.mark.parametrize("size", [0, WHOLE // 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda limiter: limiter.stats(),
        lambda limiter: limiter.reset_all(),
        lambda limiter: limiter.spend_each("Orders", IDS),
        lambda limiter: [limiter.reset("Orders", id) for id in IDS],
        lambda limiter: [limiter.peek("Orders", id) for id in IDS],
    ],
)
def test_call_after_truncation_fails(url: str, tmp_path: Path, call: object, size: int) -> None:
    assert callable(call)
    limiter = penstock.Limiter(LIMITS, store=url)
    for id in IDS:
        limiter.spend("Orders", id)
    truncate(tmp_path / "table", size)
    with pytest.raises(penstock.StoreUnavailable):
        call(limiter)
    with pytest.raises(penstock.StoreUnavailable):
        limiter.stats()


@pytest.mark.parametrize("size", [0, WHOLE // 2])
def test_bucket_of_a_truncated_older_table_does_not_become_full(
    url: str, tmp_path: Path, size: int
) -> None:
    limiter = penstock.Limiter(LIMITS, store=url)
    for number, id in enumerate(IDS):
        limiter.spend("Orders", id, 19 if number < 10 else 20)
    larger = penstock.Limiter(LIMITS, store=f"shm://{tmp_path}/table?capacity=2000000")
    assert all(larger.spend("Orders", id) for id in IDS[:10])
    truncate(tmp_path / "table~1", size)
    # Buckets that were moved before stay, and no others move.
    answers = list(refused(larger))
    assert not any(answers[:10])
    assert answers[-1]
    # This process has not opened the larger table yet, and cannot do so now.
    assert all(refused(limiter))
    for process in [limiter, larger]:
        with pytest.raises(penstock.StoreUnavailable):
            process.stats()
    with pytest.raises(penstock.StoreUnavailable):
        penstock.Limiter(LIMITS, store=url)


def test_other_tables_and_a_fresh_one_go_on(url: str, tmp_path: Path) -> None:
    limiter = penstock.Limiter(LIMITS, store=url)
    limiter.spend("Orders", "ada", 20)
    other = penstock.Limiter(LIMITS, store=f"shm://{tmp_path}/other")
    other.spend("Orders", "ada", 20)
    closed = penstock.Limiter(LIMITS, store=f"shm://{tmp_path}/closed")
    closed.close()
    truncate(tmp_path / "table", 0)
    assert all(refused(limiter))
    assert not other.spend("Orders", "ada")
    assert other.spend("Orders", "new")
    with pytest.raises(penstock.StoreUnavailable):
        penstock.Limiter(LIMITS, store=url)
    (tmp_path / "table").unlink()
    fresh = penstock.Limiter(LIMITS, store=url)
    assert fresh.spend("Orders", "ada", 20)
    assert not fresh.spend("Orders", "ada")
    # A process that has the truncated table open does not count beside the fresh one.
    assert all(refused(limiter))


AFTER_FORK = """
limiter = opened()
limiter.spend("Orders", "ada")
if (child := os.fork()) == 0:
    os.truncate(path, 0)
    os._exit(0 if are_refused(limiter) else 1)
assert os.waitpid(child, 0)[1] == 0
assert are_refused(limiter)
if (child := os.fork()) == 0:
    os._exit(0 if are_refused(limiter) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_processes_share_the_protection(url: str) -> None:
    assert run(AFTER_FORK, url) == (0, "", "")


def test_process_that_has_closed_its_descriptors_is_protected(url: str) -> None:
    program = """
limiter = opened()
limiter.spend("Orders", "ada")
os.closerange(3, 200)
os.truncate(path, 0)
# A build for tests aborts where Rust closes a descriptor that is closed already.
os._exit(0 if are_refused(limiter) else 1)
"""
    assert run(program, url) == (0, "", "")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_faulthandler_does_not_end_the_process(url: str, moment: str) -> None:
    program = """
limiter = opened()
limiter.spend("Orders", "ada")
{after}
os.truncate(path, 0)
assert are_refused(limiter)
"""
    enable = "faulthandler.enable()"
    after = "" if moment == "before" else enable
    before = enable if moment == "before" else ""
    status, _, error = run(before + program.format(after=after), url)
    assert status == 0
    # Python's handler reports the first signal.
    assert ("Bus error" in error) == (moment == "after")


IGNORE = "signal.signal(signal.SIGBUS, signal.SIG_IGN)\n"
PLAIN = "libc.signal(signal.SIGBUS, libc._exit)\n"
# `_exit` as a handler with `SA_SIGINFO`: its first argument is the signal, too.
WITH_INFO = """
class Action(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]

action = Action(handler=ctypes.cast(libc._exit, ctypes.c_void_p), flags=4)
assert libc.sigaction(signal.SIGBUS, ctypes.byref(action), None) == 0
"""


@pytest.mark.parametrize(
    ("before", "cause", "status"),
    [
        ("", "fault()", -signal.SIGBUS),
        ("", "send()", -signal.SIGBUS),
        ("faulthandler.enable()\n", "fault()", -signal.SIGBUS),
        ("faulthandler.enable()\n", "send()", -signal.SIGBUS),
        (IGNORE, "fault()", -signal.SIGBUS),
        (IGNORE, "send()", 0),
        (PLAIN, "fault()", signal.SIGBUS),
        (PLAIN, "send()", signal.SIGBUS),
        (WITH_INFO, "fault()", signal.SIGBUS),
        (WITH_INFO, "send()", signal.SIGBUS),
    ],
)
def test_other_signals_keep_their_effect(url: str, before: str, cause: str, status: int) -> None:
    found, _, error = run(f"{before}limiter = opened()\n{cause}", url)
    assert found == status
    assert ("Bus error" in error) == ("faulthandler" in before)


@pytest.mark.parametrize(
    "between",
    [
        "faulthandler.disable()",
        "faulthandler.disable(); faulthandler.enable()",
        "faulthandler.disable(); opened(); faulthandler.enable()",
    ],
)
def test_handler_that_was_replaced_is_installed_at_the_next_opening(url: str, between: str) -> None:
    program = f"""
faulthandler.enable()
limiter = opened()
{between}
again = opened()
os.truncate(path, 0)
assert are_refused(limiter) and are_refused(again)
print("refused", flush=True)
fault()
"""
    status, out, _ = run(program, url)
    assert (status, out) == (-signal.SIGBUS, "refused\n")
