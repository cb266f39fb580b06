"""Run all benchmarks and print their tables; a full run also writes them.

What users want to know is written to `docs/speed.md`, what a fleet needs to `docs/at-scale.md`, and
all of it to `benches/README.md`. A run that other work on the machine disturbed is marked and
writes nothing.

The benchmarks can be run in pieces, by name. Each that was not disturbed is kept in `target/bench`,
and the pages are written from what is there once none is missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import at_scale
import harness
import plot

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/speed.md"
SCALE = ROOT / "docs/at-scale.md"
KEPT = ROOT / "target/bench"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
PYTHON: Final = ("overhead", "shared", "peers", "frameworks", "redis_server", "served", "simulate")
BENCHES = {name: [sys.executable, f"benches/python/{name}.py"] for name in PYTHON} | {
    name: ["cargo", "bench", "--quiet", "--locked", "--bench", name]
    for name in ("decide", "contention")
}
MACHINE = "On {} ({}, {} processors), CPython {}."
# What the table for users begins with; the rows of a kind are side by side.
ORDER = (
    "added",
    "a decision in memory",
    "a decision",
    "decisions",
    "memory",
    "an event",
    "`import",
)


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


def pages(results: str) -> tuple[str, str]:
    """Return the results for users, and all others: first a summary, then the details."""
    users, page, table, title = [], [], [], ""
    for line in [*results.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table and title == harness.FOR_USERS:
            users += [cells(row) for row in table[2:]]
        elif table:
            page += page_tables(table)
        table = []
        title = line.removeprefix("## ") if line.startswith("## ") else title
        if title != harness.FOR_USERS:
            page.append(line)
    users.sort(key=lambda row: [row[0].startswith(kind) for kind in ORDER], reverse=True)
    columns = ["", "penstock", "another package"]
    rows = [dict(zip(columns, row, strict=True)) for row in users]
    return "\n".join(markdown(columns, rows)), "\n".join(page)


def write_page(path: Path, results: str) -> None:
    """Replace the results on a page."""
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n{results.strip()}\n\n{END}{tail}", encoding="utf-8")


def write_pages() -> None:
    """Write the pages from the results that are kept, if they are complete."""
    missing = [name for name in BENCHES if not (KEPT / name).exists()]
    if missing:
        print(f"nothing is written: {', '.join(missing)} are missing; run them, too")
        return
    results = "".join((KEPT / name).read_text(encoding="utf-8") for name in BENCHES)
    machine = (platform.system(), platform.machine(), os.cpu_count())
    where = MACHINE.format(*machine, platform.python_version())
    for_users, for_project = pages(results)
    write_page(PAGE, f"{where}\n\n{for_users}")
    write_page(plot.DETAILS, f"{where}\n{for_project}")
    write_page(SCALE, at_scale.tables(at_scale.figures(results)))
    plot.draw(plot.figures())
    written = (str(path.relative_to(ROOT)) for path in (PAGE, plot.DETAILS, SCALE, plot.PICTURE))
    print(f"written: {', '.join(written)}")


def main() -> None:
    """Run the benchmarks one after another, because parallel runs would disturb each other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="run briefly, to see that they work")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    options = parser.parse_args()
    names = options.names or list(BENCHES)
    if unknown := set(names) - set(BENCHES):
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}")
    for name in names:
        command = shortened(BENCHES[name]) if options.quick else BENCHES[name]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout, flush=True)
        if options.quick:
            continue
        KEPT.mkdir(parents=True, exist_ok=True)
        if harness.UNSTEADY in done.stdout:
            (KEPT / name).unlink(missing_ok=True)
            print(f"{name} is not kept: run it again while the machine has no other work")
        else:
            (KEPT / name).write_text(done.stdout, encoding="utf-8")
    if not options.quick:
        write_pages()


if __name__ == "__main__":
    main()
