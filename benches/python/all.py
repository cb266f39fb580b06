"""Run all benchmarks and print their tables; a full run also writes them to the documentation."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import harness

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/speed.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
BENCHES = [
    [sys.executable, "benches/python/overhead.py"],
    [sys.executable, "benches/python/shared.py"],
    [sys.executable, "benches/python/peers.py"],
    [sys.executable, "benches/python/frameworks.py"],
    [sys.executable, "benches/python/redis_server.py"],
    [sys.executable, "benches/python/simulate.py"],
    ["cargo", "bench", "--quiet", "--locked", "--bench", "decide"],
    ["cargo", "bench", "--quiet", "--locked", "--bench", "contention"],
]
HEAD = """
![Nanoseconds per decision: penstock and other packages](decision-times.svg)

On {} ({}, {} processors), CPython {}. *without* is the same work without a limit, or an
extension method that does nothing; *least* is what that method measures if it also hashes the id,
changes one slot of a table and reads the clock; *target* is the project's own goal.
"""


def shortened(command: list[str]) -> list[str]:
    """Return the quick variant of a command; Rust benchmarks use the profile that tests build."""
    if command[0] != "cargo":
        return [*command, "--quick"]
    return ["test" if word == "bench" else word for word in command] + ["--", "--quick"]


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def markdown(columns: list[str], rows: list[dict[str, str]]) -> list[str]:
    """Return a table of these columns, without those that are empty or not measured."""
    shown = [column for column in columns if any(row.get(column) for row in rows)]
    lines = [shown, ["---"] * len(shown), *([row[column] for column in shown] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def page_tables(lines: list[str]) -> list[str]:
    """Return a table of the rows that have a target, and one of all other measurements, folded."""
    names = cells(lines[0])
    rows = [dict(zip(names, cells(line), strict=True)) for line in lines[2:]]
    for row in rows:
        row["met"] = row["ok"].lower()
        row["target"] = row["target"].replace("<=", "≤").replace(">=", "≥")
        row[""] = row["what"]
    with_target = [row for row in rows if row["target"]]
    others = [row for row in rows if not row["target"]]
    page = []
    if with_target:
        columns = ["", "without", "least", "penstock", "best other", "measured", "target", "met"]
        page += markdown(columns, with_target)
    if with_target and others:
        page += ["", "<details markdown>", "<summary>All measurements</summary>", ""]
    if others:
        page += markdown(["", "measured"], others)
    return [*page, "", "</details>"] if with_target and others else page


def for_page(results: str) -> str:
    """Return the results as the page shows them: first a summary, then the details."""
    page, table = [], []
    for line in [*results.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            page += page_tables(table)
            table = []
        # The title of the page's section is one level above these.
        page.append(line.replace("## ", "### ", 1) if line.startswith("## ") else line)
    return "\n".join(page)


def write_page(page: str) -> None:
    """Replace the results in the documentation."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{page.rstrip()}\n\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Run the benchmarks one after another, because parallel runs would disturb each other."""
    short = harness.quick()
    machine = (platform.system(), platform.machine(), os.cpu_count())
    results = [HEAD.format(*machine, platform.python_version())]
    for command in BENCHES:
        done = subprocess.run(
            shortened(command) if short else command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(done.stdout, flush=True)
        results.append(done.stdout)
    page = for_page("".join(results))
    if not short:
        write_page(page)
        print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
