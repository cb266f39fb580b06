"""Many limits over one trace, on all cores."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Final

from penstock._core import Limit
from penstock.display import in_words
from penstock.errors import LimitError
from penstock.simulate.drawn import DrawnSweep
from penstock.simulate.evaluator import Evaluator
from penstock.simulate.result import Simulation
from penstock.simulate.run import trace_of
from penstock.simulate.table import Table, library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.simulate.trace import Trace

__all__ = ["Sweep", "sweep"]

_MAKERS: Final[dict[str, Callable[..., Limit]]] = {
    "token-bucket": Limit.token_bucket,
    "leaky-bucket": Limit.leaky_bucket,
    "fixed-window": Limit.fixed_window,
    "fixed-rate-window": Limit.fixed_rate_window,
}
_TOLD: Final = (
    "denied_share",
    "clients_denied",
    "worst_wait",
    "largest_at_once",
    "largest_in_second",
    "largest_in_minute",
)


class Sweep(DrawnSweep, Table):
    """A row for each limit: its parameters, and what it would have done."""

    def __init__(self, limits: Sequence[Limit], columns: Mapping[str, Sequence[Any]]) -> None:
        super().__init__("Sweep", columns)
        self.limits = tuple(limits)
        """The limits, one for each row."""


def sweep(
    grid: Mapping[str, Any] | Iterable[Limit | str],
    trace: Any,
    *,
    progress: bool | None = None,
    sort: bool = False,
) -> Sweep:
    """Simulate every limit of a grid over one trace, on all cores.

    Args:
        grid: Parameters and the values of each, as in `{"burst": [10, 20], "count": [5, 10],
            "period": ["1m"]}`; `algorithm` says which, and is a token bucket unless said. A single
            value may stand for itself. Or limits, one after the other.
        trace: As the times of `simulate`.
        progress: Whether to show a bar, which needs tqdm. None: where somebody watches and tqdm is
            installed.
        sort: As for `simulate`.

    Raises:
        LimitError: A limit of the grid cannot be; a note says which.
        ValueError: The grid is empty.
        ImportError: `progress` is true and tqdm is not installed.

    Otherwise raises as `simulate`.

    >>> found = sweep({"burst": [1, 2], "count": 1, "period": 1}, [0.0, 0.1, 0.2, 1.3])
    >>> found["denied_share"]
    [0.5, 0.25]
    """
    settings, limits = _settings(grid)
    events = trace_of(trace)
    if sort:
        events = events.sorted()
    bar = _bar(progress, len(limits))
    rows: list[dict[str, Any]] = [{} for _ in limits]
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        places = {pool.submit(_told, limit, events): place for place, limit in enumerate(limits)}
        for done in as_completed(places):
            place = places[done]
            try:
                rows[place] = done.result()
            except Exception as error:
                error.add_note(f"this is {limits[place]!r}")
                raise
            if bar is not None:
                bar.update()
    finally:
        # Whoever stops it waits for those at work, and for no others.
        pool.shutdown(cancel_futures=True)
        if bar is not None:
            bar.close()
    columns = {name: [row[name] for row in settings] for name in settings[0]}
    return Sweep(limits, columns | {name: [row[name] for row in rows] for name in _TOLD})


def _told(limit: Limit, trace: Trace) -> dict[str, Any]:
    evaluator = Evaluator(limit, "Limit")
    told = evaluator.columns(trace, ["retry_after_ns"])
    return Simulation(trace, told, evaluator=evaluator).summary().to_dict()


def _settings(grid: Any) -> tuple[list[dict[str, Any]], list[Limit]]:
    """Give the first columns of the table, and the limits, a row each."""
    if isinstance(grid, Mapping):
        values = [_values(value) for value in grid.values()]
        settings = [dict(zip(grid, chosen, strict=True)) for chosen in itertools.product(*values)]
        limits = [_made(setting) for setting in settings] if grid else []
    else:
        given: list[Any] = list(grid)
        for place, each in enumerate(given):
            if not isinstance(each, (str, Limit)):
                found = f"{type(each).__name__} {each!r} at position {place}"
                raise TypeError(f"a grid must be of limits, or of parameters, found {found}")
        limits = [Limit.parse(each) if isinstance(each, str) else each for each in given]
        settings = [{"limit": in_words(limit)} for limit in limits]
    if not limits:
        raise ValueError("the grid is empty: it must have at least one limit")
    return settings, limits


def _values(given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    # Numbers of NumPy's become Python's own, which limits are made of.
    return [getattr(value, "item", lambda value=value: value)() for value in given]


def _made(setting: Mapping[str, Any]) -> Limit:
    parameters = dict(setting)
    algorithm = parameters.pop("algorithm", "token-bucket")
    try:
        maker = _MAKERS[algorithm]
    except (KeyError, TypeError):
        known = ", ".join(_MAKERS)
        raise ValueError(f"algorithm must be one of {known}, found {algorithm!r}") from None
    try:
        return maker(**parameters)
    except (LimitError, TypeError) as error:
        error.add_note(f"this is {algorithm} with {parameters}")
        raise


def _bar(progress: bool | None, total: int) -> Any:
    if progress is False or (progress is None and not _is_watched()):
        return None
    if progress:
        tqdm = library("tqdm", "progress=True")
    else:
        try:
            tqdm = importlib.import_module("tqdm")
        except ImportError:
            return None
    return tqdm.tqdm(total=total, desc="sweep", unit="limit")


def _is_watched() -> bool:
    # A notebook has no terminal, but somebody who looks at it. To have IPython's kernel imported,
    # as those do who run notebooks elsewhere, is not to be in one.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel") or (sys.stderr is not None and sys.stderr.isatty())
