"""Limits on requests in flight: slots that are held, given back, renewed and lost."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over

import penstock
from penstock import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from redis_servers import Server

LIMITS = {
    "Requests": "3/minute, fixed window",
    "Tokens": "1000/minute",
    "Calls": "2 in flight",
    "Exports": "1 in flight, lease 2s",
}
# Two epochs of the default lease, rounded up to units of 1024 ms.
TWO_LEASES = 62


class BrokenError(Exception):
    """The exception that ends a body."""


@pytest.fixture(params=["memory", "shm", "redis"])
def limiter(
    request: pytest.FixtureRequest,
    clock: penstock.ManualClock,
    tmp_path: Path,
    redis_server: Server,
) -> Iterator[penstock.Limiter]:
    """Return a limiter on each store."""
    clock.advance(1_700_000_000)
    if request.param == "redis":
        # A deadline for a busy machine.
        url = f"{redis_server.url}?deadline=20s"
    else:
        url = "memory://" if request.param == "memory" else f"shm://{tmp_path}/buckets"
    with penstock.Limiter(LIMITS, url, clock) as limiter:
        yield limiter


def left(limiter: penstock.Limiter, *names: str) -> list[int]:
    return [limiter.peek(name, "ada").remaining for name in names]


def test_a_slot_is_held_until_the_end_of_the_block(limiter: penstock.Limiter) -> None:
    with limiter.reserve("Calls", "ada") as one, limiter.reserve("Calls", "ada"):
        assert (bool(one), one.estimate, left(limiter, "Calls")) == (True, 1, [0])
        with pytest.raises(penstock.RateLimited) as caught, limiter.reserve("Calls", "ada"):
            raise AssertionError
        assert caught.value.decision.name == "Calls"
        assert limiter.reserve("Calls", "grace").release()
    assert left(limiter, "Calls") == [2]


def test_a_slot_is_given_back_if_the_body_raises(limiter: penstock.Limiter) -> None:
    with suppress(BrokenError), limiter.reserve("Calls", "ada"):
        raise BrokenError
    assert left(limiter, "Calls") == [2]


def test_a_slot_is_given_back_once(limiter: penstock.Limiter) -> None:
    first, second = limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada")
    assert [first.release(), first.release(), first.cancel(), first.release_nowait()] == [
        True,
        False,
        False,
        False,
    ]
    assert left(limiter, "Calls") == [1]
    assert second.release()
    assert left(limiter, "Calls") == [2]


def test_a_denied_reservation_takes_and_returns_nothing(limiter: penstock.Limiter) -> None:
    held = limiter.reserve("Calls", "ada", 2)
    denied = limiter.reserve("Calls", "ada")
    assert (bool(denied), denied.release(), denied.cancel()) == (False, False, False)
    assert denied.decision.headers()["Retry-After"] == "1"
    assert left(limiter, "Calls") == [0]
    assert held.release()


def test_one_decision_reserves_rates_and_slots(limiter: penstock.Limiter) -> None:
    wanted = [
        Transaction("Requests", "ada"),
        Transaction("Tokens", "ada", 400),
        Transaction("Calls", "ada"),
    ]
    with limiter.reserve_all(wanted) as reservation:
        assert [part.name for part in reservation.decision.parts] == ["Requests", "Tokens", "Calls"]
        assert left(limiter, "Requests", "Tokens", "Calls") == [2, 600, 1]
        assert reservation.settle("Tokens", 250) is None
        assert left(limiter, "Tokens") == [600]
    assert left(limiter, "Requests", "Tokens", "Calls") == [2, 750, 2]
    with limiter.reserve_all(wanted) as reservation:
        reservation.settle("Tokens", 500)
    assert left(limiter, "Requests", "Tokens", "Calls") == [1, 250, 2]


def test_an_exception_refunds_what_was_not_settled(limiter: penstock.Limiter) -> None:
    wanted = [
        Transaction("Requests", "ada"),
        Transaction("Tokens", "ada", 400),
        Transaction("Calls", "ada", 2),
    ]
    with suppress(BrokenError), limiter.reserve_all(wanted) as reservation:
        reservation.settle("Tokens", 100)
        raise BrokenError
    assert left(limiter, "Requests", "Tokens", "Calls") == [3, 900, 2]


def test_a_denied_slot_takes_no_request(limiter: penstock.Limiter) -> None:
    with limiter.reserve("Calls", "ada", 2):
        denied = limiter.reserve_all([("Requests", "ada"), ("Calls", "ada")])
        assert (bool(denied), denied.decision.binding) == (False, "Calls")
        assert left(limiter, "Requests") == [3]
    with limiter.reserve_all([Transaction("Requests", "ada", 3), Transaction("Calls", "ada")]):
        denied = limiter.reserve_all([("Requests", "ada"), ("Calls", "ada")])
        assert (bool(denied), denied.decision.binding) == (False, "Requests")
        assert left(limiter, "Calls") == [1]
    assert left(limiter, "Requests", "Calls") == [0, 2]


def test_rates_alone_can_be_reserved_together(limiter: penstock.Limiter) -> None:
    reservation = limiter.reserve_all([("Requests", "ada"), ("Tokens", "ada", 100)])
    reservation.settle("Tokens", 30)
    assert (reservation.release(), reservation.release()) == (True, False)
    assert left(limiter, "Requests", "Tokens") == [2, 970]
    assert limiter.reserve_all([("Requests", "ada"), ("Tokens", "ada", 100)]).cancel()
    assert left(limiter, "Requests", "Tokens") == [2, 970]


def test_what_only_takes_part_is_not_returned(limiter: penstock.Limiter) -> None:
    wanted = [
        Transaction("Requests", "ada", 2, "check"),
        Transaction("Calls", "ada"),
        Transaction("Tokens", "ada", 1000, "spend_only"),
        Transaction("Exports", "ada", 1, "spend_only"),
    ]
    with limiter.reserve_all(wanted) as reservation:
        assert left(limiter, "Requests", "Calls", "Tokens", "Exports") == [3, 1, 0, 0]
        with limiter.reserve_all(wanted):
            assert left(limiter, "Calls", "Tokens", "Exports") == [0, 0, 0]
        assert left(limiter, "Calls", "Tokens", "Exports") == [1, 0, 0]
        reservation.settle("Requests", 1)
    assert left(limiter, "Requests", "Calls", "Tokens", "Exports") == [3, 2, 0, 1]


@pytest.mark.parametrize(
    ("settle", "message"),
    [
        (("Calls", 1), "nothing to settle"),
        (("Other", 1), "not among the limits"),
        ((1,), "settle\\(name, actual\\)"),
    ],
)
def test_only_tokens_are_settled(
    limiter: penstock.Limiter, settle: tuple[Any, ...], message: str
) -> None:
    with (
        limiter.reserve_all([("Tokens", "ada", 400), ("Calls", "ada")]) as reservation,
        pytest.raises(penstock.ReservationError, match=message),
    ):
        reservation.settle(*settle)
    with pytest.raises(penstock.ReservationError, match="already settled"):
        reservation.settle("Tokens", 1)
    with pytest.raises(penstock.CostNegative):
        reservation.settle("Tokens", -1)
    with (
        limiter.reserve("Calls", "ada") as slot,
        pytest.raises(penstock.ReservationError, match="nothing to settle"),
    ):
        slot.settle(1)


@pytest.mark.parametrize("verb", ["spend", "refund", "acquire", "spend_each", "spend_all"])
def test_calls_that_keep_their_slots_name_reserve(limiter: penstock.Limiter, verb: str) -> None:
    arguments: dict[str, Any] = {
        "spend_each": ("Calls", ["ada"]),
        "spend_all": ([("Requests", "ada"), ("Calls", "ada")],),
    }
    with pytest.raises(penstock.LimitError, match="reserve") as caught:
        getattr(limiter, verb)(*arguments.get(verb, ("Calls", "ada")))
    assert caught.value.limit_name == "Calls"
    assert left(limiter, "Requests", "Calls") == [3, 2]


def test_slots_outlive_their_lease_while_they_are_held(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    with limiter.reserve("Exports", "ada"), limiter.reserve("Calls", "ada"):
        held = {name: counts["held"] for name, counts in limiter.counts().items()}
        assert held == {"Calls": 1, "Exports": 1, "Requests": 0, "Tokens": 0}
        for _ in range(100):
            clock.advance(7)
            assert left(limiter, "Exports", "Calls") == [0, 1]
    assert left(limiter, "Exports", "Calls") == [1, 2]
    assert limiter.counts()["Exports"]["expired"] == 0


def test_slots_of_a_killed_process_expire(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    limiter.reserve("Calls", "ada").abandon()
    with limiter.reserve("Calls", "ada"):
        clock.advance(29)
        assert left(limiter, "Calls") == [0]
        clock.advance(TWO_LEASES - 29)
        assert left(limiter, "Calls") == [1]


def test_expired_slots_are_taken_again(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    paused = limiter.reserve("Calls", "ada", 2)
    # A suspended machine: the clock moves on without any renewal.
    clock.set_ns(clock.now_ns() + 1, allow_backwards=True)
    limiter.reset("Calls", "ada")
    # Longer than the unit of epochs.
    clock.advance(2)
    with limiter.reserve("Calls", "ada"):
        clock.advance(20)
        # Three slots of two: the truth comes before the limit.
        assert left(limiter, "Calls") == [0]
        assert not limiter.reserve("Calls", "ada")
        assert limiter.counts()["Calls"]["renewed_late"] == 1
        assert paused.release()
        assert left(limiter, "Calls") == [1]
    assert left(limiter, "Calls") == [2]


def test_a_dropped_reservation_gives_its_slots_back(limiter: penstock.Limiter) -> None:
    reservation = limiter.reserve("Calls", "ada")
    assert reservation
    with pytest.warns(ResourceWarning, match="was dropped"):
        del reservation
    assert limiter.is_remote or left(limiter, "Calls") == [2]


def test_a_release_that_does_not_wait_is_executed(limiter: penstock.Limiter) -> None:
    for _ in range(20):
        wanted = [("Tokens", "ada", 10), ("Calls", "ada", 2)]
        reservation = limiter.reserve_all(wanted)
        assert reservation
        reservation.settle("Tokens", 0)
        assert reservation.release_nowait()
        # A server executes it soon.
        assert any(left(limiter, "Tokens", "Calls") == [1000, 2] for _ in range(1000))


def test_reloads_change_the_count_and_the_lease(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    first, second = limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada")
    limiter.reload(limiter.limits | {"Calls": "1 in flight, lease 5s"})
    assert not limiter.reserve("Calls", "ada")
    assert first.release()
    assert not limiter.reserve("Calls", "ada")
    clock.advance(40)
    assert not limiter.reserve("Calls", "ada")
    assert second.release()
    assert left(limiter, "Calls") == [1]


def test_a_child_process_returns_nothing(limiter: penstock.Limiter) -> None:
    if limiter.is_remote:
        pytest.skip("the child would use the connection of its parent's test")
    held = limiter.reserve("Calls", "ada", 2)
    child = os.fork()
    if child == 0:
        ok = not held.release() and not held.cancel() and not held.release_nowait()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert left(limiter, "Calls") == [0]
    assert held.release()
    assert left(limiter, "Calls") == [2]


@pytest.mark.parametrize("timeout", [None, 1000])
def test_threads_never_hold_more_than_the_limit(
    limiter: penstock.Limiter, timeout: int | None
) -> None:
    held, most, served, lock = 0, 0, 0, threading.Lock()

    def work() -> None:
        nonlocal held, most, served
        for _ in range(100 if timeout is None else 25):
            reservation = limiter.reserve("Calls", "ada", timeout=timeout)
            if not reservation:
                continue
            with lock:
                served += 1
                held += 1
                most = max(most, held)
            with lock:
                held -= 1
            assert reservation.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < most <= 2
    assert timeout is None or served == 200
    assert left(limiter, "Calls") == [2]


def test_coroutines_hold_slots(limiter: penstock.Limiter) -> None:
    shared = penstock.AsyncLimiter(limiter)

    async def run() -> None:
        async with shared.reserve("Calls", "ada"):
            assert (await shared.peek("Calls", "ada")).remaining == 1
        assert (await shared.peek("Calls", "ada")).remaining == 2
        wanted = [("Tokens", "ada", 400), ("Calls", "ada", 2)]
        async with shared.reserve_all(wanted) as reservation:
            await reservation.settle("Tokens", 100)
            assert not await shared.reserve("Calls", "ada")
        assert (await shared.peek("Tokens", "ada")).remaining == 900
        with suppress(BrokenError):
            async with shared.reserve_all(wanted):
                raise BrokenError
        assert (await shared.peek("Tokens", "ada")).remaining == 900
        assert (await shared.peek("Calls", "ada")).remaining == 2
        reservation = await shared.reserve("Calls", "ada")
        assert await reservation.release()
        assert not await reservation.release()
        assert (await shared.peek("Calls", "ada")).remaining == 2

    asyncio.run(run())


def test_cancelled_coroutines_leave_no_slot(limiter: penstock.Limiter) -> None:
    shared = penstock.AsyncLimiter(limiter)

    async def hold(turns: int) -> None:
        with suppress(penstock.RateLimited):
            async with shared.reserve_all([("Tokens", "ada", 1), ("Calls", "ada")]):
                await turn_over(turns)

    async def storm() -> None:
        for step in range(30):
            tasks = [asyncio.create_task(hold(step % 3)) for _ in range(6)]
            await turn_over(step % 5)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # What was cancelled while it was taken is returned when its reply arrives.
        for _ in range(1000):
            if (await shared.peek("Calls", "ada")).remaining == 2:
                return
            await turn_over()
        raise AssertionError

    asyncio.run(storm())


class NoThreads(ThreadPoolExecutor):
    """An executor that makes no call."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a call was made in a thread")


def test_a_coroutine_reserves_without_a_thread(limiter: penstock.Limiter) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(NoThreads())
        shared = penstock.AsyncLimiter(limiter)
        both: list[Any] = [("Tokens", "ada", 3), ("Calls", "ada")]
        async with shared.reserve("Calls", "ada"), shared.reserve_all(both) as reservation:
            assert not await shared.limit("Calls").reserve("ada")
            reservation.reservation.settle("Tokens", 2)

    asyncio.run(main())
    assert left(limiter, "Tokens", "Calls") == [998, 2]


class Queue:
    """Coroutines that wait for slots of `ada`, and what became of them.

    Attributes:
        outcomes: Name of each waiter that was served or refused, in order.
        held: The reservations of those that were served.
    """

    def __init__(self, limiter: penstock.Limiter) -> None:
        self.limiter = penstock.AsyncLimiter(limiter)
        self.outcomes: list[tuple[str, str]] = []
        self.held: dict[str, penstock.Reservation] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, who: str, cost: int = 1, timeout: float = 10_000) -> None:  # noqa: ASYNC109
        """Start a waiter, and let it run until it waits."""
        self.tasks[who] = asyncio.create_task(self._wait(who, cost, timeout))
        await self.settle()

    async def _wait(self, who: str, cost: int, timeout: float) -> None:  # noqa: ASYNC109
        try:
            reserved = await self.limiter.reserve("Calls", "ada", cost, timeout=timeout)
        except penstock.Error as error:
            self.outcomes.append((who, type(error).__name__))
        else:
            self.held[who] = reserved.reservation
            self.outcomes.append((who, "served"))

    async def settle(self) -> None:
        """Let all waiters that were notified take their steps."""
        for _ in range(4):
            await turn_over()
            # Over a store that may wait, it follows their steps in the same thread.
            await self.limiter.reserve("Exports", "settle", 0, timeout=0)
        await turn_over()

    async def release(self, who: str) -> None:
        await asyncio.to_thread(self.held.pop(who).release)
        await self.settle()

    async def cancel(self, *names: str) -> None:
        for who in names:
            self.tasks[who].cancel()
        await self.settle()

    def taken(self) -> list[tuple[str, str]]:
        """Return the new outcomes."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


def play(limiter: penstock.Limiter, scenario: Callable[[Queue], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario that ends without waiters, and check that it leaves no slot behind."""

    async def run() -> None:
        queue = Queue(limiter)
        await scenario(queue)
        for task in queue.tasks.values():
            task.cancel()
        await queue.settle()
        for reservation in queue.held.values():
            await asyncio.to_thread(reservation.release)

    asyncio.run(run())
    assert left(limiter, "Calls") == [2]
    assert limiter.counts()["Calls"]["held"] == 0


def test_waiters_take_returned_slots_in_order(limiter: penstock.Limiter) -> None:
    async def scenario(queue: Queue) -> None:
        for who in "abcdef":
            await queue.send(who)
        assert queue.taken() == [("a", "served"), ("b", "served")]
        await queue.release("b")
        assert queue.taken() == [("c", "served")]
        await queue.release("a")
        await queue.release("c")
        assert queue.taken() == [("d", "served"), ("e", "served")]
        assert not limiter.reserve("Calls", "ada")
        assert limiter.reserve("Calls", "grace", timeout=0).release()

    play(limiter, scenario)
    spends = limiter.counts()["Calls"]["spends"]
    # A waiter is not denied yet; the one denial is that of the call that did not wait.
    assert (spends["allowed"], spends["denied"]) == (6, 1)


def test_a_waiter_for_two_slots_is_not_overtaken(limiter: penstock.Limiter) -> None:
    async def scenario(queue: Queue) -> None:
        for who, cost in [("a", 1), ("b", 1), ("both", 2), ("c", 1)]:
            await queue.send(who, cost)
        await queue.release("a")
        assert queue.taken() == [("a", "served"), ("b", "served")]
        await queue.release("b")
        assert queue.taken() == [("both", "served")]
        await queue.release("both")
        assert queue.taken() == [("c", "served")]

    play(limiter, scenario)


def test_a_waiter_leaves_slots_to_others(limiter: penstock.Limiter) -> None:
    shared = penstock.AsyncLimiter(limiter)

    async def polite() -> None:
        async with shared.reserve("Calls", "ada", keep=1, timeout=1000):
            pass

    async def scenario(queue: Queue) -> None:
        for who in "ab":
            await queue.send(who)
        waiting = asyncio.create_task(polite())
        await queue.settle()
        await queue.send("c")
        await queue.release("a")
        assert ("c", "served") in queue.taken()
        await queue.release("b")
        assert not waiting.done()
        await queue.release("c")
        await waiting

    play(limiter, scenario)


def test_a_cancelled_waiter_lets_others_move_up(limiter: penstock.Limiter) -> None:
    async def scenario(queue: Queue) -> None:
        for who, cost in [("a", 1), ("b", 1), ("both", 2), ("c", 1), ("d", 1)]:
            await queue.send(who, cost)
        await queue.release("a")
        await queue.cancel("both")
        assert queue.taken() == [("a", "served"), ("b", "served"), ("c", "served")]
        # Cancelled in the very turn in which its slot is returned.
        queue.held.pop("b").release()
        await queue.cancel("d")
        assert queue.taken() == []
        await queue.send("e")
        assert queue.taken() == [("e", "served")]

    play(limiter, scenario)


def test_the_wait_for_a_slot_ends_at_the_timeout(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    async def scenario(queue: Queue) -> None:
        await queue.send("both", 2)
        for who, timeout in [("a", 5), ("b", 3), ("c", 8), ("never", 0)]:
            await queue.send(who, 1, timeout)
        assert queue.taken() == [("both", "served"), ("never", "RateLimited")]
        clock.advance(3)
        await queue.settle()
        assert queue.taken() == [("b", "RateLimited")]
        await queue.release("both")
        clock.advance(1)
        await queue.settle()
        assert queue.taken() == [("a", "served"), ("c", "served")]

    play(limiter, scenario)
    with limiter.reserve("Calls", "ada", 2):
        with pytest.raises(penstock.RateLimited) as caught:
            limiter.reserve("Calls", "ada", timeout=0)
        assert (caught.value.decision.name, caught.value.decision.allowed) == ("Calls", False)
    spends = limiter.counts()["Calls"]["spends"]
    assert (spends["allowed"], spends["denied"]) == (4, 3)


def test_a_slot_returned_by_another_process_is_found(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    if not limiter.is_shared:
        pytest.skip("no other process uses the store")
    other = penstock.Limiter(LIMITS, limiter.store, clock)
    held = other.reserve("Calls", "ada", 2)

    async def scenario(queue: Queue) -> None:
        await queue.send("a")
        held.release()
        await queue.settle()
        assert queue.taken() == []
        clock.advance(0.063)
        await queue.settle()
        assert queue.taken() == [("a", "served")]

    play(limiter, scenario)
    other.close()


def test_a_busy_process_leaves_slots_to_others(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    async def scenario(queue: Queue) -> None:
        await queue.send("0", 2)
        for index in range(1, 61):
            await queue.send(str(index), 2)
        idle = 0
        for index in range(60):
            await queue.release(str(index))
            idle += str(index + 1) not in queue.held
            # Time passes in which no waiter asks by itself, and then some in which it does.
            clock.advance(0.01)
            await queue.settle()
            if str(index + 1) not in queue.held:
                clock.advance(0.063)
                await queue.settle()
        assert [who for who, _ in queue.taken()] == [str(index) for index in range(61)]
        assert idle == 0 if not limiter.is_shared else 1 <= idle <= 4

    play(limiter, scenario)


def test_slots_of_a_killed_process_serve_waiters(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    limiter.reserve("Calls", "ada", 2).abandon()

    async def scenario(queue: Queue) -> None:
        await queue.send("a")
        clock.advance(29)
        await queue.settle()
        assert queue.taken() == []
        clock.advance(TWO_LEASES - 29)
        await queue.settle()
        assert queue.taken() == [("a", "served")]

    play(limiter, scenario)


@pytest.mark.parametrize("way", ["reload", "reset", "unlimited"])
def test_changes_of_the_limit_wake_waiters(limiter: penstock.Limiter, way: str) -> None:
    async def scenario(queue: Queue) -> None:
        for who, cost in [("both", 2), ("a", 1), ("b", 1), ("c", 2)]:
            await queue.send(who, cost)
        match way:
            case "reload":
                limits = limiter.limits | {"Calls": "4 in flight"}
                await asyncio.to_thread(limiter.reload, limits)
            case "unlimited":
                limits = limiter.limits | {"Calls": penstock.Limit.unlimited()}
                await asyncio.to_thread(limiter.reload, limits)
            case "reset":
                await asyncio.to_thread(limiter.reset, "Calls", "ada")
        await queue.settle()
        served = ["both", "a", "b", *(["c"] if way == "unlimited" else [])]
        assert queue.taken() == [(who, "served") for who in served]
        await asyncio.to_thread(limiter.reload, LIMITS)
        await queue.settle()

    play(limiter, scenario)


def test_closing_raises_in_waiters_for_slots(limiter: penstock.Limiter) -> None:
    async def scenario() -> None:
        queue = Queue(limiter)
        await queue.send("both", 2)
        await queue.send("a")
        await asyncio.to_thread(limiter.close)
        await asyncio.wait(queue.tasks.values())
        assert queue.taken() == [("both", "served"), ("a", "StoreError")]
        queue.held["both"].release()

    asyncio.run(scenario())


def test_reservations_of_rates_wait_as_acquire_does(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    limiter.spend("Tokens", "ada", 1000)
    with pytest.raises(penstock.RateLimited) as caught:
        limiter.reserve("Tokens", "ada", 100, timeout=5.9)
    assert caught.value.decision.retry_after == 6.0

    async def scenario() -> None:
        shared = penstock.AsyncLimiter(limiter)
        start = clock.now_ns()
        reserving = asyncio.ensure_future(_enter(shared, "Tokens", 100))
        acquiring = asyncio.ensure_future(_acquire(shared, "Tokens", 50))
        await turn_over()
        for _ in range(100):
            if limiter.peek("Tokens", "ada").retry_after_ns:
                break
            await asyncio.to_thread(threading.Event().wait, 0.01)
        clock.advance(60)
        assert await reserving >= start + 6_000_000_000
        await acquiring

    asyncio.run(scenario())
    assert left(limiter, "Tokens") == [870]


async def _enter(limiter: penstock.AsyncLimiter, name: str, cost: int) -> int:
    async with limiter.reserve(name, "ada", cost, timeout="1m") as reservation:
        await reservation.settle(cost - 20)
        return reservation.decision.now_ns


async def _acquire(limiter: penstock.AsyncLimiter, name: str, cost: int) -> None:
    await limiter.acquire(name, "ada", cost)


def test_what_changes_the_limit_of_a_call_cannot_wait(limiter: penstock.Limiter) -> None:
    shared = penstock.AsyncLimiter(limiter)

    async def wait() -> None:
        await shared.reserve("Calls", "ada", factor=2, timeout=1)

    with pytest.raises(TypeError, match="timeout"):
        limiter.reserve("Calls", "ada", factor=2, timeout=1)
    with pytest.raises(TypeError, match="timeout"):
        asyncio.run(wait())
    with pytest.raises(ValueError, match="timeout"):
        limiter.reserve("Calls", "ada", timeout=-1)
    with pytest.raises(penstock.CostTooHigh):
        limiter.reserve("Calls", "ada", 3, timeout=1)
    assert left(limiter, "Calls") == [2]


def test_waiters_agree_with_a_list(limiter: penstock.Limiter, clock: penstock.ManualClock) -> None:
    """Random histories of arrivals, releases, cancellations and timeouts."""
    choose = random.Random(24)  # noqa: S311  one that can be repeated

    async def scenario(queue: Queue) -> None:
        free, held = 2, dict[str, int]()
        # The cost and the deadline of each waiter, in order of arrival.
        waiting: dict[str, tuple[int, float]] = {}
        expected: list[tuple[str, str]] = []

        def serve() -> None:
            nonlocal free
            while waiting and (cost := next(iter(waiting.values()))[0]) <= free:
                who = next(iter(waiting))
                del waiting[who]
                free, held[who] = free - cost, cost
                expected.append((who, "served"))

        for step in range(80):
            match choose.choice(["send", "send", "release", "release", "cancel"]):
                case "send":
                    cost = choose.choice([1, 1, 2])
                    # After the process has asked by itself, and different from all others.
                    timeout = choose.choice([0, 3, 1000]) + 0.3 + step / 1000
                    waiting[str(step)] = cost, step + timeout
                    await queue.send(str(step), cost, timeout)
                case "release" if held:
                    free += held.pop(who := choose.choice([*held]))
                    await queue.release(who)
                case "cancel" if waiting:
                    del waiting[who := choose.choice([*waiting])]
                    await queue.cancel(who)
            serve()
            clock.advance(1)
            await queue.settle()
            for who in sorted(waiting, key=lambda who: waiting[who][1]):
                if who in waiting and waiting[who][1] < step + 1:
                    del waiting[who]
                    expected.append((who, "RateLimited"))
                    serve()
            assert sorted(queue.taken()) == sorted(expected), step
            expected.clear()
            assert left(limiter, "Calls") == [free]

    play(limiter, scenario)


def test_a_storm_of_cancelled_waiters_leaves_no_slot(limiter: penstock.Limiter) -> None:
    shared = penstock.AsyncLimiter(limiter)
    choose = random.Random(7)  # noqa: S311  one that can be repeated

    async def hold(turns: int) -> None:
        async with shared.reserve("Calls", "ada", timeout=10_000):
            await turn_over(turns)

    async def storm() -> None:
        for step in range(20):
            tasks = [asyncio.create_task(hold(step % 3)) for _ in range(8)]
            await turn_over(choose.randrange(12))
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results[1::2]} == {type(None)}
        await Queue(limiter).settle()

    asyncio.run(asyncio.wait_for(storm(), 60))
    assert left(limiter, "Calls") == [2]
    assert limiter.counts()["Calls"]["held"] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_waiters_for_slots_are_in_the_parent(limiter: penstock.Limiter) -> None:
    if limiter.is_remote:
        pytest.skip("the child would use the connection of its parent's test")

    async def scenario(queue: Queue) -> None:
        await queue.send("both", 2)
        await queue.send("a")
        child = os.fork()
        if child == 0:
            os._exit(1 if queue.held["both"].release() else 0)
        assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        assert queue.taken() == [("both", "served")]
        await queue.release("both")
        assert queue.taken() == [("a", "served")]

    play(limiter, scenario)


def test_no_thread_is_left_when_nothing_is_held() -> None:
    limiter = penstock.Limiter({"Calls": "2 in flight, lease 2s"})
    # Limiters of other tests may still have one.
    others = threading.enumerate()
    with limiter.reserve("Calls", "ada"):
        (renewal,) = {*threading.enumerate()} - {*others}
        assert renewal.name == "penstock-leases"
        with limiter.reserve("Calls", "ada"):
            assert {*threading.enumerate()} - {*others} == {renewal}
    renewal.join()
    assert limiter.reserve("Calls", "ada", 2).release()
