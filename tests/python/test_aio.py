"""The methods of a limiter as coroutines, and tasks that wait for their turn."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from loops import at_once, awaited
from programs import run

import penstock
from penstock import AsyncLimiter, Limit, aio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from conftest import MakeLimiter

pytestmark = pytest.mark.anyio


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> AsyncLimiter:
    return AsyncLimiter(
        make_limiter({"Tokens": Limit.token_bucket(burst=10, count=10, period="1s")})
    )


def test_importing_penstock_imports_no_asyncio() -> None:
    code = (
        "import sys, penstock; assert 'asyncio' not in sys.modules; "
        "penstock.AsyncLimiter; assert 'asyncio' in sys.modules; "
        "assert {'AsyncLimiter', 'Limiter'} <= set(dir(penstock))"
    )
    run(code)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = penstock.Nothing


def test_every_verb_answers_at_once(limiter: AsyncLimiter) -> None:
    both: list[tuple[Any, tuple[str, ...]]] = [
        (limiter, ("Tokens", "ada")),
        (limiter.limit("Tokens"), ("ada",)),
    ]
    for verbs, first in both:
        at_once(verbs.reset(*first))
        assert at_once(verbs.spend(*first, 4)).remaining == 6
        assert at_once(verbs.check(*first, 4)).remaining == 2
        assert at_once(verbs.refund(*first, 2)).remaining == 8
        assert at_once(verbs.charge(*first, 1)).remaining == 7
        assert at_once(verbs.acquire(*first, 2)).remaining == 5
        name = first[:-1]
        assert at_once(verbs.spend_each(*name, ["ada", "grace"])).remaining.tolist()[0] == 4
        reservation = at_once(awaited(verbs.reserve(*first, 4)))
        assert reservation
        assert at_once(reservation.settle(1)).remaining == 3
        assert at_once(reservation.cancel()) is False
    assert limiter.limit("Tokens").address_id("2001:DB8::7") == "2001:db8::"
    assert at_once(limiter.spend_all([("Tokens", "ada", 3)])).remaining == 0
    assert not at_once(limiter.check_all([("Tokens", "ada")]))
    assert at_once(limiter.refund_all([("Tokens", "ada", 5)])).remaining == 5
    assert at_once(limiter.stats())["buckets"] == len(limiter) == 2
    at_once(limiter.reload({"Tokens": "1/second", "More": "1/second"}))
    assert list(limiter.limits) == ["Tokens", "More"]
    assert at_once(limiter.define("Most", "5/second").spend("ada")).remaining == 4
    at_once(limiter.close())
    with pytest.raises(penstock.StoreError):
        at_once_raising(limiter.spend("Tokens", "ada"))


def at_once_raising(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that raises without waiting."""
    coroutine.send(None)


CALLS: dict[str, Callable[[AsyncLimiter], Coroutine[Any, Any, Any]]] = {
    "spend": lambda limiter: limiter.spend("Tokens", "ada"),
    "check": lambda limiter: limiter.check("Tokens", "ada"),
    "peek": lambda limiter: limiter.peek("Tokens", "ada"),
    "refund": lambda limiter: limiter.refund("Tokens", "ada"),
    "charge": lambda limiter: limiter.charge("Tokens", "ada"),
    "reset": lambda limiter: limiter.reset("Tokens", "ada"),
    "acquire": lambda limiter: limiter.acquire("Tokens", "ada"),
    "spend_each": lambda limiter: limiter.spend_each("Tokens", ["ada"]),
    "spend_all": lambda limiter: limiter.spend_all([("Tokens", "ada")]),
    "check_all": lambda limiter: limiter.check_all([("Tokens", "ada")]),
    "refund_all": lambda limiter: limiter.refund_all([("Tokens", "ada")]),
    "reset_all": lambda limiter: limiter.reset_all([("Tokens", "ada")]),
    "stats": lambda limiter: limiter.stats(),
    "bound spend": lambda limiter: limiter.limit("Tokens").spend("ada"),
    "bound acquire": lambda limiter: limiter.limit("Tokens").acquire("ada"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


def test_every_call_is_listed() -> None:
    # These have tests of their own: their results are entered, or are values.
    others = {"acquire_all", "close", "counts", "define", "limit", "reload", "reserve"}
    others |= {"reserve_all", "top_denied"}
    verbs = {name for name, value in vars(AsyncLimiter).items() if inspect.isfunction(value)}
    assert {name for name in verbs if not name.startswith("_")} - others <= CALLS.keys()


@every_call
def test_call_without_await_has_no_truth_value(
    limiter: AsyncLimiter, call: Callable[[AsyncLimiter], Coroutine[Any, Any, Any]]
) -> None:
    with pytest.raises(TypeError, match=r"\(\) is not awaited; write `await"):
        bool(call(limiter))
    assert len(limiter) == 0


def drop(call: Callable[[AsyncLimiter], Coroutine[Any, Any, Any]], limiter: AsyncLimiter) -> None:
    """Make a call whose result nothing uses."""
    _ = call(limiter)


@every_call
def test_call_that_is_dropped_warns(
    limiter: AsyncLimiter, call: Callable[[AsyncLimiter], Coroutine[Any, Any, Any]]
) -> None:
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        drop(call, limiter)
    assert len(limiter) == 0


@every_call
async def test_call_is_awaited_in_every_way(
    limiter: AsyncLimiter, call: Callable[[AsyncLimiter], Coroutine[Any, Any, Any]]
) -> None:
    expected = type(await call(limiter))
    results = [
        await asyncio.create_task(call(limiter)),
        *await asyncio.gather(call(limiter)),
        await asyncio.wait_for(call(limiter), 60),
        await asyncio.shield(call(limiter)),
    ]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(call(limiter))
    assert {type(result) for result in [*results, task.result()]} == {expected}


async def test_call_is_awaited_once(limiter: AsyncLimiter) -> None:
    spend = limiter.spend("Tokens", "ada")
    assert (await spend).remaining == 9
    with pytest.raises(RuntimeError, match="already awaited"):
        await spend
    limiter.spend("Tokens", "ada").close()
    assert (await limiter.peek("Tokens", "ada")).remaining == 9


@pytest.mark.parametrize(
    ("awaited", "plain"),
    [(AsyncLimiter, penstock.Limiter), (aio.AsyncBoundLimit, penstock.BoundLimit)],
)
def test_it_has_every_verb_with_the_same_parameters(awaited: type, plain: type) -> None:
    verbs = [name for name in dir(plain) if not name.startswith("_") and hasattr(plain, name)]
    assert len(verbs) > 7
    for verb in verbs:
        ours, theirs = getattr(awaited, verb), getattr(plain, verb)
        if callable(theirs):
            parameters = [*inspect.signature(theirs).parameters]
            assert [*inspect.signature(ours).parameters] == parameters, verb


def test_async_limiter_is_created_from_arguments_or_a_limiter(clock: penstock.ManualClock) -> None:
    made = AsyncLimiter({"Tokens": "1/second"}, "memory://?max_buckets=100", clock)
    assert (made.store, made.clock) == ("memory://?max_buckets=100", clock)
    assert bool(made)
    around = AsyncLimiter(made.limiter)
    assert at_once(around.spend("Tokens", "ada"))
    assert not made.limiter.spend("Tokens", "ada")
    with pytest.raises(TypeError, match="the limiter's own"):
        AsyncLimiter(made.limiter, clock=clock)
    assert repr(made) == "<AsyncLimiter of 1 limit at memory://?max_buckets=100>"
    assert repr(made.limit("Tokens")) == "<AsyncBoundLimit 'Tokens'>"


async def test_it_closes_as_it_is_left(limiter: AsyncLimiter) -> None:
    async with limiter as entered:
        assert entered is limiter
    with pytest.raises(penstock.StoreError):
        await limiter.spend("Tokens", "ada")


async def test_a_reservation_is_entered(limiter: AsyncLimiter) -> None:
    async with limiter.reserve("Tokens", "ada", 6) as reservation:
        assert (reservation.estimate, reservation.decision.remaining) == (6, 4)
        assert (await reservation.settle(15)).retry_after == 0.5
    assert repr(reservation) == "<AsyncReservation Tokens ada: 6, settled>"
    with pytest.raises(ZeroDivisionError):
        async with limiter.limit("Tokens").reserve("grace", 6):
            _ = 1 // 0
    assert (await limiter.check("Tokens", "grace", 0)).remaining == 10
    with pytest.raises(penstock.RateLimited):
        async with limiter.reserve("Tokens", "ada"):
            pytest.fail("the body must not run")


def test_nothing_is_reserved_before_it_isawaited(limiter: AsyncLimiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    assert len(limiter) == 0
    assert repr(reservation) == "<AsyncReservation, to be awaited>"
    with pytest.raises(penstock.ReservationError, match="await"):
        bool(reservation)
    with pytest.raises(penstock.UnknownLimit):
        at_once_raising(awaited(limiter.reserve("Nothing", "ada")))
    assert at_once(awaited(reservation)) is at_once(awaited(reservation)) is reservation
    assert limiter.limiter.check("Tokens", "ada", 0).remaining == 4
    assert at_once(reservation.cancel())


def test_on_the_system_clock_no_waiter_is_early() -> None:
    async def wait() -> list[int]:
        limiter = AsyncLimiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="20ms")})
        waits = [limiter.acquire("Tokens", "ada", timeout=60) for _ in range(5)]
        return [decision.now_ns for decision in await asyncio.gather(*waits)]

    instants = asyncio.run(wait())
    for index, instant in enumerate(instants):
        assert instant - instants[0] >= index * 20_000_000
