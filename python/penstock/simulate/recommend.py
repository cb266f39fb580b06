"""Limits derived from what clients need, and whom each denies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock import _core
from penstock._core import Limit, limit_shapes
from penstock._display import UNNAMED, format_span
from penstock._validation import did_you_mean, name_value
from penstock.errors import InvalidId, LimitError
from penstock.messages import format_duration
from penstock.simulate.clients import match_clients
from penstock.simulate.evaluator import PART, Evaluator, evaluate, parse_limits
from penstock.simulate.ids import Codes
from penstock.simulate.recommendation import Candidate, Recommendation
from penstock.simulate.routes import Routes
from penstock.simulate.run import as_trace
from penstock.simulate.times import parse_span, refuse_first

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.simulate.clients import AnyClients
    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.routes import AnyRoutes
    from penstock.simulate.trace import Trace


# Clients are far from the rest if each needs this many times as much as the next one.
_GAP: Final = 3
# Fewer clients are never far from each other, and more than a tenth are no exception.
_MIN_CLIENTS: Final = 5
_MAX_FAR: Final = 0.1
# A gap is also wider than the rest of the tail, from this percentile to its end.
_TAIL: Final = 99
_STRICTER: Final = (95.0, 99.0)
_MAX_PERIODS: Final = 7
# A bucket that takes longer to refill than this part of the trace was not seen to refill.
_MAX_REFILL: Final = 0.25
# Numbers up to here are round.
_EXACT: Final = 10
_ROUND: Final = (10, 11, 12, 14, 15, 16, 18, 20, 25, 30, 35, 40, 45, 50, 55, 60, 70, 80, 90, 100)


class NoEventsError(ValueError):
    """No event spends the limit that is to be found."""


# The parameters of each algorithm for tokens at once, tokens per period, and the period. Slots have
# no period, and calendar windows keep theirs.
_SHAPES: Final = limit_shapes()
_DEFAULT: Final = "token-bucket"


def recommend(
    trace: Any,
    period: Any = None,
    *,
    percentile: float = 99.9,
    exclude: AnyClients = (),
    protect: AnyClients = (),
    algorithm: str | None = None,
    limits: AnyLimits | None = None,
    name: str | None = None,
    routes: AnyRoutes | None = None,
    sort: bool = False,
) -> Recommendation:
    """Recommend limits for a trace, from what its clients need, and say whom each denies.

    The count of a limit is a percentile of what the clients spend in their busiest period, and its
    burst the same percentile of what they spend at once beyond that rate; both are rounded up to
    numbers that people write. Windows have no burst. Slots are found from the durations of the
    trace. Each limit is then simulated over the whole trace.

    Clients that are far from the rest are set aside before, and named: those beyond a gap, where
    one client needs three times as much as the next one, if they are at most a tenth of them.

    For one period there are several limits, from strict to lenient, and the one of `percentile` is
    chosen. For several periods there is one limit for each, and the first is chosen.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        period: The limit's period: a text with units, seconds, or a `timedelta`; or a list of up to
            seven. None: that of `limits`; one minute if it has none.
        percentile: The share of the clients that the chosen limit suffices for, in per cent.
        exclude: Clients whose events do not count, such as known attackers: ids, networks such as
            `198.51.100.0/24`, or patterns with `*` and `?`.
        protect: Clients that must not be denied anything, as for `exclude`.
        algorithm: `token-bucket`, `leaky-bucket`, `fixed-window`, `fixed-rate-window`,
            `calendar-window`, which keeps the period and zone of `limits`, or `in-flight`, which
            has no period. None: that of `limits`; `token-bucket` if it has none of these.
        limits: Limits whose default is to be chosen. Their id format decides which ids are one
            client; clients with an override keep it, and their events do not count.
        name: The name of the limit, if `limits` has several.
        routes: As for `simulate`, to choose the limit `name` for the events that spend it, with
            their ids and costs under that limit. The other limits are not evaluated: what they
            deny would make this limit look better than it is.
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty or too short for every period, an argument is out of range,
            or the trace has no durations, which a limit on requests in flight needs.
        KeyError: The trace has no client of `exclude`.

    >>> from penstock.simulate import traffic
    >>> recommend(traffic.bursts(10, "1m", "1h", clients=5)).limit
    Limit.token_bucket(burst=10, count=10, period='1m')
    """
    if isinstance(percentile, bool) or not isinstance(percentile, (int, float, np.number)):
        raise TypeError(f"percentile must be a number, found {name_value(percentile)}")
    if not 0 <= percentile <= 100:  # noqa: PLR2004
        raise ValueError(f"percentile must be between 0 and 100, found {percentile}")
    whole = as_trace(trace)
    if sort:
        whole = whole.sorted()
    is_earlier = np.append(False, whole.times[1:] < whole.times[:-1])
    refuse_first(is_earlier, whole.times, "times must not go back (pass sort=True)")
    if routes is not None and (limits is None or name is None):
        raise ValueError("routes name the limits; pass limits= and name=")
    evaluator = None if limits is None else Evaluator(parse_limits(limits), name)
    families = _families(None if evaluator is None else evaluator.default(), algorithm, period)
    counted = _Counted.of(
        whole, evaluator, None if routes is None else Routes.of(routes), name or "",
        exclude=exclude, protect=protect,
    )  # fmt: skip
    candidates: list[Candidate] = []
    chosen, refused = None, []
    for family in families:
        try:
            found, index = _candidates(counted, family, percentile)
        except LimitError as error:
            refused.append(f"{family.label}: {error}.")
            continue
        if len(families) > 1:
            found, index = [found[index]], 0
        chosen = index if chosen is None else chosen
        candidates += found
    if chosen is None:
        raise ValueError("no limit can be recommended: " + " ".join(refused).rstrip("."))
    return Recommendation(
        candidates=tuple(candidates),
        chosen=chosen,
        clients=counted.owners.clients,
        events=counted.counts,
        left_out=counted.left_out,
        not_found=counted.not_found,
        refused=tuple(refused),
    )


class _Family(NamedTuple):
    """The limits of one algorithm and one period.

    Attributes:
        algorithm: The algorithm.
        period_ns: The period; that of the calendar or 0 if it stays as it is.
        label: The period as text.
        rest: Other parameters, such as the zone of a calendar window.
    """

    algorithm: str
    period_ns: int
    label: str
    rest: Mapping[str, int | str] = {}

    @property
    def has_burst(self) -> bool:
        """Whether tokens at once are a parameter of their own."""
        return _SHAPES[self.algorithm][0] is not None

    def limit(self, burst: int, count: int) -> Limit:
        """Return the limit with these parameters."""
        given = (burst, count, f"{self.period_ns}ns")
        names = zip(_SHAPES[self.algorithm], given, strict=True)
        fields = {name: value for name, value in names if name is not None}
        return Limit.from_fields(self.algorithm, {**self.rest, **fields})

    def largest(self, count: int | None = None) -> Limit:
        """Return the limit with the largest burst for a count; without one, the largest count.

        Only numbers that are one less than a power of two are tried.
        """
        for bits in range(62, 1, -1):
            try:
                most = (1 << bits) - 1
                return self.limit(0, most) if count is None else self.limit(most, count)
            except LimitError:
                continue
        return self.limit(1, count or 1)


def _families(default: Limit | None, algorithm: str | None, period: Any) -> list[_Family]:
    """Return the family of limits for each period that is asked for."""
    known = None if default is None or default.algorithm not in _SHAPES else default
    algorithm = algorithm or (_DEFAULT if known is None else known.algorithm)
    if algorithm not in _SHAPES:
        hint = did_you_mean(algorithm, _SHAPES)
        raise ValueError(f"algorithm must be one that can be fitted, found {algorithm!r}; {hint}")
    is_same = known is not None and known.algorithm == algorithm
    # Parameters that stay, such as the anchor of a window.
    rest = known.fields() if known is not None and is_same else {}
    if algorithm == "in-flight":
        if period is not None:
            raise ValueError("a limit on requests in flight has no period; omit period=")
        return [_Family(algorithm, 0, "requests in flight", rest)]
    if algorithm == "calendar-window":
        if period is not None or not is_same:
            raise ValueError(
                "a calendar window keeps its period and its zone; pass limits= with a calendar "
                "window, and no period="
            )
        return [_Family(algorithm, _interval_of(known), str(rest["period"]), rest)]
    if period is None:
        given = [_interval_of(known) or parse_span("1m", "")]
    else:
        is_list = isinstance(period, Iterable) and not isinstance(period, str)
        given = [parse_span(each, "period") for each in (period if is_list else [period])]
    if not 1 <= len(given) <= _MAX_PERIODS:
        raise ValueError(f"period must have 1 to {_MAX_PERIODS} values, found {len(given)}")
    return [_Family(algorithm, each, format_duration(each), rest) for each in given]


def _interval_of(limit: Limit | None) -> int:
    """Return the period of a limit; 0 if it has none."""
    name = None if limit is None else _SHAPES[limit.algorithm][2]
    if limit is not None and name is not None:
        return parse_span(limit.fields()[name], "")
    facts = None if limit is None else limit.describe()
    return 0 if facts is None else facts["refill_interval_ns"]


def _candidates(
    counted: _Counted, family: _Family, percentile: float
) -> tuple[list[Candidate], int]:
    """Return the limits of one period from strict to lenient, and the index of the one to choose.

    Raises:
        LimitError: The trace is too short for the period, or no limit admits what clients need.
    """
    _check_length(counted, "the period", family.period_ns)
    most = _busiest(counted.events, family)
    # A limit that suffices for protected clients suffices for others that need no more.
    is_far = _far(most, counted.is_client & ~counted.protected)
    is_far &= most > most[counted.protected].max(initial=0)
    rest = counted.is_client & ~is_far
    levels = [*(level for level in _STRICTER if level < percentile), percentile]
    groups = [(f"{level:.4g} %", level, rest) for level in levels]
    groups.append(("all others" if is_far.any() else "everyone", 100.0, rest))
    if is_far.any():
        groups.append(("everyone", 100.0, counted.is_client))
    # Of equal limits, the label says the most.
    labels: dict[Limit, str] = {}
    chosen: Limit | None = None
    for label, level, group in groups:
        is_chosen = chosen is None and level == percentile
        try:
            limit = _limit_for(counted, family, most, level, group)
            _check_length(counted, "the time in which a bucket refills", _refill_ns(limit))
        except LimitError:
            if is_chosen:
                raise
            # A stricter limit with a small count, or what clients far from the rest need.
            continue
        labels[limit] = label
        chosen = limit if is_chosen else chosen
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        denied = list(pool.map(partial(_denied, counted), labels))
    if counted.owners is not counted.events:
        # All clients share one bucket, so none of them is far from the rest.
        most = _busiest(counted.owners, family)
        is_far = np.zeros(len(most), np.bool_)
    unit = "most in flight" if family.algorithm == "in-flight" else f"busiest {family.label}"
    found = [
        Candidate(
            limit=limit, suffices_for=label, period_ns=family.period_ns, unit=unit, most=most,
            is_far=is_far, denied=each,
        )
        for (limit, label), each in zip(labels.items(), denied, strict=True)
    ]  # fmt: skip
    return found, [*labels].index(chosen) if chosen is not None else 0


def _check_length(counted: _Counted, what: str, length_ns: int) -> None:
    """Raise LimitError if a trace is too short to show that a bucket refills."""
    if length_ns > int(counted.events.duration_ns * _MAX_REFILL):
        raise LimitError(
            f"{what} is {format_span(length_ns)}, but the events cover "
            f"{format_span(counted.events.duration_ns)}, and a bucket must refill within a quarter "
            "of that; use a shorter period or a longer log"
        )


def _refill_ns(limit: Limit) -> int:
    """Return how long an empty bucket takes to refill; 0 for requests in flight."""
    facts = limit.describe()
    if facts is None or not facts["refill_count"]:
        return 0
    return facts["at_once"] * facts["refill_interval_ns"] // facts["refill_count"]


def _far(most: NDArray[np.int64], is_client: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which clients are far from the rest: beyond a gap, which is not the end of a tail."""
    falling = np.sort(most[is_client])[::-1]
    if len(falling) < _MIN_CLIENTS:
        return np.zeros(len(most), np.bool_)
    last = max(1, int(len(falling) * _MAX_FAR))
    steps = falling[:last] / np.maximum(falling[1 : last + 1], 1)
    for index in np.flatnonzero(steps >= _GAP)[::-1].tolist():
        rest = falling[index + 1 :]
        if steps[index] > rest[0] / max(np.percentile(rest, _TAIL), 1):
            found: NDArray[np.bool_] = is_client & (most >= falling[index])
            return found
    return np.zeros(len(most), np.bool_)


def _limit_for(
    counted: _Counted,
    family: _Family,
    most: NDArray[np.int64],
    level: float,
    group: NDArray[np.bool_],
) -> Limit:
    """Return the limit that suffices for a percentile of some clients, and for protected ones."""

    def size(needs: NDArray[np.int64]) -> int:
        protected = int(needs[counted.protected].max(initial=1))
        found = np.percentile(needs[group], level, method="inverted_cdf")
        return _round_up(max(int(found), protected))

    count = size(most)
    return family.limit(
        size(_ahead(counted.events, family, count)) if family.has_burst else 0, count
    )


def _busiest(trace: Trace, family: _Family) -> NDArray[np.int64]:
    """Return for each client the most tokens that it spends in one period, or holds at once."""
    if not family.has_burst:
        return _most_used(family.largest(), trace)
    most = np.zeros(len(trace.clients), np.int64)
    times = trace.times
    # Parts of whole periods, which fit into the cache.
    edges = np.unique(np.searchsorted(times, times[::PART] // family.period_ns * family.period_ns))
    for first, end in zip(edges.tolist(), [*edges[1:].tolist(), len(times)], strict=True):
        part = trace[first:end]
        periods = part.times // family.period_ns
        periods -= periods.min()
        width = np.int64(periods.max() + 1)
        keys = part.client_indices * width + periods
        costs = part.costs
        if costs is None:
            keys.sort()
        else:
            order = np.argsort(keys)
            keys, costs = keys[order], costs[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        ends = np.append(starts[1:], len(keys))
        sums = ends - starts if costs is None else np.add.reduceat(costs, starts)
        np.maximum.at(most, keys[starts] // width, sums)
    return most


def _ahead(trace: Trace, family: _Family, count: int) -> NDArray[np.int64]:
    """Return for each client the most tokens that it spends at once, beyond a count per period."""
    limit = family.largest(count)
    facts = limit.describe()
    if facts is not None and facts["evenly_spaced"]:
        # Its level is not known from what remains, and it needs no more than a token bucket.
        limit = _Family(_DEFAULT, family.period_ns, "").largest(count)
    return _most_used(limit, trace)


def _most_used(limit: Limit, trace: Trace) -> NDArray[np.int64]:
    """Return for each client the most tokens that are gone from its bucket at one time.

    It is one more than the bucket holds if that does not suffice.
    """
    least = np.full(len(trace.clients), limit.max_cost, np.int64)
    for part, columns in _evaluated(limit, trace, ["remaining"]):
        clients, remaining = part.client_indices.astype(np.intp), columns["remaining"]
        # Few events leave less than all before.
        is_less = remaining < least[clients]
        np.minimum.at(least, clients[is_less], remaining[is_less])
        if not columns["allowed"].all():
            least[clients[~columns["allowed"]]] = -1
    return np.asarray(limit.max_cost - least)


def _denied(counted: _Counted, limit: Limit) -> NDArray[np.int64]:
    """Return for each client how many of its events a limit denies."""
    parts = _evaluated(limit, counted.events, [])
    allowed = np.concatenate([columns["allowed"] for _, columns in parts])
    owners = counted.owners.client_indices[~allowed]
    return np.bincount(owners, minlength=len(counted.owners.clients))


def _evaluated(
    limit: Limit, trace: Trace, columns: Collection[str]
) -> Iterator[tuple[Trace, Mapping[str, NDArray[Any]]]]:
    """Evaluate a limit part by part; an event that costs more than it ever admits is denied."""
    core = _core.Simulator(limit, UNNAMED, denies_excess=True)
    core.add(trace.clients)
    for first in range(0, len(trace), PART):
        part = trace[first : first + PART]
        yield part, evaluate(core.feed, part, part.codes, columns)


def _round_up(number: int) -> int:
    """Round up to a number that people write.

    >>> [_round_up(number) for number in (7, 11, 26, 101, 1234)]
    [7, 11, 30, 110, 1400]
    """
    if number <= _EXACT:
        return max(number, 1)
    scale = 10 ** (len(str(number)) - 2)
    return int(next(scale * each for each in _ROUND if scale * each >= number))


class _Counted(NamedTuple):
    """The events that count.

    Attributes:
        events: The events by bucket.
        owners: The same events by client. Another table only if all clients share one bucket.
        counts: For each client, its events.
        is_client: For each bucket, whether it has an event.
        protected: For each bucket, whether it must not be denied anything.
        left_out: Number of events of clients that are excluded or have an override.
        not_found: What is protected, but has no event.
    """

    events: Trace
    owners: Trace
    counts: NDArray[np.int64]
    is_client: NDArray[np.bool_]
    protected: NDArray[np.bool_]
    left_out: int
    not_found: tuple[str, ...]

    @classmethod
    def of(
        cls,
        whole: Trace,
        evaluator: Evaluator | None,
        routes: Routes | None,
        name: str,
        *,
        exclude: AnyClients,
        protect: AnyClients,
    ) -> _Counted:
        """Select the events of a limit.

        Raises:
            KeyError: The trace has no client of `exclude`.
            ValueError: There are no events.
        """
        named = evaluator if routes is None else None
        events = whole if named is None else named.by_bucket(whole)
        spell = str if named is None else partial(_canonical, evaluator=named)
        is_excluded, unknown = match_clients(exclude, events.clients, spell)
        if unknown:
            raise KeyError(f"exclude: the trace has no client {unknown[0]!r}")
        is_protected, not_found = match_clients(protect, events.clients, spell)
        is_kept = ~_of_events(is_excluded, events)
        protected = _of_events(is_protected, events)
        owners: Trace | None = None
        if routes is not None and evaluator is not None:
            own, is_spending, numbers = routes.events_of(whole, name)
            events = evaluator.by_bucket(own)
            is_kept, protected = is_kept[is_spending], protected[is_spending]
            if len(events.clients) == 1:
                clients = [id.partition("\t")[0] for id in whole.clients]
                owners = events.with_codes(Codes(numbers, clients))
        if len(events) == 0:
            raise NoEventsError("trace must have at least one event, found none")
        if evaluator is not None:
            is_kept &= ~_of_events(evaluator.has_override(events.clients), events)
        if not is_kept.any():
            raise ValueError(
                "trace must have an event that counts; all are excluded or have overrides"
            )
        left_out = len(events) - int(np.count_nonzero(is_kept))
        if left_out:
            events, protected = events[is_kept], protected[is_kept]
            owners = None if owners is None else owners[is_kept]
        counts = _counts_of(events)
        return cls(
            events=events,
            owners=events if owners is None else owners,
            counts=counts if owners is None else _counts_of(owners),
            is_client=counts > 0,
            protected=_counts_of(events, protected) > 0,
            left_out=left_out,
            not_found=tuple(not_found),
        )


def _of_events(of_clients: NDArray[np.bool_], events: Trace) -> NDArray[np.bool_]:
    """Return for each event what is known of its client."""
    if not of_clients.any():
        return np.zeros(len(events), np.bool_)
    return np.asarray(of_clients[events.client_indices])


def _counts_of(events: Trace, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Return the number of events of each client, or of those in a mask."""
    codes = events.client_indices
    return np.bincount(codes if mask is None else codes[mask], minlength=len(events.clients))


def _canonical(id: str, evaluator: Evaluator) -> str:
    """Return an id in the spelling of the limit's ids; a network or a pattern as it is."""
    try:
        return evaluator.canonical_id(id)
    except InvalidId:
        return id
