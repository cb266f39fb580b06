"""Parts of waiting that are in Python; the queues are in the core."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock._core import SystemClock


_T = TypeVar("_T")


class Ready(Generic[_T]):
    """An awaitable whose value is available immediately."""

    def __init__(self, value: _T) -> None:
        self._value: Final = value

    def __await__(self) -> Generator[None, None, _T]:
        yield from ()
        return self._value


def delay(clock: SystemClock, due_ns: int) -> float:
    """Return the seconds until `due_ns`, rounded up to a microsecond so that no waiter is early."""
    return max(-((clock.steady_ns() - due_ns) // 1000) / 1e6, 0.0)


def green_event() -> Any:
    """Return an event for which a greenlet can wait; `None` if the patches of gevent are inactive.

    The greenlets of a thread share it, so one that blocks the thread stops the others.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not any(map(monkey.is_module_patched, ("threading", "time"))):
        return None
    return import_module("gevent.event").Event()
