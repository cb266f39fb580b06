"""Side-by-side measurement: alternating rounds, medians, and a table of results and targets."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import statistics
import sys
import time
from argparse import ArgumentParser
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Run: TypeAlias = "Callable[[], object]"

FOR_USERS = "For users"
"""The title of the rows for the documentation; all others are for the project."""
UNSTEADY = "Not published"
"""Begins the line that marks a run as disturbed."""
MAX_SPREAD = 0.2
"""The largest share by which the times of a call that does nothing may differ in a run."""
MOST_ROUNDS = 3
"""How many times as many rounds are run at most, until enough of them were undisturbed."""
MAX_DELAY = 1.15
"""The time of an empty loop, as a multiple of the shortest, above which a round is disturbed."""
MAX_OTHER_WORK = 0.1
"""The largest share of the processors that programs outside of a benchmark may take meanwhile."""


def quick() -> bool:
    """Return whether the command line asks for a quick run."""
    parser = ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="run briefly, to see that it works")
    return bool(parser.parse_args().quick)


def each(function: Callable[[str], object], ids: Sequence[str]) -> Run:
    """Return a run that calls `function` with each id; the time includes the loop."""

    def run() -> None:
        for id in ids:
            function(id)

    return run


def each_spaced(function: Callable[[str], object], ids: Sequence[str]) -> Run:
    """Do as `each`, with about 2 µs of other work before each call, as in an application."""
    encode, order = json.dumps, {"order": 7, "items": [1, 2, 3]}

    def run() -> None:
        for id in ids:
            encode(order)
            function(id)

    return run


class Drawn(list[str]):
    """Ids drawn uniformly at random, in another order in each round.

    A processor learns the branches of a sequence that repeats.
    """

    def __init__(self, names: Sequence[str], calls: int) -> None:
        self._names = names
        self._draw = random.Random(1)
        super().__init__(self._draw.choices(names, k=calls))

    def renew(self) -> None:
        """Draw again, in place."""
        self[:] = self._draw.choices(self._names, k=len(self))


def ids(buckets: int, calls: int) -> tuple[list[str], Drawn]:
    """Return all ids, and `calls` of them drawn at random."""
    names = [f"user-{number}" for number in range(buckets)]
    return names, Drawn(names, calls)


def alternate(
    runs: Mapping[str, Run],
    operations: int,
    rounds: int,
    *,
    drawn: Drawn | None = None,
    collects: bool = False,
) -> dict[str, list[float]]:
    """Run each in turn, `rounds` times, after a warm-up; return nanoseconds per operation.

    All runs of a round have the same ids, which `drawn` renews before each. An empty loop is timed
    between runs: rounds in which it takes longer, because another machine on the same processor
    works, are repeated.

    The garbage collector is disabled unless `collects` is true. Then its work is part of the time,
    and objects that existed before are excluded from collection.
    """
    for run in runs.values():
        run()
    took: dict[str, list[float]] = {name: [] for name in runs}
    delays: list[float] = []
    was_enabled = gc.isenabled()
    gc.collect()
    if collects:
        gc.freeze()
    else:
        gc.disable()
    try:
        while undisturbed(delays) < rounds and len(delays) < MOST_ROUNDS * rounds:
            if drawn is not None:
                drawn.renew()
            slowest = empty_loop()
            for name, run in runs.items():
                started = time.perf_counter_ns()
                run()
                took[name].append((time.perf_counter_ns() - started) / operations)
                slowest = max(slowest, empty_loop())
            delays.append(slowest)
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    best = sorted(sorted(range(len(delays)), key=delays.__getitem__)[:rounds])
    return {name: [times[index] for index in best] for name, times in took.items()}


def empty_loop() -> float:
    """Return the seconds that a loop of less than a millisecond takes."""
    started = time.perf_counter()
    for _ in range(40_000):
        pass
    return time.perf_counter() - started


def undisturbed(delays: Sequence[float]) -> int:
    """Return the number of rounds in which the empty loop was always about as fast as ever."""
    return sum(delay <= MAX_DELAY * min(delays) for delay in delays)


def once(runs: Mapping[str, Run], operations: int) -> dict[str, float]:
    """Run each once, for runs that cannot be repeated; return nanoseconds per operation."""
    took = {}
    for name, run in runs.items():
        started = time.perf_counter_ns()
        run()
        took[name] = (time.perf_counter_ns() - started) / operations
    return took


def ratio(took: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Return the median over rounds of the time of `one` divided by that of `other`."""
    pairs = zip(took[one], took[other], strict=True)
    return statistics.median(mine / yours for mine, yours in pairs)


def over(took: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Return the median over rounds of the time of `one` minus that of `other`."""
    pairs = zip(took[one], took[other], strict=True)
    return statistics.median(mine - yours for mine, yours in pairs)


def times_added(took: Mapping[str, Sequence[float]], one: str, other: str, floor: str) -> float:
    """Return by how much more time `one` adds to `floor` than `other` does, as a factor."""
    added, by_other = over(took, one, floor), over(took, other, floor)
    # A short run on a busy machine may find that nothing is added.
    return added / by_other if by_other else math.inf


def median(took: Mapping[str, Sequence[float]], one: str) -> float:
    """Return the median time of `one`, in nanoseconds per operation."""
    return statistics.median(took[one])


def spread(values: Sequence[float]) -> float:
    """Return the distance of the 10th and the 90th percentile, as a share of the median."""
    low, *_, high = statistics.quantiles(values, n=10, method="inclusive")
    middle = abs(statistics.median(values))
    return (high - low) / middle if middle else math.inf


def uneven(values: Sequence[float]) -> str:
    """Return a remark for a row whose rounds differ too much, otherwise an empty text."""
    found = spread(values) if len(values) > 1 else 0.0
    return f" (uneven: rounds differ by {found:.0%})" if found > MAX_SPREAD else ""


def cpu_ns(pid: int) -> int:
    """Return the processor time that a process has taken, in nanoseconds."""
    # The clock of another process, as `clock_getcpuclockid` of Linux computes it.
    return time.clock_gettime_ns(~pid << 3 | 2)


class OtherWork:
    """Share of the processors that programs other than this one and those in `pids` take.

    For benchmarks in which the processors sleep between the calls: an empty loop then takes longer
    whenever it has to wake one, on a machine without any other work as well.
    """

    def __init__(self, *pids: int) -> None:
        self._pids: Final = (os.getpid(), *pids)
        self._started: Final = self._now()

    def _now(self) -> tuple[float, float, float]:
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123  a file of the kernel
            fields = [int(field) for field in file.readline().split()[1:9]]
        _user, _nice, _system, idle, waiting, *_ = fields
        taken = (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), taken, sum(map(cpu_ns, self._pids)) / 1e9

    def share(self) -> float:
        """Return the share since this was created."""
        now = self._now()
        elapsed, taken, ours = (end - start for start, end in zip(self._started, now, strict=True))
        return max(taken - ours, 0.0) / (elapsed * (os.cpu_count() or 1))


def shown_time(ns: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    for unit, size in (("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


@dataclass(frozen=True)
class Sides:
    """The times behind a row: without a limiter, with penstock, and with the best other package.

    `least` is what a limiter can reach at best, in the unit of the row.
    """

    floor: str = ""
    least: str = ""
    ours: str = ""
    peer: str = ""


def sides(
    took: Mapping[str, Sequence[float]],
    ours: str,
    *,
    floor: str | None = None,
    least: str = "",
    peers: Iterable[str] = (),
    unit: str = "ns",
) -> Sides:
    """Return the median times of one run; the best of `peers` is the fastest one."""
    scale = {"ns": 1, "us": 1e3, "ms": 1e6}[unit]

    def shown(name: str) -> str:
        time = median(took, name) / scale
        return f"{time:,.0f} {unit}" if time >= 100 else f"{time:.3g} {unit}"

    best = min(peers, key=lambda peer: median(took, peer), default=None)
    return Sides(
        floor=shown(floor) if floor else "",
        least=least,
        ours=shown(ours),
        peer=f"{shown(best)} ({best})" if best else "",
    )


@dataclass
class Table:
    """Rows of the results: what is measured, the times, the target, and whether it is met.

    Some results are for users as well: what is measured, penstock, and the best other package.
    """

    title: str
    is_conclusive: bool
    """Whether the run is long enough to decide if a target is met."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    for_users: list[tuple[str, str, str]] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    """What makes the run unfit for the documentation."""

    def at_most(
        self,
        row: str,
        what: str,
        target: float,
        measured: float,
        unit: str,
        *,
        sides: Sides = Sides(),
    ) -> None:
        texts = (f"<= {target:g}{unit}", f"{measured:.3g}{unit}")
        self._add(row, what, texts, sides, met=measured <= target)

    def at_least(
        self,
        row: str,
        what: str,
        target: float,
        measured: float,
        unit: str,
        *,
        sides: Sides = Sides(),
    ) -> None:
        texts = (f">= {target:g}{unit}", f"{measured:.3g}{unit}")
        self._add(row, what, texts, sides, met=measured >= target)

    def seen(self, row: str, what: str, measured: str) -> None:
        self.rows.append((row, what, "", "", "", "", "", measured, ""))

    def steady(self, took: Mapping[str, Sequence[float]], floor: str) -> None:
        """Note by how much the times of a call without a limit differ, which should be equal."""
        found = spread(took[floor])
        self.seen("", f"spread of the rounds, {floor}", f"{found:.0%}")
        if found > MAX_SPREAD:
            self.unsteady.append(f"{floor} spreads by {found:.0%}, more than {MAX_SPREAD:.0%}")

    def quiet(self, others: OtherWork) -> None:
        """Note which share of the processors other programs have taken."""
        found = others.share()
        self.seen("", "processors taken by other programs", f"{found:.0%}")
        if found > MAX_OTHER_WORK:
            self.unsteady.append(
                f"other programs take {found:.0%} of the processors, more than {MAX_OTHER_WORK:.0%}"
            )

    def _add(self, row: str, what: str, texts: tuple[str, str], sides: Sides, *, met: bool) -> None:
        verdict = ("yes" if met else "NO") if self.is_conclusive else "-"
        shown = (sides.floor, sides.least, sides.ours, sides.peer)
        self.rows.append((row, what, *shown, *texts, verdict))

    def show(self) -> None:
        print(f"\n## {self.title}\n")
        print("| row | what | without | least | penstock | best other | target | measured | ok |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        if self.unsteady:
            print(f"\n{UNSTEADY}: {'; '.join(self.unsteady)}.")
        if self.for_users:
            print(f"\n## {FOR_USERS}\n\n| what | penstock | another package |")
            print("| --- | --- | --- |")
            for row in self.for_users:
                print("| " + " | ".join(row) + " |")
        sys.stdout.flush()


def stay_on_one_core() -> None:
    """Pin this process to one core, so that migrations are not measured."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  a one-line file of the kernel
        return int(file.read().split()[1]) * int(os.sysconf("SC_PAGE_SIZE"))
