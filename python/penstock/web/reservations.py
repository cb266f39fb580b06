"""Tokens that were taken before the response was known, until it settles them."""

from __future__ import annotations

from itertools import count, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.web.rule import Entry

RELEASE_AFTER_NS: Final = 600 * 1_000_000_000
"""Nanoseconds after which a reservation that nothing settled is released."""


class OpenReservations:
    """The reservations of one process that are neither settled nor released; thread-safe.

    A request may end without a response that settles it: its thread hangs, or the framework drops
    it. Its tokens are returned when a later request reserves some.

    Args:
        release: Returns the tokens of entries.
    """

    def __init__(self, release: Callable[[Sequence[Entry]], object]) -> None:
        self._release: Final = release
        # By number, and so by age.
        self._open: Final[dict[int, tuple[int, Sequence[Entry]]]] = {}
        self._numbers: Final = count()
        self._lock: Final = Lock()

    def open(self, entries: Sequence[Entry], now_ns: int) -> int:
        """Add a reservation, and release old ones; return its number.

        Args:
            entries: What was taken.
            now_ns: The instant of its decision.
        """
        with self._lock:
            number = next(self._numbers)
            self._open[number] = (now_ns, entries)
            numbers = list(
                takewhile(
                    lambda other: self._open[other][0] + RELEASE_AFTER_NS <= now_ns, self._open
                )
            )
            old = [self._open.pop(other)[1] for other in numbers]
        for taken in old:
            self._release(taken)
        return number

    def close(self, number: int) -> bool:
        """Remove a reservation; return whether it was still open."""
        with self._lock:
            return self._open.pop(number, None) is not None

    def __len__(self) -> int:
        """Return how many reservations are open."""
        return len(self._open)
