"""Every option of a limit acts in every framework, also when nothing else is read of a request."""

from __future__ import annotations

from dataclasses import fields
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from adapters.case import Reply, Request, Route, hello, limited
from guards import left

import penstock
from penstock._web.route_table import fact_text, limit_facts
from penstock._web.rule import OPTIONS, Phase, Rule, RuleOptions
from penstock.adapter import Guard, make_rule

if TYPE_CHECKING:
    from adapters.conftest import Serve

IDS = count()
ALLOWED, DENIED = 200, 429
ORDINARY = [ALLOWED, ALLOWED, DENIED, DENIED, ALLOWED]
"""The statuses of four requests under a bucket of two tokens, and of one a minute later."""
EXPECTED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "methods": ({"methods": ["POST"]}, [ALLOWED] * 5),
    "exempt_when": ({"exempt_when": lambda _: True}, [ALLOWED] * 5),
    "factor": ({"factor": lambda _: 0.5}, [ALLOWED] * 5),
    "keep": ({"keep": lambda _: 1}, [ALLOWED, DENIED, DENIED, DENIED, ALLOWED]),
    "id": ({"id": lambda _: f"client {next(IDS)}"}, [ALLOWED] * 5),
    "cost": ({"cost": lambda _: 2}, [ALLOWED, DENIED, DENIED, DENIED, DENIED]),
    "mode": ({"mode": "shadow"}, [ALLOWED] * 5),
    "count_denied": ({"count_denied": True}, [ALLOWED, ALLOWED, DENIED, DENIED, DENIED]),
    "blocks": ({"block_for": "1h"}, [ALLOWED, ALLOWED, DENIED, DENIED, DENIED]),
    "deduct_when": ({"deduct_when": lambda _: False}, [ALLOWED] * 5),
    "cost_from_response": ({"cost_from_response": lambda _: 0}, [ALLOWED] * 5),
}
"""By option: how it is written, and the statuses of the same requests."""


def statuses(serve: Serve, clock: penstock.ManualClock, **options: Any) -> list[int]:
    limit = penstock.Limit.leaky_bucket(size=2, drip_rate=60)
    limiter = penstock.Limiter({"Calls": limit}, clock=clock)
    app = serve(Route("/", (limited("Calls", **options),)), limiter=limiter)
    first = app.statuses(4)
    clock.advance(60)
    return [*first, *app.statuses(1)]


def test_without_options_a_request_takes_one_token(
    serve: Serve, clock: penstock.ManualClock
) -> None:
    assert statuses(serve, clock) == ORDINARY


@pytest.mark.parametrize("name", EXPECTED)
def test_option_acts(serve: Serve, clock: penstock.ManualClock, name: str) -> None:
    options, expected = EXPECTED[name]
    assert statuses(serve, clock, **options) == expected


@pytest.mark.parametrize(("reserves", "found"), [(True, 1), (False, 2)])
def test_reserve_takes_tokens_before_the_view(
    serve: Serve, limiter: penstock.Limiter, *, reserves: bool, found: int
) -> None:
    seen: list[int] = []

    def view(request: Request) -> Reply:
        seen.append(left(limiter, "PerAddress"))
        return hello(request)

    limit = limited("PerAddress", deduct_when=lambda _: True, reserve=reserves)
    serve(Route("/", (limit,), view)).statuses(1)
    assert seen == [found]


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "methods"])
def test_option_is_shown_with_the_limits_of_a_route(name: str) -> None:
    guard = Guard(penstock.Limiter({"Calls": penstock.Limit.leaky_bucket(size=2)}))

    def shown(**options: Any) -> str:
        (limit,) = guard.route_limits([make_rule(["Calls"], "calls", options)]).limits  # type: ignore[arg-type]
        return fact_text(limit_facts(guard, limit))

    # The commands show the methods with those of the route.
    assert shown(**EXPECTED[name][0]) != "Calls: 2 at once, 1 more every second, by_address"


def test_every_option_is_declared_and_tried_here() -> None:
    chosen = {"limit", "tier", "tiers"}
    written = {"block_for" if name == "blocks" else name for name in OPTIONS}
    assert written | chosen == RuleOptions.__optional_keys__
    own = {"limits", "choose", "tiers", "scope", "is_shared", "acting"}
    assert {each.name for each in fields(Rule)} - OPTIONS.keys() == own
    # What is part of the compiled limit cannot be left out on the way; failures have own tests.
    early = (Phase.COMPILED, Phase.FAILED)
    later = {name for name, each in OPTIONS.items() if each.acts not in early}
    assert later - {"reserve", "settle"} <= EXPECTED.keys()
