"""Waiting for several limits at once, on each store.

Properties: at no instant are more calls served than every limit allows; a call that is refused,
cancelled or fails leaves nothing taken; a call that waits for its own limit does not stop others at
a limit that they share; no call waits forever.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import random
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from loops import turn_over

import penstock
from penstock import Limit, Transaction, wait_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path
    from types import FrameType

    from conftest import MakeLimiter
    from redis_servers import Server

    from penstock.types import AnyTransaction

SECOND = 1_000_000_000

LIMITS = {
    "Site": "1/second, burst 2",
    "Tokens": "10/second, burst 100",
    "Window": "2 per 10 seconds, fixed window",
    "Calls": "2 in flight",
    "Exports": "1 in flight",
    "Idle": "1/second",
}


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


class Callers:
    """Coroutines that wait for several limits, and what became of them.

    Attributes:
        outcomes: Name of each call that was served or refused, with the seconds since the start,
            or the name of the error.
        instants_ns: When each was served.
        held: The reservations of those that were served.
    """

    def __init__(self, limiter: penstock.Limiter) -> None:
        self.limiter = penstock.AsyncLimiter(limiter)
        self.instants_ns: dict[str, int] = {}
        self.start_ns = limiter.clock.now_ns()
        self.outcomes: list[tuple[str, float | str]] = []
        self.held: dict[str, penstock.Reservation] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, who: str, *wanted: Any, **options: Any) -> None:
        """Start a call, and let it run until it waits. A name alone means one of ada's tokens."""
        self.tasks[who] = asyncio.create_task(self._wait(who, wanted, options))
        await self.settle()

    async def _wait(self, who: str, wanted: tuple[Any, ...], options: dict[str, Any]) -> None:
        transactions = [(one, "ada") if isinstance(one, str) else one for one in wanted]
        options.setdefault("timeout", 10_000)
        try:
            reserved = await self.limiter.reserve_all(transactions, **options)
        except penstock.Error as error:
            self.outcomes.append((who, type(error).__name__))
        else:
            self.held[who] = reserved.reservation
            self.instants_ns[who] = reserved.decision.now_ns
            seconds = (reserved.decision.now_ns - self.start_ns) / SECOND
            self.outcomes.append((who, round(seconds, 3)))

    async def settle(self) -> None:
        """Let all waiters that were notified take their steps."""
        for _ in range(4):
            await turn_over()
            # Over a store that may wait, it follows their steps in the same thread.
            await self.limiter.reserve("Idle", "settle", 0, timeout=0)
        await turn_over()

    async def advance(self, seconds: float) -> None:
        self.limiter.clock.advance(seconds)  # type: ignore[union-attr]
        await self.settle()

    async def call(self, function: Callable[..., Any], *args: Any) -> None:
        await asyncio.to_thread(function, *args)
        await self.settle()

    async def release(self, who: str) -> None:
        await self.call(self.held.pop(who).release)

    async def cancel(self, *names: str) -> None:
        for who in names:
            self.tasks[who].cancel()
        await self.settle()

    def taken(self) -> list[tuple[str, float | str]]:
        """Return the new outcomes."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def waiting(self) -> list[str]:
        return [who for who, task in self.tasks.items() if not task.done()]


def play(
    limiter: penstock.Limiter, scenario: Callable[[Callers], Coroutine[Any, Any, None]]
) -> None:
    """Run a scenario, end its calls, and check that they leave nothing behind."""

    async def run() -> None:
        callers = Callers(limiter)
        await scenario(callers)
        await callers.cancel(*callers.tasks)
        for reservation in callers.held.values():
            await asyncio.to_thread(reservation.release)

    asyncio.run(run())
    assert left(limiter, "Calls", "Exports") == [2, 1]
    limiter.clock.advance(60)  # type: ignore[union-attr]
    assert left(limiter, "Site", "Tokens", "Window") == [2, 100, 2]


def left(limiter: penstock.Limiter, *names: str) -> list[int]:
    return [limiter.peek(name, "ada").remaining for name in names]


def test_a_call_is_served_when_all_limits_allow_it(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        for who in "abcdef":
            await callers.send(who, "Site", "Window")
        # The third waits for the window, and takes nothing of the site meanwhile.
        assert callers.taken() == [("a", 0.0), ("b", 0.0)]
        await callers.advance(9.999)
        assert callers.taken() == []
        assert left(limiter, "Site", "Window") == [2, 0]
        await callers.advance(0.001)
        assert callers.taken() == [("c", 10.0), ("d", 10.0)]
        await callers.advance(60)
        assert [who for who, _ in callers.taken()] == ["e", "f"]

    play(limiter, scenario)
    counts = limiter.counts()
    assert [counts[name]["spends"]["allowed"] for name in ("Site", "Window")] == [6, 6]
    assert [counts[name]["spends"]["denied"] for name in ("Site", "Window")] == [0, 0]


def test_a_large_step_of_the_clock_serves_each_call_at_its_instant(
    make_limiter: MakeLimiter,
) -> None:
    async def scenario(callers: Callers) -> None:
        for index in range(6):
            await callers.send(str(index), "Site", ("Tokens", "ada", 40))
        await callers.advance(60)
        # Two sites at once; 40 tokens every 4 s after the first 100.
        turns = [0.0, 0.0, 2.0, 6.0, 10.0, 14.0]
        assert callers.taken() == [(str(index), turn) for index, turn in enumerate(turns)]

    play(make_limiter(LIMITS), scenario)


def test_calls_on_one_limit_and_on_several_are_served_in_order_of_arrival(
    limiter: penstock.Limiter,
) -> None:
    async def scenario(callers: Callers) -> None:
        await callers.send("first", ("Site", "ada", 2))
        for index in range(6):
            several = ["Site", "Tokens"] if index % 2 else ["Site"]
            await callers.send(str(index), *several)
        assert callers.taken() == [("first", 0.0)]
        for turn in range(6):
            await callers.advance(1)
            assert callers.taken() == [(str(turn), turn + 1.0)]

    play(limiter, scenario)


def test_a_small_call_does_not_overtake_a_large_one(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        await callers.send("first", ("Tokens", "ada", 95))
        await callers.send("large", "Site", ("Tokens", "ada", 50))
        await callers.send("small", ("Tokens", "ada", 1), "Site")
        assert callers.taken() == [("first", 0.0)]
        await callers.advance(4.5)
        assert [who for who, _ in callers.taken()] == ["large"]
        await callers.advance(0.1)
        assert [who for who, _ in callers.taken()] == ["small"]

    play(limiter, scenario)


def test_a_client_that_waits_for_its_own_limit_does_not_stop_others(
    limiter: penstock.Limiter,
) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Site", "ada", 2)
        await callers.send("own", "Site", ("Window", "joan"))
        await callers.send("other", "Site", "Tokens")
        # At its turn for the site, it has to wait longer for its own limit.
        limiter.spend("Window", "joan", 2)
        await callers.advance(1)
        assert callers.taken() == [("other", 1.0)]
        await callers.advance(9)
        assert callers.taken() == [("own", 10.0)]

    play(limiter, scenario)


def test_no_call_waits_forever(limiter: penstock.Limiter, clock: penstock.ManualClock) -> None:
    limiter.reload({**LIMITS, "Site": "1/second, burst 1", "Tokens": "1/second, burst 1"})
    numbers = itertools.count()

    async def scenario(callers: Callers) -> None:
        async def crowd() -> None:
            """Keep both limits busy, with turns half a second apart."""
            for name in ("Site", "Tokens"):
                waiting = [who for who in callers.waiting() if who.startswith(name)]
                for _ in range(3 - len(waiting)):
                    await callers.send(f"{name} {next(numbers)}", name)

        limiter.spend("Site", "ada")
        clock.advance(0.5)
        limiter.spend("Tokens", "ada")
        await crowd()
        await callers.send("several", "Site", "Tokens")
        for _ in range(40):
            await callers.advance(0.5)
            await crowd()
            if "several" in callers.held:
                break
        assert "several" in callers.held

    asyncio.run(_cancel_all(limiter, scenario))


async def _cancel_all(
    limiter: penstock.Limiter, scenario: Callable[[Callers], Coroutine[Any, Any, None]]
) -> None:
    callers = Callers(limiter)
    await scenario(callers)
    await callers.cancel(*callers.tasks)
    for reservation in callers.held.values():
        reservation.release_nowait()


def test_slots_and_rates_are_waited_for_together(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        for who in "abcd":
            await callers.send(who, "Site", "Calls")
        assert callers.taken() == [("a", 0.0), ("b", 0.0)]
        await callers.advance(5)
        assert callers.taken() == []
        assert left(limiter, "Site") == [2]
        await callers.release("b")
        assert callers.taken() == [("c", 5.0)]
        limiter.spend("Site", "ada")
        # A slot is free, but the rate does not allow it yet.
        await callers.release("a")
        assert callers.taken() == []
        assert left(limiter, "Calls") == [1]
        await callers.advance(1)
        assert callers.taken() == [("d", 6.0)]

    play(limiter, scenario)
    assert limiter.counts()["Calls"]["held"] == 0


def test_a_call_that_moves_to_the_queue_of_its_first_limit_is_served_there(
    limiter: penstock.Limiter,
) -> None:
    async def scenario(callers: Callers) -> None:
        held = limiter.reserve("Calls", "ada", 2)
        await callers.send("a", "Window", "Calls")
        limiter.spend("Window", "ada", 2)
        # A slot is free, but the window denies the call for much longer than it has waited.
        await callers.call(held.release)
        assert callers.taken() == []
        await callers.advance(10)
        assert callers.taken() == [("a", 10.0)]

    play(limiter, scenario)


def test_callers_in_opposite_order_do_not_wait_for_each_other(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        orders = itertools.cycle([["Calls", "Exports"], ["Exports", "Calls"]])
        for index in range(10):
            await callers.send(str(index), *next(orders))
        for index in range(10):
            assert [who for who, _ in callers.taken()] == [str(index)]
            await callers.release(str(index))

    play(limiter, scenario)


def test_a_wait_beyond_the_timeout_takes_nothing(limiter: penstock.Limiter) -> None:
    limiter.spend("Window", "ada", 2)
    wanted = [("Site", "ada"), ("Window", "ada")]
    with pytest.raises(penstock.RateLimited) as caught:
        limiter.acquire_all(wanted, timeout=9.9)
    decision = caught.value.decision
    assert (decision.allowed, decision.name, decision.retry_after) == (False, "Window", 10.0)
    assert [part.allowed for part in decision.parts] == [True, False]
    assert left(limiter, "Site") == [2]

    async def scenario(callers: Callers) -> None:
        # Those that wait before count, too.
        await callers.send("a", "Window", "Site")
        await callers.send("b", "Site", ("Window", "ada", 2), timeout=19.9)
        assert callers.taken() == [("b", "RateLimited")]
        await callers.send("c", "Site", ("Window", "ada", 2), timeout=20)
        await callers.advance(10)
        assert callers.taken() == [("a", 10.0)]
        # What others take meanwhile may make it too late after all.
        limiter.spend("Site", "ada", 1)
        await callers.advance(10)
        assert callers.taken() == [("c", 20.0)]

    play(limiter, scenario)
    spends = limiter.counts()["Window"]["spends"]
    assert (spends["allowed"], spends["denied"]) == (3, 2)


def test_the_wait_for_a_slot_and_a_rate_ends_at_the_timeout(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        held = limiter.reserve("Calls", "ada", 2)
        for who, timeout in [("a", 5), ("b", 3), ("never", 0)]:
            await callers.send(who, "Site", "Calls", timeout=timeout)
        assert callers.taken() == [("never", "RateLimited")]
        await callers.advance(3)
        assert callers.taken() == [("b", "RateLimited")]
        await callers.call(held.release)
        await callers.advance(0.063)
        assert [who for who, at in callers.taken() if at != "RateLimited"] == ["a"]

    play(limiter, scenario)
    with limiter.reserve("Calls", "ada", 2):
        with pytest.raises(penstock.RateLimited) as caught:
            limiter.reserve_all([("Site", "ada"), ("Calls", "ada")], timeout=0)
        assert (caught.value.decision.name, caught.value.decision.allowed) == ("Calls", False)


def test_the_refusal_of_a_call_does_not_claim_a_wait_that_is_too_short(
    limiter: penstock.Limiter,
) -> None:
    wanted = [("Site", "ada"), ("Calls", "ada")]
    with limiter.reserve("Calls", "ada", 2):
        limiter.spend("Site", "ada", 2)
        # Too late for the rate, and it is unknown when a slot will be free.
        with pytest.raises(penstock.RateLimited) as caught:
            limiter.reserve_all(wanted, timeout=0.5)
        decision = caught.value.decision
        assert [part.allowed for part in decision.parts] == [False, False]
        longest = max(decision.parts, key=operator.attrgetter("retry_after"))
        assert (longest.name, longest.retry_after > 1) == ("Calls", True)
        assert (decision.name, decision.retry_after) == (longest.name, longest.retry_after)


@pytest.mark.parametrize("timeout", [0, 1e-6])
def test_a_call_that_finds_no_slot_in_time_may_not_retry_at_once(timeout: float) -> None:
    # On the system's clock, the timeout is over when the slots have denied the call.
    with (
        penstock.Limiter(LIMITS) as limiter,
        limiter.reserve("Exports", "ada"),
        pytest.raises(penstock.RateLimited) as caught,
    ):
        limiter.reserve_all([("Calls", "ada"), ("Exports", "ada")], timeout=timeout)
    decision = caught.value.decision
    assert (decision.name, decision.allowed) == ("Exports", False)
    assert decision.retry_after == decision.parts[1].retry_after > 1


def test_a_cancelled_call_lets_others_move_up(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Site", "ada", 2)
        await callers.send("large", ("Site", "ada", 2), "Tokens")
        await callers.send("a", "Site", "Tokens")
        await callers.send("b", "Site", "Tokens")
        await callers.advance(1)
        assert callers.taken() == []
        await callers.cancel("large")
        assert callers.taken() == [("a", 1.0)]
        # Cancelled at its turn, before the task could run.
        limiter.clock.advance(1)  # type: ignore[union-attr]
        await callers.cancel("b")
        await callers.send("c", "Site", "Tokens")
        assert [who for who, _ in callers.taken()] == ["c"]

    play(limiter, scenario)


def test_a_served_call_leaves_its_other_queues(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Window", "ada", 2)
        await callers.send("both", "Window", ("Site", "ada", 2))
        await callers.advance(9)
        limiter.spend("Site", "ada", 2)
        await callers.advance(1)
        # It may hold up the window for a second, because it has waited for ten.
        await callers.send("after", "Window")
        assert callers.taken() == []
        await callers.advance(0.5)
        await callers.call(limiter.refund, "Site", "ada", 2)
        assert callers.taken() == [("both", 10.5), ("after", 10.5)]

    play(limiter, scenario)


@pytest.mark.parametrize("order", [["Site", "Calls"], ["Calls", "Site"]])
def test_a_served_call_does_not_count_for_those_behind_it(
    limiter: penstock.Limiter, order: list[str]
) -> None:
    async def scenario(callers: Callers) -> None:
        held = limiter.reserve("Calls", "ada", 2)
        await callers.send("a", *order)
        await callers.advance(2)
        limiter.spend("Site", "ada", 2)
        await callers.call(held.release)
        # Now it waits in both queues. The other one has room for one site more.
        await callers.send("b", *order, timeout=2.5)
        await callers.advance(1)
        assert callers.taken() == [("a", 3.0)]
        await callers.advance(1)
        assert callers.taken() == [("b", 4.0)]

    play(limiter, scenario)


def test_checks_are_waited_for_and_take_nothing(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Window", "ada", 2)
        check = ("Window", "ada", 1, "check")
        await callers.send("a", "Site", check, ("Tokens", "ada", 5, "spend_only"))
        assert left(limiter, "Site") == [2]
        await callers.advance(10)
        assert callers.taken() == [("a", 10.0)]
        assert left(limiter, "Site", "Tokens", "Window") == [1, 95, 2]

    play(limiter, scenario)


def test_calls_that_keep_tokens_come_after_others(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Site", "ada", 2)
        await callers.send("polite", Transaction("Site", "ada", keep=1), "Tokens")
        await callers.send("a", "Site", "Tokens")
        await callers.advance(1)
        assert callers.taken() == [("a", 1.0)]
        await callers.advance(2)
        assert callers.taken() == [("polite", 3.0)]

    play(limiter, scenario)


@pytest.mark.parametrize("way", ["reload", "unlimited", "reset", "refund"])
def test_changes_wake_the_calls_they_concern(limiter: penstock.Limiter, way: str) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Window", "ada", 2)
        await callers.send("a", "Window", "Site")
        await callers.send("b", "Window", "Site")
        match way:
            case "reload":
                limits = limiter.limits | {"Window": "4 per 10 seconds, fixed window"}
                await callers.call(limiter.reload, limits)
            case "unlimited":
                limits = limiter.limits | {"Window": penstock.Limit.unlimited()}
                await callers.call(limiter.reload, limits)
            case "reset":
                await callers.call(limiter.reset, "Window", "ada")
            case "refund":
                await callers.call(limiter.refund, "Window", "ada", 2)
        assert callers.taken() == [("a", 0.0), ("b", 0.0)]
        await callers.call(limiter.reload, LIMITS)

    play(limiter, scenario)


@pytest.mark.parametrize("way", ["remove", "close"])
def test_a_call_that_cannot_be_served_raises(limiter: penstock.Limiter, way: str) -> None:
    async def scenario(callers: Callers) -> None:
        limiter.spend("Window", "ada", 2)
        await callers.send("a", "Site", "Window")
        await callers.send("b", "Site", "Window")
        if way == "remove":
            limits = {name: limit for name, limit in LIMITS.items() if name != "Site"}
            await asyncio.to_thread(limiter.reload, limits)
        else:
            await asyncio.to_thread(limiter.close)
        await asyncio.wait(callers.tasks.values())
        error = "UnknownLimit" if way == "remove" else "StoreError"
        assert sorted(callers.taken()) == [("a", error), ("b", error)]

    async def run() -> None:
        await scenario(Callers(limiter))

    asyncio.run(run())


def test_a_coroutine_takes_tokens_when_all_limits_allow_it(limiter: penstock.Limiter) -> None:
    async def scenario(callers: Callers) -> None:
        wanted = [("Site", "ada"), ("Window", "ada")]
        decision = await callers.limiter.acquire_all(wanted)
        assert (decision.allowed, [part.name for part in decision.parts]) == (
            True,
            ["Site", "Window"],
        )
        await callers.limiter.acquire_all(wanted, timeout=0)
        waiting = asyncio.create_task(callers.limiter.acquire_all(wanted, timeout=10))
        await callers.settle()
        with pytest.raises(penstock.RateLimited):
            await callers.limiter.acquire_all([("Window", "ada", 2)], timeout=10)
        await callers.advance(10)
        assert (await waiting).now_ns == callers.start_ns + 10 * SECOND

    play(limiter, scenario)


def test_invalid_calls_take_nothing(limiter: penstock.Limiter) -> None:
    site = ("Site", "ada")
    cases: list[tuple[list[Any], type[Exception], str]] = [
        ([site, site], penstock.TransactionError, "named twice"),
        ([site, ("Calls", "ada")], penstock.LimitError, "reserve_all"),
        ([site, ("Tokens", "ada", 101)], penstock.CostTooHigh, "Tokens"),
        ([site, ("Nothing", "ada")], penstock.UnknownLimit, "Nothing"),
        ([site, Transaction("Tokens", "ada", factor=2)], TypeError, "factor.*timeout"),
    ]
    for wanted, error, message in cases:
        with pytest.raises(error, match=message):
            limiter.acquire_all(wanted, timeout=1)
    with pytest.raises(ValueError, match="timeout must be at least 0"):
        limiter.reserve_all([site], timeout=-1)
    assert limiter.acquire_all([]).allowed
    assert left(limiter, "Site") == [2]


class History:
    """Random calls, cancellations and releases.

    Attributes:
        served: The instant at which each call was served, and its transactions.
    """

    def __init__(self, callers: Callers, seed: int) -> None:
        self.callers = callers
        self.chance = random.Random(seed)  # noqa: S311  one that can be repeated
        self.wanted: dict[str, list[tuple[str, str, int]]] = {}
        self.served: list[tuple[int, list[tuple[str, str, int]]]] = []

    async def call(self) -> None:
        names = self.chance.sample([*RATES, "Calls", "Exports"], self.chance.randint(1, 4))
        who, cost = str(len(self.wanted)), self.chance.choice([10, 60])
        self.wanted[who] = [(name, "ada", cost if name == "Tokens" else 1) for name in names]
        timeout = self.chance.choice([0, 5, 30, 10_000])
        await self.callers.send(who, *self.wanted[who], timeout=timeout)

    async def cancel(self) -> None:
        for who in self.callers.waiting()[:1]:
            await self.callers.cancel(who)

    async def release(self) -> None:
        for who in [*self.callers.held][:1]:
            await self.callers.release(who)

    async def advance(self) -> None:
        await self.callers.advance(self.chance.choice([0.25, 1, 4]))

    def check(self) -> None:
        """Count the slots that are held, and note what was served."""
        held = [one for who in self.callers.held for one in self.wanted[who]]
        assert held.count(("Calls", "ada", 1)) <= 2
        assert held.count(("Exports", "ada", 1)) <= 1
        for who, at in self.callers.taken():
            if at != "RateLimited":
                self.served.append((self.callers.instants_ns[who], self.wanted[who]))

    async def run(self) -> None:
        step = self.call
        for _ in range(50):
            await step()
            self.check()
            steps = [self.call, self.cancel, self.release, self.advance]
            step = self.chance.choices(steps, weights=[4, 1, 2, 3])[0]
        while self.callers.held:
            await self.release()
            self.check()


RATES = ["Site", "Tokens", "Window"]


def test_random_histories_never_exceed_a_limit(limiter: penstock.Limiter) -> None:
    """Replay the served calls, at the instants at which they were served, on new buckets."""
    for seed in range(3 if limiter.may_wait else 40):
        served: list[tuple[int, list[tuple[str, str, int]]]] = []

        async def scenario(callers: Callers, seed: int = seed, served: list[Any] = served) -> None:
            history = History(callers, seed)
            await history.run()
            served += history.served

        play(limiter, scenario)
        limiter.reset_all([(name, "ada") for name in RATES])
        clock = penstock.ManualClock()
        fresh = penstock.Limiter(LIMITS, clock=clock)
        for at_ns, transactions in sorted(served, key=operator.itemgetter(0)):
            clock.set_ns(at_ns)
            tokens = [one for one in transactions if one[0] in RATES]
            assert fresh.spend_all(tokens), (seed, at_ns, transactions)
        assert len(served) > 5


def test_a_storm_of_cancellations_leaves_nothing(limiter: penstock.Limiter) -> None:
    wanted: list[AnyTransaction] = [("Site", "ada"), ("Calls", "ada"), ("Tokens", "ada", 5)]

    async def scenario(callers: Callers) -> None:
        async def work() -> None:
            async with callers.limiter.reserve_all(wanted, timeout=1000):
                await turn_over()

        chance = random.Random(7)  # noqa: S311  one that can be repeated
        for step in range(60):
            for index in range(3):
                callers.tasks[f"{step} {index}"] = asyncio.create_task(work())
            await turn_over(step % 5)
            for who in chance.sample(waiting := callers.waiting(), len(waiting) // 3):
                callers.tasks[who].cancel()
            limiter.clock.advance(0.5)  # type: ignore[union-attr]
        await callers.cancel(*callers.tasks)

    play(limiter, scenario)


def test_threads_wait_without_exceeding_a_limit() -> None:
    limiter = penstock.Limiter(
        {
            "Site": Limit.token_bucket(burst=1, count=1, period="20ms"),
            "Tokens": Limit.token_bucket(burst=3, count=1, period="10ms"),
            "Calls": "2 in flight",
        }
    )
    instants: list[int] = []
    most, running, lock = [0], [0], threading.Lock()

    def work(index: int) -> None:
        wanted = [("Site", "ada"), ("Calls", "ada"), ("Tokens", "ada")]
        random.Random(index).shuffle(wanted)  # noqa: S311  one that can be repeated
        for _ in range(4):
            with limiter.reserve_all(wanted, timeout=60) as reservation:
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                    instants.append(reservation.decision.now_ns)
                with lock:
                    running[0] -= 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(instants), most[0] <= 2) == (24, True)
    assert all(b - a >= 20_000_000 for a, b in itertools.pairwise(sorted(instants)))
    assert limiter.acquire_all([("Site", "ada"), ("Tokens", "ada")], timeout=60).allowed


def test_interrupts_at_any_point_leave_nothing() -> None:
    limits = {
        "Site": Limit.token_bucket(burst=1, count=1, period="50ms"),
        "Window": Limit.fixed_window(count=1, period="50ms"),
    }

    def is_over(nth: int) -> bool:
        """Interrupt `acquire_all` at the nth line that is run; whether there were fewer."""
        limiter = penstock.Limiter(limits)
        wanted = [("Site", "ada"), ("Window", "ada")]
        limiter.acquire_all(wanted)
        ran = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal ran
            if frame.f_code.co_filename != wait_queue.__file__:
                return None
            ran += event == "line"
            if event == "line" and ran == nth:
                sys.settrace(before)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        with suppress(KeyboardInterrupt):
            sys.settrace(trace)
            limiter.acquire_all(wanted)
        sys.settrace(before)
        assert limiter.acquire_all(wanted, timeout=5), nth
        return ran < nth

    assert next(nth for nth in itertools.count(1) if is_over(nth)) > 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_calls_wait_in_the_parent(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter(LIMITS)

    async def scenario(callers: Callers) -> None:
        limiter.spend("Window", "ada", 2)
        await callers.send("a", "Window", "Site")
        child = os.fork()
        if child == 0:
            # The call of the parent is not in the queue here.
            limiter.reset("Window", "ada")
            is_right = limiter.acquire_all([("Site", "ada"), ("Window", "ada")], timeout=0).allowed
            os._exit(0 if is_right else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await callers.advance(10)
        assert callers.taken() == [("a", 10.0)]

    play(limiter, scenario)
