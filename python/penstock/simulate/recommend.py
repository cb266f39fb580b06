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
from penstock.simulate.evaluator import Evaluator, parse_limits
from penstock.simulate.recommendation import Candidate, Recommendation
from penstock.simulate.run import as_trace
from penstock.simulate.times import parse_span, refuse_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.simulate.clients import AnyClients
    from penstock.simulate.evaluator import AnyLimits
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
# The numbers that people write, up to a hundred; larger ones are these with zeros.
_ROUND: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 80, 100)
# A bucket that takes longer to refill than this part of the trace was not seen to refill.
_MAX_REFILL: Final = 0.25


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
    sort: bool = False,
) -> Recommendation:
    """Recommend limits for a trace, from what its clients need, and say whom each denies.

    The count of a limit is a percentile of what the clients spend in their busiest period, and its
    burst the same percentile of what they spend at once beyond that rate; both are rounded up to
    numbers that people write, such as 12, 25 or 300. Windows have no burst. Slots are found from
    the durations of the trace. Each limit is then simulated over the whole trace.

    Clients that are far from the rest are set aside before, and named: those beyond a gap, where
    one client needs three times as much as the next one, if they are at most a tenth of them.

    For one period there are several limits, from strict to lenient, and the one of `percentile` is
    chosen. For several periods there is one limit for each, and the first is chosen.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        period: The limit's period: a string with units, seconds, or a `timedelta`; or a list of up
            to seven. None: that of `limits`; one minute if it has none.
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
        sort: As for `simulate`.

    Raises:
        ValueError: The trace is empty or too short for every period, an argument is out of range,
            or the trace has no durations, which a limit on requests in flight needs.
        KeyError: The trace has no client of `exclude`.

    >>> from penstock.simulate import Trace
    >>> recommend(Trace([0.0, 0.0, 0.0, 60.0, 600.0], ids=["ada"] * 4 + ["bob"])).limit
    Limit.token_bucket(burst=3, count=3, period='1m')
    """
    if isinstance(percentile, bool) or not isinstance(percentile, (int, float, np.number)):
        raise TypeError(f"percentile must be a number, found {name_value(percentile)}")
    if not 0 <= percentile <= 100:  # noqa: PLR2004
        raise ValueError(f"percentile must be between 0 and 100, found {percentile}")
    whole = as_trace(trace)
    whole = whole.sorted() if sort else whole
    if not whole.is_sorted:
        is_earlier = np.append(False, whole.times[1:] < whole.times[:-1])
        refuse_first(is_earlier, whole.times, "times must not go back (pass sort=True)")
    evaluator = None if limits is None else Evaluator(parse_limits(limits), name)
    families = _families(None if evaluator is None else evaluator.default(), algorithm, period)
    counted = _Counted.of(whole, evaluator, exclude, protect)
    candidates: list[Candidate] = []
    chosen, refused = None, []
    for family in families:
        try:
            rows, index = _candidates(counted, family, percentile)
        except LimitError as error:
            refused.append(f"{family.label}: {error}.")
            continue
        if len(families) > 1:
            rows, index = [rows[index]], 0
        chosen = index if chosen is None else chosen
        candidates += rows
    if chosen is None:
        raise ValueError("no limit can be recommended: " + " ".join(refused).rstrip("."))
    return Recommendation(
        candidates=tuple(candidates),
        chosen=chosen,
        clients=counted.trace.clients,
        events=counted.events,
        left_out=counted.left_out,
        not_found=counted.not_found,
        refused=tuple(refused),
    )


class _Family(NamedTuple):
    """The limits of one algorithm and one period.

    Attributes:
        algorithm: The algorithm.
        period_ns: The period; that of the calendar or 0 if it stays as it is.
        label: The period for messages.
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
        values = (burst, count, f"{self.period_ns}ns")
        names = zip(_SHAPES[self.algorithm], values, strict=True)
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
        periods = [_interval_of(known) or parse_span("1m", "")]
    else:
        is_list = isinstance(period, Iterable) and not isinstance(period, str)
        periods = [parse_span(each, "period") for each in (period if is_list else [period])]
    if not 1 <= len(periods) <= _MAX_PERIODS:
        raise ValueError(f"period must have 1 to {_MAX_PERIODS} values, found {len(periods)}")
    return [_Family(algorithm, each, format_duration(each), rest) for each in periods]


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
    most = _busiest(counted.trace, family)
    is_client = counted.events > 0
    # A limit that suffices for protected clients suffices for others that need no more.
    is_far = _far(most, is_client & ~counted.is_protected)
    is_far &= most > most[counted.is_protected].max(initial=0)
    rest = is_client & ~is_far
    levels = [*(level for level in _STRICTER if level < percentile), percentile]
    groups = [(f"{level:.4g} %", level, rest) for level in levels]
    groups.append(("all others" if is_far.any() else "everyone", 100.0, rest))
    if is_far.any():
        groups.append(("everyone", 100.0, is_client))

    def fitted(group: tuple[str, float, NDArray[np.bool_]]) -> Limit | LimitError:
        try:
            limit = _limit_for(counted, family, most, *group[1:])
            _check_length(counted, "the time in which a bucket refills", _refill_ns(limit))
        except LimitError as error:
            return error
        return limit

    unit = "most in flight" if family.algorithm == "in-flight" else f"busiest {family.label}"
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        limits = list(pool.map(fitted, groups))
        chosen = limits[len(levels) - 1]
        if isinstance(chosen, LimitError):
            raise chosen
        # Of equal limits, the label says the most. A stricter limit with a small count, or the one
        # for clients far from the rest, may refill too slowly.
        labels = {
            limit: label
            for limit, (label, *_) in zip(limits, groups, strict=True)
            if isinstance(limit, Limit)
        }
        denied = pool.map(lambda limit: _tally(limit, counted.trace)[1], labels)
        candidates = [
            Candidate(
                limit=limit, suffices_for=label, period_ns=family.period_ns, unit=unit, most=most,
                is_far=is_far, denied=each,
            )
            for (limit, label), each in zip(labels.items(), denied, strict=True)
        ]  # fmt: skip
    return candidates, [*labels].index(chosen)


def _check_length(counted: _Counted, what: str, length_ns: int) -> None:
    """Raise LimitError if a trace is too short to show that a bucket refills."""
    if length_ns > int(counted.trace.duration_ns * _MAX_REFILL):
        raise LimitError(
            f"{what} is {format_span(length_ns)}, but the events cover "
            f"{format_span(counted.trace.duration_ns)}, and a bucket must refill within a quarter "
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
            return np.asarray(is_client & (most >= falling[index]))
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
        least = np.percentile(needs[group], level, method="inverted_cdf")
        return _round_up(max(int(least), int(needs[counted.is_protected].max(initial=1))))

    count = size(most)
    if not family.has_burst:
        return family.limit(0, count)
    limit = family.largest(count)
    facts = limit.describe()
    if facts is not None and facts["evenly_spaced"]:
        # Its level is not known from what remains, and it needs no more than a token bucket.
        limit = _Family(_DEFAULT, family.period_ns, "").largest(count)
    return family.limit(size(_most_used(limit, counted.trace)), count)


def _busiest(trace: Trace, family: _Family) -> NDArray[np.int64]:
    """Return for each client the most tokens that it spends in one period, or holds at once."""
    if not family.has_burst:
        return _most_used(family.largest(), trace)
    times, codes, costs, _ = trace.arrays
    return np.asarray(_core.busiest(times, codes, costs, len(trace.clients), family.period_ns))


def _most_used(limit: Limit, trace: Trace) -> NDArray[np.int64]:
    """Return for each client the most tokens that are gone from its bucket at one time.

    It is one more than the bucket holds if that does not suffice.
    """
    fewest, denied = _tally(limit, trace)
    used = limit.max_cost - np.minimum(fewest, limit.max_cost)
    return np.where(denied > 0, limit.max_cost + 1, used)


def _tally(limit: Limit, trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each client the fewest tokens left by a limit, and its denied events.

    An event that costs more than the limit ever admits is denied.
    """
    core = _core.Simulator(limit, UNNAMED, denies_excess=True)
    core.add(trace.clients)
    fewest, denied = core.tally(*trace.arrays)
    return np.asarray(fewest), np.asarray(denied)


def _round_up(number: int) -> int:
    """Round up to a number that people write, so that no client is denied by rounding.

    >>> [_round_up(number) for number in (0, 7, 11, 26, 101, 1234)]
    [1, 8, 12, 30, 120, 1500]
    """
    power: int = 10 ** max(len(str(number)) - 2, 0)
    return next(each * power for each in _ROUND if each * power >= number)


class _Counted(NamedTuple):
    """The events that count.

    Attributes:
        trace: The events by bucket.
        events: For each bucket, the number of its events.
        is_protected: For each bucket with an event, whether it must not be denied anything.
        left_out: Number of events of clients that are excluded or have an override.
        not_found: What is protected, but has no event.
    """

    trace: Trace
    events: NDArray[np.int64]
    is_protected: NDArray[np.bool_]
    left_out: int
    not_found: tuple[str, ...]

    @classmethod
    def of(
        cls, whole: Trace, evaluator: Evaluator | None, exclude: AnyClients, protect: AnyClients
    ) -> _Counted:
        """Select the events of a limit.

        Raises:
            KeyError: The trace has no client of `exclude`.
            ValueError: There are no events.
        """
        if len(whole) == 0:
            raise ValueError("trace must have at least one event, found none")
        trace = whole if evaluator is None else evaluator.by_bucket(whole)
        spell = str if evaluator is None else partial(_canonical, evaluator=evaluator)
        is_left_out, unknown = match_clients(exclude, trace.clients, spell)
        if unknown:
            raise KeyError(f"exclude: the trace has no client {unknown[0]!r}")
        is_protected, not_found = match_clients(protect, trace.clients, spell)
        if evaluator is not None:
            is_left_out |= evaluator.has_override(trace.clients)
        events = np.bincount(trace.client_indices, minlength=len(trace.clients))
        if is_left_out.any():
            trace = trace[~is_left_out[trace.client_indices]]
            events[is_left_out] = 0
        if len(trace) == 0:
            raise ValueError(
                "trace must have an event that counts; all are excluded or have overrides"
            )
        is_protected &= events > 0
        return cls(trace, events, is_protected, len(whole) - len(trace), tuple(not_found))


def _canonical(id: str, evaluator: Evaluator) -> str:
    """Return an id in the spelling of the limit's ids; a network or a pattern as it is."""
    try:
        return evaluator.bucket_of(id)[0]
    except InvalidId:
        return id
