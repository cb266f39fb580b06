"""Simulation of callers that wait, as `acquire` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _core
from penstock.simulate.evaluator import parse_limits
from penstock.simulate.frame import Frame
from penstock.simulate.run import as_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.trace import Trace


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Waits(Frame):
    """The waits of the events of a trace.

    Attributes:
        trace: The events.
        waits_ns: The wait of each event in nanoseconds; -1 for one that timed out.
    """

    trace: Trace
    waits_ns: NDArray[np.int64]

    def _columns(self) -> tuple[str, NDArray[np.int64], Mapping[str, NDArray[Any]]]:
        columns: dict[str, NDArray[Any]] = {}
        if self.trace.ids is not None:
            columns["id"] = self.trace.ids
        columns["wait"] = np.where(self.waits_ns < 0, np.nan, self.waits_ns / 1e9)
        columns["timed_out"] = self.waits_ns < 0
        return "Waits", self.trace.times, columns

    @property
    def timed_out(self) -> int:
        """Number of events that would have waited longer than the timeout."""
        return int(np.count_nonzero(self.waits_ns < 0))

    @property
    def longest_wait(self) -> float:
        """Longest wait of an event that was served, in seconds."""
        return max(int(self.waits_ns.max(initial=0)), 0) / 1e9

    @property
    def mean_wait(self) -> float:
        """Mean wait of the events that were served, in seconds."""
        served = self.waits_ns[self.waits_ns >= 0]
        return float(served.mean()) / 1e9 if len(served) else 0.0

    @property
    def longest_queue(self) -> int:
        """Most events that waited at one instant, for all clients together."""
        waited = self.waits_ns > 0
        begins = self.trace.times[waited]
        instants = np.concatenate([begins, begins + self.waits_ns[waited]])
        steps = np.repeat(np.array([1, -1], np.int64), len(begins))
        # An event that is served leaves before another one arrives.
        order = np.lexsort((steps, instants))
        return int(np.cumsum(steps[order]).max(initial=0))


def acquire(
    limits: AnyLimits,
    times: Any,
    ids: Any = None,
    costs: Any = None,
    *,
    timeout: Any = "1h",
    name: str | None = None,
    unit: str | None = None,
) -> Waits:
    """Let every event wait for its tokens, in the order of arrival, as `Limiter.acquire` does.

    Args:
        limits: As for `simulate`.
        times: As for `simulate`; sorted by time.
        ids: As for `simulate`.
        costs: As for `simulate`.
        timeout: The longest wait. An event that would wait longer fails at once and takes nothing.
        name: As for `simulate`.
        unit: As for `simulate`.

    Raises:
        ValueError: The events are not sorted by time, or an argument is out of range.

    Otherwise raises as `simulate`.

    >>> acquire("2/second", [0.0, 0.0, 0.0, 0.0]).waits_ns.tolist()
    [0, 0, 500000000, 1000000000]
    """
    trace = as_trace(times, ids, costs, unit)
    core = _core.Simulator(parse_limits(limits), name)
    waits = np.zeros(len(trace), np.int64)
    if len(trace):
        core.add(trace.clients)
        core.wait(*trace.arrays[:3], _core.parse_duration(timeout, "timeout"), waits)
    return Waits(trace, waits)
