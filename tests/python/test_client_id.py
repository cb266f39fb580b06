"""The client id that a view passes to the limiter is that of the limits on its route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fastapi
import flask
import pytest
from rest_framework.decorators import api_view
from rest_framework.response import Response
from starlette.testclient import TestClient

import penstock
import penstock.fastapi
from penstock.django import client_id, get_limiter, limit
from penstock.flask import Penstock
from penstock.guard import MissingId
from penstock.identity import by_header, by_user

if TYPE_CHECKING:
    from conftest import DjangoSite

LIMITS = penstock.Limits.parse(
    "Orders: {burst: 9, count: 9, period: 1m, id: ipAddress}\n"
    "PerUser: {burst: 9, count: 9, period: 1m}\n",
    overrides="- Orders: {burst: 99, count: 9, period: 1m, ids: ['2001:db8::7']}",
)
TRUSTED = ["10.0.0.0/8"]
CASES = [
    # The peer, X-Forwarded-For, and the remaining tokens after one request.
    ("203.0.113.7", "198.51.100.1", "203.0.113.7", 8),
    ("10.0.0.1", "198.51.100.1, 203.0.113.7", "203.0.113.7", 8),
    ("10.0.0.1", "2001:db8:0:0:9::1", "2001:db8::", 8),
    # An override for one address of a /64 has a separate bucket.
    ("10.0.0.1", "2001:db8::7", "2001:db8::7", 98),
]
each_client = pytest.mark.parametrize(("peer", "forwarded", "id", "left"), CASES)


@each_client
def test_flask(peer: str, forwarded: str, id: str, left: int) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, penstock.Limiter(LIMITS), trusted_proxies=TRUSTED)

    @app.get("/")
    @limits.limit("Orders")
    def orders() -> dict[str, Any]:
        found = limits.client_id("Orders")
        left = limits.guard.limiter.peek("Orders", found).remaining
        user = limits.client_id("PerUser", by_header("X-Tenant", missing="address"))
        return {"found": found, "left": left, "user": user}

    answer = app.test_client().get(
        "/", environ_base={"REMOTE_ADDR": peer}, headers={"X-Forwarded-For": forwarded}
    )
    assert answer.get_json()["found"] == id
    assert answer.get_json()["left"] == left
    assert answer.get_json()["user"].startswith("address:")


@each_client
def test_django(site: DjangoSite, peer: str, forwarded: str, id: str, left: int) -> None:
    site.set(PENSTOCK={"LIMITS": LIMITS, "TRUSTED_PROXIES": TRUSTED})

    @limit("Orders")
    @api_view(["GET"])
    def orders(request: Any) -> Response:
        found = client_id(request, "Orders")
        left = get_limiter().peek("Orders", found).remaining
        return Response(
            {"found": found, "left": left, "user": client_id(request, "PerUser", by_user)}
        )

    site.route("", orders)
    answer: Any = site.get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=forwarded)
    assert answer.json()["found"] == id
    assert answer.json()["left"] == left
    assert answer.json()["user"].startswith("address:")


@each_client
def test_fastapi(peer: str, forwarded: str, id: str, left: int) -> None:
    app = fastapi.FastAPI()
    guard = penstock.fastapi.install(app, penstock.Limiter(LIMITS), trusted_proxies=TRUSTED)
    limited = fastapi.Depends(penstock.fastapi.RateLimit("Orders"))

    @app.get("/", dependencies=[limited])
    async def orders(request: fastapi.Request) -> dict[str, Any]:
        found = penstock.fastapi.client_id(request, "Orders")
        return {"found": found, "left": guard.limiter.peek("Orders", found).remaining}

    client = TestClient(app, client=(peer, 50000))
    answer = client.get("/", headers={"X-Forwarded-For": forwarded})
    assert answer.json() == {"found": id, "left": left}


def test_mistakes_are_errors() -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, penstock.Limiter(LIMITS))
    with app.test_request_context("/", environ_base={"REMOTE_ADDR": "nowhere"}):
        with pytest.raises(MissingId):
            limits.client_id("Orders")
        with pytest.raises(penstock.UnknownLimit):
            limits.client_id("Order")
        with pytest.raises(penstock.ConfigError):
            limits.client_id("Orders", None)  # type: ignore[arg-type]
