"""Applications over a real server: no adapter blocks the event loop while the server decides."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import flask
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from fastapi import Depends, FastAPI
from guards import PEER
from hello import client_of, hello_asgi
from loops import NoThreads, turn_over

import penstock
from penstock.asgi import PenstockMiddleware
from penstock.django import limit
from penstock.fastapi import RateLimit, install
from penstock.flask import Penstock

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite, StartServer
    from redis_servers import Server

AT_ONCE = 6
TURNS = 1000


def is_counted(response: Any) -> bool:
    return response is not None


def asgi(limiter: penstock.Limiter, _: Any) -> Any:
    return PenstockMiddleware(hello_asgi, limiter, limit="PerAddress", deduct_when=is_counted)


def fastapi(limiter: penstock.Limiter, _: Any) -> Any:
    app = FastAPI()
    install(app, limiter)

    @app.get("/", dependencies=[Depends(RateLimit("PerAddress", deduct_when=is_counted))])
    async def view() -> str:
        return ""

    return app


def django(limiter: penstock.Limiter, site: Callable[[], DjangoSite]) -> Any:
    @limit("PerAddress", deduct_when=is_counted)
    async def view(_: Any) -> HttpResponse:
        return HttpResponse()

    made = site()
    made.set(PENSTOCK={"LIMITER": limiter}, MIDDLEWARE=["penstock.django.PenstockMiddleware"])
    made.route("", view)
    return ASGIHandler()


@pytest.mark.parametrize("make", [asgi, fastapi, django])
def test_loop_runs_on_while_the_server_does_not_answer(
    start_server: StartServer,
    make: Callable[[penstock.Limiter, Callable[[], DjangoSite]], Any],
    request: pytest.FixtureRequest,
) -> None:
    server = start_server()
    limits = {"PerAddress": penstock.Limit.token_bucket(burst=50, count=1, period="1h")}
    limiter = penstock.Limiter(limits, f"{server.url}?deadline=20s")
    app = make(limiter, lambda: request.getfixturevalue("site"))

    async def main() -> tuple[int, list[int]]:
        loop = asyncio.get_running_loop()
        async with client_of(app) as client:
            assert (await client.get("/")).status_code == 200
            server.pause()
            tasks = [loop.create_task(client.get("/")) for _ in range(AT_ONCE)]
            # With the server stopped, only a loop that does not wait for it gets through this.
            await turn_over(TURNS)
            done = sum(task.done() for task in tasks)
            server.resume()
            return done, [response.status_code for response in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == (0, [200] * AT_ONCE)
    assert limiter.peek("PerAddress", PEER).remaining == 49 - AT_ONCE
    limiter.close()


def test_request_that_waits_for_the_server_holds_few_objects(start_server: StartServer) -> None:
    server = start_server()
    limiter = penstock.Limiter({"PerAddress": "1000/hour"}, f"{server.url}?deadline=20s")
    app = PenstockMiddleware(hello_asgi, limiter, limit="PerAddress")

    async def nothing(*_: Any) -> None:
        pass

    def request() -> Any:
        scope = {"type": "http", "client": (PEER, 50000), "headers": [], "state": {}}
        return app(scope, nothing, nothing)

    async def main() -> float:
        for _ in range(100):
            await request()
        server.pause()
        gc.collect()
        gc.disable()
        try:
            before = gc.get_count()[0]
            tasks = [asyncio.ensure_future(request()) for _ in range(AT_ONCE * 10)]
            await turn_over()
            created = gc.get_count()[0] - before
            assert not any(task.done() for task in tasks)
        finally:
            gc.enable()
            server.resume()
        await asyncio.gather(*tasks)
        return created / len(tasks)

    # The objects of requests that wait at the same time make the garbage collector run; a task and
    # a scope are eight of them.
    assert asyncio.run(main()) <= 20
    limiter.close()


def test_requests_are_decided_without_a_thread(redis_server: Server) -> None:
    limits = {"PerAddress": "2/hour", "Many": "9/hour"}
    limiter = penstock.Limiter(limits, f"{redis_server.url}?deadline=20s")
    app = FastAPI()
    install(app, limiter)
    per_address, many = RateLimit("PerAddress"), RateLimit("Many", block_for="5m")

    @app.get("/one", dependencies=[Depends(per_address)])
    async def one() -> str:
        return ""

    @app.get("/both", dependencies=[Depends(per_address), Depends(many)])
    async def both() -> str:
        return ""

    @app.get("/blocking", dependencies=[Depends(many)])
    async def blocking() -> str:
        return ""

    async def main() -> list[int]:
        asyncio.get_running_loop().set_default_executor(NoThreads())
        async with client_of(app) as client:
            paths = ("/one", "/both", "/blocking", "/one")
            return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(main()) == [200, 200, 200, 429]
    assert limiter.peek("PerAddress", PEER).remaining == 0
    assert limiter.peek("Many", PEER).remaining == 7
    limiter.close()


@pytest.mark.parametrize("block_for", ["5m", ["1m", "5m"]])
def test_limit_with_a_block_takes_one_round_trip(
    redis_server: Server, clock: penstock.ManualClock, block_for: str | list[str]
) -> None:
    url = f"{redis_server.url}?deadline=20s&deny_cache=0"
    app = flask.Flask("shop")
    limiter = penstock.Limiter({"Logins": "2/minute"}, url, clock)
    limits = Penstock(app, limiter)

    @app.get("/")
    @limits.limit("Logins", block_for=block_for)
    def log_in() -> str:
        return ""

    client = app.test_client()

    def calls(status: int) -> int:
        """Send a request; return how many calls to the server it took."""
        redis_server.command("CONFIG", "RESETSTAT")
        assert client.get("/").status_code == status
        with redis_server.client() as connection:
            return int(connection.info("commandstats")["cmdstat_evalsha"]["calls"])

    assert client.get("/").status_code == 200
    assert calls(200) == 1
    # The block begins.
    assert client.get("/").status_code == 429
    assert calls(429) == 1
    clock.advance(59)
    assert calls(429) == 1
    clock.advance(1 if isinstance(block_for, list) else 241)
    assert client.get("/").status_code == 200


def test_decisions_send_few_bytes(redis_server: Server) -> None:
    names = ("PerAddress", "PerUser", "PerSite")
    limits = dict.fromkeys(names, penstock.Limit.token_bucket(burst=100, count=100, period="1h"))
    limiter = penstock.Limiter(limits, f"{redis_server.url}?deadline=20s")
    spend = limiter.limit("PerUser").spend

    def sent(call: Callable[[], object]) -> int:
        """Return the bytes that one call sends; asking the server for them takes some as well."""
        with redis_server.client() as connection:
            counted = [connection.info("stats")["total_net_input_bytes"]]
            counted += [connection.info("stats")["total_net_input_bytes"]]
            call()
            counted += [connection.info("stats")["total_net_input_bytes"]]
        asking = counted[1] - counted[0]
        return int(counted[2] - counted[1] - asking)

    spend(PEER)
    assert sent(lambda: spend(PEER)) <= 160
    three = [(name, PEER, 1) for name in names]
    assert sent(lambda: limiter.spend_all(three)) <= 300
    limiter.close()
