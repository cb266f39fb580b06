"""The result of a simulation: one decision per event, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._display import pluralize
from penstock.simulate.bucket import bucket_of
from penstock.simulate.evaluator import NUMBERS, LimitFeed
from penstock.simulate.format import format_value
from penstock.simulate.ids import as_text
from penstock.simulate.totals import WithTotals

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from penstock import _core
    from penstock.simulate.bucket import Bucket
    from penstock.simulate.evaluator import Evaluator
    from penstock.simulate.ids import AnyId
    from penstock.simulate.recommendation import Recommendation
    from penstock.simulate.trace import Trace


class Simulation(WithTotals):
    """One decision for each event of a trace, in its order.

    A column that was not asked for is computed when it is first read; do not change the trace's
    arrays until then.
    """

    def __init__(self, trace: Trace, evaluator: Evaluator) -> None:
        self.trace = trace
        self.evaluator = evaluator
        self._columns = evaluator.columns(trace, "allowed")
        self._core: _core.Simulator | None = None

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Whether each event was allowed."""
        return self._column("allowed")

    @property
    def remaining(self) -> NDArray[np.int64]:
        """Tokens left after each event; 2**63 - 1 if no limit applies."""
        return self._column("remaining")

    @property
    def retry_after_ns(self) -> NDArray[np.int64]:
        """Nanoseconds until the same cost could be allowed, if nothing else is spent."""
        return self._column("retry_after_ns")

    @property
    def reset_after_ns(self) -> NDArray[np.int64]:
        """Nanoseconds until the bucket is full again, if nothing else is spent."""
        return self._column("reset_after_ns")

    @property
    def denied_share(self) -> float:
        """Share of the events that was denied, 0 to 1; 0 if there are no events."""
        denied = len(self) - int(np.count_nonzero(self._column("allowed")))
        return denied / len(self) if denied else 0.0

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = self.evaluator.columns(self.trace, name)[name]
        return self._columns[name]

    def _counted(self) -> _core.Simulator:
        if self._core is None:
            feed = LimitFeed(self.evaluator)
            feed.core.count(*feed.arrays(self.trace), np.empty(len(self), np.uint8))
            self._core = feed.core
        return self._core

    def bucket(self, id: AnyId | None = None) -> Bucket | None:
        """Return the bucket of a client while it matters; None if no limit applies to it.

        Args:
            id: The client. None: the one with the most denied events, or with the most events if
                nothing was denied.

        Raises:
            KeyError: The trace has no such client.
        """
        if id is None:
            (id, *_) = self.top_clients()["id"] or [None]
        if id is None:
            return None
        trace = self.evaluator.by_bucket(self.trace)
        name, limit = self.evaluator.bucket_of(as_text(id))
        number = trace.clients.index(name) if name in trace.clients else -1
        mine = np.flatnonzero(trace.client_indices == number)
        if len(mine) == 0:
            raise KeyError(f"the trace has no event of {name!r}")
        return bucket_of(name, limit, trace.take(mine), self._column("allowed")[mine])

    def plot(self, id: AnyId | None = None, *, ax: Axes | None = None) -> Any:
        """Plot arrivals, allowed and denied events over time, and one bucket.

        Events are counted in bins, so that millions are drawn as fast as a few.

        Args:
            id: The client whose bucket is shown, while its events are denied or it is busiest:
                for an hour, or less if it has more than 200 events in it. None: the client of
                `bucket()`. Under a limit on requests in flight, these are shown.
            ax: Axes to draw into: the bucket, if `id` is given, else the events. None: a new figure
                of both.

        Returns:
            The `matplotlib.figure.Figure`, or `ax`. The figure is not registered with pyplot and
            needs no closing.

        Raises:
            ImportError: Matplotlib is not installed.
            KeyError: The trace has no such client.
        """
        from penstock.simulate.report import plot  # noqa: PLC0415  needs Matplotlib

        if ax is not None and id is not None:
            return plot.show(plot.draw_bucket, self.bucket(id), ax=ax)
        return plot.plot_simulation(self, None if ax else self.bucket(id), ax=ax)

    def report(
        self, path: str | os.PathLike[str], *, recommendation: Recommendation | None = None
    ) -> Path:
        """Write a self-contained HTML page.

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

        report = page.Report({"": self}, self.trace.source, self.trace.skipped, recommendation)
        return report.write(path)

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return all columns as arrays, by name; `id`, `cost`, `duration` if the trace has them."""
        columns = self.trace.columns(self.trace.ids)
        del columns["time"]
        return {"time_ns": self.trace.times, **columns, **self._decisions()}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` of the trace, as `Trace.to_pandas`, and of its decisions.

        Raises:
            ImportError: pandas is not installed.
        """
        frame = self.trace.to_pandas()
        for name, column in self._decisions().items():
            frame[name] = column
        return frame

    def _decisions(self) -> dict[str, Any]:
        return {name: self._column(name) for name in ("allowed", *NUMBERS)}

    def __getstate__(self) -> dict[str, Any]:
        # The totals are counted again where they are needed.
        return {**self.__dict__, "_core": None}

    def __len__(self) -> int:
        return len(self.trace)

    def __repr__(self) -> str:
        denied = format_value("denied_share", self.denied_share)
        name = "" if self.trace.name is None else f" of {self.trace.printable_name}"
        return f"<Simulation{name}: {pluralize(len(self), 'event')}, {denied} denied>"
