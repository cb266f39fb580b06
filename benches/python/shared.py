"""The shared-memory store from Python: row 14 of the targets.

Another process works at the same table, on the other core, while this one is measured. What the
two took together is compared with what the table counted.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import harness
import noop

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

    # Creates a function that sends requests and returns how many were allowed.
    MakeWork = Callable[[penstock.Limiter], Callable[[], int]]

CAPACITY = 1_000_000
BURST = 40_000_000
FEW = 200_000
LIMITS = {
    # Large enough that no id is denied and no bucket drains during a run.
    "Orders": penstock.Limit.token_bucket(burst=BURST, count=1, period=100),
    "Few": penstock.Limit.token_bucket(burst=FEW, count=1, period=3600),
    # Drains at once, so that a table never fills up.
    "Pages": penstock.Limit.token_bucket(burst=1, count=1, period=0.001),
}
CALLS = 100
# Memory, as for shm://NAME.
FOLDER = Path("/dev/shm")  # noqa: S108  the folder in it is new


def spend_on(prefix: str) -> MakeWork:
    """Return work on 1,000 known buckets whose ids begin with a prefix."""

    def make(limiter: penstock.Limiter) -> Callable[[], int]:
        spend = limiter.limit("Orders").spend
        ids = itertools.cycle([f"{prefix}{number}" for number in range(1_000)])
        return lambda: sum(spend(id).allowed for id in itertools.islice(ids, CALLS))

    return make


def spend_on_one(name: str) -> MakeWork:
    """Return work on one bucket of a limit."""

    def make(limiter: penstock.Limiter) -> Callable[[], int]:
        spend = limiter.limit(name).spend
        return lambda: sum(spend("hot").allowed for _ in range(CALLS))

    return make


def insert(limiter: penstock.Limiter) -> Callable[[], int]:
    """Return work that creates a bucket with each call."""
    spend = limiter.limit("Pages").spend
    ids = (f"{os.getpid()}-{number}" for number in itertools.count())
    return lambda: sum(spend(id).allowed for id in itertools.islice(ids, CALLS))


class Neighbor:
    """Another process at the same table, which works on request."""

    def __init__(self, url: str, make: MakeWork) -> None:
        # Forked, so that the work need not be picklable.
        fork = multiprocessing.get_context("fork")
        self._is_working, self._is_over = fork.Event(), fork.Event()
        self._answers, answers = fork.Pipe(duplex=False)
        self._process = fork.Process(
            target=_work, args=(url, make, self._is_working, self._is_over, answers), daemon=True
        )
        self._process.start()
        self.allowed = 0
        """The number of its requests that were allowed."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let it work while the block runs."""
        self._is_working.set()
        self._answers.recv()
        yield
        self._is_working.clear()
        self.allowed = self._answers.recv()

    def stop(self) -> None:
        """End the process."""
        self._is_over.set()
        self._is_working.set()
        self._process.join()


def _work(url: str, make: MakeWork, is_working: Event, is_over: Event, answers: Connection) -> None:
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {min(range(os.cpu_count() or 1))})
    work, allowed = make(penstock.Limiter(LIMITS, store=url)), 0
    while is_working.wait() and not is_over.is_set():
        answers.send(0)
        while is_working.is_set():
            allowed += work()
        answers.send(allowed)


@contextmanager
def beside(url: str, make: MakeWork) -> Iterator[Neighbor]:
    """Run another process until the block ends."""
    neighbor = Neighbor(url, make)
    try:
        yield neighbor
    finally:
        neighbor.stop()


def paired(
    run: harness.Run, operations: int, neighbor: Neighbor, rounds: int
) -> dict[str, list[float]]:
    """Run alone and beside the other process in turn; return nanoseconds per operation."""
    took: dict[str, list[float]] = {"alone": [], "beside": []}

    def measure(name: str) -> None:
        started = time.perf_counter_ns()
        run()
        took[name].append((time.perf_counter_ns() - started) / operations)

    run()
    for _ in range(rounds):
        measure("alone")
        with neighbor.working():
            measure("beside")
    return took


def known_bucket(table: harness.Table, url: str, rounds: int) -> None:
    """One process: a known bucket relative to the no-op, and to the memory store."""
    _, drawn = harness.ids(1_000, 20_000)
    spends = {
        "memory://": penstock.Limiter(LIMITS).limit("Orders").spend,
        "shm://": penstock.Limiter(LIMITS, store=url).limit("Orders").spend,
    }
    runs = {
        "no-op": harness.each(noop.Noop().call, drawn),
        "least": harness.each(noop.Slots(1_000).touch, drawn),
    }
    runs |= {name: harness.each(spend, drawn) for name, spend in spends.items()}
    took = harness.alternate(runs, len(drawn), rounds, drawn=drawn)
    memory = harness.ratio(took, "memory://", "no-op")
    table.seen("", "memory://, relative to the no-op, 1,000 buckets", f"{memory:.3g} x")
    least = f"{harness.ratio(took, 'least', 'no-op'):.3g} x"
    sides = harness.sides(took, "shm://", floor="no-op", least=least)
    table.steady(took, "no-op")
    time = harness.shown_time(harness.median(took, "shm://"))
    table.for_users.append(("a decision in shared memory, 1,000 clients", time, ""))
    what = "shm://, bound.spend(id) relative to the no-op, 1,000 buckets"
    table.at_most("14", what, 3.2, harness.ratio(took, "shm://", "no-op"), " x", sides=sides)


def different_buckets(table: harness.Table, url: str, rounds: int) -> None:
    """Two processes, each on its own buckets."""
    limiter = penstock.Limiter(LIMITS, store=url)
    ids = [f"mine{number}" for number in range(1_000)]
    run, calls = harness.each(limiter.limit("Orders").spend, ids * 20), len(ids) * 20
    with beside(url, spend_on("other")) as neighbor:
        took = paired(run, calls, neighbor, rounds)
        allowed = neighbor.allowed
    what = "two processes on different buckets, relative to one"
    table.at_most("14", what, 1.35, harness.ratio(took, "beside", "alone"), " x")
    counted = sum(
        BURST - limiter.peek("Orders", f"other{number}").remaining for number in range(1_000)
    )
    exact(table, "different buckets", counted, allowed)


def new_bucket(table: harness.Table, url: str, calls: int) -> None:
    """One process: the first call of each id."""
    limiter = penstock.Limiter(LIMITS, store=url)
    spend = limiter.limit("Orders").spend
    ids = [f"new{number}" for number in range(calls)]
    took = harness.once({"new": harness.each(spend, ids)}, calls)
    table.at_most("14", "a new bucket", 3, took["new"] / 1000, " us")
    assert all(limiter.peek("Orders", id).remaining == BURST - 1 for id in ids[:1_000])


def slowest_calls(table: harness.Table, url: str, calls: int) -> None:
    """The slowest calls on known buckets while another process creates buckets at full speed."""
    _, drawn = harness.ids(1_000, calls)
    spend = penstock.Limiter(LIMITS, store=url).limit("Orders").spend

    def latencies() -> list[int]:
        clock, took = time.perf_counter_ns, []
        for id in drawn:
            started = clock()
            spend(id)
            took.append(clock() - started)
        return sorted(took)

    latencies()
    alone = latencies()
    with beside(url, insert) as neighbor, neighbor.working():
        inserting = latencies()
    for name, took in (("alone", alone), ("while another process inserts", inserting)):
        p50, p99, p999 = (took[int(len(took) * share)] for share in (0.5, 0.99, 0.999))
        shown = f"{p50} / {p99} / {p999} ns; slowest {took[-1] / 1000:.0f} us"
        table.seen("14", f"p50 / p99 / p99.9 of a call, {name}", shown)


def hot_bucket(table: harness.Table, url: str, rounds: int) -> None:
    """Two processes on one bucket: their throughput, and the exact total."""
    limiter = penstock.Limiter(LIMITS, store=url)
    calls, work = 20_000, spend_on_one("Orders")(limiter)
    mine = 0

    def run() -> None:
        nonlocal mine
        mine += sum(work() for _ in range(calls // CALLS))

    with beside(url, spend_on_one("Orders")) as neighbor:
        took = paired(run, calls, neighbor, rounds)
        allowed = mine + neighbor.allowed
    alone, together = harness.median(took, "alone"), harness.median(took, "beside")
    what = "one hot bucket: a call of one process, and of each of two"
    table.seen("14", what, f"{alone:.0f} / {together:.0f} ns")
    throughput = 2 * statistics.median(
        one / both for one, both in zip(took["alone"], took["beside"], strict=True)
    )
    table.seen("14", "one hot bucket: throughput of two processes", f"{throughput:.2f} x of one")
    exact(table, "one hot bucket", BURST - limiter.peek("Orders", "hot").remaining, allowed)


def exhausted_bucket(table: harness.Table, url: str) -> None:
    """Two processes that ask for more than a limit admits."""
    limiter = penstock.Limiter(LIMITS, store=url)
    mine, work = 0, spend_on_one("Few")(limiter)
    with beside(url, spend_on_one("Few")) as neighbor:
        with neighbor.working():
            while limiter.peek("Few", "hot").remaining > 0:
                mine += work()
        allowed = mine + neighbor.allowed
    exact(table, "an exhausted bucket", FEW, allowed)


def exact(table: harness.Table, what: str, expected: int, allowed: int) -> None:
    """Compare the requests allowed to the processes with the count in the table."""
    if allowed != expected:
        raise SystemExit(f"{what}: {allowed:,} requests were allowed, expected {expected:,}")
    table.seen("14", f"{what}: allowed, exactly as counted", f"{allowed:,}")


def main() -> None:
    """Measure all rows."""
    short = harness.quick()
    harness.stay_on_one_core()
    table = harness.Table("Shared memory, from Python", is_conclusive=not short)
    rounds = 3 if short else 61
    with tempfile.TemporaryDirectory(dir=FOLDER if FOLDER.is_dir() else None) as folder:
        tables = itertools.count()

        def url() -> str:
            return f"shm://{folder}/{next(tables)}?capacity={CAPACITY}"

        known_bucket(table, url(), rounds)
        different_buckets(table, url(), rounds)
        new_bucket(table, url(), 5_000 if short else 200_000)
        slowest_calls(table, url(), 5_000 if short else 500_000)
        hot_bucket(table, url(), rounds)
        exhausted_bucket(table, url())
    table.show()


if __name__ == "__main__":
    main()
