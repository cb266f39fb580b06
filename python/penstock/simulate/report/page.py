"""A report: one page that says what was asked, what came of it, and what would do."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import penstock
from penstock.simulate.report import markup
from penstock.simulate.report.findings import finding_of
from penstock.simulate.report.markup import Cell
from penstock.simulate.report.optional import drawing_library
from penstock.simulate.report.plot import draw_bins, draw_level, draw_waits, new_figure, whose
from penstock.simulate.report.plot_tables import draw_curve, draw_denied, draw_shares
from penstock.simulate.report.svg import inline, page_colors
from penstock.simulate.report.text import moment, name_of, time_axis
from penstock.simulate.table import counted, shown
from penstock.simulate.times import show_span
from penstock.web.messages import describe_limit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from penstock.simulate.compare import Comparison
    from penstock.simulate.ids import AnyId
    from penstock.simulate.log import LogReport
    from penstock.simulate.recommend import Recommendation
    from penstock.simulate.report.findings import Finding
    from penstock.simulate.result import Simulation

__all__ = ["Report", "report_comparison", "report_simulation"]

_SOME_DENIED: Final = "Allowed and denied stand one upon the other: together they are what arrived."


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a page is made of.

    Attributes:
        findings: What was found about each limit; the first is the one in force where several are.
        source: Where the events came from.
        log: What was read of a log, and what was left out.
        recommendation: What would do.
        name: What the recommended limit is to be called.
    """

    findings: Sequence[Finding]
    source: str
    log: LogReport | None = None
    recommendation: Recommendation | None = None
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
        """Give the page."""
        matplotlib = drawing_library("matplotlib", "report()")
        summary = self.findings[0].overview.summary
        title = self.findings[0].asked or "Simulation"
        if len(self.findings) > 1:
            title = " against ".join(each.called for each in self.findings[:3])
            title += f" and {len(self.findings) - 3} more" if len(self.findings) > 3 else ""  # noqa: PLR2004
        overview = self.findings[0].overview
        events = counted(summary.events, "event")
        lead = f"{self.source}: {events} of {counted(summary.clients, 'client')}"
        if summary.events:
            span = overview.last_ns - overview.first_ns
            begin, end = moment(overview.first_ns), moment(overview.last_ns)
            lead += f", from {begin} to {end} ({show_span(span)})"
        foot = (
            f"Made by penstock {penstock.__version__} with Python {platform.python_version()}, "
            f"NumPy {np.__version__} and Matplotlib {matplotlib.__version__}. "
            "The decisions are those of the engine that answers real requests; only the clock was "
            "not real. This page asks nothing of any network."
        )
        return markup.page(title, "penstock · simulation", lead, self._sections(), foot)

    def _sections(self) -> Iterator[str]:
        if len(self.findings) > 1:
            yield self._compared()
        else:
            yield _totals(self.findings[0])
        yield self._asked()
        for place, finding in enumerate(self.findings):
            name = f" · {finding.called}" if finding.called else ""
            if len(self.findings) > 1:
                yield f'<h2 class="limit">{markup.visible(finding.called)}</h2>'
                yield _totals(finding)
            yield from _found(finding, place, name)
        if self.recommendation is not None:
            yield _recommended(self.recommendation, self.name)
        if self.log is not None:
            yield _left_out(self.log)

    def _asked(self) -> str:
        rows: list[tuple[str, str]] = []
        for finding in self.findings:
            if finding.called:
                rows.append(
                    (finding.called, "; ".join(filter(None, (finding.asked, finding.admits))))
                )
            else:
                rows += [("limit", finding.asked), ("admits", finding.admits)]
        rows.append(("events", self.source))
        if self.log is not None:
            rows += [("format", self.log.format), ("read", str(self.log))]
            fields = (f"{what} from {field}" for what, field in self.log.fields.items())
            rows.append(("fields", ", ".join(fields)))
        rows = [row for row in rows if row[1]]
        return markup.section("asked", "What was asked", markup.facts(rows))

    def _compared(self) -> str:
        heads = (
            "limit", "denied", "denied share", "clients denied", "longest wait",
            "most in a second", "most in a minute",
        )  # fmt: skip
        rows = []
        for finding in self.findings:
            summary = finding.overview.summary
            rows.append(
                [
                    Cell(finding.called),
                    _count(summary.denied),
                    _share(summary.denied_share),
                    _count(summary.clients_denied),
                    _wait(summary.worst_wait),
                    _count(summary.largest_in_second),
                    _count(summary.largest_in_minute),
                ]
            )
        with page_colors():
            drawn = new_figure(4.2 + 0.4 * len(self.findings), 10)
            ratios = [3, 0.6 + 0.45 * len(self.findings)]
            above, below = drawn.subplots(2, 1, gridspec_kw={"height_ratios": ratios})
            draw_denied(above, self.findings)
            draw_shares(below, self.findings)
            drawing = inline(drawn, "compared", "denied events of each limit over time, and shares")
        return markup.section(
            "compared",
            "Side by side",
            markup.table("the limits", heads, rows),
            markup.figure(drawing),
        )


def report_simulation(
    simulation: Simulation,
    path: str | os.PathLike[str],
    *,
    id: AnyId | None = None,
    recommendation: Recommendation | None = None,
) -> Path:
    """Write a page about a simulation."""
    trace = simulation.trace
    found = Report(
        findings=[finding_of(simulation, id=id)],
        source=trace.name or "a trace",
        log=getattr(trace, "skipped", None),
        recommendation=recommendation,
        name=name_of(simulation),
    )
    return found.write(path)


def report_comparison(
    comparison: Comparison,
    path: str | os.PathLike[str],
    *,
    recommendation: Recommendation | None = None,
) -> Path:
    """Write a page about several limits over one trace."""
    simulations = comparison.simulations
    first = next(iter(simulations.values()))
    trace = first.trace
    found = Report(
        findings=[finding_of(each, called) for called, each in simulations.items()],
        source=trace.name or "a trace",
        log=getattr(trace, "skipped", None),
        recommendation=recommendation,
        name=name_of(first),
    )
    return found.write(path)


def _totals(finding: Finding) -> str:
    summary = finding.overview.summary
    return markup.tiles(
        [
            ("events", f"{summary.events:,}", f"{summary.allowed:,} allowed", ""),
            (
                "denied",
                f"{summary.denied:,}",
                f"{shown('denied_share', summary.denied_share)} of all events",
                "denied" if summary.denied else "",
            ),
            ("clients denied", f"{summary.clients_denied:,}", f"of {summary.clients:,}", ""),
            ("longest wait", shown("worst_wait", summary.worst_wait), "told to one denied", ""),
            ("most at once", f"{summary.largest_at_once:,}", "tokens admitted", ""),
            (
                "most in a minute",
                f"{summary.largest_in_minute:,}",
                f"{summary.largest_in_second:,} in a second",
                "",
            ),
        ]
    )


def _found(finding: Finding, place: int, name: str) -> Iterator[str]:
    overview = finding.overview
    summary = overview.summary
    if summary.events == 0:
        return
    axis = time_axis(overview.first_ns, overview.last_ns)
    depth = _depth(name)
    with page_colors():
        drawn = new_figure(3.4, 10)
        draw_bins(drawn.subplots(), overview.bins, axis)
        label = f"{summary.allowed:,} events allowed and {summary.denied:,} denied, over time"
        traffic = inline(drawn, f"traffic{place}", label)
        level = waits = ""
        if finding.level is not None:
            drawn = new_figure(2.4, 10)
            axes = drawn.subplots()
            draw_level(axes, finding.level, axis)
            axes.set_title("", loc="left")
            level = inline(drawn, f"level{place}", f"{whose(finding.level)}: tokens left over time")
        if summary.denied:
            told_any = [place for place, (_, count) in enumerate(overview.waits) if count]
            drawn = new_figure(1.1 + 0.38 * (told_any[-1] + 1), 10)
            draw_waits(drawn.subplots(), overview.waits)
            waits = inline(drawn, f"waits{place}", "how long denied events were told to wait")
    yield markup.section(
        f"traffic{place}-head",
        f"Arrivals, allowed and denied{name}",
        markup.figure(traffic, _SOME_DENIED),
        level=depth,
    )
    if finding.level is not None:
        told = whose(finding.level)
        yield markup.section(
            f"level{place}-head",
            f"{told[0].upper()}{told[1:]}{name}",
            markup.paragraph("Who was denied most, or came most. A mark is a denied event."),
            markup.figure(level),
            level=depth,
        )
    if waits:
        rows = [[Cell(words), _count(count)] for words, count in overview.waits if count]
        numbers = markup.table("waits", ("told to wait", "denied events"), rows)
        yield markup.section(
            f"waits{place}-head",
            f"What the denied were told to wait{name}",
            markup.figure(waits),
            f"<details><summary>The numbers</summary>{numbers}</details>",
            level=depth,
        )
    yield _clients(finding, place, name)


def _depth(name: str) -> int:
    """Give the level of a heading; that of a limit stands above, where there are several."""
    return 3 if name else 2


def _clients(finding: Finding, place: int, name: str) -> str:
    hit = finding.overview.clients
    heads = ("client", "events", "allowed", "denied", "denied share", "longest wait")
    rows = [
        [
            Cell(row["id"], is_id=True),
            _count(row["events"]),
            _count(row["allowed"]),
            _count(row["denied"]),
            _share(row["denied_share"]),
            _wait(row["worst_wait"]),
        ]
        for row in hit.rows()
    ]
    summary = finding.overview.summary
    if summary.denied == 0:
        told = "Nobody was denied."
    elif summary.clients_denied > len(rows):
        told = f"The first {len(rows)} of {summary.clients_denied:,} that were denied."
    else:
        told = ""
    return markup.section(
        f"clients{place}-head",
        f"{hit.caption}{name}",
        markup.paragraph(told) if told else "",
        markup.table(hit.caption, heads, rows),
        level=_depth(name),
    )


def _recommended(recommendation: Recommendation, name: str) -> str:
    with page_colors():
        drawn = new_figure(3.4, 10)
        draw_curve(drawn.subplots(), recommendation)
        label = (
            f"the smallest burst for each count; recommended are burst {recommendation.burst:,} "
            f"and count {recommendation.count:,}"
        )
        curve = inline(drawn, "curve", label)
    return markup.section(
        "recommended",
        f"What would do: {describe_limit(recommendation.limit)}",
        *(markup.paragraph(line) for line in recommendation.explain().splitlines()),
        "<h3>For the limits file</h3>",
        f'<pre class="copy">{markup.visible(recommendation.yaml(name), is_whole=True)}</pre>',
        markup.figure(curve, "Whatever lies below the line denies more than was asked for."),
    )


def _left_out(log: LogReport) -> str:
    rows = [("did not parse", log.skipped), ("late", log.late), ("did not say who", log.without_id)]
    told = [(words, f"{count:,} of {log.lines:,} lines") for words, count in rows if count]
    if not told:
        return markup.section(
            "left-out", "Lines left out", markup.paragraph(f"None of {log.lines:,} lines.")
        )
    examples = [
        [Cell(f"{each.file}:{each.line:,}", is_id=True), Cell(each.reason), Cell(each.text)]
        for each in log.examples
    ]
    return markup.section(
        "left-out",
        "Lines left out",
        markup.paragraph("No limit was asked about these; the totals know nothing of them."),
        markup.facts(told),
        "<h3>The first of them</h3>" if examples else "",
        markup.table("lines left out", ("line", "why", "text"), examples, kind="texts")
        if examples
        else "",
    )


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", number)


def _share(share: float) -> Cell:
    return Cell(shown("denied_share", share), share, share)


def _wait(seconds: float) -> Cell:
    return Cell(shown("worst_wait", seconds), seconds)
