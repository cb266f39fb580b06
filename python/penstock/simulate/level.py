"""How full a bucket was, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.simulate.ids import as_text
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock._core import Limit
    from penstock.simulate.evaluator import Evaluator
    from penstock.simulate.ids import AnyId

__all__ = ["Level", "level_of"]


class Level(NamedTuple):
    """A bucket's level at instants that ascend; at an event before it and after it.

    Attributes:
        id: Whose bucket it is.
        limit: The limit of the bucket.
        times: When, in nanoseconds since the clock's origin.
        tokens: What could still be spent; parts of a token only in a token bucket.
        denied_times: When an event was denied, in nanoseconds.
    """

    id: str
    limit: Limit
    times: NDArray[np.int64]
    tokens: NDArray[np.float64]
    denied_times: NDArray[np.int64]


def level_of(evaluator: Evaluator, trace: Trace, id: AnyId | None, points: int) -> Level:
    """Ask the bucket of one client at its events, and at so many instants between them.

    To ask costs nothing: an event of cost 0 follows the rule and writes nothing.
    """
    client = _client_of(trace, id)
    limit = evaluator.limit_of(trace, client)
    if limit.algorithm == "unlimited":
        raise ValueError(f"no limit applies to {trace.clients[client]!r}, so it has no level")
    codes = trace.codes
    mine = np.ones(len(trace), np.bool_) if codes is None else codes == client
    events = trace.times[mine]
    costs = np.ones(len(events), np.int64) if trace.costs is None else trace.costs[mine]
    span = int(events[-1]) - int(events[0])
    # What no float holds exactly is rounded down, so that nothing lies behind the last event.
    last = float(span) if float(span) <= span else np.nextafter(float(span), 0)
    grid = np.linspace(0, last, max(points, 0)).astype(np.int64)
    asked = np.concatenate([events, grid + events[0]])
    times = np.concatenate([asked, events])
    # Stable, so that of one instant the questions come before the events.
    order = np.argsort(times, kind="stable")
    both = Trace.from_codes(
        times[order],
        np.zeros(len(times), np.uint32),
        [trace.clients[client]],
        np.concatenate([np.zeros(len(asked), np.int64), costs])[order],
    )
    told = evaluator.columns(both, ["remaining", "reset_after_ns"])
    tokens = told["remaining"].astype(np.float64)
    if limit.algorithm == "token-bucket":
        full = limit.burst_offset_ns
        tokens = (full - told["reset_after_ns"]) / limit.emission_interval_ns
    denied = (order >= len(asked)) & ~told["allowed"]
    return Level(trace.clients[client], limit, both.times, tokens, both.times[denied])


def _client_of(trace: Trace, id: AnyId | None) -> int:
    clients = trace.clients
    if id is None:
        if len(clients) != 1:
            raise ValueError(f"id must say whose level, found {len(clients):,} clients")
        place = 0
    elif (text := as_text(id)) in clients:
        place = clients.index(text)
    else:
        raise KeyError(f"the trace has no client {id!r}")
    codes = trace.codes
    if len(trace) == 0 or (codes is not None and not (codes == place).any()):
        raise KeyError(f"the trace has no event of {clients[place]!r}")
    return place
