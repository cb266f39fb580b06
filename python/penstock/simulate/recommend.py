"""The smallest limit that denies at most a given share of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock import _core
from penstock._core import Limit
from penstock.errors import LimitError
from penstock.simulate.evaluator import Evaluator, evaluate, parse_limits
from penstock.simulate.ids import as_text
from penstock.simulate.limit_result import RecommendedLimit
from penstock.simulate.routes import Routes
from penstock.simulate.run import as_trace, simulate
from penstock.simulate.table import Table
from penstock.simulate.times import parse_span
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.ids import AnyId
    from penstock.simulate.result import Simulation
    from penstock.simulate.routes import AnyRoutes
    from penstock.simulate.trace import Trace


# Each count takes a dozen simulations, and a curve with more points says no more.
_MAX_COUNTS: Final = 96
# Number of smaller bursts to try below the one found, if costs differ.
_SMALLER_BURSTS: Final = 64
_OBJECTIVES: Final = ("events", "clients")


class _Shape(NamedTuple):
    """The parameters of an algorithm that are searched for.

    Attributes:
        burst: The parameter for tokens at once; None if there is none.
        rate: The parameter for tokens per period.
        period: The parameter for the period.
        min_burst: The smallest burst.
        is_monotone: Whether a larger burst or count never denies more, if all costs are equal.
    """

    burst: str | None
    rate: str
    period: str
    min_burst: int
    is_monotone: bool


_SHAPES: Final = {
    "token-bucket": _Shape("burst", "count", "period", 1, is_monotone=True),
    "leaky-bucket": _Shape("size", "drip_size", "drip_rate", 1, is_monotone=False),
    "fixed-window": _Shape(None, "count", "period", 0, is_monotone=True),
    "fixed-rate-window": _Shape("burst", "count", "period", 0, is_monotone=False),
}


class _Family(NamedTuple):
    """The limits of one algorithm and one period, with other parameters."""

    algorithm: str
    period_ns: int
    rest: Mapping[str, int | str]

    def limit(self, burst: int, count: int) -> Limit:
        shape = _SHAPES[self.algorithm]
        fields = {**self.rest, shape.rate: count, shape.period: f"{self.period_ns}ns"}
        if shape.burst is not None:
            fields[shape.burst] = burst
        return Limit.from_fields(self.algorithm, fields)


@dataclass(frozen=True, slots=True)
class _Point:
    """The smallest burst found for a count.

    Attributes:
        count: Tokens per period.
        burst: Tokens a full bucket holds; for windows, the tokens on top of the count.
        denied: Denied events or clients.
    """

    count: int
    burst: int
    denied: int

    @property
    def worst(self) -> int:
        """The most tokens that one client of a token bucket is admitted in any period."""
        return self.burst + self.count


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Recommendation(RecommendedLimit):
    """The smallest limit that was found, and the alternatives.

    Attributes:
        simulation: The simulation of the limit over the events it was chosen for.
    """

    simulation: Simulation

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
        return notebook.recommendation_html(self, self.hit, result.bins)

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
    trace: Any,
    max_denied: float = 0.001,
    period: Any = None,
    *,
    objective: str = "events",
    exclude: Iterable[AnyId] = (),
    algorithm: str | None = None,
    limits: AnyLimits | None = None,
    name: str | None = None,
    routes: AnyRoutes | Routes | None = None,
    holdout: float = 0.0,
    sort: bool = False,
) -> Recommendation:
    """Find the smallest limit that denies at most a given share of a trace.

    Every count has a smallest burst. The recommended pair has the smallest sum, which is the most
    that one client of a token bucket is admitted in any period.

    If all events cost the same, a larger burst or count never denies more events, and bisection
    finds the smallest burst. If costs differ, this holds only if nothing may be denied or clients
    are counted; otherwise the burst is bisected and smaller ones are tried below it.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        max_denied: The share of the objective that may be denied, 0 to 1.
        period: The limit's period: a text with units, seconds, or a `timedelta`. None: that of
            `limits`; one minute if it has none.
        objective: `"events"`: the share of events that are denied. `"clients"`: the share of
            clients with a denied event, so that a single busy client, such as an attacker, counts
            no more than any other.
        exclude: Clients whose events do not count, such as known attackers.
        algorithm: `token-bucket`, `leaky-bucket`, `fixed-window` or `fixed-rate-window`. None: that
            of `limits`; `token-bucket` if it has none of these.
        limits: Limits whose default is to be chosen. Their id format decides which ids are one
            client; clients with an override keep it, and their events do not count.
        name: The name of the limit, if `limits` has several.
        routes: As for `simulate`, to choose the limit `name` for the events that spend it, with
            their ids and costs under that limit. The other limits are not evaluated: what they
            deny would make this limit look better than it is.
        holdout: A share of the trace's time at its end, 0 to 1, that is not used to choose the
            limit, but to check it: `holdout` of the result has its totals.
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty, or an argument is out of range.
        KeyError: The trace has no client with an id of `exclude`.
        LimitError: The period is too short for the rate of the trace.

    >>> from penstock.simulate import traffic
    >>> found = recommend(traffic.bursts(10, "1m", "1h", clients=5), max_denied=0)
    >>> found.burst, found.count
    (10, 10)
    """
    _check_share("max_denied", max_denied)
    _check_share("holdout", holdout)
    if objective not in _OBJECTIVES:
        known = did_you_mean(objective, _OBJECTIVES)
        raise ValueError(f"objective must be 'events' or 'clients', found {objective!r}; {known}")
    if period is not None:
        period = parse_span(period, "period")
    whole = as_trace(trace)
    if sort:
        whole = whole.sorted()
    if routes is not None:
        if limits is None or name is None:
            raise ValueError("routes name the limits; pass limits= and name=")
        routes = Routes.of(routes)
        whole, exclude = routes.events_of(_without(whole, exclude), name), ()
    if len(whole) == 0:
        raise ValueError("trace must have at least one event, found none")
    evaluator = None if limits is None else Evaluator(parse_limits(limits), name)
    default = None if evaluator is None else evaluator.default()
    if algorithm is None:
        algorithm = "token-bucket"
        if default is not None and default.algorithm in _SHAPES:
            algorithm = default.algorithm
    if algorithm not in _SHAPES:
        known = did_you_mean(algorithm, _SHAPES)
        raise ValueError(f"algorithm must be one that can be fitted, found {algorithm!r}; {known}")
    period_ns = _period_of(default) if period is None else period
    # Parameters that are not searched for, such as the anchor of a window.
    rest = default.fields() if default is not None and default.algorithm == algorithm else {}
    counted = _counted(whole, evaluator, exclude)
    cut = int(counted.times[0]) + round(counted.duration_ns * (1 - holdout))
    end = np.datetime64(cut + 1, "ns")
    chosen_on = counted.between(None, end) if holdout else counted
    search = _Search(chosen_on, max_denied, objective, _Family(algorithm, period_ns, rest))
    best = search.smallest()
    limit = search.limit(best.burst, best.count)
    simulation = simulate(limit, counted)
    chosen = simulation.between(None, end) if holdout else simulation
    return Recommendation(
        curve=search.curve(),
        simulation=chosen,
        summary=chosen.summary(),
        limit=limit,
        max_denied=max_denied,
        burst=best.burst,
        count=best.count,
        period_ns=period_ns,
        is_smallest=search.is_exhausted and search.is_monotone,
        objective=objective,
        left_out=len(whole) - len(counted),
        holdout=simulation.between(end).summary() if holdout else None,
    )


def _check_share(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        found = f"{type(value).__name__} {value!r}"
        raise TypeError(f"{option} must be a number between 0 and 1, found {found}")
    if not 0 <= value <= 1 or (option == "holdout" and value == 1):
        raise ValueError(f"{option} must be between 0 and 1, found {value}")


def _period_of(limit: Limit | None) -> int:
    """Return the period of a limit; one minute if it has none."""
    shape = None if limit is None else _SHAPES.get(limit.algorithm)
    return parse_span("1m" if limit is None or shape is None else limit.fields()[shape.period], "")


def _without(trace: Trace, exclude: Iterable[AnyId]) -> Trace:
    """Return the events of clients, which are the first fields of the ids, but those excluded."""
    clients = [id.partition("\t")[0] for id in trace.clients]
    excluded = {as_text(id) for id in exclude}
    if unknown := excluded.difference(clients):
        raise KeyError(f"exclude: the trace has no client {min(unknown)!r}")
    if not excluded:
        return trace
    return trace[np.array([client not in excluded for client in clients])[trace.client_indices]]


def _counted(trace: Trace, evaluator: Evaluator | None, exclude: Iterable[AnyId]) -> Trace:
    """Return the events, by bucket, of clients that are not excluded and have no override."""
    texts = [as_text(id) for id in exclude]
    counted = trace
    if evaluator is not None:
        counted = evaluator.by_bucket(trace)
        texts = [evaluator.canonical_id(text) for text in texts]
    clients = counted.clients
    is_counted = np.ones(len(clients), np.bool_)
    for text in texts:
        if text not in clients:
            raise KeyError(f"exclude: the trace has no client {text!r}")
        is_counted[clients.index(text)] = False
    if evaluator is not None:
        is_counted &= ~evaluator.has_override(clients)
    if is_counted.all():
        return counted
    counted = counted[is_counted[counted.client_indices]]
    if len(counted) == 0:
        raise ValueError("trace must have an event that counts; all are excluded or have overrides")
    return counted


class _Search:
    """The search for the smallest sum of burst and count."""

    def __init__(self, trace: Trace, max_denied: float, objective: str, family: _Family) -> None:
        self.trace = trace
        self.limit = family.limit
        self.shape = _SHAPES[family.algorithm]
        self._algorithm = family.algorithm
        # Clients without an event need no bucket.
        present, used = np.unique(trace.client_indices, return_inverse=True)
        self._codes: NDArray[np.uint32] = used.astype(np.uint32)
        self._clients = len(present)
        self._counts_clients = objective == "clients"
        self.total = self._clients if self._counts_clients else len(trace)
        self.max_denied = _largest_count(max_denied, self.total)
        costs = trace.costs
        self.max_cost = 1 if costs is None else max(int(costs.max()), 1)
        is_uniform = costs is None or int(costs.min()) == int(costs.max())
        is_safe = is_uniform or self.max_denied == 0 or self._counts_clients
        self.is_monotone = is_safe and self.shape.is_monotone
        self.is_exhausted = True
        self.points: dict[int, _Point] = {}
        # Counts for which no burst suffices.
        self.impossible: set[int] = set()

    def smallest(self) -> _Point:
        """Try counts until no other count can have a smaller sum.

        Raises:
            LimitError: No limit of this period suffices.
        """
        count, best = 1, self._try(1)
        largest = self._largest_count()
        while count < largest and (best is None or count + self._min_burst(count) < best.worst):
            count = min(2 * count, largest)
            point = self._try(count)
            if point is not None and (best is None or point.worst < best.worst):
                best = point
        if best is None:
            raise LimitError("the period is too short for this trace's rate; use a longer one")
        return self._narrow(best)

    def _narrow(self, best: _Point) -> _Point:
        """Halve the gaps between counts that may still contain a smaller sum."""
        while len(self.points) < _MAX_COUNTS:
            known = sorted({*self.points, *self.impossible})
            gaps = [
                # A larger count needs no larger burst, so this is a lower bound of the sum.
                (low + 1 + self.points[high].burst, low, high)
                for low, high in pairwise(known)
                if high - low > 1 and high in self.points
            ]
            gaps = [gap for gap in gaps if gap[0] < best.worst]
            if not gaps:
                return best
            _, low, high = min(gaps)
            point = self._try((low + high) // 2)
            if point is not None and (point.worst, point.burst) < (best.worst, best.burst):
                best = point
        self.is_exhausted = False
        return best

    def _largest_count(self) -> int:
        """Return the largest count for which there is a limit with this period."""
        low, high = 0, 1
        while self._exists(self._min_burst(high), high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._exists(self._min_burst(middle), middle):
                low = middle
            else:
                high = middle
        return low

    def _min_burst(self, count: int) -> int:
        """Return the smallest burst for a count that may admit the most expensive event."""
        if self.shape.burst is None:
            return 0
        if self.shape.min_burst == 0:
            # Windows admit the count and the burst.
            return max(self.max_cost - count, 0)
        return self.max_cost

    def _max_burst(self, count: int) -> int | None:
        """Return the largest burst for which there is a limit; None if there is none."""
        low = self._min_burst(count)
        if not self._exists(low, count):
            return None
        if self.shape.burst is None:
            return 0
        # No trace needs more tokens than it spends.
        costs = self.trace.costs
        spent = len(self.trace) if costs is None else int(costs.sum())
        high = max(min(spent, 2**62), low)
        if self._exists(high, count):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._exists(middle, count) else (low, middle)
        return low

    def _exists(self, burst: int, count: int) -> bool:
        try:
            return count >= 1 and self.limit(burst, count).max_cost >= self.max_cost
        except (LimitError, OverflowError):
            return False

    def _try(self, count: int) -> _Point | None:
        """Find the smallest burst for a count; None if no burst suffices."""
        point = self._point(count)
        if point is None:
            self.impossible.add(count)
        else:
            self.points[count] = point
        return point

    def _point(self, count: int) -> _Point | None:
        max_burst = self._max_burst(count)
        if max_burst is None:
            return None
        low, high = self._bounds(count, max_burst)
        denied: int | None = None
        if high is None:
            # A trace that nothing denies needs no larger burst than its clients lack at most.
            high = max_burst
            denied = self._denied(high, count)
            if denied > self.max_denied:
                return None
            if denied == 0 and self._algorithm == "token-bucket":
                high = max(self._lacking(max_burst, count), low)
            if self.max_denied == 0 and self._algorithm == "token-bucket":
                low = high
        while low < high:
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
        return _Point(count, high, denied)

    def _bounds(self, count: int, max_burst: int) -> tuple[int, int | None]:
        """Return the smallest burst that may suffice, and one that does suffice if it is known.

        A larger count needs no larger burst, so the bursts of the neighbouring counts are bounds.
        """
        least = self._min_burst(count)
        if not self.is_monotone:
            return least, None
        above = [point.burst for point in self.points.values() if point.count > count]
        below = [point.burst for point in self.points.values() if point.count < count]
        high = min(below, default=None)
        return max([least, *above]), None if high is None else min(high, max_burst)

    def _lacking(self, burst: int, count: int) -> int:
        """Return how many tokens the emptiest bucket lacks if nothing is denied."""
        limit = self.limit(burst, count)
        columns = self._columns(limit, "reset_after_ns")
        return -(-int(columns["reset_after_ns"].max()) // limit.emission_interval_ns)

    def _below(self, burst: int, denied: int, count: int) -> tuple[int, int]:
        """Try smaller bursts than the one found by bisection."""
        least = self._min_burst(count)
        if burst == least:
            return burst, denied
        tried = np.unique(np.linspace(least, burst - 1, _SMALLER_BURSTS).astype(np.int64))
        for smaller in tried.tolist():
            found = self._denied(smaller, count)
            if found <= self.max_denied:
                return smaller, found
        return burst, denied

    def _denied(self, burst: int, count: int) -> int:
        allowed = self._columns(self.limit(burst, count), "allowed")["allowed"]
        if not self._counts_clients:
            return len(self.trace) - int(np.count_nonzero(allowed))
        is_denied = np.zeros(self._clients, np.bool_)
        is_denied[self._codes[~allowed]] = True
        return int(np.count_nonzero(is_denied))

    def _columns(self, limit: Limit, column: str) -> dict[str, Any]:
        core = _core.Simulator(limit)
        core.add_unnamed(self._clients)
        return evaluate(core, self.trace, self._codes, [column])

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
                "denied_share": [point.denied / self.total for point in kept],
                "worst_in_any_period": [point.worst for point in kept],
            },
        )


def _largest_count(share: float, total: int) -> int:
    """Return the largest count whose share of the total is at most `share`, as floats."""
    count = int(share * total)
    while count < total and (count + 1) / total <= share:
        count += 1
    while count and count / total > share:
        count -= 1
    return count
