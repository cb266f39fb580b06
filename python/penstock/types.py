"""Types of arguments and results, for annotations."""

from __future__ import annotations

import datetime
import decimal
import fractions
import ipaddress
import os
import uuid
from collections.abc import Mapping
from typing import Literal, NamedTuple, NotRequired, Self, TypeAlias, TypedDict

from penstock._core import Limit, Limits, check_transaction

__all__ = [
    "Algorithm",
    "Anchor",
    "AnyLimits",
    "AnyTransaction",
    "CalendarPeriod",
    "Counts",
    "DeniedBucket",
    "Factor",
    "Id",
    "Latencies",
    "LimitFacts",
    "Outcomes",
    "Period",
    "StoreCalls",
    "StorePolicy",
    "StoreStats",
    "TransactionKind",
]

Id: TypeAlias = str | int | bytes | uuid.UUID | ipaddress.IPv4Address | ipaddress.IPv6Address
"""The id of a client."""

Factor: TypeAlias = int | str | float | decimal.Decimal | fractions.Fraction
"""Divides the size of a leaky bucket for one call; 0 lifts the limit."""

Period: TypeAlias = str | float | datetime.timedelta
"""A length of time: a string with units such as `"5m"`, seconds, or a `timedelta`."""

AnyLimits: TypeAlias = Limits | Mapping[str, Limit | str] | str | os.PathLike[str]
"""Limits of a limiter: loaded, the path of a limits file, or a mapping of names to limits."""

Anchor: TypeAlias = Literal["first", "aligned"]
"""Where a window starts: at a bucket's first request, or at multiples of the period."""

CalendarPeriod: TypeAlias = Literal["day", "week", "month", "year"]
"""The period of a calendar window. A week begins on Monday."""

Algorithm: TypeAlias = Literal[
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "fixed-rate-window",
    "calendar-window",
    "in-flight",
    "unlimited",
]
"""An algorithm, as a limits file spells it."""

TransactionKind: TypeAlias = Literal["spend", "check", "spend_only", "charge"]
"""Part of a transaction in a decision over several limits."""

StorePolicy: TypeAlias = Literal["allow", "deny", "local", "raise"]
"""The handling of requests when the store fails."""


class _TransactionFields(NamedTuple):
    name: str
    id: Id
    cost: int
    kind: TransactionKind
    factor: Factor | None
    keep: int


class Transaction(_TransactionFields):
    """One limit, id and cost within a decision about several limits.

    Args:
        name: Name of a loaded limit.
        id: The client.
        cost: Tokens, at least 0.
        kind: `"spend"`; `"check"`, which affects the decision but takes no tokens;
            `"spend_only"`, which does not affect the decision and takes tokens if the others are
            allowed and enough tokens are available; or `"charge"`, which takes tokens that were
            used already, as `Limiter.charge` does, whatever is decided.
        factor: Divisor of a leaky bucket's size.
        keep: Tokens that must be left, as in `Limiter.spend`.

    Examples:
        >>> penstock.Transaction("Orders", "ada", 2)
        Transaction('Orders', 'ada', cost=2, kind='spend')
    """

    __slots__ = ()

    def __new__(  # noqa: PLR0917  in the order of the fields
        cls,
        name: str,
        id: Id,
        cost: int = 1,
        kind: TransactionKind = "spend",
        factor: Factor | None = None,
        keep: int = 0,
    ) -> Self:
        transaction = tuple.__new__(cls, (name, id, cost, kind, factor, keep))
        # Here rather than in the call, so that the error is close to the mistake.
        check_transaction(transaction)
        return transaction

    def __repr__(self) -> str:
        factor = "" if self.factor is None else f", factor={self.factor!r}"
        keep = f", keep={self.keep}" if self.keep else ""
        text = f"{self.name!r}, {self.id!r}, cost={self.cost!r}, kind={self.kind!r}{factor}{keep}"
        return f"Transaction({text})"


AnyTransaction: TypeAlias = (
    tuple[str, Id]
    | tuple[str, Id, int]
    | tuple[str, Id, int, TransactionKind]
    | tuple[str, Id, int, TransactionKind, Factor | None]
    | tuple[str, Id, int, TransactionKind, Factor | None, int]
)
"""A `Transaction`, or a tuple of its first fields."""


class Outcomes(TypedDict):
    """Numbers of decisions by outcome."""

    allowed: int
    denied: int
    shadow_denied: int


class Latencies(TypedDict):
    """Histogram of sampled call times: `calls[i]` calls took at most `at_most_ns[i]`."""

    at_most_ns: tuple[int, ...]
    calls: tuple[int, ...]
    total_ns: int


class Counts(TypedDict):
    """Decisions of one limit, from `Limiter.counts`."""

    spends: Outcomes
    checks: Outcomes
    refunds: int
    store_errors: int
    expired: int
    renewed_late: int
    held: int
    timed: Latencies


StoreCalls: TypeAlias = dict[str, dict[str, Latencies]]
"""Times of calls to a server, by what was asked (`spend`, …) and how it ended (`answered`, …)."""


class StoreStats(TypedDict):
    """Statistics of a store, from `Limiter.stats`; `None` is what the store cannot count.

    The keys that need not be there are those of a store on a server.
    """

    store: str
    buckets: int | None
    capacity: int | None
    slots: int | None
    bytes: int | None
    forgotten: int | None
    evicted: int | None
    shared: int | None
    refused: int | None
    recovered_locks: int | None
    failing: NotRequired[bool]
    failures: NotRequired[int]
    denied_locally: NotRequired[int]
    healed: NotRequired[int]
    calls: NotRequired[StoreCalls]


class DeniedBucket(TypedDict):
    """Bucket with many denials, from `Limiter.top_denied`."""

    bucket_key: str
    name: str
    id: str
    denied: int
    error: int


class LimitFacts(TypedDict):
    """How much a limit admits, from `Limit.describe`."""

    at_once: int
    refill_count: int
    refill_interval_ns: int
    evenly_spaced: bool
    per_day: int
    interval_ns: int
    worst_in_interval: int
