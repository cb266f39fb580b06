"""A recommendation is derived from what clients need, and says whom each limit denies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from core_limits import EACH
from hypothesis import given, settings

import penstock
from penstock import Limit
from penstock._core import limit_shapes
from penstock.messages import explain_limit
from penstock.simulate import Trace, recommend, simulate, traffic

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
# Without their phase, which shorter periods would not have.
MODELS = {
    name: Limit.from_fields(
        name, {key: value for key, value in EACH[name].fields().items() if key != "phase"}
    )
    for name, (_, _, period) in limit_shapes().items()
    if period
}

events = st.lists(
    st.tuples(st.integers(0, 20).map(lambda tenths: tenths * SECOND // 10), st.sampled_from("abc")),
    min_size=1,
    max_size=16,
)


def trace_of(events: list[tuple[int, str]], costs: Any = None) -> Trace:
    times = np.cumsum([wait for wait, _ in events], dtype=np.int64)
    # The last event is late enough for the period, and of a client that needs nothing else.
    times, ids = np.append(times, times[-1] + 10 * SECOND), [*(id for _, id in events), "last"]
    return Trace(times, ids, None if costs is None else [*costs, 1])


def bursts(size: int, every: float, length: float, clients: int, prefix: str = "client") -> Trace:
    """Return clients that send several requests at once, again and again."""
    times = np.repeat(np.arange(0.0, length, every), size * clients)
    return Trace(times, [f"{prefix}-{number % clients + 1}" for number in range(len(times))])


@settings(max_examples=50)
@given(events, st.data(), st.sampled_from(["token-bucket", "fixed-window"]))
def test_the_largest_candidate_suffices_for_everyone(
    events: list[tuple[int, str]], data: st.DataObject, algorithm: str
) -> None:
    costs = data.draw(st.lists(st.integers(0, 4), min_size=len(events), max_size=len(events)))
    for trace in (trace_of(events), trace_of(events, costs)):
        found = recommend(trace, "1s", limits=MODELS[algorithm])
        assert found.candidates[-1].suffices_for == "everyone"
        assert simulate(found.candidates[-1].limit, trace).summary().denied == 0
        for row, each in enumerate(found.candidates, 1):
            fits = trace.costs is None or trace.costs.max() <= each.limit.max_cost
            if fits:
                assert each.denied.sum() == simulate(each.limit, trace).summary().denied
            assert sum(found.choose(row).denied_clients()["denied"]) == each.denied.sum()


@pytest.mark.parametrize("is_costed", [False, True])
def test_busiest_periods_of_a_long_trace_equal_a_direct_count(*, is_costed: bool) -> None:
    random = np.random.default_rng(3)
    events, clients = 300_000, 40
    times = np.sort(random.integers(5 * SECOND, 900 * SECOND, events))
    codes = random.integers(0, clients, events)
    costs = random.integers(0, 5, events) if is_costed else np.ones(events, np.int64)
    trace = Trace(times, codes, costs if is_costed else None, unit="ns")
    spent = np.zeros((clients, 900 // 7 + 1), np.int64)
    np.add.at(spent, (codes, times // (7 * SECOND)), costs)
    most = spent.max(axis=1)[[int(id) for id in trace.clients]]
    assert recommend(trace, "7s").candidates[0].most.tolist() == most.tolist()


def is_written_by_people(number: int) -> bool:
    digits = str(number).rstrip("0")
    return digits in {*"1234568", "12", "15", "25", "75"}


@given(st.integers(1, 10**6))
def test_numbers_are_written_by_people_and_never_smaller(number: int) -> None:
    trace = Trace([0.0, 8.0], costs=[number, 1])
    fields = recommend(trace, "1s", limits=MODELS["leaky-bucket"]).limit.fields()
    burst, count = int(fields["size"]), int(fields["drip_size"])
    for size in (burst, count):
        assert number <= size <= max(1.34 * number, number + 1)
    assert is_written_by_people(burst)
    assert count == (number if number <= 100 else burst)


def test_a_limits_file_has_numbers_that_people_write() -> None:
    trace = traffic.poisson(1, "2h", clients=40, seed=5)
    for period in ("10s", "1m", "5m", "15m"):
        found = recommend(trace, period)
        for each in found.candidates:
            fields = each.limit.fields()
            assert fields["period"] == period
            assert is_written_by_people(int(fields["burst"]))
        count, burst = found.limit.fields()["count"], found.limit.fields()["burst"]
        lines = ["Requests:", f"  burst: {burst}", f"  count: {count}", f"  period: {period}"]
        assert found.yaml().splitlines() == lines


def test_a_recommendation_explains_itself() -> None:
    people = traffic.poisson(2, "10m", clients=30, seed=1)
    trace = traffic.mix(people, traffic.poisson(25, "1m", 2, skew=0, start=60, prefix="bot"))
    found = recommend(trace)
    text = found.explain()
    assert explain_limit(found.limit) in text
    assert found.far()["id"] == ["bot-1", "bot-2"]
    for row in found.far().rows():
        assert row["event_share"] == pytest.approx(750 / len(trace), rel=0.1)
        assert row["busiest_minute"] > 3 * found.chosen.count
        assert row["id"] in text
    assert "It denies nothing of 30 other clients." in text
    assert "clients sent" in text
    assert repr(found).startswith("<Recommendation Limit.token_bucket(")
    table = found.table()
    assert 2 <= len(table) <= 7
    assert table["denied_share"] == sorted(table["denied_share"], reverse=True)
    assert table["suffices_for"][found.row - 1] == "all others"
    assert table["loses_most"][found.row - 1].count("bot-") == 2
    assert table["loses_most"][-1] == "no client"
    last = found.choose(len(table))
    assert last.limit == found.candidates[-1].limit
    assert len(last.denied_clients()) == 0
    for number in (0, len(table) + 1):
        with pytest.raises(ValueError, match="row must be 1 to"):
            found.choose(number)


def test_concentration_is_reported_both_ways() -> None:
    guesses = bursts(2, 3600, 3600, clients=60, prefix="bot")
    trace = traffic.mix(guesses, traffic.poisson(1, "1h", clients=20, seed=2))
    first, second = recommend(trace).concentration()
    assert "of 80 clients sent" in first
    assert "60 of 80 clients sent at most 2 requests: no limit for each client" in second
    assert recommend(traffic.poisson(1, "1h")).concentration() == []


@pytest.mark.parametrize("algorithm", MODELS)
def test_each_algorithm_is_recommended_and_drawn(algorithm: str, tmp_path: Path) -> None:
    trace = bursts(7, 60, 1800, clients=3)
    found = recommend(trace, "2m", limits=MODELS[algorithm])
    assert found.limit.algorithm == algorithm
    assert simulate(found.limit, trace).denied_share == 0
    assert penstock.Limits.parse(found.yaml("Searches"))["Searches"] == found.limit
    found.plot().savefig(tmp_path / "out.svg")
    page = simulate("1/second", trace).report(tmp_path / "out.html", recommendation=found)
    for file in (tmp_path / "out.svg", page):
        assert "tokens in the busiest 2 minutes" in file.read_text(encoding="utf-8")


def test_a_calendar_window_keeps_its_period_and_zone() -> None:
    limits = penstock.Limits.parse("Calls: 1 per calendar day, Europe/Berlin")
    trace = traffic.poisson(0.002, "10days", clients=1, seed=1)
    found = recommend(trace, limits=limits)
    days = (found.limit.period, found.limit.zone)
    assert (found.limit.algorithm, *days) == ("calendar-window", "day", "Europe/Berlin")
    assert simulate({"Calls": found.limit}, trace).summary().denied == 0
    less = Limit.calendar_window(
        count=int(found.limit.fields()["count"]) * 3 // 4, period="day", zone="Europe/Berlin"
    )
    assert simulate({"Calls": less}, trace).summary().denied > 0
    with pytest.raises(ValueError, match="omit period="):
        recommend(trace, "1h", limits=limits)


@pytest.mark.parametrize(
    "text",
    [
        "{burst: 4, count: 4, period: 10m}",
        "{algorithm: leaky-bucket, size: 4, drip_size: 4, drip_rate: 10m}",
        "{algorithm: fixed-window, count: 4, period: 10m}",
    ],
)
def test_period_is_that_of_the_limit_unless_others_are_passed(text: str) -> None:
    limits = penstock.Limits.parse(f"Pages: {text}")
    trace = traffic.poisson(2, "5h", clients=5, seed=1)

    def periods(**options: Any) -> list[str]:
        found = recommend(trace, **options)
        return list(dict.fromkeys(each.unit for each in found.candidates))

    assert periods(limits=limits) == ["busiest 10 minutes"]
    assert periods(limits=limits, period="1h") == ["busiest hour"]
    assert periods() == ["busiest minute"]
    assert periods(period=["1s", "1m"]) == ["busiest second", "busiest minute"]


def test_a_period_is_refused_if_the_trace_does_not_show_a_refill() -> None:
    trace = traffic.poisson(0.02, "1h", clients=5, seed=1)
    for period, shown in (("1h", "60 min|1 h"), ("1d", "24 h")):
        message = f"({shown}), but the events cover 58.* within a quarter"
        with pytest.raises(ValueError, match=message):
            recommend(trace, period)
    found = recommend(trace, ["1m", "1d"])
    assert [each.unit for each in found.candidates] == ["busiest minute"]
    assert any("the events cover" in sentence for sentence in found.refused)
    assert found.refused[0] in found.explain()
    # The bucket of one burst would refill slowly, although the period is short enough.
    once = Trace([0.0] * 50 + [3600.0], ["ada"] * 50 + ["bob"])
    assert int(recommend(once, "1m").limit.fields()["burst"]) <= 50


def test_costs_in_bytes_are_recommended_for_every_period() -> None:
    random = np.random.default_rng(1)
    times = np.sort(random.uniform(0, 86_400 * 5, 4_000))
    costs = random.integers(100, 50_000, 4_000)
    costs[77] = 90_000_000
    trace = Trace(times, random.integers(0, 40, 4_000), costs)
    by_period = [recommend(trace, period) for period in ("10s", "1m", "1h", "1d")]
    for found in by_period:
        assert found.candidates[-1].denied.sum() <= 1
        assert len(found.far()) == 1
    with pytest.raises(ValueError, match=r"1048575.*token bucket"):
        recommend(trace, "1h", limits=MODELS["fixed-window"], protect=by_period[-1].far()["id"])


def test_a_single_expensive_event_is_denied_by_strict_candidates_only() -> None:
    trace = Trace(np.arange(60.0), [index % 12 for index in range(60)], [500, *[1] * 59])
    found = recommend(trace, "10s")
    assert found.far()["id"] == ["0"]
    assert found.denied_clients()["denied"] == [1]


def test_clients_with_overrides_keep_them() -> None:
    limits = penstock.Limits.parse(
        "Calls: {burst: 1, count: 1, period: 1m}",
        "- Calls: {burst: 900, count: 900, period: 1m, ids: [importer-1]}",
    )
    people = bursts(4, 60, 600, clients=5)
    trace = traffic.mix(people, bursts(300, 60, 600, clients=1, prefix="importer"))
    found = recommend(trace, limits=limits)
    assert found.limit == Limit.token_bucket(burst=4, count=4, period="1m")
    assert found.left_out == 3000


def test_invalid_arguments_are_refused() -> None:
    minute = Trace([0.0, 60.0])
    with pytest.raises(ValueError, match="at least one event"):
        recommend([])
    wrongs: list[Any] = [-0.1, 100.1, float("nan"), "99", None, True]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="percentile must be a number from 0 to 100"):
            recommend(minute, percentile=wrong)
    with pytest.raises(ValueError, match="found"):
        recommend([60.0, 0.0], "1s")
    with pytest.raises(ValueError, match="1 to 7 values"):
        recommend(minute, ["1s"] * 8)
    with pytest.raises(KeyError, match="hopper"):
        recommend(minute, exclude=["hopper"])
