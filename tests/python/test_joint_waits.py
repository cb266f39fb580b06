"""Waiting for several limits at once, on each store.

Properties: at no instant are more calls served than every limit allows; a call that is refused,
cancelled or fails leaves nothing taken; a call that waits for its own limit does not stop others at
a limit that they share; no call waits forever.

`test_in_flight_waits.py` has the calls that wait for a slot together with a token.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from loops import interrupted_after, turn_over
from waiters import Crowd, left

import penstock
from penstock import AsyncReservation, Limit, Limiter, ManualClock, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import MakeLimiter

    from penstock.types import AnyTransaction

LIMITS = {
    "Site": "1/second, burst 2",
    "Tokens": "10/second, burst 100",
    "Window": "2 per 10 seconds, fixed window",
    "Calls": "2 in flight",
    "Exports": "1 in flight",
    "Idle": "1/second",
}


@pytest.fixture
def limiter(any_store: str, clock: ManualClock) -> Iterator[Limiter]:
    """Return a limiter on each store."""
    clock.advance(1_700_000_000)
    with Limiter(LIMITS, any_store, clock) as limiter:
        yield limiter


class Callers(Crowd):
    """Coroutines that wait for several limits. A name alone means one of ada's tokens."""

    idle = "Idle"

    async def ask(self, *wanted: Any, **options: Any) -> AsyncReservation:
        transactions = [(one, "ada") if isinstance(one, str) else one for one in wanted]
        return await self.calls.reserve_all(transactions, **{"timeout": 10_000, **options})

    def end(self) -> None:
        """End all calls, and check that they leave nothing behind."""
        self.close()
        assert left(self.limiter, "Calls", "Exports") == [2, 1]
        assert self.limiter.counts()["Calls"]["held"] == 0
        self.clock.advance(60)
        assert left(self.limiter, "Site", "Tokens", "Window") == [2, 100, 2]


@pytest.fixture
def callers(limiter: Limiter) -> Iterator[Callers]:
    """Callers that leave nothing behind."""
    callers = Callers(limiter)
    yield callers
    callers.end()


def test_a_call_is_served_when_all_limits_allow_it(callers: Callers, limiter: Limiter) -> None:
    for who in "abcdef":
        callers.send(who, "Site", "Window")
    # The third waits for the window, and takes nothing of the site meanwhile.
    assert callers.taken() == [("a", 0.0), ("b", 0.0)]
    callers.advance(9.999)
    assert callers.taken() == []
    assert left(limiter, "Site", "Window") == [2, 0]
    callers.advance(0.001)
    assert callers.taken() == [("c", 10.0), ("d", 10.0)]
    callers.advance(60)
    assert [who for who, _ in callers.taken()] == ["e", "f"]
    counts = limiter.counts()
    assert [counts[name]["spends"]["allowed"] for name in ("Site", "Window")] == [6, 6]
    assert [counts[name]["spends"]["denied"] for name in ("Site", "Window")] == [0, 0]


def test_a_large_step_of_the_clock_serves_each_call_at_its_instant(
    make_limiter: MakeLimiter,
) -> None:
    callers = Callers(make_limiter(LIMITS))
    for index in range(6):
        callers.send(str(index), "Site", ("Tokens", "ada", 40))
    callers.advance(60)
    # Two sites at once; 40 tokens every 4 s after the first 100.
    turns = [0.0, 0.0, 2.0, 6.0, 10.0, 14.0]
    assert callers.taken() == [(str(index), turn) for index, turn in enumerate(turns)]
    callers.end()


def test_calls_on_one_limit_and_on_several_are_served_in_order_of_arrival(callers: Callers) -> None:
    callers.send("first", ("Site", "ada", 2))
    for index in range(6):
        several = ["Site", "Tokens"] if index % 2 else ["Site"]
        callers.send(str(index), *several)
    assert callers.taken() == [("first", 0.0)]
    for turn in range(6):
        callers.advance(1)
        assert callers.taken() == [(str(turn), turn + 1.0)]


def test_a_small_call_does_not_overtake_a_large_one(callers: Callers) -> None:
    callers.send("first", ("Tokens", "ada", 95))
    callers.send("large", "Site", ("Tokens", "ada", 50))
    callers.send("small", ("Tokens", "ada", 1), "Site")
    assert callers.taken() == [("first", 0.0)]
    callers.advance(4.5)
    assert [who for who, _ in callers.taken()] == ["large"]
    callers.advance(0.1)
    assert [who for who, _ in callers.taken()] == ["small"]


def test_a_client_that_waits_for_its_own_limit_does_not_stop_others(
    callers: Callers, limiter: Limiter
) -> None:
    limiter.spend("Site", "ada", 2)
    callers.send("own", "Site", ("Window", "joan"))
    callers.send("other", "Site", "Tokens")
    # At its turn for the site, it has to wait longer for its own limit.
    limiter.spend("Window", "joan", 2)
    callers.advance(1)
    assert callers.taken() == [("other", 1.0)]
    callers.advance(9)
    assert callers.taken() == [("own", 10.0)]


def test_no_call_waits_forever(limiter: Limiter, clock: ManualClock) -> None:
    limiter.reload({**LIMITS, "Site": "1/second, burst 1", "Tokens": "1/second, burst 1"})
    callers, numbers = Callers(limiter), itertools.count()

    def crowd() -> None:
        """Keep both limits busy, with turns half a second apart."""
        for name in ("Site", "Tokens"):
            waiting = [who for who in callers.waiting() if who.startswith(name)]
            for _ in range(3 - len(waiting)):
                callers.send(f"{name} {next(numbers)}", name)

    limiter.spend("Site", "ada")
    clock.advance(0.5)
    limiter.spend("Tokens", "ada")
    crowd()
    callers.send("several", "Site", "Tokens")
    for _ in range(40):
        callers.advance(0.5)
        crowd()
        if "several" in callers.held:
            break
    assert "several" in callers.held
    callers.close()


def test_slots_and_rates_are_waited_for_together(callers: Callers, limiter: Limiter) -> None:
    for who in "abcd":
        callers.send(who, "Site", "Calls")
    assert callers.taken() == [("a", 0.0), ("b", 0.0)]
    callers.advance(5)
    assert callers.taken() == []
    assert left(limiter, "Site") == [2]
    callers.release("b")
    assert callers.taken() == [("c", 5.0)]
    limiter.spend("Site", "ada")
    # A slot is free, but the rate does not allow it yet.
    callers.release("a")
    assert callers.taken() == []
    assert left(limiter, "Calls") == [1]
    callers.advance(1)
    assert callers.taken() == [("d", 6.0)]


def test_a_call_that_moves_to_the_queue_of_its_first_limit_is_served_there(
    callers: Callers, limiter: Limiter
) -> None:
    held = limiter.reserve("Calls", "ada", 2)
    callers.send("a", "Window", "Calls")
    limiter.spend("Window", "ada", 2)
    # A slot is free, but the window denies the call for much longer than it has waited.
    held.release()
    assert callers.taken() == []
    callers.advance(10)
    assert callers.taken() == [("a", 10.0)]


def test_callers_in_opposite_order_do_not_wait_for_each_other(callers: Callers) -> None:
    orders = itertools.cycle([["Calls", "Exports"], ["Exports", "Calls"]])
    for index in range(10):
        callers.send(str(index), *next(orders))
    for index in range(10):
        assert [who for who, _ in callers.taken()] == [str(index)]
        callers.release(str(index))


def test_a_wait_beyond_the_timeout_takes_nothing(callers: Callers, limiter: Limiter) -> None:
    limiter.spend("Window", "ada", 2)
    wanted = [("Site", "ada"), ("Window", "ada")]
    with pytest.raises(penstock.RateLimited) as caught:
        limiter.acquire_all(wanted, timeout=9.9)
    decision = caught.value.decision
    assert (decision.allowed, decision.name, decision.retry_after) == (False, "Window", 10.0)
    assert [part.allowed for part in decision.parts] == [True, False]
    assert left(limiter, "Site") == [2]
    # Those that wait before count, too.
    callers.send("a", "Window", "Site")
    callers.send("b", "Site", ("Window", "ada", 2), timeout=19.9)
    assert callers.taken() == [("b", "RateLimited")]
    callers.send("c", "Site", ("Window", "ada", 2), timeout=20)
    callers.advance(10)
    assert callers.taken() == [("a", 10.0)]
    # What others take meanwhile may make it too late after all.
    limiter.spend("Site", "ada", 1)
    callers.advance(10)
    assert callers.taken() == [("c", 20.0)]
    spends = limiter.counts()["Window"]["spends"]
    assert (spends["allowed"], spends["denied"]) == (3, 2)


def test_a_call_that_is_refused_leaves_all_of_its_queues(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter({**LIMITS, "Calls": Limit.in_flight(2, lease=2)})
    callers = Callers(limiter)
    held = limiter.reserve("Calls", "ada", 2)
    limiter.spend("Window", "ada", 2)
    callers.send("refused", "Calls", ("Window", "ada", 2), timeout=15)
    callers.send("behind", "Window")
    callers.advance(10)
    assert callers.taken() == []
    # It waits in both queues, and would take the whole window.
    callers.advance(5)
    assert sorted(callers.taken()) == [("behind", 15.0), ("refused", "RateLimited")]
    held.release()
    callers.end()


def test_the_refusal_of_a_call_does_not_claim_a_wait_that_is_too_short(limiter: Limiter) -> None:
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
        Limiter(LIMITS) as limiter,
        limiter.reserve("Exports", "ada"),
        pytest.raises(penstock.RateLimited) as caught,
    ):
        limiter.reserve_all([("Calls", "ada"), ("Exports", "ada")], timeout=timeout)
    decision = caught.value.decision
    assert (decision.name, decision.allowed) == ("Exports", False)
    assert decision.retry_after == decision.parts[1].retry_after > 1


def test_a_cancelled_call_lets_others_move_up(callers: Callers, limiter: Limiter) -> None:
    limiter.spend("Site", "ada", 2)
    callers.send("large", ("Site", "ada", 2), "Tokens")
    callers.send("a", "Site", "Tokens")
    callers.send("b", "Site", "Tokens")
    callers.advance(1)
    assert callers.taken() == []
    callers.leave("large")
    assert callers.taken() == [("a", 1.0)]
    # Cancelled at its turn, before the task could run.
    callers.clock.advance(1)
    callers.leave("b")
    callers.send("c", "Site", "Tokens")
    assert [who for who, _ in callers.taken()] == ["c"]


def test_a_served_call_leaves_its_other_queues(callers: Callers, limiter: Limiter) -> None:
    limiter.spend("Window", "ada", 2)
    callers.send("both", "Window", ("Site", "ada", 2))
    callers.advance(9)
    limiter.spend("Site", "ada", 2)
    callers.advance(1)
    # It may hold up the window for a second, because it has waited for ten.
    callers.send("after", "Window")
    assert callers.taken() == []
    callers.advance(0.5)
    limiter.refund("Site", "ada", 2)
    assert callers.taken() == [("both", 10.5), ("after", 10.5)]


@pytest.mark.parametrize("order", [["Site", "Calls"], ["Calls", "Site"]])
def test_a_served_call_does_not_count_for_those_behind_it(
    callers: Callers, limiter: Limiter, order: list[str]
) -> None:
    held = limiter.reserve("Calls", "ada", 2)
    callers.send("a", *order)
    callers.advance(2)
    limiter.spend("Site", "ada", 2)
    held.release()
    callers.run()
    # Now it waits in both queues. The other one has room for one site more.
    callers.send("b", *order, timeout=2.5)
    callers.advance(1)
    assert callers.taken() == [("a", 3.0)]
    callers.advance(1)
    assert callers.taken() == [("b", 4.0)]


def test_checks_are_waited_for_and_take_nothing(callers: Callers, limiter: Limiter) -> None:
    limiter.spend("Window", "ada", 2)
    check = ("Window", "ada", 1, "check")
    callers.send("a", "Site", check, ("Tokens", "ada", 5, "spend_only"))
    assert left(limiter, "Site") == [2]
    callers.advance(10)
    assert callers.taken() == [("a", 10.0)]
    assert left(limiter, "Site", "Tokens", "Window") == [1, 95, 2]


def test_calls_that_keep_tokens_come_after_others(callers: Callers, limiter: Limiter) -> None:
    limiter.spend("Site", "ada", 2)
    callers.send("polite", Transaction("Site", "ada", keep=1), "Tokens")
    callers.send("a", "Site", "Tokens")
    callers.advance(1)
    assert callers.taken() == [("a", 1.0)]
    callers.advance(2)
    assert callers.taken() == [("polite", 3.0)]


@pytest.mark.parametrize("way", ["reload", "unlimited", "reset", "refund"])
def test_changes_wake_the_calls_they_concern(callers: Callers, limiter: Limiter, way: str) -> None:
    limiter.spend("Window", "ada", 2)
    callers.send("a", "Window", "Site")
    callers.send("b", "Window", "Site")
    match way:
        case "reload":
            limiter.reload(limiter.limits | {"Window": "4 per 10 seconds, fixed window"})
        case "unlimited":
            limiter.reload(limiter.limits | {"Window": Limit.unlimited()})
        case "reset":
            limiter.reset("Window", "ada")
        case "refund":
            limiter.refund("Window", "ada", 2)
    assert callers.taken() == [("a", 0.0), ("b", 0.0)]
    limiter.reload(LIMITS)


def test_a_call_whose_limit_is_removed_raises(limiter: Limiter) -> None:
    callers = Callers(limiter)
    limiter.spend("Window", "ada", 2)
    callers.send("a", "Site", "Window")
    callers.send("b", "Site", "Window")
    limiter.reload({name: limit for name, limit in LIMITS.items() if name != "Site"})
    callers.run_until_done(asyncio.wait(callers.tasks.values()))
    assert sorted(callers.outcomes) == [("a", "UnknownLimit"), ("b", "UnknownLimit")]
    callers.loop.close()


def test_a_coroutine_takes_tokens_when_all_limits_allow_it(callers: Callers) -> None:
    wanted = [("Site", "ada"), ("Window", "ada")]
    acquire_all = callers.calls.acquire_all
    decision = callers.run_until_done(acquire_all(wanted))
    assert [part.name for part in decision.parts] == ["Site", "Window"]
    callers.run_until_done(acquire_all(wanted, timeout=0))
    waiting = callers.loop.create_task(acquire_all(wanted, timeout=10))
    callers.run()
    with pytest.raises(penstock.RateLimited):
        callers.run_until_done(acquire_all([("Window", "ada", 2)], timeout=10))
    callers.advance(10)
    assert callers.seconds(waiting.result()) == 10


def test_invalid_calls_take_nothing(limiter: Limiter) -> None:
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
    with pytest.raises(ValueError, match="timeout must be finite and at least 0"):
        limiter.reserve_all([site], timeout=-1)
    assert limiter.acquire_all([]).allowed
    assert left(limiter, "Site") == [2]


Wanted = list[tuple[str, str, int]]
RATES = ["Site", "Tokens", "Window"]


def served_in_history(callers: Callers, chance: random.Random) -> list[tuple[int, Wanted]]:
    """Make random calls, cancellations and releases; return what was served, and when."""
    wanted: dict[str, Wanted] = {}
    served = []
    for turn in range(100):
        steps = ["call", "leave", "release", "advance"] if turn < 50 else ["release"] * 4
        match chance.choices(steps, weights=[4, 1, 2, 3])[0]:
            case "call":
                names = chance.sample([*RATES, "Calls", "Exports"], chance.randint(1, 4))
                who, cost = str(turn), chance.choice([10, 60])
                wanted[who] = [(name, "ada", cost if name == "Tokens" else 1) for name in names]
                callers.send(who, *wanted[who], timeout=chance.choice([0, 5, 30, 10_000]))
            case "leave":
                callers.leave(*callers.waiting()[:1])
            case "release" if callers.held:
                callers.release(next(iter(callers.held)))
            case "advance":
                callers.advance(chance.choice([0.25, 1, 4]))
        held = [one for who in callers.held for one in wanted[who]]
        assert held.count(("Calls", "ada", 1)) <= 2
        assert held.count(("Exports", "ada", 1)) <= 1
        for who, at in callers.taken():
            if at != "RateLimited":
                served.append((callers.held[who].decision.now_ns, wanted[who]))
    return served


def test_random_histories_never_exceed_a_limit(limiter: Limiter) -> None:
    """Replay the served calls, at the instants at which they were served, on new buckets."""
    for seed in range(3 if limiter.may_wait else 12):
        callers = Callers(limiter)
        served = served_in_history(callers, random.Random(seed))  # noqa: S311  one that can be repeated
        callers.end()
        limiter.reset_all([(name, "ada") for name in RATES])
        clock = ManualClock()
        fresh = Limiter(LIMITS, clock=clock)
        for at_ns, wanted in sorted(served, key=operator.itemgetter(0)):
            clock.set_ns(at_ns)
            assert fresh.spend_all([one for one in wanted if one[0] in RATES]), (
                seed,
                at_ns,
                wanted,
            )
        assert len(served) > 5


def test_a_storm_of_cancellations_leaves_nothing(callers: Callers) -> None:
    wanted: list[AnyTransaction] = [("Site", "ada"), ("Calls", "ada"), ("Tokens", "ada", 5)]
    chance = random.Random(7)  # noqa: S311  one that can be repeated

    async def work() -> None:
        async with callers.calls.reserve_all(wanted, timeout=1000):
            await turn_over()

    async def storm() -> None:
        tasks: list[asyncio.Task[None]] = []
        for step in range(60):
            tasks += [asyncio.create_task(work()) for _ in range(3)]
            await turn_over(step % 5)
            waiting = [task for task in tasks if not task.done()]
            for task in chance.sample(waiting, len(waiting) // 3):
                task.cancel()
            callers.clock.advance(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    callers.run_until_done(storm())


def test_threads_wait_without_exceeding_a_limit() -> None:
    limiter = Limiter(
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

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert (len(instants), most[0] <= 2) == (24, True)
    assert all(b - a >= 20_000_000 for a, b in itertools.pairwise(sorted(instants)))
    assert limiter.acquire_all([("Site", "ada"), ("Tokens", "ada")], timeout=60).allowed


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="interrupts after a time")
def test_interrupts_at_any_point_leave_nothing() -> None:
    limits = {
        "Site": Limit.token_bucket(burst=1, count=1, period="60ms"),
        "Window": Limit.fixed_window(count=1, period="60ms"),
    }

    def is_over(after: float) -> bool:
        """Interrupt `acquire_all` after some seconds; whether it took less time."""
        limiter = Limiter(limits)
        wanted = [("Site", "ada"), ("Window", "ada")]
        limiter.acquire_all(wanted)
        with interrupted_after(after) as interrupted:
            limiter.acquire_all(wanted)
        assert limiter.acquire_all(wanted, timeout=60), after
        return not interrupted

    are_over = [is_over(0.0005 * 2**step) for step in range(9)]
    assert not any(are_over[:4])
