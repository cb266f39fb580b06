"""The output of simulations: tables on a terminal or in a pipe, JSON, or a report page."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._cli.errors import WRONG_USE, CommandError
from penstock._display import format_span, printable, text_table
from penstock._extras import Extra
from penstock.simulate.format import column_label, format_date, format_value

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from penstock.simulate.limit_result import LimitResult
    from penstock.simulate.report.page import Report
    from penstock.simulate.table import Table


_MAX_CLIENTS: Final = 10
_MAX_WIDTH: Final = 100
_MAX_FACT: Final = 1_000


class _Grid(NamedTuple):
    """Rows of cells.

    Attributes:
        rows: The rows, without the heads.
        heads: The heads of the columns; empty if each row begins with its own head.
        caption: The caption of a table of numbers.
    """

    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()
    caption: str = ""


def check_files(options: Namespace) -> None:
    """Check, before a long simulation, that the report and the limits file could be written.

    Raises:
        CommandError: A file is a folder, or its folder does not exist.
        ImportError: Matplotlib is not installed.
    """
    if options.report is not None:
        with Extra("notebook"):
            import_module("matplotlib")
    for option in ("report", "write"):
        if (file := getattr(options, option)) is None:
            continue
        folder = Path(file).absolute().parent
        if not folder.is_dir():
            raise CommandError(f"--{option}: the folder {folder} does not exist", WRONG_USE)
        if Path(file).is_dir():
            raise CommandError(f"--{option}: {file} is a folder, pass a file", WRONG_USE)


def print_report(
    report: Report, *, as_json: bool, file: str | None, notes: Sequence[str] = ()
) -> None:
    """Print the results, and write the report page if a file is given."""
    if as_json:
        print(json.dumps(_json(report)))
    else:
        _print_tables(report)
    for note in notes:
        print(printable(note), file=sys.stderr)
    if report.log is not None:
        for example in report.log.examples:
            print(f"left out: {example}", file=sys.stderr)
    if file is not None:
        report.write(file)


def _print_tables(report: Report) -> None:
    grids = [_source(report), _totals(report.results)]
    if len(report.results) == 1:
        grids.append(_table(report.results[0].clients.head(_MAX_CLIENTS)))
    grids += [
        _first(table) if len(table) else _Grid([("none",)], (), table.caption)
        for table in report.changes
    ]
    for index, grid in enumerate(grid for grid in grids if grid.rows):
        if index:
            print()
        _print_grid(grid)
    if report.recommendation is not None:
        name, recommended = report.recommendation
        print(f"\n{report.heading(name)}")
        _print_grid(_table(recommended.table()))
        print(f"\n{recommended.explain()}\n")
        print(recommended.yaml(name), end="")


def _source(report: Report) -> _Grid:
    first = report.results[0]
    rows = [("events", report.source)]
    if first.summary.events:
        span = format_span(first.last_ns - first.first_ns)
        rows.append(("from", format_date(first.first_ns)))
        rows.append(("to", f"{format_date(first.last_ns)} ({span})"))
    if report.log is not None:
        rows.append(("read", str(report.log)))
        # Show the field that was read, because a wrong one yields plausible numbers.
        names = {"id": "client", "cost": "cost"}
        rows += [(head, report.log.fields.get(option, "")) for option, head in names.items()]
    if len(report.results) == 1:
        rows += [("limit", report.results[0].limit), ("admits", report.results[0].admits)]
    return _Grid([row for row in rows if row[1]])


def _totals(results: Sequence[LimitResult]) -> _Grid:
    columns = [result.summary.facts() for result in results]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    if len(results) == 1:
        return _Grid(rows)
    rows.insert(0, ("limit", *(result.limit for result in results)))
    return _Grid(rows, ("", *(result.title for result in results)))


def _table(table: Table) -> _Grid:
    rows = [[format_value(name, value) for name, value in row.items()] for row in table.rows()]
    heads = [column_label(name) for name in table.columns]
    return _Grid(rows, heads, table.caption)


def _first(table: Table) -> _Grid:
    """Return the first rows of a table; the caption says how many there are."""
    grid = _table(table.head(_MAX_CLIENTS))
    if len(table) <= _MAX_CLIENTS:
        return grid
    return grid._replace(caption=f"{grid.caption} (first {_MAX_CLIENTS} of {len(table):,})")


def _print_grid(grid: _Grid) -> None:
    if grid.caption:
        print(grid.caption)
    rows = [grid.heads, *grid.rows] if grid.heads else grid.rows
    max_width = _MAX_WIDTH if grid.heads else _MAX_FACT
    print(*text_table(rows, max_width=max_width, is_numeric=bool(grid.caption)), sep="\n")


def _json(report: Report) -> dict[str, Any]:
    """Return the results as JSON values; times in nanoseconds, waits in seconds."""
    first = report.results[0]
    answer: dict[str, Any] = {
        "source": report.source,
        "first_ns": first.first_ns,
        "last_ns": first.last_ns,
        "limits": [
            {
                "title": result.title,
                "limit": result.limit,
                "admits": result.admits,
                "summary": result.summary.to_dict(),
                "waits": dict(result.waits),
                "clients": list(result.clients.rows()),
            }
            for result in report.results
        ],
    }
    if (log := report.log) is not None:
        answer["log"] = asdict(log) | {"examples": [each._asdict() for each in log.examples]}
    if report.changes:
        answer["changes"] = [list(table.rows()) for table in report.changes]
    if (check := report.check) is not None:
        answer["check"] = {
            "passed": not check.problems(),
            "max_denied": check.max_denied,
            "denied_share": check.denied_share,
            "denied_clients": list(check.denied.rows()),
            "protected_denied": list(check.protected.rows()),
            "not_found": list(check.not_found),
        }
    if report.recommendation is not None:
        name, recommended = report.recommendation
        rows = zip(recommended.candidates, recommended.table().rows(), strict=True)
        answer["recommendation"] = {
            "name": name,
            "chosen": recommended.chosen + 1,
            "limits": [
                row | {"row": number, "fields": each.limit.fields()}
                for number, (each, row) in enumerate(rows, 1)
            ],
            "denied_clients": list(recommended.denied_clients().rows()),
            "far_clients": list(recommended.far().rows()),
            "left_out": recommended.left_out,
            "not_found": list(recommended.not_found),
            "refused": list(recommended.refused),
            "yaml": recommended.yaml(name),
        }
    return answer
