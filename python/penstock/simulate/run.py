"""Simulations of a whole trace at once, or part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock import _core
from penstock.simulate.evaluator import NUMBERS, Evaluator, evaluate, parse_limits
from penstock.simulate.log.reader import Chunk
from penstock.simulate.result import Simulation
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import AnyLimits


_ALL: Final = ("allowed", *NUMBERS)


def simulate(
    limits: AnyLimits,
    times: Any,
    ids: Any = None,
    costs: Any = None,
    *,
    name: str | None = None,
    sort: bool = False,
) -> Simulation:
    """Evaluate a limit over a trace, event by event.

    Each decision is identical to the one of a `Limiter` at that instant: the engine is the same,
    only the clock is virtual. Every event spends, as `Limiter.spend` does; shadow mode is ignored.

    Args:
        limits: A limit, a text such as `100/minute`, or limits with their overrides.
        times: A `Trace`, any object with `times`, `ids` and `costs`, or times as `Trace` takes
            them.
        ids: As for `Trace`; only with times.
        costs: As for `Trace`; only with times.
        name: The name of the limit; optional if there is only one. A single limit needs a name
            only for a phase per key.
        sort: Whether to sort the events by time first. The decisions keep the order of the events
            as given.

    Raises:
        ValueError: The events are not sorted by time and `sort` is False, or the trace is not
            valid.
        UnknownLimit: No limit has this name.
        InvalidId: An id does not match the limit's id format.
        CostError: The limit can never allow a cost; a note says where it is.

    >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).allowed.tolist()
    [True, True, False, True]
    """
    trace = as_trace(times, ids, costs)
    order = None
    if sort and not trace.is_sorted:
        order = np.argsort(trace.times, kind="stable")
    ordered = trace if order is None else trace.sorted()
    evaluator = Evaluator(parse_limits(limits), name)
    columns = evaluator.columns(ordered, ["allowed"])
    return Simulation(trace, columns, evaluator=evaluator, ordered=ordered, order=order)


class Simulator:
    """A limit under a virtual clock that takes events part by part: any amount, in little memory.

    The buckets are kept from part to part, so the decisions are those of all parts at once.

    Attributes:
        events: Number of events so far.
        denied: Number of denied events so far.

    Args:
        limits: As for `simulate`.
        name: As for `simulate`.

    >>> simulator = Simulator("2/minute")
    >>> simulator.feed(Trace([0.0, 1.0], ids=["ada", "ada"])).allowed.tolist()
    [True, True]
    >>> simulator.feed(Trace([2.0, 3.0], ids=["grace", "ada"])).allowed.tolist()
    [True, False]
    """

    def __init__(self, limits: AnyLimits, name: str | None = None) -> None:
        self._core = _core.Simulator(parse_limits(limits), name)
        self._number_of: dict[str, int] = {}
        self._table: Sequence[str] = ()
        self._numbers = np.empty(0, np.uint32)
        self.events = 0
        self.denied = 0

    def feed(
        self,
        times: Any,
        ids: Any = None,
        costs: Any = None,
        *,
        columns: Sequence[str] = _ALL,
    ) -> Simulation:
        """Evaluate the next events, none of them earlier than the events before.

        Args:
            times: As for `simulate`, or a chunk of `read_log`. Chunks are fastest: they share a
                table of ids, and each id is looked up once.
            ids: As for `simulate`.
            costs: As for `simulate`.
            columns: The columns to compute, of `allowed`, `remaining`, `retry_after_ns` and
                `reset_after_ns`; `allowed` is always included.

        Raises:
            RuntimeError: An earlier part stopped at an invalid event.

        Otherwise raises as `simulate`.
        """
        for column in columns:
            if column not in _ALL:
                raise ValueError(f"columns must be among {', '.join(_ALL)}, found {column!r}")
        part = as_trace(times, ids, costs)
        codes = self._numbered(part)
        result = evaluate(self._core, part, codes, columns)
        self.events += len(part)
        self.denied += len(part) - int(np.count_nonzero(result["allowed"]))
        return Simulation(part, result)

    def _numbered(self, part: Trace) -> NDArray[np.uint32]:
        """Return the core's number of each event's client; add clients that are new."""
        if part.clients is not self._table:
            self._table = part.clients
            self._numbers = np.empty(0, np.uint32)
        added = [self._number(id) for id in part.clients[len(self._numbers) :]]
        if added:
            self._numbers = np.concatenate([self._numbers, np.array(added, np.uint32)])
        if part.codes is None:
            return np.full(len(part), self._numbers[0], np.uint32)
        return self._numbers[part.codes]

    def _number(self, id: str) -> int:
        number = self._number_of.get(id)
        if number is None:
            number = self._core.clients
            self._core.add([id])
            self._number_of[id] = number
        return number

    def __repr__(self) -> str:
        return f"<Simulator {self._core.name}: {self.events:,} events, {self.denied:,} denied>"


def as_trace(times: Any, ids: Any = None, costs: Any = None) -> Trace:
    """Return `times` as a trace, with ids and costs if it is not one already."""
    if not hasattr(times, "times"):
        return Trace(times, ids, costs)
    if ids is not None or costs is not None:
        raise TypeError("a trace has its own ids and costs; pass ids= and costs= only with times")
    if isinstance(times, Trace):
        return times
    if isinstance(times, Chunk):
        return Trace.from_codes(times.times, times.codes, times.clients, times.costs)
    return Trace(times.times, getattr(times, "ids", None), getattr(times, "costs", None))
