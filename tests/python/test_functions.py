"""Limits of plain functions and blocks of code."""

from __future__ import annotations

import asyncio
import inspect
from threading import Thread
from typing import Any

import pytest

import penstock
from penstock import AsyncLimiter, ConfigError, Limiter, Limits, ManualClock
from penstock.functions import limited

TARGETS = ["function", "coroutine"]


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter({"Mails": "2/minute", "Accounts": "1/minute"}, clock=clock)


def mailer(kind: str, **options: Any) -> Any:
    """Return a limited function that sends a mail, or a coroutine function that does."""

    def send(to: str, copies: int = 1) -> str:
        """Send."""
        if to == "unknown":
            raise LookupError
        return f"{copies} to {to}"

    async def asend(to: str, copies: int = 1) -> str:
        """Send."""
        return send(to, copies)

    if kind == "function":
        return limited(**options)(send)
    decorated = limited(**options)(asend)
    assert inspect.iscoroutinefunction(decorated)
    return lambda *args, **kwargs: asyncio.run(decorated(*args, **kwargs))


@pytest.mark.parametrize("kind", TARGETS)
def test_call_is_denied_when_the_limit_is_exceeded(kind: str, limiter: Limiter) -> None:
    send = mailer(kind, limiter=limiter, name="Mails")
    assert [send("ada"), send("grace")] == ["1 to ada", "1 to grace"]
    with pytest.raises(penstock.RateLimited) as caught:
        send("eve")
    assert caught.value.decision.retry_after == 30


@pytest.mark.parametrize("kind", TARGETS)
def test_id_and_cost_follow_from_the_arguments(kind: str, limiter: Limiter) -> None:
    send = mailer(
        kind, limiter=limiter, name="Mails", id=lambda to, **_: to, cost=lambda _, copies=1: copies
    )
    assert send("ada", copies=2) == "2 to ada"
    assert send("grace") == "1 to grace"
    with pytest.raises(penstock.RateLimited):
        send("ada")
    assert limiter.peek("Mails", "grace").remaining == 1


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("refund", [True, False])
def test_call_that_raises_is_refunded_on_request(
    kind: str, limiter: Limiter, *, refund: bool
) -> None:
    send = mailer(kind, limiter=limiter, name="Mails", id="all", refund_on_error=refund)
    with pytest.raises(LookupError):
        send("unknown")
    assert limiter.peek("Mails", "all").remaining == 1 + refund


def test_function_waits_for_its_turn(limiter: Limiter, clock: ManualClock) -> None:
    send = mailer("function", limiter=limiter, name="Accounts", id="all", timeout="2m")
    assert send("ada") == "1 to ada"
    sent: list[str] = []
    thread = Thread(target=lambda: sent.append(send("grace")))
    thread.start()
    while thread.is_alive():
        clock.advance(1)
        thread.join(0.01)
    assert sent == ["1 to grace"]
    impatient = mailer("function", limiter=limiter, name="Accounts", id="all", timeout=10)
    with pytest.raises(penstock.RateLimited):
        impatient("eve")


def test_block_takes_its_tokens_and_returns_them(limiter: Limiter) -> None:
    with limited(limiter, "Mails", id="ada") as decision:
        assert decision.remaining == 1
    with pytest.raises(LookupError), limited(limiter, "Mails", id="ada", refund_on_error=True):
        raise LookupError
    assert limiter.peek("Mails", "ada").remaining == 1
    with pytest.raises(penstock.RateLimited), limited(limiter, "Mails", id="ada", cost=2):
        pytest.fail("a denied block is not run")


@pytest.mark.anyio
async def test_block_in_a_coroutine(limiter: Limiter) -> None:
    async with limited(AsyncLimiter(limiter), "Mails", id="ada") as decision:
        assert decision.remaining == 1
    with pytest.raises(LookupError):
        async with limited(limiter, "Mails", id="ada", refund_on_error=True):
            raise LookupError
    async with limited(limiter, "Mails", id="ada"):
        pass
    with pytest.raises(penstock.RateLimited):
        await limited(limiter, "Mails", id="ada").__aenter__()


def test_function_stays_visible(limiter: Limiter) -> None:
    @limited(limiter, "Mails")
    def send(to: str) -> str:
        """Send a mail."""
        return to

    assert (send.__name__, send.__doc__) == ("send", "Send a mail.")
    assert list(inspect.signature(send).parameters) == ["to"]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Mail"},
        {"limiter": {}},
        {"cost": -1},
        {"cost": True},
        {"cost": 3},
        {"id": ""},
        {"timeout": "soon"},
        {"timeout": -1},
        {"refund_on_error": "yes"},
        {"id": mailer},
    ],
)
def test_invalid_argument_is_an_error_where_it_is_written(
    limiter: Limiter, options: dict[str, Any]
) -> None:
    if options == {"id": mailer}:

        async def id() -> str:
            return "ada"

        options = {"id": id}
    with pytest.raises(ConfigError):
        limited(**{"limiter": limiter, "name": "Mails", **options})


def test_limit_on_requests_in_flight_is_an_error_where_it_is_written() -> None:
    limits = Limits({"Exports": "1 in flight", "Mails": "2/minute"})
    limiter = Limiter(limits.with_overrides([("Mails", "ada", "1 in flight")])[0])
    for name in ("Exports", "Mails"):
        with pytest.raises(ConfigError, match=f"{name} limits requests in flight.*reserve"):
            limited(limiter, name, id="ada")
    limited(limiter, "Mails", id="grace")


@pytest.mark.parametrize("options", [{}, {"id": str}, {"id": "ada", "cost": len}])
def test_block_needs_an_id_and_a_number(limiter: Limiter, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError), limited(limiter, "Mails", **options):
        pytest.fail("the block must not run")
