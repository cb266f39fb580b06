"""Figures by Matplotlib: one function for each, for pages and for notebooks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from penstock._display import printable
from penstock._extras import Extra
from penstock.messages import describe_limit, format_duration
from penstock.simulate.format import format_date, format_value
from penstock.simulate.ids import EVERYONE
from penstock.simulate.times import FIRST_DATE_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from penstock.simulate.bucket import Bucket
    from penstock.simulate.recommendation import Recommendation
    from penstock.simulate.table import Table
    from penstock.simulate.totals import Bins, WithTotals


# Colors that work for color-blind readers, in black and white, and on light and dark pages: each
# has a contrast of at least 3 to white and to black, and allowed to denied one of 2.
# Source: the hues of Okabe and Ito, Color Universal Design (2008).
ALLOWED: Final = "#00659e"
DENIED: Final = "#e07800"
LEVEL: Final = "#009e73"
FULL: Final = "#7f7f7f"
_UNITS: Final = (
    (86_400_000_000_000, "days"),
    (3_600_000_000_000, "hours"),
    (60_000_000_000, "minutes"),
    (1_000_000_000, "seconds"),
    (1_000_000, "milliseconds"),
)
# Inches from which a figure has room for large numbers side by side.
_WIDE: Final = 6
_MAX_MARKS: Final = 500
_MAX_TEXTS: Final = 150
_MAX_LABEL: Final = 36
_MAX_ID: Final = 60
# A time axis that is shorter says when it begins.
_MINUTES: Final = 600_000_000_000


def time_axis(axes: Axes, first_ns: int, last_ns: int) -> Callable[[NDArray[np.int64]], Any]:
    """Format the x axis for times in a range; return a function from times to their positions."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  an extra

    axes.spines[["top", "right"]].set_visible(False)
    # About two labels fit into an inch.
    most = max(3, min(9, int(_inches(axes) * 1.2)))
    if first_ns >= FIRST_DATE_NS:
        _date_axis(axes, first_ns, last_ns, most)
        return lambda times: times.astype("datetime64[ns]")
    unit, name = next(
        ((unit, name) for unit, name in _UNITS if last_ns - first_ns >= 3 * unit), _UNITS[-1]
    )
    axes.set_xlabel(f"time ({name})")
    # Hours and minutes at multiples of 3 and 6.
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 3, 6, 10]))
    return lambda times: times / unit


def _date_axis(axes: Axes, first_ns: int, last_ns: int, most: int) -> None:
    import matplotlib.dates  # noqa: PLC0415  an extra

    # The days are those of the events; Matplotlib would show that of the last tick.
    first, last = (format_date(each)[:10] for each in (first_ns, last_ns))
    days = first if first == last else f"{first} to {last}"
    if last_ns - first_ns < _MINUTES:
        # The ticks may be seconds only.
        days = format_date(first_ns)[:16]
    axes.set_xlabel(f"time (UTC), {days}")
    # matplotlib.dates has no types yet.
    dates: Any = matplotlib.dates
    locator = dates.AutoDateLocator(tz="UTC", minticks=3, maxticks=most)
    locator.intervald[dates.HOURLY] = [1, 3, 6, 12]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC", show_offset=False))


def bucket_title(bucket: Bucket) -> str:
    """Return the title of a bucket's plot."""
    title = "Requests in flight" if bucket.is_in_flight else "Bucket"
    if bucket.id == EVERYONE:
        return title
    return f"{title} of {printable(format_value('id', bucket.id), _MAX_ID)}"


def show(draw: Callable[..., None], *values: Any, ax: Axes | None = None) -> Any:
    """Draw into axes, or into a new figure.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    if ax is not None:
        draw(ax, *values)
        return ax
    figure = new_figure(4.4, 8.0)
    draw(figure.subplots(), *values)
    return figure


def plot_simulation(simulated: WithTotals, bucket: Bucket | None, *, ax: Axes | None = None) -> Any:
    """Plot allowed and denied events over time, and one bucket below."""
    summary, limit = simulated.summary(), plot_text(simulated.evaluator.described[0])
    share = format_value("denied_share", summary.denied_share)
    totals = f"{summary.events:,} events, {summary.denied:,} denied ({share})"
    if ax is not None:
        draw_traffic(ax, simulated.bins())
        ax.set_title(limit, loc="left")
        return ax
    panels = 1 if bucket is None else 2
    figure = new_figure(3.6 if bucket is None else 6.2, 9.0)
    above, *below = figure.subplots(panels, 1, squeeze=False, height_ratios=[3, 2][:panels])[:, 0]
    draw_traffic(above, simulated.bins())
    figure.suptitle(limit, x=0.01, ha="left", fontweight="bold")
    above.set_title(totals, loc="left", fontsize="medium")
    if bucket is not None:
        draw_bucket(below[0], bucket)
    return figure


def new_figure(height: float, width: float) -> Figure:
    """Make a figure that notebooks show although pyplot does not know it."""
    with Extra("notebook"):
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    class Picture(Figure):
        """A figure with a PNG representation."""

        def _repr_png_(self) -> bytes:
            """Return the figure for a notebook."""
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=90)
            return file.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def draw_traffic(axes: Axes, bins: Bins) -> None:
    """Draw allowed and denied events as stacked bars, which add up to the arrivals."""
    positions_of = time_axis(axes, bins.first_ns, bins.last_ns)
    if len(bins.arrivals):
        edges = bins.start_ns + bins.width_ns * np.arange(len(bins.arrivals) + 1, dtype=np.int64)
        positions, allowed = positions_of(edges), bins.arrivals - bins.denied
        axes.stairs(allowed, positions, fill=True, color=ALLOWED, label="allowed")
        axes.stairs(
            bins.arrivals, positions, baseline=allowed, fill=True, color=DENIED,
            label="denied",
        )  # fmt: skip
        axes.legend(loc="lower right", ncols=2, frameon=False, bbox_to_anchor=(1, 1))
    axes.set_ylabel(f"events per {format_duration(bins.width_ns)}")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    _count_axis(axes)


def draw_bucket(axes: Axes, bucket: Bucket) -> None:
    """Draw the tokens left in a bucket, or the requests in flight, with marks for denied events."""
    positions_of = time_axis(axes, int(bucket.times[0]), int(bucket.times[-1]))
    style = "steps-post" if bucket.is_in_flight else "default"
    axes.plot(
        positions_of(bucket.times), bucket.tokens, color=LEVEL, linewidth=1.2,
        drawstyle=style,
    )  # fmt: skip
    label = "limit" if bucket.is_in_flight else "full"
    axes.axhline(bucket.full, color=FULL, linestyle=":", linewidth=1.4, label=label)
    denied = bucket.denied_times
    if len(denied) > _MAX_MARKS:
        denied = denied[np.linspace(0, len(denied) - 1, _MAX_MARKS).astype(np.int64)]
    if len(denied):
        at = np.full(len(denied), bucket.full if bucket.is_in_flight else 0)
        axes.plot(
            positions_of(denied), at, "|", color=DENIED, markersize=9, clip_on=False,
            label="denied",
        )  # fmt: skip
    axes.legend(loc="lower right", ncols=2, frameon=False, bbox_to_anchor=(1, 1))
    axes.set_ylim(0, 1.05 * max(bucket.full, 1))
    axes.margins(x=0)
    axes.set_ylabel("requests in flight" if bucket.is_in_flight else "tokens left")
    _count_axis(axes)
    axes.set_title(plot_text(bucket_title(bucket)), loc="left", fontsize="medium")


def draw_waits(axes: Axes, waits: Mapping[str, int]) -> None:
    """Draw the number of denied events by their `retry_after`."""
    counts = [*waits.values()]
    _draw_bars(axes, [*waits], counts, [f"{count:,}" for count in counts], DENIED)
    axes.set_xlabel("denied events")
    # Large numbers need room on a phone.
    axes.xaxis.set_major_locator(_whole_numbers(3 if _inches(axes) < _WIDE else "auto"))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def draw_table(
    axes: Axes, table: Table, parameters: Sequence[str], value: str = "denied_share"
) -> None:
    """Draw one number of each limit: bars, a line of one parameter, or a heat map of two."""
    values = np.array(table[value], np.float64) * (100 if value.endswith("_share") else 1)
    varied = [name for name in parameters if len(set(map(str, table[name]))) > 1]
    if len(varied) > 2:  # noqa: PLR2004  a figure has two axes
        raise ValueError(
            f"a figure shows two parameters, but {', '.join(varied)} have several values; "
            f"use one value for {varied[0]}"
        )
    *first, x = varied or parameters[:1]
    y = first[0] if first else None
    label = _label(value)
    fixed = ", ".join(
        f"{name} {table[name][0]}" for name in parameters if name not in {x, y, "limit"}
    )
    axes.set_title(
        plot_text(f"{label}; {fixed}" if fixed else label), loc="left", fontweight="bold"
    )
    if y is not None:
        _draw_heat(axes, table, (x, y), values, label)
    elif x == "limit":
        labels = [format_value(value, each) for each in table[value]]
        color = DENIED if "denied" in value else ALLOWED
        _draw_bars(axes, table[x], values, labels, color)
        axes.set_xlabel(label)
    else:
        marks = [str(mark) for mark in table[x]]
        axes.plot(range(len(marks)), values, "o-", color=ALLOWED)
        axes.set_xticks(range(len(marks)), marks)
        axes.set_xlabel(_label(x))
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.08 * max(float(values.max()), 1e-9))
        axes.spines[["top", "right"]].set_visible(False)


def draw_recommendation(axes: Axes, recommended: Recommendation) -> None:
    """Draw how many clients need how much, and the count of each limit to choose."""
    chosen = recommended.chosen
    order = np.argsort(-chosen.most, kind="stable")
    most, is_far = np.maximum(chosen.most[order], 1), chosen.is_far[order]
    rank = np.arange(1, len(most) + 1)
    axes.step(most, rank, where="post", color=ALLOWED, label="clients that need as much")
    if is_far.any():
        axes.plot(
            most[is_far], rank[is_far], "D", color=DENIED, markersize=6, linestyle="none",
            label="far from the rest",
        )  # fmt: skip
    label = "other limits of the table"
    for each in recommended.candidates:
        if each.most is chosen.most and each is not chosen:
            axes.axvline(each.count, color=FULL, linestyle=":", linewidth=1, label=label)
            # The legend has them once.
            label = "_"
    axes.axvline(
        chosen.count, color=DENIED, linestyle="--",
        label=plot_text(f"chosen: {describe_limit(chosen.limit)}"),
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter("{x:,.0f}")
    unit = chosen.unit
    label = unit if unit.startswith("most") else f"tokens in the {unit}"
    axes.set_xlabel(label)
    axes.set_ylabel("clients")
    axes.spines[["top", "right"]].set_visible(False)
    columns = 2 if _inches(axes) >= _WIDE else 1
    axes.legend(
        loc="lower left", ncols=columns, frameon=False, fontsize="small", bbox_to_anchor=(0, 1)
    )


def plot_text(text: str) -> str:
    """Return a string that Matplotlib draws as it is, and not as a formula."""
    return printable(text).replace("$", r"\$")


def _draw_bars(
    axes: Axes, names: Sequence[str], values: Any, labels: Sequence[str], color: str
) -> None:
    places = range(len(names))
    bars = axes.barh(places, values, color=color)
    axes.set_yticks(places, [plot_text(printable(name, _MAX_LABEL)) for name in names])
    axes.bar_label(bars, labels, padding=4, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_heat(axes: Axes, table: Table, names: tuple[str, str], values: Any, label: str) -> None:
    columns = list(dict.fromkeys(table[names[0]]))
    rows = list(dict.fromkeys(table[names[1]]))
    grid = np.full((len(rows), len(columns)), np.nan)
    for x, y, number in zip(table[names[0]], table[names[1]], values, strict=True):
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
        # All numbers have as many decimals as the largest one needs for three digits.
        whole = len(f"{np.nanmax(np.abs(grid)):.0f}")
        decimals = 0 if np.array_equal(grid, np.round(grid)) else max(3 - whole, 0)
        for (row, column), number in np.ndenumerate(grid):
            ink = "white" if number > half else "black"
            axes.text(
                column,
                row,
                f"{number:,.{decimals}f}",
                ha="center",
                va="center",
                color=ink,
                fontsize="small",
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


def _count_axis(axes: Axes) -> None:
    """Format the y axis as whole numbers."""
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _whole_numbers(most: int | Literal["auto"] = "auto") -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  an extra

    return MaxNLocator(most, integer=True)


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return 0.0 if figure is None else float(figure.get_figwidth())
