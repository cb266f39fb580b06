"""Those who wait for their turn, on a clock that is moved by hand."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import operator
import os
import random
import signal
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit, wait_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from conftest import MakeLimiter

SECOND = 1_000_000_000


class Crowd:
    """Threads that wait, and what came of them, in order."""

    def __init__(self, limiter: penstock.Limiter) -> None:
        self.limiter = limiter
        self.clock = limiter.clock
        self.start_ns = limiter.clock.now_ns()
        self.served: SimpleQueue[tuple[str, float | str]] = SimpleQueue()
        self.threads: list[threading.Thread] = []

    def send(self, who: str, name: str = "Tokens", cost: int = 1, **options: Any) -> None:
        """Send somebody, and come back when they stand in line (or have been served)."""
        lines = self.limiter.limit(name)._lines
        before, served = waiting(lines), self.served.qsize()

        def wait() -> None:
            try:
                decision = self.limiter.acquire(name, "ada", cost, **options)
            except penstock.Error as error:
                self.served.put((who, type(error).__name__))
            else:
                assert (decision.allowed, decision.cost) == (True, cost)
                self.served.put((who, (decision.now_ns - self.start_ns) / SECOND))

        thread = threading.Thread(target=wait, daemon=True)
        self.threads.append(thread)
        thread.start()
        until(lambda: waiting(lines) > before or self.served.qsize() > served)

    def next(self) -> tuple[str, float | str]:
        """Give who was served next, and when, in seconds from the beginning."""
        return self.served.get(timeout=30)

    def leave(self) -> None:
        """See that nobody is left."""
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        assert self.served.empty()


def waiting(lines: wait_queue.WaitQueues) -> int:
    """Count all who wait."""
    return sum(len(line.queue) + len(line.placed) for line in [*lines._lines.values()])


def until(is_so: Callable[[], bool]) -> None:
    """Let other threads go on until something is so."""
    gone = threading.Event()
    for _ in range(60_000):
        if is_so():
            return
        gone.wait(0.0005)
    raise AssertionError("it never came to be")


class Bell:
    """Counts how often it is rung, until the event loop behind it is closed."""

    def __init__(self) -> None:
        self.rung = 0
        self.is_closed = False

    def __call__(self) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.rung += 1


def join(
    bound: penstock.BoundLimit,
    cost: int = 1,
    timeout_ns: int | None = None,
    notify: Callable[[], object] = lambda: None,
) -> wait_queue.Waiter:
    """Stand in line without a thread."""
    waiter = wait_queue.Waiter(bound, "ada", cost, notify)
    bound._lines.join(waiter, timeout_ns)
    return waiter


def _is_left(lines: wait_queue.WaitQueues, count: int) -> bool:
    return waiting(lines) == count


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
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
def crowd(limiter: penstock.Limiter) -> Crowd:
    return Crowd(limiter)


@pytest.mark.parametrize("name", ["Tokens", "Drips", "Splashes", "Window", "Slots"])
def test_what_is_there_is_had_at_once(limiter: penstock.Limiter, name: str) -> None:
    assert limiter.acquire(name, "ada", 2).allowed
    assert limiter.limit(name).acquire("ada", timeout=0).allowed
    assert len(limiter.limit(name)._lines) == 0


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
def test_who_came_first_is_served_first(
    crowd: Crowd, clock: penstock.ManualClock, name: str, turns: list[int]
) -> None:
    crowd.limiter.acquire(name, "ada", 3)
    for place in range(len(turns)):
        crowd.send(str(place), name)
    lines = crowd.limiter.limit(name)._lines
    for turn in sorted(set(turns)):
        # One nanosecond early is nobody's turn.
        clock.advance_ns(turn * SECOND - 1 - (clock.now_ns() - crowd.start_ns))
        assert crowd.served.empty()
        clock.advance_ns(1)
        due = [str(place) for place, its in enumerate(turns) if its == turn]
        assert sorted(crowd.next() for _ in due) == [(who, float(turn)) for who in due]
        left = sum(its > turn for its in turns)
        until(functools.partial(_is_left, lines, left))
    crowd.leave()
    assert len(lines) == 0


def test_costs_differ(crowd: Crowd, clock: penstock.ManualClock) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    for who, cost in [("a", 2), ("b", 3), ("c", 1), ("d", 3), ("e", 2)]:
        crowd.send(who, cost=cost)
    for who, turn in [("a", 2), ("b", 5), ("c", 6), ("d", 9), ("e", 11)]:
        while clock.now_ns() - crowd.start_ns < turn * SECOND:
            assert crowd.served.empty()
            clock.advance(0.5)
        assert crowd.next() == (who, float(turn))
    crowd.leave()


def test_a_leap_of_the_clock_serves_all(crowd: Crowd, clock: penstock.ManualClock) -> None:
    for place in range(20):
        crowd.send(str(place))
    clock.advance(3600)
    # As if it had gone by: each had its turn in its time.
    served = dict(crowd.next() for _ in range(20))
    assert served == {str(place): max(place - 2, 0) for place in range(20)}
    crowd.leave()
    assert crowd.limiter.check("Tokens", "ada", 0).remaining == 3


def test_nobody_else_gets_what_somebody_waits_for(
    crowd: Crowd, clock: penstock.ManualClock
) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    crowd.send("a")
    clock.advance(1)
    # The token came, and it was taken before.
    assert not crowd.limiter.spend("Tokens", "ada")
    assert crowd.next() == ("a", 1.0)
    clock.advance(1)
    assert crowd.limiter.spend("Tokens", "ada")
    crowd.leave()


@pytest.mark.parametrize("name", ["Tokens", "Drips", "Window", "Slots"])
def test_who_would_wait_too_long_is_refused_at_once(
    crowd: Crowd, clock: penstock.ManualClock, name: str
) -> None:
    limiter = crowd.limiter
    limiter.acquire(name, "ada", 3)
    wait = limiter.check(name, "ada").retry_after
    for timeout in (0, 0.5, wait - 0.001):
        with pytest.raises(penstock.RateLimited, match="too late") as raised:
            limiter.acquire(name, "ada", timeout=timeout)
        assert not raised.value.decision
        assert raised.value.decision.retry_after == wait
    assert limiter.check(name, "ada").retry_after == wait
    assert len(limiter.limit(name)._lines) == 0
    crowd.send("a", name, timeout=wait)
    clock.advance(wait)
    assert crowd.next() == ("a", wait)
    crowd.leave()


@pytest.mark.parametrize(
    ("name", "wait"),
    [("Tokens", 10), ("Drips", 10), ("Splashes", 5), ("Window", 40), ("Slots", 10)],
)
def test_those_before_count_towards_the_timeout(
    crowd: Crowd, clock: penstock.ManualClock, name: str, wait: int
) -> None:
    limiter = crowd.limiter
    limiter.acquire(name, "ada", 3)
    for place in range(9):
        crowd.send(str(place), name)
    with pytest.raises(penstock.RateLimited) as raised:
        limiter.acquire(name, "ada", timeout=wait - 0.001)
    assert raised.value.decision.retry_after == wait
    crowd.send("last", name, timeout=wait)
    for _ in range(wait):
        clock.advance(1)
        until(lambda: waiting(limiter.limit(name)._lines) == 0 or _is_early(limiter, name))
    served = {crowd.next() for _ in range(10)}
    assert ("last", float(wait)) in served
    crowd.leave()


def _is_early(limiter: penstock.Limiter, name: str) -> bool:
    """Whether all whose turn it is have been served."""
    lines, now_ns = limiter.limit(name)._lines, limiter.clock.now_ns()
    with lines._lock:
        waiters = [w for line in lines._lines.values() for w in (*line.placed, *line.queue)]
        return not any(waiter.is_due(now_ns) for waiter in waiters)


def test_who_leaves_gives_the_place_back(crowd: Crowd, clock: penstock.ManualClock) -> None:
    lines = crowd.limiter.limit("Tokens")._lines
    crowd.limiter.acquire("Tokens", "ada", 3)
    for who in "abc":
        crowd.send(who)
    bound = crowd.limiter.limit("Tokens")
    leaver = join(bound, 2)
    for who in "def":
        crowd.send(who)
    lines.leave(leaver)
    lines.leave(leaver)
    for turn, who in enumerate("abcdef", 1):
        clock.advance(1)
        assert crowd.next() == (who, float(turn))
    crowd.leave()


@pytest.mark.parametrize("name", ["Tokens", "Drips", "Splashes", "Window", "Slots"])
@pytest.mark.parametrize("place", range(5))
def test_wherever_it_stood_its_place_is_given_back(
    limiter: penstock.Limiter, clock: penstock.ManualClock, name: str, place: int
) -> None:
    def turns(costs: list[int], leaves: int | None) -> list[int]:
        limiter.reset(name, "ada")
        bound, start_ns = limiter.limit(name), clock.now_ns()
        limiter.acquire(name, "ada", 3)
        waiters = [join(bound, cost) for cost in costs]
        if leaves is not None:
            bound._lines.leave(waiters.pop(leaves))
        served = []
        while waiters:
            clock.advance(1)
            while waiters and bound._lines.step(waiters[0]) is not None:
                served.append((clock.now_ns() - start_ns) // SECOND)
                waiters.pop(0)
        assert len(bound._lines) == 0
        return served

    costs = [1, 2, 1, 3, 2, 1]
    without = costs[:place] + costs[place + 1 :]
    assert turns(costs, leaves=place) == turns(without, leaves=None)


@pytest.mark.parametrize(
    ("limit", "costs", "turns"),
    [
        (Limit.leaky_bucket(size=1, drip_rate="1s", drip_size=2), [1, 1, 1], [1, 2, 3]),
        (Limit.leaky_bucket(size=3, drip_rate="1s", drip_size=2), [3, 1, 3], [2, 3, 4]),
        (Limit.leaky_bucket(size=3, drip_rate="1s", drip_size=9), [2, 2, 1], [1, 2, 2]),
    ],
)
def test_a_drip_lets_out_nothing_that_waits(
    make_limiter: MakeLimiter,
    clock: penstock.ManualClock,
    limit: Limit,
    costs: list[int],
    turns: list[int],
) -> None:
    bound, start_ns = make_limiter({"Splashes": limit}).limit("Splashes"), clock.now_ns()
    bound.spend("ada", limit.max_cost)
    waiters = [join(bound, cost) for cost in costs]
    clock.advance(10)
    decisions = [bound._lines.step(waiter) for waiter in waiters]
    assert [decision and (decision.now_ns - start_ns) / SECOND for decision in decisions] == turns


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
def test_those_who_wait_get_no_more_than_those_who_ask(limit: Limit) -> None:
    for seed in range(60):
        chance = random.Random(seed)  # noqa: S311  one that can be repeated
        clock = penstock.ManualClock(1000.5)
        bound = penstock.Limiter({"Limit": limit}, clock=clock).limit("Limit")
        lines, standing, served = bound._lines, [], []
        for turn in range(60):
            cost = chance.randint(1, limit.max_cost)
            match chance.choice("jjjlsaaaa") if turn < 50 else "z":
                case "j":
                    standing.append(join(bound, cost))
                case "l" if standing:
                    lines.leave(standing.pop(chance.randrange(len(standing))))
                case "s" if bound.spend("ada", cost):
                    served.append((clock.now_ns(), cost))
                case "a":
                    clock.advance_ns(chance.choice([1, SECOND // 3, SECOND, 2 * SECOND]))
                case "z":
                    clock.advance(100)
            decided = [(waiter, lines.step(waiter)) for waiter in standing]
            standing = [waiter for waiter, decision in decided if decision is None]
            # First come, first served: by the place in line where it is at one instant.
            new = [(decision.now_ns, waiter.cost) for waiter, decision in decided if decision]
            assert new == sorted(new, key=operator.itemgetter(0))
            served += new
        assert len(lines) == 0
        # The same spends, by one who comes at those instants.
        clock = penstock.ManualClock(1000.5)
        bound = penstock.Limiter({"Limit": limit}, clock=clock).limit("Limit")
        for now_ns, cost in served:
            clock.set_ns(now_ns)
            assert bound.spend("ada", cost), (seed, now_ns, cost)


def test_who_waits_longer_than_it_would_is_told_no_later(
    crowd: Crowd, clock: penstock.ManualClock
) -> None:
    crowd.limiter.acquire("Window", "ada", 3)
    crowd.send("a", "Window", 3)
    crowd.send("b", "Window", 1, timeout=20)
    crowd.send("c", "Window", 1, timeout=20)
    crowd.send("d", "Window", 2)
    # The window is made three times as long.
    crowd.limiter.reload({"Window": Limit.fixed_window(count=3, period="30s")})
    clock.advance_ns(20 * SECOND - 1)
    assert crowd.served.empty()
    clock.advance_ns(1)
    assert sorted(crowd.next() for _ in "bc") == [("b", "RateLimited"), ("c", "RateLimited")]
    clock.advance(100)
    assert sorted(crowd.next() for _ in "ad") == [("a", 30.0), ("d", 60.0)]
    crowd.leave()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), 10**30])
def test_a_timeout_that_cannot_be_is_refused(limiter: penstock.Limiter, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        limiter.acquire("Tokens", "ada", timeout=timeout)
    assert len(limiter) == 0


@pytest.mark.parametrize("timeout", [True, "1s", b"1"])
def test_a_timeout_of_another_type_is_refused(limiter: penstock.Limiter, timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout"):
        limiter.acquire("Tokens", "ada", timeout=timeout)


def test_nobody_waits_where_no_limit_is(make_limiter: MakeLimiter) -> None:
    limits = penstock.Limits.parse("Watched: {burst: 1, count: 1, period: 1h, mode: shadow}")
    limiter = make_limiter(limits)
    limiter.define("Free", Limit.unlimited())
    assert limiter.acquire("Free", "ada", 10**9, timeout=0).unlimited
    assert limiter.acquire("Watched", "ada").allowed
    assert limiter.acquire("Watched", "ada").would_deny


@pytest.mark.parametrize(
    ("limits", "outcomes"),
    [
        # Those whose place was taken are served as they were told (with the numbers of then, where
        # the limit is gone); those behind them by what is there.
        ({"Tokens": Limit.token_bucket(burst=3, count=10, period="1s")}, [1, 2, 3, 1.4, 1.5]),
        ({"Other": "1/second"}, [0, 0, 0, "UnknownLimit", "UnknownLimit"]),
        ({"Tokens": Limit.unlimited()}, [1, 2, 3, 1, 1]),
        ({"Tokens": Limit.fixed_window(count=1, period="2s")}, [1, 2, 3, 1, 3]),
    ],
)
def test_a_reload_harms_nobody(
    crowd: Crowd,
    clock: penstock.ManualClock,
    limits: dict[str, Limit | str],
    outcomes: list[float | str],
) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    for who in "abcde":
        crowd.send(who)
    crowd.limiter.reload(limits)
    for _ in range(50):
        clock.advance(0.1)
        until(lambda: _is_early(crowd.limiter, "Tokens") if "Tokens" in limits else True)
    assert dict(crowd.next() for _ in "abcde") == dict(zip("abcde", outcomes, strict=True))
    crowd.leave()


@pytest.mark.parametrize(
    ("then", "turns"),
    [
        # At another pace the one behind comes earlier by that; in another bucket it does not.
        (Limit.leaky_bucket(size=4, drip_rate="1s"), (2, 1)),
        (Limit.token_bucket(burst=1, count=1, period="2s"), (2, 2)),
    ],
)
def test_a_place_from_before_a_reload_brings_nobody_before_its_turn(
    make_limiter: MakeLimiter, clock: penstock.ManualClock, then: Limit, turns: tuple[int, int]
) -> None:
    limiter = make_limiter({"Drips": Limit.leaky_bucket(size=3, drip_rate="10s")})
    bound, start_ns = limiter.limit("Drips"), clock.now_ns()
    limiter.spend("Drips", "ada", 3)
    leaver = join(bound)
    limiter.reload({"Drips": then})
    if then.algorithm == "leaky-bucket":
        limiter.spend("Drips", "ada", 0)
        waiter = join(bound, 2)
    else:
        limiter.spend("Drips", "ada")
        waiter = join(bound)
    assert waiter.due_ns == start_ns + turns[0] * SECOND
    bound._lines.leave(leaver)
    assert waiter.due_ns == start_ns + turns[1] * SECOND
    bound._lines.leave(waiter)


def test_those_behind_one_whose_loop_is_closed_are_told(clock: penstock.ManualClock) -> None:
    # On the machine's clock, where each sleeps until it is told.
    limits = {"Tokens": Limit.token_bucket(burst=3, count=1, period="1h")}
    for costs in ([2, 1, 1], [1, 2, 3, 1]):
        bound = penstock.Limiter(limits).limit("Tokens")
        bound.spend("ada", 3)
        bells = [Bell() for _ in costs]
        *others, closed, last = [
            join(bound, cost, notify=bell) for cost, bell in zip(costs, bells, strict=True)
        ]
        bells[-2].is_closed = True
        before = bells[-1].rung
        bound._lines.leave(others.pop())
        assert bells[-1].rung > before
        assert last.place is not None
        assert last.due_ns == last.told_ns
        for waiter in (closed, last, *others):
            bound._lines.leave(waiter)
        assert len(bound._lines) == 0


def test_one_whose_loop_is_closed_is_not_rung_for(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    bound, bell = limiter.limit("Tokens"), Bell()
    bound.spend("ada", 3)
    first, closed, last = join(bound), join(bound, notify=bell), join(bound)
    bell.is_closed = True
    clock.advance(1)
    # Now it would be the turn of the second, and then of the third.
    bound._lines.leave(first)
    clock.advance(1)
    decision = bound._lines.step(last)
    assert decision is not None
    assert decision.allowed
    bound._lines.leave(closed)
    assert len(bound._lines) == 0


def test_a_timeout_beyond_the_end_of_time_is_one(
    make_limiter: MakeLimiter, clock: penstock.ManualClock
) -> None:
    bound = make_limiter({"Tokens": Limit.fixed_window(count=1, period="10s")}).limit("Tokens")
    clock.advance(1_700_000_000)
    bound.spend("ada")
    # The longest of `threading`, too.
    waiters = [join(bound, timeout_ns=int(threading.TIMEOUT_MAX) * SECOND) for _ in range(3)]
    for waiter in waiters:
        clock.advance(10)
        assert bound._lines.step(waiter) is not None
    assert len(bound._lines) == 0


def test_wherever_it_is_interrupted_nobody_waits_for_ever(
    make_limiter: MakeLimiter, clock: penstock.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = make_limiter({"Tokens": Limit.token_bucket(burst=3, count=1, period="1s")})
    bound = limiter.limit("Tokens")
    lines = bound._lines

    def is_over(nth: int) -> bool:
        """Interrupt an `acquire` at the nth line that is run; whether there were as many."""
        limiter.reset("Tokens", "ada")
        bound.spend("ada", 3)
        waiters = [join(bound, cost) for cost in (2, 1, 2)]
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

        def wait(*_: object) -> None:
            # Untraced: a clock tells nobody of what interrupts those whom it calls.
            sys.settrace(before)
            waiters.extend(join(bound) for _ in range(5 - len(waiters)))
            clock.advance(2)
            sys.settrace(trace)

        monkeypatch.setattr(wait_queue, "_wait", wait)
        before = sys.gettrace()
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            bound.acquire("ada")
        sys.settrace(before)
        # Nobody stands there whom no one asks for, and who is next knows when.
        assert waiting(lines) == sum(waiter.decision is None for waiter in waiters), nth
        for line in lines._lines.values():
            for first in (*line.placed[:1], *itertools.islice(line.queue, 1)):
                assert first.due_ns is not None, nth
                assert first.due_ns == first.told_ns, nth
        clock.advance(3600)
        for waiter in waiters:
            assert lines.step(waiter) is not None, (nth, waiter.cost)
            lines.leave(waiter)
        assert len(lines) == 0, nth
        return ran < nth

    lines_run = next(nth for nth in itertools.count(1) if is_over(nth))
    assert lines_run > 100


def test_closing_hangs_nobody(crowd: Crowd, clock: penstock.ManualClock) -> None:
    crowd.limiter.acquire("Tokens", "ada", 3)
    for who in "abcde":
        crowd.send(who)
    crowd.limiter.close()
    clock.advance(3600)
    outcomes = dict(crowd.next() for _ in "abcde")
    assert outcomes == {"a": 0.0, "b": 0.0, "c": 0.0, "d": "StoreError", "e": "StoreError"}
    crowd.leave()


def test_a_line_is_forgotten_when_it_is_empty(crowd: Crowd, clock: penstock.ManualClock) -> None:
    lines = crowd.limiter.limit("Tokens")._lines
    crowd.limiter.acquire("Tokens", "ada", 3)
    crowd.send("a")
    assert len(lines) == 1
    clock.advance(1)
    crowd.next()
    crowd.leave()
    assert len(lines) == 0


def test_on_the_machines_clock_it_waits_no_less_than_told() -> None:
    limiter = penstock.Limiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="50ms")})
    decisions = [limiter.acquire("Tokens", "ada", timeout=5) for _ in range(3)]
    start_ns = limiter.clock.now_ns()
    assert decisions[2].now_ns - decisions[0].now_ns >= 100_000_000
    assert start_ns - decisions[0].now_ns < 30 * SECOND


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to a thread")
def test_control_c_ends_the_wait_and_gives_the_place_back() -> None:
    limiter = penstock.Limiter({"Tokens": Limit.token_bucket(burst=1, count=1, period="1h")})
    limiter.acquire("Tokens", "ada")
    main, lines = threading.get_ident(), limiter.limit("Tokens")._lines

    def interrupt() -> None:
        until(lambda: waiting(lines) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    before = limiter.check("Tokens", "ada").reset_after_ns
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("Tokens", "ada")
    thread.join()
    assert len(lines) == 0
    assert limiter.check("Tokens", "ada").reset_after_ns <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_lines_start_empty(crowd: Crowd, clock: penstock.ManualClock) -> None:
    lines = crowd.limiter.limit("Tokens")._lines
    crowd.limiter.acquire("Tokens", "ada", 3)
    crowd.send("a")
    with lines._lock:
        # The lock is held by a thread that the child does not have, as far as it can tell.
        child = os.fork()
        if child == 0:
            is_empty = len(lines) == 0 and lines._lock.acquire(timeout=5)
            os._exit(0 if is_empty else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(lines) == 1
    clock.advance(1)
    assert crowd.next() == ("a", 1.0)
    crowd.leave()


def test_a_limiter_that_waited_is_let_go(limiter: penstock.Limiter) -> None:
    limiter.acquire("Tokens", "ada")
    gc.collect()
    before = len(wait_queue._everyones)
    other = penstock.Limiter({"Tokens": "1/second"}, clock=limiter.clock)
    other.acquire("Tokens", "ada")
    assert len(wait_queue._everyones) == before + 1
    del other
    gc.collect()
    assert len(wait_queue._everyones) == before


def test_the_delay_is_rounded_up() -> None:
    clock = penstock.SystemClock()
    now_ns = clock.now_ns()
    assert wait_queue.delay(clock, now_ns - SECOND) == 0.0
    assert 0.0 < wait_queue.delay(clock, now_ns + 60 * SECOND) <= 60.0
