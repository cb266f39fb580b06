"""Limits on requests in flight: slots that are held, given back, renewed and lost."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over

import penstock
from penstock import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        url = redis_server.url
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


def test_threads_never_hold_more_than_the_limit(limiter: penstock.Limiter) -> None:
    held, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal held, most
        for _ in range(100):
            reservation = limiter.reserve("Calls", "ada")
            if not reservation:
                continue
            with lock:
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


def test_no_thread_is_left_when_nothing_is_held() -> None:
    limiter = penstock.Limiter({"Calls": "2 in flight, lease 2s"})
    names = [thread.name for thread in threading.enumerate()]
    assert "penstock-leases" not in names
    with limiter.reserve("Calls", "ada"):
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("penstock-leases") == 1
        with limiter.reserve("Calls", "ada"):
            pass
    for thread in threading.enumerate():
        if thread.name == "penstock-leases":
            thread.join()
    assert limiter.reserve("Calls", "ada", 2).release()
