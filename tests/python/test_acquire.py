"""Waiting for a turn, through public calls, on a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import operator
import os
import random
import signal
import threading
import weakref
from time import process_time
from typing import TYPE_CHECKING, Any

import pytest
from loops import interrupted_after
from programs import is_so_in_a_child, run
from waiters import SECOND, Crowd

import penstock
from penstock import Decision, Limit, Limiter, ManualClock, _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeLimiter

NAMES = ["Tokens", "Drips", "Splashes", "Window", "Slots"]


class Line(Crowd):
    """Waiters for tokens of `ada`."""

    async def ask(self, name: str = "Tokens", cost: int = 1, **options: Any) -> Decision:
        decision = await self.calls.acquire(name, "ada", cost, **options)
        assert (decision.allowed, decision.cost) == (True, cost)
        return decision

    def queue_up(self, names: str, name: str = "Tokens") -> None:
        """Take all tokens, and start waiters of these names."""
        self.limiter.acquire(name, "ada", 3)
        for who in names:
            self.send(who, name)


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> Limiter:
    return make_limiter(
        {
            "Tokens": Limit.token_bucket(burst=3, count=1, period="1s"),
            "Drips": Limit.leaky_bucket(size=3, drip_rate="1s"),
            "Splashes": Limit.leaky_bucket(size=3, drip_rate="1s", drip_size=2),
            "Window": Limit.fixed_window(count=3, period="10s"),
            "Slots": Limit.fixed_rate_window(count=10, period="10s", burst=2),
        }
    )


@pytest.fixture
def crowd(limiter: Limiter) -> Iterator[Line]:
    made = Line(limiter)
    yield made
    made.close()


def until(is_so: Callable[[], bool]) -> None:
    """Let other threads run until a condition is true."""
    pause = threading.Event()
    for _ in range(60_000):
        if is_so():
            return
        pause.wait(0.0005)
    raise AssertionError("it never happened")


def debt_ns(limiter: Limiter, name: str = "Tokens") -> int:
    """Return how long the bucket of `ada` is in debt."""
    return limiter.check(name, "ada", 0).retry_after_ns


@pytest.mark.parametrize("name", NAMES)
def test_available_tokens_are_taken_immediately(limiter: Limiter, name: str) -> None:
    assert limiter.acquire(name, "ada", 2).allowed
    assert limiter.limit(name).acquire("ada", timeout=0).allowed


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("Tokens", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("Drips", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("Splashes", [1, 1, 2, 2, 3, 3, 4, 4]),
        ("Window", [10, 10, 10, 20, 20, 20, 30, 30]),
        ("Slots", [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_waiters_are_served_in_order_of_arrival(crowd: Line, name: str, turns: list[int]) -> None:
    crowd.limiter.acquire(name, "ada", 3)
    for index in range(len(turns)):
        crowd.send(str(index), name)
    for turn in sorted(set(turns)):
        # One nanosecond early, no waiter gets a turn.
        crowd.clock.advance_ns(turn * SECOND - 1 - (crowd.clock.now_ns() - crowd.start_ns))
        assert crowd.taken() == []
        crowd.clock.advance_ns(1)
        due = [str(index) for index, its in enumerate(turns) if its == turn]
        assert crowd.taken() == [(who, float(turn)) for who in due]
    assert crowd.waiting() == []


def test_costs_differ(crowd: Line) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    for who, cost in [("a", 2), ("b", 3), ("c", 1), ("d", 3), ("e", 2)]:
        crowd.send(who, cost=cost)
    for who, turn in [("a", 2), ("b", 5), ("c", 6), ("d", 9), ("e", 11)]:
        while crowd.clock.now_ns() - crowd.start_ns < turn * SECOND:
            assert crowd.taken() == []
            crowd.advance(0.5)
        assert crowd.taken() == [(who, float(turn))]


def test_a_clock_jump_serves_waiters_in_turn(crowd: Line) -> None:
    for index in range(20):
        crowd.send(str(index))
    crowd.advance(3600)
    assert crowd.taken() == [(str(index), max(index - 2, 0)) for index in range(20)]
    assert crowd.limiter.check("Tokens", "ada", 0).remaining == 3


def test_threads_are_served_in_order_of_arrival(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("Tokens", "ada", 3)
    start_ns, served, threads = clock.now_ns(), [], []

    def wait(who: int) -> None:
        served.append((who, limiter.acquire("Tokens", "ada").now_ns - start_ns))

    for who in range(3):
        threads.append(threading.Thread(target=wait, args=(who,)))
        threads[-1].start()
        until(lambda debt=(who + 1) * SECOND: debt_ns(limiter) == debt)  # type: ignore[misc]
    for who, thread in enumerate(threads):
        clock.advance(1)
        thread.join(30)
        assert served == [(index, (index + 1) * SECOND) for index in range(who + 1)]


@pytest.mark.parametrize(("mode", "remaining"), [("enforce", 3), ("shadow", 0)])
def test_a_served_waiter_that_leaves_returns_what_it_took(
    clock: ManualClock, mode: str, remaining: int
) -> None:
    limits = penstock.Limits.parse(f"Tokens: {{burst: 3, count: 1, period: 1h, mode: {mode}}}")
    limiter = Limiter(limits, clock=clock)
    if mode == "shadow":
        limiter.spend("Tokens", "ada", 3)
    waiter = _core.waiter(limiter.limit("Tokens"), "ada", 2, None, int)
    assert waiter.step()
    waiter.leave()
    assert limiter.peek("Tokens", "ada").remaining == remaining


def test_a_waiter_cancelled_at_its_turn_returns_its_tokens(crowd: Line) -> None:
    crowd.queue_up("abcde")
    crowd.clock.advance(1)
    # Before the task could run.
    crowd.leave("a")
    assert crowd.tasks["a"].cancelled()
    assert crowd.taken() == [("b", 1.0)]
    crowd.advance(3)
    assert crowd.taken() == [("c", 2.0), ("d", 3.0), ("e", 4.0)]


def test_a_thread_and_tasks_wait_in_one_queue(crowd: Line) -> None:
    limiter = crowd.limiter
    limiter.acquire("Tokens", "ada", 3)
    crowd.send("first")
    thread = threading.Thread(target=limiter.acquire, args=("Tokens", "ada"))
    thread.start()
    until(lambda: debt_ns(limiter) == 2 * SECOND)
    crowd.send("last")
    crowd.advance(1)
    assert crowd.taken() == [("first", 1.0)]
    crowd.advance(1)
    thread.join(30)
    assert not thread.is_alive()
    assert crowd.taken() == []
    crowd.advance(1)
    assert crowd.taken() == [("last", 3.0)]


def test_the_clock_may_be_moved_by_another_thread(crowd: Line) -> None:
    async def served() -> None:
        await asyncio.to_thread(crowd.clock.advance, 30)
        await asyncio.gather(*crowd.tasks.values())

    for index in range(30):
        crowd.send(str(index))
    crowd.run_until_done(served())
    assert [who for who, _ in crowd.taken()] == [str(index) for index in range(30)]


def test_a_spend_does_not_take_tokens_of_a_waiter(crowd: Line) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    crowd.send("a")
    crowd.clock.advance(1)
    assert not crowd.limiter.spend("Tokens", "ada")
    assert crowd.taken() == [("a", 1.0)]
    crowd.advance(1)
    assert crowd.limiter.spend("Tokens", "ada")


@pytest.mark.parametrize("name", ["Tokens", "Drips", "Window", "Slots"])
def test_a_wait_beyond_the_timeout_is_refused_immediately(crowd: Line, name: str) -> None:
    limiter = crowd.limiter
    limiter.acquire(name, "ada", 3)
    wait = limiter.check(name, "ada").retry_after
    for timeout in (0, 0.5, wait - 0.001):
        with pytest.raises(penstock.RateLimited) as raised:
            limiter.acquire(name, "ada", timeout=timeout)
        assert not raised.value.decision
        assert raised.value.decision.retry_after == wait
    assert limiter.check(name, "ada").retry_after == wait
    crowd.send("a", name, timeout=wait)
    crowd.advance(wait)
    assert crowd.taken() == [("a", wait)]


@pytest.mark.parametrize(
    ("name", "wait"),
    [("Tokens", 10), ("Drips", 10), ("Splashes", 5), ("Window", 40), ("Slots", 10)],
)
def test_waiters_before_count_towards_the_timeout(crowd: Line, name: str, wait: int) -> None:
    limiter = crowd.limiter
    crowd.queue_up("012345678", name)
    with pytest.raises(penstock.RateLimited) as raised:
        limiter.acquire(name, "ada", timeout=wait - 0.001)
    assert raised.value.decision.retry_after == wait
    crowd.send("last", name, timeout=wait)
    crowd.advance(wait)
    assert len(outcomes := crowd.taken()) == 10
    assert ("last", float(wait)) in outcomes


def test_the_timeout_counts_behind_a_single_charge(crowd: Line) -> None:
    # A drip takes several tokens, so the second waiter is not charged before the turn of the first.
    crowd.limiter.acquire("Splashes", "ada", 3)
    crowd.send("a", "Splashes", 2)
    with pytest.raises(penstock.RateLimited) as raised:
        crowd.limiter.acquire("Splashes", "ada", timeout=0.5)
    assert raised.value.decision.retry_after == 2.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("leaver", range(6))
def test_a_cancelled_waiter_changes_nothing_for_the_others(
    crowd: Line, name: str, leaver: int
) -> None:
    def turns(costs: list[int], leaves: int | None) -> list[tuple[str, float | str]]:
        crowd.limiter.reset(name, "ada")
        crowd.start_ns = crowd.clock.now_ns()
        crowd.limiter.acquire(name, "ada", 3)
        waiters = [index for index in range(len(costs) + 1) if index != leaver]
        waiters = [*range(len(costs))] if leaves is not None else waiters
        for index, cost in zip(waiters, costs, strict=True):
            crowd.send(str(index), name, cost)
        if leaves is not None:
            crowd.leave(str(leaves))
        crowd.advance(200)
        return crowd.taken()

    costs = [1, 2, 1, 3, 2, 1]
    without = costs[:leaver] + costs[leaver + 1 :]
    assert turns(costs, leaves=leaver) == turns(without, leaves=None)


def test_waiters_cancelled_in_any_order_leave_no_charge(crowd: Line) -> None:
    crowd.queue_up("012345")
    crowd.leave("1", "0", "4")
    crowd.advance(60)
    assert crowd.taken() == [("2", 1.0), ("3", 2.0), ("5", 3.0)]
    assert crowd.limiter.check("Tokens", "ada", 0).remaining == 3


@pytest.mark.parametrize(
    ("limit", "costs", "turns"),
    [
        (Limit.leaky_bucket(size=1, drip_rate="1s", drip_size=2), [1, 1, 1], [1, 2, 3]),
        (Limit.leaky_bucket(size=3, drip_rate="1s", drip_size=2), [3, 1, 3], [2, 3, 4]),
        (Limit.leaky_bucket(size=3, drip_rate="1s", drip_size=9), [2, 2, 1], [1, 2, 2]),
    ],
)
def test_a_drip_does_not_drain_the_charge_of_a_waiter(
    crowd: Line, limit: Limit, costs: list[int], turns: list[int]
) -> None:
    crowd.limiter.define("Puddles", limit).spend("ada", limit.max_cost)
    for index, cost in enumerate(costs):
        crowd.send(str(index), "Puddles", cost)
    crowd.advance(10)
    assert crowd.taken() == [(str(index), turn) for index, turn in enumerate(turns)]


@pytest.mark.parametrize(
    "limit",
    [
        Limit.token_bucket(burst=3, count=2, period="1s"),
        Limit.leaky_bucket(size=3, drip_rate="1s"),
        Limit.leaky_bucket(size=5, drip_rate="1s", drip_size=2),
        Limit.leaky_bucket(size=2, drip_rate="1s", drip_size=3),
        Limit.fixed_window(count=3, period="5s"),
        Limit.fixed_rate_window(count=4, period="5s", burst=2),
    ],
    ids=repr,
)
def test_waiters_are_admitted_like_spends_at_the_same_instants(limit: Limit) -> None:
    for seed in range(40):
        chance = random.Random(seed)  # noqa: S311  one that can be repeated
        clock = ManualClock(1000.5)
        limiter = Limiter({"Tokens": limit}, clock=clock)
        crowd, costs, served = Line(limiter), {}, []
        for turn in range(60):
            cost = chance.randint(1, limit.max_cost)
            keep = chance.randint(0, limit.max_cost - cost) if seed % 2 else 0
            standing = crowd.waiting()
            match chance.choice("jjjlsaaaa") if turn < 50 else "z":
                case "j":
                    costs[str(turn)] = cost, keep
                    crowd.send(str(turn), cost=cost, keep=keep)
                case "l" if standing:
                    crowd.leave(chance.choice(standing))
                case "s" if limiter.spend("Tokens", "ada", cost, keep=keep):
                    served.append(((clock.now_ns() - crowd.start_ns) / SECOND, (cost, keep)))
                case "a":
                    clock.advance_ns(chance.choice([1, SECOND // 4, SECOND, 2 * SECOND]))
                case "z":
                    clock.advance(100)
            new = [(at, costs[who]) for who, at in crowd.taken() if isinstance(at, float)]
            assert new == sorted(new, key=operator.itemgetter(0))
            served += new
        assert crowd.waiting() == []
        crowd.close()
        # The same spends by a caller at those instants.
        clock = ManualClock(1000.5)
        bound = Limiter({"Limit": limit}, clock=clock).limit("Limit")
        for at, (cost, keep) in served:
            clock.set_ns(1_000_500_000_000 + round(at * SECOND))
            assert bound.spend("ada", cost, keep=keep), (seed, at, cost, keep)


def test_waiters_that_keep_fewer_tokens_come_first(crowd: Line) -> None:
    for who, keep, cost in [("a", 2, 1), ("b", 2, 1), ("c", 0, 2), ("d", 1, 1), ("e", 0, 1)]:
        crowd.send(who, cost=cost, keep=keep)
    # "b" waits for three tokens. That delays neither "c", for which there are two, nor "e".
    assert crowd.taken() == [("a", 0.0), ("c", 0.0)]
    outcomes = []
    for _ in range(6):
        crowd.advance(1)
        outcomes += crowd.taken()
    # Two tokens for "d" after that of "e", and three for "b".
    assert outcomes == [("e", 1.0), ("d", 3.0), ("b", 5.0)]


@pytest.mark.parametrize("name", ["Tokens", "Drips", "Window"])
def test_a_waiter_that_keeps_tokens_takes_none_in_advance(crowd: Line, name: str) -> None:
    limiter = crowd.limiter
    limiter.spend(name, "ada", 1)
    for who in "abc":
        crowd.send(who, name, keep=2)
    assert crowd.taken() == []
    # What they must leave is there for others.
    assert limiter.spend(name, "ada", 2).remaining == 0
    crowd.send("d", name, 3)
    crowd.advance(10)
    assert crowd.taken()[0] == ("d", limiter.limits[name].period if name == "Window" else 3.0)


def test_the_timeout_counts_the_tokens_to_keep(crowd: Line) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    for timeout in (0, 2.999):
        with pytest.raises(penstock.RateLimited) as raised:
            crowd.limiter.acquire("Tokens", "ada", timeout=timeout, keep=2)
        assert raised.value.decision.retry_after == 3.0
    crowd.send("a", timeout=3, keep=2)
    # After "a", there are two tokens, one fewer than "b" needs.
    crowd.send("b", timeout=3.999, keep=2)
    crowd.send("c", timeout=4, keep=2)
    crowd.send("d", keep=3)
    assert crowd.taken() == [("b", "RateLimited"), ("d", "CostTooHigh")]
    crowd.clock.advance(3)
    crowd.clock.advance(1)
    assert crowd.taken() == [("a", 3.0), ("c", 4.0)]


def test_a_waiter_is_refused_no_later_than_its_timeout(crowd: Line) -> None:
    crowd.limiter.acquire("Window", "ada", 3)
    crowd.send("a", "Window", 3)
    crowd.send("b", "Window", 1, timeout=20)
    crowd.send("c", "Window", 1, timeout=20)
    crowd.send("d", "Window", 2)
    # The window is made three times as long.
    crowd.limiter.reload({"Window": Limit.fixed_window(count=3, period="30s")})
    crowd.clock.advance_ns(20 * SECOND - 1)
    assert crowd.taken() == []
    crowd.clock.advance_ns(1)
    assert crowd.taken() == [("b", "RateLimited"), ("c", "RateLimited")]
    crowd.advance(100)
    assert crowd.taken() == [("a", 30.0), ("d", 60.0)]


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), 10**30])
def test_an_impossible_timeout_is_refused(limiter: Limiter, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        limiter.acquire("Tokens", "ada", timeout=timeout)
    assert len(limiter) == 0


@pytest.mark.parametrize("timeout", [-1, float("inf")])
def test_an_impossible_timeout_names_none(limiter: Limiter, timeout: float) -> None:
    with pytest.raises(ValueError, match="None to wait as long as necessary"):
        limiter.acquire("Tokens", "ada", timeout=timeout)


@pytest.mark.parametrize("timeout", [True, b"1"])
def test_a_timeout_of_another_type_is_refused(limiter: Limiter, timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout"):
        limiter.acquire("Tokens", "ada", timeout=timeout)


def test_impossible_calls_raise_behind_waiters_too(crowd: Line) -> None:
    crowd.queue_up("abcde")
    crowd.send("high", cost=4)
    crowd.send("negative", cost=-1)
    assert crowd.taken() == [("high", "CostTooHigh"), ("negative", "CostNegative")]


@pytest.mark.parametrize("name", NAMES)
def test_a_caller_that_waits_is_counted_once(
    crowd: Crowd, clock: penstock.ManualClock, name: str
) -> None:
    limiter = crowd.limiter
    limiter.acquire(name, "ada", 3)
    crowd.send("served", name)
    crowd.send("late", name, timeout=0)
    with pytest.raises(penstock.RateLimited):
        limiter.acquire(name, "ada", timeout=0.001)
    crowd.send("cancelled", name)
    limiter.refund(name, "ada", 0)
    crowd.leave("cancelled")
    clock.advance(10)
    assert {who for who, _ in crowd.taken()} == {"served", "late"}
    counts = limiter.counts()[name]
    assert counts["spends"] == {"allowed": 2, "denied": 2, "shadow_denied": 0}
    assert counts["checks"] == {"allowed": 0, "denied": 0, "shadow_denied": 0}
    assert counts["refunds"] == 1
    assert [row["denied"] for row in limiter.top_denied(name)] == [2]


def test_a_caller_without_waiters_before_it_is_counted_once(limiter: penstock.Limiter) -> None:
    limiter.acquire("Window", "ada", 3)
    with pytest.raises(penstock.RateLimited):
        limiter.acquire("Window", "ada", timeout=1)
    with pytest.raises(penstock.RateLimited):
        asyncio.run(penstock.AsyncLimiter(limiter).acquire("Window", "ada", timeout=1))
    spends = limiter.counts()["Window"]["spends"]
    assert spends == {"allowed": 1, "denied": 2, "shadow_denied": 0}


def test_no_caller_waits_without_a_limit(make_limiter: MakeLimiter) -> None:
    limits = penstock.Limits.parse("Watched: {burst: 1, count: 1, period: 1h, mode: shadow}")
    limiter = make_limiter(limits)
    limiter.define("Free", Limit.unlimited())
    assert limiter.acquire("Free", "ada", 10**9, timeout=0).unlimited
    assert limiter.acquire("Watched", "ada").allowed
    assert limiter.acquire("Watched", "ada").would_deny


@pytest.mark.parametrize(
    ("limits", "outcomes"),
    [
        # The three tokens that were spent are a debt of 3 s, of which the new burst covers 0.3 s.
        ({"Tokens": Limit.token_bucket(burst=3, count=10, period="1s")}, [2.8, 2.9, 3.0, 3.1, 3.2]),
        (
            {"Tokens": Limit.token_bucket(burst=30, count=10, period="1s")},
            [0.1, 0.2, 0.3, 0.4, 0.5],
        ),
        ({"Tokens": Limit.token_bucket(burst=3, count=1, period="2s")}, [0, 1, 3, 5, 7]),
        ({"Other": "1/second"}, [0, 0, 0, "UnknownLimit", "UnknownLimit"]),
        ({"Tokens": Limit.unlimited()}, [0, 0, 0, 0, 0]),
        ({"Tokens": Limit.fixed_window(count=1, period="2s")}, [0, 2, 4, 6, 8]),
    ],
)
def test_a_reload_wakes_the_waiters_it_concerns(
    crowd: Line, limits: dict[str, Limit | str], outcomes: list[float | str]
) -> None:
    crowd.queue_up("abcde")
    crowd.limiter.reload(limits)
    at_once = dict(crowd.taken())
    expected = dict(zip("abcde", outcomes, strict=True))
    if "Tokens" in limits:
        assert at_once == {who: at for who, at in expected.items() if at == 0}
    crowd.advance(50)
    assert at_once | dict(crowd.taken()) == expected


def test_a_reload_wakes_threads_at_once() -> None:
    limiter = Limiter({"Calls": Limit.fixed_window(count=1, period="1h")})
    limiter.acquire("Calls", "ada")
    threads = [
        threading.Thread(target=limiter.acquire, args=("Calls", "ada"), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    limiter.reload({"Calls": Limit.unlimited()})
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_reset_serves_the_waiters_that_fit(crowd: Line) -> None:
    crowd.queue_up("01234567")
    crowd.limiter.reset("Tokens", "ada")
    # A full bucket, and not one token more.
    assert crowd.taken() == [("0", 0.0), ("1", 0.0), ("2", 0.0)]
    assert not crowd.limiter.spend("Tokens", "ada")
    crowd.advance(60)
    assert crowd.taken() == [(str(index), index - 2.0) for index in range(3, 8)]


@pytest.mark.parametrize("name", ["Tokens", "Window"])
@pytest.mark.parametrize("way", ["refund", "bound", "refund_all", "settle", "cancel", "exception"])
def test_returned_tokens_serve_waiters_immediately(crowd: Line, name: str, way: str) -> None:
    limiter = crowd.limiter
    reservation = limiter.reserve(name, "ada", 2)
    limiter.spend(name, "ada")
    for index in range(6):
        crowd.send(str(index), name)
    match way:
        case "refund":
            limiter.refund(name, "ada", 2)
        case "bound":
            limiter.limit(name).refund("ada", 2)
        case "refund_all":
            limiter.refund_all([(name, "ada", 2)])
        case "settle":
            reservation.settle(0)
        case "cancel":
            reservation.cancel()
        case "exception":
            with contextlib.suppress(ZeroDivisionError), reservation:
                _ = 1 // 0
    with contextlib.suppress(penstock.ReservationError):
        reservation.settle(2)
    assert crowd.taken() == [("0", 0.0), ("1", 0.0)]
    crowd.advance(60)
    turns = [1, 2, 3, 4] if name == "Tokens" else [10, 10, 10, 20]
    assert crowd.taken() == [(str(index), turn) for index, turn in enumerate(turns, 2)]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_waiter_that_leaves_after_a_reload_returns_its_place(crowd: Line, leaves: bool) -> None:
    limiter = crowd.limiter
    limiter.reload({"Drips": Limit.leaky_bucket(size=3, drip_rate="10s")})
    limiter.spend("Drips", "ada", 3)
    crowd.send("leaver", "Drips")
    limiter.reload({"Drips": Limit.leaky_bucket(size=3, drip_rate="1s")})
    crowd.send("waiter", "Drips")
    if leaves:
        crowd.leave("leaver")
    crowd.advance(5)
    # At the pace of the new limit.
    assert dict(crowd.taken())["waiter"] == (1 if leaves else 2)


def test_a_timeout_beyond_the_end_of_time_is_one(crowd: Line) -> None:
    crowd.advance(1_700_000_000)
    crowd.limiter.acquire("Window", "ada", 3)
    # The longest of `threading`, too.
    for index in range(3):
        crowd.send(str(index), "Window", 3, timeout=int(threading.TIMEOUT_MAX))
    crowd.advance(30)
    assert [who for who, _ in crowd.taken()] == ["0", "1", "2"]


def test_closing_raises_in_every_waiter(crowd: Line) -> None:
    crowd.queue_up("abcde")
    crowd.limiter.close()
    assert crowd.taken() == [(who, "StoreError") for who in "abcde"]


def test_leaving_a_closed_limiter_is_no_error(crowd: Line) -> None:
    crowd.queue_up("abcde")
    crowd.limiter.close()
    crowd.leave(*"abcde")
    assert crowd.waiting() == []
    assert {outcome for _, outcome in crowd.taken()} <= {"StoreError"}


def test_closing_wakes_a_thread() -> None:
    limiter, raised = Limiter({"Tokens": "1/hour"}), []

    def wait() -> None:
        try:
            limiter.acquire("Tokens", "ada")
        except penstock.StoreError as error:
            raised.append(error)

    limiter.acquire("Tokens", "ada")
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: debt_ns(limiter) > 0)
    limiter.close()
    thread.join(30)
    assert len(raised) == 1


def test_on_the_system_clock_no_waiter_is_early() -> None:
    limiter = Limiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="50ms")})
    decisions = [limiter.acquire("Tokens", "ada", timeout=60) for _ in range(3)]
    start_ns = limiter.clock.now_ns()
    assert decisions[2].now_ns - decisions[0].now_ns >= 100_000_000
    assert start_ns - decisions[0].now_ns < 30 * SECOND


LIMITS_OF_50_MS = [
    Limit.token_bucket(burst=1, count=1, period="50ms"),
    Limit.leaky_bucket(size=1, drip_rate="50ms"),
    Limit.fixed_window(count=1, period="50ms"),
]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "busy"])
@pytest.mark.parametrize("limit", LIMITS_OF_50_MS, ids=lambda limit: limit.algorithm)
def test_waiters_of_a_loop_that_does_not_run_delay_no_others(limit: Limit, is_closed: bool) -> None:
    limiter = Limiter({"Tokens": limit})
    limiter.acquire("Tokens", "ada")
    stopped, crowd = Line(limiter), Line(limiter)
    for index in range(4):
        stopped.send(f"stopped {index}")
    crowd.send("sleeping")
    if is_closed:
        stopped.loop.close()
    decision = limiter.acquire("Tokens", "ada")
    assert (decision.now_ns - stopped.start_ns) / SECOND < 20
    crowd.run_until_done(crowd.calls.acquire("Tokens", "ada"))
    assert [who for who, _ in crowd.taken()] == ["sleeping"]
    stopped.close()
    crowd.close()
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_abandoned_task_is_freed(limiter: Limiter) -> None:
    limiter.acquire("Tokens", "ada", 3)
    abandoned = Line(limiter)
    for index in range(6):
        abandoned.send(str(index))
    loop, task = weakref.ref(abandoned.loop), weakref.ref(abandoned.tasks["5"])
    for waiting in abandoned.tasks.values():
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    abandoned.loop.close()
    del abandoned, waiting
    gc.collect()
    assert (loop(), task()) == (None, None)
    # Their charges were returned.
    assert debt_ns(limiter) == 0


def test_a_waiting_task_without_references_stays_alive(crowd: Line) -> None:
    crowd.queue_up("012345")
    crowd.tasks.clear()
    gc.collect()
    crowd.advance(6)
    assert [who for who, _ in crowd.taken()] == [str(index) for index in range(6)]


@pytest.mark.parametrize("is_full", [False, True], ids=["placed", "queued"])
def test_thousands_of_waiters_are_cancelled_quickly(
    make_limiter: MakeLimiter, is_full: bool
) -> None:
    limiter = make_limiter({"Tokens": Limit.token_bucket(burst=10_000, count=1, period="1s")})
    limiter.acquire("Tokens", "ada", 10_000)
    if is_full:
        # The debt is full, and no waiter is charged.
        limiter.reserve("Tokens", "ada", 0).settle(10_000)
    crowd = Line(limiter)
    start = process_time()
    for index in range(4_000):
        crowd.start(str(index))
    crowd.run()
    joined = process_time()
    crowd.leave(*crowd.tasks)
    # Leaving takes less time than arriving; a search for each would take ten times as long.
    assert process_time() - joined < 5 * (joined - start)
    crowd.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="interrupts after a time")
def test_interrupts_at_any_point_block_no_waiter() -> None:
    limits = {"Tokens": Limit.token_bucket(burst=1, count=1, period="60ms")}

    def is_over(after: float) -> bool:
        """Interrupt an `acquire` after some seconds; whether it took less time."""
        limiter = Limiter(limits)
        limiter.acquire("Tokens", "ada")
        crowd = Line(limiter)
        crowd.send("before")
        with interrupted_after(after) as interrupted:
            limiter.acquire("Tokens", "ada")
        crowd.run_until_done(crowd.calls.acquire("Tokens", "ada"))
        assert [who for who, _ in crowd.taken()] == ["before"], after
        assert limiter.acquire("Tokens", "ada", timeout=60), after
        crowd.close()
        return not interrupted

    are_over = [is_over(0.0005 * 2**step) for step in range(9)]
    assert not any(are_over[:4])


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread")
def test_control_c_ends_the_wait_and_returns_the_charge() -> None:
    limiter = Limiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="1h")})
    limiter.acquire("Tokens", "ada")
    main, is_over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        until(lambda: debt_ns(limiter) > 0)
        # Again if it came just before the main thread slept: the interpreter then does not see it.
        while not is_over.wait(0.5):
            signal.pthread_kill(main, signal.SIGINT)

    before = limiter.check("Tokens", "ada").reset_after_ns
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("Tokens", "ada")
    is_over.set()
    thread.join()
    assert limiter.check("Tokens", "ada").reset_after_ns <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_waiters_are_in_the_parent(crowd: Line) -> None:
    limiter = crowd.limiter
    crowd.queue_up("01234")

    def in_child() -> bool:
        # Three charges came along with the memory; the two waiters behind them did not.
        crowd.clock.advance(3)
        is_right = not limiter.spend("Tokens", "ada")
        crowd.clock.advance(1)
        is_right = is_right and limiter.spend("Tokens", "ada").allowed
        crowd.clock.advance(1)
        return is_right and limiter.acquire("Tokens", "ada", timeout=0).allowed

    assert is_so_in_a_child(in_child)
    crowd.advance(1)
    assert crowd.taken() == [("0", 1.0)]


def test_nothing_is_imported_by_the_first_acquire() -> None:
    # A process that forks while another thread imports would wait forever in the child.
    code = (
        "import sys, penstock; limiter = penstock.Limiter({'Calls': '1/hour'}); "
        "limiter.acquire('Calls', 'bob'); limiter.spend('Calls', 'eve').headers(); "
        "before = {*sys.modules}; limiter.acquire('Calls', 'ada'); "
        "penstock.ManualClock(); "
        "assert 'penstock._wait_queue' in before and {*sys.modules} == before; "
        "assert not {'asyncio', 'socket'} & before"
    )
    run(code)


def test_a_limiter_is_freed_after_waiting(clock: ManualClock) -> None:
    class Marked(str):
        __slots__ = ("__weakref__",)

    limiter = Limiter({"Tokens": "1/second"}, clock=clock)
    crowd, id = Line(limiter), Marked("ada")
    limiter.acquire("Tokens", id)
    crowd.send("a")
    clock.advance(1)
    assert crowd.taken() == [("a", 1.0)]
    crowd.close()
    kept = weakref.ref(id)
    del limiter, crowd, id
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("timeout", ["5s", "1500ms", 1.5, datetime.timedelta(seconds=2)])
def test_timeout_is_any_length_of_time(limiter: Limiter, timeout: Any) -> None:
    limiter.acquire("Tokens", "ada", 3)
    with pytest.raises(penstock.RateLimited):
        limiter.acquire("Tokens", "ada", 3, timeout="1ms")
    assert limiter.acquire("Tokens", "grace", 1, timeout=timeout)
