"""Figures, by Matplotlib. Nothing is registered with pyplot, so that nothing has to be closed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.simulate.report import palette
from penstock.simulate.report.findings import bucket_to_show
from penstock.simulate.report.optional import drawing_library
from penstock.simulate.report.tally import overview_of
from penstock.simulate.report.text import asked_of, events_per, time_axis
from penstock.simulate.table import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from penstock.simulate.ids import AnyId
    from penstock.simulate.level import Level
    from penstock.simulate.report.text import Axis
    from penstock.simulate.result import Bins, Simulation

__all__ = [
    "count_axis",
    "draw_bins",
    "draw_level",
    "draw_waits",
    "label_time_axis",
    "new_figure",
    "plain",
    "plot_simulation",
    "thinned",
    "whose",
]

_MOST_POINTS: Final = 2_000
_MOST_MARKS: Final = 500
_SECOND: Final = 1_000_000_000
# The last instant of all clocks.
_LAST: Final = 2**63 - 1
_LONGEST_ID: Final = 60


def plot_simulation(
    simulation: Simulation, id: AnyId | None = None, *, ax: Axes | None = None
) -> Any:
    """Draw arrivals, allowed and denied over time, and below them how full one bucket was."""
    drawing_library("matplotlib", "plot()")
    overview = overview_of(simulation)
    axis = time_axis(overview.first_ns, overview.last_ns)
    words = plain(asked_of(simulation))
    summary = overview.summary
    share = shown("denied_share", summary.denied_share)
    told = f"{summary.events:,} events, {summary.denied:,} denied ({share})"
    if ax is not None:
        draw_bins(ax, overview.bins, axis)
        ax.set_title(words or told, loc="left")
        return ax
    level = bucket_to_show(simulation, overview, id)
    figure = new_figure(6.2 if level else 3.6)
    ratios = [3, 2] if level else [1]
    panels = figure.subplots(
        len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
    )[:, 0]
    figure.suptitle(words or "Simulation", x=0.01, ha="left", fontweight="bold")
    draw_bins(panels[0], overview.bins, axis)
    panels[0].set_title(told, loc="left", fontsize="medium")
    if level is not None:
        panels[0].set_xlabel("")
        draw_level(panels[1], level, axis)
    return figure


def new_figure(height: float, width: float = 9.0) -> Figure:
    """Make a figure that a notebook shows though pyplot does not know it."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    class Picture(Figure):
        """A figure of penstock's."""

        def _repr_png_(self) -> bytes:
            """Draw it for a notebook."""
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=90)
            return drawn.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def draw_bins(axes: Axes, bins: Bins, axis: Axis) -> None:
    """Draw counts of allowed and denied events, one upon the other: together the arrivals."""
    edges = np.append(bins.start_ns, bins.start_ns[-1:] + bins.width_ns)
    at = axis.at(edges)
    if len(bins.start_ns):
        axes.stairs(bins.allowed, at, fill=True, color=palette.ALLOWED, label="allowed")
        axes.stairs(
            bins.arrivals, at, baseline=bins.allowed, fill=True, color=palette.DENIED,
            label="denied",
        )  # fmt: skip
        axes.stairs(bins.arrivals, at, color=palette.FULL, linewidth=0.8, label="arrivals")
    axes.set_ylabel(events_per(bins.width_ns))
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    count_axis(axes)
    label_time_axis(axes, axis)
    if len(bins.start_ns):
        axes.legend(loc="upper right", ncols=3, frameon=False, bbox_to_anchor=(1, 1.14))


def draw_level(axes: Axes, level: Level, axis: Axis) -> None:
    """Draw how full a bucket was, what a full one holds, and when events were denied."""
    times, tokens = thinned(level.times, level.tokens)
    axes.plot(axis.at(times), tokens, color=palette.LEVEL, linewidth=1.2)
    full = _full(level)
    if full is not None:
        axes.axhline(full, color=palette.FULL, linestyle=":", linewidth=1)
    denied = level.denied_times
    if len(denied) > _MOST_MARKS:
        denied = denied[np.linspace(0, len(denied) - 1, _MOST_MARKS).astype(np.int64)]
    if len(denied):
        below = np.zeros(len(denied))
        axes.plot(
            axis.at(denied), below, "|", color=palette.DENIED, markersize=9, clip_on=False,
            label="denied",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    if len(times) and times[0] == times[-1]:
        # The second around an instant, as bins have it.
        begin = int(times[0]) // _SECOND * _SECOND
        axes.set_xlim(*axis.at(np.array([begin, min(begin + _SECOND, _LAST)])))
    axes.set_ylabel("tokens left")
    count_axis(axes)
    axes.set_title(plain(whose(level)), loc="left", fontsize="medium")
    label_time_axis(axes, axis)


def draw_waits(axes: Axes, waits: tuple[tuple[str, int], ...]) -> None:
    """Draw how many denied events were told to wait how long."""
    last = max((place for place, (_, count) in enumerate(waits) if count), default=0)
    words = [word for word, _ in waits[: last + 1]]
    counts = [count for _, count in waits[: last + 1]]
    bars = axes.barh(words, counts, color=palette.DENIED)
    axes.bar_label(bars, [f"{count:,}" for count in counts], padding=4, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("denied events")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.xaxis.set_major_formatter("{x:,.0f}")


def whose(level: Level) -> str:
    """Say whose bucket a level is of."""
    id = level.id if len(level.id) <= _LONGEST_ID else level.id[: _LONGEST_ID - 1] + "…"
    return "the bucket" if id == "*" else f"the bucket of {id}"


def _full(level: Level) -> int | None:
    limit = level.limit
    match limit.algorithm:
        case "token-bucket":
            return limit.burst
        case "leaky-bucket":
            return limit.size
        case "fixed-window":
            return limit.count
        case _:
            return None


def thinned(times: Any, values: Any, points: int = _MOST_POINTS) -> tuple[Any, Any]:
    """Keep the lowest and the highest of neighbours, where there are more than can be seen."""
    if len(times) <= 2 * points:
        return times, values
    each = -(-len(times) // points)
    whole = len(times) // each * each
    rows = values[:whole].reshape(-1, each)
    begins = np.arange(0, whole, each)
    kept = np.concatenate([begins + rows.argmin(axis=1), begins + rows.argmax(axis=1)])
    kept = np.unique(np.append(kept, len(times) - 1))
    return times[kept], values[kept]


def label_time_axis(axes: Axes, axis: Axis) -> None:
    """Have the axis from left to right tell times."""
    import matplotlib.dates  # noqa: PLC0415  an extra

    axes.set_xlabel(axis.label)
    axes.spines[["top", "right"]].set_visible(False)
    if axis.is_date:
        # Matplotlib's dates have no types yet.
        dates: Any = matplotlib.dates
        locator = dates.AutoDateLocator(tz="UTC")
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))


def count_axis(axes: Axes) -> None:
    """Have the axis from below tell whole numbers."""
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  an extra

    return MaxNLocator("auto", integer=True)


def plain(text: str) -> str:
    """Make a text that Matplotlib shows as it is, formulas and what is not seen included."""
    visible = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return visible.replace("$", r"\$")
