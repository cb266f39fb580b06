"""Totals of decisions, accumulated part by part in little memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import _core
from penstock.simulate.histogram import TimeHistogram
from penstock.simulate.limit_result import LimitResult, Summary
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from penstock.simulate.routes import Routes
    from penstock.simulate.trace import Trace


MAX_BINS: Final = 360
"""The number of bins of an overview, unless the caller needs another one."""
_MIN_BINS: Final = 30
_MAX_CLIENTS: Final = 20
_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
# Upper bounds in seconds.
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


class RouteTotals:
    """Counts which limit denied, by route and by client."""

    def __init__(self, routes: Routes) -> None:
        self._routes: Final = routes
        size = len(routes.labels)
        self._events = np.zeros(size, np.int64)
        self._denied = np.zeros((size, len(routes.names)), np.int64)
        # For each client and limit with a denied event, how many.
        self._by_client: Final[Counter[tuple[int, int]]] = Counter()

    def add(self, clients: NDArray[np.uint32], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add the decisions on some events, given their clients."""
        denied = ~columns["allowed"]
        route, limit = columns["route"], columns["denied_by"]
        self._events += np.bincount(route, minlength=len(self._events))
        np.add.at(self._denied, (route[denied], limit[denied]), 1)
        pairs = clients[denied].astype(np.int64) * len(self._routes.names) + limit[denied]
        found, counts = np.unique(pairs, return_counts=True)
        for pair, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._by_client[divmod(pair, len(self._routes.names))] += count

    def by_limit(self) -> Table:
        """Return a row for each limit with the requests that it denied as the strictest."""
        denied = self._denied.sum(axis=0)
        return Table("Limits", {"limit": self._routes.names, "denied": denied.tolist()})

    def by_route(self) -> Table:
        """Return a row for each route, in their order; the last one is for all other requests."""
        denied = self._denied.sum(axis=1)
        columns = {
            "route": self._routes.labels,
            "events": self._events.tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / np.maximum(self._events, 1)).tolist(),
            "denied_by": [self._listed(enumerate(row)) for row in self._denied.tolist()],
        }
        return Table("Routes", columns)

    def denied_by(self, clients: Sequence[int]) -> list[str]:
        """Return for each client which limits denied how often, as text."""
        limits = range(len(self._routes.names))
        return [
            self._listed((limit, self._by_client[client, limit]) for limit in limits)
            for client in clients
        ]

    def _listed(self, counts: Iterable[tuple[int, int]]) -> str:
        found = sorted((-count, self._routes.names[limit]) for limit, count in counts if count)
        return ", ".join(f"{name} {-count:,}" for count, name in found)


class Accumulator:
    """Accumulates the totals of decisions, part by part.

    Its memory grows with the clients and with the traffic of one minute, not with the events.
    """

    def __init__(self, routes: Routes | None = None) -> None:
        self._routed: Final = None if routes is None else RouteTotals(routes)
        self._histogram: Final = TimeHistogram()
        self._clients: Sequence[str] = ()
        # For each client: events, denied events, longest wait.
        self._events: NDArray[np.int64] = np.zeros(0, np.int64)
        self._denied: NDArray[np.int64] = np.zeros(0, np.int64)
        self._longest: NDArray[np.int64] = np.zeros(0, np.int64)
        self._waits: NDArray[np.int64] = np.zeros(len(_WAITS) + 1, np.int64)
        self._peaks: Final = {1: 0, _SECOND: 0, _MINUTE: 0}
        # Times and costs of the events admitted in the last minute.
        self._tail: tuple[NDArray[np.int64], NDArray[np.int64]] = (
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )
        self._first_ns = self._last_ns = 0
        self._is_empty = True

    def add(self, trace: Trace, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add the decisions on a sorted trace, none of them earlier than those already added."""
        allowed = columns["allowed"]
        times = np.ascontiguousarray(trace.times)
        if len(times) == 0:
            return
        if self._is_empty:
            self._is_empty = False
            self._first_ns = int(times[0])
        self._last_ns = int(times[-1])
        self._histogram.add(times, allowed)
        codes = trace.client_indices
        self._add_clients(trace.clients, codes, ~allowed, columns["retry_after_ns"])
        if self._routed is not None:
            self._routed.add(codes, columns)
        self._add_peaks(times, allowed, trace.costs)

    def _add_clients(
        self,
        clients: Sequence[str],
        codes: NDArray[np.uint32],
        denied: NDArray[np.bool_],
        retry_after_ns: NDArray[np.int64],
    ) -> None:
        self._clients = clients
        if len(clients) > len(self._events):
            # Doubled, so that many parts with a few new clients each take linear time.
            added = max(len(clients), 2 * len(self._events)) - len(self._events)
            self._events = np.pad(self._events, (0, added))
            self._denied = np.pad(self._denied, (0, added))
            self._longest = np.pad(self._longest, (0, added))
        denied_codes, waits = codes[denied], retry_after_ns[denied]
        _count_into(self._events, codes)
        _count_into(self._denied, denied_codes)
        np.maximum.at(self._longest, denied_codes, waits)
        edges = np.array([seconds for _, seconds in _WAITS], np.int64) * _SECOND
        self._waits += np.bincount(np.searchsorted(edges, waits), minlength=len(_WAITS) + 1)

    def _add_peaks(
        self,
        times: NDArray[np.int64],
        allowed: NDArray[np.bool_],
        costs: NDArray[np.int64] | None,
    ) -> None:
        """Find the most tokens admitted in any interval, also across the border of two parts."""
        tail_times, tail_costs = self._tail
        recent = tail_times > times[0] - _MINUTE
        if recent.any():
            own = np.ones(len(times), np.int64) if costs is None else costs
            times = np.concatenate([tail_times[recent], times])
            costs = np.concatenate([tail_costs[recent], own])
            allowed = np.concatenate([np.ones(len(times) - len(allowed), np.bool_), allowed])
        flags = allowed.view(np.uint8)
        spent = None if costs is None else np.ascontiguousarray(costs)
        for width in self._peaks:
            peak, _ = _core.largest_within(times, flags, spent, width)
            self._peaks[width] = max(self._peaks[width], peak)
        since = int(np.searchsorted(times, times[-1] - _MINUTE, side="right"))
        kept = allowed[since:]
        # Copies, which do not keep the arrays of the part alive.
        last_costs = np.ones(len(kept), np.int64) if costs is None else costs[since:]
        self._tail = times[since:][kept], last_costs[kept]

    def limit_result(
        self, title: str, described: tuple[str, str], max_bins: int = MAX_BINS
    ) -> LimitResult:
        """Return what reports show of the totals so far, with at most `max_bins` bins."""
        # A few events in many bins would be a row of spikes.
        max_bins = min(max_bins, max(_MIN_BINS, int(self._events.sum()) // 4))
        names = [*(name for name, _ in _WAITS), _LONGER]
        is_denied = bool(self._denied.any())
        indices = np.flatnonzero(self._denied if is_denied else self._events)
        return LimitResult(
            title=title,
            limit=described[0],
            admits=described[1],
            summary=self.summary(),
            bins=self._histogram.bins(max_bins),
            waits=tuple(zip(names, self._waits.tolist(), strict=True)),
            clients=self._table(
                "Clients denied most" if is_denied else "Most active clients",
                self._most_denied_first(indices)[:_MAX_CLIENTS],
            ),
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            tables=()
            if self._routed is None
            else (self._routed.by_limit(), self._routed.by_route()),
        )

    @property
    def routed(self) -> RouteTotals:
        """The counts by route.

        Raises:
            ValueError: There are no routes.
        """
        if self._routed is None:
            raise ValueError("there is one limit for all events; pass routes= to simulate several")
        return self._routed

    def summary(self) -> Summary:
        """Return the totals so far."""
        events, denied = int(self._events.sum()), int(self._denied.sum())
        return Summary(
            events=events,
            allowed=events - denied,
            denied=denied,
            denied_share=denied / events if events else 0.0,
            clients=int(np.count_nonzero(self._events)),
            clients_denied=int(np.count_nonzero(self._denied)),
            longest_wait=int(self._longest.max(initial=0)) / _SECOND,
            most_at_once=self._peaks[1],
            most_in_second=self._peaks[_SECOND],
            most_in_minute=self._peaks[_MINUTE],
        )

    def by_client(self) -> Table:
        """Return a row for each client with an event, most denied events first."""
        return self._table("Clients", self._most_denied_first(np.flatnonzero(self._events)))

    def denied_clients(self) -> Table:
        """Return a row for each client with a denied event, most denied events first."""
        indices = self._most_denied_first(np.flatnonzero(self._denied))
        return self._table("Clients with denied events", indices)

    def _most_denied_first(self, indices: NDArray[np.intp]) -> NDArray[np.intp]:
        order = np.lexsort((indices, -self._events[indices], -self._denied[indices]))
        return indices[order]

    def _table(self, caption: str, indices: NDArray[np.intp]) -> Table:
        events, denied = self._events[indices], self._denied[indices]
        columns: dict[str, Sequence[Any]] = {
            "id": [self._clients[index] for index in indices.tolist()],
            "events": events.tolist(),
            "allowed": (events - denied).tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / np.maximum(events, 1)).tolist(),
            "longest_wait": (self._longest[indices] / _SECOND).tolist(),
        }
        if self._routed is not None:
            columns["denied_by"] = self._routed.denied_by(indices.tolist())
        return Table(caption, columns)


class WithTotals:
    """The totals of decisions that were accumulated."""

    def _totals(self) -> Accumulator:
        raise NotImplementedError

    def summary(self) -> Summary:
        """Return the totals.

        >>> from penstock.simulate import simulate
        >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).summary().longest_wait
        0.3
        """
        return self._totals().summary()

    def by_client(self) -> Table:
        """Return a row for each client, most denied events first.

        Ids that share a bucket, such as the addresses of one network, are one client.
        `longest_wait` is the longest `retry_after` of a denied event, in seconds.
        """
        return self._totals().by_client()

    def denied_clients(self) -> Table:
        """Return a row for each client with a denied event, as `by_client` does."""
        return self._totals().denied_clients()

    def by_limit(self) -> Table:
        """Return a row for each limit of the routes, with the events that it denied.

        An event that several limits deny is counted for the strictest one.

        Raises:
            ValueError: The simulation has no routes.
        """
        return self._totals().routed.by_limit()

    def by_route(self) -> Table:
        """Return a row for each route, with the limits that denied; the last row is for the rest.

        Raises:
            ValueError: The simulation has no routes.
        """
        return self._totals().routed.by_route()


def _count_into(counts: NDArray[np.int64], codes: NDArray[np.uint32]) -> None:
    """Add the number of occurrences of each code, in time linear in the codes."""
    if len(codes) * 4 >= len(counts):
        counts += np.bincount(codes, minlength=len(counts))
    else:
        np.add.at(counts, codes, 1)
