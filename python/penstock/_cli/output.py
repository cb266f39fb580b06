"""The output of simulations: tables on a terminal or in a pipe, JSON, or a report page."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock._cli.errors import WRONG_USE, CommandError
from penstock._display import format_span, printable, text_table
from penstock._extras import Extra
from penstock.simulate.format import format_date

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from penstock.simulate.report.page import Report


_MAX_CLIENTS: Final = 10
_MAX_WIDTH: Final = 100
_MAX_FACT: Final = 1_000


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
        read = (*options.logs, options.limits, options.overrides)
        if Path(file).exists() and any(
            Path(file).samefile(each) for each in read if each is not None and Path(each).exists()
        ):
            raise CommandError(f"--{option}: {file} would be lost; pass another file", WRONG_USE)


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
    print(*text_table(_source(report), max_width=_MAX_FACT), sep="\n")
    print()
    print(*text_table(_totals(report), max_width=_MAX_WIDTH), sep="\n")
    tables = report.changes() or [report.first.top_clients().head(_MAX_CLIENTS)]
    for table in tables:
        print(f"\n{table.text(_MAX_CLIENTS)}")
    if report.recommendation is not None:
        recommended = report.recommendation
        print(f"\n{report.heading()}\n{recommended.table()}\n\n{recommended.explain()}\n")
        print(recommended.yaml(report.first.evaluator.limit_name), end="")


def _source(report: Report) -> list[tuple[str, str]]:
    bins = report.first.bins()
    rows = [("events", report.source)]
    if len(bins.arrivals):
        span = format_span(bins.last_ns - bins.first_ns)
        rows.append(("from", format_date(bins.first_ns)))
        rows.append(("to", f"{format_date(bins.last_ns)} ({span})"))
    if report.log is not None:
        rows.append(("read", str(report.log)))
        # Show the field that was read, because a wrong one yields plausible numbers.
        names = {"id": "client", "cost": "cost"}
        rows += [(head, report.log.fields.get(option, "")) for option, head in names.items()]
    if len(report.simulated) == 1:
        rows += zip(("limit", "admits"), report.first.evaluator.described, strict=True)
    return [row for row in rows if row[1]]


def _totals(report: Report) -> list[tuple[str, ...]]:
    columns = [each.summary().facts() for each in report.simulated.values()]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    if len(columns) == 1:
        return rows
    limits = (each.evaluator.described[0] for each in report.simulated.values())
    return [("", *report.simulated), ("limit", *limits), *rows]


def _json(report: Report) -> dict[str, Any]:
    """Return the results as JSON values; times in nanoseconds, waits in seconds."""
    bins = report.first.bins()
    answer: dict[str, Any] = {
        "source": report.source,
        "first_ns": bins.first_ns,
        "last_ns": bins.last_ns,
        "limits": [
            {
                "title": title,
                "limit": each.evaluator.described[0],
                "admits": each.evaluator.described[1],
                "summary": each.summary().to_dict(),
                "waits": each.waits(),
                "clients": list(each.top_clients().rows()),
            }
            for title, each in report.simulated.items()
        ],
    }
    if (log := report.log) is not None:
        answer["log"] = asdict(log) | {"examples": [each._asdict() for each in log.examples]}
    if changes := report.changes():
        answer["changes"] = [list(table.rows()) for table in changes]
    if report.problems is not None:
        denied = list(report.first.denied_clients().rows())
        answer["check"] = {"problems": report.problems, "denied_clients": denied}
    if (recommended := report.recommendation) is not None:
        name = report.first.evaluator.limit_name
        rows = zip(recommended.candidates, recommended.table().rows(), strict=True)
        answer["recommendation"] = {
            "name": name,
            "chosen": recommended.row,
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
