"""Stretches of time that people think in, and events counted by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Counts", "width_for"]

_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# Each divides the next, so that narrow stretches can be put together to wider ones.
_WIDTHS: Final = (
    1_000, 10_000, 100_000, _MS, 10 * _MS, 100 * _MS, _SECOND, 5 * _SECOND, 10 * _SECOND,
    30 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR,
    12 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY, 3640 * _DAY,
)  # fmt: skip
# As the counts of a log grow while it is read, nobody knows yet how long it is.
_MOST: Final = 4_000


def width_for(duration_ns: int, most: int) -> int:
    """Give the narrowest stretch of which at most so many span a duration, in nanoseconds.

    >>> width_for(3_600 * 10**9, 200) // 10**9
    30
    """
    return next((width for width in _WIDTHS if duration_ns // width < most), _WIDTHS[-1])


class Counts:
    """Events by stretches of time, which widen as the events go on: never more than 4,000."""

    def __init__(self) -> None:
        self.width_ns = _WIDTHS[0]
        self._first = 0
        self._arrivals: NDArray[np.int64] = np.zeros(0, np.int64)
        self._allowed: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, times: NDArray[np.int64], allowed: NDArray[np.bool_]) -> None:
        """Count events, by time, none before the last one of those before."""
        if len(times) == 0:
            return
        begin, end = int(times[0]), int(times[-1])
        if len(self._arrivals):
            begin = self._first * self.width_ns
        while end // self.width_ns - begin // self.width_ns >= _MOST:
            if not self._widen():
                break
        first, last = int(times[0]) // self.width_ns, end // self.width_ns
        if len(self._arrivals) == 0:
            self._first = first
        new = last - self._first + 1 - len(self._arrivals)
        self._arrivals = np.pad(self._arrivals, (0, new))
        self._allowed = np.pad(self._allowed, (0, new))
        # The events stand by time, so that only the ends of the stretches are looked for.
        edges = np.arange(first + 1, last + 1, dtype=np.int64) * self.width_ns
        places = np.concatenate([[0], np.searchsorted(times, edges), [len(times)]])
        passed = np.concatenate([[0], np.cumsum(allowed, dtype=np.int64)])
        where = slice(first - self._first, last - self._first + 1)
        self._arrivals[where] += np.diff(places)
        self._allowed[where] += np.diff(passed[places])

    def binned(self, most: int) -> tuple[int, int, NDArray[np.int64], NDArray[np.int64]]:
        """Give at most so many stretches, as near as widths allow: start, width, counts."""
        wide = Counts()
        wide.width_ns, wide._first = self.width_ns, self._first
        wide._arrivals, wide._allowed = self._arrivals, self._allowed
        while len(wide._arrivals) > most and wide._widen():
            pass
        # Of one instant a second is shown: nobody reads an axis of a microsecond.
        while len(wide._arrivals) == 1 and wide.width_ns < _SECOND and wide._widen():
            pass
        return wide._first * wide.width_ns, wide.width_ns, wide._arrivals, wide._allowed

    def _widen(self) -> bool:
        place = _WIDTHS.index(self.width_ns) + 1
        if place == len(_WIDTHS):
            return False
        times = _WIDTHS[place] // self.width_ns
        before = self._first % times
        self._arrivals = _summed(self._arrivals, before, times)
        self._allowed = _summed(self._allowed, before, times)
        self._first //= times
        self.width_ns = _WIDTHS[place]
        return True


def _summed(counts: NDArray[Any], before: int, times: int) -> NDArray[np.int64]:
    """Put `times` neighbours together, where `before` neighbours of the first one are not there."""
    if len(counts) == 0:
        return counts
    after = -(before + len(counts)) % times
    summed: NDArray[np.int64] = np.pad(counts, (before, after)).reshape(-1, times).sum(axis=1)
    return summed
