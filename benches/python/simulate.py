"""The cost of one simulated event.

Compared with GCRA compiled by numba and in plain Python, and with `limits` called event by event
under a patched clock. All variants compute only whether an event is allowed; numba and penstock
write that into an existing array. Clients are in random order, and some events are denied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import harness
import limits
import limits.storage
import limits.strategies
import numba
import numpy as np

import penstock
from penstock import simulate
from penstock._core import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000
# Enough events for variants that take a microsecond or more per event.
SLOW = 20_000


@numba.njit(nogil=True)
def gcra(times: Any, interval: int, offset: int, allowed: Any) -> None:
    """Evaluate the events of one bucket."""
    tat = 0
    for index in range(len(times)):
        now = times[index]
        after = max(tat, now) + interval
        allowed[index] = after - offset <= now
        if allowed[index]:
            tat = after


@numba.njit(nogil=True)
def gcra_each(times: Any, clients: Any, tats: Any, limit: tuple[int, int], allowed: Any) -> None:
    """Evaluate the events of many buckets."""
    interval, offset = limit
    for index in range(len(times)):
        now, client = times[index], clients[index]
        after = max(tats[client], now) + interval
        allowed[index] = after - offset <= now
        if allowed[index]:
            tats[client] = after


def plain(times: list[int], interval: int, offset: int) -> list[bool]:
    """Evaluate the events of one bucket, without NumPy."""
    tat, allowed = 0, []
    for now in times:
        after = (tat if tat > now else now) + interval  # noqa: FURB136  quicker than a call
        fits = after - offset <= now
        allowed.append(fits)
        if fits:
            tat = after
    return allowed


def patched(times: list[float], rate: int) -> Callable[[], object]:
    """Return a run of the fixed window of `limits`, with its clock set before each event."""
    item = limits.RateLimitItemPerSecond(rate)

    def run() -> list[bool]:
        now = 0.0
        with patch("time.time", lambda: now):
            hit = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()).hit
            allowed = []
            for now in times:  # noqa: B007  read by the patched clock
                allowed.append(hit(item, "client"))  # noqa: PERF401  the clock is set between calls
        return allowed

    return run


def one_bucket(table: harness.Table, events: int, rounds: int) -> None:
    """Time one bucket, with some events denied."""
    random = np.random.default_rng(1)
    times = np.cumsum(random.integers(0, 200, events))
    limit = penstock.Limit.token_bucket(burst=100, count=8_000_000, period=1)
    interval = limit.period_ns // limit.count
    offset = limit.burst * interval
    allowed = np.empty(events, np.bool_)
    trace = simulate.Trace(times)
    ours = simulate.simulate(limit, trace)
    gcra(times, interval, offset, allowed)
    assert np.array_equal(ours.allowed, allowed)

    def core() -> None:
        simulator = Simulator(limit)
        simulator.number(["client"])
        simulator.feed(times, None, None, None, allowed.view(np.uint8))

    took = harness.alternate(
        {
            "penstock": core,
            "simulate()": lambda: simulate.simulate(limit, trace),
            "numba": lambda: gcra(times, interval, offset, allowed),
        },
        events,
        rounds,
    )
    for name in took:
        table.seen("", f"{name}, one bucket", f"{harness.median(took, name):.2f} ns")
    what = "one bucket, per event"
    sides = harness.sides(took, "penstock", peers=["numba"])
    table.at_most("15", what, 5, harness.median(took, "penstock"), " ns", sides=sides)
    against = harness.ratio(took, "numba", "penstock")
    table.seen("", "numba relative to penstock, one bucket", f"{against:.2f} x")
    event = harness.median(took, "penstock")
    few, spaced = times[:SLOW].tolist(), (times[:SLOW] * 1000 / SECOND).tolist()
    slow = harness.alternate(
        {"plain Python": lambda: plain(few, interval, offset), "limits": patched(spaced, 8000)},
        SLOW,
        min(rounds, 5),
    )
    for name in slow:
        each = harness.median(slow, name)
        table.seen("", f"{name}, one bucket", f"{each:.0f} ns, {each / event:.0f} x penstock")
    others = f"{harness.shown_time(harness.median(slow, 'limits'))} (limits, with a fake clock)"
    table.for_users.append(("an event in a simulation", harness.shown_time(event), others))


def many_buckets(table: harness.Table, events: int, rounds: int) -> None:
    """Time many buckets, with few or half of the events denied."""
    buckets = 100_000
    random = np.random.default_rng(1)
    times = np.cumsum(random.integers(0, 200, events))
    clients = random.integers(0, buckets, events).astype(np.uint32)
    ids = [f"client-{number}" for number in range(buckets)]
    allowed = np.empty(events, np.bool_)
    for share, count in (("few", 900), ("half", 90)):
        limit = penstock.Limit.token_bucket(burst=1, count=count, period=1)
        interval = limit.period_ns // limit.count
        offset = limit.burst * interval
        took: dict[str, list[float]] = {}
        # Adding the clients is not timed; numba gets a prepared array for them.
        for _ in range(rounds):
            simulator = Simulator(limit)
            simulator.number(ids)
            tats = np.zeros(buckets, np.int64)
            flags = allowed.view(np.uint8)
            runs: dict[str, harness.Run] = {
                "penstock": partial(simulator.feed, times, clients, None, None, flags),
                "numba": partial(gcra_each, times, clients, tats, (interval, offset), allowed),
            }
            for name, each in harness.once(runs, events).items():
                took.setdefault(name, []).append(each)
        for name in took:
            what = f"{name}, 100,000 buckets, {share} denied"
            table.seen("", what, f"{harness.median(took, name):.2f} ns")
        against = harness.ratio(took, "numba", "penstock")
        what = f"numba relative to penstock, 100,000 buckets, {share} denied"
        table.seen("", what, f"{against:.2f} x")
        if share == "half":
            what = "100,000 buckets, half denied, per event"
            sides = harness.sides(took, "penstock", peers=["numba"])
            table.at_most("15", what, 10, harness.median(took, "penstock"), " ns", sides=sides)


def main() -> None:
    """Measure all rows."""
    short = harness.quick()
    harness.stay_on_one_core()
    table = harness.Table("Simulated events", is_conclusive=not short)
    events, rounds = (100_000, 3) if short else (10_000_000, 15)
    one_bucket(table, events, rounds)
    many_buckets(table, events, rounds)
    table.show()


if __name__ == "__main__":
    main()
