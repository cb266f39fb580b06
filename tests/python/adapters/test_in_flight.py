"""Limits on requests in flight: a slot is held until the response has been sent to its end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from adapters.case import Answer, Driver, Reply, Request, Route, limited
from adapters.drivers import only
from guards import PEER, left
from servers import SECONDS_TO_ANSWER

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.conftest import Serve

LIMITS = """
Exports: 1 in flight
Pairs: 2 in flight
PerAddress: {count: 2, burst: 2, period: 1m}
Watched: {algorithm: in-flight, count: 1, mode: shadow}
"""


@pytest.fixture
def limiter(clock: penstock.ManualClock, store: str) -> Iterator[penstock.Limiter]:
    with penstock.Limiter(penstock.Limits.parse(LIMITS), store, clock) as made:
        yield made


class Beside:
    """A view that sends a request to its own route while it runs, or while its body is sent."""

    def __init__(self, reply: Callable[[Callable[[], None]], Reply]) -> None:
        self.app: Driver | None = None
        self.answers: list[Answer] = []
        self._reply = reply
        self._is_inner = False

    def __call__(self, _: Request) -> Reply:
        if self._is_inner:
            return Reply("beside")
        return self._reply(self.ask)

    def ask(self) -> None:
        """Send the request, in a thread: an event loop may run in this one."""
        assert self.app is not None
        self._is_inner = True
        with ThreadPoolExecutor(1) as pool:
            self.answers.append(pool.submit(self.app.ask).result())
        self._is_inner = False


def at_once(ask: Callable[[], None]) -> Reply:
    ask()
    return Reply()


def in_parts(ask: Callable[[], None]) -> Reply:
    def parts() -> Iterator[str]:
        yield "one"
        ask()
        yield "two"

    return Reply(parts())


def raising(ask: Callable[[], None]) -> Reply:
    ask()
    raise ValueError


streaming = only(lambda driver: driver.name not in {"litestar", "quart"})


def is_free(limiter: penstock.Limiter, name: str = "Exports") -> bool:
    """Return whether nothing is held; over a server, a thread of the store returns slots."""
    clock = penstock.SystemClock()
    deadline = clock.now() + SECONDS_TO_ANSWER
    while limiter.peek(name, PEER).remaining < limiter.limits[name].count:
        if not limiter.is_remote or clock.now() > deadline:
            return False
    return True


def check(serve: Serve, limiter: penstock.Limiter, view: Beside, **options: str) -> Answer:
    """Send a request with another beside it, which is refused; return the first."""
    view.app = serve(Route("/", (limited("PerAddress", "Exports"),), view))
    answer = view.app.ask(**options)
    (refused,) = view.answers
    assert refused.status == 429
    assert refused.header("RateLimit") == '"PerAddress";r=1;t=30, "Exports";r=0'
    assert refused.header("RateLimit-Policy") == (
        '"PerAddress";q=2;w=60, "Exports";q=1;qu="concurrent-requests"'
    )
    assert refused.header("Retry-After") == "1"
    # The refused request has taken neither.
    assert is_free(limiter)
    assert left(limiter) == 1
    return answer


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_slot_is_held_while_the_view_runs(
    serve: Serve, limiter: penstock.Limiter, method: str, driver: type[Driver]
) -> None:
    if (driver.name, method) == ("quart", "HEAD"):
        pytest.skip("its route has GET and POST")
    assert check(serve, limiter, Beside(at_once), method=method).status == 200


@streaming
def test_slot_is_held_until_a_stream_has_been_sent(serve: Serve, limiter: penstock.Limiter) -> None:
    assert check(serve, limiter, Beside(in_parts)).body == b"onetwo"


def test_slot_is_given_back_if_the_view_raises(serve: Serve, limiter: penstock.Limiter) -> None:
    assert check(serve, limiter, Beside(raising)).status == 500


def test_slot_of_a_request_is_free_for_the_next_one(serve: Serve) -> None:
    app = serve(Route("/", (limited("Exports"),)))
    assert app.statuses(50) == [200] * 50


def test_request_that_a_rate_refuses_holds_nothing(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(Route("/", (limited("PerAddress", "Exports"),)))
    assert app.statuses(3) == [200, 200, 429]
    assert is_free(limiter)


def test_slot_and_a_rate_that_the_response_settles_are_one_decision(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    stack = limited("PerAddress", "Exports", cost_from_response=lambda _: 0, refund_on_error=True)
    app = serve(Route("/", (stack,)))
    for _ in range(3):
        assert app.ask().status == 200
        # An event loop does not wait for a server's reply to the end of a response.
        assert is_free(limiter)
    assert left(limiter) == 2


def test_limit_alone_and_a_cost_take_slots(serve: Serve, limiter: penstock.Limiter) -> None:
    view = Beside(at_once)
    view.app = serve(Route("/", (limited("Pairs", cost=2),), view))
    first = view.app.ask()
    assert [first.status, *(answer.status for answer in view.answers)] == [200, 429]
    assert first.header("RateLimit") == '"Pairs";r=0'
    assert is_free(limiter, "Pairs")


@pytest.mark.parametrize(("name", "options"), [("Watched", {}), ("Exports", {"mode": "shadow"})])
def test_shadow_limit_counts_and_refuses_nothing(
    serve: Serve, limiter: penstock.Limiter, name: str, options: dict[str, str]
) -> None:
    view = Beside(at_once)
    view.app = serve(Route("/", (limited(name, **options),), view))
    assert view.app.ask().status == 200
    assert [answer.status for answer in view.answers] == [200]
    assert is_free(limiter, name)


def test_rate_that_a_reload_turns_into_slots_is_held(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    limiter.reload(penstock.Limits.parse(LIMITS.replace("1 in flight", "9/minute")))
    view = Beside(at_once)
    view.app = serve(Route("/", (limited("Exports"),), view))
    view.app.ask()
    limiter.reload(penstock.Limits.parse(LIMITS))
    view.app.ask()
    assert [answer.status for answer in view.answers] == [200, 429]
    assert is_free(limiter)


@pytest.mark.parametrize(("policy", "beside"), [("allow", 200), ("deny", 503), ("local", 429)])
def test_store_error_policy_holds_a_slot_of_this_process_or_none(
    serve: Serve, limiter: penstock.Limiter, policy: str, beside: int
) -> None:
    view = Beside(at_once)
    view.app = serve(Route("/", (limited("Exports"),), view), on_store_error=policy)
    view.app.ask()
    limiter.close()
    statuses = [view.app.ask().status, view.app.ask().status]
    assert statuses == ([503, 503] if policy == "deny" else [200, 200])
    refused, *others = [answer.status for answer in view.answers]
    assert refused == 429
    assert others == ([] if policy == "deny" else [beside] * 2)


@only(lambda driver: driver.name in {"wsgi", "asgi"})
def test_penalty_of_a_slot_is_an_error(serve: Serve) -> None:
    route = Route("/", (limited("Exports", count_denied=True),))
    with pytest.raises(penstock.ConfigError, match="Exports limits requests in flight"):
        serve(route)
