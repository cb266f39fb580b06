"""The bucket of one client while it matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock._display import UNNAMED
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock._core import Limit


_HOUR: Final = 3_600_000_000_000
_POINTS: Final = 720
# The events of the client that are shown: with more, the line is only a band.
_EVENTS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucket:
    """The bucket of one client while it matters: an hour, or 200 events.

    Attributes:
        id: The client.
        times: The instants, in nanoseconds since the clock's origin.
        tokens: The tokens left; under a limit on requests in flight, the requests in flight.
        full: What the bucket holds, or the limit on requests in flight.
        denied_times: The times of denied events.
        is_in_flight: Whether requests in flight are shown.
    """

    id: str
    times: NDArray[np.int64]
    tokens: NDArray[np.int64]
    full: int
    denied_times: NDArray[np.int64]
    is_in_flight: bool


def bucket_of(id: str, limit: Limit, own: Trace, allowed: NDArray[np.bool_]) -> Bucket | None:
    """Return a client's bucket, given its events in order; None if no limit applies to it."""
    is_in_flight = hasattr(limit, "lease")
    if limit.describe() is None and not is_in_flight:
        return None
    denied = own.times[~allowed]
    first, last = _range(denied, own.times)
    if is_in_flight:
        times, tokens = _in_flight(own[allowed])
    else:
        times, tokens = _level(limit, own, np.linspace(first, last, _POINTS).astype(np.int64))
    shown = slice(*np.searchsorted(times, [first, last + 1]).tolist())
    before = tokens[max(shown.start - 1, 0) : shown.start] if is_in_flight else tokens[:0]
    times = np.concatenate([np.full(len(before), first), times[shown]])
    tokens = np.concatenate([before, tokens[shown]])
    return Bucket(
        id=id,
        times=times,
        tokens=tokens,
        full=limit.max_cost,
        denied_times=denied[(denied >= first) & (denied <= last)],
        is_in_flight=is_in_flight,
    )


def _range(denied: NDArray[np.int64], own: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first hour with many denied events, or the busiest one if nothing is denied."""
    times = denied if len(denied) else own
    within = np.searchsorted(times, times + _HOUR) - np.arange(len(times))
    # The beginning of an attack, rather than an hour amid it.
    enough = within.max() / 2 if len(denied) else within.max()
    at = int(np.searchsorted(own, times[int((within >= enough).argmax())]))
    # A little of what was before shows how the bucket was emptied.
    first = max(int(own[at]) - _HOUR // 20, int(own[max(at - _EVENTS // 4, 0)]))
    last = min(first + _HOUR, int(own[min(at + _EVENTS, len(own) - 1)]))
    # A single instant is shown as one second.
    return first, max(last, first + 1_000_000_000)


def _level(
    limit: Limit, own: Trace, instants: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens left after each event and at some instants, read by events of cost 0."""
    costs = np.ones(len(own), np.int64) if own.costs is None else own.costs
    times = np.concatenate([own.times, instants])
    order = np.argsort(times, kind="stable")
    read = Trace(times[order], None, np.append(costs, np.zeros_like(instants))[order], unit="ns")
    return read.times, Evaluator(limit, UNNAMED).columns(read, "remaining")["remaining"]


def _in_flight(admitted: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when requests begin and end, and the slots that are then held."""
    costs = np.ones(len(admitted), np.int64) if admitted.costs is None else admitted.costs
    durations = admitted.arrays[3]
    ends = admitted.times if durations is None else admitted.times + durations
    times = np.concatenate([ends, admitted.times])
    # A slot that comes back can be taken at the same instant.
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.concatenate([-costs, costs])[order])
