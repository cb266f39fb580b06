"""What a limit would have done: the decisions as columns, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock import _core, display
from penstock.simulate.drawn import DrawnSimulation
from penstock.simulate.evaluator import NUMBERS
from penstock.simulate.level import Level, level_of
from penstock.simulate.table import Table, counted, library, shown
from penstock.simulate.times import span_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.simulate.evaluator import Evaluator
    from penstock.simulate.ids import AnyId
    from penstock.simulate.trace import Trace

__all__ = ["Bins", "Simulation", "Summary"]

_SECOND: Final = 1_000_000_000
_MOST_BINS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Summary:
    """What a simulation comes to.

    Attributes:
        events: How many there are.
        allowed: How many were allowed.
        denied: How many were denied.
        denied_share: The part of them that was denied, 0 to 1.
        clients: How many clients came.
        clients_denied: How many of them were denied at least once.
        worst_wait: The longest wait that a denied event was told, in seconds.
        largest_at_once: The most tokens admitted at one instant, of all clients together.
        largest_in_second: The most tokens admitted in any second, of all clients together.
        largest_in_minute: The same for any minute.
    """

    events: int
    allowed: int
    denied: int
    denied_share: float
    clients: int
    clients_denied: int
    worst_wait: float
    largest_at_once: int
    largest_in_second: int
    largest_in_minute: int

    def to_dict(self) -> dict[str, int | float]:
        """Give the numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        lines = ((name.replace("_", " "), shown(name, value)) for name, value in self._items())
        return "\n".join(f"{name:<18} {value}" for name, value in lines)

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), shown(name, value)) for name, value in self._items()]
        return display.facts_html("Summary", rows)

    def _items(self) -> list[tuple[str, int | float]]:
        return list(self.to_dict().items())


class Bins(NamedTuple):
    """Events by stretches of time of one length, from the first event's to the last's.

    Attributes:
        start_ns: When each begins.
        width_ns: How long each is.
        arrivals: Events.
        allowed: Those that were allowed.
        denied: Those that were denied.
    """

    start_ns: NDArray[np.int64]
    width_ns: int
    arrivals: NDArray[np.int64]
    allowed: NDArray[np.int64]
    denied: NDArray[np.int64]


class Simulation(DrawnSimulation):
    """One decision for each event of a trace, in its order.

    A column that was not asked for yet is computed when it is; until then the trace's arrays must
    be left alone.
    """

    def __init__(
        self,
        trace: Trace,
        told: dict[str, NDArray[Any]],
        *,
        evaluator: Evaluator | None = None,
        ordered: Trace | None = None,
        order: NDArray[np.intp] | None = None,
    ) -> None:
        """Hold the columns `told` of `ordered`, which is `trace` taken in this `order`."""
        self.trace = trace
        self._ordered = trace if ordered is None else ordered
        self._order = order
        self._told = told
        self._judge = evaluator

    @property
    def times(self) -> NDArray[np.int64]:
        """When, in nanoseconds since the clock's origin."""
        return self.trace.times

    @property
    def ids(self) -> NDArray[np.object_] | None:
        """The id of each event; None where all are one client's."""
        return self.trace.ids

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Whether each was allowed."""
        return self._column("allowed")

    @property
    def remaining(self) -> NDArray[np.int64]:
        """Tokens left after each; 2**63 - 1 where no limit applies."""
        return self._column("remaining")

    @property
    def retry_after_ns(self) -> NDArray[np.int64]:
        """Nanoseconds until the same cost could be allowed, if nothing else is spent."""
        return self._column("retry_after_ns")

    @property
    def reset_after_ns(self) -> NDArray[np.int64]:
        """Nanoseconds until the bucket is as never used, if nothing else is spent."""
        return self._column("reset_after_ns")

    @property
    def denied_share(self) -> float:
        """The part of the events that was denied, 0 to 1; 0 where there is none."""
        denied = len(self) - int(np.count_nonzero(self._by_time("allowed")))
        return denied / len(self) if denied else 0.0

    def _by_time(self, name: str) -> NDArray[Any]:
        """Give a column in the order in which the events were judged."""
        if name not in self._told:
            if self._judge is None:
                raise ValueError(
                    f"this part was judged without {name}; feed(..., columns=[{name!r}]) would do"
                )
            self._told[name] = self._judge.columns(self._ordered, [name])[name]
        return self._told[name]

    def _column(self, name: str) -> NDArray[Any]:
        column = self._by_time(name)
        if self._order is None:
            return column
        restored = np.empty_like(column)
        restored[self._order] = column
        return restored

    def _largest_within(self, width_ns: int) -> int:
        ordered = self._ordered
        times, costs = np.ascontiguousarray(ordered.times), ordered.costs
        allowed = self._by_time("allowed").view(np.uint8)
        costs = None if costs is None else np.ascontiguousarray(costs)
        return _core.largest_within(times, allowed, costs, width_ns)[0]

    def summary(self) -> Summary:
        """Give what it comes to.

        >>> from penstock.simulate import simulate
        >>> simulate("2/second", [0.0, 0.1, 0.2, 0.5]).summary().worst_wait
        0.3
        """
        denied = ~self._by_time("allowed")
        count = int(np.count_nonzero(denied))
        codes = self._ordered.codes
        clients, clients_denied = min(len(self), 1), min(count, 1)
        if codes is not None:
            known = len(self.trace.clients)
            clients = int(np.count_nonzero(np.bincount(codes, minlength=known)))
            clients_denied = int(np.count_nonzero(np.bincount(codes[denied], minlength=known)))
        wait = int(self._by_time("retry_after_ns")[denied].max()) if count else 0
        return Summary(
            events=len(self),
            allowed=len(self) - count,
            denied=count,
            denied_share=self.denied_share,
            clients=clients,
            clients_denied=clients_denied,
            worst_wait=wait / _SECOND,
            largest_at_once=self._largest_within(1),
            largest_in_second=self._largest_within(_SECOND),
            largest_in_minute=self._largest_within(60 * _SECOND),
        )

    def by_client(self) -> Table:
        """Give a row for each client that came, those denied most first.

        Waits are in seconds, the longest that a denied event was told.
        """
        clients = self.trace.clients
        codes = self._ordered.codes
        if codes is None:
            codes = np.zeros(len(self), np.uint32)
        denied = ~self._by_time("allowed")
        events = np.bincount(codes, minlength=len(clients))
        refused = np.bincount(codes[denied], minlength=len(clients))
        waits = np.zeros(len(clients), np.int64)
        np.maximum.at(waits, codes[denied], self._by_time("retry_after_ns")[denied])
        came = np.flatnonzero(events)
        came = came[np.lexsort((came, -events[came], -refused[came]))]
        return Table(
            "Clients",
            {
                "id": [clients[place] for place in came.tolist()],
                "events": events[came].tolist(),
                "allowed": (events - refused)[came].tolist(),
                "denied": refused[came].tolist(),
                "denied_share": (refused[came] / events[came]).tolist(),
                "worst_wait": (waits[came] / _SECOND).tolist(),
            },
        )

    def binned(self, width: Any) -> Bins:
        """Count events by stretches of time, which begin at multiples of their width.

        Args:
            width: How long each is: a text with units, seconds, or a `timedelta`.

        Raises:
            ValueError: There would be more than ten million of them.

        >>> from penstock.simulate import simulate
        >>> simulate("2/second", [0.0, 0.1, 0.2, 1.5]).binned("1s").denied.tolist()
        [1, 0]
        """
        width_ns = span_ns(width, "width")
        times = self._ordered.times
        if len(times) == 0:
            none = np.empty(0, np.int64)
            return Bins(none, width_ns, none, none, none)
        first, last = int(times[0]) // width_ns, int(times[-1]) // width_ns
        bins = last - first + 1
        if bins > _MOST_BINS:
            raise ValueError(
                f"a width of {width!r} would make {bins:,} bins, and {_MOST_BINS:,} are the most"
            )
        place = times // width_ns - first
        arrivals = np.bincount(place, minlength=bins)
        allowed = np.bincount(place[self._by_time("allowed")], minlength=bins)
        start = (np.arange(bins, dtype=np.int64) + first) * width_ns
        return Bins(start, width_ns, arrivals, allowed, arrivals - allowed)

    def level(self, id: AnyId | None = None, points: int = 1000) -> Level:
        """Give how full the bucket of one client was, over time.

        Args:
            id: Whose. None: the one client's, where there is one.
            points: How many instants to look at between the events, evenly spaced.

        Raises:
            KeyError: The trace has no such client.
            ValueError: There are several clients, and no id.
        """
        if self._judge is None:
            raise ValueError("the level is known of a whole trace; simulate() would do")
        return level_of(self._judge, self._ordered, id, points)

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Give all columns as arrays, by name; `id` and `cost` where the trace has them."""
        columns: dict[str, NDArray[Any]] = {"time_ns": self.times}
        if (ids := self.ids) is not None:
            columns["id"] = ids
        if self.trace.costs is not None:
            columns["cost"] = self.trace.costs
        return columns | {name: self._column(name) for name in ("allowed", *NUMBERS)}

    def to_pandas(self) -> Any:
        """Give a `pandas.DataFrame`, its ids as a categorical.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = library("pandas", "to_pandas()")
        columns: dict[str, Any] = self._columns_but_ids()
        if self.trace.codes is not None:
            columns["id"] = pandas.Categorical.from_codes(
                self.trace.codes, categories=list(self.trace.clients)
            )
        return pandas.DataFrame({name: columns[name] for name in self._names()})

    def to_polars(self) -> Any:
        """Give a `polars.DataFrame`.

        Raises:
            ImportError: Polars is not installed.
        """
        polars = library("polars", "to_polars()")
        columns: dict[str, Any] = self._columns_but_ids()
        if self.trace.codes is not None:
            table = polars.Series("id", list(self.trace.clients), dtype=polars.String)
            columns["id"] = table.gather(self.trace.codes)
        return polars.DataFrame({name: columns[name] for name in self._names()})

    def to_arrow(self) -> Any:
        """Give a `pyarrow.Table`, its ids as a dictionary.

        Raises:
            ImportError: PyArrow is not installed.
        """
        pyarrow = library("pyarrow", "to_arrow()")
        columns: dict[str, Any] = self._columns_but_ids()
        if self.trace.codes is not None:
            columns["id"] = pyarrow.DictionaryArray.from_arrays(
                pyarrow.array(self.trace.codes), pyarrow.array(list(self.trace.clients))
            )
        return pyarrow.table({name: columns[name] for name in self._names()})

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Offer all columns by the Arrow interface, which PyArrow then has to be there for."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _columns_but_ids(self) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {"time_ns": self.times}
        if self.trace.costs is not None:
            columns["cost"] = self.trace.costs
        return columns | {name: self._column(name) for name in ("allowed", *NUMBERS)}

    def _names(self) -> list[str]:
        present: dict[str, bool] = {
            "id": self.trace.codes is not None,
            "cost": self.trace.costs is not None,
        }
        return ["time_ns", *(name for name in present if present[name]), "allowed", *NUMBERS]

    def __len__(self) -> int:
        return len(self.trace)

    def __repr__(self) -> str:
        denied = shown("denied_share", self.denied_share)
        name = "" if self.trace.name is None else f" of {self.trace.called}"
        return f"<Simulation{name}: {counted(len(self), 'event')}, {denied} denied>"
