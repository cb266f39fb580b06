"""Totals of decisions, which the core counts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.simulate.format import column_label, format_value
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from penstock import _core
    from penstock.simulate.bucket import Bucket
    from penstock.simulate.evaluator import Evaluator


_MAX_BINS: Final = 360
_MIN_BINS: Final = 30
_MAX_CLIENTS: Final = 20
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a simulation.

    Attributes:
        events: Number of events.
        allowed: Number of allowed events.
        denied: Number of denied events.
        denied_share: Share of the events that was denied, 0 to 1.
        clients: Number of clients with an event; ids that share a bucket are one client.
        clients_denied: Number of clients with a denied event.
        longest_wait: Longest `retry_after` of a denied event, in seconds.
        most_at_once: Most tokens admitted at one instant, for all clients together.
        most_in_second: Most tokens admitted in any second, for all clients together.
        most_in_minute: Most tokens admitted in any minute, for all clients together.
        most_in_flight: Most requests in flight at once, of all clients together; None without
            durations.
    """

    events: int
    allowed: int
    denied: int
    denied_share: float
    clients: int
    clients_denied: int
    longest_wait: float
    most_at_once: int
    most_in_second: int
    most_in_minute: int
    most_in_flight: int | None = None

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def facts(self) -> dict[str, str]:
        """Return the known numbers as they are shown, by their headings."""
        numbers = self.to_dict().items()
        shown = {name: format_value(name, value) for name, value in numbers if value is not None}
        shown["denied"] += f" ({shown.pop('denied_share')})"
        return {column_label(name): text for name, text in shown.items()}

    def __str__(self) -> str:
        return "\n".join(f"{heading:<18} {text}" for heading, text in self.facts().items())


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Event counts in bins of equal width, from the first event to the last.

    Attributes:
        first_ns: Time of the first event, in nanoseconds since the clock's origin.
        last_ns: Time of the last event.
        start_ns: The start of the first bin.
        width_ns: The width of a bin.
        arrivals: Events per bin.
        denied: Denied events per bin.
    """

    first_ns: int
    last_ns: int
    start_ns: int
    width_ns: int
    arrivals: NDArray[np.int64]
    denied: NDArray[np.int64]


class WithTotals:
    """The totals of decisions on a limit that were counted.

    Attributes:
        evaluator: The limit.
    """

    evaluator: Evaluator

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

    def top_clients(self) -> Table:
        """Return the clients with the most denied events; with the most events if none is."""
        is_denied = self.summary().denied > 0
        caption = "Clients denied most" if is_denied else "Most active clients"
        return self._client_table(caption, is_denied=is_denied, most=_MAX_CLIENTS)

    def bins(self) -> Bins:
        """Return the events over time."""
        core = self._counted()
        totals = core.totals()
        # A few events in many bins would be a row of spikes.
        events = int(np.asarray(totals["events"]).sum())
        max_bins = min(_MAX_BINS, max(_MIN_BINS, events // 4))
        start_ns, width_ns, arrivals, denied = core.bins(max_bins)
        first_ns, last_ns = totals["first_ns"], totals["last_ns"]
        return Bins(first_ns, last_ns, start_ns, width_ns, np.asarray(arrivals), np.asarray(denied))

    def waits(self) -> dict[str, int]:
        """Return for each range of `retry_after`, shortest first, its denied events."""
        return dict(self._counted().totals()["waits"])

    def bucket(self) -> Bucket | None:
        """Return the bucket of one client while it matters; None if it is not known."""
        return None


def compare_totals(
    settings: Iterable[Mapping[str, Any]], simulated: Iterable[WithTotals]
) -> dict[str, list[Any]]:
    """Return columns with a row for each simulation: what names it, and its totals."""
    rows = [
        {**setting, **each.summary().to_dict()}
        for setting, each in zip(settings, simulated, strict=True)
    ]
    # Traces without durations have no requests in flight.
    return {name: [row[name] for row in rows] for name in rows[0] if rows[0][name] is not None}
