"""Many concurrent requests: a limit admits exactly its burst without blocking the loop."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from penstock.asgi import PenstockMiddleware
from penstock.fastapi import RateLimit, install
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Callable

    import penstock

AT_ONCE = 300
BURST = 40


async def find_user(scope: Any) -> str:
    await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time
    return "ada"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def middleware(clock: penstock.ManualClock) -> Any:
    return PenstockMiddleware(answer, limit=f"{BURST}/minute", clock=clock)


def awaiting(clock: penstock.ManualClock) -> Any:
    return PenstockMiddleware(answer, limit=f"{BURST}/minute", id=find_user, clock=clock)


def fastapi(clock: penstock.ManualClock) -> Any:
    app = FastAPI()
    install(app, limits={"PerAddress": f"{BURST}/minute", "Large": "1000/minute"}, clock=clock)
    both = [Depends(RateLimit("Large", id=shared("all"))), Depends(RateLimit("PerAddress"))]

    @app.get("/", dependencies=both)
    async def view() -> str:
        return ""

    return app


@pytest.mark.parametrize("make", [middleware, awaiting, fastapi])
def test_requests_at_once_are_admitted_up_to_the_burst(
    clock: penstock.ManualClock, make: Callable[[penstock.ManualClock], Any]
) -> None:
    app = make(clock)

    async def wave() -> Counter[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(AT_ONCE)))
        waits = {a.headers.get("retry-after") for a in answers if a.status_code == 429}
        assert len(waits) == 1
        return Counter(answer.status_code for answer in answers)

    assert asyncio.run(wave()) == {200: BURST, 429: AT_ONCE - BURST}
    clock.advance(30)
    assert asyncio.run(wave()) == {200: BURST // 2, 429: AT_ONCE - BURST // 2}


def test_loop_turns_while_requests_are_decided(clock: penstock.ManualClock) -> None:
    app = middleware(clock)
    turns = 0
    seen: list[int] = []

    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    async def one() -> None:
        scope = {"type": "http", "headers": [], "client": ("203.0.113.7", 1)}
        await app(scope, receive, send)
        seen.append(turns)

    async def heart() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time

    async def beat() -> None:
        beating = asyncio.create_task(heart())
        for _ in range(AT_ONCE):
            await asyncio.create_task(one())
        beating.cancel()

    asyncio.run(beat())
    # The loop turns once between any two decisions; a decision in a thread would add more turns.
    assert len(seen) == AT_ONCE
    assert all(1 <= later - earlier <= 4 for earlier, later in itertools.pairwise(seen))
