"""The shared-memory store under faults of the system, in separate programs.

1. Forks at any time, and many openings at once, never change the total that is admitted.
2. A file of another user, of another clock, or without room is an error at opening, which leaves
   everything as it was.
3. A process that cannot tell whether a table is of this boot does not open it.
4. A table that is open never ends a process, however full its file system is.
5. A file that is removed while it is used stops new buckets only, and loses at most one burst.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import programs
import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {"Orders": "500/day"}
OTHER_USER = 65534
TABLES = Path("/dev/shm")  # noqa: S108  where `shm://NAME` is

BEGINNING = """
import os, sys, penstock, pytest
from penstock import StoreUnavailable

LIMITS = {"Orders": "500/day", "Pages": "1/second"}
url = sys.argv[1]

def opened():
    return penstock.Limiter(LIMITS, store=url)

def spend(limiter, times):
    return sum(limiter.spend("Orders", "ada").allowed for _ in range(times))

def forked(function, *arguments):
    if (child := os.fork()) == 0:
        status = 99
        try:
            status = function(*arguments)
        finally:
            os._exit(status)
    return child

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

# Another thread adds buckets, and so holds the locks that a fork may copy.
FORK_WHILE_CALLING = """
import itertools, threading, warnings

warnings.simplefilter("ignore", DeprecationWarning)
limiter = opened()
is_over = threading.Event()
calls = itertools.count()

def add():
    # Fewer ids than the table has room for, each of which is added again a second later.
    while not is_over.is_set():
        limiter.spend("Pages", f"mine {next(calls) % 20_000}")

def in_child(number):
    assert all(limiter.spend("Pages", f"{number} {new}") for new in range(30))
    again = opened()
    assert all(again.spend("Pages", f"{number} again {new}") for new in range(30))
    return spend(limiter, 3) + spend(again, 3)

threads = [threading.Thread(target=add) for _ in range(2)]
for thread in threads:
    thread.start()
allowed = sum(status(forked(in_child, number)) for number in range(100))
is_over.set()
for thread in threads:
    thread.join()
print(allowed, next(calls) > 100)
"""

OPEN_AT_ONCE = """
import struct

# No process opens before the last process has started.
waiting, starting = os.pipe()
results, result = os.pipe()

def in_child():
    os.close(starting)
    os.read(waiting, 1)
    limiter = opened()
    allowed = spend(limiter, 5)
    assert limiter.spend("Pages", str(os.getpid()))
    os.write(result, struct.pack("i", allowed))
    return 0

children = [forked(in_child) for _ in range(120)]
os.close(starting)
assert all(status(child) == 0 for child in children)
os.close(result)
with open(results, "rb") as file:
    print(sum(allowed for (allowed,) in struct.iter_unpack("i", file.read())))
"""

AS_ANOTHER_USER = """
def in_child():
    os.setuid(65534)
    with pytest.raises(StoreUnavailable):
        opened()
    return 7

# Like a server that starts as root, whose workers keep its open files.
limiter = opened()
def as_worker(number):
    os.setuid(65534)
    assert all(limiter.spend("Pages", f"{number} {new}") for new in range(30))
    return spend(limiter, 100)

print(status(forked(in_child)), sum(status(forked(as_worker, number)) for number in range(6)))
"""

UNDER_A_UMASK = """
os.umask(0o777)
opened().spend("Orders", "ada", 410)
print(status(forked(lambda: opened().peek("Orders", "ada").remaining)))
"""

FULL = """
import errno, pathlib

folder = pathlib.Path(url.removeprefix("shm://")).parent
with pytest.raises(StoreUnavailable, match="room"):
    penstock.Limiter(LIMITS, store=f"{url}?capacity=1000000")
assert list(folder.iterdir()) == []
limiter = penstock.Limiter({"Orders": "1/day"}, store=f"{url}?capacity=10000&overflow=evict")
assert limiter.spend("Orders", "ada")
with open(folder / "filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
with pytest.raises(StoreUnavailable, match="capacity=10000, and processes use it"):
    penstock.Limiter(LIMITS, store=f"{url}?capacity=15000")
# Every slot, and so every page of the table.
for number in range(30_000):
    limiter.spend("Orders", str(number))
assert limiter.stats()["buckets"] > 19_000
# The table still works, and can be opened.
assert not penstock.Limiter({"Orders": "1/day"}, store=url).spend("Orders", "29999")
print("survived")
"""

FILE_SIZE = """
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
with pytest.raises(StoreUnavailable, match="room"):
    penstock.Limiter(LIMITS, store=f"{url}?capacity=1000000")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
limiter = penstock.Limiter(LIMITS, store=f"{url}?capacity=10000&overflow=evict")
# Once it is open, no limit matters.
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
for number in range(30_000):
    limiter.spend("Orders", str(number))
print("survived")
"""

REFUSED = """
with pytest.raises(StoreUnavailable, match="{}"):
    opened()
"""


def run(program: str, url: str, *prefix: str) -> str:
    """Run a program with the URL as its argument; return what it prints."""
    return programs.run(BEGINNING + program, url, python=(*prefix, sys.executable))


def unshare(*options: str) -> list[str]:
    """Return a command that runs another one in namespaces of its own, or skip the test."""
    command = ["unshare", "--map-root-user", *options]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare on the PATH")
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"namespaces are not permitted here: {done.stderr.strip()}")
    return command


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a table that no other test uses."""
    return f"shm://{tmp_path}/table"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def as_root() -> None:
    """Skip a test that becomes other users, unless it may."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")


def test_forks_while_other_threads_are_in_calls(url: str) -> None:
    assert run(FORK_WHILE_CALLING, url) == "500 True\n"


def test_processes_that_open_at_once_share_one_table(url: str, tmp_path: Path) -> None:
    assert run(OPEN_AT_ONCE, url) == "500\n"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_another_user_is_refused_while_a_worker_keeps_its_open_table(open_folder: Path) -> None:
    as_root()
    assert run(AS_ANOTHER_USER, f"shm://{open_folder}/table") == "7 500\n"


@pytest.mark.skipif(not TABLES.is_dir(), reason="tables are in the temporary folder")
def test_table_of_another_user_with_the_name_of_ours_is_reported() -> None:
    # As of a server, where a command is run as root: both would count apart without a word.
    name = f"tests-{os.getpid()}-of-two"
    theirs, ours = (TABLES / f"penstock-{user}-{name}" for user in (4242, os.geteuid()))
    # Other names, of which ours is a part.
    others = [TABLES / f"penstock-4242-x-{name}", TABLES / f"penstock-4242-{name}-x"]
    try:
        for file in (theirs, *others):
            file.touch()
        with pytest.warns(RuntimeWarning, match=f"{theirs} .*one user"):
            penstock.Limiter(LIMITS, store=f"shm://{name}")
        theirs.unlink()
        penstock.Limiter(LIMITS, store=f"shm://{name}")
    finally:
        for file in (theirs, ours, *others):
            file.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["table", "table~new"])
def test_file_of_another_user_is_refused(open_folder: Path, name: str) -> None:
    as_root()
    file = open_folder / name
    file.write_bytes(b"mine")
    file.chmod(0o600)
    os.chown(file, OTHER_USER, OTHER_USER)
    with pytest.raises(penstock.StoreUnavailable):
        penstock.Limiter(LIMITS, store=f"shm://{open_folder}/table")
    assert file.read_bytes() == b"mine"


def test_table_that_is_created_under_any_umask_can_be_opened(url: str, tmp_path: Path) -> None:
    assert run(UNDER_A_UMASK, url) == "90\n"
    # Root could open it with any mode.
    assert (tmp_path / "table").stat().st_mode & 0o777 == 0o600


def test_full_file_system_is_an_error_at_opening_rather_than_a_later_signal(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec "$@"'
    command = unshare("--mount")
    tried = [*command, "sh", "-c", mount, "sh", "true"]
    if subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    printed = run(FULL, f"shm://{tmp_path}/table", *command, "sh", "-c", mount, "sh")
    assert printed == "survived\n"


def test_file_size_limit_is_an_error_at_opening_rather_than_a_later_signal(url: str) -> None:
    assert run(FILE_SIZE, url) == "survived\n"


def test_table_of_another_clock_is_refused(url: str) -> None:
    command = unshare("--time", "--boottime", "100000")
    penstock.Limiter(LIMITS, store=url).spend("Orders", "ada", 10)
    run(REFUSED.format("clock"), url, *command)
    assert penstock.Limiter(LIMITS, store=url).peek("Orders", "ada").remaining == 490


@pytest.mark.parametrize(
    ("options", "mount"),
    [
        # As a container runtime masks a path, and as systemd's `ProcSubset=pid` does.
        (["--mount"], "mount --bind /dev/null /proc/sys/kernel/random/boot_id"),
        (["--mount", "--pid", "--fork"], "mount -t proc -o subset=pid proc /proc"),
    ],
    ids=["masked", "subset"],
)
def test_process_that_cannot_read_the_boot_id_is_refused(
    url: str, tmp_path: Path, options: list[str], mount: str
) -> None:
    command = [*unshare(*options), "sh", "-c", f'{mount} && exec "$@"', "sh"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the boot id cannot be hidden here: {done.stderr.strip()}")
    program = REFUSED.format("(?s)boot_id.*ProcSubset")
    run(program, url, *command)
    assert list(tmp_path.iterdir()) == []
    limiter = penstock.Limiter(LIMITS, store=url)
    limiter.spend("Orders", "ada", 10)
    run(program, url, *command)
    # The table in use was not replaced.
    assert penstock.Limiter(LIMITS, store=url).peek("Orders", "ada").remaining == 490
    assert limiter.spend("Orders", "new")


def test_file_that_is_removed_stops_new_buckets_only(url: str, tmp_path: Path) -> None:
    limiter = penstock.Limiter(LIMITS, store=url)
    limiter.spend("Orders", "ada", 400)
    (tmp_path / "table").unlink()
    assert sum(limiter.spend("Orders", "ada").allowed for _ in range(200)) == 100
    with pytest.raises(penstock.StoreUnavailable):
        limiter.spend("Orders", "new")
    # Processes that start later use another table.
    later = penstock.Limiter(LIMITS, store=url)
    assert sum(later.spend("Orders", "ada").allowed for _ in range(600)) == 500
    assert later.spend("Orders", "new")
