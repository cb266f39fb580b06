"""Figures by Matplotlib. They are not registered with pyplot, so they need no closing."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from penstock.display import printable
from penstock.simulate.format import format_value
from penstock.simulate.optional import PLOTTING, import_optional
from penstock.simulate.report import palette
from penstock.simulate.report.labels import bucket_title, events_per, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from penstock.simulate.histogram import Bins
    from penstock.simulate.level import Level
    from penstock.simulate.limit_result import LimitResult
    from penstock.simulate.report.labels import TimeAxis


_MAX_POINTS: Final = 2_000
# Inches from which a figure has room for large numbers side by side.
_WIDE: Final = 6
_MAX_MARKS: Final = 500
# A bucket that was used in less than this share of the time has a time axis of its own.
_BRIEF: Final = 0.25
_SECOND: Final = 1_000_000_000
# The last time of any clock.
_MAX_TIME: Final = 2**63 - 1


def plot_simulation(result: LimitResult, *, ax: Axes | None = None) -> Any:
    """Plot arrivals, allowed and denied events over time, and the level of one bucket below."""
    import_optional("matplotlib", "plot()", PLOTTING)
    level = result.level
    axis = time_axis(result.first_ns, result.last_ns)
    limit = plot_text(result.limit)
    summary = result.summary
    share = format_value("denied_share", summary.denied_share)
    totals = f"{summary.events:,} events, {summary.denied:,} denied ({share})"
    if ax is not None:
        draw_bins(ax, result.bins, axis)
        ax.set_title(limit or totals, loc="left")
        return ax
    figure = draw_traffic(result, 9.0, 6.2 if level else 3.6)
    figure.suptitle(limit or "Simulation", x=0.01, ha="left", fontweight="bold")
    figure.axes[0].set_title(totals, loc="left", fontsize="medium")
    return figure


def draw_traffic(result: LimitResult, width: float, height: float) -> Figure:
    """Draw the events, and the level of one bucket below.

    It has the same time axis, or one of its own if its client was there only for a short time.
    """
    level = result.level
    axis = time_axis(result.first_ns, result.last_ns)
    is_brief = level is not None and _is_brief(level, result)
    ratios = [3, 2] if level is not None else [1]
    figure = new_figure(height, width)
    panels = figure.subplots(
        len(ratios), 1, sharex=not is_brief, squeeze=False, gridspec_kw={"height_ratios": ratios}
    )[:, 0]
    draw_bins(panels[0], result.bins, axis)
    if level is not None:
        if is_brief:
            axis = time_axis(int(level.times[0]), int(level.times[-1]))
        else:
            panels[0].set_xlabel("")
        draw_level(panels[1], level, axis)
    return figure


def _is_brief(level: Level, result: LimitResult) -> bool:
    """Whether a bucket was used in a small part of the time only."""
    used = int(level.times[-1]) - int(level.times[0])
    return 0 < used < _BRIEF * (result.last_ns - result.first_ns)


def new_figure(height: float, width: float = 9.0) -> Figure:
    """Make a figure that notebooks show although pyplot does not know it."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    class Picture(Figure):
        """A figure with a PNG representation."""

        def _repr_png_(self) -> bytes:
            """Return the figure for a notebook."""
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=90)
            return file.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def draw_bins(axes: Axes, bins: Bins, axis: TimeAxis) -> None:
    """Draw allowed and denied events as stacked bars, which add up to the arrivals."""
    edges = np.append(bins.start_ns, bins.start_ns[-1:] + bins.width_ns)
    positions = axis.positions(edges)
    if len(bins.start_ns):
        axes.stairs(bins.allowed, positions, fill=True, color=palette.ALLOWED, label="allowed")
        axes.stairs(
            bins.arrivals, positions, baseline=bins.allowed, fill=True, color=palette.DENIED,
            label="denied",
        )  # fmt: skip
    axes.set_ylabel(events_per(bins.width_ns))
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    count_axis(axes)
    label_time_axis(axes, axis)
    if len(bins.start_ns):
        axes.legend(loc="upper right", ncols=2, frameon=False, bbox_to_anchor=(1, 1.14))


def draw_level(axes: Axes, level: Level, axis: TimeAxis) -> None:
    """Draw the level of a bucket, its capacity, and marks for denied events."""
    times, tokens = thin(level.times, level.tokens)
    axes.plot(axis.positions(times), tokens, color=palette.LEVEL, linewidth=1.2)
    full = _full(level)
    if full is not None:
        axes.axhline(full, color=palette.FULL, linestyle=":", linewidth=1)
    denied = level.denied_times
    if len(denied) > _MAX_MARKS:
        denied = denied[np.linspace(0, len(denied) - 1, _MAX_MARKS).astype(np.int64)]
    if len(denied):
        below = np.zeros(len(denied))
        axes.plot(
            axis.positions(denied), below, "|", color=palette.DENIED, markersize=9, clip_on=False,
            label="denied",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    if len(times) and times[0] == times[-1]:
        # One second around a single instant, as in the bins.
        begin = int(times[0]) // _SECOND * _SECOND
        axes.set_xlim(*axis.positions(np.array([begin, min(begin + _SECOND, _MAX_TIME)])))
    axes.set_ylabel("tokens left")
    count_axis(axes)
    axes.set_title(plot_text(bucket_title(level)), loc="left", fontsize="medium")
    label_time_axis(axes, axis)


def draw_waits(axes: Axes, waits: tuple[tuple[str, int], ...]) -> None:
    """Draw the number of denied events by their `retry_after`."""
    last = max((index for index, (_, count) in enumerate(waits) if count), default=0)
    names = [name for name, _ in waits[: last + 1]]
    counts = [count for _, count in waits[: last + 1]]
    bars = axes.barh(names, counts, color=palette.DENIED)
    axes.bar_label(bars, [f"{count:,}" for count in counts], padding=4, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("denied events")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    # Large numbers need room on a phone.
    figure = axes.get_figure(root=True)
    is_narrow = figure is not None and figure.get_figwidth() < _WIDE
    axes.xaxis.set_major_locator(_whole_numbers(3 if is_narrow else "auto"))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _full(level: Level) -> int | None:
    facts = level.limit.describe()
    return None if facts is None or facts["evenly_spaced"] else facts["at_once"]


def thin(times: Any, values: Any) -> tuple[Any, Any]:
    """Reduce a line to the minimum and maximum of each group of neighbours."""
    if len(times) <= 2 * _MAX_POINTS:
        return times, values
    size = -(-len(times) // _MAX_POINTS)
    whole = len(times) // size * size
    rows = values[:whole].reshape(-1, size)
    starts = np.arange(0, whole, size)
    kept = np.concatenate([starts + rows.argmin(axis=1), starts + rows.argmax(axis=1)])
    kept = np.unique(np.append(kept, len(times) - 1))
    return times[kept], values[kept]


def label_time_axis(axes: Axes, axis: TimeAxis) -> None:
    """Format the x axis as times."""
    import matplotlib.dates  # noqa: PLC0415  an extra

    axes.set_xlabel(axis.label)
    axes.spines[["top", "right"]].set_visible(False)
    if axis.is_date:
        # matplotlib.dates has no types yet.
        dates: Any = matplotlib.dates
        # About two labels fit into an inch.
        figure = axes.get_figure(root=True)
        most = 9 if figure is None else max(3, int(figure.get_figwidth() * 1.2))
        locator = dates.AutoDateLocator(tz="UTC", minticks=3, maxticks=most)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(locator, tz="UTC", show_offset=False)
        )


def count_axis(axes: Axes) -> None:
    """Format the y axis as whole numbers."""
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _whole_numbers(most: int | Literal["auto"] = "auto") -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  an extra

    return MaxNLocator(most, integer=True)


def plot_text(text: str) -> str:
    """Return a text that Matplotlib draws as it is, and not as a formula."""
    return printable(text).replace("$", r"\$")
