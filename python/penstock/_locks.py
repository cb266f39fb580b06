"""Locks that a child process does not inherit.

The thread that has a lock during a fork does not exist in the child, so nothing there would ever
release it.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar
from weakref import WeakSet

_Lock = TypeVar("_Lock")
_locks: Final[WeakSet[Any]] = WeakSet()


def fork_safe(lock: _Lock) -> _Lock:
    """Return a lock of `threading`, which from now on is free in every child process."""
    _locks.add(lock)
    return lock


def _release_in_child() -> None:
    for lock in list(_locks):
        # As `logging` and `concurrent.futures` do.
        lock._at_fork_reinit()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
