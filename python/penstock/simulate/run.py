"""Events through a limit: all of a trace at once, or part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock import _core
from penstock.simulate.evaluator import NUMBERS, Evaluator, fed, limits_of
from penstock.simulate.result import Simulation
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import AnyLimits

__all__ = ["Simulator", "simulate", "trace_of"]

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
    """Say what a limit would have done to a trace, event by event.

    Each decision is the one that a `Limiter` gives which is asked at that instant: the engine is
    the same, and only the clock is not real. Every event spends, as `Limiter.spend` does; that a
    limit only watches (`mode: shadow`) is left aside.

    Args:
        limits: A limit, a text such as `100/minute`, or limits with their overrides.
        times: A `Trace`, or anything with `times`, `ids` and `costs`; or the times themselves, as
            `Trace` takes them.
        ids: As for `Trace`; only beside times.
        costs: As for `Trace`; only beside times.
        name: Which of the limits; may be left out where there is one. Of a single limit what it is
            called, which only a phase per key asks for.
        sort: Whether to evaluator events by time that come in another order. The answers are in the
            order of the events as given.

    Raises:
        ValueError: Events that are not in the order of their times, without `sort`, or a trace
            that cannot be.
        UnknownLimit: No limit has this name.
        InvalidId: An id does not fit the limit's format.
        CostError: A cost that the limit can never allow; a note says where.

    >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).allowed.tolist()
    [True, True, False, True]
    """
    trace = trace_of(times, ids, costs)
    order = None
    if sort and not trace.is_sorted:
        order = np.argsort(trace.times, kind="stable")
    ordered = trace if order is None else trace.sorted()
    evaluator = Evaluator(limits_of(limits), name)
    told = evaluator.columns(ordered, ["allowed"])
    return Simulation(trace, told, evaluator=evaluator, ordered=ordered, order=order)


class Simulator:
    """One limit under a virtual clock, fed part by part: a log of any size, in little memory.

    The buckets live on from part to part, so the answers are those of all parts at once.

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
        self._core = _core.Simulator(limits_of(limits), name)
        self._number_of: dict[str, int] = {}
        self._table: Sequence[str] = ()
        self._numbers = np.empty(0, np.uint32)
        self.events = 0
        """How many events were judged."""
        self.denied = 0
        """How many of them were denied."""

    def feed(
        self,
        times: Any,
        ids: Any = None,
        costs: Any = None,
        *,
        columns: Sequence[str] = _ALL,
    ) -> Simulation:
        """Evaluator the next events, none of them earlier than those before.

        Args:
            times: As for `simulate`. Parts of a log that share a growing table of ids are
                quickest, as nothing of it is looked at twice.
            ids: As for `simulate`.
            costs: As for `simulate`.
            columns: Which of `allowed`, `remaining`, `retry_after_ns` and `reset_after_ns` are
                wanted; `allowed` always is.

        Raises:
            RuntimeError: An earlier part had an event that cannot be, and stopped midway.

        Otherwise raises as `simulate`.
        """
        for found in columns:
            if found not in _ALL:
                raise ValueError(f"columns must be of {', '.join(_ALL)}, found {found!r}")
        part = trace_of(times, ids, costs)
        codes = self._numbered(part)
        told = fed(self._core, part, codes, columns)
        self.events += len(part)
        self.denied += len(part) - int(np.count_nonzero(told["allowed"]))
        return Simulation(part, told)

    def _numbered(self, part: Trace) -> NDArray[np.uint32]:
        """Give the number of each event's client, whose ids are added where they are new."""
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


def trace_of(times: Any, ids: Any = None, costs: Any = None) -> Trace:
    """Give the trace that is given, or make one of times, ids and costs."""
    if not hasattr(times, "times"):
        return Trace(times, ids, costs)
    if ids is not None or costs is not None:
        raise TypeError("a trace has its own ids and costs: give them with times only")
    if isinstance(times, Trace):
        return times
    return Trace(times.times, getattr(times, "ids", None), getattr(times, "costs", None))
