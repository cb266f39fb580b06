"""The counts of a limiter, read by the libraries of Prometheus and OpenTelemetry."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import programs
import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from servers import SECONDS_TO_ANSWER, ask, free_port, gunicorn, running, wait_until_it_answers

import penstock
from penstock._web.guard import Guard
from penstock._web.rule import make_rule
from penstock.adapter import EnvironRequest, admit
from penstock.identity import by_header
from penstock.metrics import PrometheusCollector, instrument
from penstock.refresher import Refresher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeLimiter
    from opentelemetry.metrics import Meter

    from penstock.metrics import Source

LIMITS = penstock.Limits.parse(
    """
Orders: {burst: 3, count: 1, period: 1h}
Searches: {burst: 1, count: 1, period: 1h, mode: shadow}
Free: {algorithm: unlimited}
"""
)


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    """A limiter under which each verb was used."""
    limiter = make_limiter(LIMITS)
    for name in ("Orders", "Searches", "Free"):
        for _ in range(5):
            limiter.spend(name, "ada")
        limiter.check(name, "ada")
        limiter.refund(name, "ada")
    return limiter


def scraped(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Write a registry as text, as a scrape gets it, and read it again."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def prometheus(source: Any, **options: Any) -> Callable[..., float | None]:
    """Return a function that scrapes one value."""
    registry = CollectorRegistry()
    PrometheusCollector(source, registry=registry, **options)

    def value(name: str, **labels: str) -> float | None:
        return scraped(registry).get((f"penstock_{name}", frozenset(labels.items())))

    return value


@pytest.fixture
def reader() -> InMemoryMetricReader:
    """OpenTelemetry's own reader."""
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Iterator[Meter]:
    """A meter that `reader` reads."""
    provider = MeterProvider(metric_readers=[reader])
    yield provider.get_meter("test")
    provider.shutdown()


def observed(reader: InMemoryMetricReader) -> dict[tuple[str, frozenset[tuple[str, Any]]], float]:
    """Collect, by name and attributes."""
    data = reader.get_metrics_data()
    return {
        (metric.name, frozenset((point.attributes or {}).items())): point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def test_core_counts_by_limit_verb_and_outcome(limiter: penstock.Limiter) -> None:
    counts = limiter.counts()
    assert list(counts) == ["Orders", "Searches", "Free"]
    assert counts["Orders"]["spends"] == {"allowed": 3, "denied": 2, "shadow_denied": 0}
    assert counts["Orders"]["checks"] == {"allowed": 0, "denied": 1, "shadow_denied": 0}
    assert counts["Searches"]["spends"] == {"allowed": 1, "denied": 0, "shadow_denied": 4}
    assert counts["Searches"]["checks"] == {"allowed": 0, "denied": 0, "shadow_denied": 1}
    assert counts["Free"]["spends"] == {"allowed": 5, "denied": 0, "shadow_denied": 0}
    assert {(limit["refunds"], limit["store_errors"]) for limit in counts.values()} == {(1, 0)}
    timed = counts["Orders"]["timed"]
    assert (timed["at_most_ns"][0], timed["at_most_ns"][-1]) == (32, 2**30)
    assert len(timed["calls"]) == len(timed["at_most_ns"]) + 1
    assert sum(timed["calls"]) == 1
    assert timed["total_ns"] > 0


def test_counts_stay_through_reload_define_and_close(limiter: penstock.Limiter) -> None:
    orders = limiter.limit("Orders")
    limiter.reload({"Orders": "9/hour"})
    limiter.define("Pages", "2/hour")
    orders.spend("eve")
    limiter.spend("Pages", "eve")
    limiter.close()
    allowed = {name: counts["spends"]["allowed"] for name, counts in limiter.counts().items()}
    assert allowed == {"Orders": 4, "Pages": 1, "Free": 5, "Searches": 1}
    assert limiter.top_denied("Searches")[0]["id"] == "ada"


def spends_checks_refunds(limiter: penstock.Limiter, name: str) -> tuple[Any, Any, int]:
    """Return how often a limit allowed, denied and would have denied, and its refunds."""
    counts: dict[str, Any] = dict(limiter.counts()[name])
    return [*counts["spends"].values()], [*counts["checks"].values()], counts["refunds"]


def test_each_limit_of_a_transaction_counts_its_own_decision(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter(LIMITS)
    limiter.define("Pages", penstock.Limit.fixed_window(count=3, period="1h"))
    calls: list[Any] = [
        ("Free", "ada", 2),
        ("Orders", "ada", 2),
        ("Pages", "ada", 2, "check"),
        ("Searches", "ada", 1, "spend_only"),
    ]
    # Orders denies the second call, so that it takes no tokens of the others.
    for verb in ("spend_all", "spend_all", "check_all", "refund_all"):
        getattr(limiter, verb)(calls)
    assert spends_checks_refunds(limiter, "Free") == ([2, 0, 0], [1, 0, 0], 1)
    assert spends_checks_refunds(limiter, "Orders") == ([1, 1, 0], [0, 1, 0], 1)
    assert spends_checks_refunds(limiter, "Pages") == ([0, 0, 0], [3, 0, 0], 1)
    assert spends_checks_refunds(limiter, "Searches") == ([1, 0, 1], [0, 0, 1], 1)


def test_each_decision_of_one_call_is_counted(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter(LIMITS)
    for name in LIMITS:
        limiter.spend_each(name, [number % 100 for number in range(500)])
    allowed_denied = {name: spends_checks_refunds(limiter, name)[0] for name in LIMITS}
    assert allowed_denied == {
        "Orders": [300, 200, 0],
        "Searches": [100, 0, 400],
        "Free": [500, 0, 0],
    }


@pytest.mark.parametrize("arguments", [("", 1), ("ada", 4), ("ada", -1)])
def test_call_without_a_decision_is_not_counted(
    make_limiter: MakeLimiter, arguments: tuple[str, int]
) -> None:
    limiter = make_limiter(LIMITS)
    id, cost = arguments
    with pytest.raises(penstock.Error):
        limiter.spend("Orders", id, cost)
    with pytest.raises(penstock.Error):
        limiter.spend_each("Orders", ["ada", id], [1, cost])
    with pytest.raises(penstock.Error):
        limiter.spend_all([("Orders", id, cost)])
    assert spends_checks_refunds(limiter, "Orders") == ([0, 0, 0], [0, 0, 0], 0)


def test_scrape_has_every_count(limiter: penstock.Limiter) -> None:
    value = prometheus(limiter)
    assert value("decisions_total", limit="Orders", outcome="allowed") == 3
    assert value("decisions_total", limit="Orders", outcome="denied") == 2
    assert value("decisions_total", limit="Searches", outcome="shadow_denied") == 4
    assert value("checks_total", limit="Orders", outcome="denied") == 1
    assert value("refunds_total", limit="Free") == 1
    assert value("store_errors_total", limit="Orders") == 0
    # The refund made the bucket of "Searches" full again.
    assert value("buckets") == len(limiter) == 1
    assert value("store_bytes") == limiter.stats()["bytes"]
    for figure in ("evicted_buckets", "shared_bucket_calls", "refused_calls"):
        assert value(f"{figure}_total") == 0
    limiter.spend("Orders", "eve")
    assert value("decisions_total", limit="Orders", outcome="allowed") == 4


def test_histogram_is_of_the_timed_calls(limiter: penstock.Limiter) -> None:
    for _ in range(5_000):
        limiter.spend("Orders", "ada")
    value = prometheus(limiter)
    timed = limiter.counts()["Orders"]["timed"]
    samples = sum(timed["calls"])
    assert 10 <= samples <= 40
    assert value("decision_seconds_count", limit="Orders") == samples
    assert value("decision_seconds_sum", limit="Orders") == pytest.approx(timed["total_ns"] / 1e9)
    assert value("decision_seconds_bucket", limit="Orders", le="+Inf") == samples
    assert value("decision_seconds_bucket", limit="Orders", le="3.2e-08") == timed["calls"][0]
    for index, most in enumerate(timed["at_most_ns"]):
        cumulated = value("decision_seconds_bucket", limit="Orders", le=str(most / 1e9))
        assert cumulated == sum(timed["calls"][: index + 1])


def test_describe_names_the_metrics_of_collect_without_reading(limiter: penstock.Limiter) -> None:
    collector = PrometheusCollector(limiter, top_denied=3, registry=CollectorRegistry())
    described = list(collector.describe())
    collected = list(collector.collect())
    assert [family.samples for family in described] == [[]] * len(described)
    assert [(f.name, f.type) for f in described] == [(f.name, f.type) for f in collected]
    assert len(described) >= 10


def test_several_limiters_are_distinguished_by_a_label(
    make_limiter: MakeLimiter, reader: InMemoryMetricReader, meter: Meter
) -> None:
    api = make_limiter(LIMITS)
    api.spend("Orders", "ada")
    sources: dict[str, Source] = {"api": api, "jobs": make_limiter(LIMITS)}
    value = prometheus(sources)
    asked = {"limit": "Orders", "outcome": "allowed"}
    assert value("buckets", limiter="api") == 1
    instrument(sources, meter)
    found = observed(reader)
    for name, times in (("api", 1), ("jobs", 0)):
        assert value("decisions_total", limiter=name, **asked) == times
        labels = frozenset({"limiter": name, **asked}.items())
        assert found["penstock.decisions", labels] == times


def test_two_collectors_of_one_registry_must_not_share_a_namespace(
    limiter: penstock.Limiter,
) -> None:
    registry = CollectorRegistry()
    PrometheusCollector(limiter, registry=registry)
    # The library lists all names of all metrics.
    with pytest.raises(penstock.ConfigError, match=r"^the registry has penstock metrics already; "):
        PrometheusCollector(limiter, registry=registry)
    PrometheusCollector(limiter, registry=registry, namespace="second")
    assert b"second_decisions_total" in generate_latest(registry)


def test_collector_is_published_by_default(limiter: penstock.Limiter) -> None:
    collector = PrometheusCollector(limiter)
    try:
        # What `start_http_server`, `make_wsgi_app` and `make_asgi_app` of the client serve.
        assert b"penstock_decisions_total" in generate_latest()
    finally:
        REGISTRY.unregister(collector)


def test_only_the_first_limits_get_their_own_label(
    make_limiter: MakeLimiter, reader: InMemoryMetricReader, meter: Meter
) -> None:
    limits = {f"limit-{number}": "1/hour" for number in range(20)}
    limiter = make_limiter(limits)
    registry = CollectorRegistry()
    PrometheusCollector(limiter, registry=registry, max_limits=5)
    instrument(limiter, meter, max_limits=5)
    allowed = ("outcome", "allowed")
    for turn in (1, 2):
        for name in limiter.limits:
            limiter.spend(name, f"user-{turn}")
        expected = {f"limit-{number}": turn for number in range(5)} | {"other": 15 * turn}
        for found, counter in (
            (scraped(registry), "penstock_decisions_total"),
            (observed(reader), "penstock.decisions"),
        ):
            assert expected == {
                dict(labels)["limit"]: value
                for (name, labels), value in found.items()
                if name == counter and allowed in labels
            }
        # After a reload, in whatever order, limits keep their label.
        limiter.reload(dict(reversed(limits.items())))


def test_top_denied_are_found_under_an_attack(make_limiter: MakeLimiter) -> None:
    limiter = make_limiter({"Orders": "2/hour", "Pages": "2/hour"})
    draw = random.Random(7)  # noqa: S311  a trace, the same each time
    attackers = {"198.51.100.7": 4_000, "203.0.113.9": 2_500, "192.0.2.66": 1_500}
    crowd = [f"user-{draw.randrange(8_000)}" for _ in range(24_000)]
    trace = [*crowd, *(id for id, times in attackers.items() for _ in range(times))]
    draw.shuffle(trace)
    denied: Counter[str] = Counter()
    for id in trace:
        denied[id] += not limiter.spend("Orders", id)
    limiter.spend_each("Pages", ["eve"] * 1_000)
    top = limiter.top_denied("Orders", 3)
    assert [bucket["id"] for bucket in top] == list(attackers)
    for bucket in top:
        truly = denied[bucket["id"]]
        assert 0.7 * truly <= bucket["denied"] <= 1.3 * truly + bucket["error"]
        assert bucket["bucket_key"] == f"Orders:{bucket['id']}"
    everywhere = limiter.top_denied(n=4)
    assert [bucket["name"] for bucket in everywhere] == ["Orders"] * 3 + ["Pages"]
    assert everywhere[3]["denied"] == 998
    assert limiter.top_denied(n=0) == []


def test_bucket_key_is_spelled_as_explain_does(make_limiter: MakeLimiter) -> None:
    text = "PerAddress: {burst: 1, count: 1, period: 1h, number: 6, id: ipAddress}"
    limits = penstock.Limits.parse(text)
    limiter = make_limiter(limits)
    for _ in range(3):
        limiter.spend("PerAddress", "2001:DB8::0001")
    (bucket,) = limiter.top_denied()
    why = limits.explain("PerAddress", "2001:db8::1")
    assert (bucket["bucket_key"], bucket["id"]) == (why.bucket_key, why.id) != ("", "")
    assert bucket["denied"] == 2


def test_top_denied_has_the_start_of_a_long_id_and_limits_that_were_removed(
    make_limiter: MakeLimiter,
) -> None:
    limiter = make_limiter(LIMITS)
    for _ in range(5):
        limiter.spend("Orders", "y" + "x" * 128)
        limiter.spend("Searches", "ada")
    limiter.check("Searches", "ada")
    found = [(bucket["bucket_key"], bucket["denied"]) for bucket in limiter.top_denied()]
    assert found == [("Searches:ada", 5), ("Orders:y" + "x" * 127, 2)]
    assert limiter.top_denied("Free") == []
    limiter.reload({})
    assert len(limiter.top_denied("Orders")) == 1


def test_top_denied_refuses_invalid_arguments(limiter: penstock.Limiter) -> None:
    with pytest.raises(penstock.UnknownLimit, match="no limit is named 'Order'"):
        limiter.top_denied("Order")
    with pytest.raises(ValueError, match="-1"):
        limiter.top_denied(n=-1)
    wrong: Any
    for wrong in (1.5, "3", True):
        with pytest.raises(TypeError):
            limiter.top_denied(n=wrong)


def test_ids_are_labels_only_on_request(
    limiter: penstock.Limiter, reader: InMemoryMetricReader, meter: Meter
) -> None:
    registry = CollectorRegistry()
    PrometheusCollector(limiter, registry=registry)
    assert b"ada" not in generate_latest(registry)
    value = prometheus(limiter, top_denied=1)
    assert value("top_denied", limit="Searches", id="ada") == 5
    assert value("top_denied", limit="Orders", id="ada") is None
    instrument(limiter, meter, top_denied=2)
    ids = [dict(labels).get("id") for _, labels in observed(reader)]
    assert ids.count("ada") == 2


def test_both_have_the_same_numbers(
    limiter: penstock.Limiter, reader: InMemoryMetricReader, meter: Meter
) -> None:
    instrument(limiter, meter)
    registry = CollectorRegistry()
    PrometheusCollector(limiter, registry=registry)
    reported = {
        (name.removesuffix("_total").replace("penstock_", "penstock."), labels): value
        for (name, labels), value in scraped(registry).items()
        if "decision_seconds" not in name
    }
    found = observed(reader)
    assert reported == {key: value for key, value in found.items() if "sample" not in key[0]}
    assert len(reported) >= 20
    orders = frozenset({("limit", "Orders")})
    assert found["penstock.decision_samples", orders] == 1
    assert 0 < found["penstock.decision_sampled_time", orders] < 10


def test_guard_adds_what_the_limiter_cannot_count() -> None:
    guard = Guard(limits={"PerKey": "9/minute", "Local": "9/minute"}, on_store_error="local")
    rule = make_rule(["PerKey", "Local"], "orders", {"id": by_header("X-Key")})
    plan = guard.route_limits([rule])
    with_key = EnvironRequest({"HTTP_X_KEY": "ada", "REMOTE_ADDR": "192.0.2.1"})
    without = EnvironRequest({"REMOTE_ADDR": "192.0.2.1"})
    value = prometheus(guard)
    assert value("bad_requests_total", limit="PerKey") == 0
    for _ in range(2):
        assert admit(plan, without).status == 400
    admit(plan, with_key)
    assert value("bad_requests_total", limit="PerKey") == 2
    assert value("degraded_answers_total", limit="PerKey") == 0
    assert value("decisions_total", limit="Local", outcome="allowed") == 1
    guard.limiter.close()
    for _ in range(3):
        assert admit(plan, with_key).is_degraded
    assert value("degraded_answers_total", limit="PerKey") == 3
    assert value("degraded_answers_total", limit="Local") == 3
    # The store's statistics are unavailable; the limiter's counts are still reported.
    assert value("buckets") is None
    assert value("decisions_total", limit="Local", outcome="allowed") == 1
    assert guard.incidents() == {
        "degraded": {"PerKey": 3, "Local": 3},
        "bad_requests": {"PerKey": 2},
        "near_limit": {},
    }


@pytest.mark.parametrize("make", [PrometheusCollector, instrument])
def test_invalid_arguments_are_refused_immediately(make: Callable[..., object]) -> None:
    limiter = penstock.Limiter({})
    for wrong, options, message in (
        ("limits.yaml", {}, "expected a penstock.Limiter, a Guard, or a dict"),
        ({"api": None}, {}, "found None"),
        (limiter, {"max_limits": -1}, "max_limits must be a whole number from 0, found -1"),
        (limiter, {"top_denied": True}, "top_denied must be a whole number from 0, found True"),
        (limiter, {"namespace": "my-app"}, "namespace must be"),
    ):
        with pytest.raises(penstock.ConfigError, match=message):
            make(wrong, **options)


@pytest.mark.parametrize(
    ("library", "call", "extra"),
    [
        ("prometheus_client", "PrometheusCollector", "penstock[prometheus]"),
        ("opentelemetry", "instrument", "penstock[opentelemetry]"),
    ],
)
def test_optional_libraries_are_imported_on_first_use(library: str, call: str, extra: str) -> None:
    program = f"""
import sys
import penstock, penstock.metrics
assert not {{"prometheus_client", "opentelemetry"}} & set(sys.modules)
sys.modules[{library!r}] = None
try:
    penstock.metrics.{call}(penstock.Limiter({{}}))
except ImportError as error:
    print(error)
"""
    assert f"run `pip install '{extra}'`" in programs.run(program)


OVERRIDES = [
    ("Orders", "ada", "9/minute"),
    ("Orders", "grace", "9/minute"),
    ("Orders", "linus", "9 per fortnight"),
]


def test_overrides_have_metrics(make_limiter: MakeLimiter, clock: penstock.ManualClock) -> None:
    limiter = make_limiter(LIMITS)
    rows = list(OVERRIDES)
    refresher = Refresher(limiter, lambda: rows)
    registry = CollectorRegistry()
    PrometheusCollector(limiter, registry=registry, refreshers=[refresher])
    read = registry.get_sample_value
    assert read("penstock_overrides", {"limit": "Orders"}) == 0
    assert read("penstock_overrides_loaded_timestamp_seconds") is None
    refresher.refresh()
    assert read("penstock_overrides", {"limit": "Orders"}) == 2
    assert read("penstock_overrides", {"limit": "Free"}) == 0
    assert read("penstock_overrides_skipped_rows") == 1
    assert read("penstock_overrides_loaded_timestamp_seconds") == clock.now()
    rows.clear()
    clock.advance(60)
    refresher.refresh()
    assert read("penstock_overrides_loaded_timestamp_seconds") == clock.now()
    assert read("penstock_overrides", {"limit": "Orders"}) == 0


def test_failed_loads_of_overrides_are_counted(make_limiter: MakeLimiter) -> None:
    refresher = Refresher(make_limiter(LIMITS), "absent.yaml")
    registry = CollectorRegistry()
    PrometheusCollector({"api": refresher.limiter}, registry=registry, refreshers=[refresher])
    for _ in range(2):
        with pytest.raises(penstock.ConfigError):
            refresher.refresh()
    name = "penstock_overrides_load_failures_total"
    assert registry.get_sample_value(name, {"limiter": "api"}) == 2


def test_refresher_of_another_limiter_is_refused(make_limiter: MakeLimiter) -> None:
    refresher = Refresher(make_limiter(LIMITS), [])
    with pytest.raises(penstock.ConfigError):
        PrometheusCollector(make_limiter(LIMITS), refreshers=[refresher])


ROOT = Path(__file__).parents[2]
QUERY = re.compile(r"penstock_\w+")


def test_dashboard_and_alerts_use_metrics_that_are_published() -> None:
    registry = CollectorRegistry()
    guard = Guard(limits={"Orders": "2/minute"})
    collector = PrometheusCollector(guard, registry=registry)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    published = {
        family.name + suffix
        for family in collector.describe()
        for suffix in suffixes.get(family.type, ("",))
    }
    dashboard = json.loads((ROOT / "examples/prometheus/dashboard.json").read_text("utf-8"))
    rules = yaml.safe_load((ROOT / "examples/prometheus/alerts.yaml").read_text("utf-8"))
    queries = [
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
        *(each["definition"] for each in dashboard["templating"]["list"] if "definition" in each),
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
    ]
    used = [set(QUERY.findall(query)) for query in queries]
    assert all(used)
    assert set().union(*used) <= published
    # These exist from the start, so that their first increase is seen.
    value = prometheus(guard)
    assert value("degraded_answers_total", limit="Orders") == 0
    assert value("near_limit_total", limit="Orders") == 0


SHOP = """
import os

from flask import Flask
from penstock.flask import Penstock
from penstock.metrics import PrometheusCollector
from prometheus_client import make_wsgi_app
from werkzeug.middleware.dispatcher import DispatcherMiddleware

app = Flask(__name__)
limits = Penstock(app, limits={"Orders": "1/hour", "Exports": "9 in flight"}, store=STORE)
PrometheusCollector(limits.guard)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/metrics": make_wsgi_app()})
# Before the fork: counted by the parent alone.
limits.limiter.spend("Orders", "ada")
held = []

@app.get("/orders")
def orders():
    limits.limiter.spend("Orders", "ada")
    if not held:
        held.append(limits.limiter.reserve("Exports", "all"))
    return str(os.getpid())
"""


def page_values(port: int, *expected: tuple[str, float]) -> None:
    """Ask for the page until it has these values; each process writes its own once a second."""
    deadline = penstock.SystemClock().now() + SECONDS_TO_ANSWER
    found: dict[str, str] = {}
    while not all(float(found.get(name, "nan")) == value for name, value in expected):
        assert penstock.SystemClock().now() < deadline, (expected, found)
        lines = ask(port, "/metrics")[1].decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_any_of_four_workers_serves_the_sums_of_all(tmp_path: Path, shm_url: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("STORE", repr(shm_url)))
    (tmp_path / "values").mkdir()
    port = free_port()
    command = gunicorn(port, tmp_path, "--workers", "4", "--preload", "shop:app")
    values = str(tmp_path / "values")
    denied = 'penstock_decisions_total{limit="Orders",outcome="denied"}'
    with running(command, tmp_path, PROMETHEUS_MULTIPROC_DIR=values) as process:
        wait_until_it_answers(process, port)
        workers: set[int] = set()
        asked = 0
        with ThreadPoolExecutor(8) as pool:
            while len(workers) < 4:
                answers = pool.map(lambda _: ask(port, "/orders")[1], range(16))
                workers.update(map(int, answers))
                asked += 16
        held = 'penstock_slots_held{limit="Exports"}'
        page_values(port, (denied, asked), (held, 4), ("penstock_buckets", 2))
        os.kill(workers.pop(), signal.SIGKILL)
        # The counts of the killed worker stay, and its slot is no longer held.
        page_values(port, (denied, asked), (held, 3))
        ask(port, "/orders")
        page_values(port, (denied, asked + 1), ("penstock_buckets", 2))


FORK = """
import os, sys
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from prometheus_client import REGISTRY, CollectorRegistry
import penstock
from penstock.metrics import PrometheusCollector

memory = penstock.Limiter({"Orders": "5/hour"})
shared = penstock.Limiter({"Orders": "5/hour"}, store=sys.argv[2])
for source, options in ((memory, {"top_denied": 3}), ({"a": memory, "b": shared}, {})):
    try:
        PrometheusCollector(source, registry=CollectorRegistry(), **options)
    except penstock.ConfigError as error:
        print(type(error).__name__)

PrometheusCollector(memory)
denied = ("penstock_decisions_total", {"limit": "Orders", "outcome": "denied"})
for _ in range(7):
    memory.spend("Orders", "ada")
child = os.fork()
memory.spend("Orders", "ada")
if child == 0:
    REGISTRY.get_sample_value(*denied)  # writes what the child has counted
    os._exit(0)
os.waitpid(child, 0)
memory.spend("Orders", "ada")
print(REGISTRY.get_sample_value(*denied))
os.environ["PROMETHEUS_MULTIPROC_DIR"] += "/nowhere"
try:
    PrometheusCollector(memory, registry=CollectorRegistry(), namespace="other")
except penstock.ConfigError as error:
    print(type(error).__name__)
"""


def test_child_process_counts_only_its_own_calls(tmp_path: Path, shm_url: str) -> None:
    (tmp_path / "values").mkdir()
    printed = programs.run(FORK, str(tmp_path / "values"), shm_url).split()
    # Seven calls before the fork, five of them allowed; then one in the child, two in the parent.
    assert printed == ["ConfigError", "ConfigError", "5.0", "ConfigError"]
