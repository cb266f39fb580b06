"""The ASGI middleware in Starlette, Litestar and Quart, with their own test clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import quart
from guards import PEER, left
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    SimpleUser,
)
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from penstock._web.guard import Guard
from penstock._web.identity import by_user
from penstock.asgi import PenstockMiddleware
from penstock.identity import shared

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request

    import penstock


def get(app: Any, *paths: str, **headers: str) -> list[httpx.Response]:
    """Get pages as one client."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, client=(PEER, 50000), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.get(path, headers=headers) for path in paths]

    return asyncio.run(all_of_them())


# Starlette


async def hello(request: Request) -> PlainTextResponse:
    decision = request.state.penstock
    return PlainTextResponse(f"hello, {decision.remaining} left")


async def fail(request: Request) -> PlainTextResponse:
    raise ZeroDivisionError


class Session(AuthenticationBackend):
    """Trusts a header; for tests only."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        name = conn.headers.get("x-user")
        return None if name is None else (AuthCredentials(["known"]), SimpleUser(name))


def starlette(*middleware: Middleware) -> Starlette:
    routes = [
        Route("/", hello),
        Route("/fail", fail),
    ]
    return Starlette(routes=routes, middleware=middleware)


def test_starlette_counts_pages_that_do_not_exist(limiter: penstock.Limiter) -> None:
    app = starlette(Middleware(PenstockMiddleware, limiter, limit="PerAddress"))
    response, _, refused = get(app, "/nowhere", "/nowhere", "/nowhere")
    assert (response.status_code, refused.status_code) == (404, 429)
    assert response.headers["ratelimit"] == '"PerAddress";r=1;t=30'


def test_request_that_raises_after_starlette_has_responded_is_refunded(
    limiter: penstock.Limiter,
) -> None:
    around = PenstockMiddleware(
        starlette(), limiter, limit="PerUser", id=shared("ada"), refund_on_error=True
    )
    (response,) = get(around, "/fail")
    assert response.status_code == 500
    # The response was sent before the error was raised.
    assert response.headers["ratelimit"] == '"PerUser";r=4;t=720'
    assert left(limiter, "PerUser", "ada") == 5


def test_starlette_limits_one_route_or_one_mount(limiter: penstock.Limiter) -> None:
    guard = Guard(limiter)
    search = [Middleware(PenstockMiddleware, guard, limit="PerAddress")]
    mounted = [Middleware(PenstockMiddleware, guard, limit="PerUser", id=shared("all"))]
    app = Starlette(
        routes=[
            Route("/search", hello, middleware=search),
            Mount("/api", routes=[Route("/hello", hello)], middleware=mounted),
        ],
        middleware=[Middleware(PenstockMiddleware, guard, limit="Large")],
    )
    one, two = get(app, "/search", "/api/hello")
    assert one.headers["ratelimit"] == '"Large";r=99;t=1, "PerAddress";r=1;t=30'
    assert two.headers["ratelimit"] == '"Large";r=98;t=1, "PerUser";r=4;t=720'
    *_, refused = get(app, "/search", "/search")
    assert refused.status_code == 429
    assert refused.headers.get_list("ratelimit") == ['"Large";r=96;t=1, "PerAddress";r=0;t=30']


def test_starlette_user_is_known_inside_its_middleware(limiter: penstock.Limiter) -> None:
    app = starlette(
        Middleware(AuthenticationMiddleware, backend=Session()),
        Middleware(PenstockMiddleware, limiter, limit="PerUser", id=by_user),
    )
    get(app, "/", **{"X-User": "ada"})
    get(app, "/")
    assert left(limiter, "PerUser", "ada") == 4
    assert left(limiter, "PerUser", f"address:{PEER}") == 4


def test_starlette_with_a_base_http_middleware(limiter: penstock.Limiter) -> None:
    async def stamp(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Stamp"] = str(request.state.penstock.remaining)
        return response

    stamping = Middleware(BaseHTTPMiddleware, dispatch=stamp)
    limiting = Middleware(PenstockMiddleware, limiter, limit="PerAddress")
    for order in ((stamping, limiting), (limiting, stamping)):
        limiter.reset("PerAddress", PEER)
        first, _, refused = get(starlette(*order), "/", "/", "/")
        assert first.headers["x-stamp"] == "1"
        assert first.headers["ratelimit"] == '"PerAddress";r=1;t=30'
        assert refused.status_code == 429


# Quart


def test_quarts_test_client_has_no_address(limiter: penstock.Limiter) -> None:
    app = quart.Quart(__name__)
    app.asgi_app = PenstockMiddleware(  # type: ignore[method-assign]
        app.asgi_app, limiter, limit="PerAddress"
    )

    async def statuses() -> list[int]:
        client = app.test_client()
        with_one = {"scope_base": {"client": (PEER, 50000)}}
        answers = [await client.get("/"), await client.get("/", **with_one)]
        return [answer.status_code for answer in answers]

    assert asyncio.run(statuses()) == [400, 404]
