"""Errors at startup, objects left behind by requests, and warnings to servers."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Route, limited
from adapters.drivers import InDjango, InFlask, Wsgi, only

import penstock
from penstock.guard import Outcome
from penstock.identity import per_route

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.conftest import Serve

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
    [{"key": "ip"}, {"cost": -1}, {"mode": "watch"}, {"methods": ["GETT "]}],
    ids=lambda options: next(iter(options)),
)
def test_wrong_option_of_a_limit_is_an_error_where_it_is_written(
    serve: Serve, options: dict[str, Any]
) -> None:
    with pytest.raises(penstock.ConfigError):
        serve(Route("/", (limited("PerAddress", **options),)))


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
    route = Route("/", (limited("A", id="ada"),))
    # Like two worker processes and another program.
    assert serve(route, limiter=None, **options).statuses(1) == [200]
    with penstock.Limiter(limits, store=store, clock=clock) as limiter:
        assert limiter.peek("A", "ada").remaining == 1
        limiter.spend("A", "ada")
    assert serve(route, limiter=None, **options).statuses(1) == [429]


# Django's test client keeps its requests.
@only(lambda driver: not issubclass(driver, InDjango))
def test_served_request_leaves_nothing_to_the_garbage_collector(serve: Serve) -> None:
    app = serve(LIMITED)
    app.ask()
    gc.disable()
    # Then only newer objects are listed.
    gc.freeze()
    try:
        assert app.ask().status == 200
        assert not any(type(kept) is Outcome for kept in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.enable()


@only(lambda driver: driver in (Wsgi, InFlask))
@pytest.mark.parametrize(
    ("several", "expected", "warnings"), [(True, 1, 1), (True, 4, 0), (False, 1, 0)]
)
def test_server_with_several_processes_is_warned_once(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    *,
    several: bool,
    expected: int,
    warnings: int,
) -> None:
    app = serve(LIMITED, expected_processes=expected)
    app.environ["wsgi.multiprocess"] = several
    app.statuses(3)
    found = [record for record in caplog.records if record.name == "penstock"]
    assert len(found) == warnings
