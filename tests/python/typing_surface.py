"""The types that a caller sees: checked by mypy and pyright, never run."""

from __future__ import annotations

import datetime
import enum
import fractions
import ipaddress
from pathlib import Path
from typing import assert_type

import numpy
import numpy.typing

import penstock


class Names(enum.IntEnum):
    Orders = 1


limit = penstock.Limit.token_bucket(burst=4, count=2, period=datetime.timedelta(seconds=1))
assert_type(limit, penstock.Limit)
assert_type(limit.burst, int)
assert_type(limit.emission_interval, float)
assert_type(penstock.Limit.parse("100/minute"), penstock.Limit)

limits = penstock.Limits.load(Path("limits.yaml"), overrides="overrides.yaml", names=Names)
assert_type(limits, penstock.Limits)
assert_type(limits.resolve("Orders", 12345678), penstock.Limit)
assert_type(limits.explain("Orders", b"ada").line, int | None)
assert_type(list(limits), list[str])

with penstock.Limiter({"Orders": limit, "Mails": "10/hour"}) as limiter:
    assert_type(limiter, penstock.Limiter)
    decision = limiter.spend("Orders", ipaddress.ip_address("192.0.2.1"), cost=2)
    assert_type(decision, penstock.Decision)
    assert_type(decision.allowed, bool)
    assert_type(decision.remaining, int)
    assert_type(decision.retry_after, float)
    assert_type(decision.retry_after_ns, int)
    assert_type(decision.name, str | None)
    assert_type(decision.parts, tuple[penstock.Decision, ...])
    assert_type(decision.headers(["ietf", "github"]), dict[str, str])

    orders = limiter.limit("Orders")
    assert_type(orders, penstock.BoundLimit)
    assert_type(orders.check("ada", factor=fractions.Fraction(1, 2)), penstock.Decision)
    assert_type(orders.reset("ada"), bool)

    assert_type(
        limiter.spend_all([penstock.Transaction("Orders", "ada"), ("Mails", "ada", 2, "check")]),
        penstock.Decision,
    )

    many = orders.spend_each(["ada", "grace"], costs=[1, 2])
    assert_type(many, penstock.Decisions)
    assert_type(many.allowed, numpy.typing.NDArray[numpy.bool_])
    assert_type(many[0], penstock.Decision)

clock = penstock.ManualClock()
clock.advance(datetime.timedelta(minutes=1))
assert_type(clock.now_ns(), int)

try:
    decision.raise_if_denied()
except penstock.RateLimited as refused:
    assert_type(refused.decision, penstock.Decision)

# What is wrong is seen before it is run.
limiter.spend("Orders", 1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
limiter.spend("Orders")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
decision.allowed = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
penstock.Limit.token_bucket(4, 2, 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
