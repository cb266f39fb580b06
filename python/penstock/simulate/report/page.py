"""The report: one HTML page with the limits, their results and a recommendation."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import penstock
from penstock._display import UNNAMED, format_span, pluralize, printable
from penstock._extras import Extra
from penstock.messages import describe_limit
from penstock.simulate.check import changes
from penstock.simulate.format import column_label, format_date, format_value
from penstock.simulate.report.plot import (
    bucket_title,
    draw_bucket,
    draw_recommendation,
    draw_table,
    draw_traffic,
    draw_waits,
    new_figure,
)
from penstock.simulate.report.svg import inline, page_colors
from penstock.simulate.table import Table
from penstock.simulate.totals import compare_totals

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.simulate.log.report import LogReport
    from penstock.simulate.recommendation import Recommendation
    from penstock.simulate.totals import Summary, WithTotals


# Inches of a drawing on a wide page, and on a phone.
_WIDE: Final = 10.0
_NARROW: Final = 4.4
_MAX_TITLES: Final = 3
_COMPARED: Final = ("limit", "denied_share", "clients_denied", "longest_wait", "most_in_minute")
_MAX_ROWS: Final = 20
_MAX_TEXT: Final = 300


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: The text.
        is_number: Whether it is a number.
        share: A share of 1 to show as a small bar, if any.
        is_id: Whether it is an id.
    """

    text: str
    is_number: bool = False
    share: float | None = None
    is_id: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a page.

    Attributes:
        simulated: The simulations of the limits, by their labels; that of a single one is empty.
        source: The source of the events.
        log: The counts of the log's lines, if the events are from a log.
        recommendation: The limits recommended instead of the first one.
        problems: What the limits deny although they should not; None if this was not asked.
    """

    simulated: Mapping[str, WithTotals]
    source: str
    log: LogReport | None = None
    recommendation: Recommendation | None = None
    problems: Sequence[str] | None = None

    @property
    def first(self) -> WithTotals:
        """The simulation of the first limit."""
        return next(iter(self.simulated.values()))

    def changes(self) -> list[Table]:
        """Return for each other limit the clients that only it denies, or only the first one."""
        first, *others = self.simulated.items()
        return [changes(first, other) for other in others]

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Raises:
            ImportError: Matplotlib or Jinja2 is not installed.
            OSError: The file cannot be written.
        """
        return write_text(path, self.html())

    def html(self) -> str:
        """Return the page.

        Raises:
            ImportError: Matplotlib or Jinja2 is not installed.
        """
        with Extra("notebook"):
            import jinja2  # noqa: PLC0415  an extra
            import matplotlib as mpl  # noqa: PLC0415  an extra
        page = files("penstock.simulate.report").joinpath("page.html").read_text("utf-8")
        environment = jinja2.Environment(autoescape=True, finalize=_shown, trim_blocks=True)
        template = environment.from_string(page)
        html: str = template.render(
            title=self._title(),
            lead=self._lead(),
            compared=self._comparison() if len(self.simulated) > 1 else None,
            results=[
                {"title": title, **_result(each, index)}
                for index, (title, each) in enumerate(self.simulated.items())
            ],
            input=list(self._input()),
            recommended=self._recommended(),
            left_out=_left_out(self.log),
            changes=[_table(table) for table in self.changes()],
            problems=self.problems,
            foot=f"Created by penstock {penstock.__version__} with Python "
            f"{platform.python_version()}, NumPy {np.__version__} and Matplotlib "
            f"{mpl.__version__}. The simulation uses the same engine as production, with a "
            "virtual clock. This page loads nothing from the network.",
        )
        return html

    def heading(self) -> str:
        """Return the heading of the recommendation, which names the limit that it replaces."""
        if self.first.evaluator.limit_name == UNNAMED:
            return f"Recommended instead of {self.first.evaluator.described[0]}"
        return f"Recommended for {self.first.evaluator.limit_name}"

    def _recommended(self) -> dict[str, Any] | None:
        recommended = self.recommendation
        if recommended is None:
            return None
        far, denied = recommended.far(), recommended.denied_clients()
        return {
            "heading": f"{self.heading()}: {describe_limit(recommended.limit)}",
            "lines": recommended.explain().splitlines(),
            "yaml": recommended.yaml(self.first.evaluator.limit_name),
            "drawing": _drawing(
                draw_recommendation, recommended, height=3.8, name="recommended",
                label="how many clients need how much, and the count of each limit",
            ),
            "tables": [
                _table(recommended.table()),
                *(_table(table) for table in (far, denied) if len(table)),
            ],
        }  # fmt: skip

    def _comparison(self) -> dict[str, Any]:
        settings = [{"limit": title} for title in self.simulated]
        columns = compare_totals(settings, self.simulated.values())
        table = Table("Comparison", {name: columns[name] for name in _COMPARED})
        drawing = _drawing(
            draw_table, table, ["limit"], height=1.4 + 0.5 * len(table), name="compared",
            label="denied share of each limit",
        )  # fmt: skip
        return {**_table(table), "drawing": drawing}

    def _title(self) -> str:
        if len(self.simulated) == 1:
            return self.first.evaluator.described[0]
        titles = [*self.simulated]
        title = " and ".join(titles[:_MAX_TITLES])
        more = len(titles) - _MAX_TITLES
        return f"{title} and {more} more" if more > 0 else title

    def _lead(self) -> str:
        summary, bins = self.first.summary(), self.first.bins()
        events, clients = pluralize(summary.events, "event"), pluralize(summary.clients, "client")
        lead = f"{self.source}: {events} of {clients}"
        if summary.events:
            span = format_span(bins.last_ns - bins.first_ns)
            begin, end = format_date(bins.first_ns), format_date(bins.last_ns)
            lead += f", from {begin} to {end} ({span})"
        return lead

    def _input(self) -> Iterator[tuple[str, str]]:
        for title, each in self.simulated.items():
            if title:
                yield title, "; ".join(filter(None, each.evaluator.described))
            else:
                yield from zip(("limit", "admits"), each.evaluator.described, strict=True)
        yield "events", self.source
        if self.log is not None:
            yield from (("format", self.log.format), ("read", str(self.log)))
            fields = (f"{option} from {field}" for option, field in self.log.fields.items())
            yield "fields", ", ".join(fields)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file as a whole, or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    file = Path(path)
    # A device or a pipe must not be replaced by a file, and a full disk must not leave half a page.
    is_special = file.exists() and not file.is_file()
    part = file if is_special else file.with_name(f"{file.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if not is_special:
            part.replace(file)
    except OSError as error:
        if not is_special:
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error
    return file


def _shown(value: Any) -> Any:
    """Replace control characters of a string, and cut it if it is long; markup stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    if "\n" in value:
        return "\n".join(map(printable, value.split("\n")))
    return printable(value, _MAX_TEXT)


def _drawing(
    draw: Callable[..., None], *values: Any, height: float, name: str, label: str
) -> dict[str, str]:
    """Draw for a wide page and for a phone, which shows the labels as large."""
    drawn = {}
    with page_colors():
        for size, width in (("wide", _WIDE), ("narrow", _NARROW)):
            figure = new_figure(height, width)
            draw(figure.subplots(), *values)
            drawn[size] = inline(figure, f"{name}-{size}", label)
    return drawn


def _result(simulated: WithTotals, index: int) -> dict[str, Any]:
    summary = simulated.summary()
    shown: dict[str, Any] = {"tiles": _tiles(summary)}
    if summary.events == 0:
        return shown
    label = f"{summary.allowed:,} events allowed and {summary.denied:,} denied, over time"
    shown["traffic"] = _drawing(
        draw_traffic, simulated.bins(), height=3.4, name=f"traffic{index}", label=label
    )
    if (bucket := simulated.bucket()) is not None:
        title = bucket_title(bucket)
        shown["bucket"] = _drawing(
            draw_bucket, bucket, height=2.6, name=f"bucket{index}", label=title
        )
    shown["table"] = _table(simulated.top_clients(), summary.clients_denied)
    waits = simulated.waits()
    while waits and not waits[last := next(reversed(waits))]:
        del waits[last]
    if waits:
        shown["waits"] = _drawing(
            draw_waits, waits, height=1.1 + 0.38 * len(waits), name=f"waits{index}",
            label="denied events by their wait",
        )  # fmt: skip
    return shown


def _tiles(summary: Summary) -> list[tuple[str, str, str, str]]:
    wait = format_value("longest_wait", summary.longest_wait)
    return [
        (
            "clients denied",
            f"{summary.clients_denied:,}",
            f"of {pluralize(summary.clients, 'client')}",
            "lead-tile denied" if summary.denied else "lead-tile",
        ),
        (
            "denied",
            format_value("denied_share", summary.denied_share),
            f"{summary.denied:,} of {pluralize(summary.events, 'event')}",
            "",
        ),
        ("longest wait", wait, "retry_after of a denied event", ""),
        ("most at once", f"{summary.most_at_once:,}", "tokens admitted", ""),
        (
            "most in a minute",
            f"{summary.most_in_minute:,}",
            f"{summary.most_in_second:,} in a second",
            "",
        ),
    ]


def _table(table: Table, clients: int = 0) -> dict[str, Any]:
    """Return the first rows of a table, which may be the first of more clients."""
    # Allowed events are the rest, and a phone has no room for their column.
    names = [name for name in table.columns if name != "allowed"]
    total = max(len(table), clients)
    note = "" if total else "None."
    if total > _MAX_ROWS:
        note = f"The first {_MAX_ROWS} of {total:,} clients."
    return {
        "caption": table.caption,
        "heads": [column_label(name) for name in names],
        "rows": [
            [_cell(name, row[name]) for name in names] for row in table.head(_MAX_ROWS).rows()
        ],
        "note": note,
    }


def _cell(name: str, value: Any) -> Cell:
    text = format_value(name, value)
    if isinstance(value, str):
        return Cell(text, is_id=name == "id")
    return Cell(text, is_number=True, share=value if name.endswith("_share") else None)


def _left_out(log: LogReport | None) -> dict[str, Any] | None:
    if log is None:
        return None
    counts = log.left_out().items()
    return {
        "lines": log.lines,
        "rows": [(why, f"{count:,} of {log.lines:,} lines") for why, count in counts if count],
        "examples": [
            [Cell(f"{each.file}:{each.line:,}", is_id=True), Cell(each.reason), Cell(each.text)]
            for each in log.examples
        ],
    }
