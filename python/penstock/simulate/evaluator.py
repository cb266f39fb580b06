"""A limit that can be evaluated over a whole trace, any number of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock import _core
from penstock._core import Limit, Limits
from penstock._display import UNNAMED
from penstock.errors import LimitError
from penstock.messages import describe_limit, explain_limit
from penstock.simulate.ids import Codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.simulate.trace import Arrays, Trace


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

    def columns(self, trace: Trace, name: str) -> dict[str, NDArray[Any]]:
        """Evaluate a sorted trace; return the column `allowed` and the one of this name."""
        feed = LimitFeed(self)
        columns: dict[str, NDArray[Any]] = {"allowed": np.empty(len(trace), np.bool_)}
        if name in NUMBERS:
            columns[name] = np.empty(len(trace), np.int64)
        allowed, numbers = columns["allowed"].view(np.uint8), map(columns.get, NUMBERS)
        feed.core.feed(*feed.arrays(trace), allowed, *numbers)
        return columns

    def by_bucket(self, trace: Trace) -> Trace:
        """Return the trace with buckets in place of clients, as several ids may share one bucket.

        The ids are in their canonical spelling, such as one address of a network.
        """
        feed = LimitFeed(self)
        _, codes, _, _ = feed.arrays(trace)
        codes = trace.client_indices if codes is None else codes
        return trace.with_codes(Codes(codes, feed.core.ids()))

    def bucket_of(self, id: str) -> tuple[str, Limit]:
        """Return an id as `by_bucket` spells it, and the limit of its bucket."""
        core = _core.Simulator(self.limits, self.name)
        core.number([id])
        return core.ids()[0], core.limit_of(0)

    @property
    def limit_name(self) -> str:
        """The name of the limit; `Requests` if it has none."""
        if self.name is not None:
            return self.name
        return "Requests" if isinstance(self.limits, Limit) else next(iter(self.limits))

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
        name, default = self.limit_name, self.default()
        return np.array([self.limits.resolve(name, client) != default for client in clients])

    def default(self) -> Limit | None:
        """Return the limit of clients without an override; None if it is unlimited."""
        if isinstance(self.limits, Limit):
            return self.limits
        return self.limits.default(self.limit_name)


class LimitFeed:
    """One limit under a virtual clock, for events whose table of ids may grow.

    Attributes:
        core: The simulator, which has the clients of the table.
    """

    def __init__(
        self, evaluator: Evaluator, *, skip_invalid: bool = False, denies_excess: bool = False
    ) -> None:
        self.core: Final = _core.Simulator(
            evaluator.limits, evaluator.name, denies_excess=denies_excess
        )
        self._skip_invalid = skip_invalid
        self._table: Sequence[str] = ()
        # The core's number of each client in the table.
        self._numbers = np.empty(0, np.uint32)
        self._has_same_numbers = True

    def arrays(self, part: Trace) -> Arrays:
        """Return the arrays of the next events for the core, with its numbers of their clients.

        The number of an invalid id that is skipped is `INVALID`.
        """
        if part.clients is not self._table:
            self._table, self._numbers = part.clients, np.empty(0, np.uint32)
        # The codes of some events may be those of a table that has grown since.
        if len(part) and len(part.clients) > len(self._numbers):
            ids = list(part.clients[len(self._numbers) :])
            added = np.asarray(self.core.number(ids, skip_invalid=self._skip_invalid))
            self._numbers = np.concatenate([self._numbers, added])
            self._has_same_numbers = np.array_equal(self._numbers, np.arange(len(self._numbers)))
        times, codes, costs, durations = part.arrays
        if not self._has_same_numbers:
            codes = self._numbers[part.client_indices]
        return times, codes, costs, durations


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
