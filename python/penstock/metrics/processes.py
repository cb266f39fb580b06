"""Prometheus metrics that are summed over the processes of a server.

`prometheus_client` shares the values of processes in files of the directory that
`PROMETHEUS_MULTIPROC_DIR` names. The core counts in memory, so a thread writes its counts there.
The counters of a killed process stay; its gauges are removed.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from prometheus_client import multiprocess, values

from penstock._locks import fork_safe
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric as Family
    from prometheus_client.samples import Sample

_SECONDS: Final = 1.0
"""The time between two writes: what a process that is killed can lose."""

# Its functions have no types.
_library: Final[Any] = multiprocess
_log: Final = logging.getLogger("penstock")

# Held during a fork: a child inherits complete writes, and free locks of prometheus_client.
_lock: Final = fork_safe(Lock())


class ProcessValues:
    """The values of some metrics, in the files of this process.

    Args:
        read: Returns the metrics with their values in this process.
        modes: How the values of a gauge in several processes become one, by its name: `sum`, `max`
            or `min`.

    Raises:
        ConfigError: `PROMETHEUS_MULTIPROC_DIR` is not a directory.
    """

    def __init__(self, read: Callable[[], Iterable[Family]], modes: Mapping[str, str]) -> None:
        try:
            self._files: Final = _library.MultiProcessCollector(None)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._read: Final = read
        self._modes: Final = modes
        self._gauges: Final[dict[tuple[str, ...], Any]] = {}
        # Each with the number that was written last.
        self._counters: Final[dict[tuple[str, ...], tuple[Any, float]]] = {}
        self._names: frozenset[str] = frozenset()
        self._failed = False
        with _lock:
            self.write()
        _all.add(self)
        _start_thread()

    def sums(self) -> Iterator[Family]:
        """Write the values of this process, and yield the metrics of all processes together."""
        with _lock:
            self.write()
        yield from (family for family in self._files.collect() if family.name in self._names)

    def write(self) -> None:
        """Write the values of this process; the caller holds the lock."""
        families = list(self._read())
        self._names = frozenset(family.name for family in families)
        gone = self._gauges.copy()
        for family in families:
            for sample, number in _own(family):
                gone.pop(self._write(family, sample, number), None)
        for value in gone.values():
            value.set(0)

    def write_logged(self) -> None:
        """Write as `write` does; the first of several failures is logged."""
        try:
            self.write()
        except OSError:
            if not self._failed:
                _log.exception("the metrics of this process cannot be written")
            self._failed = True
        else:
            self._failed = False

    def _write(self, family: Family, sample: Sample, number: float) -> tuple[str, ...]:
        key = (sample.name, *sample.labels.values())
        if family.type == "gauge":
            if key not in self._gauges:
                self._gauges[key] = self._create(family, sample)
            self._gauges[key].set(number)
            return key
        value, last = self._counters.get(key) or (self._create(family, sample), 0.0)
        if number != last:
            # The file may have counts of a dead process with the same id. A child process has a
            # connection to a server of its own, which counts from 0.
            value.inc(number - last if number > last else number)
        self._counters[key] = (value, number)
        return key

    def _create(self, family: Family, sample: Sample) -> Any:
        return values.ValueClass(
            family.type,
            family.name,
            sample.name,
            tuple(sample.labels),
            tuple(sample.labels.values()),
            family.documentation,
            multiprocess_mode=f"live{self._modes.get(family.name)}",
        )


def _own(family: Family) -> Iterator[tuple[Sample, float]]:
    """Yield the samples to write: the buckets of a histogram without those below."""
    below = 0.0
    for sample in family.samples:
        if not sample.name.endswith("_bucket"):
            # The library counts the events of a histogram itself.
            if family.type != "histogram" or not sample.name.endswith("_count"):
                yield sample, sample.value
            below = 0.0
            continue
        yield sample, sample.value - below
        below = sample.value


_all: Final[WeakSet[ProcessValues]] = WeakSet()
_thread: Thread | None = None


def _start_thread() -> None:
    global _thread  # noqa: PLW0603  one thread per process, a new one in each child
    if _thread is None:
        _thread = Thread(target=_run, name="penstock-metrics", daemon=True)
        _thread.start()


def _run() -> None:
    pause = Event()
    while not pause.wait(_SECONDS):
        _write_all()
        _remove_gauges_of_dead_processes()


def _write_all() -> None:
    with _lock:
        for each in list(_all):
            each.write_logged()


def _remove_gauges_of_dead_processes() -> None:
    """Remove the gauges of processes that were killed, as gunicorn's `child_exit` hook can."""
    if os.name != "posix":
        return
    folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])  # noqa: TID251  not an own option
    for file in folder.glob("gauge_live*_*.db"):
        pid = re.search(r"_(\d+)\.db$", file.name)
        if pid is not None and not _is_running(int(pid[1])):
            # Another process may have removed the file.
            with suppress(FileNotFoundError):
                _library.mark_process_dead(int(pid[1]))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _before_fork() -> None:
    _lock.acquire()
    for each in list(_all):
        each.write_logged()


def _after_fork_in_child() -> None:
    global _thread  # noqa: PLW0603
    _thread = None
    if _all:
        _start_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_lock.release,
        after_in_child=_after_fork_in_child,
    )
atexit.register(_write_all)
