"""The smallest limit that leaves a trace nearly alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import Limit, Limits
from penstock.display import in_words
from penstock.errors import LimitError
from penstock.simulate.drawn import DrawnRecommendation
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.run import simulate, trace_of
from penstock.simulate.table import Table, counted, shown
from penstock.simulate.times import span_ns

if TYPE_CHECKING:
    from penstock.simulate.result import Simulation
    from penstock.simulate.trace import Trace

__all__ = ["Recommendation", "recommend"]

# Buckets that fill in 36 years: whoever needs more is not limited by the trace.
_LONGEST_NS: Final = 1 << 60
# Each is a simulation or a dozen; a curve of more points says no more.
_MOST_COUNTS: Final = 96
# With costs that differ, so many smaller bursts are tried one by one below the one found.
_TRIED: Final = 64


@dataclass(frozen=True, slots=True)
class _Point:
    """The smallest burst that was found for a count.

    Attributes:
        count: Tokens a period.
        burst: Tokens a full bucket holds.
        denied: Events denied.
    """

    count: int
    burst: int
    denied: int

    @property
    def worst(self) -> int:
        """The most tokens that one client is admitted in any period."""
        return self.burst + self.count


class Recommendation(DrawnRecommendation):
    """The smallest limit that was found, with the others that would do.

    Attributes:
        limit: The limit.
        curve: For each count that was tried the smallest burst that will do, and the part of the
            events that is then denied; none is worse in both numbers than another.
        simulation: What the limit would have done to the trace.
        max_denied: The part of the events that may be denied.
        is_smallest: Whether it is known that no other limit of this period has a smaller sum of
            burst and count. False where costs differ and some may be denied, as a larger burst
            may then deny more, or where there are too many counts to try.
    """

    def __init__(
        self,
        limit: Limit,
        curve: Table,
        simulation: Simulation,
        max_denied: float,
        *,
        is_smallest: bool,
    ) -> None:
        self.limit = limit
        self.curve = curve
        self.simulation = simulation
        self.max_denied = max_denied
        self.is_smallest = is_smallest

    @property
    def burst(self) -> int:
        """Tokens a full bucket holds."""
        return self.limit.burst

    @property
    def count(self) -> int:
        """Tokens added in each period."""
        return self.limit.count

    @property
    def denied_share(self) -> float:
        """The part of the trace's events that it would have denied."""
        return self.simulation.denied_share

    @property
    def hit(self) -> Table:
        """The clients that it would have denied something, those denied most first."""
        clients = self.simulation.by_client()
        rows = [row for row in clients.rows() if row["denied"]]
        columns = {name: [row[name] for row in rows] for name in clients.columns}
        return Table("Clients that would be hit", columns)

    def yaml(self, name: str = "Requests") -> str:
        """Give the limit as a limits file has it.

        Raises:
            ConfigError: The name can be none.
        """
        return Limits({name: self.limit}).to_yaml()

    def explain(self) -> str:
        """Say in sentences what was found."""
        summary = self.simulation.summary()
        share = shown("denied_share", summary.denied_share)
        allowance = shown("denied_share", self.max_denied)
        sentences = [
            (
                f"A burst of {self.burst:,} and a count of {self.count:,} per period: "
                f"{in_words(self.limit)}."
            ),
            (
                f"Of {counted(summary.events, 'event')} of {counted(summary.clients, 'client')} "
                f"it denies {summary.denied:,} ({share}, where {allowance} may be), "
                f"and {_meet(summary.clients_denied)} it."
            ),
        ]
        if summary.denied:
            wait = shown("worst_wait", summary.worst_wait)
            sentences.append(f"Who is denied waits {wait} at most.")
        if self.is_smallest:
            sentences.append("No smaller sum of burst and count does it.")
        else:
            sentences.append("A smaller sum of burst and count may do it: not all were tried.")
        sentences.append("It is fitted to this trace: what comes next may need more.")
        return "\n".join(sentences)

    def __repr__(self) -> str:
        share = shown("denied_share", self.denied_share)
        return f"<Recommendation {self.limit!r}: {share} denied>"


def _meet(clients: int) -> str:
    return f"{counted(clients, 'client')} {'meets' if clients == 1 else 'meet'}"


def recommend(
    trace: Any, max_denied: float = 0.001, period: Any = "1m", *, sort: bool = False
) -> Recommendation:
    """Find the smallest token bucket that denies at most a part of a trace's events.

    For every count there is a smallest burst. Of these pairs the one is recommended whose sum is
    the smallest, since that is the most that one client is admitted in any period.

    Where all events cost the same, a larger burst or count never denies more: what is admitted in
    the smaller bucket fits into the larger one, and to admit each event that fits admits as many as
    can be. So bisection finds the smallest. Where costs differ that holds only for denying none; a
    burst is then bisected, and smaller ones are tried below it.

    Args:
        trace: As the times of `simulate`; each client has a bucket.
        max_denied: The part of the events that may be denied, 0 to 1. 0: none.
        period: The limit's period: a text with units, seconds, or a `timedelta`.
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty, or `max_denied` is no part.

    >>> from penstock.simulate import traffic
    >>> found = recommend(traffic.bursts(10, "1m", "1h", clients=5), max_denied=0)
    >>> found.burst, found.count
    (10, 10)
    """
    events = trace_of(trace)
    if sort:
        events = events.sorted()
    if isinstance(max_denied, bool) or not isinstance(max_denied, (int, float, np.number)):
        found = f"{type(max_denied).__name__} {max_denied!r}"
        raise TypeError(f"max_denied must be a number between 0 and 1, found {found}")
    if not 0 <= max_denied <= 1:
        raise ValueError(f"max_denied must be between 0 and 1, found {max_denied}")
    if len(events) == 0:
        raise ValueError("there is nothing to go by: the trace has no events")
    search = _Search(events, int(max_denied * len(events)), span_ns(period, "period"))
    best = search.smallest()
    limit = search.limit(best.burst, best.count)
    return Recommendation(
        limit,
        search.curve(),
        simulate(limit, events),
        max_denied,
        is_smallest=search.is_exhausted and search.is_monotone,
    )


class _Search:
    """The search for the smallest sum of burst and count."""

    def __init__(self, trace: Trace, may_deny: int, period_ns: int) -> None:
        self.trace = trace
        self.may_deny = may_deny
        self.period_ns = period_ns
        costs = trace.costs
        self.least = 1 if costs is None else max(int(costs.max()), 1)
        alike = costs is None or int(costs.min()) == int(costs.max())
        self.is_monotone = alike or may_deny == 0
        self.is_exhausted = True
        self.points: dict[int, _Point] = {}

    def limit(self, burst: int, count: int) -> Limit:
        """Give a limit of the period; burst and count are known to be possible."""
        return Limit.token_bucket(burst=burst, count=count, period=f"{self.period_ns}ns")

    def smallest(self) -> _Point:
        """Try counts until no other can have a smaller sum."""
        count = 1
        best = self._point(count)
        while best is None or count + self.least < best.worst:
            count *= 2
            point = self._point(count)
            if point is None:
                break
            if best is None or point.worst < best.worst:
                best = point
        if best is None:
            raise LimitError(
                "no limit of this period can tell the trace's rate: a longer one would do"
            )
        return self._narrowed(best)

    def _narrowed(self, best: _Point) -> _Point:
        """Halve the gaps between counts in which a smaller sum may still be."""
        while len(self.points) < _MOST_COUNTS:
            known = sorted(self.points.values(), key=lambda point: point.count)
            gaps = [
                # A larger count needs no larger burst, so no sum in the gap is below this one.
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
        """Find the smallest burst for a count; None where there can be no such limit."""
        try:
            interval = self.limit(1, count).emission_interval_ns
        except LimitError:
            return None
        most = _LONGEST_NS // interval
        if most < self.least:
            return None
        low, high = self._bounds(count)
        denied: int | None = None
        if high is None or not self.may_deny:
            # How far the emptiest bucket gets below full, if nothing is denied.
            told = Evaluator(self.limit(most, count), "Limit").columns(
                self.trace, ["reset_after_ns"]
            )
            if not told["allowed"].all():
                return None
            lacking = -(-int(told["reset_after_ns"].max()) // interval)
            high, denied = max(lacking, self.least), 0
        while low < high and self.may_deny:
            middle = (low + high) // 2
            refused = self._denied(middle, count)
            if refused <= self.may_deny:
                high, denied = middle, refused
            else:
                low = middle + 1
        if denied is None:
            denied = self._denied(high, count)
        if not self.is_monotone:
            high, denied = self._below(high, denied, count)
        self.points[count] = _Point(count, high, denied)
        return self.points[count]

    def _bounds(self, count: int) -> tuple[int, int | None]:
        """Give the smallest burst that may do, and one that does if it is known.

        A larger count needs no larger burst, so those of the counts around it are bounds.
        """
        if not self.is_monotone:
            return self.least, None
        above = [point.burst for point in self.points.values() if point.count > count]
        below = [point.burst for point in self.points.values() if point.count < count]
        return max(above, default=self.least), min(below, default=None)

    def _below(self, burst: int, denied: int, count: int) -> tuple[int, int]:
        """Try smaller bursts than the one that bisection found."""
        if burst == self.least:
            return burst, denied
        tried = np.unique(np.linspace(self.least, burst - 1, _TRIED).astype(np.int64))
        for smaller in tried.tolist():
            refused = self._denied(smaller, count)
            if refused <= self.may_deny:
                return smaller, refused
        return burst, denied

    def _denied(self, burst: int, count: int) -> int:
        told = Evaluator(self.limit(burst, count), "Limit").columns(self.trace, ["allowed"])
        return len(self.trace) - int(np.count_nonzero(told["allowed"]))

    def curve(self) -> Table:
        """Give the points that no other is better than in both numbers, by count."""
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
