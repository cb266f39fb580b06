"""Default limits of an application, and routes that replace them or are exempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Request, Route, limited
from adapters.drivers import only

if TYPE_CHECKING:
    from adapters.conftest import Serve

pytestmark = only(lambda driver: driver.has_routes and driver.starts)


@pytest.mark.parametrize(
    ("of_app", "of_route", "replaces"),
    [
        (False, None, False),
        (False, True, True),
        (False, False, False),
        (True, None, True),
        (True, False, False),
    ],
)
def test_own_limit_of_a_route_replaces_the_default_or_adds_to_it(
    serve: Serve, *, of_app: bool, of_route: bool | None, replaces: bool
) -> None:
    own = limited("PerUser", override_defaults=of_route)
    app = serve(
        Route("/", (own,)),
        Route("/plain"),
        default=limited("Large"),
        override_defaults=of_app,
    )
    shown = '"PerUser";r=4;t=720'
    both = f'"Large";r=99;t=1, {shown}'
    assert app.ask().header("RateLimit") == (shown if replaces else both)
    plain = app.ask("/plain").header("RateLimit") or ""
    assert plain.startswith('"Large";r=99' if replaces else '"Large";r=98')


def test_one_of_several_limits_replaces_the_default(serve: Serve) -> None:
    stack = (limited("PerAddress"), limited("PerUser", override_defaults=True))
    app = serve(Route("/", stack), default=limited("Large"))
    assert app.ask().header("RateLimit") == '"PerAddress";r=1;t=30, "PerUser";r=4;t=720'


@pytest.mark.parametrize("method", ["POST", "PROPFIND"])
def test_limit_on_one_method_replaces_the_default_for_that_method_only(
    serve: Serve, method: str
) -> None:
    own = limited("PerUser", methods=[method], override_defaults=True)
    app = serve(Route("/", (own,)), default=limited("Large"))
    assert app.ask(method=method).header("RateLimit") == '"PerUser";r=4;t=720'
    assert app.ask().header("RateLimit") == '"Large";r=99;t=1'


@pytest.mark.parametrize("of_app", [False, True])
def test_limit_in_shadow_mode_leaves_the_default_in_place(serve: Serve, *, of_app: bool) -> None:
    own = limited("PerUser", mode="shadow", override_defaults=None if of_app else True)
    app = serve(Route("/", (own,)), default=limited("PerAddress"), override_defaults=of_app)
    assert app.statuses(3) == [200, 200, 429]


def test_exempt_view_is_free_of_defaults_and_keeps_its_own_limits(serve: Serve) -> None:
    app = serve(
        Route("/", is_exempt=True),
        Route("/own", (limited("PerUser"),), is_exempt=True),
        Route("/other"),
        default=limited("PerAddress"),
    )
    assert app.statuses(4) == [200] * 4
    assert app.ask().limit_fields == {}
    assert app.ask("/own").header("RateLimit") == '"PerUser";r=4;t=720'
    assert app.statuses(3, "/other") == [200, 200, 429]


def test_unknown_page_does_not_count(serve: Serve) -> None:
    app = serve(Route("/"), default=limited("PerAddress"))
    assert app.statuses(3, "/nowhere") == [404] * 3
    assert app.ask("/nowhere").limit_fields == {}


def test_default_that_depends_on_the_request(serve: Serve) -> None:
    def tier(request: Request) -> Any:
        return request.headers.get("X-Plan", "free")

    app = serve(Route("/"), default=limited(tiers={"free": "1/minute", "pro": None}, tier=tier))
    assert app.statuses(2) == [200, 429]
    assert app.statuses(3, headers={"X-Plan": "pro"}) == [200] * 3
