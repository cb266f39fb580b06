"""The manual clock and the system clock."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import ManualClock, SystemClock

END = 2**63 - 1


@pytest.mark.parametrize(
    ("start", "nanoseconds"),
    [
        (0, 0),
        (0.0, 0),
        (1, 10**9),
        (1.5, 1_500_000_000),
        (0.1 + 0.2, 300_000_000),
        (1_700_000_000, 1_700_000_000 * 10**9),
        (9_223_372_036, 9_223_372_036 * 10**9),
        (datetime.timedelta(0), 0),
        (datetime.timedelta(days=1, microseconds=1), 86_400_000_001_000),
        ("1h", 3_600 * 10**9),
    ],
)
def test_manual_clock_starts_at_the_given_time(start: Any, nanoseconds: int) -> None:
    assert ManualClock(start).now_ns() == nanoseconds
    assert ManualClock(start=start).now_ns() == nanoseconds
    assert ManualClock(start).now() == nanoseconds / 1e9


def test_manual_clock_starts_at_its_origin() -> None:
    assert ManualClock().now_ns() == 0
    assert repr(ManualClock()) == "<ManualClock at 0.000000000 s>"
    assert repr(ManualClock(1.25)) == "<ManualClock at 1.250000000 s>"


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (-1, ValueError),
        (-0.5, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (10**30, ValueError),
        (9_223_372_037, ValueError),
        (datetime.timedelta(seconds=-1), ValueError),
        (datetime.timedelta.max, ValueError),
        (True, TypeError),
        (None, TypeError),
        ("1", ValueError),
        (decimal.Decimal(1), TypeError),
        (1j, TypeError),
    ],
    ids=repr,
)
def test_invalid_start_is_refused(start: Any, problem: type[Exception]) -> None:
    with pytest.raises(problem, match=r"start|origin"):
        ManualClock(start)


@pytest.mark.parametrize(
    ("by", "nanoseconds"),
    [
        (0, 0),
        (2, 2 * 10**9),
        (0.5, 500_000_000),
        (1e-9, 1),
        (datetime.timedelta(milliseconds=1500), 1_500_000_000),
        ("2.5s", 2_500_000_000),
        ("1h30m", 5_400 * 10**9),
    ],
)
def test_clock_advances_by_seconds_a_timedelta_or_a_text(by: Any, nanoseconds: int) -> None:
    clock = ManualClock(5)
    clock.advance(by)
    assert clock.now_ns() == 5 * 10**9 + nanoseconds
    other = ManualClock(5)
    other.advance_ns(nanoseconds)
    assert other.now_ns() == clock.now_ns()


@pytest.mark.parametrize(
    "move",
    [
        lambda clock: clock.advance(-1),
        lambda clock: clock.advance(-1e-9),
        lambda clock: clock.advance(datetime.timedelta(microseconds=-1)),
        lambda clock: clock.advance_ns(-1),
        lambda clock: clock.advance_ns(-(10**30)),
        lambda clock: clock.set_ns(4),
        lambda clock: clock.set_ns(4, allow_backwards=False),
        lambda clock: clock.set_ns(-1),
        lambda clock: clock.set_ns(-1, allow_backwards=True),
        lambda clock: clock.set_ns(-(10**30), allow_backwards=True),
        lambda clock: clock.set_ns(10**30),
        lambda clock: clock.advance_ns(END),
        lambda clock: clock.advance_ns(10**30),
        lambda clock: clock.advance(10**30),
        lambda clock: clock.advance(9_223_372_036.9),
        lambda clock: clock.advance(float("nan")),
        lambda clock: clock.advance(float("-inf")),
    ],
    ids=range(17),
)
def test_invalid_move_leaves_the_clock_unchanged(move: Any) -> None:
    clock = ManualClock()
    clock.set_ns(5)
    with pytest.raises(ValueError, match=r"ns|64 bits|nan"):
        move(clock)
    assert clock.now_ns() == 5


@pytest.mark.parametrize("by", [True, None, decimal.Decimal(1), [1]], ids=repr)
@pytest.mark.parametrize("move", ["advance", "advance_ns", "set_ns"])
def test_move_of_another_kind_is_a_type_error(move: str, by: Any) -> None:
    with pytest.raises(TypeError, match="must be"):
        getattr(ManualClock(), move)(by)


@pytest.mark.parametrize("move", ["advance_ns", "set_ns"])
@pytest.mark.parametrize("given", [1.0, "1", "1s"])
def test_nanoseconds_are_whole(move: str, given: Any) -> None:
    with pytest.raises(TypeError, match="must be an int, found"):
        getattr(ManualClock(), move)(given)


@pytest.mark.parametrize("by", ["", "1", "-1s", "1 month"])
def test_text_that_is_not_a_duration_leaves_the_clock_unchanged(by: str) -> None:
    clock = ManualClock()
    with pytest.raises(penstock.LimitError) as caught:
        clock.advance(by)
    assert caught.value.field == "by"
    assert clock.now_ns() == 0


def test_clock_goes_back_only_if_allowed() -> None:
    clock = ManualClock()
    clock.set_ns(8)
    message = "the clock shows 8 ns and would go back to 7 ns; allow_backwards=True would let it"
    with pytest.raises(ValueError, match=message):
        clock.set_ns(7)
    clock.set_ns(7, allow_backwards=True)
    assert clock.now_ns() == 7
    clock.set_ns(7)
    clock.set_ns(END)
    clock.set_ns(0, allow_backwards=True)
    assert clock.now_ns() == 0
    positional: Any = clock
    with pytest.raises(TypeError):
        positional.set_ns(0, True)


def test_end_of_time_is_an_error() -> None:
    clock = ManualClock()
    clock.set_ns(END)
    clock.advance(0)
    with pytest.raises(ValueError, match="by 1 ns"):
        clock.advance_ns(1)
    assert clock.now_ns() == END


@given(st.lists(st.integers(0, END // 50), max_size=40))
def test_moves_add_up(moves: list[int]) -> None:
    clock = ManualClock()
    for move in moves:
        clock.advance_ns(move)
    assert clock.now_ns() == sum(moves)


def test_system_clock_is_on_the_scale_of_the_epoch_and_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.now_ns() for _ in range(1_000)]
    assert seen == sorted(seen)
    # After the year 2020, and before the limits of windows in 2248.
    assert 1_577_836_800 * 10**9 < seen[0] < 8_774_000_000 * 10**9
    assert abs(clock.now() - seen[-1] / 1e9) < 60
    assert abs(SystemClock().now_ns() - clock.now_ns()) < 10**9
    assert repr(clock) == "SystemClock()"
    wrong: Any = SystemClock
    with pytest.raises(TypeError):
        wrong(5)


def test_an_interrupt_stops_the_thread_that_advances_the_clock() -> None:
    clock = ManualClock()
    rung = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    # The timers of a queue of waiters.
    clock.set_timer(2 * 10**9, interrupt)
    clock.set_timer(3 * 10**9, lambda: rung.append(clock.now()))
    with pytest.raises(KeyboardInterrupt):
        clock.advance(5)
    assert (clock.now(), rung) == (2.0, [])
    clock.advance(5)
    assert (clock.now(), rung) == (7.0, [3.0])
