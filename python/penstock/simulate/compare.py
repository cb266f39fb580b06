"""Several limits side by side over one trace, on all cores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from penstock._core import Limit
from penstock._validation import name_value
from penstock.errors import LimitError
from penstock.simulate.check import changes
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.run import as_trace, simulate
from penstock.simulate.table import Table
from penstock.simulate.totals import compare_totals

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from penstock.simulate.recommendation import Recommendation
    from penstock.simulate.result import Simulation


_PARAMETERS: Final = {
    "algorithm", "burst", "count", "period", "size", "drip_size", "drip_rate", "lease", "anchor",
    "phase", "zone", "retry_after",
}  # fmt: skip


class Comparison(Table):
    """A row for each of several limits over one trace, with its totals.

    The columns before `events` are the parameters of a grid, or `limit`, the labels.

    Attributes:
        limits: The limits, one for each row.
        simulations: The simulations, by the labels of the limits.
    """

    def __init__(
        self,
        settings: list[dict[str, Any]],
        limits: list[Any],
        simulations: Mapping[str, Simulation],
    ) -> None:
        self.limits = tuple(limits)
        self.simulations = dict(simulations)
        columns = compare_totals(settings, self.simulations.values())
        super().__init__("Comparison", columns)
        self.parameters = tuple(settings[0])

    def changes(self, before: str, after: str) -> Table:
        """Return a row for each client that only one of two limits denies, newly denied ones first.

        Args:
            before: The label of a limit.
            after: The label of another limit.

        Raises:
            KeyError: There is no such label.

        >>> from penstock.simulate import Trace
        >>> limits = {"today": "1/second", "proposal": "2/second"}
        >>> print(compare(limits, Trace([0.0, 0.1], ["ada", "ada"])).changes("today", "proposal"))
        Denied by only one of today and proposal
        client  denied only by  events  denied  denied share
        ada              today       2       1          50 %
        """
        return changes((before, self.simulations[before]), (after, self.simulations[after]))

    def plot(
        self,
        value: str = "denied_share",
        *,
        ax: Axes | None = None,
    ) -> Any:
        """Plot one number of each limit: bars, a line of one parameter, or a heat map of two.

        Args:
            value: The number, a column of the table.
            ax: As for `Simulation.plot`.

        Returns:
            As `Simulation.plot`.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The table has no such column.
            ValueError: More than two parameters have several values.
        """
        from penstock.simulate.report import plot  # noqa: PLC0415  needs Matplotlib

        return plot.show(plot.draw_table, self, self.parameters, value, ax=ax)

    def report(
        self, path: str | os.PathLike[str], *, recommendation: Recommendation | None = None
    ) -> Path:
        """Write a self-contained HTML page about all limits.

        Args:
            path: The file, such as `out.html`.
            recommendation: A recommendation from `recommend()` for the same trace, which the page
                then includes.

        Returns:
            The file.

        Raises:
            ImportError: Matplotlib is not installed.
            OSError: The file cannot be written.
        """
        from penstock.simulate.report import page  # noqa: PLC0415  needs Matplotlib

        trace = next(iter(self.simulations.values())).trace
        report = page.Report(self.simulations, trace.source, trace.skipped, recommendation)
        return report.write(path)


def compare(
    limits: Mapping[str, Any] | Iterable[Limit | str],
    trace: Any,
    *,
    name: str | None = None,
) -> Comparison:
    """Simulate several limits over one trace, on all cores.

    Args:
        limits: Labels with their limits, such as `{"today": "60/minute"}`; or a list of limits; or
            a grid of parameters with their values, such as `{"burst": [10, 20], "count": [5, 10],
            "period": "1m"}`, whose `algorithm` defaults to `token-bucket`.
        trace: As `times` of `simulate`.
        name: As for `simulate`.

    Raises:
        LimitError: A limit of the grid is not valid; a note says which.
        ValueError: There are no limits.

    Otherwise raises as `simulate`; a note names the limit.

    >>> table = compare({"today": "1/second", "proposal": "2/second"}, [0.0, 0.1, 0.2, 1.3])
    >>> table["denied"]
    [2, 1]
    >>> grid = compare({"burst": [1, 2], "count": 1, "period": 1}, [0.0, 0.1, 0.2, 1.3])
    >>> grid["denied_share"]
    [0.5, 0.25]
    """
    settings, parsed = _settings(limits)
    events = as_trace(trace)
    labels = [_label(setting) for setting in settings]

    def simulated(label: str, limit: Any) -> Simulation:
        try:
            simulation = simulate(limit, events, name=name)
            simulation.summary()
        except Exception as error:
            error.add_note(f"this is {label!r} of limits")
            raise
        return simulation

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        simulations = [*pool.map(simulated, labels, parsed)]
    return Comparison(settings, parsed, dict(zip(labels, simulations, strict=True)))


def _label(setting: Mapping[str, Any]) -> str:
    if [*setting] == ["limit"]:
        return str(setting["limit"])
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def _settings(limits: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return what names each row, and the limits."""
    if not isinstance(limits, Iterable) or isinstance(limits, str):
        raise TypeError(
            "limits must be a mapping of labels to limits, a list of limits or a grid of "
            f"parameters, found {name_value(limits)}"
        )
    if isinstance(limits, Mapping) and limits and {*limits} <= _PARAMETERS:
        values = [_values(value) for value in limits.values()]
        settings = [dict(zip(limits, row, strict=True)) for row in itertools.product(*values)]
        parsed: list[Any] = [_construct(setting) for setting in settings]
    else:
        labelled = limits if isinstance(limits, Mapping) else _labelled(limits)
        settings, parsed = [{"limit": label} for label in labelled], [*labelled.values()]
    if not parsed:
        raise ValueError("limits must have at least one entry, found none")
    return settings, parsed


def _labelled(limits: Iterable[Any]) -> dict[str, Limit]:
    """Return the limits of a list by their labels: rate strings as given, or descriptions."""
    labelled: dict[str, Limit] = {}
    for index, each in enumerate(limits):
        if isinstance(each, str):
            label, limit = each, Limit.parse(each)
        elif isinstance(each, Limit):
            label, limit = Evaluator(each, None).described[0], each
        else:
            found = f"{name_value(each)} at position {index}"
            raise TypeError(f"limits must be a mapping or a list of limits, found {found}")
        if label in labelled:
            raise ValueError("limits must contain each limit once")
        labelled[label] = limit
    return labelled


def _values(values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    # NumPy numbers become Python numbers, which limits need.
    return [getattr(value, "item", lambda value=value: value)() for value in values]


def _construct(setting: Mapping[str, Any]) -> Limit:
    parameters = dict(setting)
    algorithm = parameters.pop("algorithm", "token-bucket")
    try:
        return Limit.from_fields(algorithm, parameters)
    except (LimitError, TypeError) as error:
        error.add_note(f"this is {algorithm} with {parameters}")
        raise
