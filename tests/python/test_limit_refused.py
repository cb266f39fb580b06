"""Invalid limits: each is refused when it is created, by the field at fault."""

from __future__ import annotations

import datetime
import decimal
import fractions
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Limit

if TYPE_CHECKING:
    from collections.abc import Callable

Parameters = dict[str, Any]


@pytest.mark.parametrize(
    "period",
    [0, -1, float("nan"), 10**30, datetime.timedelta(days=10**6), "", "180", "1 month", "0.5ns"],
    ids=repr,
)
def test_invalid_period_is_refused_by_every_algorithm(period: Any) -> None:
    calls: list[Callable[[], Limit]] = [
        lambda: Limit.token_bucket(burst=1, count=1, period=period),
        lambda: Limit.fixed_window(count=1, period=period),
        lambda: Limit.fixed_rate_window(count=1, period=period),
        lambda: Limit.leaky_bucket(size=1, drip_rate=period),
    ]
    for call, field in zip(calls, ["period", "period", "period", "drip_rate"], strict=True):
        with pytest.raises(penstock.LimitError) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize(
    "period",
    [None, True, b"1s", decimal.Decimal(1), fractions.Fraction(1), [1], 1j, {"seconds": 1}],
    ids=repr,
)
def test_period_of_another_kind_is_a_type_error(period: Any) -> None:
    with pytest.raises(TypeError, match=f"^period .*{kind(period)}"):
        Limit.token_bucket(burst=1, count=1, period=period)


def kind(value: object) -> str:
    """Return what an error calls the type of a value."""
    return "None" if value is None else type(value).__name__


@pytest.mark.parametrize("number", [True, 1.0, "1", None, b"1", decimal.Decimal(1)], ids=repr)
@pytest.mark.parametrize(
    ("constructor", "field", "others"),
    [
        ("token_bucket", "burst", {"count": 1, "period": 1}),
        ("token_bucket", "count", {"burst": 1, "period": 1}),
        ("leaky_bucket", "size", {}),
        ("leaky_bucket", "drip_size", {"size": 1}),
        ("fixed_window", "count", {"period": 1}),
        ("fixed_rate_window", "count", {"period": 1}),
        ("fixed_rate_window", "burst", {"count": 1, "period": 1}),
    ],
)
def test_number_of_another_kind_is_a_type_error(
    constructor: str, field: str, others: Parameters, number: Any
) -> None:
    with pytest.raises(TypeError, match=f"^{field} .*{kind(number)}"):
        getattr(Limit, constructor)(**{field: number}, **others)


@pytest.mark.parametrize("number", [True, 1.0, "1"], ids=repr)
def test_max_of_another_kind_is_a_type_error(number: Any) -> None:
    with pytest.raises(TypeError, match=r"^max "):
        Limit.leaky_bucket_from(max=number, duration=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"anchor": "First"}, penstock.LimitError),
        ({"anchor": ""}, penstock.LimitError),
        ({"anchor": None}, TypeError),
        ({"anchor": 1}, TypeError),
        ({"anchor": "aligned", "phase": "per_key"}, penstock.LimitError),
        ({"anchor": "aligned", "phase": True}, TypeError),
        ({"anchor": "first", "phase": "per-key"}, penstock.LimitError),
    ],
    ids=repr,
)
def test_anchor_and_phase_are_checked(options: Parameters, problem: type[Exception]) -> None:
    with pytest.raises(problem, match=r"anchor|phase"):
        Limit.fixed_window(count=1, period=1, **options)
    with pytest.raises(problem, match=r"anchor|phase"):
        Limit.fixed_rate_window(count=1, period=1, **options)


@pytest.mark.parametrize("text", [b"5/s", 5, None, ["5/s"], Limit.unlimited()], ids=repr)
def test_only_a_text_is_parsed(text: Any) -> None:
    with pytest.raises(TypeError, match=r"^text "):
        Limit.parse(text)
