"""The level of a bucket over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.simulate.frame import Frame
from penstock.simulate.ids import as_text
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock._core import Limit
    from penstock.simulate.evaluator import Evaluator
    from penstock.simulate.ids import AnyId
    from penstock.types import LimitFacts


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Level(Frame):
    """A bucket's level at ascending instants; each event has one before it and one after it.

    Attributes:
        id: The client of the bucket.
        limit: The limit of the bucket.
        times: The instants, in nanoseconds since the clock's origin.
        tokens: Tokens that could be spent at once; fractions of a token only for a token bucket.
        denied_times: The times of denied events, in nanoseconds.
    """

    id: str
    limit: Limit
    times: NDArray[np.int64]
    tokens: NDArray[np.float64]
    denied_times: NDArray[np.int64]

    def _columns(self) -> tuple[str, NDArray[np.int64], Mapping[str, NDArray[Any]]]:
        return f"Level of the bucket of {self.id}", self.times, {"tokens": self.tokens}


def level_of(evaluator: Evaluator, trace: Trace, id: AnyId | None, points: int) -> Level:
    """Evaluate one client's bucket at its events and at `points` instants between them.

    The level is read by events of cost 0, which leave the bucket unchanged.
    """
    trace = evaluator.by_bucket(trace)
    client = _client_of(trace, None if id is None else evaluator.canonical_id(as_text(id)))
    limit = evaluator.limit_of(trace, client)
    facts = limit.describe()
    if facts is None:
        raise ValueError(f"no rate applies to {trace.clients[client]!r}, so there is no level")
    mine = trace.client_indices == client
    events = trace.times[mine]
    costs = np.ones(len(events), np.int64) if trace.costs is None else trace.costs[mine]
    span = int(events[-1]) - int(events[0])
    # Rounded down if no float is exact, so that no instant is after the last event.
    last = float(span) if float(span) <= span else np.nextafter(float(span), 0)
    grid = np.linspace(0, last, max(points, 0)).astype(np.int64)
    instants = np.concatenate([events, grid + events[0]])
    times = np.concatenate([instants, events])
    # Stable, so that a reading comes before an event of the same instant.
    order = np.argsort(times, kind="stable")
    merged = Trace.from_codes(
        times[order],
        np.zeros(len(times), np.uint32),
        [trace.clients[client]],
        np.concatenate([np.zeros(len(instants), np.int64), costs])[order],
        unit="ns",
    )
    result = evaluator.columns(merged, ["remaining", "reset_after_ns"])
    tokens = result["remaining"].astype(np.float64)
    interval_ns = getattr(limit, "emission_interval_ns", None)
    if interval_ns is not None:
        tokens = (limit.burst_offset_ns - result["reset_after_ns"]) / interval_ns
    if facts["evenly_spaced"]:
        tokens = _added_tokens(facts, result["remaining"], result["reset_after_ns"])
    denied = (order >= len(instants)) & ~result["allowed"]
    return Level(trace.clients[client], limit, merged.times, tokens, merged.times[denied])


def _added_tokens(
    facts: LimitFacts, remaining: NDArray[np.int64], reset_after_ns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the tokens left without those that are added, one by one, until the interval ends."""
    count, interval_ns = facts["refill_count"], facts["refill_interval_ns"]
    elapsed = np.where(reset_after_ns == 0, 0, interval_ns - reset_after_ns)
    # As Python's integers, if the product does not fit into 64 bits.
    wide = elapsed.astype(object) if count * interval_ns >= 2**63 else elapsed
    slot = (wide * count // interval_ns).astype(np.int64)
    tokens: NDArray[np.float64] = np.maximum(remaining - (count - 1 - slot), 0).astype(np.float64)
    return tokens


def _client_of(trace: Trace, id: str | None) -> int:
    clients = trace.clients
    if id is None:
        if len(clients) != 1:
            raise ValueError(f"pass id=: the trace has {len(clients):,} clients")
        index = 0
    elif id in clients:
        index = clients.index(id)
    else:
        raise KeyError(f"the trace has no client {id!r}")
    if not (trace.client_indices == index).any():
        raise KeyError(f"the trace has no event of {clients[index]!r}")
    return index
