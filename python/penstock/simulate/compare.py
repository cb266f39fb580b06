"""Several limits side by side over one trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.simulate.check import Change
from penstock.simulate.routes import Routes
from penstock.simulate.run import as_trace, simulate
from penstock.simulate.table import Table

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from penstock.simulate.evaluator import AnyLimits
    from penstock.simulate.limit_result import LimitResult, RecommendedLimit
    from penstock.simulate.result import Simulation
    from penstock.simulate.routes import AnyRoutes


class Comparison(Table):
    """A row for each of several limits over one trace.

    Attributes:
        simulations: The simulations, by the labels of their limits.
    """

    def __init__(self, simulations: Mapping[str, Simulation]) -> None:
        self.simulations = dict(simulations)
        columns: dict[str, list[Any]] = {"limits": list(self.simulations)}
        for simulation in self.simulations.values():
            for name, value in simulation.summary().to_dict().items():
                columns.setdefault(name, []).append(value)
        # Traces without durations have no requests in flight.
        known = {name: values for name, values in columns.items() if set(values) != {None}}
        super().__init__("Comparison", known)

    def changes(self, before: str, after: str) -> Table:
        """Return a row for each client that only one of two limits denies, worst first.

        Args:
            before: The label of a limit.
            after: The label of another limit.

        Raises:
            KeyError: There is no such label.

        >>> from penstock.simulate import Trace
        >>> limits = {"today": "1/second", "proposal": "2/second"}
        >>> print(compare(limits, Trace([0.0, 0.1], ["ada", "ada"])).changes("today", "proposal"))
        Clients denied by only one
        id   denied only by  denied
        ada  today           1
        """
        change = Change.of((before, self.simulations[before]), (after, self.simulations[after]))
        rows = [
            {"id": row["id"], "denied_only_by": label, "denied": row["denied"]}
            for label, table in ((before, change.freed), (after, change.newly_denied))
            for row in table.rows()
        ]
        rows.sort(key=lambda row: -row["denied"])
        columns = ("id", "denied_only_by", "denied")
        return Table.of_rows("Clients denied by only one", columns, rows)

    def _changes(self) -> list[Change]:
        """Return whom each limit newly denies, or no longer denies, compared with the first."""
        first, *others = self.simulations.items()
        return [Change.of(first, other) for other in others]

    def _results(self, **options: Any) -> list[LimitResult]:
        return [each.limit_result(title, **options) for title, each in self.simulations.items()]

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  only when shown

        results = self._results(max_bins=notebook.MAX_BINS)
        return super()._repr_html_() + notebook.results_html(results)

    def plot(self) -> Any:
        """Plot the denied events of each limit over time, and the denied shares.

        Returns:
            A `matplotlib.figure.Figure` that is not registered with pyplot.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_comparison(self._results())

    def report(
        self, path: str | os.PathLike[str], *, recommendation: RecommendedLimit | None = None
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

        first = next(iter(self.simulations.values()))
        report = page.Report(
            results=self._results(with_level=True),
            source=first.trace.name or "a trace",
            log=first.trace.skipped,
            changes=self._changes(),
            recommendations={} if recommendation is None else {first.limit_name: recommendation},
        )
        return report.write(path)


def compare(
    limits: Mapping[str, AnyLimits],
    trace: Any,
    *,
    name: str | None = None,
    routes: AnyRoutes | None = None,
    sort: bool = False,
) -> Comparison:
    """Simulate several limits over one trace and return their totals side by side.

    Args:
        limits: Labels and limits; each limit as for `simulate`.
        trace: As `times` of `simulate`.
        name: The name of the limit to simulate, if the limits have several.
        routes: As for `simulate`, the same for all limits.
        sort: As for `simulate`.

    Raises:
        ValueError: `limits` is empty.

    Otherwise raises as `simulate`; a note names the label.

    >>> table = compare({"today": "1/second", "proposal": "2/second"}, [0.0, 0.1, 0.2, 1.3])
    >>> table["denied"]
    [2, 1]
    """
    if not isinstance(limits, Mapping):
        raise TypeError(
            "limits must be a mapping of labels to limits, such as {'today': '60/minute'}, "
            f"found {type(limits).__name__}"
        )
    if not limits:
        raise ValueError("limits must have at least one entry, found none")
    events = as_trace(trace)
    parsed = None if routes is None else Routes.of(routes)
    simulations = {}
    for label, each in limits.items():
        try:
            simulations[label] = simulate(each, events, name=name, routes=parsed, sort=sort)
        except Exception as error:
            error.add_note(f"this is the entry {label!r} of limits")
            raise
    return Comparison(simulations)
