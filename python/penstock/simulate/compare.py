"""Limits side by side over one trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.simulate.drawn import DrawnComparison
from penstock.simulate.run import simulate, trace_of
from penstock.simulate.table import Table

if TYPE_CHECKING:
    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.result import Simulation

__all__ = ["Comparison", "compare"]


class Comparison(DrawnComparison, Table):
    """A row for each of several limits over one trace."""

    def __init__(self, simulations: Mapping[str, Simulation]) -> None:
        self.simulations = dict(simulations)
        """The simulations, by the names they were given."""
        columns: dict[str, list[Any]] = {"limits": list(self.simulations)}
        for simulation in self.simulations.values():
            for name, value in simulation.summary().to_dict().items():
                columns.setdefault(name, []).append(value)
        super().__init__("Comparison", columns)


def compare(
    limits: Mapping[str, AnyLimits], trace: Any, *, name: str | None = None, sort: bool = False
) -> Comparison:
    """Simulate several limits over one trace, and put what they come to side by side.

    Args:
        limits: What they are called here, and the limits, each as for `simulate`.
        trace: As the times of `simulate`.
        name: Which limit, where limits have several.
        sort: As for `simulate`.

    Raises:
        ValueError: There is nothing to compare.

    Otherwise raises as `simulate`; a note says for which of the limits.

    >>> table = compare({"today": "1/second", "proposal": "2/second"}, [0.0, 0.1, 0.2, 1.3])
    >>> table["denied"]
    [2, 1]
    """
    if not isinstance(limits, Mapping):
        raise TypeError(
            "limits must be a mapping of names to limits, as in {'today': '60/minute'}, "
            f"found {type(limits).__name__}"
        )
    if not limits:
        raise ValueError("limits must have at least one entry, found none")
    events = trace_of(trace)
    simulations = {}
    for called, each in limits.items():
        try:
            simulations[called] = simulate(each, events, name=name, sort=sort)
        except Exception as error:
            error.add_note(f"these are the limits {called!r}")
            raise
    return Comparison(simulations)
