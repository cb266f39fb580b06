"""Fixtures of every case: a limiter on a manual clock, and a driver that serves routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
from adapters.case import Driver, Limited, Route, Site
from adapters.drivers import DRIVERS, InDjango
from redis_servers import Server

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = """
PerAddress: {count: 2, burst: 2, period: 1m}
PerUser: {count: 5, burst: 5, period: 1h}
Large: {count: 100, burst: 100, period: 1m}
Orders: {count: 1, burst: 2, period: 10s, id: ipAddress, docs: "https://example.org/limits"}
Accounts: {count: 1, burst: 1, period: 1m, id: regId}
Watched: {count: 1, burst: 1, period: 1m, mode: shadow}
"""


class Serve(Protocol):
    """Serves routes in the framework of the test."""

    def __call__(
        self,
        *routes: Route,
        default: Limited | None = None,
        limiter: penstock.Limiter | None = ...,
        **options: Any,
    ) -> Driver: ...


OVER_A_SERVER: Final = (
    "test_brute_force",
    "test_decisions",
    "test_ends",
    "test_in_flight",
    "test_settling",
)
"""The modules whose cases also run over a server."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the stores of a case."""
    if "store" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        server = [pytest.param("redis", marks=pytest.mark.slow)] if name in OVER_A_SERVER else []
        metafunc.parametrize("store", ["memory", *server], indirect=True)


SAME_ADAPTER: Final = {"starlette", "litestar", "quart", "tiny"}
"""Drivers whose adapter another driver has, too. To the adapter, they differ in no store."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out stores that would be tried twice with one adapter."""

    def is_repeated(item: pytest.Item) -> bool:
        parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        driver = getattr(parameters.get("driver"), "name", None)
        is_in_memory = {"redis", "server", "shared memory"}.isdisjoint(
            [parameters.get("store"), parameters.get("limiter")]
        )
        return driver in SAME_ADAPTER and not is_in_memory

    items[:] = [item for item in items if not is_repeated(item)]


@pytest.fixture(scope="session")
def adapters_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind for which requests wait differently."""
    if request.param == "memory":
        return "memory://"
    server: Server = request.getfixturevalue("adapters_server")
    server.command("FLUSHALL")
    # A slow call on a loaded machine must not fail.
    return f"{server.url}?deadline=20s"


@pytest.fixture
def limiter(clock: penstock.ManualClock, store: str) -> Iterator[penstock.Limiter]:
    with penstock.Limiter(penstock.Limits.parse(LIMITS), store, clock) as made:
        yield made


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> type[Driver]:
    """The driver of one framework."""
    made: type[Driver] = request.param
    return made


@pytest.fixture
def serve(driver: type[Driver], limiter: penstock.Limiter, request: pytest.FixtureRequest) -> Serve:
    """Serves routes in the framework of the driver, with `limiter` unless a case has another."""
    own = limiter

    def make(
        *routes: Route,
        default: Limited | None = None,
        limiter: penstock.Limiter | None = own,
        **options: Any,
    ) -> Driver:
        django = request.getfixturevalue("site") if issubclass(driver, InDjango) else None
        return driver(Site(limiter, [*routes], default, options, django))

    return make
