"""AsyncLimiter over a real server: it never blocks the event loop, and loses no caller."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over
from programs import run

import penstock
from penstock import AsyncLimiter, Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from conftest import StartServer
    from redis_servers import Server

# So slow that no token is added while a test runs.
LIMITS = {
    "Orders": Limit.token_bucket(burst=50, count=1, period="1h"),
    "Pages": Limit.token_bucket(burst=50, count=1, period="1h"),
}


@pytest.fixture
def limiter(redis_server: Server) -> AsyncLimiter:
    # A loaded machine may be slow; deadlines are tested elsewhere.
    return AsyncLimiter(LIMITS, f"{redis_server.url}?deadline=20s")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that a test may pause."""
    return start_server()


@pytest.fixture
def own(server: Server) -> AsyncLimiter:
    """A limiter over `server`."""
    return AsyncLimiter(LIMITS, f"{server.url}?deadline=20s")


def test_every_verb_decides_as_a_limiter_in_memory_does(limiter: AsyncLimiter) -> None:
    async def ask(verbs: AsyncLimiter) -> list[Any]:
        both = [("Orders", "ada", 3), ("Pages", "ada", 4)]
        decisions = [
            # More than is returned: a full bucket may expire before it is reset.
            await verbs.spend("Orders", "ada", 2),
            await verbs.check("Orders", "ada", cost=5),
            await verbs.refund("Orders", "ada", 1),
            await verbs.charge("Orders", "ada", 1),
            await verbs.peek("Orders", "ada"),
            await verbs.spend_all(iter(both)),
            await verbs.check_all(both),
            await verbs.refund_all(both),
            await verbs.limit("Pages").spend("grace", 50),
            await verbs.limit("Pages").spend("grace"),
            await verbs.acquire("Orders", "alan", 2),
        ]
        each = await verbs.spend_each("Orders", ["a", "b", "a"])
        async with verbs.reserve("Orders", "kay", 6) as reservation:
            decisions.append(await reservation.settle(4))
        return [
            *((one.allowed, one.remaining, one.cost, one.id, one.name) for one in decisions),
            each.remaining.tolist(),
            [part.remaining for part in decisions[5].parts],
            await verbs.reset("Orders", "kay"),
            await verbs.reset_all([("Orders", "ada"), ("Orders", "unknown")]),
            {name: counts["spends"] for name, counts in (await verbs.counts()).items()},
        ]

    assert limiter.is_remote
    assert limiter.limit("Orders").is_remote
    assert asyncio.run(ask(limiter)) == asyncio.run(ask(AsyncLimiter(LIMITS)))


def test_errors_of_a_call_are_raised_in_its_coroutine(limiter: AsyncLimiter) -> None:
    async def ask() -> None:
        with pytest.raises(penstock.CostTooHigh) as too_high:
            await limiter.spend("Orders", "ada", 10**30)
        assert too_high.value.cost == 10**30
        with pytest.raises(penstock.UnknownLimit):
            await limiter.spend("Nothing", "ada")
        with pytest.raises(TypeError):
            await limiter.spend("Orders", 1.5)  # type: ignore[arg-type]
        with pytest.raises(penstock.TransactionError):
            await limiter.spend_all([("Orders", "ada"), ("Orders", "ada")])
        await limiter.close()
        with pytest.raises(penstock.StoreError):
            await limiter.spend("Orders", "ada")

    asyncio.run(ask())


def test_loop_runs_on_while_the_server_does_not_answer(server: Server, own: AsyncLimiter) -> None:
    async def main() -> int:
        await own.spend("Orders", "ada")
        loop = asyncio.get_running_loop()
        clients = (f"{number}" for number in range(40))
        server.pause()
        verbs: list[Callable[[str], Coroutine[Any, Any, Any]]] = [
            lambda id: own.spend("Orders", id),
            lambda id: own.spend_all([("Orders", id), ("Pages", id)]),
            lambda id: own.reset("Orders", id),
            lambda id: own.acquire("Orders", id),
            lambda id: own.spend_each("Orders", [id]),
        ]
        tasks = [loop.create_task(verbs[int(id) % len(verbs)](id)) for id in clients]
        turns = 0
        # With the server stopped, only a loop that does not wait for it gets through this.
        for _ in range(1000):
            await turn_over(1)
            turns += 1
        assert not any(task.done() for task in tasks)
        server.resume()
        await asyncio.gather(*tasks)
        return turns

    assert asyncio.run(main()) == 1000


class Counting(asyncio.SelectorEventLoop):
    """A loop that counts how often the files it watches wake it."""

    wakes = 0

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        def counted() -> None:
            self.wakes += 1
            callback(*args)

        super().add_reader(fd, counted)


def test_replies_that_arrive_together_wake_the_loop_once(server: Server, own: AsyncLimiter) -> None:
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        await own.spend("Orders", "ada")
        server.pause()
        tasks = [loop.create_task(own.spend("Orders", f"{n}")) for n in range(200)]
        await turn_over(1)
        server.resume()
        before = loop.wakes
        await asyncio.gather(*tasks)
        return sum(task.result().allowed for task in tasks), loop.wakes - before

    with asyncio.Runner(loop_factory=Counting) as runner:
        allowed, wakes = runner.run(main())
    assert allowed == 200
    assert wakes < 100


def test_many_loops_in_many_threads_share_a_limiter(limiter: AsyncLimiter) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    async def main() -> int:
        calls = (limiter.spend("Orders", "ada") for _ in range(40))
        return sum(decision.allowed for decision in await asyncio.gather(*calls))

    with ThreadPoolExecutor(4) as pool:
        allowed = [pool.submit(asyncio.run, main()) for _ in range(4)]
    assert sum(each.result() for each in allowed) == 50


class Unwatchful(asyncio.SelectorEventLoop):
    """A loop that cannot watch files, like the default one on Windows."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_loop_that_watches_no_files_is_woken_too(limiter: AsyncLimiter) -> None:
    async def main() -> int:
        calls = (limiter.spend("Orders", "ada") for _ in range(60))
        return sum(decision.allowed for decision in await asyncio.gather(*calls))

    with asyncio.Runner(loop_factory=Unwatchful) as runner:
        assert runner.run(main()) == 50
        assert runner.run(main()) == 0


def test_cancelled_call_does_not_affect_others(server: Server, own: AsyncLimiter) -> None:
    async def main() -> tuple[int, int, int]:
        loop = asyncio.get_running_loop()
        await own.spend("Orders", "warm")
        server.pause()
        spends = [loop.create_task(own.spend("Orders", "ada")) for _ in range(10)]
        waits = [loop.create_task(own.acquire("Pages", "ada")) for _ in range(10)]
        await turn_over(1)
        for task in (*spends[::2], *waits[::2]):
            task.cancel()
        server.resume()
        done = await asyncio.gather(*spends, *waits, return_exceptions=True)
        cancelled = sum(isinstance(one, asyncio.CancelledError) for one in done)
        # A cancelled spend has taken its token, a cancelled acquire has returned it.
        orders = (await own.peek("Orders", "ada")).remaining
        pages = (await own.peek("Pages", "ada")).remaining
        return cancelled, orders, pages

    assert asyncio.run(main()) == (10, 40, 45)


def test_loop_closed_with_calls_in_flight_is_forgotten(server: Server, own: AsyncLimiter) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(own.spend("Orders", "ada"))
    server.pause()
    task = loop.create_task(own.spend("Orders", "ada"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    task.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    forgotten = weakref.ref(loop)
    del loop, task
    gc.collect()
    assert forgotten() is None
    server.resume()
    # The server has taken the token of the call that was given up.
    assert asyncio.run(own.peek("Orders", "ada")).remaining == 48


def test_waiting_tasks_are_served_in_order(redis_server: Server) -> None:
    clock = penstock.ManualClock(start=1_000_000_000)
    one = {"Orders": Limit.token_bucket(burst=20, count=1, period="1s")}
    limiter = AsyncLimiter(one, f"{redis_server.url}?deadline=20s", clock)

    async def main() -> list[int]:
        served: asyncio.Queue[int] = asyncio.Queue()

        async def wait(number: int) -> None:
            await limiter.acquire("Orders", "ada")
            served.put_nowait(number)

        loop = asyncio.get_running_loop()
        await limiter.spend("Orders", "ada", 20)
        tasks = [loop.create_task(wait(number)) for number in range(20)]
        # Each is charged as soon as it is in the queue.
        while (await limiter.peek("Orders", "ada")).reset_after < 40:
            pass
        # A turn is counted from the answer's arrival, so the clock is advanced when the last one
        # has arrived: the thread that asks for one caller at a time then asks for this one.
        with pytest.raises(penstock.RateLimited):
            await limiter.acquire("Orders", "ada", timeout=0)
        order = []
        for _ in tasks:
            clock.advance(1)
            order.append(await asyncio.wait_for(served.get(), 30))
        return order

    assert asyncio.run(main()) == [*range(20)]
    spends = limiter.limiter.counts()["Orders"]["spends"]
    assert spends == {"allowed": 21, "denied": 1, "shadow_denied": 0}


def test_cancelled_waiter_returns_its_tokens(redis_server: Server) -> None:
    limiter = AsyncLimiter(LIMITS, f"{redis_server.url}?deadline=20s")

    async def main() -> int:
        loop = asyncio.get_running_loop()
        await limiter.spend("Orders", "ada", 50)
        tasks = [loop.create_task(limiter.acquire("Orders", "ada", 5)) for _ in range(3)]
        # As many as are placed are in debt by then.
        while (await limiter.check("Orders", "ada", 0)).retry_after < 15 * 3600 - 60:
            pass
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await limiter.refund("Orders", "ada", 50)
        while (remaining := (await limiter.peek("Orders", "ada")).remaining) < 50:
            pass
        return remaining

    assert asyncio.run(main()) == 50


def test_waiter_that_is_cancelled_when_it_is_served_returns_its_tokens(
    redis_server: Server,
) -> None:
    limiter = AsyncLimiter(LIMITS, f"{redis_server.url}?deadline=20s")

    async def main() -> list[int]:
        task = asyncio.create_task(limiter.acquire("Orders", "ada", 5))
        await turn_over(1)
        # The reply arrives before this one, and the loop sees it in the next iteration.
        left = [limiter.limiter.peek("Orders", "ada").remaining]
        await turn_over(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(1000):
            left.append((await limiter.peek("Orders", "ada")).remaining)
            if left[-1] == 50:
                break
        return left

    left = asyncio.run(main())
    assert (left[0], left[-1]) == (45, 50)


@pytest.mark.anyio
async def test_failing_server_is_logged_by_the_loop(
    server: Server, own: AsyncLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    redis_key = "{penstock:ada}token-bucket:Orders"
    server.command("SET", redis_key, "garbage")
    assert (await own.spend("Orders", "ada")).remaining == 49
    server.kill()
    for _ in range(6):
        with pytest.raises(penstock.StoreError):
            await own.spend("Orders", "ada")
    server.start()
    while True:
        with contextlib.suppress(penstock.StoreError):
            await own.spend("Orders", "ada")
            break
    events = [vars(record)["event"] for record in caplog.records if record.name == "penstock"]
    assert events == ["healed", "failing", "answering"]


EXIT = """
import asyncio, logging, os, signal, sys, penstock
logging.getLogger("penstock").disabled = True
limiter = penstock.AsyncLimiter({"Orders": "50/hour"}, sys.argv[1] + "?deadline=1s")
async def main():
    await limiter.spend("Orders", "ada")
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    loop = asyncio.get_running_loop()
    for number in range(50):
        loop.create_task(limiter.spend("Orders", "ada"))
        loop.create_task(limiter.reset("Orders", str(number)))
    passed = loop.create_future()
    loop.call_soon(passed.set_result, None)
    await passed
asyncio.run(main())
print("ended")
"""


def test_interpreter_ends_with_calls_in_flight(server: Server) -> None:
    assert run(EXIT, server.url, str(server.pid)) == "ended\n"
