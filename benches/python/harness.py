"""Measures things side by side: rounds in turn, medians, and a table of figures and targets."""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from argparse import ArgumentParser
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Run: TypeAlias = "Callable[[], object]"


def quick() -> bool:
    """Give whether the command line asks for a short turn."""
    parser = ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a short turn: does it run at all")
    return bool(parser.parse_args().quick)


def each(function: Callable[[str], object], ids: Sequence[str]) -> Run:
    """Give a run that calls `function` with each id; the loop itself is part of the figure."""

    def run() -> None:
        for id in ids:
            function(id)

    return run


def ids(buckets: int, calls: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Give all ids, and a sequence of `calls` of them drawn evenly."""
    names = [f"user-{number}" for number in range(buckets)]
    draw = random.Random(seed)
    return names, draw.choices(names, k=calls)


def alternate(
    runs: Mapping[str, Run], operations: int, rounds: int, *, collects: bool = False
) -> dict[str, list[float]]:
    """Run each in turn, `rounds` times, after one turn to warm up; nanoseconds per operation.

    The garbage collector rests unless `collects`: then what a run leaves to it is part of its
    figure, and what was there before is not looked at.
    """
    for run in runs.values():
        run()
    took: dict[str, list[float]] = {name: [] for name in runs}
    was_enabled = gc.isenabled()
    gc.collect()
    if collects:
        gc.freeze()
    else:
        gc.disable()
    try:
        for _ in range(rounds):
            for name, run in runs.items():
                started = time.perf_counter_ns()
                run()
                took[name].append((time.perf_counter_ns() - started) / operations)
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return took


def once(runs: Mapping[str, Run], operations: int) -> dict[str, float]:
    """Run each once, where a run uses up what it works on; nanoseconds per operation."""
    took = {}
    for name, run in runs.items():
        started = time.perf_counter_ns()
        run()
        took[name] = (time.perf_counter_ns() - started) / operations
    return took


def ratio(took: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Give the median over rounds of what `one` took for each unit that `other` took."""
    pairs = zip(took[one], took[other], strict=True)
    return statistics.median(mine / yours for mine, yours in pairs)


def over(took: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Give the median over rounds of what `one` took more than `other`."""
    pairs = zip(took[one], took[other], strict=True)
    return statistics.median(mine - yours for mine, yours in pairs)


def median(took: Mapping[str, Sequence[float]], one: str) -> float:
    """Give the median of what `one` took, in nanoseconds per operation."""
    return statistics.median(took[one])


@dataclass
class Table:
    """Rows of the performance page: what is measured, target, figure, and whether it is met."""

    title: str
    judged: bool
    """Whether the turn was long enough to say that a target is met or missed."""
    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def at_most(self, row: str, what: str, target: float, measured: float, unit: str) -> None:
        self._add(
            row, what, f"<= {target:g}{unit}", f"{measured:.3g}{unit}", met=measured <= target
        )

    def at_least(self, row: str, what: str, target: float, measured: float, unit: str) -> None:
        self._add(
            row, what, f">= {target:g}{unit}", f"{measured:.3g}{unit}", met=measured >= target
        )

    def seen(self, row: str, what: str, measured: str) -> None:
        self.rows.append((row, what, "", measured, ""))

    def _add(self, row: str, what: str, target: str, measured: str, *, met: bool) -> None:
        verdict = ("yes" if met else "NO") if self.judged else "-"
        self.rows.append((row, what, target, measured, verdict))

    def show(self) -> None:
        print(f"\n## {self.title}\n")
        print("| row | what | target | measured | ok |")
        print("| --- | --- | --- | --- | --- |")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        sys.stdout.flush()


def stay_on_one_core() -> None:
    """Keep this process where it is, so that a move between cores is not measured."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def resident_bytes() -> int:
    """Give the memory of this process that is in use, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  one line of the kernel's
        return int(file.read().split()[1]) * int(os.sysconf("SC_PAGE_SIZE"))
