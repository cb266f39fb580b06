"""Traces: events with a time, a client and a cost."""

from __future__ import annotations

import datetime
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypedDict

import numpy as np

from penstock._display import format_span, pluralize, printable
from penstock._validation import name_value
from penstock.errors import CostNegative
from penstock.simulate.format import format_instant
from penstock.simulate.ids import EVERYONE, Codes, as_text, factorise
from penstock.simulate.log.reader import concat_chunks, read_log
from penstock.simulate.table import Table
from penstock.simulate.times import as_dates, as_numpy, parse_instant, parse_times, refuse_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from penstock.simulate.ids import AnyId
    from penstock.simulate.log.report import LogReport
    from penstock.simulate.log.source import LogPath

    Arrays: TypeAlias = tuple[
        NDArray[np.int64], NDArray[np.uint32] | None, NDArray[np.int64] | None,
        NDArray[np.int64] | None,
    ]  # fmt: skip


_MAX_NAME: Final = 100
# More files than these do not fit into a trace's name.
_MAX_FILES: Final = 3


class LogOptions(TypedDict, total=False):
    """The options of `Trace.from_log`, which are described at `read_log`."""

    format: str
    id: str | Iterable[str] | None
    cost: str | None
    duration: str | None
    duration_unit: str | None
    ended: bool
    time: str | None
    tz: str | datetime.tzinfo
    ipv6_prefix: int
    where: str | Iterable[str]
    max_bad: float
    trusted_proxies: str | Sequence[str]
    hops: int


class Trace:
    """Events in the order given, each with a time, a client id and a cost.

    Arrays of a suitable type are not copied: do not change them while the trace is used. Columns
    are paired by position, whatever index those of pandas have.

    Args:
        times: Integer nanoseconds, float seconds, datetime64 or datetimes, in any order.
        ids: The clients, one for each time: strings, numbers, addresses. None: all events are one
            client's, with the id `*`.
        costs: Tokens, one number for all events or one for each. None: 1 each.
        name: A name to show.
        unit: The unit of times that are numbers: `"s"`, `"ms"`, `"us"` or `"ns"`. None: integers
            are nanoseconds, floats seconds.
        durations: How long each request takes, in seconds or as timedeltas; its time is its start.
            None: not known.

    Attributes:
        name: The name to show.
        skipped: The lines that were left out of the log; None if the trace is not a whole log.

    Raises:
        TypeError: A column has the wrong type.
        ValueError: Columns differ in length, or a value is not valid; the message says which one,
            and where.

    >>> Trace([0.0, 0.5, 0.5], ids=["ada", "grace", "ada"])
    <Trace: 3 events of 2 clients, 0 s to 0.5 s>
    """

    __slots__ = (
        "_clients",
        "_codes",
        "_costs",
        "_durations",
        "_times",
        "name",
        "skipped",
    )

    skipped: LogReport | None

    def __init__(
        self,
        times: Any,
        ids: Any = None,
        costs: Any = None,
        name: str | None = None,
        *,
        unit: str | None = None,
        durations: Any = None,
    ) -> None:
        codes: NDArray[np.uint32] | None = None
        clients: Sequence[str] = (EVERYONE,)
        if ids is not None:
            codes, clients = ids if isinstance(ids, Codes) else factorise(ids)
        self._times = parse_times(times, unit)
        self._codes = codes
        self._clients = clients
        if codes is not None and len(codes) != len(self._times):
            raise ValueError(
                f"ids must be as long as times, found {len(codes):,} for {len(self._times):,}"
            )
        self._costs = _costs_of(costs, len(self._times))
        self._durations = _durations_of(durations, len(self._times))
        self.name = name
        self.skipped = None

    @classmethod
    def from_log(cls, path: LogPath, **options: Unpack[LogOptions]) -> LogTrace:
        r"""Read an access log of a server, a proxy or a load balancer, or JSON lines, and sort it.

        Args:
            path: A file, several files, a pattern such as `access.log*`, or `-` for standard input.
            **options: Options of `penstock.simulate.log.read_log`: `format`, `id`, `cost`,
                `duration`, `duration_unit`, `ended`, `time`, `tz`, `ipv6_prefix`, `where`,
                `trusted_proxies`, `hops`, `max_bad`.

        Returns:
            The trace; its `skipped` has the number of lines that were left out, and the first of
            them.

        Raises:
            LogError: A file, format or field does not exist, a file is damaged, or more than
                `max_bad` of the lines were left out.

        >>> from pathlib import Path
        >>> line = '192.0.2.1 - {} [21/Nov/2026:06:25:17 +0000] "GET / HTTP/1.1" 200 5\n'
        >>> count = Path("access.log").write_text(line.format("ada") * 3 + line.format("-"))
        >>> Trace.from_log("access.log", id="user").skipped
        <LogReport of access.log: 3 events of 4 lines (common), 1 had no id>
        """
        reader = read_log(path, window=None, **options)
        whole = concat_chunks(list(reader))
        files, table = reader.report.files, Codes(whole.codes, whole.clients)
        name = ", ".join(files[:_MAX_FILES]) + (", …" if len(files) > _MAX_FILES else "")
        ids = table if "id" in reader.report.fields else None
        trace = LogTrace(whole.times, ids, whole.costs, name, unit="ns", durations=whole.durations)
        trace = trace.sorted()
        trace.skipped = reader.report
        return trace

    @property
    def times(self) -> NDArray[np.int64]:
        """Event times, in nanoseconds since the clock's origin."""
        return self._times

    @property
    def codes(self) -> NDArray[np.uint32] | None:
        """The index of each event's id in `clients`; None if all events are one client's."""
        return self._codes

    @property
    def client_indices(self) -> NDArray[np.uint32]:
        """The index of each event's id in `clients`, also if all events are one client's."""
        return np.zeros(len(self), np.uint32) if self._codes is None else self._codes

    @property
    def clients(self) -> Sequence[str]:
        """The ids, each once. A part of a trace keeps the table of the whole trace."""
        return self._clients

    @property
    def ids(self) -> NDArray[np.object_] | None:
        """The id of each event, as a string; None if all events are one client's."""
        if self._codes is None:
            return None
        table = np.empty(len(self._clients), np.object_)
        table[:] = self._clients
        ids: NDArray[np.object_] = table[self._codes]
        return ids

    @property
    def costs(self) -> NDArray[np.int64] | None:
        """The cost of each event in tokens; None if it is 1 each."""
        return self._costs

    @property
    def durations(self) -> NDArray[np.timedelta64] | None:
        """How long each request takes; None if not known."""
        return self._durations

    @property
    def arrays(self) -> Arrays:
        """The times, codes, costs and durations, without gaps as the core needs them."""
        durations = self._durations
        return (
            np.ascontiguousarray(self._times),
            None if self._codes is None else np.ascontiguousarray(self._codes),
            None if self._costs is None else np.ascontiguousarray(self._costs),
            None if durations is None else np.ascontiguousarray(durations).view(np.int64),
        )

    @property
    def source(self) -> str:
        """The name, or `a trace`."""
        return self.name or "a trace"

    @property
    def printable_name(self) -> str:
        """The name for terminals: shortened, and without control characters."""
        return printable(self.source, _MAX_NAME)

    @property
    def is_sorted(self) -> bool:
        """Whether no event is earlier than the one before it."""
        return bool(np.all(self._times[1:] >= self._times[:-1]))

    @property
    def duration_ns(self) -> int:
        """From the first event to the last, in nanoseconds."""
        return int(self._times.max() - self._times.min()) if len(self) else 0

    def sorted(self) -> Self:
        """Return the same events sorted by time; events of one instant keep their order."""
        if self.is_sorted:
            return self
        return self.take(np.argsort(self._times, kind="stable"))

    def between(self, start: Any = None, end: Any = None) -> Trace:
        """Return the events from `start` on and before `end`.

        Args:
            start: Seconds since the clock's origin, a datetime, or a string such as
                `2026-11-21T12:00`. None: from the first event.
            end: As `start`. None: to the last event.

        >>> len(Trace([0.0, 0.5, 1.0, 1.5]).between(0.5, 1.5))
        2
        """
        kept = np.ones(len(self), np.bool_)
        if start is not None:
            kept &= self._times >= parse_instant(start, "start")
        if end is not None:
            kept &= self._times < parse_instant(end, "end")
        return self[kept]

    def of(self, id: AnyId) -> Trace:
        """Return the events of one client, whose id has any spelling that `Trace` takes.

        Raises:
            KeyError: The trace has no such client.
        """
        id = as_text(id)
        if self._codes is None:
            if id != EVERYONE:
                raise KeyError(
                    f"the trace has no ids; its only client is {EVERYONE!r}, found {id!r}"
                )
            return self
        try:
            code = self._clients.index(id)
        except ValueError:
            raise KeyError(f"the trace has no client {id!r}") from None
        return self.take(np.flatnonzero(self._codes == code))

    def take(self, indices: Any) -> Self:
        """Return the events at some indices, in their order; a slice copies nothing."""
        columns = (self._times, self._codes, self._costs, self._durations)
        taken = [None if column is None else column[indices] for column in columns]
        return self._with(self._clients, *taken)

    def head(self, events: int = 5) -> Table:
        """Return a table of the first events.

        >>> Trace([0.0, 0.5], ids=["ada", "grace"], costs=[1, 2]).head()
        First events
        time   client  cost
        0 s       ada     1
        0.5 s   grace     2
        """
        first = self[:events]
        columns = {name: each.tolist() for name, each in first.columns(first.ids).items()}
        columns["time"] = [format_instant(time) for time in first.times.tolist()]
        if first.durations is not None:
            columns["duration"] = [format_span(int(each)) for each in first.durations.view("i8")]
        return Table("First events", columns)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with dates, and the ids as a categorical.

        Times that are too early to be dates are lengths of time since the clock's origin.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = import_module("pandas")
        ids = None
        if self._codes is not None:
            ids = pandas.Categorical.from_codes(self._codes, categories=list(self._clients))
        return pandas.DataFrame(self.columns(ids))

    def columns(self, ids: Any) -> dict[str, Any]:
        """Return all columns by name, with these ids in place of the trace's."""
        columns = {
            "time": as_dates(self._times),
            "id": ids,
            "cost": self._costs,
            "duration": self._durations,
        }
        return {name: column for name, column in columns.items() if column is not None}

    def with_codes(self, codes: Codes) -> Trace:
        """Return the same events with other ids."""
        return self._with(codes.clients, self._times, codes.codes, self._costs, self._durations)

    def _with(self, clients: Sequence[str], times: Any, codes: Any, *rest: Any) -> Self:
        """Return a trace of these columns, which are valid, with the same name."""
        trace = copy(self)
        trace._clients, trace._times, trace._codes = clients, times, codes  # noqa: SLF001  our own
        trace._costs, trace._durations = rest  # noqa: SLF001  our own
        trace.skipped = None
        return trace

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, selected: Any) -> Trace:
        """Return the events of a slice or of a mask, which has a bool for each event."""
        if isinstance(selected, slice):
            return self.take(selected)
        mask = as_numpy(selected, "a mask")
        if mask.dtype.kind != "b" or mask.shape != (len(self),):
            raise TypeError(
                f"a trace takes slices such as trace[:1000], or a mask of {len(self):,} bools, "
                f"found {selected!r}; use trace.between(start, end) to select by time"
            )
        return self.take(np.flatnonzero(mask))

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.printable_name}"
        return f"<Trace{name}: {self._description()}>"

    def _description(self) -> str:
        events = pluralize(len(self), "event")
        if self._codes is not None:
            events += f" of {pluralize(len(np.unique(self._codes)), 'client')}"
        if len(self) == 0:
            return events
        first, last = int(self._times.min()), int(self._times.max())
        text = f"{events}, {format_instant(first)} to {format_instant(last)}"
        if last - first >= 60 * 10**9:
            text += f" ({format_span(last - first)})"
        return text


class LogTrace(Trace):
    """The events of a log.

    Attributes:
        skipped: The lines that were left out of the log.
    """

    __slots__ = ()

    skipped: LogReport


def _whole_numbers(costs: NDArray[Any]) -> NDArray[Any]:
    """Convert whole floats, and objects that are integers, to integers; pandas makes both."""
    if costs.dtype.kind == "O":
        for position, cost in enumerate(costs.flat):
            is_bool = isinstance(cost, (bool, np.bool_))
            if is_bool or not isinstance(cost, (int, float, np.integer, np.floating)):
                found = name_value(cost)
                raise TypeError(f"costs must be integers, found {found} at position {position}")
        if not any(isinstance(cost, (float, np.floating)) for cost in costs.flat):
            return costs.astype(np.int64)
        costs = costs.astype(np.float64)
    if costs.dtype.kind == "f":
        faults = np.atleast_1d((costs != np.floor(costs)) | ~(np.abs(costs) < 2.0**53))
        if faults.any():
            position = int(faults.argmax())
            found = np.atleast_1d(costs)[position]
            raise TypeError(f"costs must be integers, found {found} at position {position}")
        costs = costs.astype(np.int64)
    return costs


def _costs_of(value: Any, events: int) -> NDArray[np.int64] | None:
    if value is None:
        return None
    costs = _whole_numbers(as_numpy(value, "costs"))
    if costs.ndim == 0:
        costs = np.broadcast_to(costs, events)
    if costs.ndim != 1 or (costs.dtype.kind not in "iu" and len(costs)):
        raise TypeError(f"costs must be integers, found an array of {costs.dtype}")
    if len(costs) != events:
        raise ValueError(f"costs must be as long as times, found {len(costs):,} for {events:,}")
    faults = costs < 0
    if faults.any():
        position = int(faults.argmax())
        error = CostNegative(
            f"cost must be at least 0, found {costs[position]} at position {position}"
        )
        error.cost = int(costs[position])
        raise error
    if costs.dtype.kind == "u":
        refuse_first(costs > np.uint64(2**63 - 1), costs, "costs must be below 2**63")
    return np.ascontiguousarray(costs, np.int64)


def _durations_of(value: Any, events: int) -> NDArray[np.timedelta64] | None:
    if value is None:
        return None
    column = as_numpy(value, "durations")
    if column.dtype.kind == "O" and all(isinstance(each, datetime.timedelta) for each in column):
        column = column.astype("m8[ns]")
    if column.dtype.kind not in "mif" or column.ndim != 1:
        raise TypeError(
            f"durations must be a column of seconds or timedeltas, found an array of {column.dtype}"
        )
    if len(column) != events:
        raise ValueError(
            f"durations must be as long as times, found {len(column):,} for {events:,}"
        )
    is_span = column.dtype.kind == "m"
    durations = column if is_span else np.round(column * 1e9)
    # In seconds, to which NumPy converts any length of time that it has without wrapping around.
    seconds = column.astype("m8[s]").astype(np.int64) if is_span else column
    is_valid = (column >= column.dtype.type(0)) & (seconds < 2**62 // 10**9)
    refuse_first(~is_valid, column, "durations must be from 0 to 146 years")
    return np.ascontiguousarray(durations).astype("m8[ns]")
