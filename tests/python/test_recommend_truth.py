"""Ordinary people are spared by a recommended limit, and fast attackers are stopped."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from truth import NAMES, Traffic, day, share_denied, twice

from penstock import Limit, Limits
from penstock.simulate import Trace, recommend, simulate

if TYPE_CHECKING:
    from penstock.simulate.recommendation import Recommendation

FAST = "CDGHI"
"""The days with attackers that are faster than anyone else."""


@cache
def trace_of(name: str) -> Trace:
    return day(name)


@cache
def recommended(name: str, period: str = "1m") -> Recommendation:
    return recommend(trace_of(name), period)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "period", ["1m", "1h", *(pytest.param(each, marks=pytest.mark.slow) for each in ("10s", "15m"))]
)
def test_people_are_spared_on_the_same_day_played_twice(name: str, period: str) -> None:
    both = twice(trace_of(name))
    allowed = simulate(recommended(name, period).limit, both).allowed
    assert share_denied(both, allowed, "person") <= 0.001
    if name in FAST and period != "10s":
        assert share_denied(both, allowed, "bad") >= 0.9


@pytest.mark.parametrize(
    ("name", "far"),
    [
        ("A", 0), ("B", 0), ("C", 2), ("D", 5), ("E", 4), ("F", 0), ("G", 1), ("H", 4), ("I", 1),
        ("J", 0),
    ],
)  # fmt: skip
def test_clients_beyond_a_gap_are_named_with_what_they_lose(name: str, far: int) -> None:
    found = recommended(name)
    table = found.far()
    assert len(table) == far
    assert not any(id.startswith("person") for id in table["id"])
    shares = {row["id"]: row["denied_share"] for row in found.denied_clients().rows()}
    for row in table.rows():
        assert row["denied_share"] == shares[row["id"]]
        assert row["id"] in found.explain()
        assert row["busiest_minute"] > 3 * found.chosen.count


def test_what_no_limit_for_one_client_stops_is_said() -> None:
    assert re.search(
        r"5,\d\d\d of 8,000 clients sent at most 4 requests", recommended("B").explain()
    )
    for name, clients in (("A", 3200), ("J", 2000)):
        (sentence,) = recommended(name).concentration()
        assert f"of {clients:,} clients sent 9" in sentence


@pytest.mark.parametrize("period", ["15m", "1h"])
def test_many_that_send_little_do_not_make_the_limit_strict_for_people(period: str) -> None:
    made = Traffic(1)
    made.people()
    for number in range(20_000):
        made.add(f"bad-{number}", made.random.random(3) * 86_400)
    trace = made.trace()
    allowed = simulate(recommend(trace, period).limit, trace).allowed
    assert share_denied(trace, allowed, "person") <= 0.001


def test_the_few_that_the_percentile_leaves_are_spared_if_they_send_much() -> None:
    made = Traffic(9)
    made.people(1500, tail=1.3)
    trace = made.trace()
    found = recommend(trace, "1h")
    assert share_denied(trace, simulate(found.limit, trace).allowed, "person") <= 0.001
    stricter = simulate(found.choose(found.row - 1).limit, trace).allowed
    assert share_denied(trace, stricter, "person") > 0.001


def test_a_limit_below_a_gap_is_among_those_to_choose() -> None:
    # Too many beyond the gap to be an exception: it is not chosen.
    made = Traffic(2)
    made.people(1000)
    for number in range(400):
        made.steady(f"bad-{number}", 5, 30_000, 600)
    trace = made.trace()
    found = recommend(trace)
    assert share_denied(trace, simulate(found.limit, trace).allowed, "bad") < 0.01
    stricter = found.choose(1).limit
    allowed = simulate(stricter, trace).allowed
    assert share_denied(trace, allowed, "person") <= 0.001
    assert share_denied(trace, allowed, "bad") > 0.9


def test_a_protected_crowd_is_not_denied_anything() -> None:
    trace = trace_of("E")
    assert share_denied(trace, simulate(recommended("E").limit, trace).allowed, "crowd") > 0.5
    found = recommend(trace, "1m", protect=["crowd-office-*"])
    allowed = simulate(found.limit, trace).allowed
    assert share_denied(trace, allowed, "crowd") == 0
    assert share_denied(trace, allowed, "bad") > 0.7
    assert {id.partition("-")[0] for id in found.far()["id"]} == {"bad"}
    assert recommend(trace, protect=["unknown"]).not_found == ("unknown",)


@pytest.mark.parametrize(
    "limit",
    [
        Limit.leaky_bucket(size=1, drip_rate="1m"),
        Limit.fixed_window(count=1, period="1m"),
        Limit.fixed_rate_window(count=1, period="1m"),
        Limits.parse("A: {count: 1, period: 1m, anchor: aligned, phase: per-key, "
                     "algorithm: fixed-window}"),
    ],
    ids=["leaky bucket", "fixed window", "fixed-rate window", "window with its own phase"],
)  # fmt: skip
def test_each_algorithm_spares_people_and_stops_attackers(limit: Limit | Limits) -> None:
    trace = trace_of("H")
    allowed = simulate(recommend(trace, limits=limit).limit, trace, name="A").allowed
    assert share_denied(trace, allowed, "person") <= 0.001
    assert share_denied(trace, allowed, "bad") > 0.9


def test_clients_are_named_by_network_and_pattern() -> None:
    ids = ["192.0.2.1", "192.0.2.9", "198.51.100.7", "2001:db8::"]
    times = np.sort(np.arange(40) * 25.0)
    trace = Trace(times, [ids[index % 4] for index in range(40)])
    for name, count in (
        ("192.0.2.0/24", 20), ("192.0.2.*", 20), ("2001:db8::/32", 10), ("2001:DB8::5", 10),
    ):  # fmt: skip
        assert recommend(trace, exclude=[name]).left_out == count
    with pytest.raises(KeyError, match=r"203\.0"):
        recommend(trace, exclude=["203.0.113.0/24"])
    with pytest.raises(TypeError, match="list of ids"):
        recommend(trace, protect="192.0.2.1")


def test_a_shared_bucket_suffices_for_its_busiest_period() -> None:
    found = recommend(Trace(trace_of("H").times, unit="ns"))
    assert len(found.denied_clients()) == len(found.far()) == 0
    found.plot()


def connections(seed: int) -> Trace:
    """Return requests with durations: of people, and of a client that never ends."""
    made = Traffic(seed)
    made.people(400)
    made.steady("bad-0", 2, 50_000, 600)
    trace = made.trace()
    lasts = made.random.lognormal(-1.5, 0.7, len(trace))
    is_bad = np.array([str(id).startswith("bad") for id in np.asarray(trace.ids)])
    lasts[is_bad] = 60
    return Trace(trace.times, trace.ids, unit="ns", durations=lasts)


@pytest.mark.parametrize("seed", [1, 2])
def test_slots_suffice_for_all_but_the_clients_that_hold_many(seed: int) -> None:
    trace = connections(seed)
    everything = simulate(Limit.in_flight(10_000), trace).by_client()
    most = dict(zip(everything["id"], everything["most_in_flight"], strict=True))
    found = recommend(trace, limits=Limit.in_flight(1))
    assert found.limit == Limit.in_flight(max(n for id, n in most.items() if id != "bad-0"))
    assert found.far()["id"] == ["bad-0"]
    assert found.far()["most_in_flight"] == [most["bad-0"]]
    assert found.far()["denied_share"][0] > 0.5
    assert len(found.denied_clients()) == 1
    said = found.explain()
    assert "in flight" in said
    assert "period" not in said
    other = recommend(trace, limits=Limit.in_flight(1, lease="5m"))
    assert other.limit == Limit.in_flight(found.limit.max_cost, lease="5m")


def test_slots_need_durations_and_have_no_period() -> None:
    trace = Trace([0.0, 1.0], ["a", "b"])
    slots = Limit.in_flight(1)
    with pytest.raises(ValueError, match="durations="):
        recommend(trace, limits=slots)
    with pytest.raises(ValueError, match="omit period="):
        recommend(trace, "1m", limits=slots)
    many = Trace(np.zeros(20_000, np.int64), durations=np.ones(20_000))
    with pytest.raises(ValueError, match=r"16,?383"):
        recommend(many, limits=slots)
