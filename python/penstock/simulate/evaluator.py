"""A limit that can be evaluated over a whole trace, any number of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock import _core
from penstock._core import Limit, Limits
from penstock._display import UNNAMED
from penstock.errors import InvalidId, LimitError
from penstock.messages import describe_limit, explain_limit
from penstock.simulate.ids import Codes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.simulate.trace import Trace


NUMBERS: Final = ("remaining", "retry_after_ns", "reset_after_ns")
"""The columns of a simulation, except `allowed`."""

PART: Final = 1 << 17
"""Events that are evaluated together for totals only: their columns fit into the cache."""

AnyLimits: TypeAlias = "Limit | Limits | str | Mapping[str, Limit | str]"


@dataclass(frozen=True, slots=True)
class Evaluator:
    """One limit, on its own or by its name.

    Attributes:
        limits: A limit, or limits by name.
        name: The limit's name; may be None if there is only one.
    """

    limits: Limit | Limits | Mapping[str, Limit | str]
    name: str | None

    def columns(self, trace: Trace, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Evaluate a sorted trace and return these columns."""
        core = self._simulator(trace)
        return evaluate(core.feed, trace, trace.codes, columns)

    def limit_of(self, trace: Trace, client: int) -> Limit:
        """Return the limit of a client, given by its index in `trace.clients`."""
        return self._simulator(trace).limit_of(client)

    def by_bucket(self, trace: Trace) -> Trace:
        """Return the trace with buckets in place of clients, as several ids may share one bucket.

        The ids are in their canonical spelling, such as one address of a network.
        """
        if _core.Simulator(self.limits, self.name).buckets(0) is None:
            return trace
        return _with_buckets(trace, _buckets(self._simulator(trace)))

    def parts(self, trace: Trace) -> Iterator[tuple[Trace, dict[str, NDArray[Any]]]]:
        """Evaluate a sorted trace part by part.

        Yield the events of each part by their buckets, as `by_bucket` does, and the columns
        `allowed` and `retry_after_ns`.
        """
        core = self._simulator(trace)
        buckets = _buckets(core)
        for first in range(0, len(trace), PART):
            part = trace[first : first + PART]
            columns = evaluate(core.feed, part, part.codes, ["retry_after_ns"])
            yield _with_buckets(part, buckets), columns

    def canonical_id(self, id: str) -> str:
        """Return an id as `by_bucket` spells it."""
        core = _core.Simulator(self.limits, self.name)
        core.add([id])
        return id if core.buckets(0) is None else core.bucket_id(0)

    @property
    def limit_name(self) -> str | None:
        """The name of the limit; None for a limit on its own."""
        if self.name is not None or isinstance(self.limits, Limit):
            return self.name
        return next(iter(self.limits))

    @property
    def described(self) -> tuple[str, str]:
        """The limit and what it admits, without overrides.

        >>> Evaluator({"Orders": "100/minute"}, None).described[0]
        'Orders: 100 per minute'
        """
        default = self.default()
        text = "no default" if default is None else _describe(default)
        admits = "" if default is None else explain_limit(default)
        is_unnamed = isinstance(self.limits, Limit) and self.name in {None, UNNAMED}
        return text if is_unnamed else f"{self.limit_name}: {text}", admits

    def has_override(self, clients: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each client has an override that differs from the default."""
        default = self.default()
        core = _core.Simulator(self.limits, self.name)
        core.add(clients)
        found = [core.limit_of(client) != default for client in range(len(clients))]
        return np.array(found, np.bool_)

    def default(self) -> Limit | None:
        """Return the limit of clients without an override; None if it is unlimited."""
        if isinstance(self.limits, Limit):
            return self.limits
        limits = self.limits if isinstance(self.limits, Limits) else Limits(dict(self.limits))
        return limits.default(self.limit_name or "")

    def _simulator(self, trace: Trace) -> _core.Simulator:
        core = _core.Simulator(self.limits, self.name)
        if len(trace) == 0:
            return core
        try:
            core.add(trace.clients)
        except InvalidId as error:
            codes, client = trace.codes, core.clients
            if codes is not None and (codes == client).any():
                error.add_note(f"its first event is at position {int((codes == client).argmax())}")
            raise
        return core


class LimitFeed:
    """One limit under a virtual clock, for events whose table of ids grows.

    Attributes:
        described: The limit and what it admits, without overrides.
    """

    def __init__(self, evaluator: Evaluator, *, denies_excess: bool = False) -> None:
        self._core: Final = _core.Simulator(
            evaluator.limits, evaluator.name, denies_excess=denies_excess
        )
        self.described: Final = evaluator.described
        self._table: Sequence[str] = ()
        # The core's number and bucket of each client in the table.
        self._numbers = np.empty(0, np.uint32)
        self._buckets: NDArray[np.uint32] | None = None

    @property
    def name(self) -> str:
        """The name of the limit."""
        return self._core.name

    def number(self, part: Trace, *, skip_invalid: bool) -> NDArray[np.uint32]:
        """Return the core's number of each event's client; 2**32 - 1 for invalid ids."""
        if len(part) == 0:
            return np.empty(0, np.uint32)
        if part.clients is not self._table:
            self._table = part.clients
            self._numbers = np.empty(0, np.uint32)
        if len(part.clients) > len(self._numbers):
            first = self._core.clients
            ids = list(part.clients[len(self._numbers) :])
            added = np.asarray(self._core.number(ids, skip_invalid=skip_invalid))
            self._numbers = np.concatenate([self._numbers, added])
            buckets = self._core.buckets(first)
            if buckets is not None:
                known = [] if self._buckets is None else [self._buckets]
                self._buckets = np.concatenate([*known, np.asarray(buckets)])
        return self._numbers[part.client_indices]

    def evaluate(
        self, part: Trace, numbers: NDArray[np.uint32], columns: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the next events, and return the columns."""
        return evaluate(self._core.feed, part, numbers, columns)

    def by_bucket(self, part: Trace, numbers: NDArray[np.uint32]) -> Trace:
        """Return the events by their buckets."""
        codes = numbers if self._buckets is None else self._buckets[numbers]
        return part.with_codes(Codes(codes, _BucketIds(self._core)))


class _BucketIds(Sequence[str]):
    """The ids of a simulator's buckets, as the table of a trace."""

    def __init__(self, core: _core.Simulator) -> None:
        self._core = core
        self._length = core.clients

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._core.bucket_id(int(index))

    def __reduce__(self) -> tuple[Any, ...]:
        buckets = self._core.buckets(0)
        used = range(self._length) if buckets is None else np.unique(np.asarray(buckets)).tolist()
        return list, ([self._core.bucket_id(index) for index in used],)


def parse_limits(limits: AnyLimits) -> Limit | Limits | Mapping[str, Limit | str]:
    """Parse a limit that is given as text; return other limits as they are.

    Raises:
        LimitError: The text is no limit.
    """
    if isinstance(limits, str) and limits.endswith((".yaml", ".yml")):
        raise LimitError(
            f"limits must be a limit such as '100/minute', found {limits!r}; "
            f"for a file, pass Limits.load({limits!r})"
        )
    return Limit.parse(limits) if isinstance(limits, str) else limits


def evaluate(
    feed: Callable[..., None],
    trace: Trace,
    codes: NDArray[np.uint32] | None,
    columns: Collection[str],
) -> dict[str, NDArray[Any]]:
    """Pass the events of a trace to `feed` of a simulator, which knows its clients by `codes`."""
    result: dict[str, NDArray[Any]] = {"allowed": np.empty(len(trace), np.bool_)}
    result |= {name: np.empty(len(trace), np.int64) for name in NUMBERS if name in columns}
    times, _, costs, durations = trace.arrays
    feed(
        times,
        None if codes is None else np.ascontiguousarray(codes),
        costs,
        result["allowed"].view(np.uint8),
        result.get("remaining"),
        result.get("retry_after_ns"),
        result.get("reset_after_ns"),
        durations,
    )
    return result


def _buckets(core: _core.Simulator) -> Codes | None:
    """Return each client's bucket and the ids of the buckets; None if each client has its own."""
    found = core.buckets(0)
    if found is None:
        return None
    buckets = np.asarray(found)
    used = int(buckets.max()) + 1 if len(buckets) else 0
    return Codes(buckets, [core.bucket_id(index) for index in range(used)])


def _with_buckets(trace: Trace, buckets: Codes | None) -> Trace:
    if buckets is None or len(trace) == 0:
        return trace
    return trace.with_codes(Codes(buckets.codes[trace.client_indices], buckets.clients))


def _describe(limit: Limit) -> str:
    """Describe a limit with its algorithm, as two algorithms may have the same description."""
    text = describe_limit(limit)
    # A token bucket needs no name, and slots and unlimited clients have no rate.
    if hasattr(limit, "emission_interval_ns") or limit.describe() is None:
        return text
    family, _, kind = limit.algorithm.rpartition("-")
    return f"{text} ({family} {kind})"
