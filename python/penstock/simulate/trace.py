"""What happened: who asked when, and for how much."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from penstock.errors import CostNegative
from penstock.simulate.arrow import as_numpy
from penstock.simulate.ids import Codes, as_text, factorise
from penstock.simulate.times import instant, show_instant, show_span, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from penstock.simulate.ids import AnyId
    from penstock.simulate.log.load import LogOptions, LogTrace
    from penstock.simulate.log.source import LogPath

__all__ = ["EVERYONE", "Trace"]

EVERYONE: Final = "*"
"""The id of all events of a trace without ids."""
_LONGEST_NAME: Final = 100


class Trace:
    """Events in the order given: their times, whose they are, and what they cost.

    The arrays are taken as they are where their types allow it, and not copied: leave them alone
    while the trace is used.

    Args:
        times: Whole nanoseconds, float seconds, datetime64 or datetimes, in any order.
        ids: Who asked, one for each time: texts, numbers, addresses. None: all events are one
            client's, called `*`.
        costs: Tokens, one number for all or one for each time. None: 1 each.
        name: What people call it.

    Raises:
        TypeError: A column of the wrong kind.
        ValueError: Columns of different lengths, or a value that cannot be; the message says which,
            and where.

    >>> Trace([0.0, 0.5, 0.5], ids=["ada", "grace", "ada"])
    <Trace: 3 events of 2 clients, 0 s to 0.5 s>
    """

    __slots__ = ("_clients", "_codes", "_costs", "_times", "name")

    def __init__(
        self, times: Any, ids: Any = None, costs: Any = None, name: str | None = None
    ) -> None:
        codes: NDArray[np.uint32] | None = None
        clients: Sequence[str] = (EVERYONE,)
        if ids is not None:
            codes, clients = ids if isinstance(ids, Codes) else factorise(ids)
        self._times = times_of(times)
        self._codes = codes
        self._clients = clients
        if codes is not None and len(codes) != len(self._times):
            raise ValueError(
                f"ids must be as many as times, found {len(codes):,} for {len(self._times):,}"
            )
        self._costs = _costs_of(costs, len(self._times))
        self.name = name

    @classmethod
    def from_codes(
        cls,
        times: Any,
        codes: Any,
        clients: Sequence[str],
        costs: Any = None,
        name: str | None = None,
    ) -> Self:
        """Make a trace whose ids are places in a table, as a reader of logs has them.

        Args:
            times: As for `Trace`.
            codes: For each event the place of its id in `clients`, whole numbers.
            clients: The ids, each once. Kept, and not copied: it may be one that grows.
            costs: As for `Trace`.
            name: What people call it.

        Raises:
            ValueError: As for `Trace`, a place beyond the table, or an id twice in it.

        >>> Trace.from_codes([0, 10, 20], [0, 1, 0], ["ada", "grace"]).ids.tolist()
        ['ada', 'grace', 'ada']
        """
        if len(set(clients)) < len(clients):
            twice = Counter(clients).most_common(1)[0][0]
            raise ValueError(f"clients must have each id once, found {twice!r} twice")
        return cls(times, Codes(_codes_of(codes, len(clients)), clients), costs, name)

    @classmethod
    def from_log(cls, path: LogPath, **options: Unpack[LogOptions]) -> LogTrace:
        """Read an access log of nginx or Apache, JSON lines, CSV or Parquet, and sort it.

        Args:
            path: A file, several, a pattern such as `access.log*`, or `-` for standard input.
            **options: Those of `penstock.simulate.log.read_log`: `format`, `id`, `cost`, `time`,
                `time_unit`, `tz`, `ipv6_prefix`, `max_bad`, `progress`.

        Returns:
            The trace; its `skipped` says what was left out of the log, and shows the first lines
            that did not parse.

        Raises:
            LogError: No such file, format or field, a damaged file, or more than `max_bad` of the
                lines left out.

        >>> from penstock.simulate.log import write_access_log
        >>> trace = Trace.from_log(write_access_log("access.log", events=1_000), id="user_agent")
        >>> len(trace), str(trace.skipped)
        (902, '902 events of 1,000 lines (combined), 98 did not say who')
        """
        # Here, since the reader of logs makes traces.
        from penstock.simulate.log.load import load_log  # noqa: PLC0415

        return load_log(path, **options)

    @property
    def times(self) -> NDArray[np.int64]:
        """When, in nanoseconds since the clock's origin."""
        return self._times

    @property
    def codes(self) -> NDArray[np.uint32] | None:
        """For each event the place of its id in `clients`; None where all are one client's."""
        return self._codes

    @property
    def clients(self) -> Sequence[str]:
        """The ids, each once. A part of a trace keeps the table of the whole."""
        return self._clients

    @property
    def ids(self) -> NDArray[np.object_] | None:
        """The id of each event, as text; None where all are one client's."""
        if self._codes is None:
            return None
        table = np.empty(len(self._clients), np.object_)
        table[:] = self._clients
        ids: NDArray[np.object_] = table[self._codes]
        return ids

    @property
    def costs(self) -> NDArray[np.int64] | None:
        """Tokens that each event asks for; None where it is 1 each."""
        return self._costs

    @property
    def called(self) -> str:
        """The name as it is shown: none too long, and nothing that a terminal obeys."""
        name = "a trace" if self.name is None else self.name
        cut = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)

    @property
    def is_sorted(self) -> bool:
        """Whether no event is earlier than the one before it."""
        return bool(np.all(self._times[1:] >= self._times[:-1]))

    @property
    def duration_ns(self) -> int:
        """From the first event to the last, in nanoseconds."""
        return int(self._times.max() - self._times.min()) if len(self) else 0

    def sorted(self) -> Trace:
        """Give the same events by time; those of one instant keep their order."""
        if self.is_sorted:
            return self
        return self._taken(np.argsort(self._times, kind="stable"))

    def between(self, start: Any = None, end: Any = None) -> Trace:
        """Give the events from `start` on and before `end`.

        Args:
            start: Seconds since the clock's origin, a datetime, or a text such as
                `2026-11-21T12:00`. None: from the first on.
            end: As `start`. None: to the last.

        >>> len(Trace([0.0, 0.5, 1.0, 1.5]).between(0.5, 1.5))
        2
        """
        kept = np.ones(len(self), np.bool_)
        if start is not None:
            kept &= self._times >= instant(start, "start")
        if end is not None:
            kept &= self._times < instant(end, "end")
        if self.is_sorted:
            # Nothing needs to be copied.
            first = int(kept.argmax()) if kept.any() else 0
            return self[first : first + int(np.count_nonzero(kept))]
        return self._taken(np.flatnonzero(kept))

    def of(self, id: AnyId) -> Trace:
        """Give the events of one client, whose id may be spelled as for `Trace`.

        Raises:
            KeyError: The trace has no such client.
        """
        id = as_text(id)
        if self._codes is None:
            if id != EVERYONE:
                raise KeyError(
                    f"the trace has no ids: its one client is {EVERYONE!r}, found {id!r}"
                )
            return self
        try:
            code = self._clients.index(id)
        except ValueError:
            raise KeyError(f"the trace has no client {id!r}") from None
        return self._taken(np.flatnonzero(self._codes == code))

    def _taken(self, places: Any) -> Trace:
        codes = None if self._codes is None else Codes(self._codes[places], self._clients)
        costs = None if self._costs is None else self._costs[places]
        return Trace(self._times[places], codes, costs, self.name)

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, places: slice) -> Trace:
        if not isinstance(places, slice):
            raise TypeError(
                f"a trace is cut by a slice of places, as in trace[:1000], found {places!r}; "
                "trace.between(start, end) cuts by time"
            )
        return self._taken(places)

    def __repr__(self) -> str:
        return f"<Trace{'' if self.name is None else ' ' + self.called}: {self._in_words()}>"

    def _repr_html_(self) -> str:
        name = "Trace" if self.name is None else f"Trace {self.called}"
        return f"<p><strong>{escape(name)}</strong>: {escape(self._in_words())}</p>"

    def _in_words(self) -> str:
        events = f"{len(self):,} event{'' if len(self) == 1 else 's'}"
        if self._codes is not None:
            clients = len(np.unique(self._codes))
            events += f" of {clients:,} client{'' if clients == 1 else 's'}"
        if len(self) == 0:
            return events
        first, last = int(self._times.min()), int(self._times.max())
        when = f"{events}, {show_instant(first)} to {show_instant(last)}"
        if last - first >= 60 * 10**9:
            when += f" ({show_span(last - first)})"
        return when


def _codes_of(given: Any, clients: int) -> NDArray[np.uint32]:
    codes = as_numpy(given, "codes")
    if codes.ndim != 1 or (codes.dtype.kind not in "iu" and len(codes)):
        raise TypeError(f"codes must be a column of whole numbers, found an array of {codes.dtype}")
    faults = (codes < 0) | (codes >= clients)
    if faults.any():
        position = int(faults.argmax())
        raise ValueError(
            f"codes must be places in a table of {clients:,} clients, "
            f"found {codes[position]} at position {position}"
        )
    return codes.astype(np.uint32, copy=False)


def _costs_of(given: Any, events: int) -> NDArray[np.int64] | None:
    if given is None:
        return None
    costs = as_numpy(given, "costs")
    if costs.ndim == 0:
        costs = np.broadcast_to(costs, events)
    if costs.ndim != 1 or (costs.dtype.kind not in "iu" and len(costs)):
        raise TypeError(f"costs must be whole numbers, found an array of {costs.dtype}")
    if len(costs) != events:
        raise ValueError(f"costs must be as many as times, found {len(costs):,} for {events:,}")
    faults = costs < 0
    if faults.any():
        position = int(faults.argmax())
        error = CostNegative(
            f"cost must be at least 0, found {costs[position]} at position {position}"
        )
        error.cost = int(costs[position])
        raise error
    if costs.dtype.kind == "u" and len(costs) and costs.max() > np.uint64(2**63 - 1):
        position = int(costs.argmax())
        raise ValueError(
            f"costs must be below 2**63, found {costs[position]} at position {position}"
        )
    return np.ascontiguousarray(costs, np.int64)
