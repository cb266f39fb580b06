"""Simulations of a whole trace at once, or part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._display import pluralize
from penstock.simulate.evaluator import INVALID, Evaluator, LimitFeed, parse_limits
from penstock.simulate.ids import Codes
from penstock.simulate.log.reader import Chunk
from penstock.simulate.result import Simulation
from penstock.simulate.totals import WithTotals
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock import _core
    from penstock.simulate.evaluator import AnyLimits


def simulate(
    limits: AnyLimits,
    times: Any,
    ids: Any = None,
    costs: Any = None,
    *,
    name: str | None = None,
    unit: str | None = None,
    durations: Any = None,
) -> Simulation:
    """Evaluate a limit over a trace, event by event.

    Each decision is identical to the one of a `Limiter` at that instant: the engine is the same,
    only the clock is virtual. Every event spends, as `Limiter.spend` does; shadow mode is ignored.

    Args:
        limits: A limit, a rate string such as `100/minute`, or limits with their overrides.
        times: A `Trace`, or times as `Trace` takes them.
        ids: As for `Trace`; only with times.
        costs: As for `Trace`; only with times.
        name: The name of the limit; optional if there is only one. A single limit needs a name
            only for a phase per key.
        unit: As for `Trace`; only with times.
        durations: As for `Trace`; only with times. The totals then have the most requests that were
            in flight at once; denied requests are not in flight.

    Raises:
        ValueError: The events are not sorted by time, as `Trace.sorted` returns them, or the trace
            is not valid.
        UnknownLimit: No limit has this name.
        InvalidId: An id does not match the limit's id format.
        CostError: The limit can never allow a cost; a note says where it is.

    >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).allowed.tolist()
    [True, True, False, True]
    """
    trace = as_trace(times, ids, costs, unit, durations)
    return Simulation(trace, Evaluator(parse_limits(limits), name))


class Simulator(WithTotals):
    """A limit under a virtual clock that takes events part by part: any amount, in little memory.

    The buckets are kept from part to part, so the decisions are those of all parts at once.

    Attributes:
        invalid: Number of events that were left out because their id is not valid.
        first_invalid: The first such id.

    Args:
        limits: As for `simulate`.
        name: As for `simulate`.
        skip_invalid: Whether events whose id does not match the limit's id format are left out
            and counted, instead of being an error.
        denies_excess: Whether events that cost more than their limit ever admits are denied,
            instead of being an error.

    >>> simulator = Simulator("2/minute")
    >>> simulator.feed(Trace([0.0, 1.0], ids=["ada", "ada"])).tolist()
    [True, True]
    >>> simulator.feed(Trace([2.0, 3.0], ids=["grace", "ada"])).tolist()
    [True, False]
    >>> simulator.summary().denied
    1
    """

    def __init__(
        self,
        limits: AnyLimits,
        name: str | None = None,
        *,
        skip_invalid: bool = False,
        denies_excess: bool = False,
    ) -> None:
        self.evaluator = Evaluator(parse_limits(limits), name)
        self._feed = LimitFeed(
            self.evaluator, skip_invalid=skip_invalid, denies_excess=denies_excess
        )
        self.invalid = 0
        self.first_invalid: str | None = None

    @property
    def excess(self) -> int:
        """Number of events that cost more than their limit ever admits."""
        return int(self._counted().totals()["excess"])

    def feed(self, events: Any) -> NDArray[np.bool_]:
        """Evaluate the next events; return whether each is allowed, without those left out.

        Args:
            events: Events as `times` of `simulate`, none of them earlier than those before. Chunks
                of `read_log` are fastest: they share a table of ids, and each id is looked up once.

        Raises:
            RuntimeError: An earlier part stopped at an invalid event.

        Otherwise raises as `simulate`.
        """
        part = as_trace(events)
        arrays = self._feed.arrays(part)
        if arrays[1] is not None and (is_invalid := arrays[1] == INVALID).any():
            if self.first_invalid is None:
                self.first_invalid = part.clients[part.client_indices[int(is_invalid.argmax())]]
            self.invalid += int(np.count_nonzero(is_invalid))
            arrays = self._feed.arrays(part[~is_invalid])
        allowed = np.empty(len(arrays[0]), np.bool_)
        self._feed.core.count(*arrays, allowed.view(np.uint8))
        return allowed

    def _counted(self) -> _core.Simulator:
        return self._feed.core

    def __repr__(self) -> str:
        events = pluralize(self.summary().events, "event")
        return f"<Simulator: {events}, {self.summary().denied:,} denied>"


def as_trace(
    times: Any, ids: Any = None, costs: Any = None, unit: str | None = None, durations: Any = None
) -> Trace:
    """Return `times` as a trace, with ids and costs if it is not one already."""
    if not isinstance(times, Chunk | Trace):
        return Trace(times, ids, costs, unit=unit, durations=durations)
    if ids is not None or costs is not None or durations is not None:
        raise TypeError(
            "a trace has its own ids, costs and durations; pass ids=, costs= and durations= "
            "only with times"
        )
    if isinstance(times, Trace):
        return times
    # The reader made the codes: nothing of its growing table is checked again.
    codes = Codes(times.codes, times.clients)
    return Trace(times.times, codes, times.costs, unit="ns", durations=times.durations)
