"""Figures of what has several limits: a comparison, a sweep, a recommendation."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.simulate.report import palette
from penstock.simulate.report.findings import finding_of
from penstock.simulate.report.optional import drawing_library
from penstock.simulate.report.plot import count_axis, label_time_axis, new_figure, plain
from penstock.simulate.report.text import events_per, time_axis
from penstock.simulate.result import Summary
from penstock.simulate.table import shown
from penstock.web.messages import describe_limit, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from penstock.simulate.compare import Comparison
    from penstock.simulate.recommend import Recommendation
    from penstock.simulate.report.findings import Finding
    from penstock.simulate.sweep import Sweep

__all__ = [
    "draw_curve",
    "draw_denied",
    "draw_shares",
    "plot_comparison",
    "plot_recommendation",
    "plot_sweep",
]

_DASHES: Final = ("-", "--", ":", "-.")
_MOST_TEXTS: Final = 150
_MOST_STEPS: Final = 120
_LONGEST: Final = 36
# From there on a scale by factors shows more.
_WIDE: Final = 30


def plot_comparison(comparison: Comparison) -> Any:
    """Draw the denied events of each limit over time, and their shares."""
    drawing_library("matplotlib", "plot()")
    findings = [finding_of(each, name) for name, each in comparison.simulations.items()]
    figure = new_figure(4.0 + 0.42 * len(findings))
    ratios = [3, 0.6 + 0.45 * len(findings)]
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": ratios})
    figure.suptitle("Denied over time", x=0.01, ha="left", fontweight="bold")
    draw_denied(above, findings)
    draw_shares(below, findings)
    return figure


def draw_denied(axes: Axes, findings: Sequence[Finding]) -> None:
    """Draw how many events each limit denied over time."""
    width = 1
    for place, finding in enumerate(findings):
        overview = finding.overview
        bins, axis = overview.bins, time_axis(overview.first_ns, overview.last_ns)
        # Lines above one another are read by their course, not by each of many steps.
        together = max(1, -(-len(bins.start_ns) // _MOST_STEPS))
        width = bins.width_ns * together
        begins = np.arange(0, len(bins.start_ns), together)
        color, dash = _look(place)
        if len(begins):
            starts = bins.start_ns[begins]
            axes.stairs(
                np.add.reduceat(bins.denied, begins),
                axis.at(np.append(starts, starts[-1] + width)),
                color=color,
                linestyle=dash,
                linewidth=1.4,
                label=_called(finding.called),
            )
        label_time_axis(axes, axis)
    axes.set_ylabel(f"denied {events_per(width)}")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    count_axis(axes)
    axes.legend(
        loc="lower right", frameon=False, ncols=3, fontsize="small", bbox_to_anchor=(1, 1.0)
    )


def draw_shares(axes: Axes, findings: Sequence[Finding]) -> None:
    """Draw the denied share of each limit, with its numbers."""
    shares = [100 * finding.overview.summary.denied_share for finding in findings]
    labels = [
        _called(each.called) + (f"\n{_called(each.asked)}" if each.asked else "")
        for each in findings
    ]
    places = range(len(findings))
    bars = axes.barh(places, shares, color=[_look(place)[0] for place in places], height=0.62)
    axes.bar_label(bars, [_told(each.overview.summary) for each in findings], padding=5)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, max(max(shares) * 2.4, 1e-3))
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 100])  # noqa: PLR2004  per cent
    axes.set_xlim(0, max(max(shares) * 2.4, 1e-3))
    axes.set_xlabel("denied (% of events)")
    axes.spines[["top", "right"]].set_visible(False)


def _told(summary: Summary) -> str:
    return (
        f"{shown('denied_share', summary.denied_share)}, "
        f"{summary.clients_denied:,} of {summary.clients:,} clients, "
        f"longest wait {shown('worst_wait', summary.worst_wait)}"
    )


def plot_sweep(
    sweep: Sweep, value: str = "denied_share", *, x: str | None = None, y: str | None = None
) -> Any:
    """Draw one number of each limit of the grid: a heat map of two parameters, a line of one."""
    drawing_library("matplotlib", "plot()")
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
            f"a figure shows two parameters, and {', '.join(varied)} have several values; "
            f"a sweep with one value for {others[0]} would do"
        )
    label = _label(value)
    figure = new_figure(4.4, 8.0)
    axes = figure.subplots()
    fixed = ", ".join(
        f"{name} {sweep[name][0]}" for name in parameters if name not in {x, y, "limit"}
    )
    axes.set_title(plain(f"{label}; {fixed}" if fixed else label), loc="left", fontweight="bold")
    if y is not None:
        _heat(axes, sweep, (x, y), values, label)
    elif x == "limit":
        bars = axes.barh([_called(name) for name in sweep[x]], values, color=palette.ALLOWED)
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


def plot_recommendation(recommendation: Recommendation) -> Any:
    """Draw the smallest burst for each count, and the pair that is recommended."""
    drawing_library("matplotlib", "plot()")
    figure = new_figure(4.0, 8.0)
    axes = figure.subplots()
    share = shown("denied_share", recommendation.max_denied)
    axes.set_title(
        f"{describe_limit(recommendation.limit)}: the smallest that denies at most {share}",
        loc="left",
        fontweight="bold",
    )
    draw_curve(axes, recommendation)
    return figure


def draw_curve(axes: Axes, recommendation: Recommendation) -> None:
    """Draw the smallest burst for each count, and mark the pair that is recommended."""
    curve = recommendation.curve
    axes.fill_between(
        curve["count"], curve["burst"], step="post", color=palette.DENIED, alpha=0.16, linewidth=0,
        label="denies more",
    )  # fmt: skip
    axes.step(
        curve["count"], curve["burst"], "o-", where="post", color=palette.ALLOWED, markersize=3,
        linewidth=1.2, label="the smallest burst for a count",
    )  # fmt: skip
    axes.plot(
        [recommendation.count], [recommendation.burst], "D", color=palette.DENIED, markersize=9,
        label="recommended", linestyle="none",
    )  # fmt: skip
    axes.annotate(
        f"burst {recommendation.burst:,}\ncount {recommendation.count:,}",
        (recommendation.count, recommendation.burst),
        xytext=(12, 10),
        textcoords="offset points",
    )
    if len(curve) > 1 and max(curve["count"]) > _WIDE * min(curve["count"]):
        axes.set_xscale("log")
    if len(curve) > 1 and max(curve["burst"]) > _WIDE * min(curve["burst"]):
        axes.set_yscale("log")
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"count (tokens per {format_duration(recommendation.limit.period_ns)})")
    axes.set_ylabel("burst (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, fontsize="small")


def _heat(axes: Axes, sweep: Sweep, names: tuple[str, str], values: Any, label: str) -> None:
    across = list(dict.fromkeys(sweep[names[0]]))
    up = list(dict.fromkeys(sweep[names[1]]))
    grid = np.full((len(up), len(across)), np.nan)
    for left, above, number in zip(sweep[names[0]], sweep[names[1]], values, strict=True):
        grid[up.index(above), across.index(left)] = number
    # Its lightness grows with its numbers, so that it reads without colours too.
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis_r")
    axes.set_xticks(range(len(across)), [str(each) for each in across])
    axes.set_yticks(range(len(up)), [str(each) for each in up])
    axes.set_xlabel(_label(names[0]))
    axes.set_ylabel(_label(names[1]))
    if axes.figure is not None:
        axes.figure.colorbar(image, ax=axes, label=label)
    if grid.size <= _MOST_TEXTS:
        half = (np.nanmax(grid) + np.nanmin(grid)) / 2
        for (row, column), number in np.ndenumerate(grid):
            ink = "white" if number > half else "black"
            axes.text(
                column, row, f"{number:.3g}", ha="center", va="center", color=ink, fontsize="small"
            )


def _label(name: str) -> str:
    words = {
        "denied_share": "denied (% of events)",
        "worst_wait": "longest wait (seconds)",
        "largest_at_once": "most admitted at once (tokens)",
        "largest_in_second": "most admitted in a second (tokens)",
        "largest_in_minute": "most admitted in a minute (tokens)",
        "burst": "burst (tokens)",
        "count": "count (tokens per period)",
        "size": "size (tokens)",
    }
    return words.get(name, name.replace("_", " "))


def _look(place: int) -> tuple[str, str]:
    """Give the colour and the dash of one of several limits."""
    around, color = divmod(place, len(palette.SEVERAL))
    return palette.SEVERAL[color], _DASHES[around % len(_DASHES)]


def _called(name: str) -> str:
    return plain(name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…")
