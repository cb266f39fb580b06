"""The types of the ASGI layer; checked, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, assert_type

from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse
from litestar.middleware import DefineMiddleware
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware

import penstock
from penstock._web.outcome import Outcome
from penstock.adapter import Guard
from penstock.asgi import PenstockMiddleware
from penstock.asgi import Response as Head
from penstock.fastapi import (
    MessageLimit,
    Messages,
    RateLimit,
    RequestRefused,
    install,
    rate_limited_responses,
)
from penstock.identity import by_api_key, by_user, per_route

if TYPE_CHECKING:
    from starlette.types import ASGIApp

limiter = penstock.Limiter({"PerAddress": "5/minute"})
app = FastAPI(dependencies=[Depends(RateLimit("PerAddress"))])
guard = install(app, limits="limits.yaml", overrides="overrides.yaml", hops=1)
assert_type(guard, Guard)
install(app, limiter, openapi=False, headers=["ietf", "github"])
install(app, key="ip")  # type: ignore[call-arg]  # no such option


async def account(request: Request) -> str:
    return request.headers["x-account"]


async def price() -> int:
    return 2


def failed(head: Head) -> bool:
    return head.status_code == 401


orders = APIRouter(
    dependencies=[
        Depends(RateLimit("PerUser", "30/minute", id=account, cost=price, deduct_when=failed)),
        Depends(RateLimit("PerUser", id=per_route(by_user), scope="shop", on_store_error="deny")),
        Depends(RateLimit("PerUser", id=Depends(account), cost=Depends(price))),
        Depends(
            RateLimit(
                penstock.Limit.parse("5/hour"),
                exempt_when=lambda request: bool(request.query_params),
            )
        ),
    ],
    responses=rate_limited_responses(),
)
RateLimit("PerAddress", mode="dry")  # type: ignore[arg-type]  # no such mode
RateLimit("PerAddress", key="ip")  # type: ignore[call-arg]  # no such option


@app.websocket("/chat")
async def chat(
    websocket: WebSocket, messages: Annotated[Messages, Depends(MessageLimit("PerAddress"))]
) -> None:
    assert_type(await messages.ask(), Outcome | None)


@app.exception_handler(RequestRefused)
async def too_many(request: Request, error: RequestRefused) -> JSONResponse:
    assert_type(error.outcome.decision, penstock.Decision | None)
    return JSONResponse({"wait": error.outcome.retry_after}, error.status_code)


async def plain(scope: Any, receive: Any, send: Any) -> None: ...


limited: ASGIApp = PenstockMiddleware(plain, limits="limits.yaml", limit="PerAddress", id=account)
PenstockMiddleware(plain, limiter, limit=["PerAddress", "100/minute"], id=by_api_key)
PenstockMiddleware(plain, guard)
PenstockMiddleware(plain, guard, limit=7)  # type: ignore[arg-type]  # no limit
Starlette(middleware=[Middleware(PenstockMiddleware, limiter, limit="PerAddress")])
DefineMiddleware(PenstockMiddleware, limiter=limiter, limit="PerAddress")
quart = Quart(__name__)
PenstockMiddleware(quart.asgi_app, limiter, limit="PerAddress")
