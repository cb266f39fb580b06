"""Interactive charts, by Altair: zoom with the wheel, move by dragging, numbers under the pointer.

What is charted stands in the chart: at most some 5,000 rows, however many events there are.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.simulate.report import palette
from penstock.simulate.report.findings import bucket_to_show
from penstock.simulate.report.optional import drawing_library
from penstock.simulate.report.plot import thinned, whose
from penstock.simulate.report.tally import overview_of
from penstock.simulate.report.text import asked_of, events_per, time_axis

if TYPE_CHECKING:
    from penstock.simulate.compare import Comparison
    from penstock.simulate.ids import AnyId
    from penstock.simulate.level import Level
    from penstock.simulate.report.text import Axis
    from penstock.simulate.result import Bins, Simulation

__all__ = ["chart_comparison", "chart_simulation"]

_MOST_ROWS: Final = 4_000
_MOST_BINS: Final = 1_200
_LEVEL_POINTS: Final = 400
_WIDTH: Final = 640


def chart_simulation(simulation: Simulation, id: AnyId | None = None) -> Any:
    """Chart arrivals, allowed and denied over time, and how full one bucket was; to zoom into."""
    altair = drawing_library("altair", "chart()")
    overview = overview_of(simulation, most_bins=_MOST_BINS)
    axis = time_axis(overview.first_ns, overview.last_ns)
    zoom = altair.selection_interval(name="zoom", bind="scales", encodings=["x"])
    per = events_per(overview.bins.width_ns)
    traffic = (
        altair.Chart(altair.Data(values=_rows(overview.bins, axis)))
        .mark_bar()
        .encode(
            x=_time(altair, axis, "begin"),
            x2="end",
            y=altair.Y("events:Q", title=per, stack="zero"),
            color=altair.Color(
                "answer:N",
                title=None,
                scale=altair.Scale(
                    domain=["allowed", "denied"], range=[palette.ALLOWED, palette.DENIED]
                ),
            ),
            # Allowed stand below denied.
            order=altair.Order("answer:N"),
            tooltip=[
                _tooltip(altair, axis, "begin"),
                altair.Tooltip("answer:N", title="answer"),
                altair.Tooltip("events:Q", title=per, format=","),
                altair.Tooltip("arrivals:Q", title="arrivals", format=","),
            ],
        )
        .properties(width=_WIDTH, height=220, title=_inert(asked_of(simulation) or "Simulation"))
        .add_params(zoom)
    )
    level = bucket_to_show(simulation, overview, id)
    if level is None:
        return traffic
    bucket = _bucket(altair, level, axis).add_params(zoom)
    with warnings.catch_warnings():
        # One zoom for both is what is wanted, and Altair warns of it.
        warnings.filterwarnings("ignore", "Automatically deduplicated", UserWarning)
        return altair.vconcat(traffic, bucket).resolve_scale(x="shared")


def chart_comparison(comparison: Comparison) -> Any:
    """Chart the denied events of each limit over time; to zoom into."""
    altair = drawing_library("altair", "chart()")
    most = max(30, _MOST_ROWS // max(len(comparison.simulations), 1))
    rows: list[dict[str, Any]] = []
    axis, per = time_axis(0, 0), ""
    names = [_inert(name) for name in comparison.simulations]
    for name, simulation in zip(names, comparison.simulations.values(), strict=True):
        overview = overview_of(simulation, most_bins=min(most, _MOST_BINS))
        axis = time_axis(overview.first_ns, overview.last_ns)
        per = events_per(overview.bins.width_ns)
        times = _plain_times(overview.bins.start_ns, axis)
        counts = zip(times, overview.bins.denied.tolist(), strict=True)
        rows += [{"limits": name, "begin": begin, "denied": denied} for begin, denied in counts]
    colors = [palette.SEVERAL[place % len(palette.SEVERAL)] for place in range(len(names))]
    return (
        altair.Chart(altair.Data(values=rows))
        .mark_line(interpolate="step-after")
        .encode(
            x=_time(altair, axis, "begin"),
            y=altair.Y("denied:Q", title=f"denied {per}"),
            color=altair.Color(
                "limits:N", title="limits", scale=altair.Scale(domain=names, range=colors)
            ),
            tooltip=[
                _tooltip(altair, axis, "begin"),
                altair.Tooltip("limits:N", title="limits"),
                altair.Tooltip("denied:Q", title=f"denied {per}", format=","),
            ],
        )
        .properties(width=_WIDTH, height=280, title="Denied over time")
        .add_params(altair.selection_interval(bind="scales", encodings=["x"]))
    )


def _rows(bins: Bins, axis: Axis) -> list[dict[str, Any]]:
    begins = _plain_times(bins.start_ns, axis)
    ends = _plain_times(bins.start_ns + bins.width_ns, axis)
    counts = (bins.allowed.tolist(), bins.denied.tolist(), bins.arrivals.tolist())
    rows = []
    for begin, end, allowed, denied, arrivals in zip(begins, ends, *counts, strict=True):
        for answer, events in (("allowed", allowed), ("denied", denied)):
            # What is not there needs no row.
            if events:
                row = {"begin": begin, "end": end, "answer": answer, "events": events}
                rows.append({**row, "arrivals": arrivals})
    return rows


def _bucket(altair: Any, level: Level, axis: Axis) -> Any:
    times, tokens = thinned(level.times, level.tokens, _LEVEL_POINTS)
    points = zip(_plain_times(times, axis), tokens.tolist(), strict=True)
    rows = [{"at": at, "tokens": left} for at, left in points]
    return (
        altair.Chart(altair.Data(values=rows))
        .mark_line(color=palette.LEVEL)
        .encode(
            x=_time(altair, axis, "at"),
            y=altair.Y("tokens:Q", title="tokens left"),
            tooltip=[
                _tooltip(altair, axis, "at"),
                altair.Tooltip("tokens:Q", title="tokens left", format=",.2f"),
            ],
        )
        .properties(width=_WIDTH, height=130, title=_inert(whose(level)))
    )


def _time(altair: Any, axis: Axis, field: str) -> Any:
    if axis.is_date:
        return altair.X(f"{field}:T", title=axis.label, scale=altair.Scale(type="utc"))
    return altair.X(f"{field}:Q", title=axis.label)


def _tooltip(altair: Any, axis: Axis, field: str) -> Any:
    if axis.is_date:
        # Written out as it is: a browser would show it in the zone of its own machine.
        return altair.Tooltip(f"{field}:N", title=axis.label)
    return altair.Tooltip(f"{field}:Q", title=axis.label, format=",.6~g")


def _inert(text: str) -> str:
    """Make a text that ends no script: Altair writes it into one as it is, and ids are anybody's.

    A space without width stands after each sign that could begin a tag; what is not seen is shown.
    """
    visible = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return visible.replace("<", "<\u200b")


def _plain_times(times: Any, axis: Axis) -> list[Any]:
    """Give times as JSON knows them."""
    at: Any = axis.at(times)
    if axis.is_date:
        return [f"{time}Z" for time in np.datetime_as_string(at, unit="ms").tolist()]
    return [float(time) for time in at]
