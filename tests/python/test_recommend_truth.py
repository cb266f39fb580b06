"""Recommended limits on traffic of known clients: attackers are stopped, and others are spared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from truth import DAY, Traffic, denied_shares

from penstock import Limit, LimitError, Limits
from penstock.simulate import Trace, recommend, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.simulate.recommend import Recommendation

SEEDS = [1, 2, 3]


def site(seed: int) -> Trace:
    """Return a day of a web site, with attackers of several kinds."""
    made = Traffic(seed)
    random = made.random
    made.people(1500, spread=random.uniform(0.5, 0.9), assets=int(random.integers(0, 6)))
    for people in (60, 25):
        made.office(people)
    made.importer(30, 600)
    made.steady("crawler", 1 / random.uniform(8, 20), 0, DAY)
    made.steady("scraper", random.uniform(3, 8), 30_000, 3_000)
    for begin in random.uniform(0, DAY - 1200, 4):
        made.steady("guesser", 2, begin, 1200)
    made.storm(random.uniform(5, 20), 50_000, random.uniform(60, 300))
    return made.trace()


def logins(seed: int) -> Trace:
    """Return a day of log-ins, most of which are of people who need one or two."""
    made = Traffic(seed)
    random = made.random
    for _ in range(1200):
        begin = random.normal(12, 4) * 3600
        made.add("person", begin + np.cumsum(random.exponential(15, 1 + random.poisson(0.3))))
    made.add("office", random.normal(9, 0.3, 60) * 3600, random.uniform(9, 17, 60) * 3600)
    for begin in random.uniform(0, DAY / 2, 30):
        made.steady("guesser", 1 / random.uniform(4, 10), begin, 9_000)
    made.steady("guesser", 3, 40_000, 2_000)
    return made.trace()


def api(seed: int) -> Trace:
    """Return a day of an API whose keys differ widely, with a batch and a retry storm."""
    made = Traffic(seed)
    for rate in made.random.lognormal(-4, 1.0, 40):
        made.steady("person", rate, 0, DAY)
    made.importer(100, 3600)
    made.storm(12, 30_000, 240, background=100)
    return made.trace()


def shares_of(
    shares: dict[str, float], *kinds: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([share for id, share in shares.items() if id.startswith(kinds)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("traffic", "stopped"),
    [(site, 0.6), (logins, 0.6), (api, 0.9)],
    ids=["site", "logins", "api"],
)
def test_attackers_are_stopped_and_others_are_spared(
    traffic: Callable[[int], Trace], stopped: float, seed: int
) -> None:
    trace = traffic(seed)
    found = recommend(trace)
    shares = denied_shares(found, trace)
    bad = shares_of(shares, "scraper", "guesser", "storm")
    # The slowest guesser still has most of its attempts denied.
    assert bad.min() > stopped
    assert shares_of(shares, "office", "importer", "crawler").max() < 0.05
    # All attackers are named, and no other client, unless a quarter of all requests are theirs.
    rows = {row["id"]: row for row in found.unusual.rows()}
    others = [rows[id] for id in rows if not id.startswith(("scraper", "guesser", "storm"))]
    assert len(rows) == len(bad) + len(others)
    assert all(row["event_share"] > 1 / 4 for row in others)
    people = np.array([shares[id] for id in shares if id.startswith("person") and id not in rows])
    assert people.mean() < 0.002
    assert (people > 0).mean() < 0.01
    fitted_to_all = recommend(trace, fit_all=True)
    assert fitted_to_all.count > 3 * found.count or fitted_to_all.burst > 3 * found.burst


def named(found: Recommendation, table: str) -> list[str]:
    ids: Iterable[str] = getattr(found, table)["id"]
    return list(ids)


def test_a_proposal_names_whom_it_was_not_fitted_to_and_whom_it_denies() -> None:
    trace = site(1)
    found = recommend(trace)
    said = found.explain()
    for row in found.unusual.rows():
        share = np.mean(trace.ids == row["id"])
        assert row["event_share"] == pytest.approx(share)
        assert f"{row['id']} makes {100 * share:.3g} % of all events" in said
        assert row["times_median"] > 10
        assert row["times_at_peak"] > 2
    assert "unlike the rest" in said
    strict = recommend(trace, 0.02)
    assert named(strict, "hit")
    for row in list(strict.hit.rows())[:10]:
        assert f"{row['id']} ({row['denied']:,} of {row['events']:,})" in strict.explain()
    assert sum(strict.hit["denied"]) == strict.summary.denied


def test_a_protected_client_is_not_denied_anything() -> None:
    trace = site(2)
    plain = recommend(trace, 0.01)
    victim = plain.hit["id"][0]
    protected = recommend(trace, 0.01, protect=[victim])
    assert denied_shares(protected, trace)[victim] == 0
    # An attacker may be protected too, and is then like the others.
    spared = recommend(trace, protect=["guesser-1"])
    assert denied_shares(spared, trace)["guesser-1"] == 0
    assert "guesser-1" not in named(spared, "unusual")
    assert "guesser-2" in named(spared, "unusual")
    assert recommend(trace, protect=["unknown"]).not_found == ("unknown",)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_busiest_customer_is_named_with_what_to_do_about_it(seed: int) -> None:
    made = Traffic(seed)
    for rate in made.random.lognormal(-4, 0.6, 40):
        made.steady("person", rate, 0, DAY)
    made.steady("customer", 0.8, 0, DAY)
    made.storm(12, 30_000, 240, background=100)
    trace = made.trace()
    assert trace.ids is not None
    customer = next(id for id in trace.clients if id.startswith("customer"))
    assert 0.25 < np.mean(trace.ids == customer) < 0.75

    found = recommend(trace)
    warning = f"Look at {customer} first"
    assert denied_shares(found, trace)[customer] > 0.5
    assert warning in found.explain()
    assert sum("Look at" in line for line in found.explain().splitlines()) == 1

    # A limit that suffices for the customer still stops the storm, whose retries are faster.
    protected = recommend(trace, protect=[customer])
    shares = denied_shares(protected, trace)
    assert shares[customer] == 0
    assert shares_of(shares, "storm").min() > 0.5
    assert warning not in protected.explain()

    # With an override, the limit of the others can stay small.
    own = f"- Api: {{burst: 100, count: 100, period: 1m, ids: [{customer}]}}"
    other = recommend(trace, limits=Limits.parse("Api: 100/minute", own))
    assert other.count < protected.count / 2
    deployed = simulate(Limits.parse(other.yaml("Api"), own), trace)
    shares = {row["id"]: row["denied_share"] for row in deployed.by_client().rows()}
    assert shares[customer] == 0
    assert shares_of(shares, "person").max() < 0.05
    assert shares_of(shares, "storm").min() > 0.5


def test_clients_are_named_by_network_and_pattern() -> None:
    ids = ["192.0.2.1", "192.0.2.9", "198.51.100.7", "2001:db8::"]
    times = np.sort(np.arange(40) * 0.25)
    trace = Trace(times, [ids[index % 4] for index in range(40)])
    for name, count in (
        ("192.0.2.0/24", 20), ("192.0.2.*", 20), ("2001:db8::/32", 10), ("2001:DB8::5", 10),
    ):  # fmt: skip
        assert recommend(trace, exclude=[name]).left_out == count
    with pytest.raises(KeyError, match=r"203\.0"):
        recommend(trace, exclude=["203.0.113.0/24"])
    with pytest.raises(TypeError, match="list of ids"):
        recommend(trace, protect="192.0.2.1")


def test_a_few_clients_are_never_unlike_each_other() -> None:
    trace = Trace([0.0, *np.arange(1, 500) * 0.1], ["a", *["b"] * 499])
    assert len(recommend(trace).unusual) == 0


def test_attackers_do_not_fit_a_shared_bucket() -> None:
    made = site(1)
    assert made.ids is not None
    ids = {"address": made.ids, "path": ["/"] * len(made)}
    trace = Trace(made.times, ids, unit="ns")
    routes = [{"limits": {"Everyone": {"id": None}}}]
    limits = {"Everyone": "1000/minute"}
    found = recommend(trace, 0, limits=limits, name="Everyone", routes=routes)
    assert {id.partition("-")[0] for id in found.unusual["id"]} == {"scraper", "guesser", "storm"}
    is_bad = np.array([str(id).startswith(("scraper", "guesser", "storm")) for id in made.ids])
    expected = recommend(Trace(made.times[~is_bad], unit="ns"), 0)
    assert (found.burst, found.count) == (expected.burst, expected.count)


@pytest.mark.parametrize(
    ("algorithm", "stopped"),
    # A fixed window has no burst: it admits in each minute what one client needs in one.
    [("leaky-bucket", 0.6), ("fixed-window", 0.4), ("fixed-rate-window", 0.4)],
)
def test_each_algorithm_stops_attackers(algorithm: str, stopped: float) -> None:
    trace = logins(1)
    found = recommend(trace, algorithm=algorithm)
    shares = denied_shares(found, trace)
    assert shares_of(shares, "guesser").mean() > stopped
    assert shares_of(shares, "person").mean() < 0.01


def test_numbers_are_round_and_the_cost_of_rounding_is_said() -> None:
    trace = site(3)
    found = recommend(trace, fit_all=True, round_up=True)
    assert recommend(trace, fit_all=True).limit == found.fitted
    assert found.limit != found.fitted
    assert found.burst >= found.fitted.burst
    assert found.count >= found.fitted.count
    assert not found.is_smallest
    assert all(
        str(number).rstrip("0") in {*"123456789", "12", "15", "25"}
        for number in (found.burst, found.count)
    )
    more = found.limit.worst_in("24h") - found.fitted.worst_in("24h")
    assert f"at most {more:,} more a day" in found.explain()


@pytest.mark.parametrize("algorithm", ["fixed-window", "fixed-rate-window", "token-bucket"])
def test_windows_are_recommended_for_events_that_cost_more_than_one(algorithm: str) -> None:
    trace = Trace([0.0, 0.1], costs=[2, 2])
    found = recommend(trace, 0, "1s", algorithm=algorithm)
    assert found.summary.denied == 0
    assert found.limit.max_cost >= 2
    if algorithm == "fixed-window":
        assert found.count == 4


def test_a_hold_out_counts_events_that_cost_too_much_as_denied() -> None:
    trace = Trace([0.0, 1.0, 2.0, 9.0], costs=[1, 1, 1, 5])
    found = recommend(trace, 0, "1m", holdout=0.25)
    assert found.holdout is not None
    assert (found.holdout.events, found.holdout.denied) == (1, 1)
    assert found.summary.denied == 0


def connections(seed: int) -> Trace:
    """Return a day of requests with durations: a scraper in parallel, and a client that never ends.

    The people have a few requests in flight, and an office sometimes more.
    """
    made = Traffic(seed, is_whole_seconds=False)
    made.people(400, assets=6)
    made.office(30)
    made.steady("scraper", 25, 30_000, 1_000)
    made.steady("storm", 2, 50_000, 600)
    trace = made.trace()
    assert trace.ids is not None
    kinds = np.array([str(id).partition("-")[0] for id in trace.ids])
    lasts = made.random.lognormal(-1.5, 0.7, len(trace))
    lasts[kinds == "scraper"] = made.random.uniform(1, 3, np.count_nonzero(kinds == "scraper"))
    lasts[kinds == "storm"] = 60
    return Trace(trace.times, trace.ids, unit="ns", durations=lasts)


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_suffice_for_all_but_the_clients_that_hold_many(seed: int) -> None:
    trace = connections(seed)
    found = recommend(trace, algorithm="in-flight")
    assert found.limit == Limit.in_flight(found.count)
    assert {id.partition("-")[0] for id in found.unusual["id"]} == {"scraper", "storm"}
    shares = denied_shares(found, trace)
    assert shares_of(shares, "scraper", "storm").min() > 0.5
    assert shares_of(shares, "person").mean() < 0.001
    assert shares_of(shares, "office").max() < 0.02
    assert found.summary.denied_share <= 0.001
    assert recommend(trace, algorithm="in-flight", fit_all=True).count > 3 * found.count
    said = found.explain()
    assert "in flight" in said
    assert "period" not in said
    assert "a day" not in said


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_for_everyone_are_the_most_that_a_client_holds(seed: int) -> None:
    trace = connections(seed)
    everything = simulate(Limit.in_flight(10_000), trace).by_client()
    most = dict(zip(everything["id"], everything["most_in_flight"], strict=True))
    found = recommend(trace, 0, algorithm="in-flight", fit_all=True)
    assert found.count == max(most.values())
    assert found.is_smallest
    assert found.summary.denied == 0
    rounded = recommend(trace, 0, limits=Limit.in_flight(1, lease="5m"), round_up=True)
    assert rounded.limit == Limit.in_flight(rounded.count, lease="5m")
    assert rounded.fitted.max_cost <= rounded.count
    # With a share for one client, only the one that holds most is denied something.
    share = 1 / len(most)
    fewer = recommend(trace, share, algorithm="in-flight", objective="clients", fit_all=True)
    assert [most[id] for id in fewer.hit["id"]] == [found.count]
    assert fewer.count == sorted(most.values())[-2]


def test_slots_are_recommended_for_a_limit_of_a_route() -> None:
    trace = connections(1)
    assert trace.ids is not None
    ids = {"address": trace.ids, "path": np.where(np.arange(len(trace)) % 2, "/a", "/b")}
    both = Trace(trace.times, ids, unit="ns", durations=trace.durations)
    routes = [{"path": "/a", "limits": ["Slots"]}]
    limits = {"Slots": Limit.in_flight(3)}
    found = recommend(both, limits=limits, name="Slots", routes=routes)
    expected = recommend(trace[np.arange(len(trace)) % 2 == 1], algorithm="in-flight")
    assert (found.count, found.unusual["id"]) == (expected.count, expected.unusual["id"])


def test_slots_need_durations_and_have_no_period() -> None:
    trace = Trace([0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="durations="):
        recommend(trace, algorithm="in-flight")
    with pytest.raises(ValueError, match="no period"):
        recommend(trace, 0, "1m", algorithm="in-flight")
    many = Trace(np.zeros(20_000, np.int64), durations=np.ones(20_000))
    with pytest.raises(LimitError, match="16,383"):
        recommend(many, 0, algorithm="in-flight")
    # A limit with a period may replace slots, and is fitted to a minute if it is not named.
    assert recommend(trace, limits=Limit.in_flight(3), algorithm="token-bucket").period_ns == 60e9
