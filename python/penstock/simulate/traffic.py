"""Synthetic traffic, reproducible by its seed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock._validation import is_whole
from penstock.simulate.ids import Codes
from penstock.simulate.times import parse_instant, parse_span
from penstock.simulate.trace import Trace

__all__ = ["mix", "poisson"]

_SECOND: Final = 1_000_000_000
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
        duration: A string with units, seconds, or a `timedelta`.
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
    if not 0 <= rate < np.inf:
        raise ValueError(f"rate must be at least 0 events per second, found {rate}")
    if not is_whole(clients, 1, 2**32):
        raise ValueError(f"clients must be an integer of at least 1, found {clients!r}")
    if not 0 <= skew < np.inf:
        raise ValueError(f"skew must be at least 0, found {skew}")
    length, first = parse_span(duration, "duration"), parse_instant(start, "start")
    expected = rate * length / _SECOND
    if expected > _MAX_EVENTS:
        raise ValueError(
            f"the trace would have {expected:,.0f} events, the maximum is {_MAX_EVENTS:,}"
        )
    random = np.random.default_rng(seed)
    events = int(random.poisson(expected))
    times = np.sort(random.integers(0, length, events)) + first
    upto = np.cumsum(np.arange(1, clients + 1, dtype=np.float64) ** -skew)
    drawn = np.searchsorted(upto, random.random(events) * upto[-1], side="right")
    codes = np.minimum(drawn, clients - 1).astype(np.uint32)
    digits = len(str(clients))
    ids = [f"{prefix}-{number:0{digits}}" for number in range(1, clients + 1)]
    return Trace(times, Codes(codes, ids), name="poisson", unit="ns")


def mix(*traces: Trace, name: str = "mix") -> Trace:
    """Merge traces by time. Equal ids are one client.

    Raises:
        ValueError: Some of the traces have durations, and others have none.

    >>> quiet, loud = poisson(10, "1m", seed=1), poisson(100, "5s", start=30, prefix="bot")
    >>> len(mix(quiet, loud)) == len(quiet) + len(loud)
    True
    """
    numbers: dict[str, int] = {}
    codes = [np.empty(0, np.uint32)]
    for trace in traces:
        indices = [numbers.setdefault(id, len(numbers)) for id in trace.clients]
        codes.append(np.array(indices, np.uint32)[trace.client_indices])
    times = np.concatenate([np.empty(0, np.int64), *(trace.times for trace in traces)])
    costs = None
    if any(trace.costs is not None for trace in traces):
        each = (np.ones(len(t), np.int64) if t.costs is None else t.costs for t in traces)
        costs = np.concatenate(list(each))
    durations = [trace.durations for trace in traces if trace.durations is not None]
    if durations and len(durations) < len(traces):
        raise ValueError("all traces of a mix must have durations, or none")
    return Trace(
        times,
        Codes(np.concatenate(codes), list(numbers)),
        costs,
        name,
        unit="ns",
        durations=np.concatenate(durations) if durations else None,
    ).sorted()
