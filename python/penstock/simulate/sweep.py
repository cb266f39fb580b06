"""A grid of limits over one trace, on all cores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Final

from penstock._core import Limit
from penstock.display import UNNAMED
from penstock.errors import LimitError
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.log.progress import make_bar
from penstock.simulate.result import Simulation
from penstock.simulate.routes import Routes
from penstock.simulate.run import as_trace
from penstock.simulate.table import Table
from penstock.validation import name_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.simulate.routes import AnyRoutes
    from penstock.simulate.trace import Trace


_COLUMNS: Final = (
    "denied_share",
    "clients_denied",
    "longest_wait",
    "most_at_once",
    "most_in_second",
    "most_in_minute",
)


class Sweep(Table):
    """A row for each limit, with its parameters and its totals.

    Attributes:
        limits: The limits, one for each row.
    """

    def __init__(self, limits: Sequence[Limit], columns: Mapping[str, Sequence[Any]]) -> None:
        super().__init__("Sweep", columns)
        self.limits = tuple(limits)

    def _repr_html_(self) -> str:
        from penstock.simulate.report import notebook  # noqa: PLC0415  only when shown

        return notebook.shares_html(self["denied_share"]) + super()._repr_html_()

    def plot(
        self, value: str = "denied_share", *, x: str | None = None, y: str | None = None
    ) -> Any:
        """Plot one number of each limit: a heat map of two parameters, or a line of one.

        Limits that were given as a list are drawn as bars.

        Args:
            value: The number, a column of the table.
            x: The parameter of the x axis. None: the last one that has several values.
            y: The parameter of the y axis. None: the other one that has several values.

        Returns:
            A `matplotlib.figure.Figure` that is not registered with pyplot.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The table has no such column.
            ValueError: More than two parameters have several values.
        """
        from penstock.simulate.report import plot_tables  # noqa: PLC0415  needs Matplotlib

        return plot_tables.plot_sweep(self, value, x=x, y=y)


def sweep(
    grid: Mapping[str, Any] | Iterable[Limit | str],
    trace: Any,
    *,
    name: str | None = None,
    routes: AnyRoutes | None = None,
    progress: bool | None = None,
    sort: bool = False,
) -> Sweep:
    """Simulate every limit of a grid over one trace, on all cores.

    Args:
        grid: Parameters with their values, such as `{"burst": [10, 20], "count": [5, 10],
            "period": "1m"}`; `algorithm` defaults to `token-bucket`. A single value needs no list.
            Or a list of limits.
        trace: As `times` of `simulate`.
        name: The limit of the routes that the grid is for.
        routes: As for `simulate`; only the events that spend the limit `name` count, with their ids
            and costs under that limit. The other limits are not evaluated.
        progress: Whether to show a progress bar, which needs tqdm. None: on a terminal or in a
            notebook, if tqdm is installed.
        sort: As for `simulate`.

    Raises:
        LimitError: A limit of the grid is not valid; a note says which.
        ValueError: The grid is empty, or there are routes without a name.
        ImportError: `progress` is True and tqdm is not installed.

    Otherwise raises as `simulate`.

    >>> found = sweep({"burst": [1, 2], "count": 1, "period": 1}, [0.0, 0.1, 0.2, 1.3])
    >>> found["denied_share"]
    [0.5, 0.25]
    """
    settings, limits = _settings(grid)
    events = as_trace(trace)
    if sort:
        events = events.sorted()
    if (routes is None) != (name is None):
        raise ValueError("routes name the limits; pass both routes= and name=, or neither")
    if routes is not None and name is not None:
        events = Routes.of(routes).events_of(events, name)[0]
    bar = make_bar(progress, total=len(limits), desc="sweep", unit="limit")
    rows: list[dict[str, Any]] = [{} for _ in limits]
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        futures = {pool.submit(_totals, limit, events): i for i, limit in enumerate(limits)}
        for future in as_completed(futures):
            index = futures[future]
            try:
                rows[index] = future.result()
            except Exception as error:
                error.add_note(f"this is {limits[index]!r}")
                raise
            if bar is not None:
                bar.update()
    finally:
        # After an interrupt, wait only for the simulations that are running.
        pool.shutdown(cancel_futures=True)
        if bar is not None:
            bar.close()
    columns = {name: [row[name] for row in settings] for name in settings[0]}
    return Sweep(limits, columns | {name: [row[name] for row in rows] for name in _COLUMNS})


def _totals(limit: Limit, trace: Trace) -> dict[str, Any]:
    return Simulation(trace, {}, evaluator=Evaluator(limit, UNNAMED)).summary().to_dict()


def _settings(grid: Any) -> tuple[list[dict[str, Any]], list[Limit]]:
    """Return the parameters and the limit of each row."""
    if isinstance(grid, Mapping):
        values = [_values(value) for value in grid.values()]
        settings = [dict(zip(grid, row, strict=True)) for row in itertools.product(*values)]
        limits = [_construct(setting) for setting in settings] if grid else []
    else:
        entries: list[Any] = list(grid)
        for index, each in enumerate(entries):
            if not isinstance(each, (str, Limit)):
                found = f"{name_value(each)} at position {index}"
                raise TypeError(
                    f"grid must be a mapping of parameters or a list of limits, found {found}"
                )
        limits = [Limit.parse(each) if isinstance(each, str) else each for each in entries]
        settings = [
            {"limit": each if isinstance(each, str) else Evaluator(each, None).described[0]}
            for each in entries
        ]
    if not limits:
        raise ValueError("grid must have at least one limit, found none")
    return settings, limits


def _values(given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    # NumPy numbers become Python numbers, which limits need.
    return [getattr(value, "item", lambda value=value: value)() for value in given]


def _construct(setting: Mapping[str, Any]) -> Limit:
    parameters = dict(setting)
    algorithm = parameters.pop("algorithm", "token-bucket")
    try:
        return Limit.from_fields(algorithm, parameters)
    except (LimitError, TypeError) as error:
        error.add_note(f"this is {algorithm} with {parameters}")
        raise
