"""The functions that a request calls, in order, are those in a file.

`ARCHITECTURE.md` shows those of Flask. An id that the peer's address tells takes one look-up; a
limit with an option that has to read the request, such as `methods`, takes `RouteLimits.decide`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi
import flask
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from fastapi.responses import PlainTextResponse
from hello import hello_asgi, hello_wsgi
from rest_framework.views import APIView
from werkzeug.test import create_environ

import penstock
import penstock.asgi
import penstock.django
import penstock.fastapi
import penstock.flask
import penstock.wsgi
from penstock.django.drf import PenstockThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import DjangoSite

    Serve = Callable[[], None]

PACKAGE = str(Path(penstock.__file__).parent)
FUNCTIONS = "tests/data/functions_of_requests.json"
# The checks of the set-up look at the first requests.
CHECKED = 1000
LIMITS = {"Requests": "1000000/hour", "Open": "100 in flight"}


def serve_wsgi(app: Any) -> Serve:
    environ = create_environ("/", environ_base={"REMOTE_ADDR": "203.0.113.7"})

    def serve() -> None:
        body = app({**environ}, lambda *_: None)
        assert b"".join(body) == b"hello"
        getattr(body, "close", int)()

    return serve


def serve_asgi(app: Any, loop: asyncio.AbstractEventLoop) -> Serve:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "client": ("203.0.113.7", 50000),
        "server": ("localhost", 80),
        "scheme": "http",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: object) -> None:
        pass

    return lambda: loop.run_until_complete(app({**scope, "state": {}}, receive, send))


def wsgi(**options: Any) -> Callable[[DjangoSite, asyncio.AbstractEventLoop], Serve]:
    return lambda *_: serve_wsgi(
        penstock.wsgi.PenstockMiddleware(hello_wsgi, limits=LIMITS, **options)
    )


def in_asgi(_: DjangoSite, loop: asyncio.AbstractEventLoop) -> Serve:
    return serve_asgi(
        penstock.asgi.PenstockMiddleware(hello_asgi, limits=LIMITS, limit="Requests"), loop
    )


def in_flask(_: DjangoSite, __: asyncio.AbstractEventLoop) -> Serve:
    app = flask.Flask("shop")
    limits = penstock.flask.Penstock(app, limits=LIMITS)
    app.get("/")(limits.limit("Requests")(lambda: "hello"))
    return serve_wsgi(app)


def in_fastapi(_: DjangoSite, loop: asyncio.AbstractEventLoop) -> Serve:
    app = fastapi.FastAPI()
    penstock.fastapi.install(app, limits=LIMITS)
    limit = fastapi.Depends(penstock.fastapi.RateLimit("Requests"))

    @app.get("/", dependencies=[limit])
    async def hello() -> PlainTextResponse:
        return PlainTextResponse("hello")

    return serve_asgi(app, loop)


def in_django(site: DjangoSite, _: asyncio.AbstractEventLoop) -> Serve:
    site.set(PENSTOCK={"LIMITS": LIMITS})
    site.route("", penstock.django.limit("Requests")(lambda _: HttpResponse("hello")))
    return serve_wsgi(WSGIHandler())


def in_rest_framework(site: DjangoSite, _: asyncio.AbstractEventLoop) -> Serve:
    class Hello(APIView):
        throttle_scope = "Requests"

        def get(self, _: object) -> HttpResponse:
            return HttpResponse("hello")

    site.set(PENSTOCK={"LIMITS": LIMITS})
    classes: dict[str, Any] = {"authentication_classes": [], "permission_classes": []}
    site.route("", Hello.as_view(throttle_classes=[PenstockThrottle], **classes))
    return serve_wsgi(WSGIHandler())


SITES = {
    "WSGI": wsgi(limit="Requests"),
    "WSGI, `methods=`": wsgi(limit="Requests", methods=["GET"]),
    "WSGI, a rate and slots": wsgi(limit=["Requests", "Open"]),
    "ASGI": in_asgi,
    "Flask": in_flask,
    "FastAPI": in_fastapi,
    "Django": in_django,
    "REST framework": in_rest_framework,
}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def functions_called(serve: Serve) -> list[str]:
    """Return the functions of the package and of the core that a request calls, in order."""
    called: list[str] = []
    # A generator and a coroutine are called again each time they continue.
    frames: set[Any] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_qualname.rpartition("<locals>.")[2]
            # Newer releases of Python call no function for a comprehension.
            if frame not in frames and not name.startswith("<"):
                frames.add(frame)
                called.append(name)
        elif event == "c_call":
            # Functions have a module; of a method, its object's class has one.
            module = argument.__module__ or type(argument.__self__).__module__
            if module.startswith("penstock"):
                called.append(argument.__qualname__)

    sys.setprofile(note)
    try:
        serve()
    finally:
        sys.setprofile(None)
    return called


def functions_in_file(root: Path) -> dict[str, list[str]]:
    named: dict[str, list[str]] = json.loads((root / FUNCTIONS).read_text(encoding="utf-8"))
    return named


def test_page_names_the_functions_of_flask(root: Path) -> None:
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.partition("## The functions of a request")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+? \| (`\w.*) \|$", table, re.MULTILINE)
    assert re.findall(r"`([^`]+)`", " ".join(rows)) == functions_in_file(root)["Flask"]


def test_file_has_every_site(root: Path) -> None:
    assert list(functions_in_file(root)) == list(SITES)


@pytest.mark.parametrize("name", SITES)
def test_request_calls_what_the_file_names(
    name: str, site: DjangoSite, loop: asyncio.AbstractEventLoop, root: Path
) -> None:
    serve = SITES[name](site, loop)
    for _ in range(CHECKED + 1):
        serve()
    assert functions_called(serve) == functions_in_file(root)[name]
