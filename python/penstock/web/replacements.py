"""Switches for tests, which hold for all guards of a process: enabled or not, and other limits."""

from __future__ import annotations

import gc
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from penstock.errors import StoreError
from penstock.locks import fork_safe

if TYPE_CHECKING:
    from penstock._core import Limiter, Limits


class Switched(Protocol):
    """The switches of a guard."""

    enabled: bool

    @property
    def limiter(self) -> Limiter:
        """The limiter of the guard."""


class Switch:
    """Overrides `enabled` and limits of all guards.

    It sets the attribute of each guard, so that a request only reads that.
    """

    def __init__(self) -> None:
        self._lock: Final = fork_safe(Lock())
        self._forced: bool | None = None
        self._limits: Limits | None = None
        # The limits before, of each limiter whose limits are replaced.
        self._replaced: Final[dict[Limiter, Limits]] = {}
        # The value of each guard while none is forced.
        self._own: Final[WeakKeyDictionary[Switched, bool]] = WeakKeyDictionary()

    def register(self, guard: Switched) -> None:
        """Add a guard, and apply what is set."""
        with self._lock:
            self._own[guard] = guard.enabled
            if self._forced is not None:
                guard.enabled = self._forced
            self._replace(guard.limiter)

    def guards(self) -> list[Switched]:
        """Return all guards."""
        with self._lock:
            return list(self._own)

    def replace(self, limits: Limits | None) -> bool:
        """Do the same as `replace_limits`."""
        with self._lock:
            was_applied = bool(self._replaced)
            for limiter, before in self._replaced.items():
                if not _is_closed(limiter):
                    # Keep limits that were defined in the meantime.
                    limiter.reload(limiter.limits | before)
            self._replaced.clear()
            self._limits = limits
            for guard in list(self._own):
                self._replace(guard.limiter)
        return was_applied

    def _replace(self, limiter: Limiter) -> None:
        if not self._limits or limiter in self._replaced or _is_closed(limiter):
            return
        before = limiter.limits
        if set(self._limits) <= set(before):
            limiter.reload(before | self._limits)
            self._replaced[limiter] = before

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


def replace_limits(limits: Limits | None) -> bool:
    """Replace limits of all guards that have them all, also of those created later; for tests.

    `None` restores the limits. Returns whether any guard had the previous argument's limits.

    Examples:
        >>> from penstock.adapter import Guard, replace_limits
        >>> guard = Guard(limits={"Orders": "9/minute", "Mails": "1/hour"})
        >>> replace_limits(penstock.Limits({"Orders": "1/minute"}))
        False
        >>> guard.limiter.limits["Orders"].count, guard.limiter.limits["Mails"].count
        (1, 1)
        >>> replace_limits(None), guard.limiter.limits["Orders"].count
        (True, 9)
    """
    return switch.replace(limits)


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
