"""The results that reports, plots and notebooks show, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

from penstock.simulate.format import column_label, format_value

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray

    from penstock.simulate.table import Table

PathLike: TypeAlias = "str | os.PathLike[str]"


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
        start_ns: The start of the first bin.
        width_ns: The width of a bin.
        arrivals: Events per bin.
        denied: Denied events per bin.
    """

    start_ns: int
    width_ns: int
    arrivals: NDArray[np.int64]
    denied: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucket:
    """The bucket of one client while its events were denied: an hour, or 200 events.

    Attributes:
        id: The client.
        times: The instants, in nanoseconds since the clock's origin.
        tokens: The tokens left; under a limit on requests in flight, the requests in flight.
        full: What the bucket holds, or the limit on requests in flight.
        denied_times: The times of denied events.
        is_in_flight: Whether requests in flight are shown.
    """

    id: str
    times: NDArray[np.int64]
    tokens: NDArray[np.int64]
    full: int
    denied_times: NDArray[np.int64]
    is_in_flight: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitResult:
    """The result of one limit over one trace.

    Attributes:
        title: Its label among several limits; empty if it is the only one.
        limit: Description of the limit; empty if it is not known.
        admits: Description of how much the limit admits.
        summary: The totals of its decisions.
        bins: The events over time.
        waits: For each range of `retry_after`, shortest first, its name and its denied events.
        clients: The clients with the most denied events; if nothing was denied, those with the
            most events.
        first_ns: Time of the first event, in nanoseconds since the clock's origin.
        last_ns: Time of the last event.
        bucket: One bucket while it matters; None if it is not known.
    """

    title: str = ""
    limit: str
    admits: str
    summary: Summary
    bins: Bins
    waits: tuple[tuple[str, int], ...]
    clients: Table
    first_ns: int
    last_ns: int
    bucket: Bucket | None = None
