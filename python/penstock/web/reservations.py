"""Tokens that were taken before the response was known, until it settles them."""

from __future__ import annotations

from itertools import count, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import ref

from penstock.locks import fork_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.web.rule import Entry

    _Recharge: TypeAlias = Callable[[Sequence[tuple[Entry, int, int]], bool], None]

RELEASE_AFTER_NS: Final = 600 * 1_000_000_000
"""Nanoseconds after which the reservation of a request that was dropped is released."""


class ViewCost:
    """The actual cost reported by a view, for limits that reserve; `Decision.settle` calls it.

    It does not refer to the request: the decision, which refers to it, is part of that.

    Args:
        recharge: Changes what entries have been charged: each entry, its charge and its cost, and
            whether this process decided.
        earlier: That of limits which were evaluated before for the same request.

    Attributes:
        actual: What the view used; `None` until it settles.
    """

    __slots__ = ("_charged", "_is_degraded", "_recharge", "actual", "earlier")

    def __init__(self, recharge: _Recharge, earlier: ViewCost | None) -> None:
        self.actual: int | None = None
        self.earlier: Final = earlier
        self._recharge: Final = recharge
        self._charged: list[tuple[Entry, int]] = []
        self._is_degraded = False

    def __call__(self, actual: int) -> None:
        """Remember what the view used; a response that has started is settled again.

        Raises:
            StoreError: The store failed, and a limit has the policy `"raise"`.
        """
        self.actual = actual
        changes = [(entry, charged, actual) for entry, charged in self._charged]
        self._charged = [(entry, actual) for entry, _ in self._charged]
        self._recharge(changes, self._is_degraded)
        if self.earlier is not None:
            self.earlier(actual)

    def charge(self, entries: list[tuple[Entry, int]], *, is_degraded: bool) -> None:
        """Remember what entries have been charged when the response started."""
        self._charged = entries
        self._is_degraded = is_degraded


class OpenReservations:
    """The reservations of one process that are neither settled nor released; thread-safe.

    A framework may drop a request without a response that settles it. Its tokens are returned when
    a later request reserves some. A request that still runs keeps its own: a client that sends its
    body slowly could otherwise have any number of requests open.

    Args:
        release: Returns the tokens of entries.
    """

    def __init__(self, release: Callable[[Sequence[Entry]], object]) -> None:
        self._release: Final = release
        # In the order of their instants.
        self._open: Final[dict[int, tuple[int, ref[object], Sequence[Entry]]]] = {}
        self._numbers: Final = count()
        self._lock: Final = fork_safe(Lock())

    def open(self, entries: Sequence[Entry], now_ns: int, owner: object) -> int:
        """Add a reservation, and release old ones; return its number.

        Args:
            entries: What was taken.
            now_ns: The instant of its decision.
            owner: What exists as long as the request does.
        """
        with self._lock:
            number = next(self._numbers)
            dropped = self._take_dropped(now_ns)
            self._open[number] = (now_ns, ref(owner), entries)
        for taken in dropped:
            self._release(taken)
        return number

    def _take_dropped(self, now_ns: int) -> list[Sequence[Entry]]:
        """Remove and return the old reservations of requests that do not exist any more."""
        dropped: list[Sequence[Entry]] = []
        old = list(
            takewhile(lambda other: self._open[other][0] + RELEASE_AFTER_NS <= now_ns, self._open)
        )
        for number in old:
            _, owner, entries = self._open.pop(number)
            if owner() is None:
                dropped.append(entries)
            else:
                # Looked at later again, and not by each request until then.
                self._open[number] = (now_ns, owner, entries)
        return dropped

    def close(self, number: int) -> bool:
        """Remove a reservation; return whether it was still open."""
        with self._lock:
            return self._open.pop(number, None) is not None

    def __len__(self) -> int:
        """Return how many reservations are open."""
        return len(self._open)
