"""penstock and other rate limiters over one Redis server.

All packages ask the same server, over TCP and in one process, for the same 1,000 clients. Each is
used in the fastest way that its documentation shows, and all calls are allowed. `redis-py, own
script` is what an application would write itself: one token bucket in Lua, called by its hash.
redis-py parses replies with hiredis, its fast parser, which the benchmark requires.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import harness
import hiredis  # noqa: F401  redis-py uses it if it is installed
import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import redis
import redis.asyncio
import throttled
import throttled.asyncio

import penstock

sys.path.append(str(Path(__file__).parents[2] / "tests" / "python"))
from redis_servers import HOST, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

PLENTY = 100_000_000
CLIENTS = [f"user-{number}" for number in range(1_000)]
LIMIT = penstock.Limit.token_bucket(burst=PLENTY, count=PLENTY, period="1000h")
NAMES = ("Address", "User", "Site")
LONG = penstock.Limit.token_bucket(burst=PLENTY, count=PLENTY, period="2000h")
"""A token bucket whose times are too long for the short road of the server's script."""

# A token bucket for each key: its theoretical arrival time in microseconds.
# More than the callers: redis-py's pools refuse further calls, at 100 by default for asyncio.
MAX_CONNECTIONS = 1000
SCRIPT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrivals = {}
for index, key in ipairs(KEYS) do
  local arrival = math.max(tonumber(redis.call('GET', key) or 0), now) + interval
  if arrival - now > burst then
    return {0, arrival - now - burst}
  end
  arrivals[index] = arrival
end
for index, key in ipairs(KEYS) do
  local left = math.ceil((arrivals[index] - now) / 1000) + 1000
  redis.call('SET', key, string.format('%.0f', arrivals[index]), 'PX', left)
end
return {1, 0}
"""
INTERVAL_US, BURST_US = 36, 36 * PLENTY
# What every token bucket needs: the time, and the state of each key before and after.
LEAST = """
local time = redis.call('TIME')
for _, key in ipairs(KEYS) do
  redis.call('GET', key)
  redis.call('SET', key, ARGV[1], 'PX', '10000')
end
return time
"""
CONNECTIONS = 16
"""Connections with one call at a time, as from as many processes: they keep the server busy."""
BATCHED = 16
"""Decisions in one run of the script, about as many as 64 threads make together."""
MOST_OVER_LEAST = 1.5
"""The most processor time of the server, relative to that of `LEAST`."""


class Result(NamedTuple):
    """Measurements of one run of one package."""

    per_second: float
    p99_ns: float
    calls: int


@dataclass
class Case:
    """Callers at work at the same time, and the targets for penstock."""

    row: str
    callers: int
    is_async: bool
    at_least: float | None
    """The minimum speed relative to the fastest of `limits` and redis-py's script."""
    p99: float | None = None
    """The largest share of the smallest p99 among the others."""
    calls: str = "one limit"
    clients: Sequence[str] = ()
    against: str | None = None
    """The package that the target compares with; by default, all of them."""
    for_users: bool = False
    """Whether the documentation shows it."""
    is_pinned: bool = False
    """Whether the server has one processor and the callers have another."""


SCRIPT_OF_REDIS_PY = "redis-py, own script"
CASES = [
    Case("4", 8, is_async=False, at_least=3, for_users=True),
    Case("4", 1, is_async=False, at_least=1.2, for_users=True),
    # With more threads than processors, the figures say as much about the interpreter's lock as
    # about the packages.
    Case("4", 64, is_async=False, at_least=4, p99=1 / 3),
    Case("4", 64, is_async=False, at_least=None, is_pinned=True),
    Case("5", 64, is_async=True, at_least=5, for_users=True),
    Case("5", 256, is_async=True, at_least=8, p99=1 / 6),
    Case("5", 1, is_async=True, at_least=1.2),
    Case(
        "6",
        8,
        is_async=False,
        at_least=1.5,
        calls="three limits",
        against=SCRIPT_OF_REDIS_PY,
    ),
    Case("5", 64, is_async=True, at_least=None, calls="three limits"),
    Case("4", 64, is_async=False, at_least=None, clients=("everyone",)),
    Case("5", 256, is_async=True, at_least=None, clients=("everyone",)),
]


def sync_calls(port: int) -> dict[str, tuple[str, Mapping[str, Callable[[str], object]]]]:
    """Return the calls of each package about one limit and about three."""
    url = f"redis://{HOST}:{port}"
    # A long timeout: a slow call on a loaded machine must not fail.
    limiter = penstock.Limiter(dict.fromkeys(NAMES, LIMIT), f"{url}?deadline=10s")
    window = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(url))
    item = limits.RateLimitItemPerHour(PLENTY)
    gcra = throttled.Throttled(
        using=throttled.RateLimiterType.GCRA.value,
        quota=throttled.per_hour(PLENTY, burst=PLENTY),
        store=throttled.RedisStore(server=f"{url}/0"),
    )
    script = redis.Redis(HOST, port, max_connections=MAX_CONNECTIONS).register_script(SCRIPT)
    arguments = [INTERVAL_US, BURST_US]
    return {
        "penstock": (
            "penstock",
            {
                "one limit": limiter.limit("User").spend,
                "three limits": lambda id: limiter.spend_all([(name, id) for name in NAMES]),
            },
        ),
        "limits, fixed window": (
            "limits",
            {
                "one limit": lambda id: window.hit(item, id),
                # It has no call for several limits.
                "three limits": lambda id: [window.hit(item, name, id) for name in NAMES],
            },
        ),
        "throttled-py, GCRA": ("throttled-py", {"one limit": gcra.limit}),
        SCRIPT_OF_REDIS_PY: (
            "redis",
            {
                "one limit": lambda id: script([id], arguments),
                "three limits": lambda id: script([f"{name}:{id}" for name in NAMES], arguments),
            },
        ),
    }


def async_calls(
    port: int,
) -> dict[str, tuple[str, Mapping[str, Callable[[str], Awaitable[object]]]]]:
    """Return the calls of each package for asyncio; made inside the event loop."""
    url = f"redis://{HOST}:{port}"
    limiter = penstock.AsyncLimiter(dict.fromkeys(NAMES, LIMIT), f"{url}?deadline=10s")
    storage = limits.aio.storage.RedisStorage(
        f"async+{url}?max_connections={MAX_CONNECTIONS}", implementation="redispy"
    )
    window = limits.aio.strategies.FixedWindowRateLimiter(storage)
    item = limits.RateLimitItemPerHour(PLENTY)
    gcra = throttled.asyncio.Throttled(
        using=throttled.RateLimiterType.GCRA.value,
        quota=throttled.per_hour(PLENTY, burst=PLENTY),
        store=throttled.asyncio.RedisStore(server=f"{url}/0?max_connections={MAX_CONNECTIONS}"),
    )
    client = redis.asyncio.Redis(host=HOST, port=port, max_connections=MAX_CONNECTIONS)
    script = client.register_script(SCRIPT)
    arguments = [INTERVAL_US, BURST_US]

    async def hit_three(id: str) -> None:
        for name in NAMES:
            await window.hit(item, name, id)

    return {
        "penstock": (
            "penstock",
            {
                "one limit": limiter.limit("User").spend,
                "three limits": lambda id: limiter.spend_all([(name, id) for name in NAMES]),
            },
        ),
        "limits, fixed window": (
            "limits",
            {"one limit": lambda id: window.hit(item, id), "three limits": hit_three},
        ),
        "throttled-py, GCRA": ("throttled-py", {"one limit": gcra.limit}),
        SCRIPT_OF_REDIS_PY: (
            "redis",
            {
                "one limit": lambda id: script([id], arguments),
                "three limits": lambda id: script([f"{name}:{id}" for name in NAMES], arguments),
            },
        ),
    }


def result(took: list[list[int]], elapsed: float) -> Result:
    """Summarize the times of all callers."""
    times = sorted(itertools.chain.from_iterable(took))
    return Result(len(times) / elapsed, float(times[len(times) * 99 // 100]), len(times))


def run_threads(
    call: Callable[[str], object], callers: int, clients: Sequence[str], seconds: float
) -> Result:
    """Let threads call as fast as possible, each once at least."""
    barrier = threading.Barrier(callers + 1)
    took: list[list[int]] = [[] for _ in range(callers)]
    is_over = False
    errors: list[BaseException] = []

    def work(number: int) -> None:
        drawn = itertools.cycle(random.Random(number).choices(clients, k=1_000))
        times, clock = took[number], time.perf_counter_ns
        try:
            call(next(drawn))
            barrier.wait()
            while not (times and is_over):
                started = clock()
                call(next(drawn))
                times.append(clock() - started)
        except BaseException as error:  # noqa: BLE001  raised below, in the main thread
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        barrier.wait()
    started = time.perf_counter()
    time.sleep(seconds)
    is_over = True
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return result(took, time.perf_counter() - started)


async def run_tasks(
    call: Callable[[str], Awaitable[object]], callers: int, clients: Sequence[str], seconds: float
) -> Result:
    """Let tasks call as fast as possible, each once at least."""
    took: list[list[int]] = [[] for _ in range(callers)]
    clock = time.perf_counter_ns
    for id in clients[:callers]:
        await call(id)
    started = time.perf_counter()
    end = clock() + int(seconds * 1e9)

    async def work(number: int) -> None:
        drawn = itertools.cycle(random.Random(number).choices(clients, k=1_000))
        times = took[number]
        while (before := clock()) < end or not times:
            await call(next(drawn))
            times.append(clock() - before)

    await asyncio.gather(*(work(number) for number in range(callers)))
    return result(took, time.perf_counter() - started)


def show(
    table: harness.Table, case: Case, found: Mapping[str, list[Result]], packages: Any
) -> None:
    """Add the rows of one case."""
    kind = "tasks" if case.is_async else "threads"
    one = "task" if case.is_async else "thread"
    where = f"{case.callers} {kind if case.callers > 1 else one}, {case.calls}"
    where += ", one hot client" if case.clients else ""
    where += ", server and callers on a processor each" if case.is_pinned else ""
    for name, results in found.items():
        version = importlib.metadata.version(packages[name][0])
        speed = statistics.median(each.per_second for each in results)
        p99 = statistics.median(each.p99_ns for each in results)
        what = f"{name} ({version}), {where}"
        table.seen("", what, f"{speed:,.0f} per second, p99 {p99 / 1e6:.2f} ms")
    if case.for_users:
        speeds = {
            name: f"{statistics.median(each.per_second for each in results):,.0f} per second"
            for name, results in found.items()
        }
        speed_of_ours = speeds.pop("penstock")
        row = f"decisions over Redis, {case.callers} {kind if case.callers > 1 else one}"
        peers = ", ".join(f"{each} ({name.partition(',')[0]})" for name, each in speeds.items())
        table.for_users.append((row, speed_of_ours, peers))
    ours = found["penstock"]
    others = {name: results for name, results in found.items() if name != "penstock"}
    if case.against is not None:
        others = {case.against: found[case.against]}
    for name, theirs in others.items():
        rounds = list(zip(ours, theirs, strict=True))
        ratios = [mine.per_second / yours.per_second for mine, yours in rounds]
        ratio = statistics.median(ratios)
        what = f"times as fast as {name}, {where}{harness.uneven(ratios)}"
        if case.at_least is None:
            table.seen(case.row, what, f"{ratio:.3g} x")
        else:
            table.at_least(case.row, what, case.at_least, ratio, " x")
        if case.p99 is not None:
            shares = [mine.p99_ns / yours.p99_ns for mine, yours in rounds]
            what = f"p99 as a share of that of {name}, {where}{harness.uneven(shares)}"
            table.at_most(case.row, what, case.p99, statistics.median(shares), "")


@contextmanager
def pinned(server: Server) -> Iterator[None]:
    """Pin the server to one processor, and threads that are started meanwhile to another."""
    every = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(server.pid, {min(every)})
        os.sched_setaffinity(0, {max(every)})
        yield
    finally:
        os.sched_setaffinity(server.pid, every)
        os.sched_setaffinity(0, every)


def measure_costs(table: harness.Table, server: Server, rounds: int, seconds: float) -> None:
    """Measure what decisions cost the server: its processor time, bytes and memory.

    Much of the processor time is that of reading a request and writing a reply, and of waking up on
    a server that is not busy, so it is compared with that of a script which only does what every
    token bucket needs, called in the same way.
    """
    url = f"redis://{HOST}:{server.port}?deadline=10s"
    limiter = penstock.Limiter(dict.fromkeys(NAMES, LIMIT) | {"Long": LONG}, url)
    client = redis.Redis(HOST, server.port, max_connections=MAX_CONNECTIONS)
    least, own = client.register_script(LEAST), client.register_script(SCRIPT)
    one, state = limiter.limit("User").spend, "1764000000000000000"
    long = limiter.limit("Long").spend
    together = itertools.cycle(zip(*[iter(CLIENTS)] * BATCHED, strict=False))
    thread = threading.local()

    def on_own_connection(id: str) -> None:
        if not hasattr(thread, "spend"):
            thread.spend = penstock.Limiter({"User": LIMIT}, url).limit("User").spend
        thread.spend(id)

    # The number of callers and of decisions per call.
    calls: dict[str, tuple[int, int, Callable[[str], object]]] = {
        "one limit": (1, 1, one),
        "three limits": (1, 1, lambda id: limiter.spend_all([(name, id) for name in NAMES])),
        "one limit, busy server": (CONNECTIONS, 1, on_own_connection),
        "one limit, batched": (64, 1, one),
        "one long limit": (1, 1, long),
        "one long limit, batched": (64, 1, long),
        "least": (1, 1, lambda id: least([id], [state])),
        "least, batched": (1, BATCHED, lambda _: least(next(together), [state])),
        SCRIPT_OF_REDIS_PY: (1, 1, lambda id: own([id], [INTERVAL_US, BURST_US])),
        f"{SCRIPT_OF_REDIS_PY}, batched": (
            64,
            1,
            lambda id: own([id], [INTERVAL_US, BURST_US]),
        ),
    }
    cpu: dict[str, list[float]] = {what: [] for what in calls}
    sent: dict[str, list[float]] = {what: [] for what in calls}
    for _ in range(rounds):
        for what, (callers, decisions, call) in calls.items():
            sent_before = int(server.info("total_net_input_bytes"))
            cpu_before = harness.cpu_ns(server.pid)
            found = run_threads(call, callers, CLIENTS, seconds)
            count = found.calls * decisions
            cpu[what].append((harness.cpu_ns(server.pid) - cpu_before) / count)
            sent_after = int(server.info("total_net_input_bytes"))
            sent[what].append((sent_after - sent_before) / count)
    for what in cpu:
        if what.startswith(("one", "three")):
            took = f"{harness.median(cpu, what) / 1e3:.3g} us"
            table.seen("6", f"processor time of the server per decision, {what}", took)
    for what, most in (("one limit", 200), ("three limits", 300), ("one limit, batched", None)):
        row, value = f"bytes sent per decision, {what}", harness.median(sent, what)
        if most is None:
            table.seen("6", row, f"{value:.3g} bytes")
        else:
            table.at_most("6", row, most, value, " bytes")
    for suffix in ("", ", batched"):
        ours, floor, peer = f"one limit{suffix}", f"least{suffix}", f"{SCRIPT_OF_REDIS_PY}{suffix}"
        shown = f"{harness.median(cpu, floor) / 1e3:.3g} us"
        pairs = zip(cpu[ours], cpu[floor], strict=True)
        remark = harness.uneven([mine / other for mine, other in pairs])
        table.at_most(
            "6",
            f"processor time of the server relative to the least{suffix}{remark}",
            MOST_OVER_LEAST,
            harness.ratio(cpu, ours, floor),
            " x",
            sides=harness.sides(cpu, ours, least=shown, peers=[peer], unit="us"),
        )
    new = [f"another-{number}" for number in range(10_000)]
    before = int(server.info("used_memory"))
    limiter.limit("User").spend_each(new)
    held = (int(server.info("used_memory")) - before) / len(new)
    table.seen("6", "memory of the server per bucket", f"{held:.0f} bytes")
    limiter.close()
    client.close()


def measure_threads(table: harness.Table, server: Server, rounds: int, seconds: float) -> None:
    """Measure the cases with threads."""
    packages = sync_calls(server.port)
    for case in CASES:
        if case.is_async:
            continue
        calls = {
            name: each[1][case.calls] for name, each in packages.items() if case.calls in each[1]
        }
        found: dict[str, list[Result]] = {name: [] for name in calls}
        with pinned(server) if case.is_pinned else nullcontext():
            for _ in range(rounds):
                for name, call in calls.items():
                    clients = case.clients or CLIENTS
                    found[name].append(run_threads(call, case.callers, clients, seconds))
        show(table, case, found, packages)


async def measure_tasks(table: harness.Table, port: int, rounds: int, seconds: float) -> None:
    """Measure the cases with tasks of one event loop."""
    packages = async_calls(port)
    for case in CASES:
        if not case.is_async:
            continue
        calls = {
            name: each[1][case.calls] for name, each in packages.items() if case.calls in each[1]
        }
        found: dict[str, list[Result]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                clients = case.clients or CLIENTS
                found[name].append(await run_tasks(call, case.callers, clients, seconds))
        show(table, case, found, packages)


def main() -> None:
    """Start a server and measure all cases, packages in turn."""
    short = harness.quick()
    rounds, seconds = (1, 0.05) if short else (5, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder)).start()
        try:
            table = harness.Table("Over a Redis server", is_conclusive=not short)
            others = harness.OtherWork(server.pid)
            measure_costs(table, server, rounds, seconds)
            measure_threads(table, server, rounds, seconds)
            asyncio.run(measure_tasks(table, server.port, rounds, seconds))
            table.quiet(others)
            version = server.info("redis_version")
            table.title += f" (server {version})"
            table.show()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
