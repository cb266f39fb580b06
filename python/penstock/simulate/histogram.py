"""Event counts over time, in bins of round widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._display import format_span
from penstock.simulate.optional import import_optional
from penstock.simulate.times import as_dates

if TYPE_CHECKING:
    from numpy.typing import NDArray


_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# Each width divides the next one, so that neighbouring bins can be merged.
_WIDTHS: Final = (
    1_000, 10_000, 100_000, _MS, 10 * _MS, 100 * _MS, _SECOND, 5 * _SECOND, 10 * _SECOND,
    30 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR,
    12 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY, 3640 * _DAY,
)  # fmt: skip
# Bins kept while events are added: the length of a log is known only at its end.
_MAX_BINS: Final = 4_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Bins:
    """Event counts in bins of equal width, from the first event to the last.

    Attributes:
        start_ns: The start of each bin.
        width_ns: The width of a bin.
        arrivals: Events per bin.
        allowed: Allowed events per bin.
        denied: Denied events per bin.
    """

    start_ns: NDArray[np.int64]
    width_ns: int
    arrivals: NDArray[np.int64]
    allowed: NDArray[np.int64]
    denied: NDArray[np.int64]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each bin; times as in `Trace.to_pandas`.

        Raises:
            ImportError: pandas is not installed.
        """
        columns = {"arrivals": self.arrivals, "allowed": self.allowed, "denied": self.denied}
        frame = {"time": as_dates(self.start_ns), **columns}
        return import_optional("pandas", "to_pandas()").DataFrame(frame)

    def __repr__(self) -> str:
        return f"<Bins: {len(self.start_ns):,} of {format_span(self.width_ns)}>"


class TimeHistogram:
    """A histogram of events that widens its bins as events are added: at most 4,000 bins."""

    def __init__(self) -> None:
        self.width_ns = _WIDTHS[0]
        # The start of the first bin, in bin widths.
        self._first = 0
        self._arrivals: NDArray[np.int64] = np.zeros(0, np.int64)
        self._denied: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, times: NDArray[np.int64], allowed: NDArray[np.bool_]) -> None:
        """Count sorted events, none of them earlier than the events already counted."""
        if len(times) == 0:
            return
        begin, end = int(times[0]), int(times[-1])
        if len(self._arrivals):
            begin = self._first * self.width_ns
        while end // self.width_ns - begin // self.width_ns >= _MAX_BINS:
            if not self._widen():
                break
        first, last = int(times[0]) // self.width_ns, end // self.width_ns
        if len(self._arrivals) == 0:
            self._first = first
        added = last - self._first + 1 - len(self._arrivals)
        self._arrivals = np.pad(self._arrivals, (0, added))
        self._denied = np.pad(self._denied, (0, added))
        # The events are sorted, so only the bin edges are searched for.
        edges = np.arange(first + 1, last + 1, dtype=np.int64) * self.width_ns
        indices = np.concatenate([[0], np.searchsorted(times, edges), [len(times)]])
        # Usually far fewer than the allowed ones.
        denied_before = np.searchsorted(np.flatnonzero(~allowed), indices)
        changed = slice(first - self._first, last - self._first + 1)
        self._arrivals[changed] += np.diff(indices)
        self._denied[changed] += np.diff(denied_before)

    def bins(self, max_bins: int) -> Bins:
        """Return at most `max_bins` bins, as narrow as the round widths allow."""
        merged = TimeHistogram()
        merged.width_ns, merged._first = self.width_ns, self._first
        merged._arrivals, merged._denied = self._arrivals, self._denied
        while len(merged._arrivals) > max_bins and merged._widen():
            pass
        # A single instant is shown as one second: an axis of a microsecond is hard to read.
        while len(merged._arrivals) == 1 and merged.width_ns < _SECOND and merged._widen():
            pass
        arrivals, denied = merged._arrivals, merged._denied
        start = (merged._first + np.arange(len(arrivals), dtype=np.int64)) * merged.width_ns
        return Bins(start, merged.width_ns, arrivals, arrivals - denied, denied)

    def _widen(self) -> bool:
        index = _WIDTHS.index(self.width_ns) + 1
        if index == len(_WIDTHS):
            return False
        factor = _WIDTHS[index] // self.width_ns
        missing = self._first % factor
        self._arrivals = _merge(self._arrivals, missing, factor)
        self._denied = _merge(self._denied, missing, factor)
        self._first //= factor
        self.width_ns = _WIDTHS[index]
        return True


def _merge(counts: NDArray[Any], missing: int, factor: int) -> NDArray[np.int64]:
    """Add up `factor` neighbouring bins each; the first group lacks its first `missing` bins."""
    if len(counts) == 0:
        return counts
    after = -(missing + len(counts)) % factor
    padded = np.pad(counts, (missing, after))
    merged: NDArray[np.int64] = padded.reshape(-1, factor).sum(axis=1)
    return merged
