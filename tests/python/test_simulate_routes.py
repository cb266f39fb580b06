"""Several limits decided together, and waiters, compared with a limiter."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import penstock
from penstock.simulate import Trace, acquire, simulate_routes

LIMITS = penstock.Limits.parse(
    "Client: {burst: 3, count: 2, period: 1s}\n"
    "Api: {algorithm: fixed-window, count: 4, period: 1s}\n"
    "Login: {burst: 1, count: 1, period: 1s}\n",
    "- Client: {burst: 9, count: 9, period: 1s, ids: [b]}",
)
ROUTES: list[dict[str, Any]] = [
    {"path": "/login", "method": "POST", "limits": {"Login": {}, "Client": {"cost": 2}}},
    {"path": "/api/*", "limits": {"Api": {"id": "path"}, "Client": None}},
    {"path": "/static/*", "limits": []},
]
SPENDS: dict[tuple[str, str], list[tuple[str, str | None, int]]] = {
    ("POST", "/login"): [("Login", None, 1), ("Client", None, 2)],
    ("GET", "/api/a"): [("Api", "/api/a", 1), ("Client", None, 1)],
    ("GET", "/api/b"): [("Api", "/api/b", 1), ("Client", None, 1)],
    ("GET", "/login"): [],
    ("GET", "/static/x"): [],
}
requests = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from("abc"), st.sampled_from(list(SPENDS))),
    max_size=40,
)


@settings(max_examples=50)
@given(requests)
def test_limits_of_a_route_are_decided_as_by_a_limiter(
    events: list[tuple[int, str, tuple[str, str]]],
) -> None:
    clock = penstock.ManualClock()
    limiter = penstock.Limiter(LIMITS, clock=clock)
    now, times, ids, allowed, denied_by = 0, [], [], [], []
    for wait, client, (method, path) in events:
        now += wait * 1_000_000
        clock.set_ns(now)
        times.append(now)
        ids.append(f"{client}\t{method}\t{path}")
        spends = [(name, id or client, cost) for name, id, cost in SPENDS[method, path]]
        decision = limiter.spend_all(spends) if spends else None
        allowed.append(decision is None or decision.allowed)
        denied_by.append(None if allowed[-1] or decision is None else decision.name)
    trace = Trace(np.array(times, np.int64), ids, unit="ns")
    found = simulate_routes(LIMITS, trace, ROUTES)
    assert found.allowed.tolist() == allowed
    assert [*map([*found.names, None].__getitem__, found.denied_by.tolist())] == denied_by
    assert sum(found.by_route()["denied"]) == allowed.count(False)
    assert sum(found.by_client()["denied"]) == allowed.count(False)
    assert sum(found.by_limit()["denied"]) == allowed.count(False)


def test_wrong_routes_are_refused() -> None:
    trace = Trace([0.0], ["a\tGET\t/"])
    wrong: list[dict[str, Any]] = [
        {"paths": "/"},
        {"limits": {"Api": {"id": "user"}}},
        {"limits": {"Api": {"cost": -1}}},
    ]
    for route in wrong:
        with pytest.raises(penstock.ConfigError):
            simulate_routes(LIMITS, trace, [route])
    with pytest.raises(penstock.UnknownLimit):
        simulate_routes(LIMITS, trace, [{"limits": ["Orders"]}])


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.sampled_from("ab"), st.integers(0, 3)), max_size=30),
    st.sampled_from([0.5, 3.0]),
)
def test_waits_are_those_of_a_queue(events: list[tuple[int, str, int]], timeout: float) -> None:
    times = np.cumsum([wait for wait, *_ in events], dtype=np.int64) * 1_000_000
    limit = penstock.Limit.token_bucket(burst=3, count=2, period=1)
    found = acquire(
        limit,
        times,
        [id for _, id, _ in events],
        [cost for *_, cost in events],
        timeout=timeout,
        unit="ns",
    )
    # Each bucket by itself, in exact arithmetic: when it will be full again, and its last waiter.
    full_at = dict.fromkeys("ab", 0)
    served = dict.fromkeys("ab", 0)
    interval, burst = 500_000_000, 3
    for time, wait, (_, id, cost) in zip(
        times.tolist(), found.waits_ns.tolist(), events, strict=True
    ):
        start = max(time, served[id])
        ready = max(start, full_at[id] + (cost - burst) * interval)
        if ready - time > timeout * 1e9:
            assert wait == -1
            continue
        assert wait == ready - time
        served[id] = ready
        full_at[id] = max(full_at[id], ready) + cost * interval
    assert found.timed_out == found.waits_ns.tolist().count(-1)


def test_the_queue_has_a_length() -> None:
    found = acquire("1/second", [0.0, 0.0, 0.0, 0.5], timeout=2.5)
    assert found.waits_ns.tolist() == [0, 10**9, 2 * 10**9, 2_500_000_000]
    assert (found.longest_queue, found.timed_out, found.longest_wait) == (3, 0, 2.5)
    assert acquire("1/second", [0.0, 0.0, 0.0, 0.5], timeout=2.4).timed_out == 1
