"""The search for the smallest limit that denies at most a given number of events or clients."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock import _core
from penstock._core import Limit
from penstock.errors import LimitError
from penstock.simulate.evaluator import evaluate
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.simulate.trace import Trace


# Each count takes a dozen simulations, and a curve with more points says no more.
_MAX_COUNTS: Final = 96
# Number of smaller bursts to try below the one found, if costs differ.
_SMALLER_BURSTS: Final = 64
# The share of its own events that a busy client may be denied, unless the caller allows more.
_BUSY_SHARE: Final = 0.01
# Numbers up to here are round.
_EXACT: Final = 10
_ROUND: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)


class Shape(NamedTuple):
    """The parameters of an algorithm that are searched for.

    Attributes:
        burst: The parameter for tokens at once; None if there is none.
        rate: The parameter for tokens per period.
        period: The parameter for the period; None if it is not a length of time and stays as it is.
        min_burst: The smallest burst.
        is_monotone: Whether a larger burst or count never denies more, if all costs are equal.
        has_periods: Whether tokens are added with time, not returned at the end of requests.
        is_exact: Whether the emptiest bucket shows the smallest burst that denies nothing.
    """

    burst: str | None
    rate: str
    period: str | None
    min_burst: int
    is_monotone: bool
    has_periods: bool = True
    is_exact: bool = False


SHAPES: Final = {
    "token-bucket": Shape("burst", "count", "period", 1, is_monotone=True, is_exact=True),
    "leaky-bucket": Shape("size", "drip_size", "drip_rate", 1, is_monotone=False),
    "fixed-window": Shape(None, "count", "period", 0, is_monotone=True),
    "fixed-rate-window": Shape("burst", "count", "period", 0, is_monotone=False),
    "calendar-window": Shape(None, "count", None, 0, is_monotone=True),
    # One more slot admits the same requests as before, and at most one other at any time.
    "in-flight": Shape(None, "count", None, 0, is_monotone=True, has_periods=False),
}


class Family(NamedTuple):
    """The limits of one algorithm and one period, with other parameters."""

    algorithm: str
    period_ns: int
    rest: Mapping[str, int | str]

    def limit(self, burst: int, count: int) -> Limit:
        """Return the limit with these parameters."""
        shape = SHAPES[self.algorithm]
        fields = {**self.rest, shape.rate: count}
        if shape.period is not None:
            fields[shape.period] = f"{self.period_ns}ns"
        if shape.burst is not None:
            fields[shape.burst] = burst
        return Limit.from_fields(self.algorithm, fields)


@dataclass(frozen=True, slots=True)
class Point:
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


class Search:
    """The search for the smallest sum of burst and count.

    Args:
        trace: The events.
        max_denied: The share of the objective that may be denied, 0 to 1.
        objective: `events` or `clients`.
        family: The limits to choose from.
        protected: Whether each event must not be denied; None: none.
        has_caps: Whether a busy client, which could use up all denied events alone, must not be
            denied more than a small share of its own.
    """

    def __init__(
        self,
        trace: Trace,
        max_denied: float,
        objective: str,
        family: Family,
        protected: NDArray[np.bool_] | None = None,
        *,
        has_caps: bool = False,
    ) -> None:
        self.trace = trace
        self.limit = family.limit
        self.shape = SHAPES[family.algorithm]
        # Clients without an event need no bucket.
        present, used = np.unique(trace.client_indices, return_inverse=True)
        self._codes: NDArray[np.uint32] = used.astype(np.uint32)
        self._clients = len(present)
        self._protected = protected
        self._counts_clients = objective == "clients"
        self.total = self._clients if self._counts_clients else len(trace)
        self.max_denied = _largest_count(max_denied, self.total)
        self._caps: NDArray[np.int64] | None = None
        if has_caps and not self._counts_clients:
            events = np.bincount(self._codes, minlength=self._clients)
            caps = (max(_BUSY_SHARE, max_denied) * events).astype(np.int64)
            # The others cannot be denied more than all clients together.
            self._caps = np.where(events > self.max_denied, caps, self.max_denied)
        costs = trace.costs
        self.max_cost = 1 if costs is None else max(int(costs.max()), 1)
        is_uniform = costs is None or int(costs.min()) == int(costs.max())
        is_safe = is_uniform or self.max_denied == 0 or self._counts_clients
        self.is_monotone = is_safe and self.shape.is_monotone
        # False once a smaller limit was not taken because of its counts or a busy client.
        self.is_exhausted = True
        self.points: dict[int, Point] = {}
        # For windows, which have no burst, what each count denies, also if it does not suffice.
        self._denied_by_count: dict[int, int] = {}
        # Counts for which no burst suffices.
        self.impossible: set[int] = set()

    def smallest(self) -> Point:
        """Try counts until no other count can have a smaller sum.

        Raises:
            LimitError: No limit of this period suffices.
        """
        count = self._least_count
        best = self._try(count)
        largest = self._largest_count()
        while count < largest and (best is None or count + self._min_burst < best.worst):
            count = min(2 * count, largest)
            point = self._try(count)
            if point is not None and (best is None or point.worst < best.worst):
                best = point
        if best is None:
            raise LimitError(
                "the period is too short for this trace's rate; use a longer one"
                if self.shape.has_periods
                else f"the trace needs more than {largest:,} requests in flight, the maximum"
            )
        return self._narrow(best)

    def _narrow(self, best: Point) -> Point:
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
        high = self._least_count
        low = high - 1
        while self._exists(self._min_burst, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._exists(self._min_burst, middle):
                low = middle
            else:
                high = middle
        return low

    @property
    def _least_count(self) -> int:
        """The smallest count that may admit the most expensive event."""
        return self.max_cost if self.shape.burst is None else 1

    @property
    def _min_burst(self) -> int:
        """The smallest burst that may admit the most expensive event."""
        if self.shape.burst is None:
            return 0
        # A window that spaces its requests admits one token, and the burst on top of it.
        return self.max_cost if self.shape.min_burst else self.max_cost - 1

    def _max_burst(self, count: int) -> int | None:
        """Return the largest burst for which there is a limit; None if there is none."""
        low = self._min_burst
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

    def _try(self, count: int) -> Point | None:
        """Find the smallest burst for a count; None if no burst suffices."""
        point = self._point(count)
        if point is None:
            self.impossible.add(count)
        else:
            self.points[count] = point
        return point

    def _point(self, count: int) -> Point | None:
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
            if denied == 0 and self.shape.is_exact:
                high = max(self._lacking(max_burst, count), low)
            if self.max_denied == 0 and self.shape.is_exact:
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
        return Point(count, high, denied)

    def _bounds(self, count: int, max_burst: int) -> tuple[int, int | None]:
        """Return the smallest burst that may suffice, and one that does suffice if it is known.

        A larger count needs no larger burst, so the bursts of the neighbouring counts are bounds.
        """
        least = self._min_burst
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
        least = self._min_burst
        if burst == least:
            return burst, denied
        tried = np.unique(np.linspace(least, burst - 1, _SMALLER_BURSTS).astype(np.int64))
        for smaller in tried.tolist():
            found = self._denied(smaller, count)
            if found <= self.max_denied:
                return smaller, found
        return burst, denied

    def _denied(self, burst: int, count: int) -> int:
        """Return how much is denied; more than everything if a protected client is denied."""
        allowed = self._columns(self.limit(burst, count), "allowed")["allowed"]
        denied = self._count(allowed)
        if self.shape.burst is None and denied <= self.total:
            self._denied_by_count[count] = denied
        return denied

    def _count(self, allowed: NDArray[np.bool_]) -> int:
        if self._protected is not None and not allowed[self._protected].all():
            return self.total + 1
        if not self._counts_clients:
            denied = self._codes[~allowed]
            if self._caps is not None and len(denied) <= self.max_denied:
                counts = np.bincount(denied, minlength=self._clients)
                if (counts > self._caps).any():
                    self.is_exhausted = False
                    return self.total + 1
            return len(denied)
        is_denied = np.zeros(self._clients, np.bool_)
        is_denied[self._codes[~allowed]] = True
        return int(np.count_nonzero(is_denied))

    def _columns(self, limit: Limit, column: str) -> dict[str, Any]:
        core = _core.Simulator(limit)
        core.add_unnamed(self._clients)
        return evaluate(core.feed, self.trace, self._codes, [column])

    def rounded(self, point: Point) -> Limit:
        """Return the limit with round numbers that are not smaller, if it denies no more."""
        burst, count = round_up(point.burst), round_up(point.count)
        is_rounded = (burst, count) != (point.burst, point.count) and self._exists(burst, count)
        if is_rounded and self._denied(burst, count) <= self.max_denied:
            return self.limit(burst, count)
        return self.limit(point.burst, point.count)

    def curve(self) -> Table:
        """Return the points, by count, that no other point beats in both numbers.

        For windows, return all counts that were tried, and what they deny.
        """
        kept = [
            Point(count, 0, self._denied_by_count[count]) for count in sorted(self._denied_by_count)
        ]
        for point in sorted(self.points.values(), key=lambda point: point.count):
            if self.shape.burst is not None and (not kept or point.burst < kept[-1].burst):
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


def round_up(number: int) -> int:
    """Return the next number that people would choose; at most a third more, from 10 on.

    >>> [round_up(number) for number in (0, 7, 11, 26, 391, 15_925_248)]
    [0, 7, 12, 30, 400, 20000000]
    """
    if number <= _EXACT:
        return number
    unit: int = 10 ** (len(str(number)) - 2)
    return next(step * unit for step in _ROUND if step * unit >= number)


def _largest_count(share: float, total: int) -> int:
    """Return the largest count whose share of the total is at most `share`, as floats."""
    count = int(share * total)
    while count < total and (count + 1) / total <= share:
        count += 1
    while count and count / total > share:
        count -= 1
    return count
