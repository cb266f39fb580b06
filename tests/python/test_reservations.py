"""Unsettled reservations of a guard, and responses with invalid costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from guards import PEER, left, request

from penstock import ConfigError, Limiter, ManualClock
from penstock.adapter import EnvironRequest, Guard, admit, make_rule

if TYPE_CHECKING:
    from penstock.adapter import Outcome, RouteLimits, Rule


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter({"Logins": "5/day", "Orders": "5/day"}, clock=clock)


def compiled(limiter: Limiter, *rules: Rule) -> RouteLimits:
    """Return rules as the routes of one guard have them."""
    return Guard(limiter).route_limits(rules)


def failed(**options: Any) -> Rule:
    """Return a rule that counts the response `401`."""
    given: Any = {"deduct_when": lambda response: response == 401, **options}
    return make_rule(["Logins"], "logins", given)


def test_reservation_that_nothing_settles_is_released(limiter: Limiter, clock: ManualClock) -> None:
    limits = compiled(limiter, failed(), make_rule(["Orders"], "orders", {}))
    for _ in range(5):
        assert admit(limits, request()).refusal is None
    clock.advance(599)
    assert admit(limits, request()).refusal == "denied"
    clock.advance(1)
    # The next reservation releases the old ones, after it was decided.
    other = compiled(limiter, failed(cost=lambda _: 0))
    admit(other, request())
    assert left(limiter, "Logins") == 0
    admit(limits, EnvironRequest({"REMOTE_ADDR": "203.0.113.8"}))
    assert left(limiter, "Logins") == 5
    # Tokens that were not reserved stay taken.
    assert left(limiter, "Orders") == 0


def test_request_that_still_runs_keeps_its_reservation(
    limiter: Limiter, clock: ManualClock
) -> None:
    limits = compiled(limiter, failed())
    # A client sends the bodies of its guesses so slowly that all of them are open.
    slow: list[Outcome] = [admit(limits, request()) for _ in range(5)]
    for _ in range(20):
        clock.advance(600)
        admit(limits, EnvironRequest({"REMOTE_ADDR": "203.0.113.8"})).settle(200)
        refused = admit(limits, request())
        if refused.refusal is None:
            # The bucket refills by one token each 4 h 48 min.
            slow.append(refused)
    assert len(slow) == 5
    for outcome in slow:
        outcome.settle(401)
    assert left(limiter, "Logins") == 0


def test_reservation_of_a_slow_request_is_released_once_it_is_dropped(
    limiter: Limiter, clock: ManualClock
) -> None:
    limits = compiled(limiter, failed())
    slow = [admit(limits, request()) for _ in range(2)]
    clock.advance(600)
    admit(limits, request()).settle(200)
    assert left(limiter, "Logins") == 3
    slow.clear()
    clock.advance(600)
    admit(limits, request()).settle(200)
    assert left(limiter, "Logins") == 5


def test_reservation_is_settled_once(limiter: Limiter) -> None:
    outcome = admit(compiled(limiter, failed()), request())
    outcome.settle(401)
    outcome.settle(200)
    assert left(limiter, "Logins") == 4


def test_disconnected_client_leaves_no_objects(limiter: Limiter, clock: ManualClock) -> None:
    limits = compiled(limiter, failed())
    outcome = admit(limits, request())
    outcome.keep()
    outcome.settle(200)
    clock.advance(600)
    admit(limits, request()).settle(200)
    assert left(limiter, "Logins") == 4


@pytest.mark.parametrize("cost", [-1, 1.5, "3", None, True])
def test_response_with_an_invalid_cost_is_an_error(limiter: Limiter, cost: object) -> None:
    rule = make_rule(["Logins"], "logins", {"cost_from_response": lambda _: cost})
    outcome = admit(compiled(limiter, rule), request())
    with pytest.raises(TypeError):
        outcome.settle("response")
    assert left(limiter, "Logins") == 4


def test_refund_and_settlement_return_the_tokens_once(limiter: Limiter) -> None:
    outcome = admit(compiled(limiter, failed(cost=2, refund_on_error=True)), request())
    limiter.spend("Logins", PEER, 3)
    outcome.refund()
    outcome.settle(200)
    assert left(limiter, "Logins") == 2


@pytest.mark.parametrize("options", [{}, {"deduct_when": bool}, {"count_denied": True}])
def test_limit_that_never_takes_a_token_is_an_error(options: Any) -> None:
    options = {"cost": 0, **options}
    with pytest.raises(ConfigError, match="cost=0"):
        make_rule(["Logins"], "logins", options)
    settled: list[Any] = [{"settle": True}, {"cost_from_response": len}]
    for each in settled:
        each["cost"] = 0
        assert make_rule(["Logins"], "logins", each).is_settled


@pytest.mark.parametrize("name", ["deduct_when", "cost_from_response"])
def test_cost_is_settled_by_the_view_or_from_the_response(name: Any) -> None:
    options: Any = {"settle": True, name: len}
    with pytest.raises(ConfigError, match=name):
        make_rule(["Logins"], "logins", options)


def test_reserve_needs_a_response_to_settle_it() -> None:
    with pytest.raises(ConfigError):
        make_rule(["Logins"], "logins", {"reserve": False})
    with pytest.raises(ConfigError):
        make_rule(["Logins"], "logins", {"deduct_when": bool, "reserve": "no"})  # type: ignore[typeddict-item]
