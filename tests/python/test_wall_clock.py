"""The wall clock is set while limits are in use: which limits follow it, and which do not.

Two clocks that move apart: `advance` moves both, `set_wall_ns` only the wall clock.
"""

from __future__ import annotations

import datetime
import pickle
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import Limit, Limiter, ManualClock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000
HOUR = 3_600
DAY = 24 * HOUR
NOON = int(datetime.datetime(2026, 3, 10, 12, tzinfo=datetime.UTC).timestamp())
MIDNIGHT = NOON + 12 * HOUR
STEADY = {
    "token-bucket": "5 per hour, burst 5",
    "leaky-bucket": Limit.leaky_bucket(size=5, drip_rate="12m", drip_size=1),
    "fixed-window": Limit.fixed_window(count=5, period="1h"),
    "fixed-rate-window": Limit.fixed_rate_window(count=5, period="1h", burst=2),
    "in-flight": Limit.in_flight(count=5),
}
OF_THE_WALL = {
    "calendar-window": Limit.calendar_window(count=5, period="day"),
    "fixed-window": Limit.fixed_window(count=5, period="24h", anchor="aligned"),
    "fixed-window with a phase": Limit.fixed_window(
        count=5, period="24h", anchor="aligned", phase="per-key"
    ),
    "fixed-rate-window": Limit.fixed_rate_window(count=5, period="24h", burst=4, anchor="aligned"),
}


def machine_time() -> float:
    """Return the wall clock of the machine, which the core reads on its own."""
    return time.time()  # noqa: TID251  the clock under test is compared with it


def set_wall(clock: ManualClock, to: float) -> None:
    clock.set_wall_ns(round(to * SECOND))


@pytest.mark.parametrize("by", [-400 * DAY, -2 * HOUR, -1, 1, 2 * HOUR, 400 * DAY])
@pytest.mark.parametrize("limit", STEADY.values(), ids=STEADY)
def test_no_setting_of_the_wall_clock_changes_other_limits(
    local_store: str, limit: Limit | str, by: float
) -> None:
    clock, still = ManualClock(start=NOON), ManualClock(start=NOON)
    limits = {"Orders": limit}
    verb = "reserve" if isinstance(limit, Limit) and limit.algorithm == "in-flight" else "spend"
    with Limiter(limits, local_store, clock) as limiter, Limiter(limits, clock=still) as other:
        kept = []
        for index in range(12):
            if index % 3 == 1:
                set_wall(clock, clock.now() + by)
            for each in (clock, still):
                each.advance(300)
            answers = [getattr(one, verb)("Orders", "ada", 1) for one in (limiter, other)]
            kept += answers
            found = [getattr(answer, "decision", answer) for answer in answers]
            ours, theirs = (
                (one.allowed, one.remaining, one.retry_after_ns, one.reset_after_ns)
                for one in found
            )
            assert ours == theirs, index
        for reservation in kept:
            if isinstance(reservation, penstock.Reservation) and reservation:
                reservation.release()


@pytest.mark.parametrize("limit", OF_THE_WALL.values(), ids=OF_THE_WALL)
def test_a_window_ends_when_the_wall_clock_shows_its_end(any_store: str, limit: Limit) -> None:
    # Two hours behind when the process starts.
    clock = ManualClock(start=NOON - 2 * HOUR)
    with Limiter({"Orders": limit}, any_store, clock) as limiter:
        before = limiter.spend("Orders", "ada")
        set_wall(clock, NOON)
        after = limiter.spend("Orders", "ada")
        # A fixed-rate window may have opened more slots meanwhile.
        assert after.remaining <= before.remaining - 1
        assert before.reset_at == after.reset_at
        clock.advance(after.reset_after - 1e-9)
        assert limiter.peek("Orders", "ada").remaining < 5 + 4
        last = limiter.peek("Orders", "ada").remaining
        clock.advance_ns(1)
        assert clock.now() == before.reset_at
        assert limiter.peek("Orders", "ada").remaining > last


def test_a_day_ends_at_midnight_of_a_clock_that_was_set(any_store: str) -> None:
    clock = ManualClock(start=NOON - 2 * HOUR)
    limiter = Limiter({"Mails": "5 per calendar day"}, any_store, clock)
    assert all(limiter.spend("Mails", "ada") for _ in range(5))
    set_wall(clock, NOON)
    denied = limiter.spend("Mails", "ada")
    assert (denied.allowed, denied.retry_after, denied.reset_at) == (False, 12 * HOUR, MIDNIGHT)
    # Nothing but the setting of the clock ends the day.
    set_wall(clock, MIDNIGHT - 1e-6)
    assert not limiter.spend("Mails", "ada")
    set_wall(clock, MIDNIGHT)
    assert limiter.spend("Mails", "ada").remaining == 4


def test_a_clock_that_is_set_back_gives_no_tokens_back(any_store: str) -> None:
    clock = ManualClock(start=MIDNIGHT + 600)
    limiter = Limiter({"Mails": "5 per calendar day"}, any_store, clock)
    assert limiter.spend("Mails", "ada", 3)
    set_wall(clock, MIDNIGHT - 600)
    # The window in use stays open; the tokens used on the day before are not known.
    earlier = limiter.spend("Mails", "ada", 2)
    assert (earlier.allowed, earlier.remaining, earlier.reset_after) == (True, 0, DAY + 600)
    clock.advance(700)
    assert not limiter.spend("Mails", "ada")
    set_wall(clock, MIDNIGHT + DAY)
    assert limiter.spend("Mails", "ada").remaining == 4


@pytest.mark.parametrize("limit", OF_THE_WALL.values(), ids=OF_THE_WALL)
@pytest.mark.parametrize("seed", range(4))
def test_no_window_ever_admits_more_than_its_count(any_store: str, limit: Limit, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  a walk, not a secret
    clock = ManualClock(start=NOON)
    admitted: Counter[tuple[str, float]] = Counter()
    with Limiter({"Orders": limit}, any_store, clock) as limiter:
        for _ in range(150):
            clock.advance(chance.uniform(0, 8 * HOUR))
            if chance.random() < 0.3:
                by = chance.choice([-3 * DAY, -DAY, -HOUR, -1, 1, HOUR, DAY, 3 * DAY])
                set_wall(clock, max(clock.now() + by, DAY))
            id, cost = chance.choice("abc"), chance.randint(1, 3)
            decision = limiter.spend("Orders", id, cost)
            if decision.allowed:
                # Each window is known by its end.
                admitted[id, decision.reset_at] += cost
    assert admitted
    assert max(admitted.values()) <= 5 + 4 * (limit.algorithm == "fixed-rate-window")


def test_limits_of_both_kinds_are_decided_together(local_store: str) -> None:
    clock = ManualClock(start=NOON)
    limits = {"Daily": "5 per calendar day", "Hourly": "10 per hour, burst 10"}
    limiter = Limiter(limits, local_store, clock)
    both = [("Daily", "ada"), ("Hourly", "ada")]
    assert all(limiter.spend_all(both) for _ in range(5))
    set_wall(clock, MIDNIGHT - 10)
    denied = limiter.spend_all(both)
    assert (denied.binding, denied.retry_after) == ("Daily", 10)
    daily, hourly = denied.parts
    assert (daily.reset_at, hourly.remaining) == (MIDNIGHT, 5)
    assert hourly.reset_at == pytest.approx(clock.now() + hourly.reset_after)
    set_wall(clock, MIDNIGHT)
    assert limiter.spend_all(both)
    assert limiter.refund("Daily", "ada").remaining == 5


def test_many_ids_with_windows_of_both_kinds(local_store: str) -> None:
    clock = ManualClock(start=NOON)
    overrides = "- Mails: {algorithm: fixed-window, count: 1, period: 24h, ids: [bob]}"
    defaults = "Mails: {algorithm: fixed-window, count: 1, period: 24h, anchor: aligned}"
    limiter = Limiter(penstock.Limits.parse(defaults, overrides), local_store, clock)
    assert limiter.spend_each("Mails", ["ada", "bob"]).allowed.tolist() == [True, True]
    set_wall(clock, MIDNIGHT)
    decisions = limiter.spend_each("Mails", ["ada", "bob"])
    assert [decision.allowed for decision in decisions] == [True, False]
    assert {decision.now_ns for decision in decisions} == {clock.now_ns()}


def test_unix_times_of_a_decision_follow_the_clock(local_store: str) -> None:
    clock = ManualClock(start=NOON)
    limiter = Limiter({"Orders": "1 per hour"}, local_store, clock)
    decision = limiter.spend("Orders", "ada")
    assert (decision.reset_at, decision.now_ns) == (NOON + HOUR, NOON * SECOND)
    set_wall(clock, NOON + 7200)
    assert decision.reset_at == NOON + 7200 + HOUR
    denied = limiter.spend("Orders", "ada")
    assert (denied.retry_after, denied.retry_at) == (HOUR, NOON + 7200 + HOUR)
    assert denied.headers("github")["X-RateLimit-Reset"] == str(NOON + 7200 + HOUR)


def test_windows_that_are_over_leave_the_store(local_store: str) -> None:
    clock = ManualClock(start=NOON)
    limits = {"Mails": "5 per calendar day", "Orders": "5 per hour, burst 5"}
    limiter = Limiter(limits, local_store, clock)
    for index in range(20):
        limiter.spend("Mails", f"{index}")
        limiter.spend("Orders", f"{index}")
    assert limiter.stats()["buckets"] == 40
    set_wall(clock, MIDNIGHT + 1)
    assert limiter.stats()["buckets"] == 20
    set_wall(clock, NOON)
    assert limiter.stats()["buckets"] == 40
    clock.advance(HOUR)
    assert limiter.stats()["buckets"] == 20


@pytest.mark.parametrize("overflow", ["share", "deny"])
def test_a_full_store_drops_windows_that_are_over(overflow: str) -> None:
    clock = ManualClock(start=NOON)
    limits = {"Mails": "5 per calendar day", "Orders": "5 per hour, burst 5"}
    limiter = Limiter(limits, f"memory://?max_buckets=4&overflow={overflow}", clock)
    for index in range(4):
        limiter.spend("Mails", f"{index}")
    full = limiter.spend("Orders", "ada")
    assert full.allowed == (overflow == "share")
    if overflow == "deny":
        assert full.retry_after == pytest.approx(12 * HOUR)
    set_wall(clock, MIDNIGHT + 1)
    assert limiter.spend("Orders", "bob").allowed
    stats = limiter.stats()
    assert stats["evicted"] == 0
    assert limiter.peek("Orders", "bob").remaining == 4


def test_a_change_of_the_anchor_begins_a_new_window(local_store: str) -> None:
    clock = ManualClock(start=NOON)
    first = Limit.fixed_window(count=1, period="24h")
    aligned = Limit.fixed_window(count=1, period="24h", anchor="aligned")
    limiter = Limiter({"Mails": first}, local_store, clock)
    set_wall(clock, NOON + 400 * DAY)
    assert limiter.spend("Mails", "ada")
    limiter.reload({"Mails": aligned})
    limiter.spend("Mails", "ada")
    denied = limiter.spend("Mails", "ada")
    assert (denied.allowed, denied.retry_after) == (False, 12 * HOUR)
    limiter.reload({"Mails": first})
    again = limiter.spend("Mails", "ada")
    assert (again.allowed, again.retry_after) == (False, DAY)


def test_timers_and_waits_do_not_follow_the_wall_clock() -> None:
    clock = ManualClock(start=NOON)
    rung: list[int] = []
    clock.set_timer(clock.steady_ns() + 5 * SECOND, lambda: rung.append(clock.steady_ns()))
    set_wall(clock, NOON + DAY)
    assert not rung
    clock.set_ns(clock.now_ns() + 5 * SECOND)
    assert rung == [(NOON + 5) * SECOND]
    assert (clock.now(), clock.steady_ns()) == (NOON + DAY + 5, (NOON + 5) * SECOND)
    assert repr(clock) == f"<ManualClock at {NOON + DAY + 5}.000000000 s>"


def test_the_wall_clock_is_never_before_its_origin() -> None:
    clock = ManualClock(start=10)
    with pytest.raises(ValueError, match="origin"):
        clock.set_wall_ns(-1)
    clock.set_wall_ns(100 * SECOND)
    with pytest.raises(ValueError, match="origin"):
        clock.set_ns(89 * SECOND, allow_backwards=True)
    assert (clock.now(), clock.steady_ns()) == (100, 10 * SECOND)
    clock.set_wall_ns(0)
    assert (clock.now(), clock.steady_ns()) == (0, 10 * SECOND)


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of Linux")
def test_every_store_of_a_machine_counts_the_time_since_boot(local_store: str) -> None:
    clock = SystemClock()
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    steady = clock.steady_ns()
    assert before <= steady <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    limits = {"Orders": "1 per hour", "Mails": "1 per calendar day"}
    with Limiter(limits, local_store) as limiter:
        for name in limits:
            earliest = machine_time()
            decision = limiter.spend(name, "ada")
            assert earliest - 0.01 <= decision.now_ns / SECOND <= machine_time() + 0.01
            assert decision.reset_at == decision.reset_at
            assert decision.reset_at == pytest.approx(machine_time() + decision.reset_after, abs=60)


@pytest.mark.parametrize(
    "copied",
    [
        lambda decision: decision,
        lambda decision: decision.replace(),
        lambda decision: pickle.loads(pickle.dumps(decision)),  # noqa: S301  its own bytes
    ],
    ids=["itself", "replaced", "pickled"],
)
def test_copies_of_a_decision_have_its_unix_times(
    any_store: str, copied: Callable[[penstock.Decision], penstock.Decision]
) -> None:
    limits = {"Orders": "1 per hour", "Mails": "1 per calendar day"}
    with Limiter(limits, any_store) as limiter:
        several = limiter.spend_all([(name, "ada") for name in limits])
        each = [*limiter.spend_each("Orders", ["bob", "eve"])]
        for decision in [several, *several.parts, *each, limiter.peek("Mails", "ada")]:
            copy = copied(decision)
            assert copy == decision
            assert abs(copy.now_ns / SECOND - machine_time()) < 60
            assert copy.reset_at == decision.reset_at
        assert abs(limiter.spend_all([]).now_ns / SECOND - machine_time()) < 60
