"""Results of simulations: summaries, tables, bins, levels, and data frames."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given

import penstock
from penstock.simulate import Simulation, Table, Trace, compare, recommend, simulate, traffic
from penstock.simulate.format import format_value

SECOND = 1_000_000_000
EVIL = "<script>alert('x')</script>"

event = st.tuples(
    st.one_of(st.just(0), st.integers(0, 3 * SECOND), st.integers(0, 90 * SECOND)),
    st.sampled_from(["ada", "grace", "alan"]),
    st.integers(0, 3),
)


def check_totals(simulation: Simulation, buckets: Any) -> None:
    """Compare the totals of a simulation with direct counts over its events."""
    costs: Any = simulation.trace.costs
    times, allowed = simulation.trace.times, simulation.allowed
    admitted, tokens = times[allowed], np.concatenate([[0], np.cumsum(costs[allowed])])
    per_client = np.bincount(buckets)
    denied = np.bincount(buckets[~allowed], minlength=len(per_client))
    summary = simulation.summary()
    assert (summary.events, summary.allowed) == (len(times), len(admitted))
    assert summary.denied == denied.sum()
    assert (summary.clients, summary.clients_denied) == ((per_client > 0).sum(), (denied > 0).sum())
    assert summary.longest_wait == simulation.retry_after_ns[~allowed].max(initial=0) / SECOND
    for width, most in (
        (1, summary.most_at_once),
        (SECOND, summary.most_in_second),
        (60 * SECOND, summary.most_in_minute),
    ):
        within = tokens[np.searchsorted(admitted, admitted + width)] - tokens[:-1]
        assert most == within.max(initial=0)
    table = simulation.by_client()
    assert table["denied"] == sorted(table["denied"], reverse=True)
    pairs = zip(per_client[per_client > 0].tolist(), denied[per_client > 0].tolist(), strict=True)
    assert sorted(zip(table["events"], table["denied"], strict=True)) == sorted(pairs)


@given(st.lists(event, max_size=30))
def test_summary_equals_a_direct_count(events: list[tuple[int, str, int]]) -> None:
    times = np.cumsum([wait for wait, *_ in events], dtype=np.int64)
    ids, costs = np.array([id for _, id, _ in events], str), [cost for *_, cost in events]
    simulation = simulate("3/second", times, ids, costs, unit="ns")
    check_totals(simulation, np.unique(ids, return_inverse=True)[1])
    is_denied, table = ~simulation.allowed, simulation.by_client()
    for id, denied in zip(table["id"], table["denied"], strict=True):
        assert denied == is_denied[ids == id].sum()


@pytest.mark.parametrize(("id_format", "per_bucket"), [("", 1), (", id: ipAddress", 2)])
def test_summary_of_many_events_equals_a_direct_count(id_format: str, per_bucket: int) -> None:
    random = np.random.default_rng(7)
    events, clients = 300_000, 500
    times = np.cumsum(random.integers(0, 2, events) * random.integers(0, SECOND // 50, events))
    codes, costs = random.integers(0, clients, events), random.integers(0, 4, events)
    limits = penstock.Limits.parse(f"Site: {{burst: 40, count: 40, period: 1m{id_format}}}")
    # Two spellings of each address, which share a bucket if ids are addresses.
    names = [f"2001:{'db8' if index % 2 else 'DB8'}::{index // 2:x}" for index in range(clients)]
    simulation = simulate(limits, Trace(times, np.array(names)[codes], costs, unit="ns"))
    check_totals(simulation, codes // per_bucket)
    summary, bins = simulation.summary(), simulation.bins()
    assert max(simulation.by_client()["longest_wait"]) == summary.longest_wait > 0
    assert sum(simulation.waits().values()) == summary.denied
    assert bins.arrivals.sum() == events
    assert bins.denied.sum() == summary.denied


@pytest.fixture
def simulation() -> Any:
    trace = Trace([0.0, 0.1, 0.2], [EVIL, "grace", EVIL], [1, 1, 2], name=EVIL)
    return simulate("2/minute", trace)


def test_simulation_converts_to_other_libraries(simulation: Any) -> None:
    expected = {
        "time_ns": [0, SECOND // 10, SECOND // 5],
        "id": [EVIL, "grace", EVIL],
        "cost": [1, 1, 2],
        "allowed": [True, True, False],
        "remaining": [1, 1, 1],
        "retry_after_ns": [0, 0, 29_800_000_000],
        "reset_after_ns": [30 * SECOND, 30 * SECOND, 29_800_000_000],
    }
    assert {name: column.tolist() for name, column in simulation.to_dict().items()} == expected
    frame = simulation.to_pandas()
    assert isinstance(frame["id"].dtype, pd.CategoricalDtype)
    times = [pd.Timedelta(ns, unit="ns") for ns in (0, SECOND // 10, SECOND // 5)]
    in_frames = {"time": times, **{name: expected[name] for name in list(expected)[1:]}}
    assert frame.to_dict("list") == in_frames
    assert pl.DataFrame(simulation.to_dict()).to_dict(as_series=False) == expected
    plain = simulate("2/minute", [0.0]).to_pandas()
    assert list(plain.columns) == ["time", *list(expected)[3:]]
    dated = simulate("2/minute", np.array(["2026-11-20T10:00"], "datetime64[ns]"))
    assert dated.to_pandas()["time"][0] == pd.Timestamp("2026-11-20T10:00")


def test_a_trace_shows_its_first_events_and_converts() -> None:
    times = np.array([1_700_000_000, 1_700_000_001], np.int64) * SECOND
    trace = Trace(times, ["ada", "grace"], [1, 2000], durations=[0.25, 90.0])
    assert repr(trace.head(1)).splitlines() == [
        "First events",
        "time                 client  cost  duration",
        "2023-11-14T22:13:20     ada     1    0.25 s",
    ]
    assert trace.head()["cost"] == [1, 2000]
    frame = trace.to_pandas()
    assert frame.to_dict("list") == {
        "time": [pd.Timestamp(time) for time in times],
        "id": ["ada", "grace"],
        "cost": [1, 2000],
        "duration": [pd.Timedelta("250ms"), pd.Timedelta("90s")],
    }
    assert isinstance(frame["id"].dtype, pd.CategoricalDtype)
    assert [*Trace([0.0]).to_pandas().columns] == ["time"]
    assert len(Trace([]).head()) == len(Trace([]).to_pandas()) == 0
    durations = simulate("3000/minute", trace).to_pandas()["duration"]
    assert durations.tolist() == frame["duration"].tolist()


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own


def test_results_can_be_pickled() -> None:
    trace = Trace([0.0, 0.1, 0.2], ["192.0.2.1"] * 3)
    limits = penstock.Limits.parse("Pages: {burst: 1, count: 1, period: 1m, id: ipAddress}")
    by_address = Trace(trace.times, ["2001:db8::1", "2001:db8::2", "192.0.2.1"], unit="ns")
    for made in (
        simulate("1/minute", trace),
        simulate(limits, by_address),
    ):
        made.summary()
        again = pickled(made)
        assert again.summary() == made.summary()
        assert repr(again.by_client()) == repr(made.by_client())
        assert again.to_pandas().equals(made.to_pandas())
    again = pickled(trace)
    assert again.head().to_dict() == trace.head().to_dict()
    compared = pickled(compare(["1/minute", "2/minute"], trace))
    assert compared["denied"] == [2, 1]
    found = recommend(Trace([0.0, 60.0, 300.0]))
    again = pickled(found)
    assert (again.limit, repr(again.table())) == (found.limit, repr(found.table()))


def test_a_share_below_one_is_not_shown_as_all() -> None:
    assert format_value("denied_share", 4_999 / 5_000) == "99.9 %"
    assert format_value("denied_share", 1.0) == "100 %"


def test_notebook_output_escapes_ids(simulation: Any) -> None:
    comparison = compare({EVIL: "2/second"}, simulation.trace)
    for shown in (simulation.by_client(), comparison):
        html = shown._repr_html_()
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_table_prints_in_a_terminal() -> None:
    table = Table(
        "Clients", {"id": ["ada", "a\nb"], "denied_share": [0.5, 0.0], "longest_wait": [90.0, 0.0]}
    )
    assert repr(table).splitlines() == [
        "Clients",
        "client  denied share  longest wait",
        "ada             50 %       1.5 min",
        "a\ufffdb              0 %           0 s",
    ]
    assert "and 5 more" in repr(Table("Many", {"n": range(25)}))
    assert table.to_pandas()["denied_share"].tolist() == [0.5, 0.0]
    with pytest.raises(KeyError, match="id, denied_share"):
        table["wait"]


def test_limits_are_compared_side_by_side() -> None:
    trace = Trace(np.repeat(np.arange(10.0), 10), ["ada", "grace"] * 50)
    table = compare({"today": "2/second", "proposal": "5 per second"}, trace)
    assert table["limit"] == ["today", "proposal"]
    assert table["denied_share"] == [0.6, 0.0]
    assert table["clients_denied"] == [2, 0]
    assert table.simulations["today"].summary().denied == table["denied"][0]
    with pytest.raises(ValueError, match="at least one"):
        compare({}, trace)
    with pytest.raises(penstock.LimitError) as caught:
        compare({"today": "2/second", "odd": "often"}, trace)
    assert caught.value.__notes__ == ["this is 'odd' of limits"]
    unlabelled: Any = "1/second"
    with pytest.raises(TypeError, match="limits"):
        compare(unlabelled, trace)


def test_limits_of_a_list_are_labelled_as_given() -> None:
    limits = [penstock.Limit.parse("5/hour"), penstock.Limit.fixed_window(count=5, period=3600)]
    shown = compare(["20/minute, burst 40", *limits], [0.0])["limit"]
    assert shown == ["20/minute, burst 40", "5 per hour", "5 per hour (fixed window)"]


def test_grid_contains_every_combination_in_order() -> None:
    trace = traffic.poisson(20, "10s", clients=3, seed=4)
    grid = {"burst": np.array([1, 5]), "count": [1, 2], "period": np.float64(1)}
    table = compare(grid, trace)
    assert [table["burst"], table["count"]] == [[1, 1, 5, 5], [1, 2, 1, 2]]
    expected = [simulate(limit, trace).denied_share for limit in table.limits]
    assert table["denied_share"] == expected
    same = compare(table.limits, trace)
    assert same["denied_share"] == expected
    assert same["limit"][0] == "1 per second"
    windows = compare({"algorithm": ["fixed-window"], "count": [1, 9], "period": [1.0]}, trace)
    assert [limit.algorithm for limit in windows.limits] == ["fixed-window"] * 2


@pytest.mark.parametrize(
    ("error", "message", "grid"),
    [
        (ValueError, "at least one entry", {}),
        (ValueError, "at least one entry", []),
        (ValueError, "at least one entry", {"burst": [], "count": 1, "period": 1}),
        (ValueError, "algorithm must be token-bucket", {"algorithm": "sieve"}),
        (penstock.LimitError, "burst must be at least 1", {"burst": 0, "count": 1, "period": 1}),
        (TypeError, "count", {"burst": 1}),
        (TypeError, "found int 5 at position 1", ["1/second", 5]),
    ],
)
def test_invalid_grid_is_refused(error: type[Exception], message: str, grid: Any) -> None:
    with pytest.raises(error, match=message):
        compare(grid, [0.0])


def test_error_of_an_event_names_the_limit() -> None:
    with pytest.raises(penstock.CostTooHigh) as caught:
        compare(["3/second", "2/second"], Trace([0.0], costs=3))
    assert any("2/second" in note for note in caught.value.__notes__)


def test_trace_selects_by_time_and_by_client() -> None:
    trace = Trace([0.0, 0.5, 0.25, 1.0], ["ada", "grace", "ada", "ada"], name="t")
    assert not trace.is_sorted

    def shown(part: Trace) -> list[float]:
        return [time / SECOND for time in part.times.tolist()]

    assert shown(trace.sorted()) == [0, 0.25, 0.5, 1]
    assert shown(trace.between(0.25, 1.0)) == [0.5, 0.25]
    assert shown(trace.sorted().between(end="1970-01-01T00:00:00.5")) == [0, 0.25]
    assert shown(trace.between(2.0)) == []
    assert shown(trace.of("ada")[1:]) == [0.25, 1]
    assert trace.duration_ns == SECOND
    assert repr(trace) == "<Trace t: 4 events of 2 clients, 0 s to 1 s>"
    with pytest.raises(KeyError, match="no client 'alan'"):
        trace.of("alan")
    with pytest.raises(TypeError, match="between"):
        trace[0]
    with pytest.raises(ValueError, match="start must be a date"):
        trace.between("yesterday")


def test_instants_before_1971_are_shown_as_seconds() -> None:
    shown = [repr(Trace([seconds])) for seconds in (0.25, 86_400.123, 31_535_999.0, 31_536_000.0)]
    assert [each.removesuffix(">").rpartition(" to ")[2] for each in shown] == [
        "0.25 s", "86,400 s", "31,535,999 s", "1971-01-01T00:00:00",
    ]  # fmt: skip


def test_names_are_shortened_and_have_no_control_characters() -> None:
    trace = Trace([0.0], name="\x1b[2J\u202e" + "x" * 1000)
    for shown in (repr(trace), repr(simulate("1/second", trace))):
        assert "\ufffd[2J\ufffdxxx" in shown
        assert len(shown) < 200
        assert all(letter.isprintable() for letter in shown)


def test_changes_are_clients_denied_by_only_one_limit() -> None:
    ids = ["a", "a", "b", "b", "b", "c", "d", "d"]
    trace = Trace([0.0] * len(ids), ids)
    limits = penstock.Limits.parse(
        "Orders: {burst: 2, count: 1, period: 1m}",
        "- Orders: {burst: 1, count: 1, period: 1m, ids: [d]}",
    )
    table = compare({"strict": "1/minute", "kind": limits}, trace)
    assert list(table.changes("strict", "kind").rows()) == [
        {"id": "a", "denied_only_by": "strict", "events": 2, "denied": 1, "denied_share": 0.5}
    ]
    assert len(table.changes("kind", "kind")) == 0
    with pytest.raises(KeyError):
        table.changes("strict", "other")
