"""Reservations: tokens taken before their cost is known, and settled afterwards."""

from __future__ import annotations

import datetime
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit, Limiter, Limits, ManualClock

if TYPE_CHECKING:
    from conftest import MakeLimiter

# One limit of each algorithm that admits ten requests at once.
LIMITS = {
    "Tokens": Limit.token_bucket(burst=10, count=1, period="1s"),
    "Drips": Limit.leaky_bucket(size=10, drip_rate="1s"),
    "Window": Limit.fixed_window(count=10, period="10s"),
    "Slots": Limit.fixed_rate_window(count=10, period="10s", burst=9),
}


class Broken(Exception):
    """The exception that ends a body."""


def broken(is_so: object) -> None:
    """End the body if a condition is true."""
    assert is_so
    raise Broken


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> Limiter:
    return make_limiter(LIMITS)


@pytest.mark.parametrize("name", LIMITS)
def test_settling_for_less_refunds_the_difference(limiter: Limiter, name: str) -> None:
    reservation = limiter.reserve(name, "ada", 6)
    assert (bool(reservation), reservation.estimate) == (True, 6)
    assert reservation.decision == limiter.check(name, "ada", 0).replace(
        cost=6, retry_after_ns=reservation.decision.retry_after_ns
    )
    before = limiter.check(name, "ada", 0).remaining
    settled = reservation.settle(2)
    assert (settled.allowed, settled.cost) == (True, 2)
    assert limiter.check(name, "ada", 0).remaining == before + 4 == settled.remaining


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("cost", [0, 6, 13, 99])
def test_a_charge_equals_a_reservation_of_nothing(limiter: Limiter, name: str, cost: int) -> None:
    limiter.spend(name, "ada", 4)
    limiter.spend(name, "grace", 4)
    for _ in range(2):
        charged = limiter.charge(name, "ada", cost)
        settled = limiter.reserve(name, "grace", 0).settle(cost)
        assert charged.allowed == settled.allowed
        assert limiter.peek(name, "ada").reset_after == limiter.peek(name, "grace").reset_after
        assert charged.remaining == settled.remaining


@pytest.mark.parametrize("name", LIMITS)
def test_charges_of_several_limits_are_one_call(limiter: Limiter, name: str) -> None:
    others = [other for other in LIMITS if other != name]
    limiter.spend(name, "ada", 10)
    charges: list[Any] = [(other, "ada", 12, "charge") for other in others]
    # Denied, but what was used stays used.
    decision = limiter.spend_all([charges[0], (name, "ada", 9), *charges[1:]])
    assert (decision.allowed, decision.binding) == (False, name)
    assert [part.allowed for part in decision.parts] == [True, False, True, True]
    # In all a window of slots admits its burst besides.
    left = {other: 7 if other == "Slots" else 0 for other in others}
    assert {other: limiter.peek(other, "ada").remaining for other in others} == left
    assert [part.cost for part in decision.parts] == [12, 9, 12, 12]
    checked = limiter.check_all([(other, "grace", 12, "charge") for other in others])
    assert (checked.allowed, checked.unlimited) == (True, True)


def test_a_charge_leaves_the_tokens_to_keep(limiter: Limiter) -> None:
    assert limiter.charge("Tokens", "ada", 2, keep=7)
    assert limiter.charge("Tokens", "ada", 2, keep=7)
    assert limiter.counts()["Tokens"]["spends"] == {"allowed": 0, "denied": 0, "shadow_denied": 0}
    # Fewer are left now.
    assert not limiter.charge("Tokens", "ada", 2, keep=7)
    assert not limiter.spend_all([("Tokens", "ada", 2, "charge", None, 7)]).parts[0]
    assert limiter.peek("Tokens", "ada").remaining == 6


def test_a_charge_neither_waits_nor_is_reserved(limiter: Limiter) -> None:
    charge: list[Any] = [("Tokens", "ada"), ("Drips", "ada", 2, "charge")]
    for call in (limiter.reserve_all, limiter.acquire_all):
        with pytest.raises(ValueError, match="charge"):
            call(charge)
    with pytest.raises(penstock.CostNegative):
        limiter.charge("Tokens", "ada", -1)
    assert limiter.peek("Tokens", "ada").remaining == 10


def test_a_charge_of_slots_is_an_error(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Exports": "2 in flight"})
    with pytest.raises(penstock.LimitError, match="Exports"):
        limiter.charge("Exports", "ada")
    with pytest.raises(penstock.LimitError, match="Exports"):
        limiter.spend_all([("Exports", "ada", 1, "charge")])


@pytest.mark.parametrize("name", LIMITS)
def test_settling_for_more_becomes_debt(limiter: Limiter, clock: ManualClock, name: str) -> None:
    settled = limiter.reserve(name, "ada", 6).settle(13)
    # In all a window of slots admits its burst besides.
    left = 6 if name == "Slots" else 0
    assert (settled.allowed, settled.remaining, settled.cost) == (True, left, 13)
    assert settled.retry_after_ns > 0
    # Until the debt is made good even nothing is denied.
    clock.advance_ns(settled.retry_after_ns - 1)
    assert not limiter.check(name, "ada", 0)
    assert not limiter.spend(name, "ada")
    clock.advance_ns(1)
    assert limiter.check(name, "ada", 0)


@pytest.mark.parametrize("name", ["Tokens", "Drips"])
@pytest.mark.parametrize("actual", [21, 1000, 10**30])
def test_debt_is_at_most_a_full_bucket(limiter: Limiter, name: str, actual: int) -> None:
    settled = limiter.reserve(name, "ada", 6).settle(actual)
    # The decision reports that the rest was not taken; nothing is raised.
    assert (settled.allowed, settled.retry_after) == (False, 10.0)
    assert settled.reset_after == 20.0
    again = limiter.reserve(name, "grace", 6).settle(20)
    assert (again.allowed, again.retry_after) == (True, 10.0)


@pytest.mark.parametrize(("name", "most"), [("Window", 20), ("Slots", 38)])
def test_a_window_forgets_its_debt(
    limiter: Limiter, clock: ManualClock, name: str, most: int
) -> None:
    settled = limiter.reserve(name, "ada", 6).settle(most)
    assert (settled.allowed, settled.retry_after) == (True, 10.0)
    assert not limiter.reserve(name, "grace", 6).settle(most + 1)
    clock.advance(10)
    assert limiter.spend(name, "ada", 10)


def test_settling_at_the_estimate_changes_nothing(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    settled = reservation.settle(6)
    assert (settled.allowed, settled.remaining, len(limiter)) == (True, 4, 1)


def test_settling_twice_is_an_error(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    reservation.settle(7)
    with pytest.raises(penstock.ReservationError, match="already settled"):
        reservation.settle(7)
    assert reservation.cancel() is False
    assert limiter.check("Tokens", "ada", 0).remaining == 3


def test_cancelling_refunds_everything_once(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    assert (reservation.cancel(), reservation.cancel()) == (True, False)
    assert limiter.check("Tokens", "ada", 0).remaining == 10
    with pytest.raises(penstock.ReservationError, match="was cancelled"):
        reservation.settle(1)


def test_a_denied_estimate_takes_nothing(limiter: Limiter) -> None:
    limiter.spend("Tokens", "ada", 5)
    reservation = limiter.reserve("Tokens", "ada", 6)
    assert (bool(reservation), reservation.decision.retry_after) == (False, 1.0)
    assert reservation.settle(9) is reservation.settle(9) is reservation.decision
    assert reservation.cancel() is False
    assert limiter.check("Tokens", "ada", 0).remaining == 5
    with pytest.raises(penstock.RateLimited) as raised, reservation:
        pytest.fail("the body must not run")
    assert raised.value.decision is reservation.decision


def test_the_body_may_settle(limiter: Limiter) -> None:
    with limiter.reserve("Tokens", "ada", 6) as reservation:
        reservation.settle(1)
    assert limiter.check("Tokens", "ada", 0).remaining == 9


def test_unsettled_the_estimate_remains_charged(limiter: Limiter) -> None:
    with limiter.limit("Tokens").reserve("ada", 6) as reservation:
        pass
    assert limiter.check("Tokens", "ada", 0).remaining == 4
    with pytest.raises(penstock.ReservationError):
        reservation.settle(1)


def test_an_exception_refunds_everything(limiter: Limiter) -> None:
    with pytest.raises(Broken), limiter.reserve("Tokens", "ada", 6):
        broken(limiter.check("Tokens", "ada", 0).remaining == 4)
    assert limiter.check("Tokens", "ada", 0).remaining == 10


def test_an_exception_after_settling_refunds_nothing(limiter: Limiter) -> None:
    with pytest.raises(Broken), limiter.reserve("Tokens", "ada", 6) as reservation:
        broken(reservation.settle(2))
    assert limiter.check("Tokens", "ada", 0).remaining == 8


@pytest.mark.anyio
async def test_it_is_entered_from_a_coroutine_too(limiter: Limiter) -> None:
    async with limiter.reserve("Tokens", "ada", 6) as reservation:
        reservation.settle(1)
    with pytest.raises(ZeroDivisionError):
        async with limiter.reserve("Tokens", "ada", 6):
            _ = 1 // 0
    with pytest.raises(penstock.RateLimited):
        async with limiter.reserve("Tokens", "ada", 10):
            pytest.fail("the body must not run")
    assert limiter.check("Tokens", "ada", 0).remaining == 9


def test_a_store_that_fails_at_the_end_does_not_hide_the_exception(
    limiter: Limiter,
) -> None:
    with pytest.raises(Broken) as raised, limiter.reserve("Tokens", "ada", 6), limiter:
        broken(len(limiter) == 1)
    assert raised.value.__notes__ == [
        "the reservation could not be cancelled: the limiter is closed"
    ]


def test_failed_settlement_can_be_repeated(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    limiter.close()
    for _ in range(2):
        with pytest.raises(penstock.StoreError):
            reservation.settle(3)
        with pytest.raises(penstock.StoreError):
            reservation.cancel()
    assert "open" in repr(reservation)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_reservation_that_is_dropped_warns(limiter: Limiter) -> None:
    with pytest.warns(ResourceWarning, match="<Reservation Tokens ada: 6, open> was dropped"):
        drop(limiter.reserve("Tokens", "ada", 6))
    with warnings.catch_warnings(action="error"):
        drop(limiter.reserve("Tokens", "ada", 6))  # denied
        drop(limiter.reserve("Tokens", "grace", 0))
        limiter.reserve("Tokens", "grace", 6).cancel()
        with limiter.reserve("Tokens", "grace", 6):
            pass


def drop(reservation: penstock.Reservation) -> None:
    """Use a reservation without settling it."""
    assert reservation.decision.cost == reservation.estimate


def test_no_limit_no_debt(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Free": Limit.unlimited()})
    settled = limiter.reserve("Free", "ada", 10**6).settle(10**9)
    assert (settled.allowed, settled.unlimited, len(limiter)) == (True, True, 0)
    assert limiter.reserve("Free", "ada").cancel() is True


def test_a_limit_in_shadow_mode_stops_no_reservation(make_limiter: MakeLimiter) -> None:
    limits = Limits.parse("Watched: {burst: 2, count: 1, period: 1h, mode: shadow}")
    limiter = make_limiter(limits)
    limiter.spend("Watched", "ada", 2)
    with limiter.reserve("Watched", "ada", 2) as reservation:
        assert (reservation.decision.allowed, reservation.decision.would_deny) == (True, True)
        assert reservation.settle(1).would_deny
    assert limiter.check("Watched", "ada", 0).allowed


@pytest.mark.parametrize(
    "limits",
    [
        {"Other": "1/second"},
        {"Tokens": Limit.token_bucket(burst=2, count=1, period="1s")},
        {"Tokens": LIMITS["Window"]},
    ],
)
def test_a_reload_in_between_does_no_harm(limiter: Limiter, limits: dict[str, Limit | str]) -> None:
    less, more, gone = (limiter.reserve("Tokens", id, 6) for id in ("ada", "grace", "joan"))
    limiter.reload(limits)
    assert less.settle(1).remaining == 9
    assert more.settle(12).retry_after == 2.0
    assert gone.cancel()
    limiter.reload(LIMITS)
    assert [limiter.check("Tokens", id, 0).remaining for id in ("ada", "joan")] == [9, 10]


def test_a_factor_holds_for_the_settling(limiter: Limiter) -> None:
    reservation = limiter.reserve("Drips", "ada", 4, factor=2)
    assert reservation.decision.limit.size == 5
    settled = reservation.settle(6)
    assert (settled.limit.size, settled.retry_after) == (5, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("Nothing", "ada"), penstock.UnknownLimit),
        (("Tokens", "ada", 11), penstock.CostTooHigh),
        (("Tokens", "ada", -1), penstock.CostNegative),
        (("Tokens", "ada", True), TypeError),
        (("Tokens", "ada", 1.5), TypeError),
        (("Tokens", None), TypeError),
        (("Tokens", ""), penstock.InvalidId),
    ],
)
def test_invalid_arguments_are_refused(
    limiter: Limiter, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        limiter.reserve(*arguments)
    with pytest.raises(error):
        limiter.acquire(*arguments)
    assert len(limiter) == 0


def test_arguments_are_given_by_position_or_by_name(limiter: Limiter) -> None:
    bound = limiter.limit("Tokens")
    reserved = [
        limiter.reserve("Tokens", "ada", 2),
        limiter.reserve(name="Tokens", id="ada", estimate=2, factor=None, timeout=None),
        limiter.reserve("Tokens", "ada", 2, factor=None, keep=1, timeout=1),
        bound.reserve(id="ada", estimate=2, factor=None, timeout="1s"),
    ]
    assert [reservation.estimate for reservation in reserved] == [2] * 4
    assert bound.peek("ada").remaining == 2
    assert all(reservation.cancel() for reservation in reserved)


def test_wrong_arguments_take_nothing(limiter: Limiter) -> None:
    reserve: Any = limiter.reserve
    bound: Any = limiter.limit("Tokens")
    for call in (
        lambda: reserve("Tokens"),
        lambda: reserve("Tokens", "ada", 1, "0.5"),
        lambda: reserve("Tokens", "ada", cost=1),
        lambda: reserve("Tokens", "ada", 1, estimate=1),
        bound.reserve,
        lambda: bound.reserve("ada", 1, "0.5"),
        lambda: bound.reserve("ada", "1"),
        lambda: bound.reserve("ada", factor="0.5", timeout=1),
    ):
        with pytest.raises(TypeError):
            call()
    assert bound.peek("ada").remaining == 10
    with bound.reserve("ada") as reservation:
        enter: Any = reservation.__enter__
        leave: Any = reservation.__exit__
        with pytest.raises(TypeError, match="no arguments"):
            enter(None)
        with pytest.raises(TypeError, match="3 arguments by position"):
            leave(None)
        with pytest.raises(TypeError, match="3 arguments by position"):
            leave(None, None, exc_type=None)


@pytest.mark.parametrize(
    ("actual", "error"),
    [(-1, penstock.CostNegative), (True, TypeError), (1.0, TypeError), (None, TypeError)],
)
def test_an_invalid_actual_cost_leaves_the_reservation_open(
    limiter: Limiter, actual: Any, error: type[Exception]
) -> None:
    reservation = limiter.reserve("Tokens", "ada", 6)
    with pytest.raises(error):
        reservation.settle(actual)
    assert reservation.settle(0).remaining == 10


def test_one_of_many_concurrent_settlements_succeeds(limiter: Limiter) -> None:
    for _ in range(50):
        reservation = limiter.reserve("Tokens", "ada", 6)
        with ThreadPoolExecutor(4) as pool:
            outcomes = [pool.submit(reservation.cancel) for _ in range(4)]
        assert sorted(outcome.result() for outcome in outcomes) == [False, False, False, True]
        assert limiter.check("Tokens", "ada", 0).remaining == 10


def test_it_reads_well(limiter: Limiter) -> None:
    reservation = limiter.reserve("Tokens", "ada\n", 6)
    assert repr(reservation) == r"<Reservation Tokens ada\n: 6, open>"
    reservation.cancel()
    assert repr(reservation) == r"<Reservation Tokens ada\n: 6, cancelled>"
    checked = limiter.reserve_all([("Tokens", "ada", 6, "check")])
    assert (bool(checked), repr(checked)) == (True, r"<Reservation Tokens ada: 6, open>")
    period = datetime.timedelta(seconds=1)
    assert limiter.acquire("Tokens", "ada", timeout=period).remaining == 9
