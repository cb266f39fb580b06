"""Limits derived from what clients need, and whom each denies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock import _core
from penstock._core import Limit, limit_shapes
from penstock._display import UNNAMED, format_span
from penstock._validation import is_number
from penstock.errors import LimitError
from penstock.messages import describe_limit, format_duration
from penstock.simulate.clients import match_clients
from penstock.simulate.evaluator import Evaluator, parse_limits
from penstock.simulate.ids import Codes
from penstock.simulate.recommendation import Candidate, Recommendation, few_requests
from penstock.simulate.run import as_trace
from penstock.simulate.times import parse_span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.simulate.clients import AnyClients
    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.trace import Trace


# Clients are far from the rest if each needs this many times as much as the next one.
_GAP: Final = 3
# Fewer clients are never far from each other, and more than a tenth are no exception: for a gap
# among the upper half, there is a limit to choose.
_MIN_CLIENTS: Final = 5
_MAX_FAR: Final = 0.1
_MAX_ABOVE: Final = 0.5
# A gap is also wider than the rest of the tail, from this percentile to its end.
_TAIL: Final = 99
_STRICTER: Final = (95.0, 99.0)
# A bucket that takes longer to refill than a quarter of the trace was not seen to refill. A log of
# one day covers a little less.
_MAX_REFILL: Final = 0.255
_MAX_PERIODS: Final = 7
# Counts up to this one are not rounded: each token more is one for an attacker in every period.
_EXACT: Final = 100
# The numbers that people write, up to a hundred; larger ones are these with zeros.
_ROUND: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 80, 100)
# The parameters of each algorithm for tokens at once, tokens per period, and the period. Slots have
# no period, and calendar windows keep theirs.
_SHAPES: Final = limit_shapes()
_DEFAULT: Final = Limit.token_bucket(burst=1, count=1, period="1m")


def recommend(
    trace: Any,
    period: Any = None,
    *,
    percentile: float = 99.9,
    exclude: AnyClients = (),
    protect: AnyClients = (),
    limits: AnyLimits | None = None,
    name: str | None = None,
) -> Recommendation:
    """Recommend limits for a trace, from what its clients need, and say whom each denies.

    The count of a limit is a percentile of what the clients spend in their busiest period, and its
    burst the same percentile of what they spend at once beyond that rate. If half of the clients
    send at most five requests, only the others count. Bursts, and counts above a hundred, are
    rounded up to numbers that people write, such as 12, 25 or 300. Windows have no burst. Slots are
    found from the durations of the trace. Each limit is then simulated over the whole trace.

    Clients that are far from the rest are set aside before, and named: those beyond a gap, where
    one client needs three times as much as the next one, if they are at most a tenth of them.

    For one period there are several limits, from strict to lenient, and the one of `percentile` is
    chosen, or a more lenient one if it denies a larger share of the requests than of the clients.
    For several periods there is one limit for each, and the first is chosen.

    Args:
        trace: As `times` of `simulate`; each client has its own bucket.
        period: The limit's period: a string with units, seconds, or a `timedelta`; or a list of up
            to seven. None: that of `limits`. Calendar windows and slots have no other.
        percentile: The share of the clients, and of their requests, that the chosen limit suffices
            for, in per cent.
        exclude: Clients whose events do not count, such as known attackers: ids, networks such as
            `198.51.100.0/24`, or patterns with `*` and `?`.
        protect: Clients that must not be denied anything, as for `exclude`.
        limits: A limit with the algorithm, or limits whose default is to be chosen. None: a token
            bucket for each minute. Their id format decides which ids are one client; clients with
            an override keep it, and their events do not count.
        name: The name of the limit, if `limits` has several.

    Raises:
        ValueError: The trace is empty or too short for every period, an argument is out of range,
            or the trace has no durations, which a limit on requests in flight needs.
        KeyError: The trace has no client of `exclude`.

    >>> from penstock.simulate import Trace
    >>> recommend(Trace([0.0, 0.0, 0.0, 60.0, 600.0], ids=["ada"] * 4 + ["bob"])).limit
    Limit.token_bucket(burst=3, count=3, period='1m')
    """
    if not is_number(percentile, 0, 100):
        raise ValueError(f"percentile must be a number from 0 to 100, found {percentile!r}")
    evaluator = Evaluator(parse_limits(_DEFAULT if limits is None else limits), name)
    models = _models(evaluator.default(), period)
    events = evaluator.by_bucket(as_trace(trace))
    is_left_out, unknown = match_clients(exclude, events.clients)
    if unknown:
        raise KeyError(f"exclude: the trace has no client {unknown[0]!r}")
    counted = _without(events, is_left_out | evaluator.has_override(events.clients))
    if not len(counted):
        raise ValueError("trace must have at least one event that counts, found none")
    is_protected, not_found = match_clients(protect, counted.clients)
    found, refused = [], []
    for model in models:
        try:
            found.append(_candidates(counted, is_protected, model, percentile))
        except LimitError as error:
            refused.append(f"{_need(model)}: {error}.")
    if not found:
        raise ValueError(" ".join(refused).rstrip("."))
    candidates, chosen = found[0]
    if len(models) > 1:
        candidates, chosen = [rows[index] for rows, index in found], 0
    return Recommendation(
        candidates=tuple(candidates),
        row=chosen + 1,
        clients=counted.clients,
        events=np.bincount(counted.client_indices),
        left_out=len(events) - len(counted),
        not_found=tuple(not_found),
        refused=tuple(refused),
    )


def _models(default: Limit | None, period: Any) -> list[Limit]:
    """Return the smallest limit of each period that is asked for."""
    model = default if default is not None and default.algorithm in _SHAPES else _DEFAULT
    smallest, own = _sized(model, 1, 1), _SHAPES[model.algorithm][2]
    if period is None:
        return [smallest]
    if own is None:
        raise ValueError(f"the period of {describe_limit(model)} stays; omit period=")
    is_list = isinstance(period, Iterable) and not isinstance(period, str)
    given = list(period) if is_list else [period]
    if not 1 <= len(given) <= _MAX_PERIODS:
        raise ValueError(f"period must have 1 to {_MAX_PERIODS} values, found {len(given)}")
    periods = [f"{parse_span(each, 'period')}ns" for each in given]
    fields = smallest.fields()
    return [Limit.from_fields(model.algorithm, {**fields, own: each}) for each in periods]


def _sized(model: Limit, burst: int, count: int) -> Limit:
    """Return a limit with a burst, if its algorithm has one, and a count."""
    at_once, per_period, _ = _SHAPES[model.algorithm]
    sizes = {per_period: count} if at_once is None else {at_once: burst, per_period: count}
    return Limit.from_fields(model.algorithm, {**model.fields(), **sizes})


def _largest(model: Limit, count: int | None = None) -> Limit:
    """Return the limit with the largest burst for a count, or with the largest count.

    Only numbers that are one less than a power of two are tried.
    """
    facts = model.describe()
    if facts is not None and facts["evenly_spaced"]:
        # Its level is not known from what remains. It needs no more than a token bucket.
        period = f"{facts['refill_interval_ns']}ns"
        model = Limit.token_bucket(burst=1, count=1, period=period)
    most = 2**62 - 1
    while True:
        try:
            return _sized(model, most, count or most)
        except LimitError:
            if most == 1:
                raise
            most >>= 1


def _need(model: Limit) -> str:
    """Return what clients need a limit for, such as `busiest minute`."""
    facts = model.describe()
    if facts is None:
        return "most in flight"
    if _SHAPES[model.algorithm][2] is None:
        return f"busiest {model.fields()['period']}"
    return f"busiest {format_duration(facts['refill_interval_ns'])}"


def _candidates(
    trace: Trace, is_protected: NDArray[np.bool_], model: Limit, percentile: float
) -> tuple[list[Candidate], int]:
    """Return the limits of one period from strict to lenient, and the index of the one to choose.

    Raises:
        LimitError: The trace is too short for the period, or no limit admits what clients need.
    """
    has_burst, facts = _SHAPES[model.algorithm][0] is not None, model.describe()
    period_ns = 0 if facts is None else facts["refill_interval_ns"]
    _check_length(trace, "the period", period_ns)
    if has_burst:
        times, codes, costs, _ = trace.arrays
        most = np.asarray(_core.busiest(times, codes, costs, len(trace.clients), period_ns))
    else:
        most, _ = _tally(_largest(model), trace)
    # A limit that suffices for protected clients suffices for others that need no more.
    is_unprotected = most > most[is_protected].max(initial=0)
    is_far = _far(most, ~is_protected, _MAX_FAR) & is_unprotected
    rest = ~is_far
    levels = [*(level for level in _STRICTER if level < percentile), percentile]
    # The many that send a few requests need no limit, and say nothing about the need of others.
    events = np.bincount(trace.client_indices, minlength=len(most))
    is_counted = rest & (events > few_requests(events))
    is_counted = is_counted if is_counted.any() else rest
    groups = [(f"{level:.4g} %", level, is_counted) for level in levels]
    recommended = groups[-1]
    is_above = _far(most, rest & ~is_protected, _MAX_ABOVE) & is_unprotected
    share = 100 * np.count_nonzero(rest & ~is_above) / np.count_nonzero(rest)
    if share < levels[0]:
        groups.insert(0, (f"{share:.4g} %", 100.0, rest & ~is_above))
    if is_far.any():
        groups.append(("all others", 100.0, rest))
    groups.append(("everyone", 100.0, rest | is_far))

    def candidate(group: tuple[str, float, NDArray[np.bool_]]) -> Candidate | LimitError:
        label, level, clients = group

        def size(needs: NDArray[np.int64]) -> int:
            least = np.percentile(needs[clients], level, method="inverted_cdf")
            return max(int(least), int(needs[is_protected].max(initial=1)))

        burst, count = 1, size(most)
        count = count if count <= _EXACT else _round_up(count)
        try:
            if has_burst:
                burst = _round_up(size(_tally(_largest(model, count), trace)[0]))
            limit = _sized(model, burst, count)
            facts = limit.describe()
            if facts is not None:
                refill_ns = facts["at_once"] * facts["refill_interval_ns"] // facts["refill_count"]
                _check_length(trace, "the time in which a bucket refills", refill_ns)
        except LimitError as error:
            return error
        denied = _tally(limit, trace)[1]
        return Candidate(limit, label, count, _need(model), most, is_far, denied)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(candidate, groups))
    chosen = found[groups.index(recommended)]
    if isinstance(chosen, LimitError):
        raise chosen
    # The few that the percentile leaves may have sent much.
    most_denied = events[rest].sum() * (1 - percentile / 100)
    suffices = (
        each
        for each in found[groups.index(recommended) :]
        if isinstance(each, Candidate) and each.denied[rest].sum() <= most_denied
    )
    chosen = next(suffices, chosen)
    # Of equal limits, the last label says the most. A stricter limit with a small count, or the one
    # for clients far from the rest, may refill too slowly.
    by_limit = {each.limit: each for each in found if isinstance(each, Candidate)}
    return [*by_limit.values()], [*by_limit].index(chosen.limit)


def _without(trace: Trace, is_left_out: NDArray[np.bool_]) -> Trace:
    """Return the events of the other clients; the table has only clients with events."""
    counts = np.bincount(trace.client_indices, minlength=len(trace.clients))
    is_kept = (counts > 0) & ~is_left_out
    if is_kept.all():
        return trace
    loses_events = counts[is_left_out].any()
    kept = trace[is_kept[trace.client_indices]] if loses_events else trace
    numbers = np.cumsum(is_kept, dtype=np.uint32) - np.uint32(1)
    ids = [trace.clients[index] for index in np.flatnonzero(is_kept).tolist()]
    return kept.with_codes(Codes(numbers[kept.client_indices], ids))


def _check_length(trace: Trace, what: str, length_ns: int) -> None:
    """Raise LimitError if a trace is too short to show that a bucket refills."""
    if length_ns > int(trace.duration_ns * _MAX_REFILL):
        raise LimitError(
            f"{what} is {format_span(length_ns)}, but the events cover "
            f"{format_span(trace.duration_ns)}, and a bucket must refill within a quarter "
            "of that; use a shorter period or a longer log"
        )


def _far(
    most: NDArray[np.int64], may_be_far: NDArray[np.bool_], largest: float
) -> NDArray[np.bool_]:
    """Return which clients are far from the rest: beyond a gap, which is not the end of a tail.

    They are at most this share of the clients that may be far.
    """
    falling = np.sort(most[may_be_far])[::-1]
    if len(falling) >= _MIN_CLIENTS:
        last = max(1, int(len(falling) * largest))
        steps = falling[:last] / np.maximum(falling[1 : last + 1], 1)
        for index in np.flatnonzero(steps >= _GAP)[::-1].tolist():
            rest = falling[index + 1 :]
            if steps[index] > rest[0] / max(np.percentile(rest, _TAIL), 1):
                return np.asarray(may_be_far & (most >= falling[index]))
    return np.zeros(len(most), np.bool_)


def _tally(limit: Limit, trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each client the most tokens gone from its bucket at once, and its denied events.

    The tokens are one more than the bucket holds if that does not suffice. An event that costs more
    than the limit ever admits is denied.
    """
    core = _core.Simulator(limit, UNNAMED, denies_excess=True)
    core.number(list(trace.clients))
    fewest, denied = map(np.asarray, core.tally(*trace.arrays))
    used = limit.max_cost - np.minimum(fewest, limit.max_cost)
    return np.where(denied > 0, limit.max_cost + 1, used), denied


def _round_up(number: int) -> int:
    """Round up to a number that people write, so that no client is denied by rounding.

    >>> [_round_up(number) for number in (0, 7, 11, 26, 101, 1234)]
    [1, 8, 12, 30, 120, 1500]
    """
    power: int = 10 ** max(len(str(number)) - 2, 0)
    return next(each * power for each in _ROUND if each * power >= number)
