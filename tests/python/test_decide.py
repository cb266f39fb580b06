"""The policies of limits when the store fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from guards import asks, request

import penstock
import penstock._web.fallback
from penstock import Limiter
from penstock._web.guard import Guard
from penstock._web.rule import make_rule
from penstock.adapter import admit

if TYPE_CHECKING:
    from conftest import MakeLimiter

    from penstock._web.decide import RouteLimits
    from penstock._web.rule import RuleOptions
    from penstock.types import StorePolicy


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> Limiter:
    return make_limiter({"Orders": "4/minute", "Logins": "2/minute"})


def plan(limiter: Limiter, *names: str, **options: Any) -> RouteLimits:
    """Return route limits with one rule for each name."""
    return Guard(limiter, **options).route_limits([make_rule([name], "a", {}) for name in names])


@pytest.mark.parametrize("names", [["Orders"], ["Orders", "Logins"]])
def test_refusal_because_of_the_store_is_logged_as_503(
    limiter: Limiter, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.refusals")
    asked = plan(limiter, *names, on_store_error="deny")
    limiter.close()
    outcome = admit(asked, request())
    assert (outcome.refusal, outcome.status, outcome.retry_after) == ("store", 503, None)
    (record,) = [each for each in caplog.records if each.name == "penstock.refusals"]
    assert (vars(record)["status"], vars(record)["reason"]) == (503, "store")


def test_local_decides_over_several_limits_all_or_nothing(limiter: Limiter) -> None:
    asked = plan(limiter, "Orders", "Logins", on_store_error="local")
    limiter.close()
    for _ in range(2):
        admit(asked, request())
    refused = admit(asked, request())
    assert refused.refusal == "denied"
    assert dict(refused.headers())["RateLimit"] == '"Orders";r=1;t=15, "Logins";r=0;t=30'
    assert refused.problem.policies == ("Logins",)
    assert all(part.degraded for part in refused.parts)


def test_limiters_of_shares_are_bounded(
    make_limiter: MakeLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock._web.fallback, "_MAX_LIMITERS", 2)
    names = [f"Limit {number}" for number in range(5)]
    limiter = make_limiter(dict.fromkeys(names, "1/minute"))
    guard = Guard(limiter)
    asked = {name: guard.route_limits([make_rule([name], "a", {})]) for name in names}

    def is_allowed(name: str) -> bool:
        ((decision,), _) = guard.store_access.local.decide(asked[name].entries("ada"))
        return bool(decision)

    assert [(is_allowed(name), is_allowed(name)) for name in names] == [(True, False)] * 5
    # The first limiter was dropped, and its bucket with it.
    assert is_allowed(names[0])


@pytest.mark.parametrize("options", [{}, {"deduct_when": lambda _: True}], ids=["now", "later"])
def test_shadow_limit_at_its_share_does_not_stop_other_limits(
    limiter: Limiter, options: RuleOptions
) -> None:
    shadow = make_rule(["Logins"], "a", {"mode": "shadow", **options})
    asked = Guard(limiter, on_store_error="local").route_limits(
        [shadow, make_rule(["Orders"], "b", {})]
    )
    limiter.close()
    outcomes = []
    for _ in range(5):
        outcomes.append(admit(asked, request()))
        outcomes[-1].settle("response")
    assert [one.refusal for one in outcomes] == [None, None, None, None, "denied"]
    fields = dict(outcomes[3].headers())
    assert fields["RateLimit"] == '"Logins";r=0;t=30, "Orders";r=0;t=15'


def test_policy_of_a_rule_overrides_the_guards(limiter: Limiter) -> None:
    ask = asks(Guard(limiter, on_store_error="raise"), "Orders", on_store_error="allow")
    limiter.close()
    assert ask(request()).refusal is None


@pytest.mark.parametrize("policy", ["allow", "local"])
def test_request_is_settled_and_refunded_although_the_store_fails(
    limiter: Limiter, policy: StorePolicy
) -> None:
    waits = make_rule(["Logins"], "a", {"deduct_when": lambda _: True})
    returns = make_rule(["Orders"], "b", {"refund_on_error": True})
    asked = Guard(limiter, on_store_error=policy).route_limits([waits, returns])
    outcome = admit(asked, request())
    limiter.close()
    outcome.settle("response")
    outcome.refund()
    assert outcome.refusal is None
    again = admit(asked, request())
    again.settle("response")
    again.refund()
    assert again.is_degraded


def test_response_counts_at_the_share_of_this_process(limiter: Limiter) -> None:
    guard = Guard(limiter, on_store_error="local")
    ask = asks(guard, "Logins", deduct_when=lambda response: response == 401)
    limiter.close()
    for response in (200, 401, 200, 401):
        outcome = ask(request())
        assert outcome.refusal is None
        outcome.settle(response)
    assert ask(request()).refusal == "denied"


def test_policy_raise_applies_after_the_response_too(
    limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(limiter, on_store_error="raise")
    outcome = asks(guard, "Logins", deduct_when=lambda _: False)(request())
    limiter.close()
    with pytest.raises(penstock.StoreError):
        outcome.settle("response")
    assert "StoreError is raised (on_store_error=raise)" in caplog.text


def test_failing_store_is_logged_once(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    asked = plan(limiter, "Orders")
    limiter.close()
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(5):
            admit(asked, request())
    (record,) = caplog.records
    assert record.message.startswith("store failed (")
    assert record.message.endswith("; requests are allowed (on_store_error=allow)")


@pytest.mark.parametrize("names", [["Orders"], ["Orders", "Logins"]])
def test_recovered_store_is_logged_once(
    limiter: Limiter, caplog: pytest.LogCaptureFixture, names: list[str]
) -> None:
    guard = Guard(limiter)
    asked = guard.route_limits([make_rule([name], "a", {}) for name in names])
    guard.store_access.is_failing = True
    caplog.clear()
    for _ in range(3):
        admit(asked, request())
    # Refusals have a separate logger.
    messages = [record.message for record in caplog.records if record.name == "penstock"]
    assert messages == ["the store works again"]
