"""What a simulation and its kin look like: figures, charts and pages.

What draws is imported when something is drawn, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from matplotlib.axes import Axes

    from penstock.simulate.compare import Comparison
    from penstock.simulate.ids import AnyId
    from penstock.simulate.recommend import Recommendation
    from penstock.simulate.result import Simulation
    from penstock.simulate.sweep import Sweep

__all__ = ["DrawnComparison", "DrawnRecommendation", "DrawnSimulation", "DrawnSweep"]


class DrawnSimulation:
    """How a simulation is shown."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  drawn only where seen

        return notebook.simulation_html(cast("Simulation", self))

    def plot(self, id: AnyId | None = None, *, ax: Axes | None = None) -> Any:
        """Draw arrivals, allowed and denied over time, and below how full one bucket was.

        Events are counted by stretches of time, so that millions are drawn as fast as a few.

        Args:
            id: Whose bucket. None: that of the client denied most, or who came most where none was.
            ax: Axes to draw into, without the bucket. None: a new figure.

        Returns:
            The `matplotlib.figure.Figure`, or `ax`. pyplot knows nothing of the figure, so that
            nothing has to be closed.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The trace has no such client.
        """
        from penstock.simulate.report import plot  # noqa: PLC0415  needs Matplotlib

        return plot.plot_simulation(cast("Simulation", self), id, ax=ax)

    def chart(self, id: AnyId | None = None) -> Any:
        """Chart arrivals, allowed and denied over time, and how full one bucket was; to zoom into.

        At most some 5,000 rows stand in the chart, however many events there are.

        Args:
            id: Whose bucket. None: that of the client denied most, or who came most where none was.

        Returns:
            An `altair.VConcatChart`, or an `altair.Chart` where there is no bucket to show.

        Raises:
            ImportError: Altair is not installed.
            KeyError: The trace has no such client.
        """
        from penstock.simulate.report import chart  # noqa: PLC0415  needs Altair

        return chart.chart_simulation(cast("Simulation", self), id)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        id: AnyId | None = None,
        recommendation: Recommendation | None = None,
    ) -> Path:
        """Write a page about it that a browser shows, and that needs no network.

        Args:
            path: The file, such as `out.html`.
            id: Whose bucket it shows, as for `plot`.
            recommendation: What `recommend` gave for the same trace; the page then has it too.

        Returns:
            The file.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The trace has no such client.
            OSError: The file cannot be written.
        """
        from penstock.simulate.report import page  # noqa: PLC0415  needs Matplotlib

        simulation = cast("Simulation", self)
        return page.report_simulation(simulation, path, id=id, recommendation=recommendation)


class DrawnComparison:
    """How a comparison is shown."""

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  drawn only where seen

        return notebook.comparison_html(cast("Comparison", self))

    def plot(self) -> Any:
        """Draw the denied events of each limit over time, and their shares.

        Returns:
            A `matplotlib.figure.Figure` that pyplot knows nothing of.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_comparison(cast("Comparison", self))

    def chart(self) -> Any:
        """Chart the denied events of each limit over time; to zoom into.

        Returns:
            An `altair.Chart`.

        Raises:
            ImportError: Altair is not installed.
        """
        from penstock.simulate.report import chart  # noqa: PLC0415  needs Altair

        return chart.chart_comparison(cast("Comparison", self))

    def report(
        self, path: str | os.PathLike[str], *, recommendation: Recommendation | None = None
    ) -> Path:
        """Write a page about all of them that a browser shows, and that needs no network.

        Args:
            path: The file, such as `out.html`.
            recommendation: What `recommend` gave for the same trace; the page then has it too.

        Returns:
            The file.

        Raises:
            ImportError: Matplotlib is not installed.
            OSError: The file cannot be written.
        """
        from penstock.simulate.report import page  # noqa: PLC0415  needs Matplotlib

        comparison = cast("Comparison", self)
        return page.report_comparison(comparison, path, recommendation=recommendation)


class DrawnSweep:
    """How a sweep is shown."""

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  drawn only where seen

        return notebook.sweep_html(cast("Sweep", self))

    def plot(
        self, value: str = "denied_share", *, x: str | None = None, y: str | None = None
    ) -> Any:
        """Draw one number of each limit: a heat map of two parameters, a line of one.

        Limits that were listed one after the other are drawn as bars.

        Args:
            value: Which number, a column of the table.
            x: The parameter from left to right. None: the last one that has several values.
            y: The parameter from below. None: the other one that has several values.

        Returns:
            A `matplotlib.figure.Figure` that pyplot knows nothing of.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The table has no such column.
            ValueError: More than two parameters have several values.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_sweep(cast("Sweep", self), value, x=x, y=y)


class DrawnRecommendation:
    """How a recommendation is shown."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  drawn only where seen

        return notebook.recommendation_html(cast("Recommendation", self))

    def plot(self) -> Any:
        """Draw the smallest burst for each count, and the pair that is recommended.

        Returns:
            A `matplotlib.figure.Figure` that pyplot knows nothing of.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_recommendation(cast("Recommendation", self))
