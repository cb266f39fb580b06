"""A shared table in which a stopped process holds locks.

1. A call that has to wait leaves the event loop running; all other calls are answered at once.
2. So does a request whose limits have to wait, in every adapter on an event loop.
3. A reload leaves other threads running, and they use the new limits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import Depends, FastAPI
from hello import client_of, hello_asgi
from loops import at_once, awaited, turn_over

from penstock import AsyncLimiter, Limiter, StoreUnavailable, Transaction
from penstock.asgi import PenstockMiddleware
from penstock.fastapi import RateLimit, install

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp

pytestmark = pytest.mark.anyio

LIMITS = {"Orders": "500/day", "Pages": "500/hour, fixed window"}

# Locks every line of a table as an insert does, and stops itself.
HOLD = """
import fcntl, os, signal, sys

file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, os.fstat(file).st_size)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def limiter(shm_url: str) -> Limiter:
    """A limiter with a bucket of `known` in each limit."""
    limiter = Limiter(LIMITS, store=shm_url)
    for name in LIMITS:
        assert limiter.spend(name, "known")
    return limiter


@pytest.fixture
def holder(limiter: Limiter, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stopped process that holds the locks of the whole table."""
    assert limiter.is_shared
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "table")])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    yield process
    process.send_signal(signal.SIGKILL)
    process.wait()


async def turns_of_loop(coroutine: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """Return how often the loop ran while a coroutine waited, and its result or exception."""
    task = asyncio.ensure_future(coroutine)
    turns = 0
    while not task.done():
        turns += 1
        await turn_over(1)
    return turns, task.exception() or task.result()


BOTH = (Transaction("Orders", "new"), Transaction("Pages", "new"))
WAITING: dict[str, Callable[[AsyncLimiter], Coroutine[Any, Any, Any]]] = {
    "spend": lambda limiter: limiter.spend("Orders", "new"),
    "bound spend": lambda limiter: limiter.limit("Orders").spend("new"),
    "spend_all": lambda limiter: limiter.spend_all(BOTH),
    "spend_each": lambda limiter: limiter.spend_each("Orders", ["new"]),
    "reserve": lambda limiter: awaited(limiter.reserve("Orders", "new")),
    "acquire": lambda limiter: limiter.acquire("Orders", "new"),
}


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("call", WAITING)
async def test_call_that_waits_leaves_the_event_loop_running(limiter: Limiter, call: str) -> None:
    turns, result = await turns_of_loop(WAITING[call](AsyncLimiter(limiter)))
    assert isinstance(result, StoreUnavailable)
    # It waits for 200 ms.
    assert turns > 5


@pytest.mark.usefixtures("holder")
async def test_calls_on_known_buckets_are_answered_at_once(limiter: Limiter) -> None:
    calls = AsyncLimiter(limiter)
    assert at_once(calls.spend("Orders", "known")).remaining == 498
    assert at_once(calls.limit("Orders").check("known"))
    assert at_once(calls.refund("Orders", "known"))
    assert at_once(calls.peek("Orders", "new")).remaining == 500
    known = [Transaction(name, "known") for name in LIMITS]
    assert at_once(calls.spend_all(known))
    # A charge that precedes a call that has to wait is returned.
    result = (await turns_of_loop(calls.spend_all([*known, *BOTH])))[1]
    assert isinstance(result, StoreUnavailable)
    assert limiter.peek("Orders", "known").remaining == 498


async def test_call_is_answered_when_the_process_goes_on(
    limiter: Limiter, holder: subprocess.Popen[bytes]
) -> None:
    task = asyncio.ensure_future(AsyncLimiter(limiter).spend("Orders", "new"))
    await turn_over(1)
    assert not task.done()
    holder.send_signal(signal.SIGCONT)
    assert (await task).remaining == 499


def asgi_app(limiter: Limiter, limits: Sequence[str]) -> ASGIApp:
    """Return an ASGI application under limits."""
    return PenstockMiddleware(hello_asgi, limiter, limit=limits)


def fastapi_app(limiter: Limiter, limits: Sequence[str]) -> ASGIApp:
    """Return a FastAPI application with a route under limits."""
    app = FastAPI()
    install(app, limiter=limiter)

    @app.get("/", dependencies=[Depends(RateLimit(*limits))])
    async def hello() -> str:
        return "hello"

    return app


async def status_of(app: ASGIApp) -> int:
    """Return the status of a response."""
    async with client_of(app) as client:
        return (await client.get("/")).status_code


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("make_app", [asgi_app, fastapi_app])
@pytest.mark.parametrize("limits", [("Orders",), ("Orders", "Pages")], ids=["one", "two"])
async def test_request_that_waits_leaves_the_event_loop_running(
    limiter: Limiter, make_app: Callable[[Limiter, Sequence[str]], ASGIApp], limits: tuple[str, ...]
) -> None:
    app = make_app(limiter, limits)
    turns, status = await turns_of_loop(status_of(app))
    # The store fails after 200 ms, and a request is allowed then.
    assert status == 200
    assert turns > 5


@pytest.mark.usefixtures("holder")
def test_reload_leaves_other_threads_running_under_the_new_limits(limiter: Limiter) -> None:
    orders, is_over = limiter.limit("Orders"), threading.Event()
    seen: list[int | None] = []

    def decide() -> None:
        while not is_over.is_set():
            seen.append(orders.check("known").limit.count)

    thread = threading.Thread(target=decide)
    thread.start()
    # The lifetime of the buckets of `Pages` grows, so the table is searched.
    limiter.reload({"Orders": "600/day", "Pages": "500/day, fixed window"})
    decided_meanwhile = seen.count(600)
    is_over.set()
    thread.join()
    # The search waits for the locks for 200 ms.
    assert decided_meanwhile > 10
