"""Many threads on one limiter: exactly the limit is admitted, and no thread waits forever."""

from __future__ import annotations

import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit, Limiter, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeLimiter

THREADS = 8
MOST = 500

LIMITS = {
    "Orders": Limit.token_bucket(burst=MOST, count=1, period="1h"),
    "Notes": Limit.leaky_bucket(size=MOST, drip_rate="1h"),
    "Pages": Limit.fixed_window(count=MOST, period="1h"),
    "Calls": Limit.fixed_rate_window(count=1, period="1h", burst=MOST - 1),
}


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads that switch as often as possible, so that their calls overlap."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(turns: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Let each thread do its work in each turn; return all results, or raise.

    A thread alone would be done before the next has begun, so they go step by step, and it is an
    error if they did not mix.
    """
    step = threading.Barrier(THREADS)
    given: list[tuple[int, Any]] = []
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for turn in range(turns):
                step.wait(60)
                given.append((number, work(number, turn)))
        except BaseException as error:  # noqa: BLE001  raised again in the test's own thread
            raised.append(error)
            step.abort()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "threads wait for one another"
    for error in raised:
        # The barrier raises this in the other threads, because one is missing.
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert len(given) == turns * THREADS
    assert sum(one[0] != other[0] for one, other in pairwise(given)) >= turns
    return [value for _, value in given]


# Calls about one limit, which return the number of allowed requests.
CALLS: dict[str, Callable[[Limiter, str], int]] = {
    "limiter": lambda limiter, name: int(limiter.spend(name, "ada").allowed),
    "bound limit": lambda limiter, name: int(limiter.limit(name).spend("ada").allowed),
    "batch": lambda limiter, name: int(limiter.spend_all([(name, "ada"), ("Both", "ada")]).allowed),
    "columns": lambda limiter, name: int(limiter.spend_each(name, ["ada"] * 4).allowed.sum()),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("call", CALLS)
def test_exactly_the_limit_is_admitted(make_limiter: MakeLimiter, name: str, call: str) -> None:
    limiter = make_limiter({**LIMITS, "Both": LIMITS["Orders"]})
    assert sum(together(100, lambda *_: CALLS[call](limiter, name))) == MOST
    assert limiter.check(name, "ada", 0).remaining == 0


def test_spends_and_refunds_add_up(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter(LIMITS)
    bound = limiter.limit("Orders")

    def work(number: int, turn: int) -> int:
        taken = 3 * bound.spend("ada", 3).allowed
        given = 2 * bound.refund("ada", 2).allowed if (turn + number) % 2 else 0
        return taken - given

    kept = sum(together(200, work))
    assert 0 < kept <= MOST
    assert bound.check("ada", 0).remaining == MOST - kept


def test_batches_that_share_buckets_in_any_order_do_not_deadlock(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter(LIMITS)
    names = [(name, id) for name in LIMITS for id in range(20)]

    def work(number: int, turn: int) -> int:
        mine = names[number + turn :] + names[: number + turn]
        batch: Any = mine if number % 2 else mine[::-1]
        return int(limiter.spend_all(batch).allowed)

    assert sum(together(80, work)) == MOST
    assert all(limiter.check(name, id, 0).remaining == 0 for name, id in names)


def test_clock_that_moves_meanwhile_admits_no_more_than_the_limit_allows() -> None:
    clock = ManualClock(1)
    limiter = Limiter({"Orders": Limit.token_bucket(burst=10, count=10, period=1)}, clock=clock)

    def work(number: int, turn: int) -> int:
        if number == 0:
            clock.advance_ns(50_000_000)
            return 0
        return int(limiter.spend("Orders", "ada").allowed)

    # 10 at once, and 10 in each of the 10 seconds, of which the first 50 ms may pass unused.
    admitted = sum(together(200, work))
    assert 109 <= admitted + limiter.check("Orders", "ada", 0).remaining <= 110


def test_reload_while_spending_leaves_no_call_between_two_limits(make_limiter: MakeLimiter) -> None:
    one = penstock.Limits({"Orders": Limit.token_bucket(burst=7, count=7, period=1), "Old": "1/h"})
    other = penstock.Limits({"Orders": Limit.token_bucket(burst=9, count=9, period=1)})
    limiter = make_limiter(one)
    orders, old = limiter.limit("Orders"), limiter.limit("Old")
    seen: set[int] = set()

    def work(number: int, turn: int) -> str:
        if number < 2:
            limiter.reload(other if number else one)
            return "reload"
        decision = orders.check(f"{number}-{turn % 50}")
        seen.add(decision.limit.burst)
        assert decision.remaining == decision.limit.burst - 1
        assert limiter.spend_all([("Orders", f"{number}", 0)]).name == "Orders"
        try:
            old.check("ada")
        except penstock.UnknownLimit:
            return "vanished"
        return "there"

    given = together(200, work)
    assert seen == {7, 9}
    assert set(given) == {"reload", "vanished", "there"}


def test_limits_defined_by_many_threads_are_all_there(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "500/hour"})

    def work(number: int, turn: int) -> str:
        limiter.spend("Orders", "ada")
        try:
            limiter.define(f"limit-{turn}", "10/hour").spend(f"{number}")
        except penstock.ConfigError:
            # Another thread was faster, so that the limit exists.
            assert limiter.spend(f"limit-{turn}", f"{number}").remaining == 9
            return "there"
        return "defined"

    given = together(50, work)
    assert given.count("defined") == 50
    assert set(limiter.limits) == {"Orders", *(f"limit-{turn}" for turn in range(50))}
    assert limiter.check("Orders", "ada", 0).remaining == 500 - 50 * THREADS


def test_limits_asked_for_by_many_threads_are_one(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({f"limit-{turn}": "500/hour" for turn in range(100)})

    def work(number: int, turn: int) -> tuple[str, int]:
        name = f"limit-{turn}"
        assert limiter.spend(name, number).allowed
        return name, id(limiter.limit(name))

    assert len(set(together(100, work))) == 100


def test_close_in_the_middle_ends_every_thread_with_a_store_error(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter(LIMITS)
    bound = limiter.limit("Orders")

    def work(number: int, turn: int) -> bool:
        if (number, turn) == (0, 50):
            limiter.close()
        try:
            bound.spend(f"{turn}")
            limiter.spend("Pages", f"{turn}")
        except penstock.StoreError:
            assert turn >= 50
            return False
        assert turn <= 50
        return True

    given = together(100, work)
    assert 50 * THREADS <= given.count(True) < 51 * THREADS
