"""The time that limits add to a request, for each framework.

There is no network: each application is called directly, as its server would call it, for 1,000
clients in turn, and no request is refused. The same view is served without limits, with penstock,
and with other rate limiters; the added time is the median over rounds of the difference. penstock
and flask-limiter send headers; packages that can disable them are measured both ways. What the
framework itself takes for two fixed header fields, or for a dependency that does nothing, is a row
of its own. The garbage collector is enabled, as in a server, so its work is included.
"""

from __future__ import annotations

import asyncio
import io
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import django
import fastapi
import flask
import flask_limiter
import flask_limiter.util
import harness
import pyrate_limiter
import slowapi
import slowapi.middleware
import slowapi.util
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
from fastapi_limiter.depends import RateLimiter
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import penstock
import penstock.asgi
import penstock.fastapi
import penstock.flask
import penstock.wsgi

sys.path.append(str(Path(__file__).parents[2] / "tests" / "python"))
from redis_servers import HOST, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    Wsgi: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
    Asgi: TypeAlias = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

# As long as those of the limit below.
FIELDS = {
    "RateLimit-Policy": '"Requests";q=1000000;w=3600',
    "RateLimit": '"Requests";r=999999;t=1',
}

# Large enough that no request is refused and no window ends during a run.
PLENTY = "1000000/hour"
LIMITS = {"Requests": PLENTY, "Others": "2000000/hour", "Open": "1000 in flight"}
TWO_RATES = ("Requests", "Others")
RATE_AND_SLOT = ("Requests", "Open")
CLIENTS = 1_000

settings.configure(
    ALLOWED_HOSTS=["*"],
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {"MAX_ENTRIES": 10 * CLIENTS},
        }
    },
    INSTALLED_APPS=["penstock.django", "rest_framework"],
    PENSTOCK={"LIMITS": LIMITS},
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_THROTTLE_RATES": {"Requests": "100/s"},
        "UNAUTHENTICATED_USER": None,
    },
    SECRET_KEY="not used",  # noqa: S106  nothing is signed here
    SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
    USE_TZ=True,
)
django.setup()

# These modules read the settings at import.
from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django_ratelimit.decorators import ratelimit  # noqa: E402
from django_smart_ratelimit import rate_limit  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.throttling import BaseThrottle, ScopedRateThrottle  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

import penstock.django  # noqa: E402
import penstock.django.drf  # noqa: E402


def environ(address: str) -> dict[str, Any]:
    """Return a request as a WSGI server passes it (PEP 3333)."""
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "SERVER_NAME": "example.org",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": address,
        "HTTP_HOST": "example.org",
        "HTTP_ACCEPT": "*/*",
        "HTTP_USER_AGENT": "bench",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def served(app: Wsgi, addresses: Sequence[str]) -> harness.Run:
    """Return a run that sends one request per address to a WSGI application."""
    seen: list[str] = []

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        seen.append(status)

    def run() -> None:
        seen.clear()
        for address in addresses:
            body = app(environ(address), start)
            for _ in body:
                pass
            close = getattr(body, "close", None)
            if close is not None:
                close()
        assert set(seen) == {"200 OK"}, set(seen)

    return run


def awaited(app: Asgi, addresses: Sequence[str], loop: asyncio.AbstractEventLoop) -> harness.Run:
    """Return a run that sends one request per address to an ASGI application."""
    seen: list[int] = []

    async def never() -> dict[str, Any]:
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        return await waiting

    def receiver() -> Callable[[], Awaitable[dict[str, Any]]]:
        whole = {"type": "http.request", "body": b"", "more_body": False}
        messages = iter([whole])

        async def receive() -> dict[str, Any]:
            # Django listens for a disconnect while it serves a request.
            return next(messages, None) or await never()

        return receive

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            seen.append(message["status"])

    async def serve() -> None:
        for address in addresses:
            await app(scope(address), receiver(), send)

    def run() -> None:
        seen.clear()
        loop.run_until_complete(serve())
        assert set(seen) == {200}, set(seen)

    return run


def scope(address: str) -> dict[str, Any]:
    """Return a request as an ASGI server passes it (ASGI 3)."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"example.org"), (b"accept", b"*/*"), (b"user-agent", b"bench")],
        "client": (address, 50_000),
        "server": ("example.org", 80),
        "state": {},
    }


def flask_app(decorate: Callable[[flask.Flask], Callable[[Any], Any]] | None = None) -> flask.Flask:
    """Return a Flask application with one view, optionally decorated."""
    app = flask.Flask("bench")

    def index() -> str:
        return "hello"

    app.add_url_rule("/", "index", index if decorate is None else decorate(app)(index))
    return app


def flask_penstock(app: flask.Flask, *names: str) -> Callable[[Any], Any]:
    return penstock.flask.Penstock(app, limits=LIMITS).limit(*(names or ["Requests"]))


def wsgi_penstock(app: Wsgi, *names: str) -> Wsgi:
    return penstock.wsgi.PenstockMiddleware(app, limits=LIMITS, limit=names)


def flask_fields(app: flask.Flask) -> Callable[[Any], Any]:
    @app.after_request
    def add(response: flask.Response) -> flask.Response:
        for name, value in FIELDS.items():
            response.headers.add(name, value)
        return response

    return lambda view: view


def with_fields(app: Wsgi) -> Wsgi:
    """Return a WSGI middleware that adds the fields."""

    def serve(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        def start_with_fields(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, *FIELDS.items()], *rest)

        return app(environ, start_with_fields)

    return serve


def flask_limiter_of(
    *, headers: bool, store: str = "memory://"
) -> Callable[[flask.Flask], Callable[[Any], Any]]:
    def decorate(app: flask.Flask) -> Callable[[Any], Any]:
        limiter = flask_limiter.Limiter(
            flask_limiter.util.get_remote_address,
            app=app,
            storage_uri=store,
            headers_enabled=headers,
        )
        return limiter.limit(PLENTY)

    return decorate


def in_flask(table: harness.Table, addresses: Sequence[str], rounds: int) -> None:
    bare = flask_app()
    took = harness.alternate(
        {
            "bare": served(bare, addresses),
            "two fields": served(flask_app(flask_fields), addresses),
            "middleware, two fields": served(with_fields(bare.wsgi_app), addresses),
            "penstock": served(flask_app(flask_penstock), addresses),
            "middleware": served(wsgi_penstock(bare.wsgi_app, "Requests"), addresses),
            "two rates": served(flask_app(lambda app: flask_penstock(app, *TWO_RATES)), addresses),
            "rate and slot": served(
                flask_app(lambda app: flask_penstock(app, *RATE_AND_SLOT)), addresses
            ),
            "middleware, two rates": served(wsgi_penstock(bare.wsgi_app, *TWO_RATES), addresses),
            "middleware, rate and slot": served(
                wsgi_penstock(bare.wsgi_app, *RATE_AND_SLOT), addresses
            ),
            "flask-limiter": served(flask_app(flask_limiter_of(headers=False)), addresses),
            "flask-limiter, headers": served(flask_app(flask_limiter_of(headers=True)), addresses),
        },
        len(addresses),
        rounds,
        collects=True,
    )
    add_times(table, "Flask", took)
    for_users(table, "Flask", took, "penstock", {"flask-limiter, headers": "flask-limiter"})
    for_users(table, "any WSGI application", took, "middleware")
    see_added(table, "Flask, two fields", took, "two fields")
    see_added(table, "WSGI, two fields", took, "middleware, two fields")
    check_added(table, "Flask, decorator and headers", took, "penstock", 8)
    check_added(table, "WSGI, middleware and headers", took, "middleware", 2.5)
    check_slots(table, "Flask", took)
    check_slots(table, "WSGI", took, "middleware, ")
    check_peer(table, "Flask, flask-limiter with headers", took, "flask-limiter, headers", 12)


def hello(request: object) -> HttpResponse:
    return HttpResponse("hello")


class Hello(APIView):
    def get(self, _: object) -> Response:
        return Response("hello")


class PenstockHello(Hello):
    throttle_classes = (penstock.django.drf.PenstockThrottle,)
    throttle_scope = "Requests"


class ScopedHello(Hello):
    throttle_classes = (ScopedRateThrottle,)
    throttle_scope = "Requests"


class IdleThrottle(BaseThrottle):
    def allow_request(self, *_: object) -> bool:
        return True


class IdleHello(Hello):
    throttle_classes = (IdleThrottle,)


def hello_with_fields(request: object) -> HttpResponse:
    response = HttpResponse("hello")
    for name, value in FIELDS.items():
        response.headers[name] = value
    return response


def routed(app: Wsgi, addresses: Sequence[str], view: Callable[..., Any]) -> harness.Run:
    """Return a run for a view that is alone in its project.

    Django compares a URL with the routes in order: a later one would take longer to find.
    """
    urls = (path("", view),)
    serve = served(app, addresses)

    def run() -> None:
        settings.ROOT_URLCONF = urls
        serve()

    return run


def in_django(table: harness.Table, addresses: Sequence[str], rounds: int) -> None:
    app = WSGIHandler()
    views = {
        "bare": hello,
        "two fields": hello_with_fields,
        "penstock": penstock.django.limit("Requests")(hello),
        "two rates": penstock.django.limit(*TWO_RATES)(hello),
        "rate and slot": penstock.django.limit(*RATE_AND_SLOT)(hello),
        "django-ratelimit": ratelimit(key="ip", rate="1000000/h")(hello),
    }
    runs = {name: routed(app, addresses, view) for name, view in views.items()}
    # Python 3.11 gives attributes room by what the first objects of a class have, which are the
    # requests of a single project on a server.
    for view in reversed(views.values()):
        routed(app, addresses[:1], view)()
    took = harness.alternate(runs, len(addresses), rounds, collects=True)
    add_times(table, "Django", took)
    without = {"django-ratelimit": "django-ratelimit, without headers"}
    for_users(table, "Django", took, "penstock", without)
    see_added(table, "Django, two fields", took, "two fields")
    check_added(table, "Django, decorator and headers", took, "penstock", 8)
    check_slots(table, "Django", took)
    check_peer(table, "Django, django-ratelimit (no headers)", took, "django-ratelimit", 6)
    classes = {
        "bare": Hello,
        "idle throttle": IdleHello,
        "penstock": PenstockHello,
        "DRF's own": ScopedHello,
    }
    runs = {name: routed(app, addresses, each.as_view()) for name, each in classes.items()}
    took = harness.alternate(runs, len(addresses), rounds, collects=True)
    add_times(table, "DRF", took)
    without = {"DRF's own": "its own throttle, without headers"}
    for_users(table, "REST framework", took, "penstock", without)
    see_added(table, "DRF, throttle that does nothing", took, "idle throttle")
    check_added(table, "DRF, throttle", took, "penstock", 8, floor="idle throttle")
    check_peer(table, "DRF, its own throttle", took, "DRF's own", 3.5)


async def async_hello(request: object) -> HttpResponse:
    return HttpResponse("hello")


def in_async_django(
    table: harness.Table,
    addresses: Sequence[str],
    rounds: int,
    loop: asyncio.AbstractEventLoop,
) -> None:
    app = ASGIHandler()
    views = {
        "bare": async_hello,
        "penstock": penstock.django.limit("Requests")(async_hello),
        "smart-ratelimit": rate_limit(key="ip", rate="1000000/h", backend="memory")(async_hello),
    }

    def routed(view: Callable[..., Any]) -> harness.Run:
        urls, serve = (path("", view),), awaited(app, addresses, loop)

        def run() -> None:
            settings.ROOT_URLCONF = urls
            serve()

        return run

    runs = {name: routed(view) for name, view in views.items()}
    took = harness.alternate(runs, len(addresses), rounds, collects=True)
    add_times(table, "Django, async view", took)
    for_users(
        table,
        "Django (async view)",
        took,
        "penstock",
        {"smart-ratelimit": "django-smart-ratelimit"},
    )
    see_added(table, "Django, async view, decorator and headers", took, "penstock")


def in_stores(table: harness.Table, addresses: Sequence[str], rounds: int) -> None:
    """Measure a request in Flask with stores that several processes share."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder)).start()
        redis = f"redis://{HOST}:{server.port}"

        def limited_by(store: str) -> Callable[[flask.Flask], Callable[[Any], Any]]:
            limits = {"Requests": PLENTY}
            return lambda app: penstock.flask.Penstock(app, limits=limits, store=store).limit(
                "Requests"
            )

        apps = {
            "bare": flask_app(),
            "memory": flask_app(flask_penstock),
            "shm": flask_app(limited_by(f"shm://{folder}/table")),
            "Redis": flask_app(limited_by(f"{redis}?deadline=10s")),
            "flask-limiter, Redis": flask_app(flask_limiter_of(headers=True, store=redis)),
        }
        try:
            runs = {name: served(app, addresses) for name, app in apps.items()}
            took = harness.alternate(runs, len(addresses), rounds, collects=True)
        finally:
            server.stop()
    add_times(table, "Flask, by store", took)
    for_users(table, "Flask, limits in shared memory", took, "shm")
    others = {"flask-limiter, Redis": "flask-limiter"}
    for_users(table, "Flask, limits on a Redis server", took, "Redis", others)
    for name in ("shm", "Redis"):
        see_added(table, f"Flask, {name}", took, name)


def with_encoded_fields(app: Asgi) -> Asgi:
    """Return an ASGI middleware that adds the fields."""
    fields = [(name.lower().encode(), value.encode()) for name, value in FIELDS.items()]

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        async def send_with_fields(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *fields]}
            await send(message)

        await app(scope, receive, send_with_fields)

    return serve


async def greet(request: object) -> PlainTextResponse:
    return PlainTextResponse("hello")


def slowapi_app(*, headers: bool) -> Starlette:
    """Return a Starlette application with slowapi, whose decorator needs a `request` argument."""
    limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, headers_enabled=headers)

    @limiter.limit(PLENTY)
    async def limited(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", limited)])
    app.state.limiter = limiter
    return app


def asgi_penstock(app: Asgi, names: Sequence[str]) -> Asgi:
    return penstock.asgi.PenstockMiddleware(app, limits=LIMITS, limit=names)


def in_starlette(
    table: harness.Table,
    addresses: Sequence[str],
    rounds: int,
    loop: asyncio.AbstractEventLoop,
) -> None:
    bare = Starlette(routes=[Route("/", greet)])
    limited = asgi_penstock(bare, ["Requests"])
    took = harness.alternate(
        {
            "bare": awaited(bare, addresses, loop),
            "two fields": awaited(with_encoded_fields(bare), addresses, loop),
            "penstock": awaited(limited, addresses, loop),
            "two rates": awaited(asgi_penstock(bare, TWO_RATES), addresses, loop),
            "rate and slot": awaited(asgi_penstock(bare, RATE_AND_SLOT), addresses, loop),
            "slowapi": awaited(slowapi_app(headers=False), addresses, loop),
            "slowapi, headers": awaited(slowapi_app(headers=True), addresses, loop),
        },
        len(addresses),
        rounds,
        collects=True,
    )
    add_times(table, "Starlette", took)
    slow = {"slowapi, headers": "slowapi"}
    for_users(table, "Starlette and any ASGI application", took, "penstock", slow)
    see_added(table, "ASGI, two fields", took, "two fields")
    check_added(table, "ASGI, middleware and headers", took, "penstock", 2.5)
    check_slots(table, "ASGI", took)
    check_peer(table, "Starlette, slowapi with headers", took, "slowapi, headers", 12)


def fastapi_slowapi() -> fastapi.FastAPI:
    """Return a FastAPI application with slowapi, whose decorator needs a `request` argument."""
    app = fastapi.FastAPI()
    limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, headers_enabled=True)
    app.state.limiter = limiter

    @app.get("/")
    @limiter.limit(PLENTY)
    async def limited(request: fastapi.Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return app


def fastapi_limiter_app(view: Callable[..., Any]) -> fastapi.FastAPI:
    """Return a FastAPI application with fastapi-limiter; all clients share its bucket."""
    rate = pyrate_limiter.Rate(1_000_000, pyrate_limiter.Duration.HOUR)
    limiter = RateLimiter(pyrate_limiter.Limiter(rate))
    app = fastapi.FastAPI()
    app.get("/", dependencies=[fastapi.Depends(limiter)])(view)
    return app


def in_fastapi(
    table: harness.Table,
    addresses: Sequence[str],
    rounds: int,
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def hello() -> PlainTextResponse:
        return PlainTextResponse("hello")

    async def idle(_: fastapi.Request) -> None:
        """Return nothing."""

    bare, idling = fastapi.FastAPI(), fastapi.FastAPI()
    bare.get("/")(hello)
    idling.get("/", dependencies=[fastapi.Depends(idle)])(hello)

    def limited(*names: str) -> fastapi.FastAPI:
        app = fastapi.FastAPI()
        penstock.fastapi.install(app, limits=LIMITS)
        dependency = fastapi.Depends(penstock.fastapi.RateLimit(*names))
        app.get("/", dependencies=[dependency])(hello)
        return app

    apps = {
        "bare": bare,
        "idle dependency": idling,
        "penstock": limited("Requests"),
        "two rates": limited(*TWO_RATES),
        "rate and slot": limited(*RATE_AND_SLOT),
        "slowapi": fastapi_slowapi(),
        "fastapi-limiter": fastapi_limiter_app(hello),
    }
    runs = {name: awaited(app, addresses, loop) for name, app in apps.items()}
    took = harness.alternate(runs, len(addresses), rounds, collects=True)
    add_times(table, "FastAPI", took)
    without = {"slowapi": "slowapi", "fastapi-limiter": "fastapi-limiter, without headers"}
    for_users(table, "FastAPI", took, "penstock", without)
    see_added(table, "FastAPI, dependency that does nothing", took, "idle dependency")
    check_added(table, "FastAPI, dependency and headers", took, "penstock", 9)
    check_slots(table, "FastAPI", took)
    check_peer(table, "FastAPI, slowapi with headers", took, "slowapi", 4)
    check_peer(table, "FastAPI, fastapi-limiter (no headers)", took, "fastapi-limiter", 3)


def for_users(
    table: harness.Table,
    framework: str,
    took: dict[str, list[float]],
    name: str,
    peers: Mapping[str, str] = {},
) -> None:
    """Add the row of a framework for the documentation."""
    table.steady(took, "bare")
    without = harness.shown_time(harness.median(took, "bare"))
    others = ", ".join(
        f"{harness.shown_time(harness.over(took, peer, 'bare'))} ({shown})"
        for peer, shown in peers.items()
    )
    what = f"added to a request in {framework}, which takes {without} without a limit"
    table.for_users.append((what, harness.shown_time(harness.over(took, name, "bare")), others))


def add_times(table: harness.Table, framework: str, took: dict[str, list[float]]) -> None:
    """Add a row with the time of each variant."""
    for name in took:
        table.seen("", f"{framework}, {name}", f"{harness.median(took, name) / 1000:.1f} us")


def see_added(table: harness.Table, what: str, took: dict[str, list[float]], name: str) -> None:
    """Add a row with the time that a variant adds to a request."""
    table.seen("", f"{what}, added", f"{harness.over(took, name, 'bare') / 1000:.2f} us")


def check_added(
    table: harness.Table,
    what: str,
    took: dict[str, list[float]],
    name: str,
    maximum: float,
    *,
    floor: str = "bare",
) -> None:
    """Compare the time that penstock adds to `floor` with its target."""
    added = harness.over(took, name, floor) / 1000
    sides = harness.sides(took, name, floor=floor, unit="us")
    table.at_most("1", f"{what}, added", maximum, added, " us", sides=sides)


def check_slots(
    table: harness.Table, adapter: str, took: dict[str, list[float]], prefix: str = ""
) -> None:
    """Compare what a rate with a slot adds to a request with what two rates add."""
    one, other = f"{prefix}rate and slot", f"{prefix}two rates"
    ratio = harness.times_added(took, one, other, "bare")
    sides = harness.sides(took, one, floor="bare", unit="us")
    table.at_most(
        "17", f"{adapter}, a rate and a slot against two rates", 1.5, ratio, " x", sides=sides
    )


def check_peer(
    table: harness.Table, what: str, took: dict[str, list[float]], peer: str, minimum: float
) -> None:
    """Compare the time that another package adds with the time that penstock adds."""
    sides = harness.sides(took, "penstock", floor="bare", peers=[peer], unit="us")
    ratio = harness.times_added(took, peer, "penstock", "bare")
    table.at_least("2", f"{what}, adds", minimum, ratio, " x", sides=sides)


def main() -> None:
    harness.stay_on_one_core()
    short = harness.quick()
    table = harness.Table(
        "Added to one request, no network, 1,000 clients", is_conclusive=not short
    )
    addresses = [f"198.51.{number // 250}.{number % 250 + 1}" for number in range(CLIENTS)]
    random.Random(1).shuffle(addresses)
    rounds = 3 if short else 31
    addresses = addresses[:50] if short else addresses
    in_flask(table, addresses, rounds)
    in_django(table, addresses, rounds)
    in_stores(table, addresses[:200], rounds)
    loop = asyncio.new_event_loop()
    try:
        in_async_django(table, addresses, rounds, loop)
        in_starlette(table, addresses, rounds, loop)
        in_fastapi(table, addresses, rounds, loop)
    finally:
        loop.close()
    table.show()


if __name__ == "__main__":
    main()
