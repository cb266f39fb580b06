"""Options that FastAPI resolves, and policies after the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, WebSocket
from fastapi_app import get, hello, limited
from guards import PEER, left
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import penstock
from penstock.fastapi import install
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app(limiter: penstock.Limiter) -> FastAPI:
    app = FastAPI()
    install(app, limiter)
    return app


# Options as dependencies


class Accounts:
    """Returns the user, and counts how often it is called."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, account: Annotated[str, Header()]) -> str:
        self.asked += 1
        if account == "wrong":
            raise HTTPException(401)
        return account


def test_id_can_be_a_dependency_of_the_route(app: FastAPI, limiter: penstock.Limiter) -> None:
    account = Accounts()
    known = Depends(account)
    limits = [
        limited("PerAddress"),
        limited("PerUser", id=known),
        limited("Large", id=shared("all")),
    ]
    app.get("/", dependencies=[known, *limits])(hello)
    first = get(app, Account="ada")
    assert (
        first.headers["ratelimit"] == '"PerAddress";r=1;t=30, "PerUser";r=4;t=720, "Large";r=99;t=1'
    )
    assert account.asked == 1
    assert get(app, Account="grace").status_code == 200
    refused = get(app, Account="ada")
    assert refused.status_code == 429
    # All or nothing, although the last of the three is resolved before the others' id.
    assert (left(limiter, "PerUser", "ada"), left(limiter, "Large", "all")) == (4, 98)


def test_cost_can_be_a_dependency(app: FastAPI, limiter: penstock.Limiter) -> None:
    def pages(number: Annotated[int, Query(ge=1)] = 1) -> int:
        return number

    app.get("/", dependencies=[limited("PerUser", id=shared("ada"), cost=Depends(pages))])(hello)
    assert get(app, "/?number=3").status_code == 200
    assert left(limiter, "PerUser", "ada") == 2
    # A request that FastAPI rejects is not counted: its cost is not known.
    assert get(app, "/?number=many").status_code == 422
    assert left(limiter, "PerUser", "ada") == 2


def test_exemption_can_be_a_dependency_and_be_overridden(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    def is_staff() -> bool:
        return False

    app.get("/", dependencies=[limited("PerAddress", exempt_when=Depends(is_staff))])(hello)
    assert "ratelimit" in get(app).headers
    app.dependency_overrides[is_staff] = lambda: True
    assert "ratelimit" not in get(app).headers


def test_dependency_without_an_id_is_a_bad_request(app: FastAPI) -> None:
    def anonymous() -> None:
        return None

    app.get("/", dependencies=[limited("PerUser", id=Depends(anonymous))])(hello)
    assert get(app).status_code == 400


def test_request_that_another_dependency_refuses_is_counted(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    limits = [limited("PerAddress"), limited("PerUser", id=Depends(Accounts()))]
    app.get("/", dependencies=limits)(hello)
    first, second, third = (get(app, Account="wrong") for _ in range(3))
    assert (first.status_code, second.status_code) == (401, 401)
    assert first.headers["ratelimit"] == '"PerAddress";r=1;t=30'
    # A client that guesses too often does not learn whether a guess was right.
    assert third.status_code == 429
    assert third.json()["violated-policies"] == ["PerAddress"]
    assert third.headers.get_list("retry-after") == ["30"]
    assert get(app, Account="ada").status_code == 429
    assert left(limiter, "PerUser", "ada") == 5
    # A request with a malformed account counts too.
    limiter.reset("PerAddress", PEER)
    assert get(app).status_code == 422
    assert left(limiter) == 1


@pytest.mark.parametrize("outside", [True, False])
def test_late_refusal_passes_the_middlewares_and_handlers_of_the_application(
    limiter: penstock.Limiter, *, outside: bool
) -> None:
    """A browser shows no refusal without the fields of a CORS middleware."""
    app = FastAPI()
    if outside:
        install(app, limiter)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.middleware("http")
    async def number(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Request-Id"] = "7"
        return response

    @app.exception_handler(429)
    async def slow_down(_: Request, refused: Any) -> JSONResponse:
        return JSONResponse({"wait": refused.outcome.retry_after}, 429)

    if not outside:
        install(app, limiter)
    limits = [limited("PerAddress"), limited("PerUser", id=Depends(Accounts()))]
    app.get("/", dependencies=limits)(hello)
    answers = [get(app, Account="wrong", Origin="https://example.org") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 429]
    assert answers[2].headers["access-control-allow-origin"] == "*"
    assert answers[2].headers["x-request-id"] == "7"
    assert answers[2].headers["retry-after"] == "30"
    assert answers[2].json() == {"wait": 30}


def test_request_whose_dependency_raises_is_counted(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    def broken() -> str:
        raise ValueError

    limits = [limited("PerAddress"), limited("PerUser", id=Depends(broken))]
    app.get("/", dependencies=limits)(hello)
    assert [get(app).status_code for _ in range(3)] == [500, 500, 429]
    assert left(limiter) == 0


def test_websocket_that_another_dependency_refuses_is_counted_too(
    app: FastAPI, limiter: penstock.Limiter
) -> None:
    limits = [limited("PerAddress"), limited("PerUser", id=Depends(Accounts()))]

    @app.websocket("/chat", dependencies=limits)
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    client = TestClient(app, client=(PEER, 50000))
    with client.websocket_connect("/chat", headers={"Account": "ada"}) as websocket:
        accepted: Any = websocket.extra_headers
        assert dict(accepted)[b"ratelimit"].startswith(b'"PerAddress";r=1')
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/chat", headers={"Account": "wrong"}),
    ):
        pass
    assert left(limiter) == 0


# Deductions and refunds


def test_dependency_with_yield_ends_after_a_refusal(app: FastAPI) -> None:
    ended: list[str] = []

    def session() -> Iterator[str]:
        yield "session"
        ended.append("ended")

    async def view(request: Request) -> int:
        return int(request.state.penstock.remaining)

    app.get("/", dependencies=[Depends(session), limited("PerAddress")])(view)
    assert [get(app).status_code for _ in range(2)] == [200, 200]
    assert len(ended) == 2


# Limits that an endpoint calls itself


def test_handler_for_429_responds_to_rate_limited(app: FastAPI, limiter: penstock.Limiter) -> None:
    @app.get("/", dependencies=[limited("Large")])
    async def export() -> None:
        limiter.spend("PerUser", "ada", 5)
        limiter.spend("PerUser", "ada").raise_if_denied()

    app.add_exception_handler(429, lambda _, error: JSONResponse(error.outcome.retry_after, 429))
    assert get(app).json() == 720


def test_handler_of_the_application_responds(limiter: penstock.Limiter) -> None:
    app = FastAPI()

    @app.exception_handler(penstock.RateLimited)
    async def answer(_: Request, error: penstock.RateLimited) -> JSONResponse:
        return JSONResponse(error.decision.id, 503)

    guard = install(app, limiter)

    @app.get("/")
    async def export() -> None:
        limiter.spend("PerUser", "ada", 5)
        limiter.spend("PerUser", "ada").raise_if_denied()

    assert get(app).json() == "ada"
    guard.enabled = False
    assert get(app).json() == "ada"


def test_open_websocket_is_left_to_its_endpoint(app: FastAPI, limiter: penstock.Limiter) -> None:
    @app.websocket("/")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        limiter.spend("PerUser", "ada", 5)
        limiter.spend("PerUser", "ada").raise_if_denied()

    client = TestClient(app, client=(PEER, 50000))
    with pytest.raises(penstock.RateLimited), client.websocket_connect("/") as socket:
        socket.receive_text()
