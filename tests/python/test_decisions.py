"""Many decisions in one call: equal to single decisions, with columns that are not copied."""

from __future__ import annotations

import array
import ipaddress
import pickle
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Decisions, Limiter, ManualClock

try:
    import polars
except ImportError:
    # It has no wheel for free-threaded Python.
    polars = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SERIES: Any = getattr(polars, "Series", pandas.Series)

FILE = """
Orders: {burst: 4, count: 2, period: 1s}
Notes: {algorithm: leaky-bucket, size: 4, drip_rate: 1s}
Pages: {algorithm: fixed-window, count: 4, period: 1s, anchor: aligned, phase: per-key}
Calls: {algorithm: fixed-rate-window, count: 5, period: 1s, burst: 3}
Free: {algorithm: unlimited}
Watch: {burst: 4, count: 1, period: 1m, mode: shadow}
Accounts: {burst: 4, count: 2, period: 1s, id: regId, number: 6}
"""
OVERRIDES = """
- Orders: {burst: 8, count: 2, period: 1s, ids: ["1"]}
- Orders: {algorithm: leaky-bucket, size: 5, ids: ["2"]}
- Orders: {algorithm: unlimited, ids: ["3"]}
"""
LIMITS = penstock.Limits.parse(FILE, OVERRIDES)
COLUMNS = ("allowed", "would_deny", "remaining", "retry_after_ns", "reset_after_ns")
FLAGS = COLUMNS[:2]

A_LIST: Any = ["ada", "grace", "ada"]


def make(now: int = 10**18) -> tuple[Limiter, ManualClock]:
    """Make a fresh limiter and its clock."""
    clock = ManualClock()
    clock.set_ns(now)
    return Limiter(LIMITS, clock=clock), clock


@pytest.fixture
def limiter() -> Limiter:
    return make()[0]


def rows(decisions: Decisions) -> list[tuple[Any, ...]]:
    """Return the columns of a call as rows."""
    return list(zip(*(decisions.column(name).tolist() for name in COLUMNS), strict=True))


CALL = st.tuples(
    st.sampled_from(["Orders", "Notes", "Pages", "Calls", "Free", "Watch", "Accounts"]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=40),
    st.integers(0, 3_000_000_000),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(CALL, max_size=6))
def test_spend_each_equals_single_spends(
    calls: list[tuple[str, list[tuple[int, int]], int]],
) -> None:
    (many, many_clock), (single, single_clock) = make(), make()
    for name, spends, wait in calls:
        many_clock.advance_ns(wait)
        single_clock.advance_ns(wait)
        ids, costs = [id for id, _ in spends], [cost for _, cost in spends]
        decisions = many.spend_each(name, ids, costs)
        expected = [single.spend(name, id, cost) for id, cost in spends]
        assert list(decisions) == expected
        assert rows(decisions) == [
            tuple(getattr(decision, name) for name in COLUMNS) for decision in expected
        ]
        assert [one.as_dict() for one in decisions] == [other.as_dict() for other in expected]
        assert [repr(one) for one in decisions] == [repr(other) for other in expected]
        assert [one.limit for one in decisions] == [other.limit for other in expected]
        assert len(many) == len(single)


def test_repeated_id_sees_its_earlier_spends(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Accounts", [7, "7", b"07", 7, 7, 8])
    assert decisions.remaining.tolist() == [3, 2, 1, 0, 0, 3]
    assert decisions.allowed.tolist() == [True, True, True, True, False, True]
    assert [decision.id for decision in decisions] == ["7"] * 5 + ["8"]
    assert len(limiter) == 2


def test_many_more_than_one_chunk_are_decided_at_one_instant(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", range(10, 5_010))
    assert len(decisions) == 5_000
    assert decisions.allowed.all()
    assert {decisions[index].now_ns for index in range(0, 5_000, 97)} == {10**18}
    assert repr(decisions) == "<Decisions: 5000 of 5000 allowed>"


@pytest.mark.parametrize("by", ["limiter", "bound"])
@pytest.mark.parametrize(
    ("costs", "remaining"),
    [
        (None, [3, 3, 2]),
        (1, [3, 3, 2]),
        (2, [2, 2, 0]),
        (0, [4, 4, 4]),
        ([1, 2, 3], [3, 2, 0]),
        ((1, 2, 3), [3, 2, 0]),
        (range(1, 4), [3, 2, 0]),
        (numpy.array([1, 2, 3]), [3, 2, 0]),
        (numpy.array([3, 2, 1])[::-1], [3, 2, 0]),
        (numpy.array([1, 2, 3], dtype=">i8"), [3, 2, 0]),
        (array.array("q", [1, 2, 3]), [3, 2, 0]),
        (array.array("b", [1, 2, 3]), [3, 2, 0]),
        (b"\x01\x02\x03", [3, 2, 0]),
        (pandas.Series([1, 2, 3]), [3, 2, 0]),
        (SERIES([1, 2, 3]), [3, 2, 0]),
    ],
    ids=lambda value: f"{type(value).__name__} {value!r:.40}",
)
def test_costs_may_be_missing_or_one_or_one_for_each(
    limiter: Limiter, by: str, costs: Any, remaining: list[int]
) -> None:
    call: Callable[..., Decisions]
    call = limiter.limit("Orders").spend_each
    if by == "limiter":
        decisions = limiter.spend_each("Orders", A_LIST, costs)
    else:
        decisions = call(ids=A_LIST, costs=costs)
    assert decisions.remaining.tolist() == remaining


@pytest.mark.parametrize(
    "ids",
    [
        [11, 12, 11],
        (11, 12, 11),
        iter([11, 12, 11]),
        (number for number in (11, 12, 11)),
        numpy.array([11, 12, 11]),
        numpy.array([11, 0, 12, 0, 11])[::2],
        numpy.array([11, 12, 11])[::-1],
        numpy.array([11, 12, 11], dtype=">i8"),
        numpy.array([11, 12, 11], dtype=object),
        numpy.array(["11", "12", "11"]),
        memoryview(array.array("q", [11, 12, 11])),
        array.array("q", [11, 12, 11]),
        array.array("Q", [11, 12, 11]),
        pandas.Series([11, 12, 11]),
        pandas.Series(["11", "12", "11"]),
        SERIES([11, 12, 11]),
        [b"11", "12", 11],
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_ids_come_from_any_iterable_and_any_array_of_whole_numbers(
    limiter: Limiter, ids: Any
) -> None:
    decisions = limiter.spend_each("Orders", ids)
    assert [decision.id for decision in decisions] == ["11", "12", "11"]
    assert decisions.remaining.tolist() == [3, 3, 2]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=100))
def test_array_of_ids_is_as_a_list_of_them(numbers: list[int]) -> None:
    (by_array, _), (by_list, _) = make(), make()
    decisions = by_array.spend_each("Watch", numpy.array(numbers, dtype=numpy.int64))
    expected = by_list.spend_each("Watch", numbers)
    assert rows(decisions) == rows(expected)
    assert [decision.id for decision in decisions] == [str(number) for number in numbers]


def test_no_ids_give_no_decisions(limiter: Limiter) -> None:
    no_ids: Any
    for no_ids in ([], (), numpy.array([], dtype=numpy.int64), iter(())):
        decisions = limiter.spend_each("Orders", no_ids)
        assert len(decisions) == 0
        assert list(decisions) == []
        assert rows(decisions) == []
        assert decisions.remaining.shape == (0,)
        assert pyarrow.table(decisions).num_rows == 0
    assert limiter.spend_each("Orders", [], []).allowed.tolist() == []
    assert len(limiter) == 0


def test_columns_are_numpy_arrays_that_share_one_memory(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", A_LIST, 3)
    for name in COLUMNS:
        kind = numpy.dtype(numpy.bool_ if name in FLAGS else numpy.int64)
        column = getattr(decisions, name)
        assert (column.dtype, column.shape) == (kind, (3,))
        assert numpy.shares_memory(column, getattr(decisions, name))
        assert numpy.shares_memory(column, numpy.asarray(decisions.column(name)))
        assert not column.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            column.flags.writeable = True
    assert decisions.allowed.tolist() == [True, True, False]
    assert decisions.retry_after_ns.tolist() == [10**9, 10**9, 10**9]


def test_column_needs_no_numpy_and_outlives_its_decisions(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", A_LIST)
    views = {name: decisions.column(name) for name in COLUMNS}
    array_of_one = decisions.remaining
    del decisions
    assert views["allowed"].tolist() == [True, True, True]
    assert views["remaining"].tolist() == array_of_one.tolist() == [3, 3, 2]
    for name, view in views.items():
        assert (view.readonly, view.ndim, view.c_contiguous) == (True, 1, True)
        assert (view.format, view.itemsize) == (("?", 1) if name in FLAGS else ("q", 8))
        with pytest.raises(TypeError, match="read-only"):
            view[0] = view[0]
    assert views["remaining"][1:].tolist() == [3, 2]
    assert bytes(views["remaining"]) == array.array("q", [3, 3, 2]).tobytes()


@pytest.mark.parametrize("name", ["", "Allowed", "retry_after", "ids", "allowed\x00", "\u202e"])
def test_unknown_column_is_a_key_error(limiter: Limiter, name: str) -> None:
    with pytest.raises(KeyError):
        limiter.spend_each("Orders", A_LIST).column(name)


def test_pickled_decisions_are_the_same(limiter: Limiter) -> None:
    for name in ("Orders", "Accounts", "Watch"):
        decisions = limiter.spend_each(name, [7, 8, 7, 7], [1, 2, 3, 1])
        copied = pickle.loads(pickle.dumps(decisions))  # noqa: S301  its own
        assert list(copied) == list(decisions)
        assert rows(copied) == rows(decisions)
        assert [decision.limit for decision in copied] == [decision.limit for decision in decisions]


def test_arrow_stream_equals_the_columns(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", A_LIST, [1, 4, 2])
    columns = {name: decisions.column(name).tolist() for name in COLUMNS}
    assert pyarrow.table(decisions).to_pydict() == columns
    if polars is not None:
        assert polars.DataFrame(decisions).to_dict(as_series=False) == columns
    assert pandas.DataFrame.from_arrow(decisions).to_dict(orient="list") == columns  # type: ignore[attr-defined]
    # Repeatedly, because reading exhausts a stream.
    assert pyarrow.table(decisions) == pyarrow.table(decisions)
    table = pyarrow.table(decisions)
    del decisions
    assert table.to_pydict() == columns


def test_arrow_schema_has_no_nulls(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", A_LIST)
    schema = pyarrow.schema(decisions)
    assert schema == pyarrow.table(decisions).schema
    assert schema.names == list(COLUMNS)
    assert [field.nullable for field in schema] == [False] * 5
    assert [str(field.type) for field in schema] == ["bool", "bool", "int64", "int64", "int64"]
    assert type(decisions.__arrow_c_stream__()).__name__ == "PyCapsule"
    # A capsule that is never read frees what it holds.
    for _ in range(100):
        decisions.__arrow_c_stream__(requested_schema=None)
        decisions.__arrow_c_schema__()


def test_decision_by_index(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", ["ada", "grace", 7], [1, 2, 3])
    assert [decisions[index].id for index in range(-3, 3)] == ["ada", "grace", "7"] * 2
    assert decisions[0] == decisions[-3]
    assert [decision.cost for decision in decisions] == [1, 2, 3]
    assert [decision.cost for decision in reversed(list(decisions))] == [3, 2, 1]
    assert decisions[1] in list(decisions)
    for outside in (3, -4, 2**31, 2**63 - 1, -(2**63), 2**63, 10**30, -(10**30)):
        with pytest.raises(IndexError):
            decisions[outside]
    index: Any = numpy.int64(1)
    assert decisions[index] == decisions[True] == decisions[1]
    wrong: Any
    for wrong in (1.0, "1", None, (0,), "allowed"):
        with pytest.raises(TypeError):
            decisions[wrong]
    changed: Any = decisions
    with pytest.raises(TypeError):
        changed[0] = decisions[1]
    with pytest.raises(TypeError):
        del changed[0]


@pytest.mark.parametrize(
    "part",
    [slice(0, 2), slice(None), slice(None, None, -1), slice(-1, None), slice(5, 9), slice(2, 0)],
)
def test_slice_has_the_decisions_of_its_indices(limiter: Limiter, part: slice) -> None:
    decisions = limiter.spend_each("Orders", ["ada", "grace", 7], [1, 2, 3])
    chosen = decisions[part]
    assert list(chosen) == list(decisions)[part]
    assert chosen.remaining.tolist() == decisions.remaining[part].tolist()
    assert chosen == decisions[part] == pickle.loads(pickle.dumps(chosen))  # noqa: S301  made just now
    assert (chosen == decisions) is (len(chosen) == 3 and part.step is None)


def test_decisions_are_equal_if_all_of_them_are(limiter: Limiter) -> None:
    one, other = (limiter.spend_each("Orders", ["ada", "grace"], 0) for _ in range(2))
    assert one == other
    assert one != limiter.spend_each("Orders", ["ada", "eve"], 0)
    assert one != limiter.spend_each("Orders", ["ada", "grace"], [0, 1])
    assert one != [*one]
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_decision_by_index_does_not_change(limiter: Limiter) -> None:
    decisions = limiter.spend_each("Orders", ["ada", "3"])
    limiter.spend_each("Orders", ["ada", "3"], 3)
    limiter.reload({"Orders": "1/hour"})
    assert (decisions[0].remaining, decisions[0].limit.burst) == (3, 4)
    assert decisions[1].unlimited
    limiter.close()
    assert decisions[0].headers() == decisions[0].headers("ietf") != {}


@pytest.mark.parametrize(
    ("ids", "costs", "index", "problem", "message"),
    [
        (["ada", "", "eve"], None, 1, penstock.InvalidId, "Orders: id must not be empty"),
        (["ada", "eve", b"\xff"], None, 2, penstock.InvalidId, "id must be"),
        (["ada", "eve", "\udc80"], None, 2, penstock.InvalidId, "id must be"),
        (["ada", 1.5], None, 1, TypeError, "id must be a str, int, .* found float 1.5"),
        (["ada", None, True], None, 1, TypeError, "id must be a str, int, .* found None"),
        ([True], None, 0, TypeError, "found bool True"),
        (numpy.array([1.0]), None, 0, TypeError, "found float64"),
        (["ada", "eve"], [1, -1], 1, penstock.CostNegative, "Orders: cost must be at least 0"),
        (["ada", "eve"], [1, 5], 1, penstock.CostTooHigh, "Orders: cost must be at most 4"),
        (["ada", "1", "2"], [1, 8, 6], 2, penstock.CostTooHigh, "at most 5"),
        (["ada", "eve"], 5, 0, penstock.CostTooHigh, "Orders: cost must be at most 4"),
        (["ada", "eve"], [1, 10**30], 1, penstock.CostTooHigh, "Orders: cost must be at most 4"),
        (["ada", "eve"], [1, 1.0], 1, TypeError, "cost must be an int, found float 1.0"),
        (["ada", "eve"], [True, 1], 0, TypeError, "cost must be an int, found bool True"),
        (["ada", "eve"], numpy.array([1.0, 2.0]), 0, TypeError, "cost must be .* found float64"),
    ],
)  # fmt: skip
def test_error_names_the_index_and_nothing_is_spent(  # noqa: PLR0917  one row of the table
    limiter: Limiter, ids: Any, costs: Any, index: int, problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message) as caught:
        limiter.spend_each("Orders", ids, costs)
    assert f"at position {index} of {len(ids)}" in " ".join(caught.value.__notes__)
    assert len(limiter) == 0
    # The same with a good many good ones before it.
    more = [*range(1_000, 1_200), *ids]
    more_costs = costs if costs is None or isinstance(costs, int) else [1] * 200 + list(costs)
    with pytest.raises(problem) as caught:
        limiter.limit("Orders").spend_each(more, more_costs)
    first = 0 if isinstance(costs, int) else index + 200
    assert f"at position {first} of {len(more)}" in " ".join(caught.value.__notes__)
    assert len(limiter) == 0


@pytest.mark.parametrize("ids", ["ada", b"ada", 5, None, 1.5, object(), numpy.array(5)], ids=type)
def test_ids_that_are_not_iterable_are_a_type_error(limiter: Limiter, ids: Any) -> None:
    with pytest.raises(TypeError):
        limiter.spend_each("Orders", ids)
    assert len(limiter) == 0


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        ([1], ValueError),
        ([1, 1, 1, 1], ValueError),
        ([], ValueError),
        (numpy.array([1, 2]), ValueError),
        (numpy.array([[1], [2], [3]]), TypeError),
        (True, TypeError),
        (1.0, TypeError),
        ("123", TypeError),
        (object(), TypeError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_costs_of_another_number_or_kind_are_refused(
    limiter: Limiter, costs: Any, problem: type[Exception]
) -> None:
    with pytest.raises(problem):
        limiter.spend_each("Orders", A_LIST, costs)
    assert len(limiter) == 0


def test_endless_costs_are_not_waited_for(limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="costs must be as long as ids"):
        limiter.spend_each("Orders", A_LIST, (1 for _ in count()))


def test_unknown_name_and_closed_limiter_are_errors(limiter: Limiter) -> None:
    with pytest.raises(penstock.UnknownLimit):
        limiter.spend_each("Nothing", A_LIST)
    limiter.close()
    with pytest.raises(penstock.StoreError):
        limiter.spend_each("Orders", A_LIST)


def test_ids_may_call_the_limiter_while_they_are_walked(limiter: Limiter) -> None:
    def ids() -> Iterable[str]:
        for number in range(5):
            limiter.spend("Orders", "ada")
            limiter.reload(LIMITS)
            yield f"{number + 10}"

    assert limiter.spend_each("Orders", ids()).allowed.all()
    assert limiter.check("Orders", "ada", 0).remaining == 0


def test_ids_that_raise_spend_nothing(limiter: Limiter) -> None:
    def ids() -> Iterable[str]:
        yield "ada"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        limiter.spend_each("Orders", ids())
    assert len(limiter) == 0


def test_addresses_are_ids_as_anywhere(limiter: Limiter) -> None:
    ids = [ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:DB8::1")]
    assert [decision.id for decision in limiter.spend_each("Orders", ids)] == [
        "192.0.2.1",
        "2001:db8::1",
    ]
