"""Invalid limits: each is refused when it is created, with what was found and what to write."""

from __future__ import annotations

import datetime
import decimal
import fractions
from typing import Any

import pytest

import penstock
from penstock import Limit

TOO_LARGE = "the token bucket takes larger numbers"
TOO_FINE = "must be a whole number of milliseconds for this algorithm"
NO_TIME = "a duration must be a number with a unit, as in 1s, 180m or 1h30m"

# What a period must not be, and what is said of it.
PERIODS: list[tuple[Any, str]] = [
    (0, "must be longer than 0s, found 0s"),
    (0.0, "must be longer than 0s, found 0s"),
    ("0s", "must be longer than 0s, found 0s"),
    (datetime.timedelta(0), "must be longer than 0s, found 0s"),
    (1e-10, "must be longer than 0s, found 0s"),
    (-1, "must not be negative, found -1"),
    (-0.5, "must not be negative, found -0.5"),
    (datetime.timedelta(days=-1), "must not be negative, found datetime.timedelta(days=-1)"),
    (float("nan"), "is beyond 2**63 ns, found nan"),
    (float("inf"), "is beyond 2**63 ns, found inf"),
    (float("-inf"), "is beyond 2**63 ns, found -inf"),
    (1e300, "is beyond 2**63 ns, found 1e+300"),
    (9_223_372_037, "is beyond 2**63 ns, found 9223372037"),
    (10**30, f"is beyond 2**63 ns, found {10**30}"),
    (-(10**30), f"is beyond 2**63 ns, found -{10**30}"),
    (datetime.timedelta(days=10**6), "is beyond 2**63 ns, found datetime.timedelta(days=1000000)"),
    ("", f': {NO_TIME}, found ""'),
    ("180", ': a duration must have a unit, found "180"; use 180s'),
    ("-1s", f': {NO_TIME}, found "-1s"'),
    ("1s\x00", f': {NO_TIME}, found "1s\\0"'),
    ("1 month", ": months and years vary in length"),
    ("1fortnight", ': the units of a duration are ns, us, ms, s, m, h, d and w, found "fortnight"'),
    ("0.5ns", ': a fraction must come to whole nanoseconds, found "0.5ns"'),
    ("999999999w", ": a duration must be below"),
]

Parameters = dict[str, Any]

# A constructor, its parameters, the parameter at fault, and the message.
REFUSED: list[tuple[str, Parameters, str | None, str]] = [
    (
        "token_bucket",
        {"burst": 0, "count": 1, "period": 1},
        "burst",
        "burst must be at least 1, found 0",
    ),
    (
        "token_bucket",
        {"burst": 1, "count": -1, "period": 1},
        "count",
        "count must be at least 1, found -1",
    ),
    ("token_bucket", {"burst": 2**63, "count": 1, "period": 1}, "burst", f"found {2**63}"),
    ("token_bucket", {"burst": 1, "count": 10**30, "period": 1}, "count", f"found {10**30}"),
    ("token_bucket", {"burst": 1, "count": -(10**30), "period": 1}, "count", f"found -{10**30}"),
    (
        "token_bucket",
        {"burst": 1, "count": 10**9 + 1, "period": 1},
        "count",
        (
            "count 1000000001 in a period of 1s is too fast: rounded to whole nanoseconds, the"
            " time to add one token would change the rate by more than 0.1 %; use a smaller count"
            " or a longer period"
        ),
    ),
    (
        "token_bucket",
        {"burst": 1, "count": 600, "period": "1us"},
        "count",
        "count 600 in a period of 1us is too fast",
    ),
    (
        "token_bucket",
        {"burst": 2**62 + 1, "count": 1, "period": "1ns"},
        "burst",
        (
            "burst 4611686018427387905 at count 1 per period of 1ns would take longer than 146"
            " years to fill; use a smaller burst or a faster rate"
        ),
    ),
    ("leaky_bucket", {"size": 0}, "size", "size must be at least 1, found 0"),
    (
        "leaky_bucket",
        {"size": 1_048_576},
        "size",
        f"size must be at most 1048575 for this algorithm, found 1048576; {TOO_LARGE}",
    ),
    (
        "leaky_bucket",
        {"size": 1, "drip_size": 0},
        "drip_size",
        "drip_size must be at least 1, found 0",
    ),
    (
        "leaky_bucket",
        {"size": 1, "drip_rate": "500us"},
        "drip_rate",
        f"drip_rate {TOO_FINE}, found 500us; the token bucket takes any period",
    ),
    (
        "leaky_bucket",
        {"size": 1, "drip_rate": 0},
        "drip_rate",
        "drip_rate must be longer than 0s, found 0s",
    ),
    (
        "leaky_bucket",
        {"size": 1, "drip_rate": -2},
        "drip_rate",
        "drip_rate must not be negative, found -2",
    ),
    (
        "leaky_bucket",
        {"size": 1_048_575, "drip_rate": "5000000s"},
        "size",
        (
            "size 1048575 with drip_size 1 every drip_rate of 1388h53m20s would take longer than"
            " 146 years to drain; use a smaller size or a faster drip"
        ),
    ),
    ("leaky_bucket_from", {}, None, "give at least one of max, duration and min_interval"),
    (
        "leaky_bucket_from",
        {"max": 0, "duration": 1},
        "max",
        "max must be at least 1, found 0",
    ),
    (
        "leaky_bucket_from",
        {"max": 1, "duration": -1},
        "duration",
        "duration must not be negative, found -1s",
    ),
    (
        "leaky_bucket_from",
        {"min_interval": -5},
        "min_interval",
        "min_interval must not be negative, found -5s",
    ),
    (
        "leaky_bucket_from",
        {"max": 2**20, "duration": 1},
        "max",
        f"max must be at most 1048575 for this algorithm, found 1048576; {TOO_LARGE}",
    ),
    ("fixed_window", {"count": 0, "period": 1}, "count", "count must be at least 1, found 0"),
    (
        "fixed_window",
        {"count": 2**20, "period": 1},
        "count",
        f"count must be at most 1048575 for this algorithm, found 1048576; {TOO_LARGE}",
    ),
    (
        "fixed_window",
        {"count": 1, "period": "1500us"},
        "period",
        f"period {TOO_FINE}, found 1ms500us; the token bucket takes any period",
    ),
    (
        "fixed_window",
        {"count": 1, "period": "1281024h"},
        "period",
        "period must be at most 146 years, found 1281024h",
    ),
    (
        "fixed_window",
        {"count": 1, "period": 1, "phase": 0.5},
        "phase",
        (
            "phase is for windows with the anchor `aligned`; with `first` a window starts at its"
            " first request"
        ),
    ),
    (
        "fixed_window",
        {"count": 1, "period": 1, "anchor": "aligned", "phase": 1},
        "phase",
        "phase must be shorter than the period of 1s, found 1s",
    ),
    (
        "fixed_window",
        {"count": 1, "period": 1, "anchor": "aligned", "phase": -1},
        "phase",
        "phase must not be negative, found -1",
    ),
    (
        "fixed_window",
        {"count": 1, "period": 1, "anchor": "aligned", "phase": "500us"},
        "phase",
        f"phase {TOO_FINE}, found 500us; the token bucket takes any period",
    ),
    (
        "fixed_window",
        {"count": 1, "period": 1, "anchor": "last"},
        "anchor",
        "anchor must be 'first' or 'aligned', found 'last'",
    ),
    (
        "fixed_rate_window",
        {"count": 1, "period": 1, "burst": -1},
        "burst",
        "burst must be at least 0, found -1",
    ),
    (
        "fixed_rate_window",
        {"count": 1, "period": 1, "burst": 2**20},
        "burst",
        f"burst must be at most 1048575 for this algorithm, found 1048576; {TOO_LARGE}",
    ),
    (
        "fixed_rate_window",
        {"count": 2**20 - 1, "period": 1, "burst": 1},
        None,
        f"count + burst must be at most 1048575 for this algorithm, found 1048576; {TOO_LARGE}",
    ),
]

# A text, and the three lines that are said of it.
TEXTS = [
    (
        "10/month",
        "months and years vary in length; use days or weeks",
        "     ^^^^^",
    ),
    ("", "expected a number, as in 100/minute, found the end", "  ^"),
    ("0/s", "count must be at least 1, found 0", "  ^"),
    ("5/s, burst 0", "burst must be at least 1, found 0", "             ^"),
    ("5 s", "expected `/` or `per`, found `s`", "    ^"),
    ("5/s 7", "expected the end or `, burst 20`, found `7`", "      ^"),
    ("5/M", "M is ambiguous (minute or month); use m or minute", "    ^"),
    ("5/0s", "period must be longer than 0s, found 0s", "    ^^"),
    ("\uff11/s", "expected a number, as in 100/minute, found `\uff11`", "  ^"),
]


@pytest.mark.parametrize(("period", "message"), PERIODS, ids=repr)
def test_period_is_refused_by_what_it_is(period: Any, message: str) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        Limit.token_bucket(burst=1, count=1, period=period)
    separator = "" if message.startswith(":") else " "
    assert str(caught.value).startswith(f"period{separator}{message}")
    assert caught.value.field == "period"
    with pytest.raises(penstock.LimitError):
        Limit.fixed_window(count=1, period=period)
    with pytest.raises(penstock.LimitError):
        Limit.leaky_bucket(size=1, drip_rate=period)


@pytest.mark.parametrize(
    "period",
    [None, True, b"1s", decimal.Decimal(1), fractions.Fraction(1), [1], 1j, {"seconds": 1}],
    ids=repr,
)
def test_period_of_another_kind_is_a_type_error(period: Any) -> None:
    with pytest.raises(TypeError, match=rf"^period must be .*, found {type(period).__name__} "):
        Limit.token_bucket(burst=1, count=1, period=period)


@pytest.mark.parametrize(("constructor", "parameters", "field", "message"), REFUSED, ids=str)
def test_limit_is_refused_by_field_and_value(
    constructor: str, parameters: Parameters, field: str | None, message: str
) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        getattr(Limit, constructor)(**parameters)
    assert message in str(caught.value)
    assert caught.value.field == field


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
    with pytest.raises(TypeError, match=f"{field} must be an int, found {type(number).__name__}"):
        getattr(Limit, constructor)(**{field: number}, **others)


@pytest.mark.parametrize("number", [True, 1.0, "1"], ids=repr)
def test_max_of_another_kind_is_a_type_error(number: Any) -> None:
    with pytest.raises(TypeError, match="max must be an int, found"):
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


@pytest.mark.parametrize(("text", "fault", "carets"), TEXTS, ids=repr)
def test_caret_points_at_the_fault(text: str, fault: str, carets: str) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        Limit.parse(text)
    assert str(caught.value).split("\n") == [fault, f"  {text}", carets]
    with pytest.raises(penstock.LimitError, match=r"\^"):
        penstock.Limits({"Orders": text})


@pytest.mark.parametrize("text", [b"5/s", 5, None, ["5/s"], Limit.unlimited()], ids=repr)
def test_only_a_text_is_parsed(text: Any) -> None:
    with pytest.raises(TypeError, match="text must be a str, found"):
        Limit.parse(text)
