"""What every case starts from: a limiter on the test's own clock, and a driver to serve routes."""

from __future__ import annotations

from typing import Any, Protocol

import pytest
from adapters.case import Driver, Limited, Route, Site
from adapters.drivers import DRIVERS, InDjango

import penstock

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


@pytest.fixture
def limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    return penstock.Limiter(penstock.Limits.parse(LIMITS), clock=clock)


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> type[Driver]:
    """The driver of one framework."""
    made: type[Driver] = request.param
    return made


@pytest.fixture
def serve(driver: type[Driver], limiter: penstock.Limiter, request: pytest.FixtureRequest) -> Serve:
    """Serves routes in the framework of the driver, on `limiter` unless a case has its own."""
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
