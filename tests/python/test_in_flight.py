"""Limits on requests in flight: slots that are held, given back, renewed and lost."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from loops import NoThreads, turn_over
from programs import is_so_in_a_child
from redis_servers import wait_until
from tcp_proxy import Proxy
from waiters import left

import penstock
from penstock import AsyncLimiter, Limiter, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import StartServer
    from redis_servers import Server

    from penstock.types import AnyTransaction

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


@pytest.fixture
def limiter(any_store: str, clock: ManualClock) -> Iterator[Limiter]:
    """Return a limiter on each store."""
    clock.advance(1_700_000_000)
    with Limiter(LIMITS, any_store, clock) as limiter:
        yield limiter


def test_a_slot_is_held_until_the_end_of_the_block(limiter: Limiter) -> None:
    with limiter.reserve("Calls", "ada") as one, limiter.reserve("Calls", "ada"):
        assert (bool(one), one.estimate, left(limiter, "Calls")) == (True, 1, [0])
        with pytest.raises(penstock.RateLimited) as caught, limiter.reserve("Calls", "ada"):
            raise AssertionError
        assert caught.value.decision.name == "Calls"
        assert limiter.reserve("Calls", "grace").release()
    assert left(limiter, "Calls") == [2]
    with suppress(BrokenError), limiter.reserve("Calls", "ada"):
        raise BrokenError
    assert left(limiter, "Calls") == [2]


def test_a_slot_is_given_back_once(limiter: Limiter) -> None:
    first, second = limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada")
    returned = [first.release(), first.release(), first.cancel(), first.release_nowait()]
    assert returned == [True, False, False, False]
    assert left(limiter, "Calls") == [1]
    assert second.release()
    assert left(limiter, "Calls") == [2]


def test_a_denied_reservation_takes_and_returns_nothing(limiter: Limiter) -> None:
    held = limiter.reserve("Calls", "ada", 2)
    denied = limiter.reserve("Calls", "ada")
    assert (bool(denied), denied.release(), denied.cancel()) == (False, False, False)
    assert denied.decision.headers()["Retry-After"] == "1"
    assert left(limiter, "Calls") == [0]
    assert held.release()


def test_one_decision_reserves_rates_and_slots(limiter: Limiter) -> None:
    wanted: list[AnyTransaction] = [("Requests", "ada"), ("Tokens", "ada", 400), ("Calls", "ada")]
    with limiter.reserve_all(wanted) as reservation:
        assert [part.name for part in reservation.decision.parts] == ["Requests", "Tokens", "Calls"]
        assert left(limiter, "Requests", "Tokens", "Calls") == [2, 600, 1]
        assert reservation.settle("Tokens", 250) is None
        assert left(limiter, "Tokens") == [600]
    assert left(limiter, "Requests", "Tokens", "Calls") == [2, 750, 2]
    with limiter.reserve_all(wanted) as reservation:
        reservation.settle("Tokens", 500)
    assert left(limiter, "Requests", "Tokens", "Calls") == [1, 250, 2]


def test_an_exception_refunds_what_was_not_settled(limiter: Limiter) -> None:
    wanted: list[AnyTransaction] = [
        ("Requests", "ada"),
        ("Tokens", "ada", 400),
        ("Calls", "ada", 2),
    ]
    with suppress(BrokenError), limiter.reserve_all(wanted) as reservation:
        reservation.settle("Tokens", 100)
        raise BrokenError
    assert left(limiter, "Requests", "Tokens", "Calls") == [3, 900, 2]


def test_a_denied_slot_takes_no_request(limiter: Limiter) -> None:
    with limiter.reserve("Calls", "ada", 2):
        denied = limiter.reserve_all([("Requests", "ada"), ("Calls", "ada")])
        assert (bool(denied), denied.decision.binding) == (False, "Calls")
        assert left(limiter, "Requests") == [3]
    with limiter.reserve_all([Transaction("Requests", "ada", 3), Transaction("Calls", "ada")]):
        denied = limiter.reserve_all([("Requests", "ada"), ("Calls", "ada")])
        assert (bool(denied), denied.decision.binding) == (False, "Requests")
        assert left(limiter, "Calls") == [1]
    assert left(limiter, "Requests", "Calls") == [0, 2]


def test_rates_alone_can_be_reserved_together(limiter: Limiter) -> None:
    reservation = limiter.reserve_all([("Requests", "ada"), ("Tokens", "ada", 100)])
    reservation.settle("Tokens", 30)
    assert (reservation.release(), reservation.release()) == (True, False)
    assert left(limiter, "Requests", "Tokens") == [2, 970]
    assert limiter.reserve_all([("Requests", "ada"), ("Tokens", "ada", 100)]).cancel()
    assert left(limiter, "Requests", "Tokens") == [2, 970]


def test_what_only_takes_part_is_not_returned(limiter: Limiter) -> None:
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
def test_only_tokens_are_settled(limiter: Limiter, settle: tuple[Any, ...], message: str) -> None:
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
def test_calls_that_keep_their_slots_name_reserve(limiter: Limiter, verb: str) -> None:
    arguments: dict[str, Any] = {
        "spend_each": ("Calls", ["ada"]),
        "spend_all": ([("Requests", "ada"), ("Calls", "ada")],),
    }
    with pytest.raises(penstock.LimitError, match="reserve") as caught:
        getattr(limiter, verb)(*arguments.get(verb, ("Calls", "ada")))
    assert caught.value.limit_name == "Calls"
    assert left(limiter, "Requests", "Calls") == [3, 2]


def test_slots_outlive_their_lease_while_they_are_held(
    limiter: Limiter, clock: ManualClock
) -> None:
    with limiter.reserve("Exports", "ada"), limiter.reserve("Calls", "ada"):
        held = {name: counts["held"] for name, counts in limiter.counts().items()}
        assert held == {"Calls": 1, "Exports": 1, "Requests": 0, "Tokens": 0}
        for _ in range(100):
            clock.advance(7)
            assert left(limiter, "Exports", "Calls") == [0, 1]
    assert left(limiter, "Exports", "Calls") == [1, 2]
    assert limiter.counts()["Exports"]["expired"] == 0


def test_slots_of_a_killed_process_expire(limiter: Limiter, clock: ManualClock) -> None:
    limiter.reserve("Calls", "ada").abandon()
    with limiter.reserve("Calls", "ada"):
        clock.advance(29)
        assert left(limiter, "Calls") == [0]
        clock.advance(TWO_LEASES - 29)
        assert left(limiter, "Calls") == [1]


def test_expired_slots_are_taken_again(limiter: Limiter, clock: ManualClock) -> None:
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


def test_a_dropped_reservation_gives_its_slots_back(limiter: Limiter) -> None:
    reservation = limiter.reserve("Calls", "ada")
    assert reservation
    with pytest.warns(ResourceWarning, match="was dropped"):
        del reservation
    assert limiter.is_remote or left(limiter, "Calls") == [2]


def test_a_release_that_does_not_wait_is_executed(limiter: Limiter) -> None:
    for _ in range(20):
        wanted = [("Tokens", "ada", 10), ("Calls", "ada", 2)]
        reservation = limiter.reserve_all(wanted)
        assert reservation
        reservation.settle("Tokens", 0)
        assert reservation.release_nowait()
        # A server executes it soon.
        assert any(left(limiter, "Tokens", "Calls") == [1000, 2] for _ in range(1000))


def test_reloads_change_the_count_and_the_lease(limiter: Limiter, clock: ManualClock) -> None:
    first, second = limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada")
    limiter.reload(limiter.limits | {"Calls": "1 in flight, lease 5s"})
    assert not limiter.reserve("Calls", "ada")
    assert first.release()
    assert not limiter.reserve("Calls", "ada")
    clock.advance(40)
    assert not limiter.reserve("Calls", "ada")
    assert second.release()
    assert left(limiter, "Calls") == [1]


@pytest.mark.parametrize(("before", "after"), [("30s", "2s"), ("30s", "10s"), ("2s", "24h")])
@pytest.mark.parametrize("age", [1, 9, 29, 40])
def test_a_reload_of_the_lease_forgets_no_running_request(
    limiter: Limiter, clock: ManualClock, before: str, after: str, age: float
) -> None:
    limiter.reload({"Calls": f"2 in flight, lease {before}"})
    # The epoch begins with the first, so that of the second may be over under the new lease.
    first = limiter.reserve("Calls", "ada")
    clock.advance(age)
    second = limiter.reserve("Calls", "ada")
    assert first.release()
    limiter.reload({"Calls": f"1 in flight, lease {after}"})
    for _ in range(20):
        assert not limiter.reserve("Calls", "ada")
        clock.advance(1)
    assert second.release()


def test_slots_that_were_taken_under_several_leases_are_held_under_the_last(
    limiter: Limiter, clock: ManualClock
) -> None:
    held = []
    for lease in ["30s", "2s", "10s"]:
        limiter.reload({"Calls": f"4 in flight, lease {lease}"})
        held.append(limiter.reserve("Calls", "ada"))
        clock.advance(70)
    limits = limiter.limits
    for seconds in range(100, 130):
        limiter.reload({"Calls": "5/minute"})
        clock.advance(seconds)
        limiter.reload(limits)
        assert left(limiter, "Calls") == [1]
    while held:
        assert held.pop().release()
    assert left(limiter, "Calls") == [4]


def numbered(**numbers: tuple[int, str]) -> penstock.Limits:
    """Return limits of one slot with numbers and leases."""
    return penstock.Limits.parse(
        "\n".join(
            f"{name}: {{algorithm: in-flight, count: 1, lease: {lease}, number: {number}}}"
            for name, (number, lease) in numbers.items()
        )
    )


@pytest.mark.parametrize("lease", ["30s", "2s", "24h"])
def test_a_slot_is_held_in_the_bucket_of_its_number(
    limiter: Limiter, clock: ManualClock, lease: str
) -> None:
    limiter.reload(numbered(One=(1, "30s"), Two=(2, "30s")))
    one, two = limiter.reserve("One", "ada"), limiter.reserve("Two", "ada")
    clock.advance(25)
    limiter.reload(numbered(Two=(1, lease), Three=(2, lease)))
    for _ in range(70):
        assert left(limiter, "Two", "Three") == [0, 0]
        clock.advance(1)
    assert one.release()
    assert left(limiter, "Two", "Three") == [1, 0]
    assert two.release()
    assert left(limiter, "Two", "Three") == [1, 1]


def test_a_slot_is_returned_to_the_bucket_from_which_it_was_taken(limiter: Limiter) -> None:
    former = limiter.limits
    held = limiter.reserve("Exports", "ada")
    limiter.reload(numbered(Exports=(7, "2s")))
    other = limiter.reserve("Exports", "ada")
    assert held.release()
    assert left(limiter, "Exports") == [0]
    assert other.release()
    limiter.reload(former)
    assert left(limiter, "Exports") == [1]


def test_a_slot_that_is_taken_during_a_reload_of_the_lease_is_renewed(
    start_server: StartServer, clock: ManualClock
) -> None:
    server = start_server()
    with (
        Proxy(server.port) as proxy,
        Limiter({"Calls": "1 in flight"}, f"{proxy.url}?deadline=20s", clock) as limiter,
        ThreadPoolExecutor(2) as pool,
    ):
        short = limiter.limits | {"Calls": "1 in flight, lease 2s"}
        proxy.hold()
        taking = pool.submit(limiter.reserve, "Calls", "ada")
        assert proxy.is_holding_one.wait(20)
        reloading = pool.submit(limiter.reload, short)
        wait_until(lambda: limiter.limits == short, "limits are replaced")
        proxy.resume()
        reservation = taking.result(20)
        reloading.result(20)
        for _ in range(20):
            clock.advance(1)
            assert not limiter.reserve("Calls", "ada")
        assert reservation.release()


def test_a_lower_count_forgets_no_running_request(limiter: Limiter, clock: ManualClock) -> None:
    limiter.reload(limiter.limits | {"Calls": "10 in flight"})
    held = [limiter.reserve("Calls", "ada") for _ in range(10)]
    assert all(held)
    limiter.reload(limiter.limits | {"Calls": "1 in flight"})
    for _ in range(20):
        clock.advance(7)
    while held:
        assert not limiter.reserve("Calls", "ada")
        assert held.pop().release()
    assert left(limiter, "Calls") == [1]
    assert limiter.counts()["Calls"]["expired"] == 0


@pytest.mark.parametrize("lower", [1, 2, 4, 5])
def test_processes_with_different_counts_admit_the_larger_one(
    limiter: Limiter, clock: ManualClock, lower: int
) -> None:
    if not limiter.is_shared:
        pytest.skip("no other process uses the store")
    most = 10
    limiter.reload({"Calls": f"{most} in flight"})
    running: list[penstock.Reservation] = []
    with Limiter({"Calls": f"{lower} in flight"}, limiter.store, clock) as other:
        for _ in range(200):
            clock.advance(7)
            # The oldest ends, and each process has more requests than the count.
            assert not running or running.pop(0).release()
            asked = (process.reserve("Calls", "ada") for process in [other, limiter] * most)
            running += [reservation for reservation in asked if reservation]
            assert len(running) == most
        for reservation in running:
            assert reservation.release()
        assert left(limiter, "Calls") == [most]


SMALL = ["memory://?max_buckets=8", "shm://{}/table?capacity=8"]
"""Stores with room for eight buckets, in a folder."""


@pytest.mark.parametrize("overflow", ["share", "deny", "evict"])
@pytest.mark.parametrize("store", SMALL)
def test_clients_that_hold_nothing_take_no_room(
    tmp_path: Path, clock: ManualClock, store: str, overflow: str
) -> None:
    url = f"{store.format(tmp_path)}&overflow={overflow}"
    with Limiter({"Calls": "1 in flight"}, url, clock) as limiter:
        held = limiter.reserve("Calls", "held")
        for number in range(1000):
            assert limiter.reserve("Calls", str(number)).release()
            clock.advance(0.01)
        assert not limiter.reserve("Calls", "held")
        assert held.release()
        stats = limiter.stats()
        assert [stats[name] for name in ("buckets", "evicted", "shared", "refused")] == [0] * 4


@pytest.mark.parametrize("store", SMALL)
def test_no_bucket_with_a_held_slot_makes_room_for_a_shared_one(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    limits = {"Calls": "1 in flight", "Daily": "1/day"}
    with Limiter(limits, f"{store.format(tmp_path)}&overflow=share", clock) as limiter:
        held = limiter.reserve("Calls", "ada")
        for number in range(200):
            limiter.spend("Daily", str(number))
        assert not limiter.reserve("Calls", "ada")
        assert limiter.reserve("Calls", "grace").release()
        assert held.release()
        assert limiter.reserve("Calls", "ada").release()


@pytest.mark.parametrize("store", SMALL)
def test_a_store_full_of_held_slots_evicts_none(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    limits = {"Calls": "1 in flight", "Daily": "1/day"}
    with Limiter(limits, f"{store.format(tmp_path)}&overflow=share", clock) as limiter:
        taken = {str(number): limiter.reserve("Calls", str(number)) for number in range(200)}
        held = {id: one for id, one in taken.items() if one}
        assert held
        limiter.spend("Daily", "ada")
        limiter.spend_all([("Daily", "ada"), ("Daily", "grace")])
        assert not any(limiter.reserve("Calls", id) for id in held)
        assert not limiter.reserve_all([("Calls", "ada"), ("Calls", "grace")])
        assert all(one.release() for one in held.values())
        assert limiter.reserve_all([("Calls", "ada"), ("Calls", "grace")]).release()


@pytest.mark.parametrize("store", SMALL)
def test_slots_of_a_batch_in_a_full_store_are_returned_among_those_of_others(
    tmp_path: Path, clock: ManualClock, store: str
) -> None:
    limits = {"Calls": "5 in flight", "Daily": "1/day"}
    calls: list[AnyTransaction] = [("Calls", "ada", 1), ("Calls", "grace", 3)]
    with Limiter(limits, f"{store.format(tmp_path)}&overflow=share", clock) as limiter:
        for room in [True, False] * 2:
            for number in range(200):
                limiter.spend("Daily", str(number))
            both, one = limiter.reserve_all(calls), limiter.reserve("Calls", "linus")
            assert both
            assert one
            if room:
                for number in range(200):
                    limiter.reset("Daily", str(number))
            assert both.release()
            assert one.release()
            for number in range(200):
                limiter.spend("Daily", str(number))
            # Nothing is held in any of the buckets that they shared.
            most: list[AnyTransaction] = [("Calls", "ada", 2), ("Calls", "grace", 3)]
            assert limiter.reserve_all(most).release()
            assert limiter.reserve("Calls", "linus", 5).release()
            for number in range(200):
                limiter.reset("Daily", str(number))


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("store", SMALL)
def test_a_slot_taken_while_the_store_was_full_ends_where_it_is_held(
    tmp_path: Path, clock: ManualClock, store: str, renews: bool
) -> None:
    limits = {"Calls": "2 in flight, lease 24h", "Daily": "1/day"}
    with Limiter(limits, f"{store.format(tmp_path)}&overflow=share", clock) as limiter:

        def set_full(is_full: bool) -> None:
            for number in range(200):
                if is_full:
                    limiter.spend("Daily", str(number))
                else:
                    limiter.reset("Daily", str(number))

        set_full(True)
        # The shared bucket has the two slots of all clients.
        held = [limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "grace")]
        assert not limiter.reserve("Calls", "linus")
        set_full(False)
        if renews:
            clock.advance(13 * 3600)
            assert left(limiter, "Calls") == [1]
            set_full(True)
            # They are in buckets of their own now.
            assert limiter.reserve("Calls", "linus").release()
            set_full(False)
        else:
            # The client has slots in both.
            held.append(limiter.reserve("Calls", "ada"))
        assert [one.release() for one in held] == [True] * len(held)
        assert left(limiter, "Calls") == [2]
        set_full(True)
        held = [limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "grace")]
        assert all(held)
        assert [one.release() for one in held] == [True, True]
        counts = limiter.counts()["Calls"]
        assert (counts["expired"], counts["renewed_late"]) == (0, 0)


def test_a_server_keeps_no_key_of_a_client_that_holds_nothing(redis_server: Server) -> None:
    keys = []
    with Limiter(LIMITS, f"{redis_server.url}?deadline=20s") as limiter:
        for _ in range(3):
            with limiter.reserve("Calls", "ada"), limiter.reserve_all([("Exports", "ada")]):
                keys.append(redis_server.command("DBSIZE"))
            keys.append(redis_server.command("DBSIZE"))
    assert keys == [2, 0, 2, 0, 2, 0]


def test_a_child_process_returns_nothing(limiter: Limiter) -> None:
    if limiter.is_remote:
        pytest.skip("the child would use the connection of its parent's test")
    held = limiter.reserve("Calls", "ada", 2)
    returns = (held.release, held.cancel, held.release_nowait)
    assert is_so_in_a_child(lambda: not any(release() for release in returns))
    assert left(limiter, "Calls") == [0]
    assert held.release()
    assert left(limiter, "Calls") == [2]


@pytest.mark.parametrize("timeout", [None, 1000])
def test_threads_never_hold_more_than_the_limit(limiter: Limiter, timeout: int | None) -> None:
    held, most, served, lock = 0, 0, 0, threading.Lock()

    def work(_: int) -> None:
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

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert 0 < most <= 2
    assert timeout is None or served == 200
    assert left(limiter, "Calls") == [2]


def test_coroutines_hold_slots(limiter: Limiter) -> None:
    shared = AsyncLimiter(limiter)

    async def left(name: str) -> int:
        return (await shared.peek(name, "ada")).remaining

    async def run() -> None:
        async with shared.reserve("Calls", "ada"):
            assert await left("Calls") == 1
        assert await left("Calls") == 2
        wanted = [("Tokens", "ada", 400), ("Calls", "ada", 2)]
        async with shared.reserve_all(wanted) as reservation:
            await reservation.settle("Tokens", 100)
            assert not await shared.reserve("Calls", "ada")
        assert await left("Tokens") == 900
        with suppress(BrokenError):
            async with shared.reserve_all(wanted):
                raise BrokenError
        assert (await left("Tokens"), await left("Calls")) == (900, 2)
        reservation = await shared.reserve("Calls", "ada")
        assert await reservation.release()
        assert not await reservation.release()
        assert await left("Calls") == 2

    asyncio.run(run())


def test_a_coroutine_reserves_without_a_thread(limiter: Limiter) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(NoThreads())
        shared = AsyncLimiter(limiter)
        both: list[Any] = [("Tokens", "ada", 3), ("Calls", "ada")]
        async with shared.reserve("Calls", "ada"), shared.reserve_all(both) as reservation:
            assert not await shared.limit("Calls").reserve("ada")
            reservation.reservation.settle("Tokens", 2)

    asyncio.run(main())
    assert left(limiter, "Tokens", "Calls") == [998, 2]


def test_a_reservation_is_for_one_block(limiter: Limiter) -> None:
    reservation = limiter.reserve("Exports", "ada")
    with reservation:
        with pytest.raises(penstock.ReservationError), reservation:
            raise AssertionError
        assert left(limiter, "Exports") == [0]
    released = limiter.reserve("Exports", "ada")
    assert released.release()
    for ended in (reservation, released):
        with pytest.raises(penstock.ReservationError), ended:
            raise AssertionError


def test_a_reservation_is_for_one_task(limiter: Limiter) -> None:
    shared = AsyncLimiter(limiter)
    running: list[int] = []

    async def run(reservation: penstock.AsyncReservation) -> None:
        async with reservation:
            running.append(0)
            await turn_over()
            assert left(limiter, "Calls") == [1]

    async def main() -> list[BaseException | None]:
        reservation = shared.reserve("Calls", "ada")
        tasks = (run(reservation) for _ in range(3))
        return [*await asyncio.gather(*tasks, run(reservation), return_exceptions=True)]

    outcomes = asyncio.run(main())
    assert len(running) == outcomes.count(None) == 1
    assert sum(isinstance(one, penstock.ReservationError) for one in outcomes) == 3
    assert left(limiter, "Calls") == [2]


@pytest.mark.parametrize("end", ["release", "cancel"])
def test_an_end_is_executed_although_its_task_is_cancelled(limiter: Limiter, end: str) -> None:
    busy = threading.Event()

    async def main() -> penstock.AsyncReservation:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        reservation = await AsyncLimiter(limiter).reserve("Calls", "ada")
        executor.submit(busy.wait)
        task = asyncio.create_task(getattr(reservation, end)())
        await turn_over()
        task.cancel()
        await asyncio.wait([task])
        busy.set()
        return reservation

    reservation = asyncio.run(main())
    assert left(limiter, "Calls") == [2]
    assert not reservation.reservation.release()


def renewal_threads() -> int:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("penstock-slots\n")


def has_renewal_threads(number: int) -> bool:
    """Return whether there are as many soon: a thread takes a moment to start and to end."""
    never = threading.Event()
    return any(renewal_threads() == number or never.wait(0.001) for _ in range(60_000))


LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


@LINUX_ONLY
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_one_thread_renews_for_all_limiters_and_ends_with_them(*, is_closed: bool) -> None:
    limiters = [Limiter({"Calls": "2 in flight, lease 24h"}) for _ in range(20)]
    for limiter in limiters:
        with limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada"):
            pass
    assert has_renewal_threads(1)
    if is_closed:
        for limiter in limiters:
            limiter.close()
    limiters.clear()
    del limiter
    gc.collect()
    assert has_renewal_threads(0)


@LINUX_ONLY
@pytest.mark.slow
def test_a_call_that_holds_the_interpreter_loses_no_slot(tmp_path: Path) -> None:
    store, limits = f"shm://{tmp_path}/table", {"Calls": "2 in flight, lease 2s"}
    with Limiter(limits, store) as limiter, Limiter(limits, store) as other:
        held = limiter.reserve("Calls", "ada")
        # A function of `PyDLL` keeps the interpreter: two leases, and more than two epochs.
        ctypes.PyDLL(None).sleep(5)
        assert left(other, "Calls") == [1]
        assert held.release()
        assert left(other, "Calls") == [2]


def test_a_reload_to_a_rate_and_back_keeps_what_is_held(
    limiter: Limiter, clock: ManualClock
) -> None:
    slots = limiter.limits
    first, second = limiter.reserve("Calls", "ada"), limiter.reserve("Calls", "ada")
    limiter.reload(slots | {"Calls": "5/minute"})
    clock.advance(3600)
    assert first.release()
    limiter.reload(slots)
    assert left(limiter, "Calls") == [1]
    clock.advance(3600)
    assert left(limiter, "Calls") == [1]
    assert second.release()
    assert left(limiter, "Calls") == [2]
    assert limiter.counts()["Calls"]["expired"] == 0


def test_a_slot_is_renewed_until_its_longest_time(limiter: Limiter, clock: ManualClock) -> None:
    limiter.reload({"Calls": "2 in flight, lease 30s, max hold 5m"})
    slow = limiter.reserve("Calls", "ada")
    clock.advance(290)
    quick = limiter.reserve("Calls", "ada")
    assert left(limiter, "Calls") == [0]
    # Two epochs after its last renewal, the slot of the slow client is free.
    clock.advance(90)
    assert left(limiter, "Calls") == [1]
    slow.release()
    assert limiter.counts()["Calls"]["expired"] == 1
    assert quick.release()
    assert left(limiter, "Calls") == [2]


def test_a_slot_with_a_short_lease_is_renewed_beside_a_long_one(
    limiter: Limiter, clock: ManualClock
) -> None:
    limiter.reload({"Calls": "2 in flight, lease 24h", "Short": "2 in flight, lease 2s"})
    with limiter.reserve("Calls", "ada"), limiter.reserve("Short", "ada"):
        clock.advance(60)
        assert left(limiter, "Calls", "Short") == [1, 1]


def test_close_returns_what_is_held(limiter: Limiter, clock: ManualClock) -> None:
    if not limiter.is_shared:
        pytest.skip("no other process uses the store")
    with Limiter(limiter.limits, limiter.store, clock) as other:
        held = [other.reserve("Calls", "ada"), other.reserve("Calls", "ada")]
        with other.reserve_all([("Requests", "grace"), ("Calls", "grace")]):
            other.close()
            assert left(limiter, "Calls") == [2]
            assert limiter.reserve("Calls", "grace", 2).release()
        taken = limiter.reserve("Calls", "ada")
        for reservation in held:
            reservation.release()
        assert left(limiter, "Calls") == [1]
        assert taken.release()
