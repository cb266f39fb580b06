"""The verbs of a limiter, awaitable; and tasks that wait for their turn."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import AsyncLimiter, Limit, aio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from conftest import MakeLimiter

pytestmark = pytest.mark.anyio

SECOND = 1_000_000_000
TENTH = SECOND // 10


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> AsyncLimiter:
    return AsyncLimiter(
        make_limiter({"Tokens": Limit.token_bucket(burst=10, count=10, period="1s")})
    )


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


class Crowd:
    """Tasks that wait, and the order in which they are served."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self.limiter = limiter
        self.start_ns = limiter.clock.now_ns()
        self.served: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, count: int, cost: int = 1) -> None:
        """Start `count` tasks one after the other, and return when all are in the queue."""
        for _ in range(count):
            self.tasks.append(asyncio.ensure_future(self._wait(len(self.tasks), cost)))
        await turn_over()

    async def _wait(self, who: int, cost: int) -> None:
        decision = await self.limiter.acquire("Tokens", "ada", cost)
        assert decision.allowed
        self.served.put_nowait((who, decision.now_ns - self.start_ns))

    async def next(self) -> tuple[int, int]:
        """Return which task is served next, and when, in nanoseconds since the start."""
        return await asyncio.wait_for(self.served.get(), 30)


async def turn_over() -> None:
    """Let the loop run what it has, and what comes of that."""
    for _ in range(5):
        passed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(passed.set_result, None)
        await passed


def test_importing_penstock_imports_no_asyncio() -> None:
    code = (
        "import sys, penstock; assert 'asyncio' not in sys.modules; "
        "penstock.AsyncLimiter; assert 'asyncio' in sys.modules; "
        "assert {'AsyncLimiter', 'Limiter'} <= set(dir(penstock))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
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
        assert at_once(verbs.refund(*first, 1)).remaining == 7
        assert at_once(verbs.acquire(*first, 2)).remaining == 5
        name = first[:-1]
        assert at_once(verbs.spend_each(*name, ["ada", "grace"])).remaining.tolist()[0] == 4
        reservation = at_once(_awaited(verbs.reserve(*first, 4)))
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


async def _awaited(reservation: aio.AsyncReservation) -> aio.AsyncReservation:
    return await reservation


def at_once_raising(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that raises without waiting."""
    coroutine.send(None)


@pytest.mark.parametrize("name", ["hit", "try_acquire", "wait"])
def test_verbs_of_other_libraries_name_ours(limiter: AsyncLimiter, name: str) -> None:
    for verbs in (limiter, limiter.limit("Tokens")):
        with pytest.raises(AttributeError) as theirs:
            getattr(verbs, name)
        with pytest.raises(AttributeError) as plain:
            getattr(limiter.limiter, name)
        expected = str(plain.value).replace("Limiter", type(verbs).__name__)
        assert str(theirs.value) == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied_either(limiter: AsyncLimiter, copied: Callable[[Any], Any]) -> None:
    for verbs in (limiter, limiter.limit("Tokens")):
        with pytest.raises(TypeError, match=type(verbs).__name__):
            copied(verbs)


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


def test_it_is_made_as_a_limiter_is_or_around_one(clock: penstock.ManualClock) -> None:
    made = AsyncLimiter({"Tokens": "1/second"}, "memory://?max_buckets=100", clock)
    assert (made.store, made.clock) == ("memory://?max_buckets=100", clock)
    assert bool(made)
    around = AsyncLimiter(made.limiter)
    assert at_once(around.spend("Tokens", "ada"))
    assert not made.limiter.spend("Tokens", "ada")
    with pytest.raises(TypeError, match="the limiter's own"):
        AsyncLimiter(made.limiter, clock=clock)
    assert repr(made) == "<AsyncLimiter of 1 limits at memory://?max_buckets=100>"
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


def test_nothing_is_reserved_before_it_is_awaited(limiter: AsyncLimiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    assert len(limiter) == 0
    assert repr(reservation) == "<AsyncReservation, to be awaited>"
    with pytest.raises(penstock.ReservationError, match="await"):
        bool(reservation)
    with pytest.raises(penstock.UnknownLimit):
        at_once_raising(_awaited(limiter.reserve("Nothing", "ada")))
    assert at_once(_awaited(reservation)) is at_once(_awaited(reservation)) is reservation
    assert limiter.limiter.check("Tokens", "ada", 0).remaining == 4


async def test_one_that_is_cancelled_as_its_turn_comes_gives_it_back(
    limiter: AsyncLimiter, clock: penstock.ManualClock
) -> None:
    limiter.limiter.spend("Tokens", "ada", 10)
    crowd = Crowd(limiter)
    await crowd.send(30)
    # Before the task could run.
    clock.advance_ns(TENTH)
    crowd.tasks[0].cancel()
    await turn_over()
    assert crowd.tasks[0].cancelled()
    assert await crowd.next() == (1, TENTH)
    for who in range(2, 30):
        clock.advance_ns(TENTH)
        assert await crowd.next() == (who, who * TENTH)


async def test_leaving_a_closed_limiter_is_no_error(
    limiter: AsyncLimiter, clock: penstock.ManualClock
) -> None:
    limiter.limiter.spend("Tokens", "ada", 10)
    crowd = Crowd(limiter)
    await crowd.send(30)
    limiter.limiter.close()
    for task in crowd.tasks:
        task.cancel()
    outcomes = await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {
        asyncio.CancelledError,
        penstock.StoreError,
    }
    assert isinstance(outcomes[0], asyncio.CancelledError)


async def test_a_wait_that_is_too_long_is_refused_at_once(
    limiter: AsyncLimiter, clock: penstock.ManualClock
) -> None:
    crowd = Crowd(limiter)
    await crowd.send(100)
    with pytest.raises(penstock.RateLimited) as raised:
        await limiter.acquire("Tokens", "ada", 2, timeout=9.1)
    assert raised.value.decision.retry_after == 9.2
    waits = asyncio.ensure_future(limiter.acquire("Tokens", "ada", 2, timeout=9.2))
    await turn_over()
    assert not waits.done()
    clock.advance(9.2)
    assert (await waits).now_ns == crowd.start_ns + 92 * TENTH
    await asyncio.gather(*crowd.tasks)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            await limiter.acquire("Tokens", "ada", timeout=timeout)


async def test_a_thread_and_tasks_stand_in_one_line(
    limiter: AsyncLimiter, clock: penstock.ManualClock
) -> None:
    served: list[str] = []

    def wait() -> None:
        limiter.limiter.acquire("Tokens", "ada")
        served.append("thread")

    async def task(name: str) -> None:
        await limiter.acquire("Tokens", "ada")
        served.append(name)

    limiter.limiter.spend("Tokens", "ada", 10)
    first = asyncio.ensure_future(task("first"))
    await turn_over()
    thread = threading.Thread(target=wait)
    thread.start()
    while limiter.limiter.check("Tokens", "ada", 0).retry_after_ns < 2 * TENTH:
        await turn_over()
    last = asyncio.ensure_future(task("last"))
    await turn_over()
    clock.advance_ns(TENTH)
    await first
    clock.advance_ns(TENTH)
    await asyncio.to_thread(thread.join)
    clock.advance_ns(TENTH)
    await last
    assert served == ["first", "thread", "last"]


async def test_the_clock_may_be_moved_by_another_thread(
    limiter: AsyncLimiter, clock: penstock.ManualClock
) -> None:
    crowd = Crowd(limiter)
    await crowd.send(30)
    await asyncio.to_thread(clock.advance, 2)
    assert [(await crowd.next())[0] for _ in range(30)] == [*range(30)]


def test_on_the_system_clock_no_waiter_is_early() -> None:
    async def run() -> list[int]:
        limiter = AsyncLimiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="20ms")})
        waits = [limiter.acquire("Tokens", "ada", timeout=5) for _ in range(5)]
        return [decision.now_ns for decision in await asyncio.gather(*waits)]

    instants = asyncio.run(run())
    for place, instant in enumerate(instants):
        assert instant - instants[0] >= place * 20_000_000
