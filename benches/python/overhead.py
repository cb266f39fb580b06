"""The cost of one decision from Python.

The baseline is a PyO3 method that takes a string and does nothing (`benches/noop`), called in
alternation with penstock's methods, in one process and with the same ids. All calls are allowed.
A limiter takes at least as long as a no-op that hashes the id, changes one slot of a table and
reads the clock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import noop

import penstock

ROOT = Path(__file__).parents[2]
# Large enough that no id is denied and no bucket drains during a run.
ROOMY = penstock.Limit.token_bucket(burst=40_000_000, count=1, period=100)


def single_calls(table: harness.Table, rounds: int) -> None:
    """Time calls at 1,000 buckets."""
    _, drawn = harness.ids(1_000, 20_000)
    limiter = penstock.Limiter({"Orders": ROOMY})
    bound = limiter.limit("Orders")
    took = harness.alternate(
        {
            "no-op": harness.each(noop.Noop().call, drawn),
            "least": harness.each(noop.Slots(1_000).touch, drawn),
            "bound.spend": harness.each(bound.spend, drawn),
            "limiter.spend": named(limiter, drawn),
            "spend_each": lambda: bound.spend_each(drawn),
        },
        len(drawn),
        rounds,
        drawn=drawn,
    )
    table.steady(took, "no-op")
    for name in ("no-op", "bound.spend", "limiter.spend", "spend_each"):
        table.seen("", f"{name}, 1,000 buckets", f"{harness.median(took, name):.1f} ns")
    least = f"{harness.ratio(took, 'least', 'no-op'):.3g} x"
    what = "bound.spend(id) relative to the no-op, 1,000 buckets"
    sides = harness.sides(took, "bound.spend", floor="no-op", least=least)
    table.at_most("7", what, 4.0, harness.ratio(took, "bound.spend", "no-op"), " x", sides=sides)
    what = "limiter.spend(name, id) relative to the no-op, 1,000 buckets"
    sides = harness.sides(took, "limiter.spend", floor="no-op", least=least)
    table.at_most("7", what, 4.5, harness.ratio(took, "limiter.spend", "no-op"), " x", sides=sides)
    what = "spend_each, per id, 1,000 buckets"
    sides = harness.sides(took, "spend_each", floor="no-op")
    table.at_most("10", what, 50, harness.median(took, "spend_each"), " ns", sides=sides)


def named(limiter: penstock.Limiter, drawn: list[str]) -> harness.Run:
    """Return a run that names the limit in each call."""
    spend = limiter.spend

    def run() -> None:
        for id in drawn:
            spend("Orders", id)

    return run


def slots(table: harness.Table, store: str, rounds: int) -> None:
    """Time taking and giving back a slot, against a spend and a refund.

    A block takes at least as long as one of an object that does nothing.
    """
    _, drawn = harness.ids(1_000, 10_000)
    limits, idle = {"Orders": ROOMY, "Calls": penstock.Limit.in_flight(1_000)}, noop.Noop()
    with penstock.Limiter(limits, store) as limiter:
        orders, calls = limiter.limit("Orders"), limiter.limit("Calls")

        def returned(id: str) -> None:
            orders.spend(id)
            orders.refund(id)

        def held(id: str) -> None:
            with calls.reserve(id):
                pass

        def bare(id: str) -> None:
            with idle.reserve(id):
                pass

        took = harness.alternate(
            {
                "refund": harness.each(returned, drawn),
                "least": harness.each(bare, drawn),
                "slot": harness.each(held, drawn),
            },
            len(drawn),
            rounds,
            drawn=drawn,
        )
    what = f"a slot in a block relative to spend and refund, {store.partition(':')[0]}"
    least = f"{harness.ratio(took, 'least', 'refund'):.3g} x"
    sides = harness.sides(took, "slot", floor="refund", least=least)
    table.at_most("17", what, 1.6, harness.ratio(took, "slot", "refund"), " x", sides=sides)


def many_buckets(table: harness.Table, buckets: int, rounds: int) -> None:
    """Time calls at a million and at ten million buckets, and count their memory."""
    names, drawn = harness.ids(buckets, min(buckets, 1_000_000))
    before = harness.resident_bytes()
    limiter = penstock.Limiter({"Orders": ROOMY})
    bound = limiter.limit("Orders")
    make_buckets(bound, names)
    grown = harness.resident_bytes() - before
    took = harness.alternate(
        {
            "no-op": harness.each(noop.Noop().call, drawn),
            "least": harness.each(noop.Slots(buckets).touch, drawn),
            "bound.spend": harness.each(bound.spend, drawn),
            "spend_each": lambda: bound.spend_each(drawn),
        },
        len(drawn),
        rounds,
        drawn=drawn,
    )
    size = f"{buckets:,} buckets"
    many = harness.sides(took, "spend_each", floor="no-op")
    for name in ("no-op", "bound.spend", "spend_each"):
        table.seen("", f"{name}, {size}", f"{harness.median(took, name):.0f} ns")
    if buckets >= 10_000_000:
        least = f"{harness.ratio(took, 'least', 'no-op'):.3g} x"
        one = harness.sides(took, "bound.spend", floor="no-op", least=least)
        what = f"bound.spend(id) relative to the no-op, {size}"
        table.at_most("9", what, 1.6, harness.ratio(took, "bound.spend", "no-op"), " x", sides=one)
        what = f"spend_each, per id, {size}"
        table.at_most("10", what, 260, harness.median(took, "spend_each"), " ns", sides=many)
    else:
        least = f"{harness.over(took, 'least', 'no-op'):.3g} ns"
        one = harness.sides(took, "bound.spend", floor="no-op", least=least)
        what = f"bound.spend(id) over the no-op, {size}"
        over = harness.over(took, "bound.spend", "no-op")
        table.at_most("9", what, 280, over, " ns", sides=one)
    counted = (limiter.stats()["bytes"] or 0) / buckets
    table.at_most(
        "11", f"memory per bucket, as counted by the store, {size}", 32, counted, " bytes"
    )
    table.seen(
        "", f"memory per bucket, by growth of the process, {size}", f"{grown / buckets:.1f} bytes"
    )


def make_buckets(bound: penstock.BoundLimit, names: list[str]) -> None:
    """Create a bucket for each name."""
    for at in range(0, len(names), 100_000):
        bound.spend_each(names[at : at + 100_000])


def overrides(table: harness.Table, entries: int, rounds: int) -> None:
    """Time calls with a large table of overrides, for listed and unlisted ids."""
    _, drawn = harness.ids(1_000, 20_000)
    text = "Orders: {burst: 40000000, count: 1, period: 100s}\n"
    listed = "".join(f"      - user-{number + 500}\n" for number in range(entries))
    rows = f"- Orders:\n    burst: 20000000\n    count: 1\n    period: 100s\n    ids:\n{listed}"
    bare = penstock.Limiter(penstock.Limits.parse(text)).limit("Orders")
    loaded = penstock.Limiter(penstock.Limits.parse(text, rows)).limit("Orders")
    took = harness.alternate(
        {"bare": harness.each(bare.spend, drawn), "loaded": harness.each(loaded.spend, drawn)},
        len(drawn),
        rounds,
        drawn=drawn,
    )
    slower = (harness.ratio(took, "loaded", "bare") - 1) * 100
    what = f"spend with {entries:,} overrides, half of the ids listed, relative to none"
    sides = harness.sides(took, "loaded", floor="bare")
    table.at_most("13", what, 12, slower, " % slower", sides=sides)


def start(table: harness.Table, rounds: int) -> None:
    """Time what importing the package adds to the start of a program."""
    took: dict[str, list[float]] = {"pass": [], "import penstock": []}
    for _ in range(rounds):
        for command, times in took.items():
            started = time.perf_counter_ns()
            subprocess.run([sys.executable, "-I", "-c", command], check=True)
            times.append(time.perf_counter_ns() - started)
    added = harness.over(took, "import penstock", "pass") / 1e6
    sides = harness.sides(took, "import penstock", floor="pass", unit="ms")
    table.at_most("18", "import penstock", 15, added, " ms", sides=sides)
    table.for_users.append(("`import penstock`", f"{added:.2g} ms", ""))


def wheel(table: harness.Table) -> None:
    """Measure the size of the download, compressed as the release workflow does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "maturin", "build", "--quiet", "--release", "--locked"]
        options = ["--compression-level", "9", "--out", folder]
        subprocess.run([*command, *options], cwd=ROOT, check=True)
        (built,) = Path(folder).glob("*.whl")
        table.at_most("18", "the wheel", 3.5, built.stat().st_size / 1e6, " MB")


def main() -> None:
    """Measure all rows."""
    short = harness.quick()
    harness.stay_on_one_core()
    title = "From Python, relative to a PyO3 method that does nothing"
    table = harness.Table(title, is_conclusive=not short)
    single_calls(table, rounds=3 if short else 61)
    many_buckets(table, 20_000 if short else 1_000_000, rounds=3 if short else 9)
    if not short:
        many_buckets(table, 10_000_000, rounds=9)
    with tempfile.TemporaryDirectory() as folder:
        for store in ("memory://", f"shm://{folder}/slots"):
            slots(table, store, rounds=3 if short else 31)
    overrides(table, 1_000 if short else 100_000, rounds=3 if short else 61)
    start(table, rounds=3 if short else 21)
    if not short:
        wheel(table)
    table.show()


if __name__ == "__main__":
    main()
