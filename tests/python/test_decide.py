"""The policies of limits when the store fails."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from guards import request

import penstock
import penstock.web.fallback
from penstock.web.guard import Guard
from penstock.web.rule import make_rule

if TYPE_CHECKING:
    from conftest import MakeLimiter

    from penstock.types import StorePolicy
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import RuleOptions


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter({"Orders": "4/minute", "Logins": "2/minute"})


def plan(limiter: penstock.Limiter, *names: str, **options: Any) -> RouteLimits:
    """Return route limits with one rule for each name."""
    return Guard(limiter, **options).route_limits([make_rule([name], "a", {}) for name in names])


@pytest.mark.parametrize("names", [["Orders"], ["Orders", "Logins"]])
def test_deny_refuses_with_503(limiter: penstock.Limiter, names: list[str]) -> None:
    asked = plan(limiter, *names, on_store_error="deny")
    limiter.close()
    outcome = asked.admit(request())
    assert (outcome.refusal, outcome.status, outcome.retry_after) == ("store", 503, None)
    assert outcome.headers() == [("Cache-Control", "no-store")]
    assert json.loads(outcome.body()[1])["type"].endswith("#temporary-reduced-capacity")


def test_local_decides_at_its_share_of_the_limit(
    limiter: penstock.Limiter, clock: penstock.ManualClock
) -> None:
    asked = plan(limiter, "Orders", on_store_error="local", expected_processes=2)
    limiter.close()
    first = asked.admit(request())
    assert (first.refusal, first.is_degraded) == (None, True)
    assert first.decision is not None
    assert first.decision.degraded
    assert dict(first.headers())["RateLimit"] == '"Orders";r=1;t=30'
    asked.admit(request())
    refused = asked.admit(request())
    assert (refused.refusal, refused.status) == ("denied", 429)
    assert dict(refused.headers())["Retry-After"] == "30"
    clock.advance(30)
    assert asked.admit(request()).refusal is None


def test_local_decides_over_several_limits_all_or_nothing(limiter: penstock.Limiter) -> None:
    asked = plan(limiter, "Orders", "Logins", on_store_error="local")
    limiter.close()
    for _ in range(2):
        asked.admit(request())
    refused = asked.admit(request())
    assert refused.refusal == "denied"
    assert dict(refused.headers())["RateLimit"] == '"Orders";r=1;t=15, "Logins";r=0;t=30'
    assert refused.problem.policies == ("Logins",)
    assert all(part.degraded for part in refused.parts)


def test_limiters_of_shares_are_bounded(
    make_limiter: MakeLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.web.fallback, "_MAX_LIMITERS", 2)
    names = [f"Limit {number}" for number in range(5)]
    limiter = make_limiter(dict.fromkeys(names, "1/minute"))
    local = penstock.web.fallback.LocalLimiter(limiter, 1)
    for name in names:
        (decision,) = local.decide([(name, "ada", 1, "spend", None)])
        assert decision
        (decision,) = local.decide([(name, "ada", 1, "spend", None)])
        assert not decision
    # The first limiter was dropped, and its bucket with it.
    assert local.decide([(names[0], "ada", 1, "spend", None)])[0]


@pytest.mark.parametrize("options", [{}, {"deduct_when": lambda _: True}], ids=["now", "later"])
def test_shadow_limit_at_its_share_does_not_stop_other_limits(
    limiter: penstock.Limiter, options: RuleOptions
) -> None:
    shadow = make_rule(["Logins"], "a", {"mode": "shadow", **options})
    asked = Guard(limiter, on_store_error="local").route_limits(
        [shadow, make_rule(["Orders"], "b", {})]
    )
    limiter.close()
    outcomes = []
    for _ in range(5):
        outcomes.append(asked.admit(request()))
        outcomes[-1].settle("response")
    assert [one.refusal for one in outcomes] == [None, None, None, None, "denied"]
    fields = dict(outcomes[3].headers())
    assert fields["RateLimit"] == '"Logins";r=0;t=30, "Orders";r=0;t=15'


def test_policy_of_a_rule_overrides_the_guards(limiter: penstock.Limiter) -> None:
    rule = make_rule(["Orders"], "a", {"on_store_error": "allow"})
    asked = Guard(limiter, on_store_error="raise").route_limits([rule])
    limiter.close()
    assert asked.admit(request()).refusal is None


@pytest.mark.parametrize("policy", ["deny", "local"])
def test_shadow_limit_refuses_nothing_when_the_store_fails(
    limiter: penstock.Limiter, policy: StorePolicy
) -> None:
    rule = make_rule(["Logins"], "a", {"mode": "shadow", "on_store_error": policy})
    asked = Guard(limiter).route_limits([rule])
    limiter.close()
    assert [asked.admit(request()).refusal for _ in range(3)] == [None, None, None]


def test_share_smaller_than_a_cost_spends_its_tokens(
    limiter: penstock.Limiter,
) -> None:
    rule = make_rule(["Orders"], "a", {"cost": 4})
    asked = Guard(limiter, on_store_error="local", expected_processes=4).route_limits([rule])
    limiter.close()
    assert [asked.admit(request()).refusal for _ in range(2)] == [None, "denied"]


@pytest.mark.parametrize("policy", ["allow", "local"])
def test_request_is_settled_and_refunded_although_the_store_fails(
    limiter: penstock.Limiter, policy: StorePolicy
) -> None:
    waits = make_rule(["Logins"], "a", {"deduct_when": lambda _: True})
    returns = make_rule(["Orders"], "b", {"refund_on_error": True})
    asked = Guard(limiter, on_store_error=policy).route_limits([waits, returns])
    outcome = asked.admit(request())
    limiter.close()
    outcome.settle("response")
    outcome.refund()
    assert outcome.refusal is None
    again = asked.admit(request())
    again.settle("response")
    again.refund()
    assert again.is_degraded


def test_response_counts_at_the_share_of_this_process(limiter: penstock.Limiter) -> None:
    waits = make_rule(["Logins"], "a", {"deduct_when": lambda response: response == 401})
    asked = Guard(limiter, on_store_error="local").route_limits([waits])
    limiter.close()
    for response in (200, 401, 200, 401):
        outcome = asked.admit(request())
        assert outcome.refusal is None
        outcome.settle(response)
    assert asked.admit(request()).refusal == "denied"


def test_policy_raise_applies_after_the_response_too(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    waits = make_rule(["Logins"], "a", {"deduct_when": lambda _: False})
    outcome = Guard(limiter, on_store_error="raise").route_limits([waits]).admit(request())
    limiter.close()
    with pytest.raises(penstock.StoreError):
        outcome.settle("response")
    assert "StoreError is raised (on_store_error=raise)" in caplog.text


def test_failing_store_is_logged_once(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    asked = plan(limiter, "Orders")
    limiter.close()
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(5):
            asked.admit(request())
    (record,) = caplog.records
    assert record.message.startswith("store failed (")
    assert record.message.endswith("; requests are allowed (on_store_error=allow)")


@pytest.mark.parametrize("names", [["Orders"], ["Orders", "Logins"]])
def test_recovered_store_is_logged_once(
    limiter: penstock.Limiter, caplog: pytest.LogCaptureFixture, names: list[str]
) -> None:
    guard = Guard(limiter)
    asked = guard.route_limits([make_rule([name], "a", {}) for name in names])
    guard.store_access.is_failing = True
    caplog.clear()
    for _ in range(3):
        asked.admit(request())
    # Refusals have a separate logger.
    messages = [record.message for record in caplog.records if record.name == "penstock"]
    assert messages == ["the store works again"]


@pytest.mark.parametrize(
    ("limit", "processes", "share"),
    [
        (
            penstock.Limit.token_bucket(burst=10, count=10, period=60),
            4,
            penstock.Limit.token_bucket(burst=2, count=10, period=240),
        ),
        (
            penstock.Limit.token_bucket(burst=1, count=1, period=1),
            8,
            penstock.Limit.token_bucket(burst=1, count=1, period=8),
        ),
        (
            penstock.Limit.leaky_bucket(size=10, drip_rate=1, drip_size=2),
            4,
            penstock.Limit.leaky_bucket(size=2, drip_rate=4, drip_size=2),
        ),
        (
            penstock.Limit.leaky_bucket(size=1, drip_rate=1),
            4,
            penstock.Limit.leaky_bucket(size=1, drip_rate=4),
        ),
        (
            penstock.Limit.fixed_window(count=10, period=60),
            4,
            penstock.Limit.fixed_window(count=2, period=60),
        ),
        (
            penstock.Limit.fixed_window(count=3, period=1),
            4,
            penstock.Limit.fixed_window(count=1, period="1334ms"),
        ),
        (
            penstock.Limit.fixed_rate_window(count=10, period=60, burst=9),
            4,
            penstock.Limit.fixed_rate_window(count=2, period=60, burst=2),
        ),
        (penstock.Limit.unlimited(), 4, penstock.Limit.unlimited()),
    ],
)
def test_share_is_one_process_part_and_at_least_one(
    limit: penstock.Limit, processes: int, share: penstock.Limit
) -> None:
    assert limit.share(processes) == share
    assert limit.share(1) == limit
