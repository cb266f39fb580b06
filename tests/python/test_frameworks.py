"""The same traffic in every framework gives the same statuses and the same header fields.

Each framework serves the same small shop, in its own words, and is asked through a client of its
own. What they answer stands in one table, so that no adapter can differ from the others unseen.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import fastapi
import flask
import httpx
import litestar
import pytest
import quart
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import EnvironBuilder, run_wsgi_app

import penstock
import penstock.asgi
import penstock.django
import penstock.fastapi
import penstock.flask
import penstock.wsgi
from penstock.web.identity import by_header
from penstock.web.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LIMITS = """
Orders: {burst: 2, count: 1, period: 10s, id: ipAddress, description: orders}
Parcels: {burst: 10, count: 10, period: 10s, id: ipAddress}
Logins: {burst: 2, count: 1, period: 1m, id: ipAddress}
Accounts: {burst: 1, count: 1, period: 1m, id: regId}
Watched: {burst: 1, count: 1, period: 1m, mode: shadow, id: ipAddress}
"""
PROXIES = ["10.0.0.0/8"]
PEER = "10.0.0.1"


class Told(NamedTuple):
    """What a client is told: the status, and the fields that limits have put there."""

    status: int
    fields: dict[str, str]
    body: bytes


OURS = ("ratelimit-policy", "ratelimit", "retry-after", "cache-control", "link")
Headers: TypeAlias = "Mapping[str, str]"
Ask: TypeAlias = "Callable[[str, str, Headers], Told]"


def told(status: int, headers: Sequence[tuple[str, str]], body: bytes) -> Told:
    """Keep of a response what is compared; a field that comes twice is shown twice."""
    fields: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in OURS:
            fields[name.lower()] = (
                f"{fields[name.lower()]} | {value}" if name.lower() in fields else value
            )
    return Told(status, fields, body)


ANYTHING = "anything"
"""Stands for a field of which frameworks say what they will."""


class Case(NamedTuple):
    """One request of the story, and what everybody must answer."""

    path: str
    status: int
    ratelimit: str | None
    retry_after: str | None = None
    client: str = "203.0.113.7"
    method: str = "GET"
    headers: dict[str, str] = {}  # noqa: RUF012  a default of a tuple, read only


ORDERS: tuple[Case, ...] = (
    Case("/orders", 200, '"Orders";r=1;t=10'),
    Case("/orders", 200, '"Orders";r=0;t=10'),
    Case("/orders", 429, '"Orders";r=0;t=10', "10"),
    # Another client, who pretends to be the first.
    Case("/orders", 200, '"Orders";r=1;t=10', client="203.0.113.7, 203.0.113.8"),
    # IPv6 counts by /64, whatever the spelling.
    Case("/orders", 200, '"Orders";r=1;t=10', client="2001:DB8::1"),
    Case("/orders", 200, '"Orders";r=0;t=10', client="[2001:db8::ffff]:443"),
    Case("/orders", 429, '"Orders";r=0;t=10', "10", client="2001:db8:0:0:1::"),
    # An IPv4 address in IPv6's clothes.
    Case("/orders", 429, '"Orders";r=0;t=10', "10", client="::ffff:203.0.113.7"),
    # What cannot be read is nobody's, and shares no bucket with anybody.
    Case("/orders", 400, None, client="unknown"),
    Case("/orders", 400, None, client="1.2.3.4.5"),
    Case("/orders", 400, None, client="x" * 5000),
)
POLICIES: tuple[Case, ...] = (
    # Two limits, one decision: all or nothing.
    Case("/both", 200, '"Orders";r=1;t=10, "Parcels";r=9;t=1', client="198.51.100.1"),
    Case("/both", 200, '"Orders";r=0;t=10, "Parcels";r=8;t=1', client="198.51.100.1"),
    Case("/both", 429, '"Orders";r=0;t=10, "Parcels";r=8;t=1', "10", client="198.51.100.1"),
    # A cost.
    Case("/heavy", 200, '"Parcels";r=3;t=1', client="198.51.100.2"),
    Case("/heavy", 429, '"Parcels";r=3;t=1', "4", client="198.51.100.2"),
    # Only failed log-ins count.
    Case("/login", 200, '"Logins";r=1;t=60', method="POST", headers={"X-Password": "right"}),
    Case("/login", 401, '"Logins";r=1;t=60', method="POST", headers={"X-Password": "wrong"}),
    Case("/login", 401, '"Logins";r=0;t=60', method="POST", headers={"X-Password": "wrong"}),
    Case("/login", 429, '"Logins";r=0;t=60', "60", method="POST", headers={"X-Password": "right"}),
    # An id that does not fit, one that is missing, and two that are one.
    Case("/account", 400, None, headers={"X-Account": "12x"}),
    Case("/account", 400, None),
    Case("/account", 200, '"Accounts";r=0;t=60', headers={"X-Account": "12"}),
    Case("/account", 429, '"Accounts";r=0;t=60', "60", headers={"X-Account": "0012"}),
    # A limit that only watches.
    Case("/watched", 200, '"Watched";r=0;t=60', client="198.51.100.3"),
    Case("/watched", 200, '"Watched";r=0;t=60', client="198.51.100.3"),
    # Only one method counts.
    Case("/posts", 200, None, client="198.51.100.4"),
    Case("/posts", 200, '"Orders";r=1;t=10', client="198.51.100.4", method="POST"),
    # Who is exempt is told nothing of limits.
    Case("/exempt", 200, None, client="198.51.100.5", headers={"X-Exempt": "yes"}),
    Case("/exempt", 200, '"Orders";r=1;t=10', client="198.51.100.5"),
    # What a view broke is given back; Starlette makes this response outside of all middlewares.
    Case("/broken", 500, ANYTHING, client="198.51.100.6"),
    Case("/orders", 200, '"Orders";r=1;t=10', client="198.51.100.6"),
    # Not limited, not known.
    Case("/free", 200, None),
    Case("/nowhere", 404, None),
)


def failed(response: Any) -> bool:
    """Whether a log-in failed, in every framework's words."""
    return bool(response.status_code == 401)


def is_exempt(request: Any) -> bool:
    """Whether a request says that it is exempt, in every framework's words."""
    return "X-Exempt" in request.headers


# The shop's limits, by path, as they are written in every framework.
SHOP: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "/orders": (("Orders",), {}),
    "/both": (("Orders", "Parcels"), {}),
    "/heavy": (("Parcels",), {"cost": 7}),
    "/login": (("Logins",), {"deduct_when": failed}),
    "/account": (("Accounts",), {"id": by_header("X-Account")}),
    "/watched": (("Watched",), {}),
    "/posts": (("Orders",), {"methods": ["POST"]}),
    "/exempt": (("Orders",), {"exempt_when": is_exempt}),
    "/broken": (("Orders",), {"refund_on_error": True}),
}


def answer(path: str, request: Any) -> int:
    """Give the status with which the shop itself answers."""
    if path == "/broken":
        message = "the shop is broken"
        raise RuntimeError(message)
    if path == "/login":
        return 200 if request.headers.get("X-Password") == "right" else 401
    return 200


def name_of(path: str) -> str:
    return path.strip("/")


def copied(view: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of its own for each route: a limit belongs to the view it stands on."""
    return functools.wraps(view)(functools.partial(view))


def in_flask(limiter: penstock.Limiter) -> Ask:
    app = flask.Flask(__name__)
    extension = penstock.flask.Penstock(app, limiter, trusted_proxies=PROXIES)

    def serve() -> tuple[str, int]:
        return "hello", answer(flask.request.path, flask.request)

    for place, (limits, options) in SHOP.items():
        view = extension.limit(*limits, **options)(copied(serve))
        app.add_url_rule(place, name_of(place), view, methods=["GET", "POST"])
    app.add_url_rule("/free", "free", serve)
    return in_wsgi(app)


def in_wsgi(app: Any) -> Ask:
    def ask(method: str, path: str, headers: Headers) -> Told:
        seen: list[tuple[str, list[tuple[str, str]]]] = []
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "example.org",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": PEER,
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
        }
        body = b"".join(app(environ, lambda status, fields, _=None: seen.append((status, fields))))
        return told(int(seen[-1][0][:3]), seen[-1][1], body)

    return ask


def in_asgi(app: Any) -> Ask:
    def ask(method: str, path: str, headers: Headers) -> Told:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app, client=(PEER, 123), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, headers=headers)

        response = asyncio.run(send())
        return told(response.status_code, response.headers.multi_items(), response.content)

    return ask


def in_fastapi(limiter: penstock.Limiter) -> Ask:
    app = fastapi.FastAPI()
    penstock.fastapi.install(app, limiter, trusted_proxies=PROXIES)

    async def serve(request: fastapi.Request) -> PlainTextResponse:
        return PlainTextResponse("hello", answer(request.url.path, request))

    for place, (limits, options) in SHOP.items():
        depends = fastapi.Depends(penstock.fastapi.RateLimit(*limits, **options))
        app.api_route(place, methods=["GET", "POST"], dependencies=[depends])(serve)
    app.get("/free")(serve)
    return in_asgi(app)


def django_urls(view: Any) -> list[Any]:
    limited = [
        path(name_of(place), penstock.django.limit(*limits, **options)(view()))
        for place, (limits, options) in SHOP.items()
    ]
    return [*limited, path("free", view())]


def sync_view() -> Any:
    def serve(request: Any) -> HttpResponse:
        return HttpResponse("hello", status=answer(request.path, request))

    return serve


def async_view() -> Any:
    async def serve(request: Any) -> HttpResponse:
        return HttpResponse("hello", status=answer(request.path, request))

    return serve


class Urls:
    """What Django takes for a module of addresses."""

    def __init__(self, urlpatterns: list[Any]) -> None:
        self.urlpatterns = urlpatterns


def in_django(limiter: penstock.Limiter) -> Ask:
    urls, client = Urls(django_urls(sync_view)), Client(raise_request_exception=False)

    def ask(method: str, path: str, headers: Headers) -> Told:
        with override_settings(**django_settings(limiter, urls)):
            response = client.generic(method, path, headers=headers, REMOTE_ADDR=PEER)
            return told(response.status_code, [*response.headers.items()], response.content)

    return ask


def in_served_django(limiter: penstock.Limiter) -> Ask:
    """Give Django as a server calls it, for its test client keeps requests."""
    urls = Urls(django_urls(sync_view))

    def ask(method: str, path: str, headers: Headers) -> Told:
        with override_settings(**django_settings(limiter, urls)):
            return in_wsgi(WSGIHandler())(method, path, headers)

    return ask


def in_async_django(limiter: penstock.Limiter) -> Ask:
    urls = Urls(django_urls(async_view))

    def ask(method: str, path: str, headers: Headers) -> Told:
        with override_settings(**django_settings(limiter, urls)):
            return in_asgi(ASGIHandler())(method, path, headers)

    return ask


def django_settings(limiter: penstock.Limiter, urls: Urls) -> dict[str, Any]:
    return {
        "ALLOWED_HOSTS": ["*"],
        "ROOT_URLCONF": urls,
        "MIDDLEWARE": ["penstock.django.PenstockMiddleware"],
        "PENSTOCK": {"LIMITER": limiter, "TRUSTED_PROXIES": PROXIES},
    }


def in_any_wsgi(limiter: penstock.Limiter) -> Ask:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    middleware = penstock.wsgi.PenstockMiddleware
    return in_wsgi(middleware(app, limiter, limit="Orders", trusted_proxies=PROXIES))


def in_any_asgi(limiter: penstock.Limiter) -> Ask:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("hello")(scope, receive, send)

    middleware = penstock.asgi.PenstockMiddleware
    return in_asgi(middleware(app, limiter, limit="Orders", trusted_proxies=PROXIES))


def in_starlette(limiter: penstock.Limiter) -> Ask:
    async def orders(request: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/orders", orders)])
    app.add_middleware(
        penstock.asgi.PenstockMiddleware,
        limiter=limiter,
        limit="Orders",
        trusted_proxies=PROXIES,
    )
    return in_asgi(app)


def in_litestar(limiter: penstock.Limiter) -> Ask:
    @litestar.get("/orders")
    async def orders() -> str:
        return "hello"

    middleware = DefineMiddleware(
        penstock.asgi.PenstockMiddleware,
        limiter=limiter,
        limit="Orders",
        trusted_proxies=PROXIES,
    )
    return in_asgi(litestar.Litestar([orders], middleware=[middleware]))


def in_quart(limiter: penstock.Limiter) -> Ask:
    app = quart.Quart(__name__)

    async def orders() -> str:
        return "hello"

    app.add_url_rule("/orders", "orders", orders)
    app.asgi_app = penstock.asgi.PenstockMiddleware(  # type: ignore[method-assign]
        app.asgi_app, limiter, limit="Orders", trusted_proxies=PROXIES
    )
    return in_asgi(app)


# Django's apps are loaded by the fixture.
pytestmark = pytest.mark.usefixtures("site")

WITH_ROUTES = [in_flask, in_fastapi, in_django, in_async_django]
WITH_MIDDLEWARE = [in_any_wsgi, in_any_asgi, in_starlette, in_litestar, in_quart]


@pytest.fixture
def shop_limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    return penstock.Limiter(penstock.Limits.parse(LIMITS), clock=clock)


def tell(ask: Ask, story: Sequence[Case]) -> None:
    """Send the requests of a story, in order, and compare every answer whole."""
    for case in story:
        headers = {"X-Forwarded-For": case.client, **case.headers}
        status, fields, body = ask(case.method, case.path, headers)
        assert status == case.status, case
        assert fields.get("retry-after") == case.retry_after, case
        if case.ratelimit != ANYTHING:
            assert fields.get("ratelimit") == case.ratelimit, case
            assert ("ratelimit-policy" in fields) == (case.ratelimit is not None), case
        if status in (400, 429):
            assert fields["cache-control"] == "no-store", case
            assert json.loads(body)["status"] == status, case


@pytest.mark.parametrize("make", [*WITH_ROUTES, *WITH_MIDDLEWARE])
def test_every_framework_tells_the_same_of_one_limit(
    make: Callable[[penstock.Limiter], Ask], shop_limiter: penstock.Limiter
) -> None:
    tell(make(shop_limiter), ORDERS)


@pytest.mark.parametrize("make", WITH_ROUTES)
def test_every_framework_has_the_same_policies(
    make: Callable[[penstock.Limiter], Ask], shop_limiter: penstock.Limiter
) -> None:
    tell(make(shop_limiter), POLICIES)


@pytest.mark.parametrize("make", WITH_ROUTES)
def test_time_gives_the_same_back_everywhere(
    make: Callable[[penstock.Limiter], Ask],
    shop_limiter: penstock.Limiter,
    clock: penstock.ManualClock,
) -> None:
    ask = make(shop_limiter)
    tell(ask, ORDERS[:3])
    clock.advance_ns(10_000_000_000 - 1)
    tell(ask, [Case("/orders", 429, '"Orders";r=0;t=1', "1")])
    clock.advance_ns(1)
    tell(ask, [Case("/orders", 200, '"Orders";r=0;t=10')])


@pytest.mark.parametrize("make", WITH_ROUTES)
def test_whole_refusals_are_the_same(
    make: Callable[[penstock.Limiter], Ask], shop_limiter: penstock.Limiter
) -> None:
    ask = make(shop_limiter)
    answers = [ask("GET", "/orders", {"X-Forwarded-For": "203.0.113.7"}) for _ in range(3)]
    assert answers[-1].fields == {
        "ratelimit-policy": '"Orders";q=2;w=20',
        "ratelimit": '"Orders";r=0;t=10',
        "retry-after": "10",
        "cache-control": "no-store",
    }
    assert json.loads(answers[-1].body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": (
            "Too many orders for 203.0.113.7: at most 1 per 10 seconds, 2 at once. "
            "Come back at 2001-09-09 01:46:50 UTC."
        ),
        "violated-policies": ["Orders"],
    }


@pytest.mark.parametrize(
    "start",
    [
        penstock.flask.Penstock,
        lambda **options: penstock.fastapi.install(fastapi.FastAPI(), **options),
        lambda **options: penstock.wsgi.PenstockMiddleware(
            flask.Flask("x"), limit="9/s", **options
        ),
        lambda **options: penstock.asgi.PenstockMiddleware(
            quart.Quart("x"), limit="9/s", **options
        ),
    ],
    ids=["flask", "fastapi", "wsgi", "asgi"],
)
def test_misspelt_option_is_an_error_at_start_everywhere(start: Callable[..., object]) -> None:
    with pytest.raises(penstock.ConfigError, match="did you mean 'trusted_proxies'"):
        start(trusted_proxy="10.0.0.0/8")


@pytest.mark.parametrize(
    "make", [in_flask, in_served_django, in_fastapi, in_any_wsgi, in_any_asgi, in_starlette]
)
def test_served_request_leaves_nothing_to_the_garbage_collector(
    make: Callable[[penstock.Limiter], Ask], shop_limiter: penstock.Limiter
) -> None:
    ask = make(shop_limiter)
    headers = {"X-Forwarded-For": "203.0.113.7"}
    assert ask("GET", "/orders", headers).status == 200
    gc.collect()
    gc.disable()
    try:
        before = kept_outcomes()
        assert ask("GET", "/orders", headers).status == 200
        assert kept_outcomes() <= before
    finally:
        gc.enable()


def kept_outcomes() -> set[int]:
    return {id(kept) for kept in gc.get_objects() if type(kept) is Outcome}


@pytest.mark.parametrize(
    "start",
    [
        lambda **options: penstock.flask.Penstock(flask.Flask("x"), **options),
        lambda **options: penstock.wsgi.PenstockMiddleware(
            flask.Flask("x"), limit="9/s", **options
        ),
    ],
    ids=["flask", "wsgi"],
)
def test_refusal_that_has_to_be_awaited_is_an_error_at_start_where_nobody_awaits(
    start: Callable[..., object],
) -> None:
    async def refuse(_: object) -> str:
        return ""

    with pytest.raises(penstock.ConfigError, match="on_denied must be an ordinary function"):
        start(on_denied=refuse)


def flask_with(limiter: penstock.Limiter, processes: int) -> Any:
    app = flask.Flask(__name__)
    extension = penstock.flask.Penstock(app, limiter, expected_processes=processes)
    for name in ("one", "other"):
        app.add_url_rule(f"/{name}", name, extension.limit("Orders")(lambda: "hello"))
    return app


def wsgi_with(limiter: penstock.Limiter, processes: int) -> Any:
    app = flask.Flask(__name__)
    return penstock.wsgi.PenstockMiddleware(
        app, limiter, limit="Orders", expected_processes=processes
    )


@pytest.mark.parametrize("make", [flask_with, wsgi_with])
@pytest.mark.parametrize(
    ("several", "expected", "warnings"), [(True, 1, 1), (True, 4, 0), (False, 1, 0)]
)
def test_server_with_several_processes_is_told_once_that_each_counts_alone(
    make: Callable[[penstock.Limiter, int], Any],
    *,
    several: bool,
    expected: int,
    warnings: int,
    shop_limiter: penstock.Limiter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make(shop_limiter, expected)
    for place in ("/one", "/other", "/one"):
        environ = EnvironBuilder(place, multiprocess=several).get_environ()
        run_wsgi_app(app, environ | {"REMOTE_ADDR": PEER})
    assert len(caplog.messages) == warnings
    assert all("gunicorn --workers 1 --threads 8" in said for said in caplog.messages)
