"""A client that leaves while its body is read keeps nothing, although its view fails.

`refund_on_error` returns the tokens of a view that fails by itself. With a broken body, a client
could make any view fail after its work, and would never pay. (ASGI has cases of its own.)
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import flask
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import penstock
from penstock.django import limit
from penstock.flask import Penstock
from penstock.wsgi import PenstockMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import DjangoSite

PEER = "203.0.113.7"
OPTIONS: Any = {"refund_on_error": True}
FORM = "application/x-www-form-urlencoded"


class Reset(io.BytesIO):
    """A body whose connection was reset."""

    def read(self, size: int | None = -1) -> bytes:
        raise ConnectionResetError(size)

    readline = readinto = read  # type: ignore[assignment]


@pytest.fixture
def limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    return penstock.Limiter({"PerAddress": "5/minute"}, clock=clock)


def wsgi_app(limiter: penstock.Limiter, _: DjangoSite) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if b"b" not in environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])):
            raise ValueError("there is no b")
        start_response("200 OK", [])
        return [b""]

    return PenstockMiddleware(app, limiter, limit="PerAddress", **OPTIONS)


def flask_app(limiter: penstock.Limiter, _: DjangoSite) -> Any:
    app = flask.Flask("shop")

    @app.post("/")
    @Penstock(app, limiter).limit("PerAddress", **OPTIONS)
    def index() -> str:
        if not flask.request.form.getlist("b"):
            raise ValueError("there is no b")
        return ""

    return app


def django_app(limiter: penstock.Limiter, site: DjangoSite) -> Any:
    site.set(PENSTOCK={"LIMITER": limiter}, MIDDLEWARE=[])

    @limit("PerAddress", **OPTIONS)
    def index(request: HttpRequest) -> HttpResponse:
        if "b" not in request.POST:
            raise ValueError("there is no b")
        return HttpResponse()

    site.route("", index)
    return WSGIHandler()


def left_after(body: io.BytesIO, app: Any, limiter: penstock.Limiter) -> int:
    """Send a request with a body, and return what its client has left."""
    environ = RequestFactory().generic("POST", "/", b"a=1&b=2", FORM).environ
    environ |= {"wsgi.input": body, "REMOTE_ADDR": PEER}
    with suppress(Exception):
        app(environ, lambda *_: lambda _: None).close()
    return limiter.peek("PerAddress", PEER).remaining


@pytest.mark.parametrize("make", [wsgi_app, flask_app, django_app])
def test_disconnect_leaves_no_objects(
    make: Callable[..., Any], limiter: penstock.Limiter, site: DjangoSite
) -> None:
    app = make(limiter, site)
    assert left_after(io.BytesIO(b"a=1&b=2"), app, limiter) == 4
    # The client sent the whole body, and the view fails for another reason.
    assert left_after(io.BytesIO(b"a=1&c=2"), app, limiter) == 4
    assert left_after(Reset(), app, limiter) == 3
