"""Findings of the checks of a running set-up.

Each has a code, which the page of codes explains, and is logged once.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import Final

from penstock.errors import DOCUMENTATION
from penstock.locks import fork_safe

_log: Final = logging.getLogger("penstock")

OBSERVED: Final = 1000
"""How many requests of an application are looked at."""


def report(code: str, sentence: str, fix: str) -> None:
    """Log the finding of a check."""
    _log.warning("%s: %s; %s (%s/codes/#%s)", code, sentence, fix, DOCUMENTATION, code.lower())


class Counter:
    """Counts rare events by limit name; thread-safe."""

    def __init__(self) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._lock: Final = fork_safe(Lock())

    def add(self, name: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, int]:
        """Return the current counts."""
        with self._lock:
            return self._counts.copy()
