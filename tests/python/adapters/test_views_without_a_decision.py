"""A view always has a decision: it is allowed, and says why no limit made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import only, with_routes
from redis_servers import Server

import penstock
from penstock.adapter import force_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.conftest import Serve


@pytest.fixture(scope="session")
def stopped_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a Redis server that has been stopped."""
    server = Server(tmp_path_factory.mktemp("redis"))
    server.start()
    server.stop()
    return f"{server.url}?connect_timeout=100ms"


@pytest.fixture
def unreachable(clock: penstock.ManualClock, stopped_server: str) -> Iterator[penstock.Limiter]:
    limits = {"Tokens": "100/hour", "Requests": "50/hour"}
    with penstock.Limiter(limits, stopped_server, clock) as made:
        yield made


def spend(request: Request) -> Reply:
    """Do as the documentation shows: settle, and show what remains."""
    assert request.decision is not None
    request.decision.settle(7)
    return show(request)


def show(request: Request) -> Reply:
    """Show what remains."""
    decision = request.decision
    assert decision is not None
    decision.raise_if_denied()
    assert decision.allowed
    assert decision.parts is not None
    kind = "degraded" if decision.degraded else "unlimited" if decision.unlimited else "decided"
    return Reply(f"{kind} {decision.remaining} {decision.retry_after}")


def kind(body: bytes) -> str:
    """Return what the view says about its decision."""
    return body.decode().partition(" ")[0]


RESERVED = (limited("Tokens", cost=20, settle=True),)


@pytest.mark.parametrize(
    "stack",
    [
        RESERVED,
        (limited("Tokens"),),
        (limited("Tokens", "Requests", cost=20, settle=True),),
        (limited("Tokens", deduct_when=lambda response: response.status_code == 401),),
    ],
    ids=["reserve", "plain", "two", "deduct_when"],
)
@pytest.mark.parametrize("policy", ["allow", "local"])
def test_views_run_while_the_store_is_down(
    serve: Serve, unreachable: penstock.Limiter, stack: Any, policy: str
) -> None:
    # As in normal operation, only a limit with `settle=True` lets a view settle.
    settles = policy == "allow" or "settle" in stack[0][1]
    view = spend if settles else show
    app = serve(Route("/", stack, view), limiter=unreachable, on_store_error=policy)
    answers = [app.ask() for _ in range(2)]
    assert [(answer.status, kind(answer.body)) for answer in answers] == [(200, "degraded")] * 2


@pytest.mark.parametrize(("policy", "status"), [("deny", 503), ("raise", 500)])
def test_other_policies_refuse_while_the_store_is_down(
    serve: Serve, unreachable: penstock.Limiter, policy: str, status: int
) -> None:
    app = serve(Route("/", RESERVED, spend), limiter=unreachable, on_store_error=policy)
    assert app.statuses(2) == [status] * 2


def test_local_decision_is_settled_in_the_process(
    serve: Serve, unreachable: penstock.Limiter
) -> None:
    app = serve(Route("/", RESERVED, spend), limiter=unreachable, on_store_error="local")
    # 20 are needed before each view, which uses 7: 100, 93, 86, ... 16.
    assert app.statuses(13) == [200] * 12 + [429]


def test_disabled_limits_show_an_unlimited_decision(serve: Serve) -> None:
    app = serve(Route("/", (limited("PerUser", settle=True),), spend), enabled=False)
    answer = app.ask()
    assert (answer.status, kind(answer.body)) == (200, "unlimited")


def test_limits_disabled_by_a_test_show_an_unlimited_decision(serve: Serve) -> None:
    app = serve(Route("/", (limited("PerUser", settle=True),), spend))
    force_enabled(False)
    try:
        answer = app.ask()
    finally:
        force_enabled(None)
    assert (answer.status, kind(answer.body)) == (200, "unlimited")
    assert kind(app.ask().body) == "decided"


def test_tier_without_a_limit_shows_an_unlimited_decision(serve: Serve) -> None:
    tiers = {"free": "9/hour", "staff": None}
    stack = (limited(tiers=tiers, tier=lambda request: request.query["tier"], settle=True),)
    app = serve(Route("/", stack, spend))
    found = [kind(app.ask(query={"tier": tier}).body) for tier in tiers]
    assert found == ["decided", "unlimited"]


def test_request_that_is_exempt_shows_an_unlimited_decision(serve: Serve) -> None:
    stack = (limited("PerUser", exempt_when=lambda _: True, settle=True),)
    assert kind(serve(Route("/", stack, spend)).ask().body) == "unlimited"


def test_method_that_is_not_counted_shows_an_unlimited_decision(serve: Serve) -> None:
    stack = (limited("PerUser", methods="POST", settle=True),)
    assert kind(serve(Route("/", stack, spend)).ask().body) == "unlimited"


@only(lambda driver: driver.has_routes and driver.starts)
def test_exempt_route_shows_an_unlimited_decision(serve: Serve) -> None:
    app = serve(Route("/", view=spend, is_exempt=True), default=limited("PerUser"))
    assert kind(app.ask().body) == "unlimited"


@with_routes
def test_route_without_a_limit_shows_an_unlimited_decision(serve: Serve) -> None:
    answer = serve(Route("/", view=spend), Route("/x", (limited("PerUser"),))).ask()
    # Django without the middleware never sees such a request.
    assert answer.status == 500 or kind(answer.body) == "unlimited"
