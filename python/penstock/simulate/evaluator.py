"""A limit that can be evaluated over a whole trace, any number of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from collections.abc import Collection

    from numpy.typing import NDArray

    from penstock.simulate.trace import Trace


NUMBERS: Final = ("remaining", "retry_after_ns", "reset_after_ns")
"""The columns of a simulation, except `allowed`."""

INVALID: Final = 2**32 - 1
"""The number of a client whose id is not valid."""

AnyLimits: TypeAlias = "Limit | Limits | str | Mapping[str, Limit | str]"


@dataclass(frozen=True, slots=True)
class Evaluator:
    """One limit, on its own or by its name.

    Attributes:
        limits: A limit, or limits by name.
        name: The limit's name; may be None if there is only one.
    """

    limits: Limit | Limits
    name: str | None

    def columns(self, trace: Trace, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Evaluate a sorted trace and return these columns."""
        feed = LimitFeed(self)
        return feed.evaluate(trace, feed.number(trace), columns)

    def by_bucket(self, trace: Trace) -> Trace:
        """Return the trace with buckets in place of clients, as several ids may share one bucket.

        The ids are in their canonical spelling, such as one address of a network.
        """
        feed = LimitFeed(self)
        return feed.by_bucket(trace, feed.number(trace))

    def bucket_of(self, id: str) -> tuple[str, Limit]:
        """Return an id as `by_bucket` spells it, and the limit of its bucket."""
        core = _core.Simulator(self.limits, self.name)
        core.number([id])
        return core.bucket_id(0), core.limit_of(0)

    @property
    def limit_name(self) -> str | None:
        """The name of the limit; None for a limit on its own."""
        if self.name is not None or isinstance(self.limits, Limit):
            return self.name
        return next(iter(self.limits))

    @property
    def described(self) -> tuple[str, str]:
        """The limit and what it admits, without overrides.

        >>> Evaluator(Limits({"Orders": "100/minute"}), None).described[0]
        'Orders: 100 per minute'
        """
        default = self.default()
        limit = "no default" if default is None else _describe(default)
        admits = "" if default is None else explain_limit(default)
        is_unnamed = isinstance(self.limits, Limit) and self.name in {None, UNNAMED}
        return limit if is_unnamed else f"{self.limit_name}: {limit}", admits

    def has_override(self, clients: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each client has an override that differs from the default."""
        if isinstance(self.limits, Limit):
            return np.zeros(len(clients), np.bool_)
        name, default = self.limit_name or "", self.default()
        return np.array([self.limits.resolve(name, client) != default for client in clients])

    def default(self) -> Limit | None:
        """Return the limit of clients without an override; None if it is unlimited."""
        if isinstance(self.limits, Limit):
            return self.limits
        return self.limits.default(self.limit_name or "")


class LimitFeed:
    """One limit under a virtual clock, for events whose table of ids may grow."""

    def __init__(self, evaluator: Evaluator, *, denies_excess: bool = False) -> None:
        self._core: Final = _core.Simulator(
            evaluator.limits, evaluator.name, denies_excess=denies_excess
        )
        self._table: Sequence[str] = ()
        # The core's number of each client in the table, and each number's bucket.
        self._numbers = np.empty(0, np.uint32)
        self._has_same_numbers = True
        self._buckets: NDArray[np.uint32] | None = None
        self._most_buckets = 0

    @property
    def name(self) -> str:
        """The name of the limit."""
        return self._core.name

    def number(self, part: Trace, *, skip_invalid: bool = False) -> NDArray[np.uint32] | None:
        """Return the core's number of each event's client; `INVALID` for invalid ids.

        None if all events are those of the first client.
        """
        if len(part) == 0:
            return np.empty(0, np.uint32)
        if part.clients is not self._table:
            self._table = part.clients
            self._numbers = np.empty(0, np.uint32)
        if len(part.clients) > len(self._numbers):
            self._add(part, skip_invalid=skip_invalid)
        return part.codes if self._has_same_numbers else self._numbers[part.client_indices]

    def _add(self, part: Trace, *, skip_invalid: bool) -> None:
        first = self._core.clients
        ids = list(part.clients[len(self._numbers) :])
        try:
            added = np.asarray(self._core.number(ids, skip_invalid=skip_invalid))
        except InvalidId as error:
            is_client = part.client_indices == self._core.clients
            if first == 0 and is_client.any():
                error.add_note(f"its first event is at position {int(is_client.argmax())}")
            raise
        self._numbers = np.concatenate([self._numbers, added])
        self._has_same_numbers = np.array_equal(self._numbers, np.arange(len(self._numbers)))
        buckets = self._core.buckets(first)
        if buckets is not None:
            known = [] if self._buckets is None else [self._buckets]
            self._buckets = np.concatenate([*known, np.asarray(buckets)])
            self._most_buckets = int(self._buckets.max(initial=0)) + 1

    def evaluate(
        self, part: Trace, numbers: NDArray[np.uint32] | None, columns: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the next events, and return the columns, with `allowed`."""
        result: dict[str, NDArray[Any]] = {"allowed": np.empty(len(part), np.bool_)}
        result |= {name: np.empty(len(part), np.int64) for name in NUMBERS if name in columns}
        times, _, costs, durations = part.arrays
        self._core.feed(
            times,
            None if numbers is None else np.ascontiguousarray(numbers),
            costs,
            result["allowed"].view(np.uint8),
            result.get("remaining"),
            result.get("retry_after_ns"),
            result.get("reset_after_ns"),
            durations,
        )
        return result

    def by_bucket(self, part: Trace, numbers: NDArray[np.uint32] | None) -> Trace:
        """Return the events by their buckets."""
        if self._buckets is None and self._has_same_numbers:
            return part
        codes = np.zeros(len(part), np.uint32) if numbers is None else numbers
        length = self._core.clients
        if self._buckets is not None:
            codes, length = self._buckets[codes], self._most_buckets
        return part.with_codes(Codes(codes, _BucketIds(self._core, length)))


class _BucketIds(Sequence[str]):
    """The ids of a simulator's buckets, as the table of a trace."""

    def __init__(self, core: _core.Simulator, length: int) -> None:
        self._core = core
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(f"there are {self._length} buckets, found the index {index}")
        return self._core.bucket_id(int(index))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def parse_limits(limits: AnyLimits) -> Limit | Limits:
    """Parse rate strings.

    Raises:
        LimitError: A string is no limit.
    """
    if isinstance(limits, str) and limits.endswith((".yaml", ".yml")):
        raise LimitError(
            f"limits must be a limit such as '100/minute', found {limits!r}; "
            f"for a file, pass Limits.load({limits!r})"
        )
    if isinstance(limits, str):
        return Limit.parse(limits)
    if isinstance(limits, Mapping) and not isinstance(limits, Limits):
        return Limits(limits)
    return limits


def _describe(limit: Limit) -> str:
    """Describe a limit with its algorithm, as two algorithms may have the same description."""
    text = describe_limit(limit)
    # A token bucket needs no name, and slots and unlimited clients have no rate.
    if hasattr(limit, "emission_interval") or limit.describe() is None:
        return text
    family, _, kind = limit.algorithm.rpartition("-")
    return f"{text} ({family} {kind})"
