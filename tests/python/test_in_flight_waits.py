"""Waiting for a slot of a limit on requests in flight, alone and together with a token."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over
from programs import is_so_in_a_child
from waiters import Crowd, left

import penstock
from penstock import AsyncLimiter, AsyncReservation, Limiter, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {
    "Tokens": "1000/minute",
    "Calls": "2 in flight",
    "Exports": "1 in flight, lease 2s",
}
# Two epochs of the default lease, rounded up to units of 1024 ms.
TWO_LEASES = 62


@pytest.fixture
def limiter(any_store: str, clock: ManualClock) -> Iterator[Limiter]:
    """Return a limiter on each store."""
    clock.advance(1_700_000_000)
    with Limiter(LIMITS, any_store, clock) as limiter:
        yield limiter


class Queue(Crowd):
    """Coroutines that wait for slots of `ada`: by themselves, or together with a token."""

    idle = "Exports"

    def __init__(self, limiter: Limiter, *, is_joint: bool = False) -> None:
        super().__init__(limiter)
        self.is_joint = is_joint

    async def ask(self, cost: int = 1, **options: Any) -> AsyncReservation:
        return await self.call(cost, **options)

    def call(self, cost: int, keep: int = 0, timeout: float | None = 10_000) -> AsyncReservation:
        """Return the call for which a task waits."""
        if self.is_joint:
            both = [Transaction("Tokens", "ada"), Transaction("Calls", "ada", cost, keep=keep)]
            return self.calls.reserve_all(both, timeout=timeout)
        return self.calls.reserve("Calls", "ada", cost, keep=keep, timeout=timeout)

    def taken(self) -> list[tuple[str, float | str]]:
        return [(who, at if isinstance(at, str) else "served") for who, at in super().taken()]


@pytest.fixture(params=[False, True], ids=["alone", "joint"])
def queue(request: pytest.FixtureRequest, limiter: Limiter) -> Iterator[Queue]:
    """Waiters that leave no slot behind."""
    queue = Queue(limiter, is_joint=request.param)
    yield queue
    queue.close()
    assert left(limiter, "Calls") == [2]
    assert limiter.counts()["Calls"]["held"] == 0


def test_waiters_take_returned_slots_in_order(queue: Queue, limiter: Limiter) -> None:
    for who in "abcdef":
        queue.send(who)
    assert queue.taken() == [("a", "served"), ("b", "served")]
    queue.release("b")
    assert queue.taken() == [("c", "served")]
    queue.release("a")
    queue.release("c")
    assert queue.taken() == [("d", "served"), ("e", "served")]
    assert not limiter.reserve("Calls", "ada")
    assert limiter.reserve("Calls", "grace", timeout=0).release()
    spends = limiter.counts()["Calls"]["spends"]
    # A waiter is not denied yet; the one denial is that of the call that did not wait.
    assert (spends["allowed"], spends["denied"]) == (6, 1)


def test_a_waiter_for_two_slots_is_not_overtaken(queue: Queue) -> None:
    for who, cost in [("a", 1), ("b", 1), ("both", 2), ("c", 1)]:
        queue.send(who, cost)
    queue.release("a")
    assert queue.taken() == [("a", "served"), ("b", "served")]
    queue.release("b")
    assert queue.taken() == [("both", "served")]
    queue.release("both")
    assert queue.taken() == [("c", "served")]


def test_a_waiter_leaves_slots_to_others(queue: Queue) -> None:
    for who, keep in [("a", 0), ("b", 0), ("polite", 1), ("c", 0)]:
        queue.send(who, keep=keep)
    queue.release("a")
    assert queue.taken() == [("a", "served"), ("b", "served"), ("c", "served")]
    queue.release("b")
    assert queue.waiting() == ["polite"]
    queue.release("c")
    assert queue.taken() == [("polite", "served")]


def test_a_cancelled_waiter_lets_others_move_up(queue: Queue) -> None:
    for who, cost in [("a", 1), ("b", 1), ("both", 2), ("c", 1), ("d", 1)]:
        queue.send(who, cost)
    queue.release("a")
    queue.leave("both")
    assert queue.taken() == [("a", "served"), ("b", "served"), ("c", "served")]
    # Cancelled in the very turn in which its slot is returned.
    queue.held.pop("b").release()
    queue.leave("d")
    assert queue.taken() == []
    queue.send("e")
    assert queue.taken() == [("e", "served")]


def test_the_wait_for_a_slot_ends_at_the_timeout(queue: Queue, limiter: Limiter) -> None:
    queue.send("both", 2)
    for who, timeout in [("a", 5), ("b", 3), ("c", 8), ("never", 0)]:
        queue.send(who, timeout=timeout)
    assert queue.taken() == [("both", "served"), ("never", "RateLimited")]
    queue.advance(3)
    assert queue.taken() == [("b", "RateLimited")]
    queue.release("both")
    queue.advance(1)
    assert queue.taken() == [("a", "served"), ("c", "served")]
    queue.close()
    with limiter.reserve("Calls", "ada", 2):
        with pytest.raises(penstock.RateLimited) as caught:
            limiter.reserve("Calls", "ada", timeout=0)
        assert (caught.value.decision.name, caught.value.decision.allowed) == ("Calls", False)
    spends = limiter.counts()["Calls"]["spends"]
    assert (spends["allowed"], spends["denied"]) == (4, 3)


def test_a_slot_returned_by_another_process_is_found(
    queue: Queue, limiter: Limiter, clock: ManualClock
) -> None:
    if not limiter.is_shared:
        pytest.skip("no other process uses the store")
    other = Limiter(LIMITS, limiter.store, clock)
    held = other.reserve("Calls", "ada", 2)
    queue.send("a")
    held.release()
    assert queue.taken() == []
    queue.advance(0.063)
    assert queue.taken() == [("a", "served")]
    other.close()


def test_a_busy_process_leaves_slots_to_others(queue: Queue, limiter: Limiter) -> None:
    queue.send("0", 2)
    for index in range(1, 61):
        queue.send(str(index), 2)
    idle = 0
    for index in range(60):
        queue.release(str(index))
        idle += str(index + 1) not in queue.held
        # Time passes in which no waiter asks by itself, and then some in which it does.
        queue.advance(0.01)
        if str(index + 1) not in queue.held:
            queue.advance(0.063)
    assert [who for who, _ in queue.taken()] == [str(index) for index in range(61)]
    assert idle == 0 if not limiter.is_shared else 1 <= idle <= 4


def test_slots_of_a_killed_process_serve_waiters(queue: Queue, limiter: Limiter) -> None:
    limiter.reserve("Calls", "ada", 2).abandon()
    queue.send("a")
    queue.advance(29)
    assert queue.taken() == []
    queue.advance(TWO_LEASES - 29)
    assert queue.taken() == [("a", "served")]


@pytest.mark.parametrize("way", ["reload", "reset", "unlimited"])
def test_changes_of_the_limit_wake_waiters(queue: Queue, limiter: Limiter, way: str) -> None:
    for who, cost in [("both", 2), ("a", 1), ("b", 1), ("c", 2)]:
        queue.send(who, cost)
    match way:
        case "reload":
            limiter.reload(limiter.limits | {"Calls": "4 in flight"})
        case "unlimited":
            limiter.reload(limiter.limits | {"Calls": penstock.Limit.unlimited()})
        case "reset":
            limiter.reset("Calls", "ada")
    served = ["both", "a", "b", *(["c"] if way == "unlimited" else [])]
    assert queue.taken() == [(who, "served") for who in served]
    limiter.reload(LIMITS)


@pytest.mark.parametrize("is_joint", [False, True])
def test_closing_raises_in_waiters_for_slots(limiter: Limiter, is_joint: bool) -> None:
    queue = Queue(limiter, is_joint=is_joint)
    queue.send("both", 2)
    queue.send("a")
    limiter.close()
    queue.run_until_done(asyncio.wait(queue.tasks.values()))
    assert queue.outcomes == [("both", 0.0), ("a", "StoreError")]
    queue.held["both"].release()
    queue.loop.close()


def test_reservations_of_rates_wait_as_acquire_does(limiter: Limiter) -> None:
    queue = Queue(limiter)
    limiter.spend("Tokens", "ada", 1000)
    with pytest.raises(penstock.RateLimited) as caught:
        limiter.reserve("Tokens", "ada", 100, timeout=5.9)
    assert caught.value.decision.retry_after == 6.0

    async def reserve() -> penstock.Decision:
        async with queue.calls.reserve("Tokens", "ada", 100, timeout="1m") as reservation:
            await reservation.settle(80)
            return reservation.decision

    reserving = queue.loop.create_task(reserve())
    queue.run()
    acquiring = queue.loop.create_task(queue.calls.acquire("Tokens", "ada", 50))
    queue.run()
    queue.advance(60)
    queue.run_until_done(asyncio.wait([reserving, acquiring]))
    assert queue.seconds(reserving.result()) >= 6
    assert acquiring.result().allowed
    assert left(limiter, "Tokens") == [870]
    queue.close()


def test_what_changes_the_limit_of_a_call_cannot_wait(limiter: Limiter) -> None:
    async def wait() -> None:
        await AsyncLimiter(limiter).reserve("Calls", "ada", factor=2, timeout=1)

    with pytest.raises(TypeError, match="timeout"):
        limiter.reserve("Calls", "ada", factor=2, timeout=1)
    with pytest.raises(TypeError, match="timeout"):
        asyncio.run(wait())
    with pytest.raises(ValueError, match="timeout"):
        limiter.reserve("Calls", "ada", timeout=-1)
    with pytest.raises(penstock.CostTooHigh):
        limiter.reserve("Calls", "ada", 3, timeout=1)
    assert left(limiter, "Calls") == [2]


def test_waiters_agree_with_a_list(queue: Queue, limiter: Limiter) -> None:
    """Random histories of arrivals, releases, cancellations and timeouts."""
    choose = random.Random(24)  # noqa: S311  one that can be repeated
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
                queue.send(str(step), cost, timeout=timeout)
            case "release" if held:
                free += held.pop(who := choose.choice([*held]))
                queue.release(who)
            case "cancel" if waiting:
                del waiting[who := choose.choice([*waiting])]
                queue.leave(who)
        serve()
        queue.advance(1)
        for who in sorted(waiting, key=lambda who: waiting[who][1]):
            if who in waiting and waiting[who][1] < step + 1:
                del waiting[who]
                expected.append((who, "RateLimited"))
                serve()
        assert sorted(queue.taken()) == sorted(expected), step
        expected.clear()
        assert left(limiter, "Calls") == [free]


@pytest.mark.parametrize("timeout", [None, 10_000])
def test_a_storm_of_cancellations_leaves_no_slot(queue: Queue, timeout: int | None) -> None:
    choose = random.Random(7)  # noqa: S311  one that can be repeated

    async def hold(turns: int) -> None:
        async with queue.call(1, timeout=timeout):
            await turn_over(turns)

    async def storm() -> None:
        for step in range(30):
            tasks = [asyncio.create_task(hold(step % 3)) for _ in range(8)]
            await turn_over(choose.randrange(12))
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            denied = set() if timeout else {penstock.RateLimited}
            assert {type(result) for result in results[1::2]} - denied == {type(None)}

    # What was cancelled while it was taken is returned when its reply arrives.
    queue.run_until_done(storm())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_waiters_for_slots_are_in_the_parent(
    queue: Queue, limiter: Limiter
) -> None:
    if limiter.is_remote:
        pytest.skip("the child would use the connection of its parent's test")
    queue.send("both", 2)
    queue.send("a")
    assert is_so_in_a_child(lambda: not queue.held["both"].release())
    assert queue.taken() == [("both", "served")]
    queue.release("both")
    assert queue.taken() == [("a", "served")]
