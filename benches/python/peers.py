"""penstock and other rate limiters in one process: time and memory.

Each package has its latest version and is used in the fastest way that its documentation shows. All
calls are allowed. Memory is measured as the growth of a separate process, which favors small
stores; the ids themselves are not counted.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import harness
import limits
import limits.storage
import limits.strategies
import noop
import pyrate_limiter
import throttled
import token_bucket

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable

PLENTY = 1_000_000
FLOOR = "a call that does nothing"


def penstock_bound() -> Callable[[str], object]:
    """`bound.spend`: a complete decision, with all values for headers."""
    limit = penstock.Limit.token_bucket(burst=PLENTY, count=PLENTY, period="1000h")
    return penstock.Limiter({"Orders": limit}).limit("Orders").spend


def fixed_window() -> limits.strategies.FixedWindowRateLimiter:
    return limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())


def limits_fixed_window() -> Callable[[str], object]:
    """`hit` of the fixed window in memory; returns a bool."""
    item, limiter = limits.RateLimitItemPerHour(PLENTY), fixed_window()
    return partial(limiter.hit, item)


def limits_with_stats() -> Callable[[str], object]:
    """`hit` and `get_window_stats`, which headers need."""
    item, limiter = limits.RateLimitItemPerHour(PLENTY), fixed_window()
    return lambda id: (limiter.hit(item, id), limiter.get_window_stats(item, id))


def throttled_gcra() -> Callable[[str], object]:
    """`limit` with GCRA, in a memory store with room for all ids."""
    quota = throttled.per_sec(PLENTY, burst=PLENTY)
    memory = throttled.MemoryStore(options={"MAX_SIZE": PLENTY})
    limit: Callable[[str], object] = throttled.Throttled(
        using=throttled.RateLimiterType.GCRA.value, quota=quota, store=memory
    ).limit
    return limit


def token_bucket_consume() -> Callable[[str], object]:
    """`consume` in memory; returns a bool."""
    consume: Callable[[str], object] = token_bucket.Limiter(
        PLENTY, PLENTY, token_bucket.MemoryStorage()
    ).consume
    return consume


class PerName(pyrate_limiter.BucketFactory):
    """A bucket per id, with the two methods that the manual requires."""

    def __init__(self) -> None:
        self.clock = pyrate_limiter.MonotonicClock()
        self.rates = [pyrate_limiter.Rate(PLENTY, pyrate_limiter.Duration.HOUR)]
        self.buckets: dict[str, pyrate_limiter.InMemoryBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.InMemoryBucket:
        bucket = self.buckets.get(item.name)
        if bucket is None:
            # Not `create`, which would also start a thread that cleans up the bucket.
            bucket = self.buckets[item.name] = pyrate_limiter.InMemoryBucket(self.rates)
        return bucket


def pyrate_keyed() -> Callable[[str], object]:
    """`try_acquire` with a bucket per id, from a factory as shown in the manual."""
    acquire = pyrate_limiter.Limiter(PerName()).try_acquire
    return partial(acquire, blocking=False)


PEERS: dict[str, tuple[str, Callable[[], Callable[[str], object]]]] = {
    "penstock": ("penstock", penstock_bound),
    "limits, fixed window": ("limits", limits_fixed_window),
    "limits, fixed window and stats": ("limits", limits_with_stats),
    "throttled-py, GCRA": ("throttled-py", throttled_gcra),
    "token-bucket": ("token-bucket", token_bucket_consume),
    "pyrate-limiter, keyed": ("pyrate-limiter", pyrate_keyed),
}
# The minimum speed-up of penstock at 1,000 buckets, if there is one.
TARGETS = {
    "limits, fixed window": 28.0,
    "throttled-py, GCRA": None,
    "token-bucket": 5.0,
}
SPACED_TARGET = 10.0
"""The same against `limits`, without what the other work between the calls takes."""
SPACED_CALLS = 400


def speed(table: harness.Table, buckets: int, rounds: int, calls: int) -> None:
    """Time all packages in alternation, with the same ids."""
    names, drawn = harness.ids(buckets, calls)
    runs = {FLOOR: harness.each(noop.Noop().call, drawn)}
    for peer, (_, make) in PEERS.items():
        hit = make()
        for id in names:
            hit(id)
        runs[peer] = harness.each(hit, drawn)
    took = harness.alternate(runs, len(drawn), rounds, drawn=drawn)
    # With many buckets, calls wait for memory, and their times vary more. Their rows are marked,
    # and few buckets decide whether the run is kept.
    if buckets == 1_000:
        table.steady(took, FLOOR)
    remark = harness.uneven(took[FLOOR])
    others = ", ".join(
        f"{harness.shown_time(harness.median(took, peer))} ({PEERS[peer][0]})" for peer in TARGETS
    )
    what = f"a decision in memory, {buckets:,} clients{remark}"
    ours = harness.shown_time(harness.median(took, "penstock"))
    table.for_users.append((what, ours, others))
    for peer, (package, _) in PEERS.items():
        speeds = harness.median(took, peer)
        version = importlib.metadata.version(package)
        what = f"{peer} ({version}), {buckets:,} buckets{remark}"
        table.seen("", what, f"{speeds:.0f} ns, {1e9 / speeds:,.0f} hits per second")
    for peer, target in TARGETS.items():
        what = f"times as fast as {peer}, {buckets:,} buckets{remark}"
        sides = harness.sides(took, "penstock", floor=FLOOR, peers=[peer])
        ratio = harness.ratio(took, peer, "penstock")
        if target is None or buckets != 1_000:
            table.seen("9", what, f"{ratio:.3g} x")
        else:
            table.at_least("7", what, target, ratio, " x", sides=sides)


def spaced(table: harness.Table, rounds: int) -> None:
    """Time calls between other work, in short turns, with caches as in an application."""
    names, drawn = harness.ids(1_000, SPACED_CALLS)
    runs = {FLOOR: harness.each_spaced(noop.Noop().call, drawn)}
    for peer in ("penstock", *TARGETS):
        hit = PEERS[peer][1]()
        for id in names:
            hit(id)
        runs[peer] = harness.each_spaced(hit, drawn)
    took = harness.alternate(runs, len(drawn), rounds, drawn=drawn)
    added = {peer: harness.over(took, peer, FLOOR) for peer in runs if peer != FLOOR}
    for peer, ns in added.items():
        what = f"{peer}, 1,000 buckets, other work between calls, over a call that does nothing"
        table.seen("8", what, f"{ns:.0f} ns")
    what = "times as fast as limits, fixed window, other work between calls"
    ratio = harness.times_added(took, "limits, fixed window", "penstock", FLOOR)
    table.at_least("8", what, SPACED_TARGET, ratio, " x")
    others = ", ".join(f"{harness.shown_time(added[peer])} ({PEERS[peer][0]})" for peer in TARGETS)
    what = "a decision in memory, 1,000 clients, between other work"
    table.for_users.append((what, harness.shown_time(added["penstock"]), others))


def memory(table: harness.Table, buckets: int) -> None:
    """Measure the memory of each package in a separate process."""
    grown = {}
    for peer in PEERS:
        command = [sys.executable, __file__, "--weigh", peer, str(buckets)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        what = f"memory per bucket, {peer}, {buckets:,} buckets"
        grown[peer] = f"{float(done.stdout):.0f} bytes"
        table.seen("7", what, grown[peer])
    others = ", ".join(f"{grown[peer]} ({PEERS[peer][0]})" for peer in TARGETS)
    table.for_users.append(("memory for each client", grown["penstock"], others))


def weigh(peer: str, buckets: int) -> float:
    """Return by how many bytes per bucket this process grows."""
    names, _ = harness.ids(buckets, 1)
    hit = PEERS[peer][1]()
    hit("a first bucket")
    before = harness.resident_bytes()
    for id in names:
        hit(id)
    return (harness.resident_bytes() - before) / buckets


def main() -> None:
    """Measure all rows, or the memory of one package."""
    if sys.argv[1:2] == ["--weigh"]:
        print(weigh(sys.argv[2], int(sys.argv[3])))
        return
    short = harness.quick()
    harness.stay_on_one_core()
    table = harness.Table("Compared with other rate limiters, in memory", is_conclusive=not short)
    if short:
        speed(table, 1_000, rounds=2, calls=1_000)
        spaced(table, rounds=3)
    else:
        speed(table, 1_000, rounds=21, calls=10_000)
        speed(table, 100_000, rounds=9, calls=100_000)
        spaced(table, rounds=401)
    memory(table, 1_000 if short else 100_000)
    table.show()


if __name__ == "__main__":
    main()
