"""Calendar windows against a count by local date, with the time zones of the standard library."""

from __future__ import annotations

import bisect
import datetime
import random
from typing import get_args
from zoneinfo import ZoneInfo

import pytest

from penstock import Decision, Limit, Limiter, ManualClock
from penstock.headers import values
from penstock.messages import explain_limit
from penstock.simulate import simulate
from penstock.types import CalendarPeriod

SECOND = 1_000_000_000
DAY = 86_400
COUNT = 1_000
PERIODS: tuple[CalendarPeriod, ...] = get_args(CalendarPeriod)
ZONES = [
    "Europe/Berlin",  # Days of 23 and 25 hours.
    "America/New_York",
    "Australia/Lord_Howe",  # Clocks change by half an hour.
    "Asia/Kathmandu",  # 5:45 ahead of UTC.
    "Asia/Beirut",  # Midnight does not exist on the day on which clocks go forward.
    "America/Sao_Paulo",
    "America/Havana",  # Midnight occurs twice on the day on which clocks go back.
    "Atlantic/Azores",
    "Pacific/Apia",  # 30 December 2011 does not exist.
]


def instant(zone: str, *date: int) -> int:
    """Return a local time in seconds since 1970."""
    return int(datetime.datetime(*date, tzinfo=ZoneInfo(zone)).timestamp())  # type: ignore[arg-type, misc]


class Oracle:
    """Counts by the local date of each call."""

    def __init__(self, period: CalendarPeriod, zone: str) -> None:
        self.period = period
        self.zone = ZoneInfo(zone)
        self.used: dict[tuple[int, ...], int] = {}
        self.ends: dict[tuple[int, ...], int] = {}

    def window(self, second: int) -> tuple[int, ...]:
        date = datetime.datetime.fromtimestamp(second, self.zone).date()
        if self.period == "week":
            return tuple(date.isocalendar())[:2]
        return (date.year, date.month, date.day)[: {"year": 1, "month": 2, "day": 3}[self.period]]

    def end(self, second: int) -> int:
        """Return the first second of the next window, found by its date."""
        window = self.window(second)
        if window not in self.ends:
            later = range(second, second + 367 * DAY)
            self.ends[window] = later[bisect.bisect_right(later, window, key=self.window)]
        return self.ends[window]

    def spend(self, cost: int, now_ns: int) -> tuple[bool, int, int, int]:
        now = now_ns // SECOND
        used = self.used.get(self.window(now), 0)
        allowed = used + cost <= COUNT
        used = self.used[self.window(now)] = used + cost if allowed else used
        left = self.end(now) * SECOND - now_ns
        return allowed, COUNT - used, 0 if used + cost <= COUNT else left, left


def numbers(decision: Decision) -> tuple[bool, int, int, int]:
    return (decision.allowed, decision.remaining, decision.retry_after_ns, decision.reset_after_ns)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("period", PERIODS)
def test_every_call_over_years_agrees_with_a_count_by_date(
    any_store: str, zone: str, period: CalendarPeriod
) -> None:
    chance = random.Random(f"{zone} {period}")  # noqa: S311  one that can be repeated
    start = instant(zone, 2010, 7, 1)
    clock = ManualClock(start)
    limit = Limit.calendar_window(count=COUNT, period=period, zone=zone)
    limiter = Limiter({"Calls": limit}, store=any_store, clock=clock)
    oracle = Oracle(period, zone)
    # Some denied calls are made again, just before their wait ends and when it ends.
    until = start + (4 if any_store == "memory://" else 2) * 365 * DAY
    largest = {"day": 1000, "week": 200, "month": 60, "year": 6}[period]
    denied = 0
    while clock.now_ns() < until * SECOND:
        cost = chance.randrange(largest)
        decision = limiter.spend("Calls", "ada", cost)
        now_ns = clock.now_ns()
        assert numbers(decision) == oracle.spend(cost, now_ns)
        if not decision.allowed and chance.random() < 0.3:
            denied += 1
            clock.advance_ns(decision.retry_after_ns - 1)
            assert not limiter.check("Calls", "ada", cost).allowed
            clock.advance_ns(1)
            assert limiter.check("Calls", "ada", cost).allowed
        else:
            clock.advance_ns(chance.randrange(16 * 3600 * SECOND))
    assert denied > 1


@pytest.mark.parametrize(
    ("date", "hours"), [((2026, 3, 28), 24), ((2026, 3, 29), 23), ((2026, 10, 25), 25)]
)
def test_a_day_has_as_many_hours_as_its_clocks(date: tuple[int, int, int], hours: int) -> None:
    clock = ManualClock(instant("Europe/Berlin", *date))
    limits = {"Calls": "2 per calendar day, Europe/Berlin"}
    decision = Limiter(limits, clock=clock).spend("Calls", "ada", 2)
    assert decision.reset_after == decision.retry_after == hours * 3600
    policy = f'"Calls";q=2;w={hours * 3600}'
    assert decision.headers()["RateLimit-Policy"] == policy
    assert values(decision).window == hours * 3600
    assert decision.headers()["RateLimit"] == f'"Calls";r=0;t={hours * 3600}'


def test_a_quota_and_a_rate_are_spent_together_or_not_at_all(any_store: str) -> None:
    chance = random.Random(1)  # noqa: S311  one that can be repeated
    clock = ManualClock(instant("Asia/Beirut", 2022, 3, 20))
    limits = {"Quota": "1000 per calendar day, Asia/Beirut", "Rate": "60/minute, burst 100"}
    limiter = Limiter(limits, store=any_store, clock=clock)
    oracle = Oracle("day", "Asia/Beirut")
    denied = {"Quota": 0, "Rate": 0, None: 0}
    for _ in range(1500):
        cost, now = chance.randrange(1, 60), clock.now_ns() // SECOND
        peek = limiter.check("Rate", "ada", cost)
        has_quota = oracle.used.get(oracle.window(now), 0) + cost <= COUNT
        decision = limiter.spend_all([("Quota", "ada", cost), ("Rate", "ada", cost)])
        assert decision.allowed == (has_quota and peek.allowed)
        if decision.allowed:
            oracle.spend(cost, clock.now_ns())
        used = oracle.used.get(oracle.window(now), 0)
        assert limiter.check("Quota", "ada", 0).remaining == COUNT - used
        denied[None if decision.allowed else decision.binding] += 1
        clock.advance_ns(chance.randrange((3600 if chance.random() < 0.15 else 2) * SECOND))
    assert min(denied.values()) > 50


def test_a_refund_in_a_later_window_changes_nothing(any_store: str) -> None:
    clock = ManualClock(instant("UTC", 2026, 1, 31, 23))
    limiter = Limiter({"Calls": "5 per calendar month"}, store=any_store, clock=clock)
    assert limiter.spend("Calls", "ada", 4).remaining == 1
    assert limiter.refund("Calls", "ada", 1).remaining == 2
    reservation = limiter.reserve("Calls", "ada", 2)
    clock.advance("1h")
    assert not limiter.refund("Calls", "ada", 4).allowed
    reservation.settle(0)
    assert limiter.check("Calls", "ada", 0).remaining == 5


def test_a_debt_is_forgotten_with_its_window(any_store: str) -> None:
    clock = ManualClock(instant("UTC", 2026, 2, 28))
    limiter = Limiter({"Calls": "5 per calendar month"}, store=any_store, clock=clock)
    assert limiter.reserve("Calls", "ada", 3).settle(9).remaining == 0
    assert limiter.check("Calls", "ada", 0).retry_after == 24 * 3600
    clock.advance("24h")
    assert limiter.spend("Calls", "ada").remaining == 4


def test_the_largest_count_is_exact(any_store: str) -> None:
    clock = ManualClock(instant("UTC", 2026, 2, 28))
    most = 999_999_999
    limits = {"Tokens": Limit.calendar_window(count=most, period="year")}
    limiter = Limiter(limits, store=any_store, clock=clock)
    assert limiter.spend("Tokens", "ada", most - 1).remaining == 1
    assert limiter.spend("Tokens", "ada").remaining == 0
    assert not limiter.spend("Tokens", "ada").allowed
    # The state has no room for a debt.
    assert limiter.reserve("Tokens", "grace", most).settle(most + 5).remaining == 0
    clock.set_ns(instant("UTC", 2027, 1, 1) * SECOND)
    assert limiter.spend("Tokens", "ada").remaining == most - 1


@pytest.mark.parametrize(
    "other", ["5 per calendar week, Europe/Berlin", "5 per calendar day, America/New_York"]
)
def test_an_open_window_ends_as_before_a_reload(any_store: str, other: str) -> None:
    clock = ManualClock(instant("Europe/Berlin", 2026, 7, 1, 18))
    limits = {"Calls": "5 per calendar day, Europe/Berlin"}
    limiter = Limiter(limits, store=any_store, clock=clock)
    limiter.spend("Calls", "ada", 3)
    limiter.reload({"Calls": other})
    decision = limiter.spend("Calls", "ada")
    assert (decision.remaining, decision.reset_after) == (1, 6 * 3600)
    clock.advance("6h")
    # Thursday in Berlin, where the week has four more days; 18:00 of Wednesday in New York.
    left = 4 * 24 if "week" in other else 6
    decision = limiter.spend("Calls", "ada")
    assert (decision.remaining, decision.reset_after) == (4, left * 3600)


def test_the_worst_interval_is_that_of_the_zone() -> None:
    berlin = Limit.calendar_window(count=10, period="day", zone="Europe/Berlin")
    utc = Limit.calendar_window(count=10, period="day")
    month = Limit.calendar_window(count=10, period="month")
    assert [utc.worst_in(length) for length in (0, "1h", "24h", "48h")] == [10, 20, 20, 30]
    assert utc.worst_in(86_400 + 1e-9) == 30
    # The last instant before a day of 23 hours, and the first one after it.
    assert berlin.worst_in(23 * 3600) == 20
    assert berlin.worst_in("24h") == 30
    assert [month.worst_in(f"{days}d") for days in (28, 29, 59, 60)] == [20, 30, 30, 40]
    assert month.worst_in("36500d") == pytest.approx(12_000, rel=0.01)


def test_a_calendar_window_is_described() -> None:
    limit = Limit.parse("1000 per calendar month, Europe/Berlin")
    assert explain_limit(limit) == (
        "1,000 at once, then 1,000 every calendar month (Europe/Berlin), 32 a day; "
        "at worst 2,000 in any 4 weeks"
    )
    assert limit.share(4).count == 250
    assert Limit.parse("3 per calendar day").share(4) == Limit.parse("1 per calendar week")


def test_a_simulation_decides_as_a_limiter() -> None:
    limit = Limit.calendar_window(count=40, period="day", zone="Pacific/Apia")
    start = instant("Pacific/Apia", 2011, 12, 27)
    chance = random.Random(1)  # noqa: S311  one that can be repeated
    times = sorted(start + chance.randrange(6 * DAY) for _ in range(500))
    clock = ManualClock(start)
    limiter = Limiter({"Calls": limit}, clock=clock)
    expected = []
    for time in times:
        clock.set_ns(time * SECOND)
        expected.append(limiter.spend("Calls", "ada").allowed)
    result = simulate({"Calls": limit}, [time * SECOND for time in times], unit="ns")
    assert result.allowed.tolist() == expected
    # 27, 28, 29 and 31 December, 1 and 2 January.
    assert expected.count(True) == 6 * 40
