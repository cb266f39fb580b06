"""A recommendation is the smallest limit that denies at most a given share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import penstock
from penstock.messages import explain_limit
from penstock.simulate import Trace, recommend, simulate, traffic
from penstock.simulate.search import SHAPES
from penstock.types import Algorithm

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000

waits = st.lists(
    st.tuples(st.integers(0, 20).map(lambda tenths: tenths * SECOND // 10), st.sampled_from("abc")),
    min_size=1,
    max_size=16,
)


def trace_of(events: list[tuple[int, str]], costs: Any = None) -> Trace:
    times = np.cumsum([wait for wait, _ in events], dtype=np.int64)
    return Trace(times, [id for _, id in events], costs)


def denied(trace: Trace, burst: int, count: int) -> int:
    limit = penstock.Limit.token_bucket(burst=burst, count=count, period=1)
    return simulate(limit, trace).summary().denied


@given(waits, st.integers(1, 8), st.integers(1, 8))
def test_a_larger_burst_or_count_never_denies_more(
    events: list[tuple[int, str]], burst: int, count: int
) -> None:
    trace = trace_of(events)
    fewer = denied(trace, burst, count)
    assert denied(trace, burst + 1, count) <= fewer
    assert denied(trace, burst, count + 1) <= fewer


def test_if_costs_differ_a_larger_burst_may_deny_more() -> None:
    trace = Trace([0.0, 0.0, 0.0, 0.0], costs=[3, 1, 1, 1])
    # The larger bucket admits the first event and then no other.
    limits = {
        burst: penstock.Limit.token_bucket(burst=burst, count=1, period=3600) for burst in (3, 4)
    }
    assert simulate(limits[3], trace).summary().denied == 3
    assert simulate(limits[4], trace).summary().denied == 2
    other = Trace([0.0, 0.0, 1.0, 1.0, 1.0], costs=[1, 3, 1, 1, 1])
    assert [denied(other, burst, 1) for burst in (3, 4)] == [1, 2]


@settings(max_examples=25)
@given(waits, st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_no_smaller_limit_suffices(events: list[tuple[int, str]], share: float) -> None:
    trace = trace_of(events)
    found = recommend(trace, share, period=1)
    may = int(share * len(trace))
    assert found.is_smallest
    assert found.simulation.summary().denied <= may
    worst = found.burst + found.count
    for count in range(1, worst):
        for burst in range(1, worst - count):
            assert denied(trace, burst, count) > may
    for row in found.curve.rows():
        assert denied(trace, row["burst"], row["count"]) == round(row["denied_share"] * len(trace))
        assert row["burst"] == 1 or denied(trace, row["burst"] - 1, row["count"]) > may


@settings(max_examples=25)
@given(waits, st.data())
def test_different_costs_are_considered(events: list[tuple[int, str]], data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 4), min_size=len(events), max_size=len(events)))
    trace = trace_of(events, costs)
    for share in (0.0, 0.2):
        found = recommend(trace, share, period=1)
        assert found.denied_share <= share
        assert found.burst >= max(costs)
    strict = recommend(trace, 0, period=1)
    assert strict.is_smallest
    assert strict.denied_share == 0
    min_burst = max(*costs, 1)
    for count in range(1, strict.burst + strict.count):
        for burst in range(min_burst, strict.burst + strict.count - count):
            assert denied(trace, burst, count) > 0


def test_recommendation_explains_itself() -> None:
    people = traffic.poisson(2, "10m", clients=30, seed=1)
    trace = traffic.mix(people, traffic.attack(5, "1m", bots=2, start=60))
    found = recommend(trace, max_denied=0.01)
    assert found.limit.period == 60
    assert found.denied_share <= 0.01
    text = found.explain()
    assert explain_limit(found.limit) in text
    others = len(trace.clients) - len(found.unusual)
    assert f"{found.summary.clients_denied} of {others} other clients" in text
    assert found.hit["denied"] == [row for row in found.hit["denied"] if row > 0]
    assert sum(found.hit["denied"]) == found.simulation.summary().denied
    html = found._repr_html_()
    assert "Burst against count" in html
    assert repr(found).startswith("<Recommendation Limit.token_bucket(")
    counts, bursts = found.curve["count"], found.curve["burst"]
    assert counts == sorted(counts)
    assert bursts == sorted(bursts, reverse=True)


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "leaky-bucket", "fixed-window", "fixed-rate-window"]
)
def test_each_algorithm_is_recommended_and_drawn(algorithm: str, tmp_path: Path) -> None:
    trace = traffic.bursts(7, "1m", "30m", clients=3, seed=1)
    found = recommend(trace, 0, "2m", algorithm=algorithm)
    assert (found.limit.algorithm, found.period_ns) == (algorithm, 120 * 10**9)
    assert simulate(found.limit, trace).denied_share == 0
    assert penstock.Limits.parse(found.yaml("Searches"))["Searches"] == found.limit
    assert found.explain()
    found.plot().savefig(tmp_path / "out.svg")
    page = simulate("1/second", trace).report(tmp_path / "out.html", recommendation=found)
    for file in (tmp_path / "out.svg", page):
        assert "tokens per 2 minutes" in file.read_text(encoding="utf-8")


def test_a_limit_of_each_algorithm_can_be_fitted() -> None:
    assert {*SHAPES, "unlimited"} == set(get_args(Algorithm))


def test_a_calendar_window_keeps_its_period_and_zone() -> None:
    limits = penstock.Limits.parse("Calls: 1 per calendar day, Europe/Berlin")
    trace = traffic.poisson(0.002, "10days", clients=1, seed=1)
    found = recommend(trace, 0, limits=limits, holdout=0)
    days = (found.limit.period, found.limit.zone)
    assert (found.limit.algorithm, *days) == ("calendar-window", "day", "Europe/Berlin")
    assert simulate({"Calls": found.limit}, trace).summary().denied == 0
    less = penstock.Limit.calendar_window(
        count=found.fitted.count - 1, period="day", zone="Europe/Berlin"
    )
    assert simulate({"Calls": less}, trace).summary().denied > 0
    for options in ({"limits": limits, "period": "1h"}, {"algorithm": "calendar-window"}):
        with pytest.raises(ValueError, match="a calendar window keeps its period"):
            recommend(trace, 0, **options)


@pytest.mark.parametrize(
    "text",
    [
        "{burst: 4, count: 4, period: 10m}",
        "{algorithm: leaky-bucket, size: 4, drip_size: 4, drip_rate: 10m}",
        "{algorithm: fixed-window, count: 4, period: 10m}",
    ],
)
def test_period_is_that_of_the_limit_unless_another_is_passed(text: str) -> None:
    limits = penstock.Limits.parse(f"Pages: {text}")
    trace = traffic.poisson(2, "1h", clients=5, seed=1)
    assert recommend(trace, limits=limits).period_ns == 600 * 10**9
    assert recommend(trace, period="1h", limits=limits).period_ns == 3600 * 10**9
    assert recommend(trace).period_ns == 60 * 10**9


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one event"):
        recommend([])
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            recommend([0.0], share)
    with pytest.raises(ValueError, match="found"):
        recommend([1.0, 0.0])
    assert recommend([1.0, 0.0], sort=True).burst == 2


@pytest.mark.parametrize("share", ["0.1", None, True])
def test_share_must_be_a_number(share: Any) -> None:
    with pytest.raises(TypeError, match="max_denied"):
        recommend([0.0], max_denied=share)
