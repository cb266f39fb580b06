"""Logs of JSON lines, written in the tests as tables."""

from __future__ import annotations

import json


def json_lines(table: str) -> str:
    """Return a log with an object for each row of a table, whose first line names the fields."""
    first, *rows = table.splitlines()
    names = first.split(",")
    return "".join(f"{json.dumps(dict(zip(names, row.split(','), strict=True)))}\n" for row in rows)
