"""An event loop that makes one call at a time drives the connection to the server itself."""

from __future__ import annotations

import asyncio
import errno
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over
from programs import run as run_program
from redis_servers import wait_until
from tcp_proxy import Proxy

import penstock
from penstock import AsyncLimiter, Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from conftest import StartServer
    from redis_servers import Server

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the default event loop watches no files"
)

BURST = 10_000
LIMITS = {"Orders": Limit.token_bucket(burst=BURST, count=1, period="1h")}


class Watching(asyncio.SelectorEventLoop):
    """A loop that knows which files it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: set[int] = set()
        self.wakes = 0
        self.added = 0

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        def counted() -> None:
            self.wakes += 1
            callback(*args)

        self.watched.add(fd)
        self.added += 1
        super().add_reader(fd, counted)

    def remove_reader(self, fd: Any) -> bool:
        self.watched.remove(fd)
        return super().remove_reader(fd)

    @property
    def drives(self) -> bool:
        """Whether it watches the connection, too, and not only the replies."""
        return len(self.watched) == 2


def run(main: Callable[[Watching], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine function with its loop."""
    with asyncio.Runner(loop_factory=Watching) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Watching)
        runner.run(main(loop))


async def spend(limiter: AsyncLimiter, calls: int) -> None:
    """Make calls one after another."""
    for _ in range(calls):
        assert (await limiter.spend("Orders", "ada")).allowed


async def drive(loop: Watching, limiter: AsyncLimiter) -> None:
    """Make calls one after another until the loop drives the connection."""
    # On a loaded machine, the loop may be suspended and have to begin again.
    for _ in range(2_000):
        await spend(limiter, 1)
        if loop.drives:
            return
    raise AssertionError("the loop does not drive the connection")


async def not_driving(loop: Watching) -> None:
    """Wait until the loop does not drive the connection."""
    async with asyncio.timeout(20):
        while loop.drives:
            await turn_over()


async def wakes_while_idle(loop: Watching) -> int:
    """Return how often the files that it watches wake a loop that has nothing to do."""
    before = loop.wakes
    await turn_over(1_000)
    return loop.wakes - before


@pytest.fixture
def url(redis_server: Server) -> str:
    return f"{redis_server.url}?deadline=20s"


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts no waits of a thread")
def test_loop_that_makes_one_call_at_a_time_needs_no_thread(url: str) -> None:
    def waits() -> int:
        total = 0
        for task in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError):
                if (task / "comm").read_text().startswith("penstock-redis"):
                    status = (task / "status").read_text()
                    total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return total

    async def main(loop: Watching) -> None:
        limiter = AsyncLimiter(LIMITS, url)
        await drive(loop, limiter)
        before = waits()
        await spend(limiter, 1_000)
        # The thread looks now and then whether the loop is stuck.
        assert waits() - before < 500
        before = waits()
        for _ in range(500):
            await asyncio.gather(*(limiter.spend("Orders", f"{n}") for n in range(2)))
        assert waits() - before > 500

    run(main)


def test_calls_at_the_same_time_are_made_by_the_thread(url: str) -> None:
    async def main(loop: Watching) -> None:
        limiter = AsyncLimiter(LIMITS, url)
        for _ in range(3):
            await drive(loop, limiter)
            answers = await asyncio.gather(*(limiter.spend("Orders", "ada") for _ in range(20)))
            assert all(answer.allowed for answer in answers)
            assert not loop.drives
        counts = (await limiter.counts())["Orders"]["spends"]
        assert (await limiter.peek("Orders", "ada")).remaining == BURST - counts["allowed"]

    run(main)


def test_threads_and_loops_share_a_limiter_with_a_loop_that_drives_it(url: str) -> None:
    limiter = AsyncLimiter(LIMITS, url)

    def in_thread() -> None:
        for _ in range(300):
            assert limiter.limiter.spend("Orders", "ada").allowed

    async def main(loop: Watching) -> None:
        await drive(loop, limiter)
        other = AsyncLimiter(LIMITS, f"{url}&prefix=other")
        other_loop = asyncio.to_thread(asyncio.run, spend(limiter, 300))
        calls = asyncio.gather(asyncio.to_thread(in_thread), other_loop)
        while not calls.done():
            await spend(limiter, 1)
            await spend(other, 1)
        await calls

    run(main)
    counts = limiter.limiter.counts()["Orders"]["spends"]
    assert counts["allowed"] > 600
    assert limiter.limiter.peek("Orders", "ada").remaining == BURST - counts["allowed"]


def test_reply_that_does_not_come_is_an_error_within_the_deadline(redis_server: Server) -> None:
    async def main(loop: Watching) -> None:
        with closing(Proxy(redis_server.port)) as proxy:
            limiter = AsyncLimiter(LIMITS, f"{proxy.url}?deadline=500ms&prefix=lost")
            await drive(loop, limiter)
            proxy.hold()
            with pytest.raises(penstock.StoreError):
                await asyncio.wait_for(limiter.spend("Orders", "ada"), 20)
            proxy.resume()
            await spend(limiter, 1)

    run(main)


def test_loan_that_was_not_used_is_begun_again_once(url: str) -> None:
    async def main(loop: Watching) -> None:
        limiter, clock = AsyncLimiter(LIMITS, url), penstock.SystemClock()
        for _ in range(3):
            await drive(loop, limiter)
            until = clock.now() + 0.1
            wait_until(lambda: clock.now() > until, "a moment has passed")  # noqa: B023  called here
            before = loop.added
            await spend(limiter, 1_000)
            # On a loaded machine, the loop may be suspended for so long that it has to begin again.
            assert 1 <= loop.added - before < 15

    run(main)


def test_loop_that_is_busy_does_not_lose_the_reply(url: str) -> None:
    async def main(loop: Watching) -> None:
        limiter, clock = AsyncLimiter(LIMITS, url), penstock.SystemClock()
        for _ in range(3):
            await drive(loop, limiter)
            call = loop.create_task(limiter.spend("Orders", "ada"))
            await turn_over(1)
            until = clock.now() + 0.1
            # The loop is busy, so the thread reads the reply.
            wait_until(lambda: clock.now() > until, "a moment has passed")  # noqa: B023  called here
            assert (await call).allowed

    run(main)


def test_lost_connection_is_noticed_and_replaced(redis_server: Server) -> None:
    async def main(loop: Watching) -> None:
        with closing(Proxy(redis_server.port)) as proxy:
            limiter = AsyncLimiter(LIMITS, f"{proxy.url}?deadline=20s&prefix=cut")
            await drive(loop, limiter)
            proxy.cut_all()
            await not_driving(loop)
            assert await wakes_while_idle(loop) < 10
            await drive(loop, limiter)
            proxy.cut("reply")
            with pytest.raises(penstock.StoreError):
                await limiter.spend("Orders", "ada")
            await spend(limiter, 1)

    run(main)


def test_connection_that_was_closed_while_the_loop_was_busy_is_not_used(
    redis_server: Server,
) -> None:
    async def main(loop: Watching) -> None:
        with closing(Proxy(redis_server.port)) as proxy:
            limiter = AsyncLimiter(LIMITS, f"{proxy.url}?deadline=20s&prefix=busy")
            for _ in range(20):
                await drive(loop, limiter)
                # The loop makes the next call before it sees what has arrived.
                proxy.cut_all()
                await spend(limiter, 1)

    run(main)


@pytest.mark.skipif(sys.platform != "linux", reason="the system lists no connections")
def test_connection_that_the_server_has_closed_is_closed_although_no_call_follows(
    start_server: StartServer,
) -> None:
    server = start_server()

    def half_closed() -> int:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        states = [(line.split()[2], line.split()[3]) for line in lines]
        return sum(to.endswith(f":{server.port:04X}") and state == "08" for to, state in states)

    async def main(loop: Watching) -> None:
        limiter = AsyncLimiter(LIMITS, f"{server.url}?deadline=20s")
        await drive(loop, limiter)
        server.command("CLIENT", "KILL", "TYPE", "normal")
        await not_driving(loop)
        wait_until(lambda: half_closed() == 0, "the connection is closed")

    run(main)


def test_loop_that_cannot_watch_the_connection_does_not_drive_it(url: str) -> None:
    class Full(Watching):
        def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
            if len(self.watched) == 1:
                raise OSError(errno.ENOSPC, "no space for a watch")
            super().add_reader(fd, callback, *args)

    with asyncio.Runner(loop_factory=Full) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Full)
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
        runner.run(spend(AsyncLimiter(LIMITS, url), 200))
        # The end of a loan would remove the watch that there is not.
        assert errors
        assert all(isinstance(error, OSError) for error in errors)


def test_closed_limiter_is_not_watched(start_server: StartServer) -> None:
    server = start_server()

    async def main(loop: Watching) -> None:
        before = int(server.info("connected_clients"))
        limiter = AsyncLimiter(LIMITS, f"{server.url}?deadline=20s")
        await drive(loop, limiter)
        assert int(server.info("connected_clients")) == before + 1
        await limiter.close()
        await not_driving(loop)
        assert await wakes_while_idle(loop) < 10
        wait_until(lambda: int(server.info("connected_clients")) == before, "the client has left")

    run(main)


def test_limiter_that_is_forgotten_is_not_watched(start_server: StartServer) -> None:
    server = start_server()

    async def main(loop: Watching) -> None:
        limiter = AsyncLimiter(LIMITS, f"{server.url}?deadline=20s")
        await drive(loop, limiter)
        del limiter
        await not_driving(loop)

    run(main)


LOOP_IN_TWO_PROCESSES = """
import asyncio, os, signal, sys

import penstock

url, at_once, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
limits = {"Orders": penstock.Limit.token_bucket(burst=10_000, count=1, period="1h")}
limiter = penstock.AsyncLimiter(limits, url)

async def spend():
    for _ in range(500):
        calls = asyncio.gather(*(limiter.spend("Orders", "ada") for _ in range(at_once)))
        assert all(answer.allowed for answer in await asyncio.wait_for(calls, 20))

async def fork_and_spend():
    loop = asyncio.get_running_loop()
    await spend()
    if (child := os.fork()) == 0:
        signal.alarm(60)
        await loop.create_future()
    try:
        await spend()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

with asyncio.Runner() as runner:
    if place == "in":
        runner.run(fork_and_spend())
    else:
        runner.run(spend())
        if (child := os.fork()) == 0:
            signal.alarm(60)
            try:
                runner.run(spend())
                os._exit(0)
            finally:
                os._exit(99)
        runner.run(spend())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("place", ["in", "after"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_child_that_goes_on_with_the_loop_takes_no_reply_of_its_parent(
    url: str, at_once: int, place: str
) -> None:
    run_program(LOOP_IN_TWO_PROCESSES, url, str(at_once), place)
