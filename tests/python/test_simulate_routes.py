"""Several limits decided together, and waiters, compared with a limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import penstock
from penstock.simulate import Simulator, Trace, compare, simulate

if TYPE_CHECKING:
    from conftest import Write

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
    {"path": "/export", "limits": {"Client": {"keep": 2}}},
]
SPENDS: dict[tuple[str, str], list[tuple[str, str | None, int, int]]] = {
    ("POST", "/login"): [("Login", None, 1, 0), ("Client", None, 2, 0)],
    ("GET", "/api/a"): [("Api", "/api/a", 1, 0), ("Client", None, 1, 0)],
    ("GET", "/api/b"): [("Api", "/api/b", 1, 0), ("Client", None, 1, 0)],
    ("GET", "/export"): [("Client", None, 1, 2)],
    ("GET", "/login"): [],
    ("GET", "/static/x"): [],
}
requests = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from("abc"), st.sampled_from(list(SPENDS))),
    max_size=40,
)


Events = list[tuple[int, str, tuple[str, str]]]


def trace_of(events: Events) -> Trace:
    times = np.cumsum([wait * 1_000_000 for wait, *_ in events], dtype=np.int64)
    columns = {
        "address": [client for _, client, _ in events],
        "method": [method for *_, (method, _) in events],
        "path": [path for *_, (_, path) in events],
    }
    return Trace(times, columns, unit="ns")


UNLIMITED = (2**63 - 1, 0, 0)


@settings(max_examples=50)
@given(requests.filter(bool))
def test_limits_of_a_route_are_decided_as_by_a_limiter(events: Events) -> None:
    clock = penstock.ManualClock()
    limiter = penstock.Limiter(LIMITS, clock=clock)
    allowed, denied_by, numbers = [], [], []
    for wait, client, request in events:
        clock.advance_ns(wait * 1_000_000)
        spends = [
            penstock.Transaction(name, id or client, cost, keep=keep)
            for name, id, cost, keep in SPENDS[request]
        ]
        made = limiter.spend_all(spends)
        allowed.append(made.allowed)
        denied_by.append(None if made.allowed else made.name)
        limits = (made.remaining, made.retry_after_ns, made.reset_after_ns)
        numbers.append(limits if spends else UNLIMITED)
    found = simulate(LIMITS, trace_of(events), routes=ROUTES)
    assert found.allowed.tolist() == allowed
    assert found.to_dict()["denied_by"].tolist() == denied_by
    columns = (found.remaining, found.retry_after_ns, found.reset_after_ns)
    assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == numbers
    assert found.summary().denied == allowed.count(False)
    for table in (found.by_route(), found.by_client(), found.by_limit()):
        assert sum(table["denied"]) == allowed.count(False)
    for name, count in zip(found.by_limit()["limit"], found.by_limit()["denied"], strict=True):
        assert count == denied_by.count(name)


@settings(max_examples=30)
@given(requests.filter(bool), st.integers(1, 39))
def test_parts_give_the_same_as_the_whole(events: Events, cut: int) -> None:
    whole = simulate(LIMITS, trace_of(events), routes=ROUTES)
    simulator = Simulator(LIMITS, routes=ROUTES)
    trace = trace_of(events)
    parts = [simulator.feed(part) for part in (trace[:cut], trace[cut:])]
    assert np.concatenate([part.allowed for part in parts]).tolist() == whole.allowed.tolist()
    assert simulator.by_route().to_dict() == whole.by_route().to_dict()
    assert simulator.by_limit().to_dict() == whole.by_limit().to_dict()
    assert simulator.by_client().to_dict() == whole.by_client().to_dict()


def test_tables_say_which_limit_denied() -> None:
    events = [(0, "a", ("POST", "/login"))] * 3 + [(0, "b", ("GET", "/api/a"))] * 6
    found = simulate(LIMITS, trace_of(events), routes=ROUTES)
    limits = found.by_limit()
    assert limits["limit"] == ["Login", "Client", "Api"]
    assert (limits["requests"], limits["allowed"]) == ([3, 9, 6], [1, 5, 4])
    assert (limits["denied"], limits["denied_share"]) == ([2, 0, 2], [2 / 3, 0, 2 / 6])
    routes = found.by_route()
    assert routes["route"] == ["POST /login", "/api/*", "/static/*", "/export", "(no route)"]
    assert routes["events"] == [3, 6, 0, 0, 0]
    assert routes["denied_by"] == ["Login 2", "Api 2", "", "", ""]
    clients = found.by_client()
    assert sorted(zip(clients["id"], clients["denied_by"], strict=True)) == [
        ("a", "Login 2"), ("b", "Api 2"),
    ]  # fmt: skip


def test_headroom_denies_the_routes_that_keep_tokens() -> None:
    trace = Trace([0.0] * 4, {"address": list("abcd"), "path": ["/feed", "/feed", "/pay", "/pay"]})
    routes: list[dict[str, Any]] = [
        {"path": "/feed", "limits": {"Everyone": {"id": None, "keep": 2}}},
        {"limits": {"Everyone": {"id": None}}},
    ]
    found = simulate({"Everyone": "3/second"}, trace, routes=routes)
    assert found.allowed.tolist() == [True, False, True, True]
    assert found.by_route()["denied_by"] == ["Everyone 1", "", ""]
    with pytest.raises(penstock.CostTooHigh):
        simulate({"Everyone": "2/second"}, trace, routes=routes)
    with pytest.raises(penstock.ConfigError):
        compare(["3/second"], trace, name="Everyone", routes=routes)


def test_a_shared_bucket_and_an_order_are_those_of_the_options() -> None:
    columns = {"address": ["a", "b", "a"], "user": ["x", "y", "z"]}
    routes = [{"limits": {"All": {"id": None}}}]
    late_first = Trace([2.0, 0.0, 1.0], columns)
    found = simulate({"All": "2/minute"}, late_first, routes=routes, sort=True)
    assert found.allowed.tolist() == [False, True, True]
    each = simulate({"All": "1/minute"}, late_first, routes=[{"limits": ["All"]}], sort=True)
    assert each.allowed.tolist() == [False, True, True]
    pairs = [{"limits": {"All": {"id": "address,user"}}}]
    assert simulate({"All": "1/minute"}, late_first, routes=pairs, sort=True).allowed.all()


@pytest.mark.parametrize(
    ("limits", "routes", "error"),
    [
        (LIMITS, [{"paths": "/", "limits": []}], penstock.ConfigError),
        (LIMITS, [{"limits": {"Api": {"id": "user"}}}], penstock.ConfigError),
        (LIMITS, [{"limits": ["Api"], "method": "GET"}], penstock.ConfigError),
        (LIMITS, [{"limits": {"Api": {"keep": None}}}], penstock.ConfigError),
        (LIMITS, [{"limits": ["Orders"]}], penstock.UnknownLimit),
        ("1/second", [{"limits": ["Api"]}], TypeError),
    ],
)
def test_wrong_routes_are_refused(limits: Any, routes: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        simulate(limits, Trace([0.0], {"address": ["a"], "path": ["/"]}), routes=routes)


def test_only_a_simulation_under_routes_has_a_table_of_them() -> None:
    with pytest.raises(ValueError, match="routes"):
        simulate("1/second", [0.0]).by_route()


FAULTS = [
    ("limits: []\n", 1),
    ("- path: /\n", 1),
    ("- path: 7\n  limits: []\n", 1),
    ("- paths: /\n  limits: []\n", 1),
    ("- limits: []\n- limits:\n    Api: {price: 1}\n", 3),
    ("- limits:\n    Api: {cost: -1}\n", 2),
    ("- limits:\n    Api: {keep: -1}\n", 2),
    ("- limits:\n    Api: 100/minute\n", 2),
    ("- limits:\n    Api:\n    Api:\n", 3),
    ("- limits: 7\n", 1),
    ("- 7\n", 1),
]


@pytest.mark.parametrize(("text", "line"), FAULTS)
def test_faults_of_a_routes_file_have_their_line(write: Write, text: str, line: int) -> None:
    file = write("routes.yaml", text)
    with pytest.raises(penstock.ConfigError) as caught:
        simulate(LIMITS, Trace([0.0]), routes=file)
    assert (caught.value.file, caught.value.line) == (file, line)


def test_a_routes_file_is_as_a_list_of_routes(write: Write) -> None:
    file = write(
        "routes.yaml",
        "- {path: /login, method: POST, limits: {Login: , Client: {cost: 2}}}\n"
        "- path: /api/*\n  limits:\n    Api: {id: path}\n    Client:\n"
        "- {path: /static/*, limits: []}\n"
        "- {path: /export, limits: {Client: {keep: 2}}}\n",
    )
    events = [(9, client, target) for client in "aba" for target in SPENDS]
    by_file = simulate(LIMITS, trace_of(events), routes=file)
    by_list = simulate(LIMITS, trace_of(events), routes=ROUTES)
    assert by_file.summary().denied
    assert by_file.by_route().to_dict() == by_list.by_route().to_dict()


@settings(max_examples=20)
@given(requests.filter(bool))
def test_limits_are_compared_and_swept_under_routes(events: Events) -> None:
    trace = trace_of(events)
    wider = LIMITS | penstock.Limits.parse("Client: {burst: 90, count: 90, period: 1m}")
    found = compare({"now": LIMITS, "wider": wider}, trace, routes=ROUTES)
    for label, limits in (("now", LIMITS), ("wider", wider)):
        alone = simulate(limits, trace, routes=ROUTES)
        assert found.simulations[label].allowed.tolist() == alone.allowed.tolist()
    is_login = np.array([request == ("POST", "/login") for *_, request in events])
    clients = np.array([client for _, client, _ in events])
    swept = compare(["1/hour"], trace, name="Login", routes=ROUTES)
    logins = simulate("1/hour", Trace(trace.times[is_login], clients[is_login]))
    assert swept["denied_share"] == [logins.denied_share]


def test_a_list_of_limits_under_routes_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name="):
        compare(["1/hour"], Trace([0]), routes=ROUTES)
    with pytest.raises(ValueError, match="routes="):
        compare(["1/hour"], Trace([0]), name="Login")
