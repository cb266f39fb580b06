"""Clients that exceed a limit: their refused requests count, or they are blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.case import Reply, Request, Route, limited
from adapters.drivers import only
from guards import PEER

if TYPE_CHECKING:
    from adapters.conftest import Serve

    import penstock

OTHER = "198.51.100.7"


def test_client_that_exceeds_the_limit_is_blocked(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    app = serve(Route("/", (limited("PerAddress", block_for="10m"),)))
    assert app.statuses(2) == [200, 200]
    refused = app.ask()
    assert (refused.status, refused.header("Retry-After")) == (429, "600")
    assert refused.header("RateLimit") == '"PerAddress";r=0;t=600'
    # The bucket has refilled long before, and requests of a blocked client do not lengthen it.
    clock.advance(599)
    refused = app.ask()
    assert (refused.status, refused.header("Retry-After")) == (429, "1")
    assert app.ask(peer=OTHER).status == 200
    clock.advance(1)
    assert app.statuses(3) == [200, 200, 429]
    assert app.ask().header("Retry-After") == "600"


def test_blocked_client_spends_no_tokens(
    serve: Serve, limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    app = serve(Route("/", (limited("PerAddress", "Large", block_for="10m"),)))
    assert app.statuses(3) == [200, 200, 429]
    clock.advance(60)
    assert app.statuses(5) == [429] * 5
    assert limiter.peek("PerAddress", PEER).remaining == 2
    assert limiter.peek("Large", PEER).remaining == 100
    assert app.ask().header("Retry-After") == "540"


def log_in(request: Request) -> Reply:
    """Answer 200 for the right password."""
    return Reply(status=200 if request.query["password"] == "right" else 401)  # noqa: S105  no secret


def test_failed_log_ins_block_and_right_ones_do_not(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    def failed(response: Any) -> bool:
        return bool(response.status_code == 401)

    stack = (limited("PerAddress", deduct_when=failed, block_for="1h"),)
    app = serve(Route("/", stack, log_in))
    right, wrong = {"password": "right"}, {"password": "guess"}
    assert app.statuses(4, query=right) == [200] * 4
    assert app.statuses(3, query=wrong) == [401, 401, 429]
    clock.advance(3599)
    assert app.statuses(1, query=right) == [429]
    clock.advance(1)
    assert app.statuses(1, query=right) == [200]


def test_refused_requests_count(serve: Serve, clock: penstock.ManualClock) -> None:
    app = serve(
        Route("/", (limited("PerAddress", count_denied=True),)),
        Route("/plain", (limited("PerUser"),)),
    )
    assert app.statuses(2) == [200, 200]
    refused = app.ask()
    assert (refused.status, refused.header("Retry-After")) == (429, "60")
    # A client that continues to send requests is never served, but its wait stays bounded.
    for _ in range(20):
        clock.advance(29)
        assert app.ask().status == 429
    wait = int(app.ask().header("Retry-After") or 0)
    assert 30 <= wait <= 60
    clock.advance(wait)
    assert app.ask().status == 200


def test_shadow_mode_has_no_penalties(serve: Serve, clock: penstock.ManualClock) -> None:
    limit = limited("PerAddress", mode="shadow", block_for="1h", count_denied=True)
    app = serve(Route("/", (limit,)))
    assert app.statuses(6) == [200] * 6
    clock.advance(60)
    assert app.ask().status == 200


def test_spellings_of_an_id_are_blocked_together(serve: Serve, clock: penstock.ManualClock) -> None:
    def account(request: Request) -> str:
        return request.query["account"]

    app = serve(Route("/", (limited("Accounts", id=account, block_for="1h"),)))
    assert app.statuses(2, query={"account": "7"}) == [200, 429]
    clock.advance(60)
    assert app.statuses(1, query={"account": "007"}) == [429]
    assert app.statuses(1, query={"account": "8"}) == [200]


@only(lambda driver: driver.has_routes)
def test_client_is_blocked_on_every_route_with_the_limit(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    blocking = limited("PerAddress", block_for="1h")
    app = serve(Route("/one", (blocking,)), Route("/two", (blocking,)), Route("/three"))
    assert app.statuses(3, "/one") == [200, 200, 429]
    clock.advance(60)
    assert app.statuses(1, "/two") == [429]
    assert app.statuses(1, "/three") == [200]
