"""What a fleet needs, computed from measured figures by a small model.

The model: a decision takes processor time on the server and bytes on the network. Callers of one
process at the same time share a run of the script, except in a cluster. A server uses one
processor, and is not loaded above a share of it. A bucket is kept until it is full again.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

LOAD = 0.6
"""The share of a processor that a server may use: above, its queue makes answers slow."""
SHARED_KEY_LOAD = 0.3
"""The same for one key, whose server has other keys as well."""
CLIENTS_PER_REQUEST = 10
"""Clients with a bucket that is not full, for each request a second."""
LOADS = (10_000, 1_000_000, 100_000_000)


class Figures(NamedTuple):
    """What the benchmark of a Redis server has measured."""

    single_us: float
    together_us: float
    single_bytes: float
    together_bytes: float
    memory: float


ROWS = {
    "single_us": "processor time of the server per decision, one limit, busy server",
    "together_us": "processor time of the server per decision, one limit, batched",
    "single_bytes": "bytes sent per decision, one limit",
    "together_bytes": "bytes sent per decision, one limit, batched",
    "memory": "memory of the server per bucket",
}


def figures(results: str) -> Figures:
    """Read the figures from the rows of a table of results."""

    def measured(what: str) -> float:
        row = next(line for line in results.splitlines() if f"| {what} |" in line)
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        number = next(
            found
            for cell in cells[1:]
            if (found := re.fullmatch(r"([\d.,e+-]+) (us|bytes)", cell)) is not None
        )
        return float(number[1].replace(",", ""))

    return Figures(**{name: measured(what) for name, what in ROWS.items()})


def shown(number: float) -> str:
    """Return a number with two digits and a unit."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return (
                f"{number / size:.2g}{unit}" if number < 99 * size else f"{number / size:.0f}{unit}"
            )
    return f"{number:.2g}"


def servers(decisions: float, each_us: float) -> int:
    """Return how many servers decide that many calls a second."""
    return math.ceil(decisions * each_us / 1e6 / LOAD)


def tables(found: Figures) -> str:
    """Return the tables of the page."""
    columns = (
        "requests a second",
        "primaries of a cluster",
        "servers of cells, batched calls",
        "sent to servers",
        "memory of servers",
    )
    lines = [f"| {' | '.join(columns)} |", "| --- | --- | --- | --- | --- |"]
    for load in LOADS:
        sent = load * found.together_bytes * 8
        memory = load * CLIENTS_PER_REQUEST * found.memory
        cells = (
            f"{load:,}",
            f"{servers(load, found.single_us):,}",
            f"{servers(load, found.together_us):,}",
            f"{shown(sent)}bit/s",
            f"{shown(memory)}B",
        )
        lines.append("| " + " | ".join(cells) + " |")
    hot_single = SHARED_KEY_LOAD / found.single_us * 1e6
    hot_together = SHARED_KEY_LOAD / found.together_us * 1e6
    sentences = (
        f"On a busy server, a single call takes {found.single_us:.3g} µs of processor time and",
        f"a batched decision {found.together_us:.3g} µs; they send {found.single_bytes:.0f} and",
        f"{found.together_bytes:.0f} bytes; a bucket takes {found.memory:.0f} bytes.",
        "One bucket that all clients share can be decided",
        f"{hot_single:,.0f} times a second by single calls and",
        f"{hot_together:,.0f} times in batches, with {SHARED_KEY_LOAD:.0%} of a processor.",
    )
    lines += ["", *textwrap.wrap(" ".join(sentences), width=132)]
    return "\n".join(lines)


def main() -> None:
    """Print the tables for the results of `redis_server.py` in a file."""
    print(tables(figures(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
