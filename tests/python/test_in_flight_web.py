"""Slots of requests in flight where one framework or one kind of response differs."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import fastapi
import flask
import pytest
import rest_framework.response
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from fastapi.testclient import TestClient
from guards import asks, request
from rest_framework.views import APIView
from werkzeug.test import create_environ

import penstock
import penstock.asgi
import penstock.django
import penstock.flask
import penstock.wsgi
from penstock import ConfigError, Limit, Limiter, ManualClock
from penstock.adapter import Guard
from penstock.django.drf import PenstockMixin, PenstockThrottle
from penstock.fastapi import MessageLimit, Messages, install
from penstock.identity import shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conftest import DjangoSite


@pytest.fixture
def limiter() -> Limiter:
    return Limiter({"Exports": "2 in flight"}, clock=ManualClock())


def held(limiter: Limiter) -> int:
    return 2 - limiter.peek("Exports", "all").remaining


def served(app: Any) -> Iterable[bytes]:
    """Return the body of a response, which is neither read nor closed."""
    environ = create_environ("/") | {"wsgi.file_wrapper": FileWrapper}
    body: Iterable[bytes] = app(environ, lambda *_: None)
    return body


def test_server_gets_its_own_object_for_a_file(limiter: Limiter) -> None:
    file = io.BytesIO(b"a large file")

    def send(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return environ["wsgi.file_wrapper"](file)

    body = served(
        penstock.wsgi.PenstockMiddleware(send, limiter, limit="Exports", id=shared("all"))
    )
    assert type(body) is FileWrapper
    assert held(limiter) == 1
    assert b"".join(body) == b"a large file"
    assert held(limiter) == 1
    body.close()
    assert (held(limiter), file.closed) == (0, True)


@pytest.fixture
def app(limiter: Limiter) -> flask.Flask:
    app = flask.Flask("shop")
    limits = penstock.flask.Penstock(app, limiter)

    @app.get("/")
    @limits.limit("Exports", id=shared("all"))
    def export() -> flask.Response:
        return flask.send_file(io.BytesIO(b"a large file"), "text/plain")

    return app


def test_server_gets_its_own_object_for_a_file_of_flask(app: flask.Flask, limiter: Limiter) -> None:
    body = served(app)
    assert type(body) is FileWrapper
    assert held(limiter) == 1
    body.close()
    assert held(limiter) == 0


def test_slot_of_a_response_that_is_dropped_is_free_and_a_fault(limiter: Limiter) -> None:
    def send(_: object, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    body = served(
        penstock.wsgi.PenstockMiddleware(send, limiter, limit="Exports", id=shared("all"))
    )
    assert held(limiter) == 1
    with pytest.warns(ResourceWarning, match="Exports all: 1, open> was dropped"):
        del body
    assert held(limiter) == 0


def test_slot_of_a_websocket_is_held_until_the_application_returns(
    limiter: Limiter,
) -> None:
    seen: list[int] = []

    async def chat(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await send({"type": "websocket.close"})
        seen.append(held(limiter))

    async def send(_: object) -> None:
        pass

    limited = penstock.asgi.PenstockMiddleware(chat, limiter, limit="Exports", id=shared("all"))
    scope = {"type": "websocket", "path": "/", "headers": []}
    asyncio.run(limited(scope, None, send))
    assert (seen, held(limiter)) == ([1], 0)


class Throttle(PenstockThrottle):
    limit = "Exports"
    id = shared("all")


class View(APIView):
    throttle_classes = (Throttle,)
    authentication_classes = ()

    def get(self, _: Any) -> rest_framework.response.Response:
        return rest_framework.response.Response({})


def test_throttle_needs_the_response_of_a_request_that_holds_a_slot(
    site: DjangoSite, limiter: Limiter
) -> None:
    site.set(PENSTOCK={"LIMITER": limiter}, MIDDLEWARE=[])
    got = RequestFactory().get("/")
    with pytest.raises(ImproperlyConfigured, match="add PenstockMiddleware, or PenstockMixin"):
        View.as_view()(got)

    class Mixed(PenstockMixin, View):
        pass

    response = Mixed.as_view()(got)
    assert (response.status_code, held(limiter)) == (200, 1)
    response.close()
    assert held(limiter) == 0


REFUSED = "Exports limits requests in flight, whose slots nothing would return here; use a rate"


def chat_app(given: str | Limit) -> fastapi.FastAPI:
    """Return an application whose messages have a limit."""
    app = fastapi.FastAPI()
    limit = fastapi.Depends(MessageLimit(given, id=shared("all")))

    @app.websocket("/chat")
    async def chat(websocket: fastapi.WebSocket, messages: Messages = limit) -> None:
        await websocket.accept()
        async for _ in websocket.iter_text():
            await websocket.send_json(await messages.ask() is None)

    return app


@pytest.mark.parametrize("given", ["Exports", "2 in flight", Limit.in_flight(2)])
def test_messages_cannot_hold_slots(limiter: Limiter, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"limits requests in flight.*use a rate"):
        install(chat_app(given), limiter)


def test_messages_cannot_hold_slots_after_a_reload(limiter: Limiter) -> None:
    limiter.reload({"Exports": "9/minute"})
    app = chat_app("Exports")
    install(app, limiter)

    def chat() -> None:
        with TestClient(app).websocket_connect("/chat") as websocket:
            websocket.send_text("")
            assert websocket.receive_json()
            limiter.reload({"Exports": "2 in flight"})
            websocket.send_text("")
            websocket.receive_json()

    with pytest.raises(ConfigError, match=REFUSED):
        chat()
    assert held(limiter) == 0


def test_request_without_an_adapter_cannot_hold_slots(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match=REFUSED):
        asks(Guard(limiter), "Exports", id=shared("all"))(request())
    assert held(limiter) == 0
