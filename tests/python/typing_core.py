"""The types of the core, in detail: checked by mypy and pyright in strict mode, never run."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import ipaddress
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, assert_type

import numpy
import numpy.typing

import penstock
from penstock import (
    AsyncBoundLimit,
    AsyncLimiter,
    AsyncReservation,
    BoundLimit,
    Decision,
    Decisions,
    Explanation,
    Limit,
    Limiter,
    Limits,
    ManualClock,
    Reservation,
    SystemClock,
    Transaction,
)
from penstock.errors import ConfigProblem
from penstock.functions import limited


class Names(enum.IntEnum):
    Orders = 1


class Colours(enum.Enum):
    RED = 1


# Limits.
assert_type(Limit.token_bucket(burst=4, count=2, period="1s"), Limit)
assert_type(Limit.token_bucket(burst=4, count=2, period=1), Limit)
assert_type(Limit.token_bucket(burst=4, count=2, period=0.5), Limit)
assert_type(Limit.leaky_bucket(size=4), Limit)
assert_type(Limit.leaky_bucket(size=4, drip_rate=datetime.timedelta(1), drip_size=2), Limit)
assert_type(Limit.leaky_bucket_from(max=4, duration="1h", min_interval=1.5), Limit)
assert_type(Limit.leaky_bucket_from(max=None, duration=None, min_interval=1), Limit)
assert_type(Limit.fixed_window(count=4, period=1, anchor="aligned", phase="per-key"), Limit)
assert_type(Limit.fixed_window(count=4, period=1, anchor="aligned", phase=None), Limit)
assert_type(Limit.fixed_rate_window(count=4, period=1, burst=1, anchor="first"), Limit)
limit = Limit.unlimited()
assert_type(
    limit.algorithm,
    Literal[
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "fixed-rate-window",
        "calendar-window",
        "in-flight",
        "unlimited",
    ],
)
assert_type(limit.period, float | str)
assert_type(limit.anchor, Literal["first", "aligned"])
assert_type(limit.phase, float | Literal["per-key"] | None)
assert_type({limit: 1}, dict[Limit, int])
assert_type(limit == limit, bool)  # noqa: PLR0124  what type it has

Limit.token_bucket(burst="4", count=2, period=1)  # type: ignore[arg-type]
Limit.token_bucket(burst=4.0, count=2, period=1)  # type: ignore[arg-type]
Limit.token_bucket(burst=4, count=2)  # type: ignore[call-arg]
Limit.token_bucket(burst=4, count=2, period=b"1s")  # type: ignore[arg-type]
Limit.fixed_window(count=4, period=1, anchor="last")  # type: ignore[arg-type]
Limit.parse(b"4/second")  # type: ignore[arg-type]
limit.max_cost = 3  # type: ignore[misc]
limit.nothing  # type: ignore[attr-defined]  # noqa: B018

# All of them.
mapping: Mapping[str, Limit | str] = {"Orders": limit}
limits = Limits(mapping)
assert_type(Limits(), Limits)
assert_type(Limits(limits), Limits)
assert_type(Limits({"Orders": "4/second"}), Limits)
assert_type(Limits.load("limits.yaml"), Limits)
assert_type(Limits.load(Path("limits.yaml"), None, None), Limits)
assert_type(Limits.parse("{}", overrides="{}", names=Names), Limits)
assert_type(limits.resolve("Orders", b"ada"), Limit)
assert_type(limits.default("Orders"), Limit | None)
assert_type(len(limits), int)
assert_type(iter(limits), Iterator[str])
assert_type("Orders" in limits, bool)
why = limits.explain("Orders", ipaddress.ip_address("::1"))
assert_type(why, Explanation)

Limits({"Orders": 4})  # type: ignore[dict-item]
Limits.load(b"limits.yaml")  # type: ignore[arg-type]
Limits.parse("{}", names=Colours)  # type: ignore[arg-type]
Limits.parse("{}", names=Names.Orders)  # type: ignore[arg-type]
limits.resolve("Orders", 1.5)  # type: ignore[arg-type]
assert_type(limits["Orders"], Limit)
assert_type(limits | {"Mails": "1/minute"}, Limits)
assert_type({"Mails": "1/minute"} | limits, Limits)

# Clocks.
clock = ManualClock(start=1.5)
clock.advance(1)
clock.advance_ns(1)
clock.set_ns(5, allow_backwards=True)
assert_type(SystemClock().now_ns(), int)
assert_type(ManualClock("1s"), ManualClock)
ManualClock(None)  # type: ignore[arg-type]
clock.set_ns(5, True)  # type: ignore[call-arg]
clock.advance_ns(1.5)  # type: ignore[arg-type]
SystemClock(5)  # type: ignore[call-arg]

# Deciding.
limiter = Limiter(limits, "memory://", clock)
assert_type(Limiter({"Orders": "4/second"}, clock=SystemClock()), Limiter)
assert_type(Limiter(mapping), Limiter)
assert_type(limiter.limits, Limits)
assert_type(limiter.clock, SystemClock | ManualClock)
assert_type(limiter.spend("Orders", "ada"), Decision)
assert_type(limiter.spend(name="Orders", id=7, cost=2, factor=None), Decision)
assert_type(limiter.check("Orders", b"ada", 0, factor="1/2"), Decision)
assert_type(limiter.refund("Orders", "ada", factor=decimal.Decimal("0.5")), Decision)
assert_type(limiter.spend("Orders", "ada", 1, factor=fractions.Fraction(1, 2)), Decision)
assert_type(limiter.reset("Orders", "ada"), bool)
assert_type(limiter.define("More", "4/second"), BoundLimit)
assert_type(limiter.define("Most", limit), BoundLimit)
assert_type(limiter.stats()["buckets"], int | None)
assert_type(limiter.counts()["Orders"]["spends"]["denied"], int)
assert_type(limiter.counts()["Orders"]["timed"]["calls"], tuple[int, ...])
assert_type(limiter.top_denied("Orders", n=3)[0]["bucket_key"], str)
assert_type(len(limiter), int)
limiter.reload({"Orders": "4/second"})
limiter.reload(limits)
limiter.close()

limiter.spend("Orders", None)  # type: ignore[arg-type]
limiter.spend(7, "ada")  # type: ignore[arg-type]
limiter.spend("Orders", "ada", 1.5)  # type: ignore[arg-type]
limiter.spend("Orders", "ada", None)  # type: ignore[arg-type]
limiter.spend("Orders", "ada", 1, factor=b"1/2")  # type: ignore[arg-type]
limiter.spend("Orders", "ada", tokens=1)  # type: ignore[call-arg]
limiter.refund("Orders", "ada", None)  # type: ignore[arg-type]
Limiter(limits, clock=5)  # type: ignore[arg-type]
Limiter(limits, store=None)  # type: ignore[arg-type]
limiter.define("More", 4)  # type: ignore[arg-type]

# One limit.
orders = limiter.limit("Orders")
assert_type(orders.spend("ada", 2, factor=0.5), Decision)
assert_type(orders.check(id=7), Decision)
assert_type(orders.refund("ada"), Decision)
assert_type(orders.charge("ada", 3, keep=1), Decision)
assert_type(orders.spend_each(range(5)), Decisions)
orders.spend("Orders", "ada")  # type: ignore[arg-type]

# Beforehand, and in turn.
reservation = limiter.reserve("Orders", "ada", 2, factor=0.5)
assert_type(reservation, Reservation)
assert_type(orders.reserve("ada"), Reservation)
assert_type((bool(reservation), reservation.cancel()), tuple[bool, bool])
assert_type((reservation.decision, reservation.settle(3)), tuple[Decision, Decision])
with limiter.reserve("Orders", "ada") as entered:
    assert_type(entered, Reservation)
assert_type(limiter.acquire("Orders", "ada", timeout=datetime.timedelta(seconds=1)), Decision)
assert_type(orders.acquire("ada", 2, timeout=1.5), Decision)
assert_type(limiter.reserve_all([("Orders", "ada", 2)]), Reservation)
assert_type(limiter.reserve_all([("Orders", "ada", 2)], timeout="5s"), Reservation)
assert_type(limiter.acquire_all([("Orders", "ada", 2)], timeout=5), Decision)
reservation.settle(1.5)  # type: ignore[call-overload]
limiter.reserve("Orders", "ada", 2, 0.5)  # type: ignore[call-arg]
assert_type(limiter.acquire("Orders", "ada", timeout="1s"), Decision)


async def coroutine() -> None:
    async with reservation as entered, AsyncLimiter(limiter) as awaited:
        assert_type(entered, Reservation)
        assert_type(awaited, AsyncLimiter)
    assert_type(await awaited.spend("Orders", "ada"), Decision)
    assert_type(await awaited.acquire("Orders", "ada", timeout=1), Decision)
    assert_type(await awaited.spend_each("Orders", ["ada"]), Decisions)
    assert_type(await awaited.reserve("Orders", "ada"), AsyncReservation)
    async with awaited.limit("Orders").reserve("ada") as ours:
        assert_type(ours, AsyncReservation)
        assert_type(await ours.settle(3), Decision)
    assert_type(awaited.limit("Orders"), AsyncBoundLimit)
    AsyncLimiter(5)  # type: ignore[arg-type]


# Several limits.
transaction = Transaction("Orders", "ada", cost=2, kind="spend_only", factor="1/2")
assert_type(transaction.kind, Literal["spend", "check", "spend_only", "charge"])
assert_type(
    transaction.id,
    str | int | bytes | uuid.UUID | ipaddress.IPv4Address | ipaddress.IPv6Address,
)
assert_type(limiter.spend_all([("Orders", "ada")]), Decision)
assert_type(limiter.spend_all([transaction, ("Orders", 7, 1), ("Orders", 8, 1, "check")]), Decision)
assert_type(limiter.check_all(iter([transaction])), Decision)
assert_type(limiter.refund_all(()), Decision)
Transaction("Orders", "ada", kind="take")  # type: ignore[arg-type]
Transaction("Orders", 1.5)  # type: ignore[arg-type]
Transaction("Orders", "ada", cost=None)  # type: ignore[arg-type]
limiter.spend_all(transaction)  # type: ignore[arg-type]
limiter.spend_all([("Orders",)])  # type: ignore[list-item]
limiter.spend_all([("Orders", "ada", 1, "take")])  # type: ignore[list-item]

# The answer.
decision = orders.spend("ada")
assert_type(bool(decision), bool)
assert_type(
    (decision.name, decision.id, decision.binding), tuple[str | None, str | None, str | None]
)
assert_type(decision.limit, Limit)
assert_type(decision.parts, tuple[Decision, ...])
assert_type(decision.headers("github"), dict[str, str])
assert_type(decision.headers(style=("ietf", "github")), dict[str, str])
decision.raise_if_denied()
decision.headers(None)  # type: ignore[arg-type]
decision.remaining = 3  # type: ignore[misc]

# Many answers.
many = limiter.spend_each("Orders", ["ada", 7, b"eve"], costs=[1, 2, 3])
assert_type(limiter.spend_each("Orders", numpy.array([1, 2]), 3), Decisions)
assert_type(many.remaining, numpy.typing.NDArray[numpy.int64])
assert_type(many.retry_after_ns, numpy.typing.NDArray[numpy.int64])
assert_type(many.allowed, numpy.typing.NDArray[numpy.bool_])
assert_type(many[-1], Decision)
assert_type([one.allowed for one in many], list[bool])
assert_type(len(many), int)
assert_type(many.column("allowed").tolist(), list[int])
assert_type(many[0:1], Decisions)
limiter.spend_each("Orders", 7)  # type: ignore[arg-type]
limiter.spend_each("Orders", ["ada"], 1.5)  # type: ignore[arg-type]

# The errors.
try:
    limiter.spend("Orders", "ada")
except penstock.CostError as cost_error:
    assert_type((cost_error.cost, cost_error.limit_name), tuple[int, str])
except penstock.LimitError as limit_error:
    assert_type(limit_error.field, str | None)
except penstock.ConfigError as config_error:
    assert_type((config_error.file, config_error.line), tuple[str | None, int | None])
    assert_type(
        (config_error.limit_name, config_error.problems),
        tuple[str | None, tuple[ConfigProblem, ...]],
    )
except penstock.RateLimited as refused:
    assert_type(refused.decision.retry_after, float)


def job(user: str, size: int) -> str:
    return user * size


# The documented form: `pyright` in strict mode knows the parameters of these functions.
limited(limiter, "Orders", id=lambda user: user)
limited(limiter, "Orders", id=lambda user: user.name, cost=lambda user: 2 * len(user))
limited(limiter, "Orders", id=lambda user, size: user + size, cost=2)
limited(limiter, "Orders", id=job, timeout="5s")
