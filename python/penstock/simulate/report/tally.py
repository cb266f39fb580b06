"""What decisions come to, counted part by part in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import _core
from penstock.simulate.report.histogram import Counts
from penstock.simulate.result import Bins, Summary
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.simulate.result import Simulation

__all__ = ["Overview", "Tally", "overview_of"]

_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
_MOST_BINS: Final = 360
_FEWEST_BINS: Final = 30
_MOST_CLIENTS: Final = 20
_WAITS: Final = (
    ("up to 1 second", 1),
    ("1 to 5 seconds", 5),
    ("5 to 15 seconds", 15),
    ("15 to 60 seconds", 60),
    ("1 to 5 minutes", 300),
    ("5 to 15 minutes", 900),
    ("15 to 60 minutes", 3_600),
    ("1 to 6 hours", 21_600),
    ("6 to 24 hours", 86_400),
)
_LONGER: Final = "over 24 hours"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """What decisions came to.

    Attributes:
        summary: The totals.
        bins: The events over time.
        waits: How many denied events were told to wait how long, in words, shortest first.
        clients: The clients that were denied most; if none was, those that came most.
        first_ns: When the first event was, in nanoseconds since the clock's origin.
        last_ns: When the last one was.
    """

    summary: Summary
    bins: Bins
    waits: tuple[tuple[str, int], ...]
    clients: Table
    first_ns: int
    last_ns: int


class Tally:
    """Counts decisions, part by part.

    What it holds grows with the clients and with the traffic of one minute, not with the events.
    """

    def __init__(self) -> None:
        self._counts: Final = Counts()
        self._events: NDArray[np.int64] = np.zeros(0, np.int64)
        self._denied: NDArray[np.int64] = np.zeros(0, np.int64)
        self._longest: NDArray[np.int64] = np.zeros(0, np.int64)
        self._waits: NDArray[np.int64] = np.zeros(len(_WAITS) + 1, np.int64)
        self._peaks: Final = {1: 0, _SECOND: 0, _MINUTE: 0}
        self._tail: tuple[NDArray[np.int64], NDArray[np.int64]] = (
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )
        self._clients: Sequence[str] = ()
        self._first = self._last = 0

    def add(self, part: Simulation) -> None:
        """Count the decisions of a part, none of whose events is before those counted."""
        # In the order of their times, in which the parts and all that is counted here stand.
        trace, told = part._ordered, part._by_time  # noqa: SLF001  our own
        times = trace.times
        if len(times) == 0:
            return
        if len(self._events) == 0:
            self._first = int(times[0])
        self._last = int(times[-1])
        allowed, waits = told("allowed"), told("retry_after_ns")
        self._counts.add(times, allowed)
        self._count_clients(trace.clients, trace.codes, ~allowed, waits)
        self._find_peaks(times[allowed], None if trace.costs is None else trace.costs[allowed])

    def _count_clients(
        self,
        clients: Sequence[str],
        codes: NDArray[np.uint32] | None,
        denied: NDArray[np.bool_],
        waits: NDArray[np.int64],
    ) -> None:
        self._clients = clients
        new = len(clients) - len(self._events)
        if new:
            self._events = np.pad(self._events, (0, new))
            self._denied = np.pad(self._denied, (0, new))
            self._longest = np.pad(self._longest, (0, new))
        if codes is None:
            codes = np.zeros(len(denied), np.uint32)
        refused, told = codes[denied], waits[denied]
        self._events += np.bincount(codes, minlength=len(clients))
        self._denied += np.bincount(refused, minlength=len(clients))
        np.maximum.at(self._longest, refused, told)
        edges = np.array([seconds for _, seconds in _WAITS], np.int64) * _SECOND
        self._waits += np.bincount(np.searchsorted(edges, told), minlength=len(_WAITS) + 1)

    def _find_peaks(self, times: NDArray[np.int64], costs: NDArray[np.int64] | None) -> None:
        """Find the most admitted in any stretch, also in one that began in the part before."""
        if len(times) == 0:
            return
        spent = np.ones(len(times), np.int64) if costs is None else costs
        earlier, spent_earlier = self._tail
        recent = earlier > times[0] - _MINUTE
        times = np.concatenate([earlier[recent], times])
        spent = np.concatenate([spent_earlier[recent], spent])
        kept = np.ones(len(times), np.uint8)
        for width in self._peaks:
            found, _ = _core.largest_within(times, kept, spent, width)
            self._peaks[width] = max(self._peaks[width], found)
        since = int(np.searchsorted(times, times[-1] - _MINUTE, side="right"))
        # Copies, so that the arrays of the part are not held with them.
        self._tail = times[since:].copy(), spent[since:].copy()

    def overview(self, most_bins: int = _MOST_BINS) -> Overview:
        """Say what they come to so far."""
        came = int(np.count_nonzero(self._events))
        # A few events in very many bins would be a row of needles.
        most_bins = min(most_bins, max(_FEWEST_BINS, int(self._events.sum()) // 4))
        start, width, arrivals, allowed = self._counts.binned(most_bins)
        bins = Bins(
            start + np.arange(len(arrivals), dtype=np.int64) * width,
            width,
            arrivals,
            allowed,
            arrivals - allowed,
        )
        words = [*(words for words, _ in _WAITS), _LONGER]
        told = tuple(zip(words, self._waits.tolist(), strict=True))
        return Overview(
            summary=self._summary(came),
            bins=bins,
            waits=told,
            clients=self._most_hit(),
            first_ns=self._first,
            last_ns=self._last,
        )

    def _summary(self, came: int) -> Summary:
        events, denied = int(self._events.sum()), int(self._denied.sum())
        return Summary(
            events=events,
            allowed=events - denied,
            denied=denied,
            denied_share=denied / events if events else 0.0,
            clients=came,
            clients_denied=int(np.count_nonzero(self._denied)),
            worst_wait=int(self._longest.max(initial=0)) / _SECOND,
            largest_at_once=self._peaks[1],
            largest_in_second=self._peaks[_SECOND],
            largest_in_minute=self._peaks[_MINUTE],
        )

    def _most_hit(self) -> Table:
        came = np.flatnonzero(self._denied if self._denied.any() else self._events)
        events, denied = self._events[came], self._denied[came]
        hit = came[np.lexsort((came, -events, -denied))][:_MOST_CLIENTS]
        events, denied = self._events[hit], self._denied[hit]
        return Table(
            "Clients denied most" if denied.any() else "Clients that came most",
            {
                "id": [self._clients[place] for place in hit],
                "events": events.tolist(),
                "allowed": (events - denied).tolist(),
                "denied": denied.tolist(),
                "denied_share": (denied / np.maximum(events, 1)).tolist(),
                "worst_wait": (self._longest[hit] / _SECOND).tolist(),
            },
        )


def overview_of(simulation: Simulation, most_bins: int = _MOST_BINS) -> Overview:
    """Say what all decisions of a simulation come to."""
    tally = Tally()
    tally.add(simulation)
    return tally.overview(most_bins)
