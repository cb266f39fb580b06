"""Limits that are settled by the response, in every framework."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, limited
from adapters.drivers import InDjango, only
from guards import left

import penstock

if TYPE_CHECKING:
    from adapters.conftest import Serve


def failed(response: Any) -> bool:
    """Whether a log-in failed."""
    return bool(response.status_code == 401)


def cost_of(response: Any) -> int:
    """Return the cost that the view sets in a header."""
    fields = {name.lower(): value for name, value in dict(response.headers).items()}
    return int(fields["x-cost"])


def log_in(request: Request) -> Reply:
    """Answer 200 for the right password."""
    return Reply(status=200 if request.query["password"] == "right" else 401)  # noqa: S105  no secret


RIGHT, WRONG = {"password": "right"}, {"password": "guess"}


@pytest.mark.parametrize("options", [{}, {"reserve": False}])
def test_only_failed_logins_count(
    serve: Serve, limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    stack = (limited("PerAddress", "Large", deduct_when=failed, **options),)
    app = serve(Route("/login", stack, log_in))
    # A response that does not count shows that no token was taken.
    assert app.ask("/login", query=RIGHT).header("RateLimit") == '"PerAddress";r=2, "Large";r=100'
    assert app.statuses(4, "/login", query=RIGHT) == [200] * 4
    assert left(limiter, "PerAddress") == 2
    shown = '"PerAddress";r=1;t=30, "Large";r=99;t=1'
    assert app.ask("/login", query=WRONG).header("RateLimit") == shown
    assert app.statuses(2, "/login", query=WRONG) == [401, 429]
    assert app.ask("/login", query=RIGHT).status == 429
    assert (left(limiter, "PerAddress"), left(limiter, "Large")) == (0, 98)


def test_refused_request_reserves_nothing(serve: Serve, limiter: penstock.Limiter) -> None:
    stack = (limited("PerUser", deduct_when=failed), limited("PerAddress"))
    app = serve(Route("/login", stack, log_in))
    assert app.statuses(3, "/login", query=WRONG) == [401, 401, 429]
    assert '"PerUser";r=3;' in (app.ask("/login", query=WRONG).header("RateLimit") or "")
    assert left(limiter, "PerUser") == 3


@pytest.mark.parametrize(("reserve", "admitted"), [(True, 2), (False, 6)])
def test_guesses_at_the_same_time_pass_only_without_a_reservation(
    serve: Serve, limiter: penstock.Limiter, *, reserve: bool, admitted: int
) -> None:
    """Six concurrent guesses; with a reservation, only as many pass as the limit allows."""
    counts = {"served": 0, "refused": 0}
    lock, all_decided = Lock(), Event()

    def count(kind: str) -> None:
        with lock:
            counts[kind] += 1
            if sum(counts.values()) == 6:
                all_decided.set()

    def view(_: Request) -> Reply:
        count("served")
        assert all_decided.wait(60)
        return Reply(status=401)

    app = serve(Route("/", (limited("PerAddress", deduct_when=failed, reserve=reserve),), view))

    def guess(_: int) -> int:
        status = app.ask().status
        if status == 429:
            count("refused")
        return status

    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(guess, range(6)))
    assert statuses == [401] * admitted + [429] * (6 - admitted)
    assert left(limiter, "PerAddress") == 0


@pytest.mark.parametrize("options", [{}, {"reserve": False}])
def test_cost_may_follow_from_the_response(
    serve: Serve, limiter: penstock.Limiter, options: dict[str, Any]
) -> None:
    def view(request: Request) -> Reply:
        return Reply(headers={"X-Cost": request.query["rows"]})

    stack = (limited("Large", cost=10, cost_from_response=cost_of, **options),)
    app = serve(Route("/", stack, view))
    assert app.ask(query={"rows": 3}).header("RateLimit") == '"Large";r=97;t=1'
    assert app.ask(query={"rows": 10}).header("RateLimit") == '"Large";r=87;t=1'
    assert app.ask(query={"rows": 60}).header("RateLimit") == '"Large";r=27;t=1'
    # The cost may exceed the remaining tokens: the bucket denies until they have refilled.
    assert app.ask(query={"rows": 30}).header("RateLimit") == '"Large";r=0;t=3'
    denied = app.ask(query={"rows": 0})
    assert (denied.status, denied.header("Retry-After")) == (429, "8")
    assert left(limiter, "Large") == 0


@only(lambda driver: issubclass(driver, InDjango))
@pytest.mark.parametrize(
    ("options", "left"),
    [({"deduct_when": failed}, 100), ({"cost_from_response": cost_of}, 97), ({"settle": True}, 96)],
)
def test_middlewares_outside_see_the_settled_decision(
    serve: Serve, options: dict[str, Any], left: int
) -> None:
    requests: list[Any] = []

    def view(request: Request) -> Reply:
        requests.append(request.native)
        assert request.decision is not None
        if "settle" in options:
            request.decision.settle(4)
        return Reply(headers={"X-Cost": "3"})

    app = serve(Route("/", (limited("Large", cost=10, **options),), view))
    assert app.ask().status == 200
    seen = app.request(requests[0]).decision
    assert seen is not None
    assert seen.remaining == left


def test_cost_of_a_response_and_whether_it_counts_go_together(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    def view(request: Request) -> Reply:
        return Reply(status=int(request.query["status"]), headers={"X-Cost": "4"})

    stack = (limited("Large", deduct_when=failed, cost_from_response=cost_of),)
    app = serve(Route("/", stack, view))
    assert app.ask(query={"status": 200}).header("RateLimit") == '"Large";r=100'
    assert app.ask(query={"status": 401}).header("RateLimit") == '"Large";r=96;t=1'
    assert left(limiter, "Large") == 96


def telling(request: Request) -> Reply:
    """Settle the cost in the query."""
    assert request.decision is not None
    for actual in filter(None, request.query.get("used", "").split(",")):
        request.decision.settle(int(actual))
    return Reply(status=int(request.query.get("status", 200)))


def test_view_may_settle_what_it_used(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("Large", cost=10, settle=True),), telling))
    assert app.ask(query={"used": 3}).header("RateLimit") == '"Large";r=97;t=1'
    assert app.ask(query={"used": 60}).header("RateLimit") == '"Large";r=37;t=1'
    # The last call counts; without one, the estimate does.
    assert app.ask(query={"used": "30,7"}).header("RateLimit") == '"Large";r=30;t=1'
    assert app.ask().header("RateLimit") == '"Large";r=20;t=1'
    assert app.ask(query={"used": 0}).header("RateLimit") == '"Large";r=20;t=1'
    assert app.ask(query={"used": 50}).header("RateLimit") == '"Large";r=0;t=19'
    assert app.ask(query={"used": 0}).status == 429
    assert left(limiter, "Large") == 0


def test_view_settles_the_limits_that_reserve_and_no_other(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    stack = (limited("PerUser"), limited("Large", cost=10, settle=True))
    app = serve(Route("/", stack, telling))
    app.ask(query={"used": 4})
    assert (left(limiter, "PerUser"), left(limiter, "Large")) == (4, 96)


@pytest.mark.parametrize(
    ("actual", "error"), [("1", TypeError), (True, TypeError), (-1, penstock.CostNegative)]
)
def test_settled_cost_must_be_valid(
    serve: Serve, limiter: penstock.Limiter, actual: Any, error: type[Exception]
) -> None:
    raised: list[object] = []

    def view(request: Request) -> Reply:
        assert request.decision is not None
        with pytest.raises(error):
            request.decision.settle(actual)
        raised.append(error)
        return Reply()

    app = serve(Route("/", (limited("Large", cost=10, settle=True),), view))
    assert app.ask().status == 200
    assert (raised, left(limiter, "Large")) == ([error], 90)


def test_view_without_a_reservation_has_nothing_to_settle(serve: Serve) -> None:
    def view(request: Request) -> Reply:
        assert request.decision is not None
        with pytest.raises(penstock.ReservationError, match="use settle=True"):
            request.decision.settle(1)
        return Reply()

    assert serve(Route("/", (limited("Large"),), view)).ask().status == 200


def test_view_may_settle_after_its_response_has_started(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    kept: list[Any] = []

    def view(request: Request) -> Reply:
        kept.append(request.decision)
        return Reply()

    app = serve(Route("/", (limited("Large", cost=10, settle=True),), view))
    assert app.ask().header("RateLimit") == '"Large";r=90;t=1'
    kept[0].settle(25)
    assert left(limiter, "Large") == 75
    kept[0].settle(5)
    assert left(limiter, "Large") == 95


@pytest.mark.parametrize("passes_on", [False, True])
def test_view_that_raises_is_settled_as_a_server_error(
    serve: Serve, limiter: penstock.Limiter, *, passes_on: bool
) -> None:
    def view(_: Request) -> Reply:
        raise LookupError

    def broken(response: Any) -> bool:
        return bool(response.status_code == 500)

    app = serve(
        Route("/free", (limited("Large", deduct_when=failed),), view),
        Route("/counted", (limited("PerUser", deduct_when=broken, reserve=False),), view),
    )
    if passes_on:
        app.pass_errors_on()
    assert app.ask("/free").status == 500
    assert left(limiter, "Large") == 100
    assert app.ask("/counted").status == 500
    assert left(limiter, "PerUser") == 4


def test_cost_of_a_response_beyond_all_numbers_is_charged_in_full(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    stack = (limited("Large", cost_from_response=cost_of),)
    app = serve(Route("/", stack, lambda _: Reply(headers={"X-Cost": str(10**40)})))
    assert app.statuses(2) == [200, 429]
    assert left(limiter, "Large") == 0
