"""Errors at startup, and objects left behind by requests."""

from __future__ import annotations

import gc
import glob
import tracemalloc
import weakref
from pathlib import Path
from tracemalloc import Filter
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from adapters.case import Route, limited
from adapters.drivers import InRestFramework, only, with_routes
from guards import PEER
from werkzeug.test import create_environ

import penstock
from penstock.adapter import Outcome
from penstock.identity import by_address, by_user, per_route, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.case import Driver
    from adapters.conftest import Serve

PACKAGE = glob.escape(str(Path(penstock.__file__).parent))
LIMITED = Route("/", (limited("PerAddress"),))


@only(lambda driver: driver.starts)
@pytest.mark.parametrize(
    "options",
    [
        {"trusted_proxy": "10.0.0.0/8"},
        {"hops": -1},
        {"on_store_error": {"Unknown": "deny"}},
        {"limits": {"A": "1/minute"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_wrong_option_is_an_error_at_start(serve: Serve, options: dict[str, Any]) -> None:
    with pytest.raises(penstock.ConfigError):
        serve(LIMITED, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "ip"},
        {"cost": -1},
        {"keep": -1},
        {"mode": "watch"},
        {"methods": ["GETT "]},
        {"methods": ["PSOT"]},
        {"methods": "GET, PSOT"},
        {"methods": []},
    ],
    ids=str,
)
def test_wrong_option_of_a_limit_is_an_error_where_it_is_written(
    serve: Serve, options: dict[str, Any]
) -> None:
    hint = r"did you mean '(POST|GET)'" if options.get("methods") else r"found|has no option"
    with pytest.raises(penstock.ConfigError, match=hint):
        serve(Route("/", (limited("PerAddress", **options),)))


@pytest.mark.parametrize("method", ["PROPFIND", "query", "VERSION-CONTROL", "PURGE"])
def test_every_registered_method_can_be_limited(serve: Serve, method: str) -> None:
    app = serve(Route("/", (limited("PerAddress", methods=[method]),)))
    assert app.ask().limit_fields == {}


class Start(Protocol):
    """Starts an application, and requests a page."""

    def __call__(self, *routes: Route, **options: Any) -> object: ...


@pytest.fixture
def start(serve: Serve) -> Start:
    """Starts an application as its server or its command `check` does."""

    def start(*routes: Route, **options: Any) -> object:
        return serve(*routes, **options).start()

    return start


@with_routes
def test_every_process_names_the_limits_of_views_alike(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    """Whichever route each of them serves first."""
    routes = [Route(f"/{n}", (limited(f"{n}/minute"),), name="orders") for n in (1, 2)]
    named = []
    for paths in (("/1", "/2"), ("/2", "/1")):
        app = serve(*routes, limiter=penstock.Limiter({}, clock=clock))
        named.append({path: app.ask(path).header("RateLimit-Policy") for path in paths})
    assert named[0] == named[1]


@with_routes
@pytest.mark.parametrize("other", ["2m", ["1m", "2m"]])
def test_routes_that_block_for_different_times_are_an_error_at_start(
    start: Start, other: Any
) -> None:
    one = Route("/one", (limited("PerAddress", block_for="1m"),))
    two = Route("/two", (limited("PerAddress", block_for=other),))
    with pytest.raises(penstock.ConfigError, match=r"PerAddress: .*same block_for"):
        start(one, two)


def test_route_that_keeps_too_much_is_an_error_at_start(start: Start) -> None:
    expected = "PerUser: cost and keep together must be at most 5, found 2 and 4"
    with pytest.raises(penstock.ConfigError, match=expected):
        start(Route("/", (limited("PerUser", cost=2, keep=4),)))


def test_shared_bucket_that_is_no_id_of_a_limit_is_an_error_at_start(start: Start) -> None:
    with pytest.raises(penstock.ConfigError, match="unknown"):
        start(Route("/", (limited("Orders"),)), on_missing_id=shared("unknown"))


@with_routes
def test_routes_that_block_alike_are_right(serve: Serve) -> None:
    blocking = limited("PerAddress", block_for=["1m", "2m"])
    app = serve(Route("/one", (blocking,)), Route("/two", (blocking,)))
    assert (app.statuses(1, "/one"), app.statuses(1, "/two")) == ([200], [200])


def test_limit_with_the_name_of_a_block_is_an_error_at_start(
    start: Start, clock: penstock.ManualClock
) -> None:
    limiter = penstock.Limiter({"A": "2/minute", "A_blocked": "9/minute"}, clock=clock)
    with pytest.raises(penstock.ConfigError, match=r"A: .* name A_blocked"):
        start(Route("/", (limited("A", block_for="1m"),)), limiter=limiter)


@with_routes
@pytest.mark.parametrize("names", [["login", "login_blocked"], ["login_blocked", "login"]])
def test_text_and_block_of_views_with_similar_names_do_not_clash(
    serve: Serve, names: list[str]
) -> None:
    limits = {"login": limited("1/hour", block_for="2h"), "login_blocked": limited("2/hour")}
    routes = [Route(f"/{name}", (limits[name],), name=name) for name in names]
    app = serve(*routes)
    for name in names:
        app.ask(f"/{name}")
    assert app.statuses(2, "/login_blocked") == [200, 429]
    refused = app.ask("/login")
    assert (refused.status, refused.header("Retry-After")) == (429, "7200")


# A throttle without a limit has that of the view's scope.
@only(lambda driver: driver is not InRestFramework)
def test_limit_without_a_name_is_an_error_where_it_is_written(serve: Serve) -> None:
    with pytest.raises(penstock.ConfigError):
        serve(Route("/", (limited(),)))


@only(lambda driver: not driver.has_routes)
@pytest.mark.parametrize(
    ("name", "options"), [("Unknown", {}), ("PerAddress", {"id": per_route()})]
)
def test_limit_of_a_middleware_is_loaded_and_needs_no_route(
    serve: Serve, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(penstock.ConfigError):
        serve(Route("/", (limited(name, **options),)))


@only(lambda driver: not driver.has_routes)
def test_text_of_a_middleware_is_a_limit_named_default(serve: Serve) -> None:
    app = serve(Route("/", (limited("5/minute"),)))
    assert app.ask().header("RateLimit-Policy") == '"default";q=5;w=60'


@only(lambda driver: driver.starts and not driver.is_async)
def test_on_denied_that_must_be_awaited_is_an_error_in_synchronous_adapters(serve: Serve) -> None:
    async def refuse(_: object) -> str:
        return ""

    with pytest.raises(penstock.ConfigError):
        serve(LIMITED, on_denied=refuse)


def test_adapter_may_make_its_limiter(serve: Serve, clock: penstock.ManualClock) -> None:
    app = serve(Route("/", (limited("A"),)), limiter=None, limits={"A": "1/minute"}, clock=clock)
    assert app.statuses(2) == [200, 429]


def test_adapter_takes_the_url_of_a_shared_store(
    serve: Serve, clock: penstock.ManualClock, tmp_path: Path
) -> None:
    limits, store = {"A": "2/minute"}, f"shm://{tmp_path}/store?capacity=100"
    options: dict[str, Any] = {"limits": limits, "store": store, "clock": clock}
    route = Route("/", (limited("A", id=shared("ada")),))
    # Like two worker processes and another program.
    assert serve(route, limiter=None, **options).statuses(1) == [200]
    with penstock.Limiter(limits, store=store, clock=clock) as limiter:
        assert limiter.peek("A", "ada").remaining == 1
        limiter.spend("A", "ada")
    assert serve(route, limiter=None, **options).statuses(1) == [429]


WITHOUT_THREADS = {"asgi", "starlette", "litestar", "quart", "fastapi"}


class Environ(dict[str, Any]):
    """An environ that can be watched."""


def ask_as_a_server(app: Any) -> weakref.ref[Environ]:
    """Send a request to a WSGI application, and return its environ."""
    environ = Environ(create_environ(environ_base={"REMOTE_ADDR": PEER}))

    def start(status: str, *_: object) -> Callable[[bytes], object]:
        # As in some servers, it refers to the environ.
        environ["status"] = status
        return bytes

    body = app(environ, start)
    assert b"".join(body) == b"hello"
    getattr(body, "close", int)()
    return weakref.ref(environ)


def is_of_a_request(kept: object) -> bool:
    """Return whether an object is an outcome or a scope."""
    return type(kept) is Outcome or (isinstance(kept, dict) and "asgi" in kept)


def is_watched(driver: type[Driver]) -> bool:
    # The request of REST framework is a cycle, and threads of an event loop are in cycles.
    return (driver.is_wsgi and driver is not InRestFramework) or driver.name in WITHOUT_THREADS


@only(is_watched)
@pytest.mark.parametrize("id", [by_address, by_user])
def test_served_request_leaves_nothing_to_the_garbage_collector(
    serve: Serve, driver: type[Driver], id: Any
) -> None:
    app = serve(Route("/", (limited("PerUser", id=id),)))
    app.ask()
    gc.disable()
    # Then only newer objects are listed.
    gc.freeze()
    try:
        if driver.is_wsgi:
            assert ask_as_a_server(app.application())() is None
        else:
            assert app.ask().status == 200
        assert not any(is_of_a_request(kept) for kept in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.enable()


@with_routes
def test_client_cannot_fill_the_memory_with_methods(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(Route("/", (limited("1000/minute"),)), default=limited("2000/minute"))
    # Records of a log keep the requests of Django.
    caplog.set_level("CRITICAL", "django.request")

    def ask(number: int) -> None:
        for path in ("/", "/nowhere"):
            app.ask(path, method=f"M{number}")

    ask(0)
    kept = Filter(inclusive=True, filename_pattern=f"{PACKAGE}/*")
    tracemalloc.start()
    try:
        for number in range(1, 21):
            ask(number)
        gc.collect()
        taken = tracemalloc.take_snapshot().filter_traces([kept]).statistics("filename")
    finally:
        tracemalloc.stop()
    # A cached entry takes a hundred bytes or more, and there would be forty.
    assert sum(each.size for each in taken) < 1_000
