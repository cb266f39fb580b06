"""Limits that follow from the request: chosen, by tier, by role, by range of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Request, Route, limited
from adapters.drivers import with_routes

import penstock
from penstock.identity import by_address

if TYPE_CHECKING:
    from adapters.conftest import Serve

TIERS = """
Orders:
  id: ipAddress
  description: orders
  tiers:
    free: 1/minute
    pro: {count: 3, burst: 3, period: 1m}
"""


def plan(request: Request) -> Any:
    """Return the value of the header; `None` if it is missing."""
    return request.headers.get("X-Plan")


def has_plan(name: str) -> dict[str, str]:
    """Return the header that `plan` reads."""
    return {"X-Plan": name}


def test_callable_chooses_a_name_a_text_or_no_limit(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited(limit=plan),)))
    assert app.ask(headers=has_plan("PerAddress")).header("RateLimit") == '"PerAddress";r=1;t=30'
    text = app.ask(headers=has_plan("3/hour"))
    assert (text.header("RateLimit") or "").endswith('";r=2;t=1200')
    assert app.statuses(3, headers=has_plan("3/hour")) == [200, 200, 429]
    free = app.ask()
    assert (free.status, free.limit_fields) == (200, {})
    assert limiter.peek("PerAddress", "203.0.113.7").remaining == 1


def test_equal_texts_share_a_bucket_named_after_their_numbers(
    serve: Serve, limiter: penstock.Limiter
) -> None:
    app = serve(Route("/", (limited(limit=plan),)))
    assert app.statuses(1, headers=has_plan("3/hour")) == [200]
    known = len(limiter.limits)
    answer = app.ask(headers=has_plan("3 per 60 minutes"))
    assert (answer.header("RateLimit") or "").endswith(' 3 per hour";r=1;t=1200')
    assert len(limiter.limits) == known


@pytest.mark.parametrize("chosen", [7, ["PerAddress"], "Nowhere", "5/moth"])
def test_choice_that_is_no_limit_is_an_error_of_the_application(serve: Serve, chosen: Any) -> None:
    app = serve(Route("/", (limited(limit=lambda _: chosen),)))
    assert app.ask().status == 500


def test_limits_of_tiers(serve: Serve) -> None:
    tiers = {"free": "1/minute", "pro": "PerAddress", "staff": None}
    app = serve(Route("/", (limited(tiers=tiers, tier=plan),)))
    assert app.statuses(2, headers=has_plan("free")) == [200, 429]
    assert app.statuses(3, headers=has_plan("pro")) == [200, 200, 429]
    assert app.statuses(4, headers=has_plan("staff")) == [200] * 4
    # No request is unlimited because of an unknown tier.
    assert app.statuses(1, headers=has_plan("gold")) == [500]
    assert app.statuses(1) == [500]


def test_tiers_of_the_limits_file(serve: Serve, clock: penstock.ManualClock) -> None:
    limiter = penstock.Limiter(penstock.Limits.parse(TIERS), clock=clock)
    app = serve(Route("/", (limited("Orders", tier=plan),)), limiter=limiter)
    free = app.ask(headers=has_plan("free"))
    assert free.header("RateLimit-Policy") == '"Orders_free";q=1;w=60'
    assert app.statuses(1, headers=has_plan("free")) == [429]
    assert app.statuses(4, headers=has_plan("pro")) == [200, 200, 200, 429]
    assert app.statuses(1, headers=has_plan("gold")) == [500]
    limiter.reload(penstock.Limits.parse(TIERS.replace("pro:", "gold:")))
    assert app.statuses(4, headers=has_plan("gold")) == [200, 200, 200, 429]


def test_role_factor_divides_the_size_of_a_leaky_bucket(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limits = penstock.Limits({"Notes": penstock.Limit.leaky_bucket(size=4, drip_rate="1m")})

    def factor(request: Request) -> Any:
        return {"strict": 2, "trusted": "1/2", "moderator": 0}.get(plan(request) or "")

    app = serve(
        Route("/", (limited("Notes", factor=factor),)),
        limiter=penstock.Limiter(limits, clock=clock),
    )
    assert app.statuses(3, headers=has_plan("strict")) == [200, 200, 429]
    assert app.statuses(3) == [200, 200, 429]
    assert app.statuses(5, headers=has_plan("trusted")) == [200, 200, 200, 200, 429]
    assert app.statuses(5, headers=has_plan("moderator")) == [200] * 5


@with_routes
def test_factor_applies_within_a_decision_over_several_limits(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limits = penstock.Limits(
        {"Notes": penstock.Limit.leaky_bucket(size=4, drip_rate="1m"), "Calls": "9/minute"}
    )
    limiter = penstock.Limiter(limits, clock=clock)
    app = serve(Route("/", (limited("Notes", factor=2), limited("Calls"))), limiter=limiter)
    assert app.statuses(3) == [200, 200, 429]
    assert limiter.peek("Calls", "203.0.113.7").remaining == 7


BOULDER = """
NewRegistrationsPerIPAddress: {count: 10, burst: 10, period: 3h, id: ipAddress}
NewRegistrationsPerIPv6Range: {count: 3, burst: 3, period: 3h, id: ipv6RangeCIDR}
"""


def test_limit_on_ranges_of_ipv6_addresses_is_decided_with_one_on_addresses(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limiter = penstock.Limiter(penstock.Limits.parse(BOULDER), clock=clock)
    both = limited("NewRegistrationsPerIPAddress", "NewRegistrationsPerIPv6Range")
    app = serve(Route("/", (both,)), limiter=limiter)
    assert app.ask(peer="2001:db8:7:1::1").header("RateLimit") == (
        '"NewRegistrationsPerIPAddress";r=9;t=1080, "NewRegistrationsPerIPv6Range";r=2;t=3600'
    )
    assert app.statuses(1, peer="2001:db8:7:2::1") == [200]
    assert app.statuses(1, peer="2001:db8:7:3::1") == [200]
    assert app.statuses(1, peer="2001:db8:7:4::1") == [429]
    assert app.statuses(1, peer="2001:db8:8::1") == [200]
    # A client with an IPv4 address is not in such a range.
    answer = app.ask()
    assert (answer.status, answer.header("RateLimit")) == (
        200,
        '"NewRegistrationsPerIPAddress";r=9;t=1080',
    )
    assert limiter.peek("NewRegistrationsPerIPv6Range", "2001:db8:7::/48").remaining == 0


def test_limit_on_ranges_alone_does_not_apply_to_ipv4(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    limiter = penstock.Limiter(penstock.Limits.parse(BOULDER), clock=clock)
    app = serve(Route("/", (limited("NewRegistrationsPerIPv6Range"),)), limiter=limiter)
    assert app.statuses(5) == [200] * 5
    assert app.ask().limit_fields == {}
    assert app.statuses(4, peer="2001:db8:7::1") == [200, 200, 200, 429]


def test_prefix_of_a_limit_is_its_own(serve: Serve, limiter: penstock.Limiter) -> None:
    app = serve(
        Route("/", (limited("PerAddress", id=by_address(prefix=48)),)),
        Route("/narrow", (limited("PerUser"),)),
    )
    peers = [f"2001:db8:7:{number}::1" for number in range(3)]
    assert [app.ask(peer=peer).status for peer in peers] == [200, 200, 429]
    assert [app.ask("/narrow", peer=peer).status for peer in peers] == [200] * 3
    assert limiter.peek("PerAddress", "2001:db8:7::").remaining == 0
    assert app.ask().status == 200


@pytest.mark.parametrize("prefix", [0, 129, "48", True])
def test_prefix_out_of_range_is_an_error(prefix: Any) -> None:
    with pytest.raises(penstock.ConfigError):
        by_address(prefix=prefix)
