"""The report: one HTML page with the limits, their results and a recommendation."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import penstock
from penstock.display import format_span
from penstock.simulate.format import format_date, format_value, pluralize
from penstock.simulate.optional import PLOTTING, import_optional
from penstock.simulate.report import markup
from penstock.simulate.report.labels import bucket_title, time_axis
from penstock.simulate.report.markup import Cell
from penstock.simulate.report.plot import draw_bins, draw_level, draw_waits, new_figure
from penstock.simulate.report.plot_tables import draw_comparison, draw_curve
from penstock.simulate.report.svg import inline, page_colors
from penstock.web.messages import describe_limit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from penstock.simulate.level import Level
    from penstock.simulate.limit_result import LimitResult, RecommendedLimit
    from penstock.simulate.log.report import LogReport


_WIDTH: Final = 10.0
_MAX_TITLES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The content of a page.

    Attributes:
        results: The result of each limit.
        source: The source of the events.
        log: The counts of the log's lines, if the events are from a log.
        recommendation: A recommended limit, if any.
        name: The name of the recommended limit in the limits file.
    """

    results: Sequence[LimitResult]
    source: str
    log: LogReport | None = None
    recommendation: RecommendedLimit | None = None
    name: str = "Requests"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Raises:
            ImportError: Matplotlib is not installed.
            OSError: The file cannot be written.
        """
        html = self.html()
        file = Path(path)
        file.write_text(html, encoding="utf-8")
        return file

    def html(self) -> str:
        """Return the page.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        matplotlib = import_optional("matplotlib", "report()", PLOTTING)
        title = self.results[0].limit or "Simulation"
        if len(self.results) > 1:
            title = " and ".join(each.title for each in self.results[:_MAX_TITLES])
            if (more := len(self.results) - _MAX_TITLES) > 0:
                title += f" and {more} more"
        overview = self.results[0].overview
        summary = overview.summary
        events = pluralize(summary.events, "event")
        lead = f"{self.source}: {events} of {pluralize(summary.clients, 'client')}"
        if summary.events:
            span = format_span(overview.last_ns - overview.first_ns)
            first, last = format_date(overview.first_ns), format_date(overview.last_ns)
            lead += f", from {first} to {last} ({span})"
        foot = (
            f"Created by penstock {penstock.__version__} with Python {platform.python_version()}, "
            f"NumPy {np.__version__} and Matplotlib {matplotlib.__version__}. The simulation uses "
            "the same engine as production, with a virtual clock. This page loads nothing from the "
            "network."
        )
        return markup.page(title, "penstock · simulation", lead, self._sections(), foot)

    def _sections(self) -> Iterator[str]:
        if len(self.results) > 1:
            yield self._comparison()
        else:
            yield _totals(self.results[0])
        yield self._input()
        for index, result in enumerate(self.results):
            if len(self.results) > 1:
                yield f'<h2 class="limit">{markup.escape_text(result.title)}</h2>'
                yield _totals(result)
            yield from _result_sections(result, index)
        if self.recommendation is not None:
            yield _recommended(self.recommendation, self.name)
        if self.log is not None:
            yield _left_out(self.log)

    def _input(self) -> str:
        rows: list[tuple[str, str]] = []
        for result in self.results:
            if result.title:
                rows.append((result.title, "; ".join(filter(None, (result.limit, result.admits)))))
            else:
                rows += [("limit", result.limit), ("admits", result.admits)]
        rows.append(("events", self.source))
        if self.log is not None:
            rows += [("format", self.log.format), ("read", str(self.log))]
            fields = (f"{option} from {field}" for option, field in self.log.fields.items())
            rows.append(("fields", ", ".join(fields)))
        return markup.section("input", "Input", markup.facts(row for row in rows if row[1]))

    def _comparison(self) -> str:
        heads = (
            "limit", "denied", "denied share", "clients denied", "longest wait",
            "most in a second", "most in a minute",
        )  # fmt: skip
        rows = [_comparison_row(result) for result in self.results]
        with page_colors():
            drawn = draw_comparison(self.results, 4.2 + 0.4 * len(self.results), _WIDTH)
            drawing = inline(drawn, "compared", "denied events of each limit over time, and shares")
        return markup.section(
            "compared",
            "Comparison",
            markup.table("the limits", heads, rows),
            markup.figure(drawing),
        )


def _comparison_row(result: LimitResult) -> list[Cell]:
    summary = result.overview.summary
    return [
        Cell(result.title),
        _count(summary.denied),
        _share(summary.denied_share),
        _count(summary.clients_denied),
        _wait(summary.longest_wait),
        _count(summary.most_in_second),
        _count(summary.most_in_minute),
    ]


def _totals(result: LimitResult) -> str:
    summary = result.overview.summary
    share = format_value("denied_share", summary.denied_share)
    wait = format_value("longest_wait", summary.longest_wait)
    return markup.tiles(
        [
            ("events", f"{summary.events:,}", f"{summary.allowed:,} allowed", ""),
            (
                "denied",
                f"{summary.denied:,}",
                f"{share} of all events",
                "denied" if summary.denied else "",
            ),
            ("clients denied", f"{summary.clients_denied:,}", f"of {summary.clients:,}", ""),
            ("longest wait", wait, "retry_after of a denied event", ""),
            ("most at once", f"{summary.most_at_once:,}", "tokens admitted", ""),
            (
                "most in a minute",
                f"{summary.most_in_minute:,}",
                f"{summary.most_in_second:,} in a second",
                "",
            ),
        ]
    )


def _result_sections(result: LimitResult, index: int) -> Iterator[str]:
    summary = result.overview.summary
    if summary.events == 0:
        return
    yield _traffic(result, index)
    if result.level is not None:
        yield _level(result, result.level, index)
    if summary.denied:
        yield _waits(result, index)
    yield _clients(result, index)


def _section(result: LimitResult, name: str, heading: str, *parts: str) -> str:
    """Return a section about one limit; with several limits, its heading is below the title."""
    title = f" · {result.title}" if result.title else ""
    return markup.section(name, f"{heading}{title}", *parts, level=3 if title else 2)


def _traffic(result: LimitResult, index: int) -> str:
    overview = result.overview
    summary = overview.summary
    with page_colors():
        drawn = new_figure(3.4, _WIDTH)
        draw_bins(drawn.subplots(), overview.bins, time_axis(overview.first_ns, overview.last_ns))
        label = f"{summary.allowed:,} events allowed and {summary.denied:,} denied, over time"
        drawing = inline(drawn, f"traffic{index}", label)
    caption = "Allowed and denied events are stacked; together they are the arrivals."
    return _section(
        result, f"traffic{index}-head", "Traffic over time", markup.figure(drawing, caption)
    )


def _level(result: LimitResult, level: Level, index: int) -> str:
    overview = result.overview
    title = bucket_title(level)
    with page_colors():
        drawn = new_figure(2.4, _WIDTH)
        axes = drawn.subplots()
        draw_level(axes, level, time_axis(overview.first_ns, overview.last_ns))
        axes.set_title("", loc="left")
        drawing = inline(drawn, f"level{index}", f"{title}: tokens left over time")
    note = "The client with the most denied events, or the most events. Marks are denied events."
    return _section(
        result, f"level{index}-head", title, markup.paragraph(note), markup.figure(drawing)
    )


def _waits(result: LimitResult, index: int) -> str:
    waits = result.overview.waits
    last = max(position for position, (_, count) in enumerate(waits) if count)
    with page_colors():
        drawn = new_figure(1.1 + 0.38 * (last + 1), _WIDTH)
        draw_waits(drawn.subplots(), waits)
        drawing = inline(drawn, f"waits{index}", "denied events by their wait")
    rows = [[Cell(name), _count(count)] for name, count in waits if count]
    numbers = markup.table("waits", ("wait", "denied events"), rows)
    return _section(
        result,
        f"waits{index}-head",
        "Waits of denied events",
        markup.figure(drawing),
        f"<details><summary>Numbers</summary>{numbers}</details>",
    )


def _clients(result: LimitResult, index: int) -> str:
    table, summary = result.overview.clients, result.overview.summary
    heads = ("client", "events", "allowed", "denied", "denied share", "longest wait")
    rows = [
        [
            Cell(row["id"], is_id=True),
            _count(row["events"]),
            _count(row["allowed"]),
            _count(row["denied"]),
            _share(row["denied_share"]),
            _wait(row["longest_wait"]),
        ]
        for row in table.rows()
    ]
    note = "" if summary.denied else "No client was denied."
    if summary.clients_denied > len(rows):
        note = f"The first {len(rows)} of {summary.clients_denied:,} clients with denied events."
    return _section(
        result,
        f"clients{index}-head",
        table.caption,
        markup.paragraph(note) if note else "",
        markup.table(table.caption, heads, rows),
    )


def _recommended(recommended: RecommendedLimit, name: str) -> str:
    with page_colors():
        drawn = new_figure(3.4, _WIDTH)
        draw_curve(drawn.subplots(), recommended)
        label = (
            f"the smallest burst for each count; recommended are burst {recommended.burst:,} "
            f"and count {recommended.count:,}"
        )
        curve = inline(drawn, "curve", label)
    return markup.section(
        "recommended",
        f"Recommended limit: {describe_limit(recommended.limit)}",
        *(markup.paragraph(line) for line in recommended.explain().splitlines()),
        "<h3>For the limits file</h3>",
        f'<pre class="copy">{markup.escape_text(recommended.yaml(name), is_whole=True)}</pre>',
        markup.figure(curve, "Limits below the line deny more than the requested share."),
    )


def _left_out(log: LogReport) -> str:
    rows = [
        (reason, f"{count:,} of {log.lines:,} lines")
        for reason, count in log.left_out().items()
        if count
    ]
    if not rows:
        none = markup.paragraph(f"None of {log.lines:,} lines.")
        return markup.section("left-out", "Lines left out", none)
    examples = [
        [Cell(f"{each.file}:{each.line:,}", is_id=True), Cell(each.reason), Cell(each.text)]
        for each in log.examples
    ]
    table = markup.table("lines left out", ("line", "reason", "text"), examples, kind="texts")
    return markup.section(
        "left-out",
        "Lines left out",
        markup.paragraph("These lines are not part of the simulation or its totals."),
        markup.facts(rows),
        *(("<h3>First lines left out</h3>", table) if examples else ()),
    )


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", number)


def _share(share: float) -> Cell:
    return Cell(format_value("denied_share", share), share, share)


def _wait(seconds: float) -> Cell:
    return Cell(format_value("longest_wait", seconds), seconds)
