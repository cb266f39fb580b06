"""Totals of decisions, which the core counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.simulate.limit_result import Bins, LimitResult, Summary
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from penstock import _core
    from penstock.simulate.evaluator import Evaluator


_MAX_BINS: Final = 360
_MIN_BINS: Final = 30
_MAX_CLIENTS: Final = 20
_SECOND: Final = 1_000_000_000


class WithTotals:
    """The totals of decisions on a limit that were counted."""

    _evaluator: Evaluator

    def _counted(self) -> _core.Simulator:
        """Return the simulator that counted the events."""
        raise NotImplementedError

    def summary(self) -> Summary:
        """Return the totals.

        >>> from penstock.simulate import simulate
        >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).summary().longest_wait
        0.3
        """
        totals = self._counted().totals()
        events, denied = np.asarray(totals["events"]), np.asarray(totals["denied"])
        longest = np.asarray(totals["longest_wait_ns"])
        total, total_denied = int(events.sum()), int(denied.sum())
        most_at_once, most_in_second, most_in_minute = totals["peaks"]
        return Summary(
            events=total,
            allowed=total - total_denied,
            denied=total_denied,
            denied_share=total_denied / total if total else 0.0,
            clients=int(np.count_nonzero(events)),
            clients_denied=int(np.count_nonzero(denied)),
            longest_wait=int(longest.max(initial=0)) / _SECOND,
            most_at_once=most_at_once,
            most_in_second=most_in_second,
            most_in_minute=most_in_minute,
            most_in_flight=totals["most_in_flight"],
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
        core = self._counted()
        totals, ids = core.totals(), core.ids()
        events, denied = np.asarray(totals["events"]), np.asarray(totals["denied"])
        longest, in_flight = np.asarray(totals["longest_wait_ns"]), np.asarray(totals["in_flight"])
        indices = np.flatnonzero(denied if is_denied else events)
        indices = indices[np.lexsort((indices, -events[indices], -denied[indices]))][:most]
        events, denied = events[indices], denied[indices]
        columns: dict[str, Sequence[Any]] = {
            "id": [ids[index] for index in indices.tolist()],
            "events": events.tolist(),
            "allowed": (events - denied).tolist(),
            "denied": denied.tolist(),
            "denied_share": (denied / np.maximum(events, 1)).tolist(),
            "longest_wait": (longest[indices] / _SECOND).tolist(),
        }
        if totals["most_in_flight"] is not None:
            columns["most_in_flight"] = in_flight[indices].tolist()
        return Table(caption, columns)

    def limit_result(self, title: str = "") -> LimitResult:
        """Return what reports and plots show.

        Args:
            title: The label of this limit among several.
        """
        core, summary = self._counted(), self.summary()
        totals = core.totals()
        # A few events in many bins would be a row of spikes.
        max_bins = min(_MAX_BINS, max(_MIN_BINS, summary.events // 4))
        start_ns, width_ns, arrivals, denied = core.bins(max_bins)
        limit, admits = self._evaluator.described
        return LimitResult(
            title=title,
            limit=limit,
            admits=admits,
            summary=summary,
            bins=Bins(start_ns, width_ns, np.asarray(arrivals), np.asarray(denied)),
            waits=tuple(totals["waits"]),
            clients=self._client_table(
                "Clients denied most" if summary.denied else "Most active clients",
                is_denied=summary.denied > 0,
                most=_MAX_CLIENTS,
            ),
            first_ns=totals["first_ns"],
            last_ns=totals["last_ns"],
        )
