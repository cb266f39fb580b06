"""Interactive charts by Altair: zoom with the wheel, pan by dragging, numbers in tooltips.

The chart contains its data: at most about 5,000 rows, however many events there are.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.display import printable
from penstock.simulate.optional import PLOTTING, import_optional
from penstock.simulate.report import palette
from penstock.simulate.report.labels import bucket_title, events_per, time_axis
from penstock.simulate.report.plot import thin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.simulate.histogram import Bins
    from penstock.simulate.level import Level
    from penstock.simulate.limit_result import LimitResult
    from penstock.simulate.report.labels import TimeAxis


MAX_BINS: Final = 1_200
"""The number of bins of a chart of one limit."""
_MAX_ROWS: Final = 4_000
_LEVEL_POINTS: Final = 400
_WIDTH: Final = 640


def max_bins(limits: int) -> int:
    """Return the number of bins for a chart of several limits."""
    return min(max(30, _MAX_ROWS // max(limits, 1)), MAX_BINS)


def chart_simulation(result: LimitResult) -> Any:
    """Chart arrivals, allowed and denied events over time, and the level of one bucket."""
    altair = import_optional("altair", "chart()", PLOTTING)
    overview = result.overview
    axis = time_axis(overview.first_ns, overview.last_ns)
    zoom = altair.selection_interval(name="zoom", bind="scales", encodings=["x"])
    per = events_per(overview.bins.width_ns)
    traffic = (
        altair.Chart(altair.Data(values=_rows(overview.bins, axis)))
        # With both ends of a bar in x, Vega-Lite would take it for a horizontal one.
        .mark_bar(orient="vertical")
        .encode(
            x=_time_channel(altair, axis, "begin"),
            x2="end",
            y=altair.Y("events:Q", title=per, stack="zero"),
            color=altair.Color(
                "answer:N",
                title=None,
                scale=altair.Scale(
                    domain=["allowed", "denied"], range=[palette.ALLOWED, palette.DENIED]
                ),
            ),
            # Allowed events are below denied ones.
            order=altair.Order("answer:N"),
            tooltip=[
                _tooltip(altair, axis, "begin"),
                altair.Tooltip("answer:N", title="answer"),
                altair.Tooltip("events:Q", title=per, format=","),
                altair.Tooltip("arrivals:Q", title="arrivals", format=","),
            ],
        )
        .properties(width=_WIDTH, height=220, title=_inert(result.limit or "Simulation"))
        .add_params(zoom)
    )
    if result.level is None:
        return traffic
    bucket = _bucket(altair, result.level, axis).add_params(zoom)
    with warnings.catch_warnings():
        # Both charts share one zoom, which makes Altair warn.
        warnings.filterwarnings("ignore", "Automatically deduplicated", UserWarning)
        return altair.vconcat(traffic, bucket).resolve_scale(x="shared")


def chart_comparison(results: Sequence[LimitResult]) -> Any:
    """Chart the denied events of each limit over time."""
    altair = import_optional("altair", "chart()", PLOTTING)
    rows: list[dict[str, Any]] = []
    axis, per = time_axis(0, 0), ""
    names = [_inert(result.title) for result in results]
    for name, result in zip(names, results, strict=True):
        overview = result.overview
        axis = time_axis(overview.first_ns, overview.last_ns)
        per = events_per(overview.bins.width_ns)
        times = _plain_times(overview.bins.start_ns, axis)
        counts = zip(times, overview.bins.denied.tolist(), strict=True)
        rows += [{"limits": name, "begin": begin, "denied": denied} for begin, denied in counts]
    colors = [palette.SEVERAL[index % len(palette.SEVERAL)] for index in range(len(names))]
    return (
        altair.Chart(altair.Data(values=rows))
        .mark_line(interpolate="step-after")
        .encode(
            x=_time_channel(altair, axis, "begin"),
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


def _rows(bins: Bins, axis: TimeAxis) -> list[dict[str, Any]]:
    begins = _plain_times(bins.start_ns, axis)
    ends = _plain_times(bins.start_ns + bins.width_ns, axis)
    counts = (bins.allowed.tolist(), bins.denied.tolist(), bins.arrivals.tolist())
    rows = []
    for begin, end, allowed, denied, arrivals in zip(begins, ends, *counts, strict=True):
        for answer, events in (("allowed", allowed), ("denied", denied)):
            # Empty bins need no row.
            if events:
                row = {"begin": begin, "end": end, "answer": answer, "events": events}
                rows.append({**row, "arrivals": arrivals})
    return rows


def _bucket(altair: Any, level: Level, axis: TimeAxis) -> Any:
    times, tokens = thin(level.times, level.tokens, _LEVEL_POINTS)
    points = zip(_plain_times(times, axis), tokens.tolist(), strict=True)
    rows = [{"at": at, "tokens": left} for at, left in points]
    return (
        altair.Chart(altair.Data(values=rows))
        .mark_line(color=palette.LEVEL)
        .encode(
            x=_time_channel(altair, axis, "at"),
            y=altair.Y("tokens:Q", title="tokens left"),
            tooltip=[
                _tooltip(altair, axis, "at"),
                altair.Tooltip("tokens:Q", title="tokens left", format=",.2f"),
            ],
        )
        .properties(width=_WIDTH, height=130, title=_inert(bucket_title(level)))
    )


def _time_channel(altair: Any, axis: TimeAxis, field: str) -> Any:
    if axis.is_date:
        scale = altair.Scale(type="utc", nice=False, padding=0)
        return altair.X(f"{field}:T", title=axis.label, scale=scale)
    scale = altair.Scale(nice=False, zero=False, padding=0)
    return altair.X(f"{field}:Q", title=axis.label, scale=scale)


def _tooltip(altair: Any, axis: TimeAxis, field: str) -> Any:
    if axis.is_date:
        # As text: a browser would convert it to its own time zone.
        return altair.Tooltip(f"{field}:N", title=axis.label)
    return altair.Tooltip(f"{field}:Q", title=axis.label, format=",.6~g")


def _inert(text: str) -> str:
    """Make a text safe inside a script, where Altair writes it unescaped; ids are not trusted.

    A zero-width space after each `<` keeps it from starting a tag.
    """
    return printable(text).replace("<", "<\u200b")


def _plain_times(times: Any, axis: TimeAxis) -> list[Any]:
    """Return times as JSON values."""
    positions: Any = axis.positions(times)
    if axis.is_date:
        return [f"{time}Z" for time in np.datetime_as_string(positions, unit="ms").tolist()]
    return [float(time) for time in positions]
