"""Routes whose requests leave tokens for more important ones, in every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import only, with_routes
from guards import left

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adapters.conftest import Serve

LIMITS: dict[str, penstock.Limit | str] = {
    "Everyone": penstock.Limit.token_bucket(burst=10, count=10, period="10h"),
    "Requests": "100/day",
    "Notes": penstock.Limit.leaky_bucket(size=8, drip_rate="1h"),
}
PAY = Route("/pay", (limited("Everyone"),))


@pytest.fixture(params=["memory", "shared memory", pytest.param("server", marks=pytest.mark.slow)])
def limiter(
    clock: penstock.ManualClock, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[penstock.Limiter]:
    url = "memory://"
    if request.param == "shared memory":
        url = f"shm://{tmp_path}/table?capacity=1000"
    elif request.param == "server":
        server = request.getfixturevalue("adapters_server")
        server.command("FLUSHALL")
        # A slow call on a loaded machine must not fail.
        url = f"{server.url}?deadline=20s"
    with penstock.Limiter(LIMITS, url, clock) as made:
        yield made


class SevenLater:
    """A keep that has to be awaited."""

    async def __call__(self, _: object) -> int:
        """Return 7."""
        return 7


def of_plan(request: Request) -> int:
    """Return what requests without a plan keep."""
    return 0 if "X-Plan" in request.headers else 7


@pytest.mark.parametrize("keep", [7, of_plan], ids=["number", "function"])
def test_requests_leave_the_tokens_to_keep(serve: Serve, keep: Any) -> None:
    app = serve(Route("/crawl", (limited("Everyone", keep=keep),)), PAY)
    assert app.ask("/crawl").header("RateLimit") == '"Everyone";r=2;t=3600'
    assert app.statuses(3, "/crawl") == [200, 200, 429]
    # It is worth a retry when the token above those to keep is back.
    assert app.ask("/crawl").header("Retry-After") == "3600"
    assert app.statuses(8, "/pay") == [200] * 7 + [429]


def test_function_returns_what_a_request_keeps(serve: Serve) -> None:
    app = serve(Route("/", (limited("Everyone", keep=of_plan),)))
    assert app.statuses(4) == [200, 200, 200, 429]
    assert app.statuses(8, headers={"X-Plan": "pro"}) == [200] * 7 + [429]


@only(lambda driver: driver.is_async)
def test_function_may_be_awaited(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("Everyone", keep=SevenLater()),)))
    assert app.statuses(4) == [200, 200, 200, 429]
    assert left(limiter, "Everyone") == 7


@pytest.mark.parametrize("keep", ["7", -1, True, None, 0.5])
def test_other_values_are_an_error_of_the_application(serve: Serve, keep: Any) -> None:
    app = serve(Route("/", (limited("Everyone", keep=lambda _: keep),)))
    assert app.ask().status == 500


@with_routes
@pytest.mark.parametrize("keep", [7, of_plan], ids=["number", "function"])
def test_one_of_several_limits_keeps_tokens(
    serve: Serve, limiter: penstock.Limiter, keep: Any
) -> None:
    app = serve(Route("/", (limited("Requests"), limited("Everyone", keep=keep))))
    assert app.statuses(4) == [200, 200, 200, 429]
    assert (left(limiter, "Everyone"), left(limiter, "Requests")) == (7, 97)


def test_a_factor_applies_before_the_tokens_to_keep(serve: Serve) -> None:
    halved, kept = limited("Notes", factor=2), limited("Notes", factor=2, keep=3)
    app = serve(Route("/notes", (halved,)), Route("/imports", (kept,)))
    assert app.statuses(2, "/imports") == [200, 429]
    assert app.statuses(4, "/notes") == [200, 200, 200, 429]


@pytest.mark.parametrize("reserve", [True, False])
def test_response_is_charged_in_full_and_shows_the_part_above(
    serve: Serve, limiter: penstock.Limiter, *, reserve: bool
) -> None:
    costs = iter([1, 2, 9])

    def export(_: Request) -> Reply:
        return Reply(headers={"X-Cost": str(next(costs))})

    def cost_of(response: Any) -> int:
        fields = {name.lower(): value for name, value in dict(response.headers).items()}
        return int(fields["x-cost"])

    stack = (limited("Everyone", cost=2, keep=5, cost_from_response=cost_of, reserve=reserve),)
    app = serve(Route("/", stack, export))
    answers = [app.ask() for _ in range(2)]
    assert [(answer.header("RateLimit") or "")[:14] for answer in answers] == [
        '"Everyone";r=4',
        '"Everyone";r=2',
    ]
    app.ask()
    # The response may take the tokens that its request left to others.
    assert not limiter.check("Everyone", "203.0.113.7")
    assert app.ask().status == 429


def test_refused_requests_that_count_leave_the_tokens_but_one(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited("Everyone", keep=7, count_denied=True),)))
    assert app.statuses(8) == [200] * 3 + [429] * 5
    assert left(limiter, "Everyone") == 6


def test_a_process_keeps_its_share_while_the_store_fails(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    route = Route("/", (limited("Everyone", keep=of_plan),))
    app = serve(route, on_store_error="local", expected_processes=2)
    # Some adapters compile the limits of a route for its first request.
    app.ask()
    limiter.close()
    # Of five tokens, four are kept.
    assert app.statuses(2) == [200, 429]
    assert app.statuses(5, headers={"X-Plan": "pro"}) == [200] * 4 + [429]


def test_a_small_share_does_not_deny_everything(serve: Serve, limiter: penstock.Limiter) -> None:
    route = Route("/", (limited("Everyone", keep=7),))
    app = serve(route, on_store_error="local", expected_processes=50)
    app.ask()
    limiter.close()
    assert app.statuses(2) == [200, 429]


@pytest.mark.parametrize("options", [{"cost": 3}, {"keep": 3}], ids=str)
def test_a_share_of_a_divided_limit_is_smaller_still(
    serve: Serve, limiter: penstock.Limiter, options: dict[str, int]
) -> None:
    route = Route("/", (limited("Notes", factor=2, **options),))
    app = serve(route, on_store_error="local", expected_processes=2)
    app.ask()
    limiter.close()
    # The limit is 4, and the share 2: the cost is 2, or one of two tokens is kept.
    assert app.statuses(2) == [200, 429]
