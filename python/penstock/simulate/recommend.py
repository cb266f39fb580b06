"""The smallest limit that denies at most a given share of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import Limit
from penstock.errors import LimitError
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.limit_result import RecommendedLimit
from penstock.simulate.run import as_trace, simulate
from penstock.simulate.table import Table
from penstock.simulate.times import parse_span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.simulate.result import Simulation
    from penstock.simulate.trace import Trace


# A bucket that takes 36 years to refill: no trace needs a larger burst.
_MAX_BURST_NS: Final = 1 << 60
# Each count takes a dozen simulations, and a curve with more points says no more.
_MAX_COUNTS: Final = 96
# Number of smaller bursts to try below the one found, if costs differ.
_SMALLER_BURSTS: Final = 64


@dataclass(frozen=True, slots=True)
class _Point:
    """The smallest burst found for a count.

    Attributes:
        count: Tokens per period.
        burst: Tokens a full bucket holds.
        denied: Denied events.
    """

    count: int
    burst: int
    denied: int

    @property
    def worst(self) -> int:
        """The most tokens that one client is admitted in any period."""
        return self.burst + self.count


class Recommendation(RecommendedLimit):
    """The smallest limit that was found, and the alternatives.

    Attributes:
        simulation: The simulation of the limit over the trace.
    """

    def __init__(
        self, curve: Table, simulation: Simulation, limit: Limit, max_denied: float, **known: bool
    ) -> None:
        super().__init__(limit, curve, simulation.summary(), max_denied, **known)
        self.simulation = simulation

    @property
    def hit(self) -> Table:
        """The clients that the limit denies something, most denied events first."""
        clients = self.simulation.by_client()
        rows = [row for row in clients.rows() if row["denied"]]
        columns = {name: [row[name] for row in rows] for name in clients.columns}
        return Table("Clients with denied events", columns)

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  only when shown

        result = self.simulation.limit_result(max_bins=notebook.MAX_BINS)
        return notebook.recommendation_html(self, self.hit, result.overview.bins)

    def plot(self) -> Any:
        """Plot the smallest burst for each count, and the recommended pair.

        Returns:
            A `matplotlib.figure.Figure` that is not registered with pyplot.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_recommendation(self)


def recommend(
    trace: Any, max_denied: float = 0.001, period: Any = "1m", *, sort: bool = False
) -> Recommendation:
    """Find the smallest token bucket that denies at most a given share of a trace's events.

    Every count has a smallest burst. The recommended pair has the smallest sum, which is the most
    that one client is admitted in any period.

    If all events cost the same, a larger burst or count never denies more events, and bisection
    finds the smallest burst. If costs differ, this holds only if nothing may be denied; otherwise
    the burst is bisected and smaller ones are tried below it.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        max_denied: The share of the events that may be denied, 0 to 1.
        period: The limit's period: a text with units, seconds, or a `timedelta`.
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty, or `max_denied` is not between 0 and 1.

    >>> from penstock.simulate import traffic
    >>> found = recommend(traffic.bursts(10, "1m", "1h", clients=5), max_denied=0)
    >>> found.burst, found.count
    (10, 10)
    """
    events = as_trace(trace)
    if sort:
        events = events.sorted()
    if isinstance(max_denied, bool) or not isinstance(max_denied, (int, float, np.number)):
        found = f"{type(max_denied).__name__} {max_denied!r}"
        raise TypeError(f"max_denied must be a number between 0 and 1, found {found}")
    if not 0 <= max_denied <= 1:
        raise ValueError(f"max_denied must be between 0 and 1, found {max_denied}")
    if len(events) == 0:
        raise ValueError("trace must have at least one event, found none")
    search = _Search(events, int(max_denied * len(events)), parse_span(period, "period"))
    best = search.smallest()
    limit = search.limit(best.burst, best.count)
    return Recommendation(
        search.curve(),
        simulate(limit, events),
        limit,
        max_denied,
        is_smallest=search.is_exhausted and search.is_monotone,
    )


class _Search:
    """The search for the smallest sum of burst and count."""

    def __init__(self, trace: Trace, max_denied: int, period_ns: int) -> None:
        self.trace = trace
        self.max_denied = max_denied
        self.period_ns = period_ns
        costs = trace.costs
        self.min_burst = 1 if costs is None else max(int(costs.max()), 1)
        is_uniform = costs is None or int(costs.min()) == int(costs.max())
        self.is_monotone = is_uniform or max_denied == 0
        self.is_exhausted = True
        self.points: dict[int, _Point] = {}

    def limit(self, burst: int, count: int) -> Limit:
        """Return a limit with the period, a burst and a count that are known to be valid."""
        return Limit.token_bucket(burst=burst, count=count, period=f"{self.period_ns}ns")

    def smallest(self) -> _Point:
        """Try counts until no other count can have a smaller sum."""
        count = 1
        best = self._point(count)
        while best is None or count + self.min_burst < best.worst:
            count *= 2
            point = self._point(count)
            if point is None:
                break
            if best is None or point.worst < best.worst:
                best = point
        if best is None:
            raise LimitError("the period is too short for this trace's rate; use a longer one")
        return self._narrow(best)

    def _narrow(self, best: _Point) -> _Point:
        """Halve the gaps between counts that may still contain a smaller sum."""
        while len(self.points) < _MAX_COUNTS:
            known = sorted(self.points.values(), key=lambda point: point.count)
            gaps = [
                # A larger count needs no larger burst, so this is a lower bound of the sum.
                (low.count + 1 + high.burst, low.count, high.count)
                for low, high in pairwise(known)
                if high.count - low.count > 1
            ]
            gaps = [gap for gap in gaps if gap[0] < best.worst]
            if not gaps:
                return best
            _, low, high = min(gaps)
            point = self._point((low + high) // 2)
            if point is not None and (point.worst, point.burst) < (best.worst, best.burst):
                best = point
        self.is_exhausted = False
        return best

    def _point(self, count: int) -> _Point | None:
        """Find the smallest burst for a count; None if there is no such limit."""
        try:
            interval = self.limit(1, count).emission_interval_ns
        except LimitError:
            return None
        max_burst = _MAX_BURST_NS // interval
        if max_burst < self.min_burst:
            return None
        low, high = self._bounds(count)
        denied: int | None = None
        if high is None or not self.max_denied:
            # How many tokens the emptiest bucket lacks, if nothing is denied.
            columns = self._columns(max_burst, count, "reset_after_ns")
            if not columns["allowed"].all():
                return None
            lacking = -(-int(columns["reset_after_ns"].max()) // interval)
            high, denied = max(lacking, self.min_burst), 0
        while low < high and self.max_denied:
            middle = (low + high) // 2
            found = self._denied(middle, count)
            if found <= self.max_denied:
                high, denied = middle, found
            else:
                low = middle + 1
        if denied is None:
            denied = self._denied(high, count)
        if not self.is_monotone:
            high, denied = self._below(high, denied, count)
        self.points[count] = _Point(count, high, denied)
        return self.points[count]

    def _bounds(self, count: int) -> tuple[int, int | None]:
        """Return the smallest burst that may suffice, and one that does suffice if it is known.

        A larger count needs no larger burst, so the bursts of the neighbouring counts are bounds.
        """
        if not self.is_monotone:
            return self.min_burst, None
        above = [point.burst for point in self.points.values() if point.count > count]
        below = [point.burst for point in self.points.values() if point.count < count]
        return max(above, default=self.min_burst), min(below, default=None)

    def _below(self, burst: int, denied: int, count: int) -> tuple[int, int]:
        """Try smaller bursts than the one found by bisection."""
        if burst == self.min_burst:
            return burst, denied
        tried = np.unique(np.linspace(self.min_burst, burst - 1, _SMALLER_BURSTS).astype(np.int64))
        for smaller in tried.tolist():
            found = self._denied(smaller, count)
            if found <= self.max_denied:
                return smaller, found
        return burst, denied

    def _denied(self, burst: int, count: int) -> int:
        allowed = self._columns(burst, count, "allowed")["allowed"]
        return len(self.trace) - int(np.count_nonzero(allowed))

    def _columns(self, burst: int, count: int, column: str) -> dict[str, NDArray[Any]]:
        return Evaluator(self.limit(burst, count), "Limit").columns(self.trace, [column])

    def curve(self) -> Table:
        """Return the points, by count, that no other point beats in both numbers."""
        kept: list[_Point] = []
        for point in sorted(self.points.values(), key=lambda point: point.count):
            if not kept or point.burst < kept[-1].burst:
                kept.append(point)
        return Table(
            "Burst against count",
            {
                "count": [point.count for point in kept],
                "burst": [point.burst for point in kept],
                "denied_share": [point.denied / len(self.trace) for point in kept],
                "worst_in_any_period": [point.worst for point in kept],
            },
        )
