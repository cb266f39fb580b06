"""What tests do to all guards of a process: enable or disable them, and refill their buckets."""

from __future__ import annotations

import gc
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from penstock._locks import fork_safe
from penstock.errors import StoreError

if TYPE_CHECKING:
    from penstock._core import Limiter


class Switched(Protocol):
    """The switches of a guard."""

    enabled: bool

    @property
    def limiter(self) -> Limiter:
        """The limiter of the guard."""


class Switch:
    """Overrides `enabled` of all guards.

    It sets the attribute of each guard, so that a request only reads that.
    """

    def __init__(self) -> None:
        self._lock: Final = fork_safe(Lock())
        self._forced: bool | None = None
        # The value of each guard while none is forced.
        self._own: Final[WeakKeyDictionary[Switched, bool]] = WeakKeyDictionary()

    def register(self, guard: Switched) -> None:
        """Add a guard, and apply what is set."""
        with self._lock:
            self._own[guard] = guard.enabled
            if self._forced is not None:
                guard.enabled = self._forced

    def guards(self) -> list[Switched]:
        """Return all guards."""
        with self._lock:
            return list(self._own)

    def force(self, enabled: bool | None) -> bool | None:
        """Do the same as `force_enabled`."""
        with self._lock:
            before, self._forced = self._forced, enabled
            for guard in list(self._own):
                if before is None:
                    # It may have been set directly since.
                    self._own[guard] = guard.enabled
                guard.enabled = self._own[guard] if enabled is None else enabled
        return before


switch: Final = Switch()


def force_enabled(enabled: bool | None) -> bool | None:
    """Enable or disable all guards of the process, including those created later; for tests.

    `None` restores the value of each guard. Returns the previous argument.

    Examples:
        >>> from penstock.adapter import Guard, force_enabled
        >>> guard = Guard(clock=penstock.ManualClock())
        >>> before = force_enabled(False)
        >>> guard.enabled
        False
        >>> force_enabled(before)
        False
        >>> guard.enabled
        True
    """
    return switch.force(enabled)


def reset_guards() -> None:
    """Refill the buckets of all guards of the process; for tests.

    Raises:
        StoreError: A store failed.
    """
    try:
        _reset_guards()
    except StoreError:
        # An application is a cycle: that of an earlier test stays until the collector finds it.
        gc.collect()
        _reset_guards()


def _reset_guards() -> None:
    for limiter in {guard.limiter for guard in switch.guards()}:
        if not _is_closed(limiter):
            limiter.reset_all()


def _is_closed(limiter: Limiter) -> bool:
    """Whether a limiter was closed, by an earlier test for example."""
    try:
        # No store is asked about no bucket.
        limiter.check_all(())
    except StoreError:
        return True
    return False
