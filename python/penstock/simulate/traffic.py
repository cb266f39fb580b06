"""Synthetic traffic, reproducible by its seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.simulate.times import parse_instant, parse_span
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["attack", "bursts", "diurnal", "mix", "poisson"]

_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400 * _SECOND
_MAX_EVENTS: Final = 1_000_000_000


def poisson(
    rate: float,
    duration: Any,
    clients: int = 1,
    seed: int = 0,
    *,
    skew: float = 1.0,
    start: Any = 0,
    prefix: str = "client",
) -> Trace:
    """Generate independent events at a constant average rate.

    Args:
        rate: Events per second, of all clients together.
        duration: A text with units, seconds, or a `timedelta`.
        clients: Number of clients.
        seed: Another seed gives another trace of the same kind.
        skew: Exponent of Zipf's law: client k sends events in proportion to 1 / k**skew. 0: all
            clients send equally many.
        start: The start, as for `Trace.between`.
        prefix: The prefix of the ids.

    Raises:
        ValueError: A number is out of range.

    >>> poisson(100, "1m", clients=50, seed=1)
    <Trace poisson: 6,002 events of 50 clients, 0.005762 s to 59.99 s>
    """
    random = np.random.default_rng(seed)
    length, first = parse_span(duration, "duration"), parse_instant(start, "start")
    events = _draw_events(random, _rate(rate), length)
    times = np.sort(random.integers(0, length, events)) + first
    return _make_trace(
        "poisson", times, _draw_clients(random, events, clients, skew), clients, prefix
    )


def bursts(
    size: int,
    every: Any,
    duration: Any,
    clients: int = 1,
    seed: int = 0,
    *,
    within: Any = 0,
    start: Any = 0,
    prefix: str = "client",
) -> Trace:
    """Generate clients that repeatedly send several events at once.

    Args:
        size: Events in a burst.
        every: The time from one burst of a client to its next one.
        duration: As for `poisson`.
        clients: Number of clients, each with its own offset.
        seed: As for `poisson`.
        within: The time over which a burst is spread. 0: no spread.
        start: As for `poisson`.
        prefix: As for `poisson`.

    Raises:
        ValueError: A number is out of range.

    >>> len(bursts(10, "1m", "1h", clients=3))
    1800
    """
    random = np.random.default_rng(seed)
    length, step = parse_span(duration, "duration"), parse_span(every, "every")
    first = parse_instant(start, "start")
    size, clients = _count(size, "size"), _count(clients, "clients")
    begin = random.integers(0, min(step, length), clients)
    rounds = (length - begin + step - 1) // step
    _check_events(int(rounds.sum()) * size)
    codes = np.repeat(np.arange(clients, dtype=np.uint32), rounds * size)
    before = np.repeat(np.cumsum(rounds) - rounds, rounds)
    nth = np.arange(int(rounds.sum()), dtype=np.int64) - before
    times = np.repeat(np.repeat(begin, rounds) + nth * step, size)
    if within != 0:
        times += random.integers(0, parse_span(within, "within"), len(times))
    order = np.argsort(times, kind="stable")
    return _make_trace("bursts", times[order] + first, codes[order], clients, prefix)


def diurnal(
    rate: float,
    duration: Any = "24h",
    clients: int = 100,
    seed: int = 0,
    *,
    peak: Any = "14h",
    swing: float = 0.8,
    skew: float = 1.0,
    start: Any = 0,
    prefix: str = "client",
) -> Trace:
    """Generate a daily cycle: busy around one hour, quiet twelve hours later.

    Args:
        rate: Events per second, on average over a day.
        duration: As for `poisson`.
        clients: As for `poisson`.
        seed: As for `poisson`.
        peak: The busiest time of the day, in UTC.
        swing: How far the rate rises above its average and falls below it, as a share, 0 to 1.
        skew: As for `poisson`.
        start: As for `poisson`.
        prefix: As for `poisson`.

    Raises:
        ValueError: A number is out of range.

    >>> day = diurnal(1, seed=1)
    >>> len(day.between(13 * 3600.0, 15 * 3600.0)) > 5 * len(day.between(3600.0, 3 * 3600.0))
    True
    """
    if not 0 <= swing <= 1:
        raise ValueError(f"swing must be between 0 and 1, found {swing}")
    random = np.random.default_rng(seed)
    length, first = parse_span(duration, "duration"), parse_instant(start, "start")
    peak_rate = _rate(rate) * (1 + swing)
    times = random.integers(0, length, _draw_events(random, peak_rate, length)) + first
    turn = 2 * np.pi * ((times - parse_span(peak, "peak")) % _DAY) / _DAY
    # Thinning: events at the peak rate, of which more are dropped at quieter hours.
    kept = random.random(len(times)) * (1 + swing) < 1 + swing * np.cos(turn)
    times = np.sort(times[kept])
    codes = _draw_clients(random, len(times), clients, skew)
    return _make_trace("diurnal", times, codes, clients, prefix)


def attack(
    rate: float,
    duration: Any,
    bots: int = 10,
    seed: int = 0,
    *,
    start: Any = 0,
    prefix: str = "bot",
) -> Trace:
    """Generate bots that send events at a steady, equal rate.

    Args:
        rate: Events per second, of all bots together.
        duration: As for `poisson`.
        bots: Number of bots.
        seed: As for `poisson`.
        start: As for `poisson`.
        prefix: As for `poisson`.

    Raises:
        ValueError: A number is out of range.

    >>> attack(200, "10s", bots=4)
    <Trace attack: 2,000 events of 4 clients, 0.0004816 s to 9.993 s>
    """
    random = np.random.default_rng(seed)
    length, first = parse_span(duration, "duration"), parse_instant(start, "start")
    bots = _count(bots, "bots")
    events = round(_rate(rate) * length / _SECOND)
    _check_events(events)
    # Each bot has its own phase and a steady interval, with some network jitter.
    codes = np.arange(events, dtype=np.int64) % bots
    sent = np.maximum(np.bincount(codes, minlength=bots), 1)
    interval = (length / sent)[codes]
    planned = (np.arange(events) // bots + random.random(bots)[codes]) * interval
    planned += 0.01 * interval * random.exponential(1.0, events)
    # Events that jitter moves past the end wrap around, so that they do not pile up there.
    times = planned.astype(np.int64) % length
    order = np.argsort(times, kind="stable")
    numbers = codes[order].astype(np.uint32)
    return _make_trace("attack", times[order] + first, numbers, bots, prefix)


def mix(*traces: Trace, name: str = "mix") -> Trace:
    """Merge traces by time. Equal ids are one client.

    >>> quiet, loud = poisson(10, "1m", seed=1), attack(100, "5s", start=30)
    >>> len(mix(quiet, loud)) == len(quiet) + len(loud)
    True
    """
    numbers: dict[str, int] = {}
    codes = [np.empty(0, np.uint32)]
    for trace in traces:
        indices = [numbers.setdefault(id, len(numbers)) for id in trace.clients]
        codes.append(np.array(indices, np.uint32)[trace.client_indices])
    times = np.concatenate([np.empty(0, np.int64), *(trace.times for trace in traces)])
    order = np.argsort(times, kind="stable")
    costs = None
    if any(trace.costs is not None for trace in traces):
        each = (np.ones(len(t), np.int64) if t.costs is None else t.costs for t in traces)
        costs = np.concatenate(list(each))[order]
    codes_in_order = np.concatenate(codes)[order]
    return Trace.from_codes(times[order], codes_in_order, list(numbers), costs, name, unit="ns")


def _make_trace(
    name: str, times: NDArray[np.int64], codes: NDArray[np.uint32], clients: int, prefix: str
) -> Trace:
    digits = len(str(clients))
    ids = [f"{prefix}-{number:0{digits}}" for number in range(1, clients + 1)]
    return Trace.from_codes(times, codes, ids, name=name, unit="ns")


def _draw_clients(
    random: np.random.Generator, events: int, clients: int, skew: float
) -> NDArray[np.uint32]:
    clients = _count(clients, "clients")
    if not 0 <= skew < np.inf:
        raise ValueError(f"skew must be at least 0, found {skew}")
    upto = np.cumsum(np.arange(1, clients + 1, dtype=np.float64) ** -skew)
    drawn = np.searchsorted(upto, random.random(events) * upto[-1], side="right")
    codes: NDArray[np.uint32] = np.minimum(drawn, clients - 1).astype(np.uint32)
    return codes


def _draw_events(random: np.random.Generator, rate: float, length: int) -> int:
    expected = rate * length / _SECOND
    _check_events(expected)
    return int(random.poisson(expected))


def _check_events(events: float) -> None:
    if events > _MAX_EVENTS:
        raise ValueError(
            f"the trace would have {events:,.0f} events, the maximum is {_MAX_EVENTS:,}"
        )


def _rate(rate: float) -> float:
    if not 0 <= rate < np.inf:
        raise ValueError(f"rate must be at least 0 events per second, found {rate}")
    return float(rate)


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{what} must be an integer of at least 1, found {value!r}")
    return int(value)
