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

On {} ({}, {} processors), CPython {}. Ratios are measured side by side in one
run; absolute times drift.
"""


def shortened(command: list[str]) -> list[str]:
    """Return the quick variant of a command; Rust benchmarks use the profile that tests build."""
    if command[0] != "cargo":
        return [*command, "--quick"]
    return ["test" if word == "bench" else word for word in command] + ["--", "--quick"]


def write_page(results: str) -> None:
    """Replace the results on the page."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{results.rstrip()}\n\n{END}{tail}", encoding="utf-8")


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
    if not short:
        write_page("".join(results))
        print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
