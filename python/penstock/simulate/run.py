"""Simulations of a whole trace at once, or part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock import _core
from penstock.simulate.evaluator import NUMBERS, Evaluator, evaluate, parse_limits
from penstock.simulate.ids import Codes
from penstock.simulate.limit_result import LimitResult
from penstock.simulate.log.reader import Chunk
from penstock.simulate.result import Simulation
from penstock.simulate.totals import Accumulator
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.table import Table
    from penstock.simulate.totals import Summary


_ALL: Final = ("allowed", *NUMBERS)
# The core's number of a client whose id is not valid.
_INVALID: Final = 2**32 - 1


def simulate(
    limits: AnyLimits,
    times: Any,
    ids: Any = None,
    costs: Any = None,
    *,
    name: str | None = None,
    sort: bool = False,
    unit: str | None = None,
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
        unit: As for `Trace`; only with times.

    Raises:
        ValueError: The events are not sorted by time and `sort` is False, or the trace is not
            valid.
        UnknownLimit: No limit has this name.
        InvalidId: An id does not match the limit's id format.
        CostError: The limit can never allow a cost; a note says where it is.

    >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).allowed.tolist()
    [True, True, False, True]
    """
    trace = as_trace(times, ids, costs, unit)
    order = None
    if sort and not trace.is_sorted:
        order = np.argsort(trace.times, kind="stable")
    ordered = trace if order is None else trace.take(order)
    evaluator = Evaluator(parse_limits(limits), name)
    columns = evaluator.columns(ordered, ["allowed"])
    return Simulation(trace, columns, evaluator=evaluator, ordered=ordered, order=order)


class Simulator:
    """A limit under a virtual clock that takes events part by part: any amount, in little memory.

    The buckets are kept from part to part, so the decisions are those of all parts at once.

    Attributes:
        events: Number of events so far.
        denied: Number of denied events so far.
        invalid: Number of events that were left out because their id is not valid.
        first_invalid: The first such id.

    Args:
        limits: As for `simulate`.
        name: As for `simulate`.
        skip_invalid: Whether events whose id does not match the limit's id format are left out
            and counted, instead of being an error.

    >>> simulator = Simulator("2/minute")
    >>> simulator.feed(Trace([0.0, 1.0], ids=["ada", "ada"])).allowed.tolist()
    [True, True]
    >>> simulator.feed(Trace([2.0, 3.0], ids=["grace", "ada"])).allowed.tolist()
    [True, False]
    """

    def __init__(
        self, limits: AnyLimits, name: str | None = None, *, skip_invalid: bool = False
    ) -> None:
        self._evaluator = Evaluator(parse_limits(limits), name)
        self._core = _core.Simulator(self._evaluator.limits, name)
        self._skip_invalid = skip_invalid
        self._table: Sequence[str] = ()
        # The core's number and bucket of each client in the table.
        self._numbers = np.empty(0, np.uint32)
        self._buckets: NDArray[np.uint32] | None = None
        self._totals = Accumulator()
        self.events = 0
        self.denied = 0
        self.invalid = 0
        self.first_invalid: str | None = None

    def feed(
        self,
        times: Any,
        ids: Any = None,
        costs: Any = None,
        *,
        columns: Sequence[str] = _ALL,
        unit: str | None = None,
    ) -> Simulation:
        """Evaluate the next events, none of them earlier than the events before.

        Args:
            times: As for `simulate`, or a chunk of `read_log`. Chunks are fastest: they share a
                table of ids, and each id is looked up once.
            ids: As for `simulate`.
            costs: As for `simulate`.
            columns: The columns to compute, of `allowed`, `remaining`, `retry_after_ns` and
                `reset_after_ns`; `allowed` is always included.
            unit: As for `simulate`.

        Raises:
            RuntimeError: An earlier part stopped at an invalid event.

        Otherwise raises as `simulate`.
        """
        for column in columns:
            if column not in _ALL:
                raise ValueError(f"columns must be among {', '.join(_ALL)}, found {column!r}")
        part = as_trace(times, ids, costs, unit)
        numbers = self._numbered(part)
        if self._skip_invalid and (numbers == _INVALID).any():
            part, numbers = self._without_invalid(part, numbers)
        result = evaluate(self._core, part, numbers, {*columns, "retry_after_ns"})
        by_bucket = numbers if self._buckets is None else self._buckets[numbers]
        buckets = Trace(part.times, Codes(by_bucket, _BucketIds(self._core)), part.costs, unit="ns")
        self._totals.add(buckets, result["allowed"], result["retry_after_ns"])
        self.events += len(part)
        self.denied += len(part) - int(np.count_nonzero(result["allowed"]))
        kept = {name: column for name, column in result.items() if name in {"allowed", *columns}}
        return Simulation(part, kept, buckets=buckets)

    def _numbered(self, part: Trace) -> NDArray[np.uint32]:
        """Return the core's number of each event's client; add clients that are new."""
        if part.clients is not self._table:
            self._table = part.clients
            self._numbers = np.empty(0, np.uint32)
        if len(part.clients) > len(self._numbers):
            first = self._core.clients
            ids = list(part.clients[len(self._numbers) :])
            added = np.asarray(self._core.number(ids, skip_invalid=self._skip_invalid))
            self._numbers = np.concatenate([self._numbers, added])
            buckets = self._core.buckets(first)
            if buckets is not None:
                known = [] if self._buckets is None else [self._buckets]
                self._buckets = np.concatenate([*known, np.asarray(buckets)])
        if part.codes is None:
            return np.full(len(part), self._numbers[0], np.uint32)
        return self._numbers[part.codes]

    def _without_invalid(
        self, part: Trace, numbers: NDArray[np.uint32]
    ) -> tuple[Trace, NDArray[np.uint32]]:
        is_valid = numbers != _INVALID
        self.invalid += len(part) - int(np.count_nonzero(is_valid))
        if self.first_invalid is None:
            index = 0 if part.codes is None else part.codes[int(is_valid.argmin())]
            self.first_invalid = part.clients[index]
        return part[is_valid], numbers[is_valid]

    def summary(self) -> Summary:
        """Return the totals so far."""
        return self._totals.summary()

    def by_client(self) -> Table:
        """Return a row for each client so far, most denied events first."""
        return self._totals.by_client()

    def limit_result(self, title: str = "") -> LimitResult:
        """Return what reports show of the events so far, with the label of this limit."""
        return LimitResult(
            title=title,
            limit=self._evaluator.describe(),
            admits=self._evaluator.describe_admitted(),
            overview=self._totals.overview(),
        )

    def report(self, path: str | os.PathLike[str], *, source: str = "a trace") -> Path:
        """Write a self-contained HTML page about the events so far.

        Args:
            path: The file, such as `out.html`.
            source: The source of the events, to show.

        Returns:
            The file.

        Raises:
            ImportError: Matplotlib is not installed.
            OSError: The file cannot be written.
        """
        from penstock.simulate.report import page  # noqa: PLC0415  needs Matplotlib

        return page.Report(results=[self.limit_result()], source=source).write(path)

    def __repr__(self) -> str:
        return f"<Simulator {self._core.name}: {self.events:,} events, {self.denied:,} denied>"


class _BucketIds(Sequence[str]):
    """The ids of a simulator's buckets, as the table of a trace."""

    def __init__(self, core: _core.Simulator) -> None:
        self._core = core
        self._length = core.clients

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._core.bucket_id(int(index))


def as_trace(times: Any, ids: Any = None, costs: Any = None, unit: str | None = None) -> Trace:
    """Return `times` as a trace, with ids and costs if it is not one already."""
    if isinstance(times, Chunk | Trace) or _column(times, "times") is not None:
        if ids is not None or costs is not None:
            raise TypeError(
                "a trace has its own ids and costs; pass ids= and costs= only with times"
            )
        if isinstance(times, Trace):
            return times
        if isinstance(times, Chunk):
            # The reader made the codes: nothing of its growing table is checked again.
            codes = Codes(times.codes, times.clients)
            return Trace(times.times, codes, times.costs, unit="ns")
        columns = (_column(times, name) for name in ("times", "ids", "costs"))
        return Trace(*columns, unit=unit)
    return Trace(times, ids, costs, unit=unit)


def _column(frame: Any, name: str) -> Any:
    """Return a column of a data frame, or an attribute; None if there is neither."""
    names = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    if names is not None and name in names:
        return frame[name]
    return getattr(frame, name, None)
