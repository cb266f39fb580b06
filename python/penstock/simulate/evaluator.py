"""A limit, asked about a whole trace, as often as there is something to ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock import _core
from penstock._core import Limit, Limits
from penstock.errors import InvalidId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.simulate.trace import Trace

__all__ = ["NUMBERS", "AnyLimits", "Evaluator", "fed", "limits_of"]

NUMBERS: Final = ("remaining", "retry_after_ns", "reset_after_ns")
"""The columns of a simulation beside `allowed`."""

AnyLimits: TypeAlias = "Limit | Limits | str | Mapping[str, Limit | str]"


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Limits, and which of them.

    Attributes:
        limits: As the core takes them.
        name: The limit's name, where there is more than one.
    """

    limits: Limit | Limits | Mapping[str, Limit | str]
    name: str | None

    def columns(self, trace: Trace, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Evaluator a trace that is in the order of its times, and give these columns."""
        core = self._core(trace)
        return fed(core, trace, trace.codes, columns)

    def limit_of(self, trace: Trace, client: int) -> Limit:
        """Give the limit that applies to a client, by its place in the table."""
        return self._core(trace).limit_of(client)

    def _core(self, trace: Trace) -> _core.Simulator:
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


def limits_of(given: AnyLimits) -> Limit | Limits | Mapping[str, Limit | str]:
    """Give limits as the core takes them: a text becomes the limit that it says."""
    return Limit.parse(given) if isinstance(given, str) else given


def fed(
    core: _core.Simulator,
    trace: Trace,
    codes: NDArray[np.uint32] | None,
    columns: Sequence[str],
) -> dict[str, NDArray[Any]]:
    """Feed the events of a trace, whose clients have these numbers, and give the answers."""
    told: dict[str, NDArray[Any]] = {"allowed": np.empty(len(trace), np.bool_)}
    told |= {name: np.empty(len(trace), np.int64) for name in NUMBERS if name in columns}
    core.feed(
        # What has gaps, as every second one of a column has, is copied here and not in the trace.
        np.ascontiguousarray(trace.times),
        None if codes is None else np.ascontiguousarray(codes),
        None if trace.costs is None else np.ascontiguousarray(trace.costs),
        told["allowed"].view(np.uint8),
        *(told.get(name) for name in NUMBERS),
    )
    return told
