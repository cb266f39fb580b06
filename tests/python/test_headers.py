"""Header fields of decisions: the golden vectors and further cases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from core_limits import RATES
from hypothesis import given
from hypothesis import strategies as st

import penstock
import penstock._web.headers
from penstock._web.headers import STYLES, compile_style, encoded, headers

if TYPE_CHECKING:
    from conftest import MakeLimiter

VECTORS = Path(__file__).parents[1] / "data" / "vectors" / "headers.json"
SCENARIOS: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))

TOKEN = penstock.Limit.token_bucket(burst=3, count=1, period=10)


def lower(fields: dict[str, str]) -> dict[str, str]:
    """Return fields with lower-case names."""
    return {name.lower(): value for name, value in fields.items()}


def calls(limiter: penstock.Limiter, step: dict[str, Any]) -> penstock.Decision:
    """Make the call of a step."""
    verb = getattr(limiter, step["op"])
    factor = {"factor": step["factor"]} if "factor" in step else {}
    times = range(step.get("repeat", 1))
    made = [verb(step["name"], step["id"], step["cost"], **factor) for _ in times]
    last: penstock.Decision = made[-1]
    return last


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
def test_golden_scenario_has_its_fields_and_no_others(scenario: dict[str, Any]) -> None:
    # JSON is YAML; texts and names stay quoted.
    overrides = scenario.get("overrides")
    limits = penstock.Limits.parse(
        json.dumps(scenario["limits"], ensure_ascii=False),
        None if overrides is None else json.dumps(overrides, ensure_ascii=False),
    )
    clock = penstock.ManualClock()
    clock.set_ns(scenario["start_ns"])
    limiter = penstock.Limiter(limits, clock=clock)
    compared = 0
    for step in scenario["steps"]:
        if step["op"] == "advance":
            clock.advance_ns(step["advance_ns"])
            continue
        decision = calls(limiter, step)
        for style, expected in step.get("headers", {}).items():
            assert lower(decision.headers(style)) == lower(expected), style
            declared = {name.lower() for name in compile_style(style).names}
            assert lower(expected).keys() - {"retry-after"} <= declared, style
            if style == "ietf":
                assert decision.headers("draft-11") == decision.headers("ietf")
            if decision:
                # The fast path gives the same fields, as text and as bytes.
                writer = compile_style(style)
                assert lower(dict(writer.fields(decision))) == lower(expected), style
                assert writer.encoded_fields(decision) == encoded(writer.fields(decision)), style
            compared += 1
    assert compared


def test_vectors_cover_every_style() -> None:
    spoken = {
        style
        for scenario in SCENARIOS
        for step in scenario["steps"]
        for style in step.get("headers", {})
    }
    # Pinned: today it is the same as `ietf`.
    assert spoken | {"draft-11", "sharkey-always"} == set(STYLES)
    assert len(SCENARIOS) >= 20


def test_styles_can_be_combined(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": TOKEN})
    *_, decision = [limiter.spend("Orders", "ada") for _ in range(4)]
    assert decision.headers(["ietf", "sharkey"]) == {
        "RateLimit-Policy": '"Orders";q=3;w=30',
        "RateLimit": '"Orders";r=0;t=10',
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Clear": "30.000",
        "X-RateLimit-Reset": "10.000",
        "Retry-After": "10",
    }


@pytest.mark.parametrize(
    "styles",
    [["ietf", "draft-06"], ["ietf", "draft-07"], ["sharkey", "github"], ["github", "envoy"]],
)
def test_styles_that_write_one_field_cannot_be_combined(styles: list[str]) -> None:
    with pytest.raises(penstock.ConfigError, match=".*".join(styles)):
        compile_style(styles)


def test_unknown_style_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(penstock.ConfigError, match="'itef'; did you mean 'ietf'"):
        compile_style("itef")
    with pytest.raises(penstock.ConfigError, match="draft-03"):
        compile_style([])


def test_several_limits_have_an_item_each_and_one_retry_after(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"PerUser": TOKEN, "PerAddress": "2/minute", "PerHour": "1/hour"})
    both = [("PerUser", "ada"), ("PerAddress", "192.0.2.1")]
    assert limiter.spend_all(both).headers() == {
        "RateLimit-Policy": '"PerUser";q=3;w=30, "PerAddress";q=2;w=60',
        "RateLimit": '"PerUser";r=2;t=10, "PerAddress";r=1;t=30',
    }
    limiter.spend_all(both)
    limiter.spend("PerUser", "ada")
    limiter.spend("PerHour", "ada")
    decision = limiter.spend_all([*both, ("PerHour", "ada")])
    assert not decision
    assert decision.headers() == {
        "RateLimit-Policy": ('"PerUser";q=3;w=30, "PerAddress";q=2;w=60, "PerHour";q=1;w=3600'),
        "RateLimit": '"PerUser";r=0;t=10, "PerAddress";r=0;t=30, "PerHour";r=0;t=3600',
        "Retry-After": "3600",
    }


def test_field_with_one_value_describes_the_strictest_limit(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"PerUser": TOKEN, "PerAddress": "2/minute"})
    decision = limiter.spend_all([("PerUser", "ada"), ("PerAddress", "192.0.2.1")])
    assert decision.headers("draft-07") == {
        "RateLimit-Policy": "3;w=30, 2;w=60",
        "RateLimit": "limit=2, remaining=1, reset=30",
    }
    assert decision.headers("draft-03")["RateLimit-Limit"] == "2, 3;w=30, 2;w=60"
    assert decision.headers("envoy")["x-ratelimit-limit"] == (
        '2, 3;w=30;name="PerUser", 2;w=60;name="PerAddress"'
    )
    assert decision.headers("github")["X-RateLimit-Resource"] == "PerAddress"


def test_draft_06_never_has_two_policies_of_one_quota(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"PerMinute": "5/minute", "PerHour": "5/hour"})
    decision = limiter.spend_all([("PerMinute", "ada"), ("PerHour", "ada")])
    assert decision.headers("draft-06")["RateLimit-Policy"] == "5;w=60"


def test_unlimited_part_has_no_fields(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"PerUser": TOKEN, "Free": penstock.Limit.unlimited()})
    decision = limiter.spend_all([("Free", "ada"), ("PerUser", "ada")])
    assert decision.headers() == {
        "RateLimit-Policy": '"PerUser";q=3;w=30',
        "RateLimit": '"PerUser";r=2;t=10',
    }
    assert limiter.spend("Free", "ada").headers(["ietf", "github"]) == {}


def test_denial_in_shadow_mode_has_no_retry_after(make_limiter: MakeLimiter) -> None:
    limits = penstock.Limits.parse("Watched: {burst: 1, count: 1, period: 1m, mode: shadow}")
    limiter = make_limiter(limits)
    *_, decision = [limiter.spend("Watched", "ada") for _ in range(2)]
    assert decision.would_deny
    assert decision.headers(["ietf", "sharkey"]) == {
        "RateLimit-Policy": '"Watched";q=1;w=60',
        "RateLimit": '"Watched";r=0;t=60',
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Clear": "60.000",
    }


def test_fields_of_shadow_limits_describe_the_strictest(make_limiter: MakeLimiter) -> None:
    limits = penstock.Limits.parse(
        "One: {burst: 5, count: 1, period: 1m, mode: shadow}\n"
        "Two: {burst: 2, count: 1, period: 1m, mode: shadow}"
    )
    decision = make_limiter(limits).spend_all([("One", "ada"), ("Two", "ada")])
    assert decision.unlimited
    assert decision.headers("draft-07") == {
        "RateLimit-Policy": "5;w=300, 2;w=120",
        "RateLimit": "limit=2, remaining=1, reset=60",
    }


def test_name_with_quotes_is_escaped(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({'a "b" \\c': TOKEN})
    decision = limiter.spend('a "b" \\c', "ada")
    assert decision.headers()["RateLimit"] == r'"a \"b\" \\c";r=2;t=10'
    assert decision.headers("envoy")["x-ratelimit-limit"] == r'3, 3;w=30;name="a \"b\" \\c"'


def test_integer_of_16_digits_is_left_out_with_what_needs_it(make_limiter: MakeLimiter) -> None:
    large = penstock.Limit.token_bucket(burst=10**15, count=10**9, period=1)
    limiter = make_limiter({"Large": large})
    decision = limiter.spend("Large", "ada")
    assert decision.headers() == {"RateLimit": '"Large";r=999999999999999;t=1'}
    assert dict(compile_style("ietf").fields(decision)) == decision.headers()
    assert limiter.check("Large", "grace", 0).headers() == {}
    assert compile_style("ietf").fields(limiter.check("Large", "grace", 0)) == []
    assert decision.headers("draft-06") == {
        "RateLimit-Remaining": "999999999999999",
        "RateLimit-Reset": "1",
    }
    assert decision.headers("draft-07") == {}
    assert decision.headers("envoy") == {
        "x-ratelimit-remaining": "999999999999999",
        "x-ratelimit-reset": "1",
    }


def test_retry_after_is_never_earlier_than_t(make_limiter: MakeLimiter) -> None:
    # A lowered limit leaves the bucket overdrawn: nothing can be spent before it has a token.
    limiter = make_limiter({"Orders": penstock.Limit.token_bucket(burst=10, count=1, period=10)})
    limiter.spend("Orders", "ada", 10)
    limiter.reload({"Orders": penstock.Limit.token_bucket(burst=9, count=1, period=10)})
    decision = limiter.check("Orders", "ada", 0)
    assert not decision
    assert decision.retry_after == 10
    assert decision.headers()["RateLimit"] == '"Orders";r=0;t=20'
    assert decision.headers()["Retry-After"] == "20"


def test_leaky_bucket_has_a_time_only_when_it_is_full(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Clicks": penstock.Limit.leaky_bucket(size=2, drip_rate=10)})
    assert limiter.spend("Clicks", "ada").headers() == {
        "RateLimit-Policy": '"Clicks";q=2;w=20',
        "RateLimit": '"Clicks";r=1',
    }
    # The cost is 2 and 1 is left: no `t`, but a time to retry.
    assert limiter.spend("Clicks", "ada", 2).headers() == {
        "RateLimit-Policy": '"Clicks";q=2;w=20',
        "RateLimit": '"Clicks";r=1',
        "Retry-After": "10",
    }
    assert limiter.spend("Clicks", "ada").headers()["RateLimit"] == '"Clicks";r=0;t=10'


def test_leaky_bucket_of_several_a_drip_drains_in_whole_drips(make_limiter: MakeLimiter) -> None:
    limit = penstock.Limit.leaky_bucket(size=7, drip_rate=10, drip_size=3)
    decision = make_limiter({"Clicks": limit}).spend("Clicks", "ada")
    assert decision.headers()["RateLimit-Policy"] == '"Clicks";q=7;w=30'


def test_overfull_leaky_bucket_never_has_too_short_a_wait(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Clicks": penstock.Limit.leaky_bucket(size=9, drip_rate=10)})
    limiter.spend("Clicks", "ada", 9)
    limiter.reload({"Clicks": penstock.Limit.leaky_bucket(size=7, drip_rate=10)})
    decision = limiter.check("Clicks", "ada", 0)
    assert not decision
    assert decision.retry_after == 20
    assert decision.headers()["RateLimit"] == '"Clicks";r=0;t=30'
    assert decision.headers()["Retry-After"] == "30"


def test_full_bucket_has_no_next_token(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": TOKEN})
    assert limiter.check("Orders", "ada", 0).headers()["RateLimit"] == '"Orders";r=3'


def test_override_has_its_own_policy_line(make_limiter: MakeLimiter) -> None:
    limits = penstock.Limits.parse(
        "Orders: {burst: 3, count: 1, period: 10s}",
        "- Orders: {burst: 30, count: 1, period: 10s, ids: [grace]}",
    )
    limiter = make_limiter(limits)
    assert limiter.spend("Orders", "ada").headers()["RateLimit-Policy"] == '"Orders";q=3;w=30'
    assert limiter.spend("Orders", "grace").headers()["RateLimit-Policy"] == '"Orders";q=30;w=300'


@given(
    limit=st.sampled_from([*RATES.values()])
    | st.builds(
        penstock.Limit.token_bucket,
        burst=st.integers(1, 50),
        count=st.integers(1, 1000),
        period=st.integers(1, 10_000_000).map("{}ms".format),
    ),
    costs=st.lists(st.integers(0, 60), max_size=20),
)
def test_client_that_waits_for_retry_after_is_allowed(
    limit: penstock.Limit, costs: list[int]
) -> None:
    clock = penstock.ManualClock(start=1_000_000_000)
    limiter = penstock.Limiter({"Orders": limit}, clock=clock)
    for cost in costs:
        asked = min(cost, limit.max_cost)
        decision = limiter.spend("Orders", "ada", asked)
        fields = headers(decision)
        assert re.fullmatch(r'"Orders";q=\d+;w=[1-9]\d*', fields["RateLimit-Policy"])
        assert re.fullmatch(r'"Orders";r=\d+(;t=[1-9]\d*)?', fields["RateLimit"])
        if not decision:
            clock.advance(int(fields["Retry-After"]))
            assert limiter.spend("Orders", "ada", asked)
