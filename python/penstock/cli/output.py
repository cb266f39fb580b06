"""What a simulation found, told on a terminal, in a pipe, or to a program."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from penstock.simulate.report.text import moment
from penstock.simulate.table import shown
from penstock.simulate.times import show_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.simulate.report.findings import Finding
    from penstock.simulate.report.page import Report

__all__ = ["tell"]

_MOST_CLIENTS: Final = 10
_WIDEST: Final = 100


class _Grid(NamedTuple):
    """Texts in rows.

    Attributes:
        caption: What they are; empty if it needs no saying.
        heads: The heads of the columns; none where each row begins with its own.
        rows: The texts.
    """

    caption: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tell(report: Report, out: TextIO, faults: TextIO, *, is_for_program: bool) -> None:
    """Print what was found, and the first lines that were left out where faults are told."""
    if is_for_program:
        print(json.dumps(_plain(report), ensure_ascii=False), file=out)
    else:
        grids = [_source(report), _totals(report.findings)]
        if len(report.findings) == 1:
            grids.append(_clients(report.findings[0]))
        draw = _by_rich(out) if out.isatty() else None
        for place, grid in enumerate(grid for grid in grids if grid.rows):
            if place:
                print(file=out)
            if draw is None:
                _print_grid(grid, out)
            else:
                draw(grid)
        if report.recommendation is not None:
            print(f"\nWhat would do\n{report.recommendation.explain()}\n", file=out)
            print(report.recommendation.yaml(report.name), end="", file=out)
    if report.log is not None:
        for example in report.log.examples:
            print(f"left out: {_seen(str(example))}", file=faults)


def _source(report: Report) -> _Grid:
    overview = report.findings[0].overview
    rows = [("events", report.source)]
    if overview.summary.events:
        span = show_span(overview.last_ns - overview.first_ns)
        rows.append(("from", moment(overview.first_ns)))
        rows.append(("to", f"{moment(overview.last_ns)} ({span})"))
    if report.log is not None:
        rows.append(("read", str(report.log)))
    if len(report.findings) == 1:
        rows += [("limit", report.findings[0].asked), ("admits", report.findings[0].admits)]
    return _Grid("", (), [row for row in rows if row[1]])


def _totals(findings: Sequence[Finding]) -> _Grid:
    columns = [_numbers(finding) for finding in findings]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    if len(findings) == 1:
        return _Grid("", (), rows)
    rows.insert(0, ("limit", *(finding.asked for finding in findings)))
    return _Grid("", ("", *(finding.called for finding in findings)), rows)


def _numbers(finding: Finding) -> dict[str, str]:
    summary = finding.overview.summary
    share = shown("denied_share", summary.denied_share)
    return {
        "events": f"{summary.events:,}",
        "allowed": f"{summary.allowed:,}",
        "denied": f"{summary.denied:,} ({share})",
        "clients": f"{summary.clients:,}",
        "clients denied": f"{summary.clients_denied:,}",
        "longest wait": shown("worst_wait", summary.worst_wait),
        "most at once": f"{summary.largest_at_once:,}",
        "most in a second": f"{summary.largest_in_second:,}",
        "most in a minute": f"{summary.largest_in_minute:,}",
    }


def _clients(finding: Finding) -> _Grid:
    hit = finding.overview.clients
    heads = ("client", "events", "allowed", "denied", "denied share", "longest wait")
    rows = [
        tuple(shown(name, value) for name, value in row.items())
        for row in list(hit.rows())[:_MOST_CLIENTS]
    ]
    return _Grid(hit.caption, heads, rows)


def _print_grid(grid: _Grid, out: TextIO) -> None:
    if grid.caption:
        print(grid.caption, file=out)
    rows = [grid.heads, *grid.rows] if grid.heads else grid.rows
    texts = [[_visible(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = [row[0].ljust(widths[0])]
        for text, width in zip(row[1:], widths[1:], strict=True):
            cells.append(text.rjust(width) if grid.caption else text.ljust(width))
        print("  ".join(cells).rstrip(), file=out)


def _by_rich(out: TextIO) -> Any:
    """Give what draws a grid by rich; `None` where that is not installed."""
    try:
        console = importlib.import_module("rich.console").Console(file=out)
    except ImportError:
        return None
    box, table, text = (
        importlib.import_module(f"rich.{name}") for name in ("box", "table", "text")
    )

    def draw(grid: _Grid) -> None:
        grid = _narrowed(grid, console.width)
        drawn = table.Table(
            title=text.Text(grid.caption, style="bold") if grid.caption else None,
            title_justify="left",
            box=box.SIMPLE_HEAD if grid.heads else None,
            show_header=bool(grid.heads),
            pad_edge=False,
        )
        for place in range(len(grid.rows[0])):
            head = text.Text(grid.heads[place]) if grid.heads else ""
            is_number = bool(grid.caption) and place > 0
            style = "dim" if place == 0 and not grid.caption else ""
            drawn.add_column(
                head, justify="right" if is_number else "left", style=style, overflow="fold"
            )
        for row in grid.rows:
            # As texts, in which no mark of rich's means anything.
            drawn.add_row(*(text.Text(_visible(each)) for each in row))
        console.print(drawn)

    return draw


def _narrowed(grid: _Grid, width: int) -> _Grid:
    """Leave out columns that a narrow terminal has no place for, those first that others tell."""
    if not grid.caption:
        return grid
    for head in ("allowed", "longest wait", "denied share", "events"):
        columns = [grid.heads, *grid.rows]
        # A cell has a space on either side, and one more stands between two.
        needed = sum(3 + max(map(len, column)) for column in zip(*columns, strict=True))
        if needed <= width:
            break
        place = grid.heads.index(head)
        first, *rows = [(*row[:place], *row[place + 1 :]) for row in columns]
        grid = _Grid(grid.caption, first, rows)
    return grid


def _visible(words: str) -> str:
    """Make a text that moves no cursor and fits its place."""
    seen = _seen(words)
    return seen if len(seen) <= _WIDEST else f"{seen[: _WIDEST - 1]}…"


def _seen(words: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in words)


def _plain(report: Report) -> dict[str, Any]:
    """Give all that was found as JSON knows it; times in nanoseconds, waits in seconds."""
    overview = report.findings[0].overview
    answer: dict[str, Any] = {
        "source": report.source,
        "first_ns": overview.first_ns,
        "last_ns": overview.last_ns,
        "limits": [
            {
                "called": finding.called,
                "limit": finding.asked,
                "admits": finding.admits,
                "summary": finding.overview.summary.to_dict(),
                "waits": dict(finding.overview.waits),
                "clients": list(finding.overview.clients.rows()),
            }
            for finding in report.findings
        ],
    }
    if report.log is not None:
        log = report.log
        answer["log"] = {
            "files": list(log.files),
            "format": log.format,
            "fields": log.fields,
            "lines": log.lines,
            "events": log.events,
            "skipped": log.skipped,
            "late": log.late,
            "without_id": log.without_id,
            "examples": [example._asdict() for example in log.examples],
        }
    if report.recommendation is not None:
        found = report.recommendation
        answer["recommendation"] = {
            "burst": found.burst,
            "count": found.count,
            "period_ns": found.limit.period_ns,
            "denied_share": found.denied_share,
            "is_smallest": found.is_smallest,
            "yaml": found.yaml(report.name),
        }
    return answer
