"""One limit: its constructors, attributes and errors."""

from __future__ import annotations

import copy
import datetime
import enum
import inspect
import json
import operator
import pickle
from typing import TYPE_CHECKING, Any, get_args

import pytest
from core_limits import EACH
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Limit
from penstock.messages import TEMPLATES
from penstock.types import Algorithm

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND_NS = 1_000_000_000
ALIKE = pytest.mark.parametrize("limit", EACH.values(), ids=EACH.keys())

PROPERTIES: dict[str, dict[str, object]] = {
    "token-bucket": {
        "burst": 20,
        "count": 40,
        "period": 60.0,
        "period_ns": 60 * SECOND_NS,
        "emission_interval": 1.5,
        "burst_offset": 30.0,
        "max_cost": 20,
    },
    "leaky-bucket": {
        "size": 30,
        "drip_rate": 0.5,
        "drip_size": 2,
        "max_cost": 30,
    },
    "fixed-window": {
        "count": 10,
        "period": 3600.0,
        "period_ns": 3600 * SECOND_NS,
        "anchor": "aligned",
        "phase": 360.0,
        "max_cost": 10,
    },
    "fixed-rate-window": {
        "count": 5,
        "burst": 2,
        "period": 1.0,
        "period_ns": SECOND_NS,
        "anchor": "first",
        "phase": None,
        "max_cost": 3,
    },
    "in-flight": {
        "count": 5,
        "lease": 120.0,
        "retry_after": 3.0,
        "max_hold": 600.0,
        "max_cost": 5,
    },
    "calendar-window": {"count": 5, "period": "month", "zone": "Europe/Berlin", "max_cost": 5},
    "unlimited": {"max_cost": 2**63 - 1},
}
ALL_PROPERTIES = sorted({name for properties in PROPERTIES.values() for name in properties})


def test_every_algorithm_is_looked_at() -> None:
    assert set(EACH) == set(PROPERTIES)
    assert {limit.algorithm for limit in EACH.values()} == set(EACH)
    properties = {
        name
        for name, value in vars(Limit).items()
        if not name.startswith("_") and type(value).__name__ == "getset_descriptor"
    }
    assert properties == {*ALL_PROPERTIES, "algorithm", "summary_template"}


@pytest.mark.parametrize("algorithm", EACH)
def test_limit_has_only_attributes_of_its_algorithm(algorithm: str) -> None:
    limit, own = EACH[algorithm], PROPERTIES[algorithm]
    for name in ALL_PROPERTIES:
        if name in own:
            found = getattr(limit, name)
            assert (found, type(found)) == (own[name], type(own[name])), name
        else:
            message = f"a limit of the algorithm {algorithm} has no {name}"
            with pytest.raises(AttributeError, match=message):
                getattr(limit, name)
            assert not hasattr(limit, name)


@ALIKE
def test_limit_is_made_again_from_its_repr_fields_pickle_and_copy(limit: Limit) -> None:
    fields = limit.fields()
    assert all(type(value) in {int, str} for value in fields.values())
    made = [
        eval(repr(limit), {"Limit": Limit}),  # noqa: S307  our own repr
        Limit.from_fields(limit.algorithm, fields),
        copy.copy(limit),
        copy.deepcopy(limit),
        *(pickle.loads(pickle.dumps(limit, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)),  # noqa: S301  made just now
    ]
    assert {*made} == {limit}


@pytest.mark.parametrize(
    ("algorithm", "fields", "expected"),
    [
        ("token bucket", {"burst": 1, "count": 1, "period": 1}, penstock.LimitError),
        ("token-bucket", {"burst": 0, "count": 1, "period": 1}, penstock.LimitError),
        ("token-bucket", {"burst": 1, "count": 1}, TypeError),
        ("unlimited", {"burst": 1}, TypeError),
        (None, {}, TypeError),
        ("unlimited", None, TypeError),
    ],
)
def test_fields_of_no_limit_are_refused(
    algorithm: Any, fields: Any, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        Limit.from_fields(algorithm, fields)


def test_algorithms_of_the_type_hint_are_those_of_the_core() -> None:
    names = get_args(Algorithm)
    # The core lists its algorithms in this message.
    message = f"algorithm must be {', '.join(names[:-1])} or {names[-1]}, found"
    with pytest.raises(penstock.LimitError, match=message):
        Limit.from_fields("none", {})
    assert set(EACH) == set(names)


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_an_algorithm_has_a_constructor_with_its_parameters(algorithm: Algorithm) -> None:
    name = algorithm.replace("-", "_")
    assert hasattr(Limit, name), f"src/bindings/limit.rs has no constructor Limit.{name}"
    parameters = inspect.signature(getattr(Limit, name)).parameters
    assert set(parameters) >= set(EACH[algorithm].fields())


@ALIKE
def test_descriptions_of_a_limit_agree(limit: Limit) -> None:
    facts = limit.describe()
    if facts is None:
        assert limit.algorithm in {"in-flight", "unlimited"}
        assert limit.worst_in("1h") == 2**63 - 1
        return
    assert facts["at_once"] == limit.max_cost == limit.worst_in(0)
    assert facts["worst_in_interval"] == limit.worst_in(f"{facts['interval_ns']}ns")
    assert json.loads(json.dumps(facts)) == facts


@ALIKE
def test_summary_names_fields(limit: Limit) -> None:
    assert limit.summary_template.format(**limit.fields())
    assert limit.summary_template in TEMPLATES


@ALIKE
def test_share_is_a_limit_of_the_same_algorithm(limit: Limit) -> None:
    assert limit.share(1) == limit
    share = limit.share(3)
    assert share.algorithm == limit.algorithm
    assert 1 <= share.max_cost <= limit.max_cost


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (Limit.parse("10/minute"), Limit.token_bucket(burst=2, count=10, period=240)),
        (Limit.parse("1/second"), Limit.token_bucket(burst=1, count=1, period=4)),
        (
            Limit.leaky_bucket(size=10, drip_size=2),
            Limit.leaky_bucket(size=2, drip_rate=4, drip_size=2),
        ),
        (Limit.leaky_bucket(size=1), Limit.leaky_bucket(size=1, drip_rate=4)),
        (Limit.fixed_window(count=10, period=60), Limit.fixed_window(count=2, period=60)),
        (Limit.fixed_window(count=3, period=1), Limit.fixed_window(count=1, period="1334ms")),
        (
            Limit.fixed_rate_window(count=10, period=60, burst=9),
            Limit.fixed_rate_window(count=2, period=60, burst=2),
        ),
        (Limit.unlimited(), Limit.unlimited()),
    ],
)
def test_share_of_four_processes_is_a_quarter_and_at_least_one(limit: Limit, share: Limit) -> None:
    assert limit.share(4) == share


@pytest.mark.parametrize("processes", [0, -1])
def test_share_of_no_process_is_refused(processes: int) -> None:
    with pytest.raises(penstock.LimitError) as caught:
        Limit.parse("1/s").share(processes)
    assert caught.value.field == "processes"


def test_share_below_the_slowest_limit_is_refused() -> None:
    with pytest.raises(penstock.LimitError):
        Limit.parse("1 per 7000 weeks").share(2)


def test_limits_are_equal_if_they_decide_alike() -> None:
    in_a_set = set(EACH.values())
    assert len(in_a_set) == len(EACH)
    for limit in EACH.values():
        same = Limit.from_fields(limit.algorithm, limit.fields())
        assert not limit != same  # noqa: SIM202  the operator is what is tested
        for other in EACH.values():
            assert (limit == other) is (limit is other)
    assert Limit.token_bucket(burst=1, count=1, period=1) != Limit.token_bucket(
        burst=1, count=2, period=2
    )


@pytest.mark.parametrize("other", [None, 1, "Limit.unlimited()", (), object()])
def test_limit_equals_only_limits(other: object) -> None:
    assert Limit.unlimited() != other
    assert not Limit.unlimited() == other  # noqa: SIM201  the operator is what is tested


@pytest.mark.parametrize("compare", [operator.lt, operator.ge])
def test_limits_have_no_order(compare: Callable[[Any, Any], bool]) -> None:
    with pytest.raises(TypeError):
        compare(EACH["token-bucket"], EACH["token-bucket"])


def test_limit_needs_a_constructor_and_its_arguments() -> None:
    made: Any = Limit
    with pytest.raises(TypeError):
        made()
    with pytest.raises(TypeError):
        made.token_bucket(4, 2, 1)
    with pytest.raises(TypeError, match="period"):
        made.token_bucket(burst=4, count=2)
    with pytest.raises(TypeError, match="rate"):
        made.token_bucket(burst=4, count=2, period=1, rate=1)


@pytest.mark.parametrize(
    "period",
    [
        "1m",
        "60s",
        "0.5m30s",
        "60000ms",
        60,
        60.0,
        datetime.timedelta(minutes=1),
        enum.IntEnum("Span", {"MINUTE": 60}).MINUTE,  # type: ignore[attr-defined]
    ],
    ids=repr,
)
def test_spellings_of_one_period_are_equal(period: Any) -> None:
    limit = Limit.token_bucket(burst=1, count=1, period=period)
    assert limit.period_ns == 60 * SECOND_NS
    assert Limit.fixed_window(count=1, period=period).period_ns == 60 * SECOND_NS
    assert Limit.leaky_bucket(size=1, drip_rate=period).drip_rate == 60.0


@pytest.mark.parametrize(
    ("period", "nanoseconds"),
    [
        (0.1 + 0.2, 300_000_000),
        (1e-9, 1),
        (1.5e-9, 2),
        (1 / 3, 333_333_333),
        (datetime.timedelta(microseconds=1), 1_000),
        (datetime.timedelta(days=1, microseconds=-1), 86_399_999_999_000),
        ("7ns", 7),
        ("1h30m", 5_400 * SECOND_NS),
    ],
)
def test_seconds_are_taken_to_the_nearest_nanosecond(period: Any, nanoseconds: int) -> None:
    assert Limit.token_bucket(burst=1, count=1, period=period).period_ns == nanoseconds


@given(st.timedeltas(datetime.timedelta(microseconds=1), datetime.timedelta(days=40_000)))
def test_timedelta_is_taken_exactly(period: datetime.timedelta) -> None:
    microseconds = period // datetime.timedelta(microseconds=1)
    limit = Limit.token_bucket(burst=1, count=1, period=period)
    assert limit.period_ns == 1_000 * microseconds


def test_defaults_are_those_of_the_signature() -> None:
    assert Limit.leaky_bucket(size=5) == Limit.leaky_bucket(size=5, drip_rate=1, drip_size=1)
    assert Limit.fixed_window(count=5, period=1) == Limit.fixed_window(
        count=5, period=1, anchor="first", phase=None
    )
    assert Limit.fixed_rate_window(count=5, period=1) == Limit.fixed_rate_window(
        count=5, period=1, burst=0, anchor="first", phase=None
    )
    # No shift and a shift by nothing are one.
    assert Limit.fixed_window(count=5, period=1, anchor="aligned") == Limit.fixed_window(
        count=5, period=1, anchor="aligned", phase=0
    )


@pytest.mark.parametrize(
    ("options", "phase"),
    [
        ({"anchor": "first"}, None),
        ({"anchor": "aligned"}, None),
        ({"anchor": "aligned", "phase": "250ms"}, 0.25),
        ({"anchor": "aligned", "phase": "per-key"}, "per-key"),
    ],
)
def test_phase_is_seconds_or_a_duration(options: dict[str, Any], phase: object) -> None:
    for limit in (
        Limit.fixed_window(count=1, period=1, **options),
        Limit.fixed_rate_window(count=1, period=1, **options),
    ):
        assert (limit.anchor, limit.phase) == (options["anchor"], phase)
        assert eval(repr(limit), {"Limit": Limit}) == limit  # noqa: S307  our own repr


@pytest.mark.parametrize(
    ("older", "limit"),
    [
        ({"max": 300, "duration": "1h", "min_interval": "1s"}, (300, "12s", 1)),
        ({"max": 300, "duration": "1h"}, (300, "12s", 1)),
        ({"max": 10, "duration": 1, "min_interval": 0}, (10, "100ms", 1)),
        ({"max": 5, "min_interval": "1s"}, (1, "1s", 1)),
        ({"min_interval": 0.25}, (1, "250ms", 1)),
        ({"min_interval": "1ns"}, (1, "1ms", 1)),
    ],
)
def test_older_form_is_translated(older: dict[str, Any], limit: tuple[int, str, int]) -> None:
    size, drip_rate, drip_size = limit
    assert Limit.leaky_bucket_from(**older) == Limit.leaky_bucket(
        size=size, drip_rate=drip_rate, drip_size=drip_size
    )


@pytest.mark.parametrize(
    "older",
    [{"max": 5}, {"duration": 5}, {"max": 5, "duration": 0}, {"min_interval": 0}],
    ids=repr,
)
def test_older_form_without_a_rate_is_no_limit(older: dict[str, Any]) -> None:
    assert Limit.leaky_bucket_from(**older) == Limit.unlimited()
