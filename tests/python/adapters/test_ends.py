"""Every end of a request returns its slots at once, in every adapter, without the collector.

A slot that nothing but the collector, or the last reference, would return issues a
`ResourceWarning`, which is an error here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final
from wsgiref.util import FileWrapper

import django.http
import flask
import pytest
import rest_framework.response
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import InFlask, only
from adapters.test_in_flight import is_free
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from fastapi import Depends, FastAPI
from guards import PEER
from loops import turn_over
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest  # noqa: TC002  FastAPI reads it
from starlette.responses import PlainTextResponse
from starlette.routing import Route as HttpRoute
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect
from werkzeug.test import EnvironBuilder

import penstock
import penstock.asgi
import penstock.django
import penstock.fastapi
import penstock.wsgi
from penstock.django.drf import PenstockMixin, PenstockThrottle
from penstock.identity import by_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from adapters.case import Driver
    from adapters.conftest import Serve
    from conftest import DjangoSite

# Django does not close the body of a request that it does not answer.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")

LIMITS = "{Exports: 1 in flight, Rate: 1000/minute}"


@pytest.fixture
def limiter(clock: penstock.ManualClock, store: str) -> Iterator[penstock.Limiter]:
    with penstock.Limiter(penstock.Limits.parse(LIMITS), store, clock) as made:
        yield made


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Timeout(BaseException):
    """Stops a view from outside, as `gevent.Timeout` and `GreenletExit` do."""


class Failure(Exception):
    """Raised by views and middlewares."""


def raising_function(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def raising(error: type[BaseException]) -> Callable[[Request], Reply]:
    def view(_: Request) -> Reply:
        raise error

    return view


def raising_in_parts(error: type[BaseException]) -> Callable[[Request], Reply]:
    def parts() -> Iterator[str]:
        yield "one"
        raise error

    return lambda _: Reply(parts())


VIEWS: Final[dict[str, Callable[[Request], Reply]]] = {
    "a response": lambda _: Reply(),
    "an empty response": lambda _: Reply("", 204),
    "a stream": lambda _: Reply(iter(["one", "two", "three"])),
    "the view raises": raising(Failure),
    "the view is stopped": raising(Timeout),
    "the process ends in the view": raising(SystemExit),
    "the view is cancelled": raising(asyncio.CancelledError),
    "the stream raises": raising_in_parts(Failure),
    "the stream is stopped": raising_in_parts(Timeout),
}
"""Neutral views by how they end."""


def serve_wsgi(app: Any, read: int | None = None, **fields: str) -> int:
    """Serve a request as a WSGI server does, and return the status, or 0.

    Args:
        app: The application.
        read: How many parts are sent before the client leaves; `None` for all.
        fields: Header fields.
    """
    environ = EnvironBuilder(headers=[*fields.items()]).get_environ()
    environ |= {"REMOTE_ADDR": PEER, "wsgi.file_wrapper": FileWrapper}
    status = 0

    def start(line: str, *_: object) -> Callable[[bytes], object]:
        nonlocal status
        status = int(line[:3])
        return lambda _: None

    body: Any = None
    with suppress(Timeout, Failure, SystemExit, asyncio.CancelledError):
        try:
            body = app(environ, start)
            for number, _ in enumerate(body):
                if number == read:
                    break
        finally:
            getattr(body, "close", int)()
    return status


LEAVES: Final = ("", "before", "after the start", "refused", "refused part", "cancelled")
"""How a client of an ASGI server leaves, if it does."""


async def serve_asgi(
    app: Any,
    leave: str = "",
    fields: Mapping[str, str] | None = None,
    gone: asyncio.Event | None = None,
) -> int:
    """Serve a request as an ASGI server does, in a task of its own; return the status, or 0."""
    gone = gone or asyncio.Event()
    if leave == "before":
        gone.set()
    status = sent = 0
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent, status
        status = message.get("status", status)
        sent += 1
        if (leave, sent) in {("refused", 1), ("refused part", 2)}:
            gone.set()
            raise OSError
        if (leave, sent) == ("after the start", 1):
            gone.set()
        if (leave, sent) == ("cancelled", 1):
            task.cancel()
        await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time

    headers = [(name.encode(), value.encode()) for name, value in (fields or {}).items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"testserver"), *headers],
        "client": (PEER, 50000),
        "server": ("testserver", 80),
        "state": {},
    }
    task = asyncio.ensure_future(app(scope, receive, send))
    await asyncio.wait([task])
    if not task.cancelled():
        # It is retrieved, or the loop would report it.
        task.exception()
    return status


async def serve_and_check(
    app: Any, limiter: penstock.Limiter, leave: str, fields: Mapping[str, str] | None = None
) -> None:
    """Serve a request, and check on its loop, which a server does not close, that it is over."""
    await serve_asgi(app, leave, fields)
    # After it, the calls of requests that were cancelled have been answered, in order.
    await penstock.AsyncLimiter(limiter).peek("Exports", PEER)
    assert await asyncio.to_thread(is_free, limiter), leave


def serve_each(app: Any, limiter: penstock.Limiter, *, is_wsgi: bool) -> None:
    """Serve requests that end in each way, and check that none holds a slot afterwards."""
    if is_wsgi:
        for read in (None, 0, 1):
            serve_wsgi(app, read)
            assert is_free(limiter), read
        return
    for leave in LEAVES:
        # The loop raises the exception of a process that ends.
        with suppress(SystemExit):
            asyncio.run(serve_and_check(app, limiter, leave))
        assert is_free(limiter), leave


@pytest.mark.parametrize("end", VIEWS)
@pytest.mark.parametrize("place", ["route", "default"])
def test_slot_is_returned(
    serve: Serve, driver: type[Driver], limiter: penstock.Limiter, place: str, end: str
) -> None:
    limits = limited("Exports", "Rate")
    is_default = place == "default"
    if is_default and not (driver.starts and driver.has_routes):
        pytest.skip("it has no defaults")
    route = Route("/", () if is_default else (limits,), VIEWS[end])
    site = serve(route, default=limits if is_default else None)
    serve_each(site.application(), limiter, is_wsgi=driver.is_wsgi)
    if end == "the view raises":
        site.pass_errors_on()
        serve_each(site.application(), limiter, is_wsgi=driver.is_wsgi)


@pytest.mark.parametrize("error", [Failure, Timeout])
@pytest.mark.parametrize("name", ["on_decision", "deduct_when", "cost_from_response"])
def test_slot_is_returned_if_a_callable_fails(
    serve: Serve,
    driver: type[Driver],
    limiter: penstock.Limiter,
    name: str,
    error: type[BaseException],
) -> None:
    def fail(*_: object) -> Any:
        raise error

    options: dict[str, Any] = {name: fail}
    of_site, of_limits = (options, {}) if name == "on_decision" else ({}, options)
    site = serve(Route("/", (limited("Exports", "Rate", **of_limits),)), **of_site)
    serve_each(site.application(), limiter, is_wsgi=driver.is_wsgi)


@pytest.mark.parametrize("error", [Failure, Timeout])
@pytest.mark.parametrize("name", ["id", "cost", "exempt_when"])
@only(lambda driver: driver.is_wsgi)
def test_slot_of_a_middleware_is_returned_if_a_callable_fails(
    serve: Serve, limiter: penstock.Limiter, name: str, error: type[BaseException]
) -> None:
    def fail(*_: object) -> Any:
        raise error

    site = serve(Route("/", (limited("Rate", **{name: fail}),)))
    app = penstock.wsgi.PenstockMiddleware(site.application(), limiter, limit="Exports")
    serve_each(app, limiter, is_wsgi=True)


def in_middleware(limiter: penstock.Limiter, view: Any, sockets: Any) -> Any:
    ours = Middleware(penstock.asgi.PenstockMiddleware, limiter=limiter, limit="Exports")
    return Starlette(routes=[HttpRoute("/", view), WebSocketRoute("/", sockets)], middleware=[ours])


def in_dependency(limiter: penstock.Limiter, view: Any, sockets: Any) -> Any:
    app = FastAPI(dependencies=[Depends(penstock.fastapi.RateLimit("Exports"))])
    penstock.fastapi.install(app, limiter)
    app.get("/")(view)
    app.websocket("/")(sockets)
    return app


STARLETTE: Final = {"middleware": in_middleware, "dependency": in_dependency}
"""Applications of Starlette and FastAPI with a slot for each request and each connection."""

TASKS: Final[dict[str, Callable[[], None]]] = {
    "is done": lambda: None,
    "raises": raising_function(Failure),
    "is stopped": raising_function(Timeout),
    "is cancelled": raising_function(asyncio.CancelledError),
}


async def no_socket(_: WebSocket) -> None:
    raise NotImplementedError


async def no_view(_: HttpRequest) -> PlainTextResponse:
    raise NotImplementedError


@pytest.mark.parametrize("end", TASKS)
@pytest.mark.parametrize("place", STARLETTE)
def test_slot_is_returned_if_a_task_follows_the_response(
    limiter: penstock.Limiter, place: str, end: str
) -> None:
    async def view(_: HttpRequest) -> PlainTextResponse:
        return PlainTextResponse("hello", background=BackgroundTask(TASKS[end]))

    app = STARLETTE[place](limiter, view, no_socket)
    serve_each(app, limiter, is_wsgi=False)


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


async def refuse(socket: WebSocket) -> None:
    await socket.close()


async def accept_and(error: type[BaseException], socket: WebSocket) -> None:
    await socket.accept()
    raise error


SOCKETS: Final[dict[str, Callable[[WebSocket], Any]]] = {
    "the client leaves": echo,
    "it is refused": refuse,
    "it raises": partial(accept_and, Failure),
    "it is stopped": partial(accept_and, Timeout),
    "it is cancelled": partial(accept_and, asyncio.CancelledError),
}
"""What serves a WebSocket, by how the connection ends."""


@pytest.mark.parametrize("end", SOCKETS)
@pytest.mark.parametrize("place", STARLETTE)
def test_slot_of_a_connection_is_returned(limiter: penstock.Limiter, place: str, end: str) -> None:
    during: list[int] = []

    async def serve(socket: WebSocket) -> None:
        during.append(limiter.peek("Exports", PEER).remaining)
        await SOCKETS[end](socket)

    app = STARLETTE[place](limiter, no_view, serve)
    client = TestClient(app, client=(PEER, 50000))
    with (
        suppress(Failure, Timeout, asyncio.CancelledError, CancelledError, WebSocketDisconnect),
        client.websocket_connect("/") as socket,
    ):
        if end == "the client leaves":
            socket.send_text("hello")
            assert socket.receive_text() == "hello"
    assert during == [0]
    assert is_free(limiter)


def after_request(app: flask.Flask, error: type[BaseException] | None) -> None:
    @app.after_request
    def replace(_: flask.Response) -> flask.Response:
        if error is None:
            return flask.Response("another")
        raise error


def on_close(app: flask.Flask, error: type[BaseException]) -> None:
    @app.after_request
    def close(response: flask.Response) -> flask.Response:
        response.call_on_close(raising_function(error))
        return response


FLASK: Final[dict[str, Callable[[flask.Flask], object]]] = {
    "the response is replaced": partial(after_request, error=None),
    "after_request raises": partial(after_request, error=Failure),
    "after_request is stopped": partial(after_request, error=Timeout),
    "the teardown raises": lambda app: app.teardown_request(raising_function(Failure)),
    "the teardown is stopped": lambda app: app.teardown_request(raising_function(Timeout)),
    "close raises": partial(on_close, error=Failure),
    "close is stopped": partial(on_close, error=Timeout),
    "the error handler raises": lambda app: app.register_error_handler(
        Failure, raising_function(ValueError)
    ),
}
"""What an application of Flask does around its views, by how a request ends."""


@pytest.mark.parametrize("end", FLASK)
@pytest.mark.parametrize("place", ["route", "default"])
@only(lambda driver: issubclass(driver, InFlask))
def test_slot_is_returned_if_flask_ends_the_request(
    serve: Serve, limiter: penstock.Limiter, place: str, end: str
) -> None:
    limits = limited("Exports")
    view = VIEWS["the view raises" if end == "the error handler raises" else "a stream"]
    is_default = place == "default"
    route = Route("/", () if is_default else (limits,), view)
    site = serve(route, default=limits if is_default else None)
    app = site.application()
    FLASK[end](app)
    serve_each(app, limiter, is_wsgi=True)


class Around:
    """A middleware of Django that acts if a request asks for it."""

    sync_capable = async_capable = True
    header: ClassVar[str]
    gate: ClassVar[asyncio.Event | None] = None

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if iscoroutinefunction(self.get_response):
            return self.serve(request)
        return self.act(request, self.get_response(request))

    async def serve(self, request: Any) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        return self.act(request, await self.get_response(request))

    def act(self, request: Any, response: Any) -> Any:
        todo = request.headers.get(self.header)
        if todo == "replace":
            return django.http.HttpResponse("another")
        if todo == "raise":
            raise Failure
        if todo == "stop":
            raise Timeout
        return response


class Outer(Around):
    header = "X-Outer"


class SyncOuter(Outer):
    async_capable = False


class Inner(Around):
    header = "X-Inner"


class Throttle(PenstockThrottle):
    limit = "Exports"
    id = by_address


def rest(reply: Callable[[], Any], *bases: type) -> Any:
    """Return a view of REST framework with a throttle."""

    def get(*_: object) -> Any:
        found = reply()
        if isinstance(found, django.http.HttpResponse):
            return rest_framework.response.Response({"found": 1})
        return found

    attributes = {"get": get, "authentication_classes": (), "throttle_classes": (Throttle,)}
    return type("Orders", (*bases, APIView), attributes).as_view()  # type: ignore[attr-defined]


def sync_view(reply: Callable[[], Any]) -> Any:
    return lambda _: reply()


def async_view(reply: Callable[[], Any]) -> Any:
    async def view(_: object) -> Any:
        return reply()

    return view


def file() -> Any:
    return django.http.FileResponse(BytesIO(b"file"))


def closing(error: type[BaseException]) -> Callable[[], Any]:
    def reply() -> Any:
        response = django.http.HttpResponse("hello")
        response._resource_closers.append(raising_function(error))  # type: ignore[attr-defined]
        return response

    return reply


PLACES: Final[dict[str, tuple[Callable[[Any], Any], bool, bool]]] = {
    "default": (sync_view, True, True),
    "default, async view": (async_view, True, True),
    "decorator": (lambda reply: penstock.django.limit("Exports")(sync_view(reply)), True, False),
    "decorator, async view": (
        lambda reply: penstock.django.limit("Exports")(async_view(reply)),
        True,
        False,
    ),
    "decorator alone": (
        lambda reply: penstock.django.limit("Exports")(sync_view(reply)),
        False,
        False,
    ),
    "decorator alone, async view": (
        lambda reply: penstock.django.limit("Exports")(async_view(reply)),
        False,
        False,
    ),
    "throttle": (rest, True, False),
    "mixin alone": (lambda reply: rest(reply, PenstockMixin), False, False),
}
"""Where a limit is in Django: the view, and whether there are our middleware and a default."""

DJANGO: Final[dict[str, tuple[Callable[[], Any], dict[str, str]]]] = {
    "a response": (lambda: django.http.HttpResponse("hello"), {}),
    "304": (lambda: django.http.HttpResponse("hello"), {"If-None-Match": "*"}),
    "a file": (file, {}),
    "a replaced file": (file, {"X-Outer": "replace"}),
    "a stream": (lambda: django.http.StreamingHttpResponse(iter([b"one", b"two"])), {}),
    "a replaced stream": (
        lambda: django.http.StreamingHttpResponse(iter([b"one"])),
        {"X-Outer": "replace"},
    ),
    "the view raises": (raising_function(Failure), {}),
    "the view is stopped": (raising_function(Timeout), {}),
    "close raises": (closing(Failure), {}),
    "close is stopped": (closing(Timeout), {}),
    **{
        f"{header}: {todo}": (lambda: django.http.HttpResponse("hello"), {header: todo})
        for header in ("X-Outer", "X-Inner")
        for todo in ("replace", "raise", "stop")
    },
}
"""A view of Django and the fields of its request, by how the request ends."""


def set_up(
    site: DjangoSite, limiter: penstock.Limiter, place: str, reply: Any, outer: type
) -> None:
    """Make a site with a limit in a place."""
    make, has_middleware, is_default = PLACES[place]
    site.route("", make(reply))
    ours = ["penstock.django.PenstockMiddleware"] if has_middleware else []
    around = [f"{__name__}.{kind.__name__}" for kind in (outer, Inner)]
    conditional = "django.middleware.http.ConditionalGetMiddleware"
    default = {"DEFAULT": "Exports"} if is_default else {}
    site.set(
        PENSTOCK={"LIMITER": limiter, **default},
        MIDDLEWARE=[conditional, around[0], *ours, around[1]],
    )


@pytest.mark.parametrize("end", DJANGO)
@pytest.mark.parametrize("place", PLACES)
def test_slot_is_returned_by_django(
    site: DjangoSite, limiter: penstock.Limiter, place: str, end: str
) -> None:
    reply, fields = DJANGO[end]
    _, has_middleware, _ = PLACES[place]
    if end == "X-Outer: stop" or (end == "X-Inner: stop" and not has_middleware):
        pytest.skip("Django closes nothing, and has no hook for it")
    set_up(site, limiter, place, reply, Outer)
    app = WSGIHandler()
    for read in (None, 0, 1):
        serve_wsgi(app, read, **fields)
        assert is_free(limiter), read


@pytest.mark.parametrize("outer", [Outer, SyncOuter], ids=["all", "sync outside"])
@pytest.mark.parametrize("end", DJANGO)
@pytest.mark.parametrize("place", PLACES)
def test_slot_is_returned_by_django_under_asgi(
    site: DjangoSite, limiter: penstock.Limiter, place: str, end: str, outer: type
) -> None:
    reply, fields = DJANGO[end]
    set_up(site, limiter, place, reply, outer)
    app = ASGIHandler()

    async def serve_each() -> None:
        for leave in LEAVES:
            await serve_and_check(app, limiter, leave, fields)

    asyncio.run(serve_each())


@pytest.mark.parametrize("end", ["a response", "a stream", "the view raises"])
@pytest.mark.parametrize("place", [place for place in PLACES if "async" in place])
def test_slot_that_a_cancelled_request_takes_is_returned_by_django(
    site: DjangoSite,
    limiter: penstock.Limiter,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    end: str,
) -> None:
    # Django goes on with a request whose task the server has cancelled.
    set_up(site, limiter, place, DJANGO[end][0], Outer)
    app = ASGIHandler()

    async def main() -> None:
        gate = asyncio.Event()
        monkeypatch.setattr(Outer, "gate", gate)
        task = asyncio.ensure_future(serve_asgi(app))
        await turn_over(20)
        of_server, of_django = (
            next(one for one in asyncio.all_tasks() if name in repr(one))
            for name in ("ASGIHandler.__call__", "process_request")
        )
        of_server.cancel()
        await task
        gate.set()
        await asyncio.wait([of_django])
        await penstock.AsyncLimiter(limiter).peek("Exports", PEER)
        assert await asyncio.to_thread(is_free, limiter)

    asyncio.run(main())


@pytest.mark.parametrize("outer", [Outer, SyncOuter], ids=["all", "sync outside"])
@pytest.mark.parametrize("place", PLACES)
def test_slot_is_held_while_the_view_of_a_client_that_left_runs(
    site: DjangoSite, limiter: penstock.Limiter, place: str, outer: type
) -> None:
    runs, goes_on = threading.Event(), threading.Event()

    def reply() -> Any:
        runs.set()
        assert goes_on.wait(30)
        return django.http.HttpResponse("hello")

    async def wait(_: object) -> Any:
        runs.set()
        await asyncio.Event().wait()

    is_async = "async" in place
    set_up(site, limiter, place, reply, outer)
    if is_async:
        # An awaiting view is cancelled.
        (pattern,) = site.patterns
        pattern.callback = penstock.django.limit("Exports")(wait) if "dec" in place else wait
    app = ASGIHandler()

    async def leave() -> tuple[int, int]:
        gone = asyncio.Event()
        task = asyncio.ensure_future(serve_asgi(app, gone=gone))
        await asyncio.to_thread(runs.wait, 30)
        during = limiter.peek("Exports", PEER).remaining
        gone.set()
        for _ in range(100):
            await asyncio.sleep(0)  # noqa: TID251  a turn of the loop, no time
        after = limiter.peek("Exports", PEER).remaining
        goes_on.set()
        await task
        return during, after

    during, after = asyncio.run(leave())
    assert during == 0
    # Over a server, a thread of the store returns the slot.
    if not (is_async and limiter.is_remote):
        assert after == int(is_async)
    assert is_free(limiter)
