"""Figures of several limits: comparisons, sweeps, recommendations."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.display import printable
from penstock.messages import describe_limit, format_duration
from penstock.simulate.format import format_value
from penstock.simulate.limit_result import Summary
from penstock.simulate.optional import PLOTTING, import_optional
from penstock.simulate.report import palette
from penstock.simulate.report.labels import events_per, time_axis
from penstock.simulate.report.plot import count_axis, label_time_axis, new_figure, plot_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from penstock.simulate.limit_result import LimitResult, RecommendedLimit
    from penstock.simulate.table import Table


_DASHES: Final = ("-", "--", ":", "-.")
_MAX_TEXTS: Final = 150
_MAX_STEPS: Final = 120
_MAX_LABEL: Final = 36
# Ranges wider than this factor use a logarithmic scale.
_LOG_FACTOR: Final = 30


def plot_comparison(results: Sequence[LimitResult]) -> Any:
    """Plot the denied events of each limit over time, and their shares."""
    import_optional("matplotlib", "plot()", PLOTTING)
    figure = draw_comparison(results, 3.4 + 0.7 * len(results))
    figure.suptitle("Denied events", x=0.01, ha="left", fontweight="bold")
    return figure


def draw_comparison(results: Sequence[LimitResult], height: float, width: float = 9.0) -> Figure:
    """Draw the denied events of a few limits over time, and the shares of all below."""
    if len(results) > len(palette.SEVERAL):
        # More lines look alike.
        figure = new_figure(0.6 + 0.6 * len(results), width)
        _draw_shares(figure.subplots(), results)
        return figure
    figure = new_figure(height, width)
    ratios = [3, 0.6 + 0.75 * len(results)]
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": ratios})
    _draw_denied(above, results)
    _draw_shares(below, results)
    return figure


def _draw_denied(axes: Axes, results: Sequence[LimitResult]) -> None:
    """Draw the denied events of each limit over time."""
    width = 1
    for index, result in enumerate(results):
        bins, axis = result.bins, time_axis(result.first_ns, result.last_ns)
        # Several lines are readable only with a limited number of steps.
        merged = max(1, -(-len(bins.start_ns) // _MAX_STEPS))
        width = bins.width_ns * merged
        starts_at = np.arange(0, len(bins.start_ns), merged)
        color, dash = _style(index)
        if len(starts_at):
            starts = bins.start_ns[starts_at]
            axes.stairs(
                np.add.reduceat(bins.denied, starts_at),
                axis.positions(np.append(starts, starts[-1] + width)),
                color=color,
                linestyle=dash,
                linewidth=1.4,
                label=_label_text(result.title),
            )
        label_time_axis(axes, axis)
    axes.set_ylabel(f"denied {events_per(width)}")
    has_denied = any(result.summary.denied for result in results)
    axes.set_ylim(bottom=0, top=None if has_denied else 1)
    axes.margins(x=0)
    count_axis(axes)
    _legend_above(axes, _legend_columns(axes, results))


def _legend_above(axes: Axes, columns: int = 1) -> None:
    """Add a legend above the axes: where there is room within depends on the trace."""
    axes.legend(
        loc="lower left", ncols=columns, frameon=False, fontsize="small", bbox_to_anchor=(0, 1.0)
    )


def _legend_columns(axes: Axes, results: Sequence[LimitResult]) -> int:
    """Return how many labels fit beside each other."""
    longest = max(min(len(result.title), _MAX_LABEL) for result in results)
    return max(1, min(3, int(_inches(axes) * 9 / (longest + 6))))


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return 0.0 if figure is None else float(figure.get_figwidth())


def _draw_shares(axes: Axes, results: Sequence[LimitResult]) -> None:
    """Draw the denied share of each limit, with its numbers."""
    shares = [100 * each.summary.denied_share for each in results]
    positions = range(len(results))
    axes.barh(
        positions, shares, color=[_style(index)[0] for index in positions], height=0.3, align="edge"
    )
    for position, result in zip(positions, results, strict=True):
        title = " · ".join(filter(None, (result.title, result.limit)))
        title = plot_text(printable(title, int(_inches(axes) * 13)))
        text = f"{title}\n{_totals(result.summary)}"
        axes.text(0, position - 0.06, text, va="bottom", fontsize="small", clip_on=False)
    axes.set_yticks([])
    axes.set_ylim(len(results) - 0.6, -0.75)
    axes.set_xlim(0, min(max(shares) * 1.05, 100) or 1)
    axes.set_xlabel("denied (% of events)")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _totals(summary: Summary) -> str:
    return (
        f"{format_value('denied_share', summary.denied_share)}, "
        f"{summary.clients_denied:,} of {summary.clients:,} clients, "
        f"longest wait {format_value('longest_wait', summary.longest_wait)}"
    )


def plot_sweep(
    sweep: Table, value: str = "denied_share", *, x: str | None = None, y: str | None = None
) -> Any:
    """Plot one number of each limit of a sweep: a heat map of two parameters, or a line of one."""
    import_optional("matplotlib", "plot()", PLOTTING)
    values = np.array(sweep[value], np.float64) * (100 if value.endswith("_share") else 1)
    for column in (x, y):
        if column is not None:
            sweep[column]
    numbers = {field.name for field in fields(Summary)}
    parameters = [name for name in sweep.columns if name not in numbers]
    varied = [name for name in parameters if len(set(map(str, sweep[name]))) > 1]
    others = [name for name in varied if name not in {x, y}]
    x = x or (others.pop() if others else parameters[0])
    y = y or (others.pop() if others else None)
    if others:
        raise ValueError(
            f"a figure shows two parameters, but {', '.join(varied)} have several values; "
            f"use one value for {others[0]}"
        )
    label = _label(value)
    figure = new_figure(4.4, 8.0)
    axes = figure.subplots()
    fixed = ", ".join(
        f"{name} {sweep[name][0]}" for name in parameters if name not in {x, y, "limit"}
    )
    axes.set_title(
        plot_text(f"{label}; {fixed}" if fixed else label), loc="left", fontweight="bold"
    )
    if y is not None:
        _heat(axes, sweep, (x, y), values, label)
    elif x == "limit":
        bars = axes.barh([_label_text(name) for name in sweep[x]], values, color=palette.ALLOWED)
        axes.bar_label(bars, [f"{number:.3g}" for number in values], padding=4, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    else:
        marks = [str(mark) for mark in sweep[x]]
        axes.plot(range(len(marks)), values, "o-", color=palette.ALLOWED)
        axes.set_xticks(range(len(marks)), marks)
        axes.set_xlabel(_label(x))
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_recommendation(recommended: RecommendedLimit) -> Any:
    """Plot the smallest burst for each count, and the recommended pair."""
    import_optional("matplotlib", "plot()", PLOTTING)
    figure = new_figure(4.0, 8.0)
    share = format_value("denied_share", recommended.max_denied)
    title = f"{describe_limit(recommended.limit)}: smallest limit that denies at most {share}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    draw_curve(figure.subplots(), recommended)
    return figure


def draw_curve(axes: Axes, recommended: RecommendedLimit) -> None:
    """Draw the smallest burst for each count, and mark the recommended pair."""
    curve = recommended.curve
    if not any(curve["burst"]):
        _draw_shares_of_counts(axes, recommended)
        return
    # Up to the next larger count that was tried: between two counts, less is known.
    axes.fill_between(
        curve["count"], curve["burst"], step="pre", color=palette.DENIED, alpha=0.16, linewidth=0,
        label="denies more",
    )  # fmt: skip
    axes.step(
        curve["count"], curve["burst"], "o-", where="pre", color=palette.ALLOWED, markersize=3,
        linewidth=1.2, label="smallest burst for a count (dots: tried)",
    )  # fmt: skip
    axes.plot(
        [recommended.count], [recommended.burst], "D", color=palette.DENIED, markersize=9,
        label="recommended", linestyle="none",
    )  # fmt: skip
    axes.annotate(
        f"burst {recommended.burst:,}\ncount {recommended.count:,}",
        (recommended.count, recommended.burst),
        xytext=(12, 10),
        textcoords="offset points",
    )
    if len(curve) > 1 and max(curve["count"]) > _LOG_FACTOR * min(curve["count"]):
        axes.set_xscale("log")
    if len(curve) > 1 and max(curve["burst"]) > _LOG_FACTOR * min(curve["burst"]):
        axes.set_yscale("log")
    for side, name, number in (
        (axes.xaxis, "count", recommended.count),
        (axes.yaxis, "burst", recommended.burst),
    ):
        side.set_major_formatter("{x:,.0f}")
        if len(set(curve[name])) == 1:
            # One number is no range: its tick is enough.
            side.set_ticks(sorted({*curve[name], number}))
    axes.set_xlabel(f"count (tokens per {format_duration(recommended.period_ns)})")
    axes.set_ylabel("burst (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    _legend_above(axes)


def _draw_shares_of_counts(axes: Axes, recommended: RecommendedLimit) -> None:
    """Draw the denied share of each count of a window, which has no burst, and mark the count."""
    curve = recommended.curve
    axes.axhline(
        100 * recommended.max_denied, color=palette.FULL, linestyle=":", label="may be denied"
    )
    axes.plot(
        curve["count"], [100 * share for share in curve["denied_share"]], "o-",
        color=palette.ALLOWED, markersize=3, linewidth=1.2, label="denied (dots: tried)",
    )  # fmt: skip
    axes.axvline(
        recommended.count, color=palette.DENIED, linestyle="--",
        label=f"recommended: {recommended.count:,}",
    )  # fmt: skip
    if max(curve["count"]) > _LOG_FACTOR * min(curve["count"]):
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    period_ns = recommended.period_ns
    tokens = f"tokens per {format_duration(period_ns)}" if period_ns else "requests in flight"
    axes.set_xlabel(f"count ({tokens})")
    axes.set_ylabel(f"denied (% of {recommended.objective})")
    axes.spines[["top", "right"]].set_visible(False)
    _legend_above(axes, 3)


def _heat(axes: Axes, sweep: Table, names: tuple[str, str], values: Any, label: str) -> None:
    columns = list(dict.fromkeys(sweep[names[0]]))
    rows = list(dict.fromkeys(sweep[names[1]]))
    grid = np.full((len(rows), len(columns)), np.nan)
    for x, y, number in zip(sweep[names[0]], sweep[names[1]], values, strict=True):
        grid[rows.index(y), columns.index(x)] = number
    # The lightness changes with the value, so that it is readable without colors.
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis_r")
    axes.set_xticks(range(len(columns)), [str(each) for each in columns])
    axes.set_yticks(range(len(rows)), [str(each) for each in rows])
    axes.set_xlabel(_label(names[0]))
    axes.set_ylabel(_label(names[1]))
    if axes.figure is not None:
        axes.figure.colorbar(image, ax=axes, label=label)
    if grid.size <= _MAX_TEXTS:
        half = (np.nanmax(grid) + np.nanmin(grid)) / 2
        for (row, column), number in np.ndenumerate(grid):
            ink = "white" if number > half else "black"
            axes.text(
                column, row, f"{number:.3g}", ha="center", va="center", color=ink, fontsize="small"
            )


def _label(name: str) -> str:
    labels = {
        "denied_share": "denied (% of events)",
        "longest_wait": "longest wait (seconds)",
        "most_at_once": "most admitted at once (tokens)",
        "most_in_second": "most admitted in a second (tokens)",
        "most_in_minute": "most admitted in a minute (tokens)",
        "burst": "burst (tokens)",
        "count": "count (tokens per period)",
        "size": "size (tokens)",
    }
    return labels.get(name, name.replace("_", " "))


def _style(index: int) -> tuple[str, str]:
    """Return the color and the dash of one of several limits."""
    return palette.SEVERAL[index % len(palette.SEVERAL)], _DASHES[index % len(_DASHES)]


def _label_text(text: str) -> str:
    return plot_text(printable(text, _MAX_LABEL))
