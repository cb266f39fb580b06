"""Totals of decisions, accumulated part by part in little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import _core
from penstock.simulate.limit_result import Bins, LimitResult, Summary
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import Evaluator, LimitFeed
    from penstock.simulate.trace import Trace


_MAX_BINS: Final = 360
_MIN_BINS: Final = 30
_MAX_CLIENTS: Final = 20
_SECOND: Final = 1_000_000_000
# Of the intervals whose most admitted tokens are shown: an instant, a second, a minute.
_WIDTHS: Final = (1, _SECOND, 60 * _SECOND)
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


class Accumulator:
    """Counts decisions, part by part.

    Its memory grows with the clients and with the traffic of one minute, not with the events.

    Attributes:
        counts: The counts by client, by wait and by time.
        clients: The table of the clients' ids.
        first_ns: Time of the first event; None if there is none.
        last_ns: Time of the last event.
        has_durations: Whether it is known how long requests took.
    """

    def __init__(self) -> None:
        self.counts: Final = _core.Totals([seconds * _SECOND for _, seconds in _WAITS], _WIDTHS)
        self.clients: Sequence[str] = ()
        self.first_ns: int | None = None
        self.last_ns = 0
        self.has_durations = False

    def add(
        self, feed: LimitFeed, part: Trace, numbers: NDArray[np.uint32] | None
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the next events, and add the decisions.

        Args:
            feed: The limit.
            part: The events, sorted, and none of them earlier than those already added.
            numbers: What `feed.number` returned for them.

        Returns:
            The columns `allowed` and `retry_after_ns`.
        """
        columns = feed.evaluate(part, numbers, ["retry_after_ns"])
        if len(part) == 0:
            return columns
        trace = feed.by_bucket(part, numbers)
        times, codes, costs, durations = trace.arrays
        if self.first_ns is None:
            self.first_ns = int(times[0])
        self.last_ns = int(times[-1])
        self.clients = trace.clients
        self.counts.add(
            times,
            codes,
            costs,
            columns["allowed"].view(np.uint8),
            columns["retry_after_ns"],
            durations,
        )
        self.has_durations = durations is not None
        return columns


class WithTotals:
    """The totals of decisions on a limit that were counted."""

    _evaluator: Evaluator

    def _totals(self) -> Accumulator:
        raise NotImplementedError

    def summary(self) -> Summary:
        """Return the totals.

        >>> from penstock.simulate import simulate
        >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).summary().longest_wait
        0.3
        """
        totals = self._totals()
        events, denied, longest, _ = map(np.asarray, totals.counts.clients())
        total, total_denied = int(events.sum()), int(denied.sum())
        peaks = totals.counts.peaks
        return Summary(
            events=total,
            allowed=total - total_denied,
            denied=total_denied,
            denied_share=total_denied / total if total else 0.0,
            clients=int(np.count_nonzero(events)),
            clients_denied=int(np.count_nonzero(denied)),
            longest_wait=int(longest.max(initial=0)) / _SECOND,
            most_at_once=peaks[0],
            most_in_second=peaks[1],
            most_in_minute=peaks[2],
            most_in_flight=totals.counts.most_in_flight if totals.has_durations else None,
        )

    def by_client(self) -> Table:
        """Return a row for each client, most denied events first.

        Ids that share a bucket, such as the addresses of one network, are one client.
        `longest_wait` is the longest `retry_after` of a denied event, in seconds. With durations,
        `most_in_flight` is the most requests of the client that were in flight at once.
        """
        return self._client_table("Clients")

    def denied_clients(self) -> Table:
        """Return a row for each client with a denied event, as `by_client` does."""
        return self._client_table("Clients with denied events", is_denied=True)

    def _client_table(
        self, caption: str, *, is_denied: bool = False, most: int | None = None
    ) -> Table:
        totals = self._totals()
        events, denied, longest, in_flight = map(np.asarray, totals.counts.clients())
        indices = np.flatnonzero(denied if is_denied else events)
        indices = indices[np.lexsort((indices, -events[indices], -denied[indices]))][:most]
        events, denied = events[indices], denied[indices]
        columns: dict[str, Sequence[Any]] = {
            "id": [totals.clients[index] for index in indices.tolist()],
            "events": events.tolist(),
            "allowed": (events - denied).tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / np.maximum(events, 1)).tolist(),
            "longest_wait": (longest[indices] / _SECOND).tolist(),
        }
        if totals.has_durations:
            columns["most_in_flight"] = in_flight[indices].tolist()
        return Table(caption, columns)

    def limit_result(self, title: str = "") -> LimitResult:
        """Return what reports and plots show.

        Args:
            title: The label of this limit among several.
        """
        totals, summary = self._totals(), self.summary()
        # A few events in many bins would be a row of spikes.
        max_bins = min(_MAX_BINS, max(_MIN_BINS, summary.events // 4))
        start_ns, width_ns, arrivals, denied = totals.counts.bins(max_bins)
        names = [*(name for name, _ in _WAITS), _LONGER]
        limit, admits = self._evaluator.described
        return LimitResult(
            title=title,
            limit=limit,
            admits=admits,
            summary=summary,
            bins=Bins(start_ns, width_ns, np.asarray(arrivals), np.asarray(denied)),
            waits=tuple(zip(names, totals.counts.waits, strict=True)),
            clients=self._client_table(
                "Clients denied most" if summary.denied else "Most active clients",
                is_denied=summary.denied > 0,
                most=_MAX_CLIENTS,
            ),
            first_ns=totals.first_ns or 0,
            last_ns=totals.last_ns,
        )
