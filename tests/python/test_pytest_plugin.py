"""The pytest plugin in separate runs, and its functions in this one."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from typing import TYPE_CHECKING, Any

import django.http
import flask
import httpx
import httpx2
import programs
import pytest

import penstock
from penstock import _core, pytest_plugin
from penstock._web.headers import STYLES, headers
from penstock.adapter import Guard, force_enabled
from penstock.flask import Penstock
from penstock.pytest_plugin import Response, assert_not_rate_limited, assert_rate_limited, exhaust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[[int, dict[str, str], bytes], Response]

pytest_plugins = ["pytester"]

PLUGIN = "penstock.pytest_plugin"
IS_INSTALLED = "penstock" in importlib.metadata.entry_points(group="pytest11").names

IMPORT = """
import sys
import tomllib
import pytest
before = set(sys.modules)
import penstock.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""

APP = """
from flask import Flask
from penstock.flask import Penstock

def create_app(**options):
    app = Flask("shop")
    limits = Penstock(app, limits={"PerAddress": "2/minute"}, **options)

    @app.get("/orders")
    @limits.limit("PerAddress")
    def orders():
        return {"orders": []}

    return app

app = create_app()

def statuses(app, requests=3):
    client = app.test_client()
    return [client.get("/orders").status_code for _ in range(requests)]
"""

ON = "[200, 200, 429]"
OFF = "[200, 200, 200]"


class Runner:
    """Runs pytest in a separate folder, with this plugin and no other because that is faster."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.load: tuple[str, ...] = ("-p", PLUGIN)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makepyfile(app=APP)

    def __call__(self, test: str, *arguments: str, **ini: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_inner=test)
        settings = [f"--override-ini={name}={value}" for name, value in ini.items()]
        return self.pytester.runpytest_subprocess(
            *self.load, "-rA", "--strict-markers", "-Werror", *settings, *arguments
        )

    def in_process(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process because it is faster."""
        return self.pytester.runpytest_inprocess(*self.load, *arguments)

    def refused(self, test: str, **ini: str) -> list[str]:
        """Return the errors of a run that does not start."""
        self.pytester.makepyfile(test_inner=test)
        result = self.in_process(*(f"--override-ini={name}={ini[name]}" for name in ini))
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        return [line for line in result.errlines if line]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Run pytest on a file, beside a module `app` that makes its application when imported."""
    return Runner(pytester, monkeypatch)


def test_importing_the_plugin_imports_the_core_and_nothing_else() -> None:
    modules = ["_core", "_decisions", "_explanation", "_hints", "errors", "pytest_plugin"]
    ours = {"penstock", *(f"penstock.{name}" for name in modules)}
    assert set(programs.run(IMPORT).split()) == ours


def test_suite_without_the_plugin_is_unaffected(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an installed wheel has it loaded; or as a folder that is not installed must.
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    run.load = () if IS_INSTALLED else run.load
    result = run(
        """
        import sys
        from penstock import Limiter, SystemClock
        def test_nothing_changed():
            assert "penstock.pytest_plugin" in sys.modules
            assert isinstance(Limiter({}).clock, SystemClock)
            assert "penstock._web.guard" not in sys.modules and "flask" not in sys.modules
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("penstock: *")


def test_options_marker_and_fixtures_are_listed(run: Runner) -> None:
    options = ["*penstock_enabled (bool):*", "*penstock_clock (string):*"]
    run.in_process("--help").stdout.fnmatch_lines(options)
    marker = ["@pytest.mark.penstock(enabled=...): *"]
    run.in_process("--markers").stdout.fnmatch_lines(marker)
    fixtures = ["penstock_clock -- *", "penstock_limiter -- *", "penstock_disabled -- *"]
    run.in_process("--fixtures").stdout.fnmatch_lines_random(fixtures)


# The clock.


@pytest.fixture
def default_clock(clock: penstock.ManualClock) -> Iterator[penstock.ManualClock]:
    before = _core.set_default_clock(clock)
    yield clock
    assert _core.set_default_clock(before) is clock


def test_default_clock_is_that_of_limiters_made_without_one(
    default_clock: penstock.ManualClock,
) -> None:
    limiter = penstock.Limiter({"Orders": "1/second"})
    assert limiter.clock is default_clock
    own = penstock.ManualClock()
    assert penstock.Limiter({}, clock=own).clock is own
    assert [limiter.spend("Orders", "ada").allowed for _ in range(2)] == [True, False]
    default_clock.advance(1)
    assert limiter.spend("Orders", "ada").allowed


def test_store_that_processes_share_does_not_get_the_clock_of_tests(
    default_clock: penstock.ManualClock, shm_url: str, tmp_path: Path
) -> None:
    # A server on the same table would deny for decades, and the next run would find its buckets.
    for store in (shm_url, "redis://127.0.0.1:1"):
        with pytest.raises(penstock.ConfigError, match=r"memory://"):
            penstock.Limiter({}, store=store)
    assert not [*tmp_path.iterdir()]
    assert penstock.Limiter({}, store=shm_url, clock=default_clock).clock is default_clock


def test_limiter_keeps_the_clock_that_it_was_made_on() -> None:
    before = penstock.Limiter({})
    first, second = penstock.ManualClock(), penstock.ManualClock()
    assert _core.set_default_clock(first) is None
    try:
        during = penstock.Limiter({})
        assert _core.set_default_clock(second) is first
        assert _core.set_default_clock(None) is second
    finally:
        _core.set_default_clock(None)
    assert during.clock is first
    assert isinstance(before.clock, penstock.SystemClock)
    assert isinstance(penstock.Limiter({}).clock, penstock.SystemClock)


@pytest.mark.parametrize("wrong", [1, "manual", penstock.ManualClock])
def test_no_clock_cannot_be_the_default(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^clock"):
        _core.set_default_clock(wrong)
    assert _core.set_default_clock(None) is None


CLOCK = """
import asyncio
import threading
import pytest
from app import app, create_app, statuses
from penstock import Limiter, ManualClock, SystemClock
from penstock.wsgi import PenstockMiddleware

MIDNIGHT = 946_684_800
before = Limiter({})

def test_clock_starts_at_midnight(penstock_clock):
    assert isinstance(penstock_clock, ManualClock)
    assert penstock_clock.now() == MIDNIGHT
    penstock_clock.advance(5)

def test_each_test_has_its_own(penstock_clock):
    assert penstock_clock.now() == MIDNIGHT
    assert isinstance(before.clock, SystemClock)

def test_flask(penstock_clock):
    app = create_app()
    assert statuses(app) == [200, 200, 429]
    penstock_clock.advance(30)
    assert statuses(app, 2) == [200, 429]

def test_wsgi(penstock_clock):
    made = PenstockMiddleware(None, limit="1/minute")
    assert made.guard.limiter.clock is penstock_clock

def test_another_thread(penstock_clock):
    found = []
    thread = threading.Thread(target=lambda: found.append(Limiter({}).clock))
    thread.start()
    thread.join()
    assert found == [penstock_clock]

def test_coroutine(penstock_clock):
    async def made():
        return Limiter({}).clock
    assert asyncio.run(made()) is penstock_clock

@pytest.fixture
def shop(penstock_clock):
    return create_app()

@pytest.mark.parametrize("time", [30, 60])
def test_fixture_that_asks_for_it(shop, penstock_clock, time):
    assert statuses(shop) == [200, 200, 429]
    penstock_clock.advance(time)
    assert statuses(shop).count(200) == time // 30

def test_failure(penstock_clock):
    assert Limiter({}).clock is penstock_clock
    raise RuntimeError

def test_the_system_clock_is_restored():
    assert isinstance(Limiter({}).clock, SystemClock)
"""


MODULE_LEVEL = """
    import pytest
    from app import app, statuses
    from penstock.pytest_plugin import assert_rate_limited

    @pytest.mark.parametrize("turn", range(4))
    def test_time_is_moved(penstock_clock, turn):
        assert penstock_clock.now() % 86_400 == 0
        assert statuses(app) == [200, 200, 429]
        penstock_clock.advance(30)
        assert statuses(app, 2) == [200, 429]

    @pytest.mark.parametrize("turn", range(4))
    def test_buckets_are_full_without_asking(turn):
        assert statuses(app) == [200, 200, 429]
        response = app.test_client().get("/orders")
        assert_rate_limited(response, limit="PerAddress", retry_after=30)
    """


EXISTING = """
    from app import app, create_app, statuses

    def test_moved(penstock_clock):
        assert statuses(app) == [200, 200, 429]
        penstock_clock.advance(30)

    def test_not_moved(penstock_clock, penstock_reset):
        assert statuses(app) == [200, 200, 429]

    def test_not_used(penstock_clock):
        penstock_clock.advance(30)

    def test_another(penstock_clock):
        made = create_app()
        assert statuses(made) == [200, 200, 429]
        penstock_clock.advance(30)
        assert statuses(made, 2) == [200, 429]
    """


def test_clock_that_an_existing_limiter_does_not_follow_is_an_error(run: Runner) -> None:
    result = run(EXISTING)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_moved*", "*PerAddress*manual*"])
    run(EXISTING, penstock_clock="manual").assert_outcomes(passed=4)


DJANGO = """
    import django
    import pytest
    from django.conf import settings

    settings.configure(
        MIDDLEWARE=["penstock.django.PenstockMiddleware"],
        PENSTOCK={"LIMITS": {"PerAddress": "2/minute"}, "DEFAULT": "PerAddress"},
        ROOT_URLCONF=__name__,
        SECRET_KEY="only for tests",
    )
    django.setup()

    from django.http import HttpResponse
    from django.test import Client
    from django.urls import path
    from penstock import SystemClock
    from penstock.django import get_limiter

    urlpatterns = [path("orders", lambda request: HttpResponse())]

    def statuses(times):
        client = Client()
        return [client.get("/orders").status_code for _ in range(times)]

    if EAGER:
        get_limiter()

    @pytest.mark.parametrize("turn", range(2))
    def test_clock(penstock_clock, turn):
        assert statuses(3) == [200, 200, 429]
        penstock_clock.advance(30)
        assert statuses(2) == [200, 429]

    def test_clock_of_the_system_is_back():
        assert isinstance(get_limiter().clock, SystemClock)
        assert statuses(3) == [200, 200, 429]

    """


@pytest.mark.parametrize("eager", [True, False])
def test_clock_reaches_the_limits_of_djangos_settings(run: Runner, eager: bool) -> None:
    run(DJANGO.replace("EAGER", str(eager))).assert_outcomes(passed=3)


def test_workers_of_xdist_have_a_clock_and_a_switch_each_and_report_markers(run: Runner) -> None:
    """The manual clock also reaches an application that a conftest file imports."""
    run.pytester.makeconftest("import app")
    both = MODULE_LEVEL + (
        """
    @pytest.mark.parametrize("turn", range(4))
    def test_limits_are_off(penstock_disabled, turn):
        assert statuses(app) == [200, 200, 200]

    @pytest.mark.penstock(enabled=False)
    @pytest.mark.parametrize("turn", range(4))
    def test_limits_are_marked_off(turn):
        assert statuses(app) == [200, 200, 200]

    @pytest.mark.penstock(enabled="no")
    def test_wrong():
        pass
    """
    )
    result = run(both, "-p", "xdist", "-n", "2", "--dist=load", penstock_clock="manual")
    result.assert_outcomes(passed=16, errors=1)
    result.stdout.fnmatch_lines(["penstock: manual clock"])
    result.stdout.fnmatch_lines(["*test_wrong: enabled must be True or False, found 'no'"])


def test_plugin_loaded_by_a_conftest_file_works(run: Runner) -> None:
    run.load = ()
    run.pytester.makeconftest(f"pytest_plugins = [{PLUGIN!r}]")
    run(MODULE_LEVEL, penstock_clock="manual").assert_outcomes(passed=8)


# The switch.


def test_force_applies_to_existing_and_new_guards() -> None:
    on, off = Guard(), Guard(enabled=False)
    assert force_enabled(False) is None
    try:
        made = Guard()
        assert [guard.enabled for guard in (on, off, made)] == [False, False, False]
        assert force_enabled(True) is False
        assert [guard.enabled for guard in (on, off, made)] == [True, True, True]
        assert force_enabled(None) is True
    finally:
        force_enabled(None)
    assert [guard.enabled for guard in (on, off, made)] == [True, False, True]


def test_force_restores_a_flag_that_a_test_changed() -> None:
    guard = Guard()
    guard.enabled = False
    force_enabled(force_enabled(True))
    assert not guard.enabled


SWITCH = """
    import unittest
    import pytest
    from app import app, create_app, statuses

    def both():
        return [statuses(app), statuses(create_app())]

    def test_unmarked(penstock_clock):
        assert statuses(create_app()) == {unmarked}

    @pytest.mark.penstock(enabled=True)
    def test_marked_on():
        assert statuses(create_app()) == {on}
        assert statuses(create_app(enabled=False)) == {on}

    @pytest.mark.penstock(enabled=False)
    def test_marked_off():
        assert both() == [{off}, {off}]

    def test_fixture(penstock_disabled):
        assert both() == [{off}, {off}]

    @pytest.mark.penstock(enabled=True)
    def test_fixture_overrides_the_marker(penstock_disabled):
        assert both() == [{off}, {off}]

    @pytest.mark.penstock(enabled=True)
    class TestShop:
        def test_class(self):
            assert statuses(create_app()) == {on}

        @pytest.mark.penstock(enabled=False)
        def test_closest_setting_applies(self):
            assert statuses(create_app()) == {off}

    class Shop(unittest.TestCase):
        def test_unmarked(self):
            self.assertEqual(statuses(create_app()), {unmarked})

        @pytest.mark.penstock(enabled=True)
        def test_on(self):
            self.assertEqual(statuses(create_app()), {on})

    @pytest.mark.penstock(enabled=False)
    def test_failure(penstock_disabled):
        raise RuntimeError

    def test_last():
        assert both() == [{unmarked}, {unmarked}]
    """


@pytest.mark.parametrize(("enabled", "unmarked"), [("true", ON), ("false", OFF)], ids=["on", "off"])
def test_limits_are_on_or_off_as_option_marker_and_fixture_say(
    run: Runner, enabled: str, unmarked: str
) -> None:
    test = SWITCH.format(unmarked=unmarked, on=ON, off=OFF)
    result = run(test, penstock_enabled=enabled)
    result.assert_outcomes(passed=10, failed=1)
    said = result.stdout.str().count("penstock: limits are off unless a test is marked")
    assert said == (enabled == "false")


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("(True)", "the marker penstock takes enabled=, found True"),
        ("(enable=True)", "the marker penstock takes enabled=, found enable"),
        ("(enabled='no')", "enabled must be True or False, found 'no'"),
    ],
)
def test_marker_without_arguments_is_refused(run: Runner, marker: str, message: str) -> None:
    test = f"import pytest\n@pytest.mark.penstock{marker}\ndef test_it(): pass"
    assert run.refused(test) == [f"ERROR: test_inner.py::test_it: {message}"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("penstock_clock", "penstock_clock must be system or manual, found 'sun'"),
        ("penstock_enabled", "penstock_enabled must be true or false: invalid truth value 'sun'"),
    ],
)
def test_invalid_option_is_refused(run: Runner, name: str, message: str) -> None:
    assert run.refused("def test_it(): pass", **{name: "sun"}) == [f"ERROR: {message}"]
    assert _core.set_default_clock(None) is None


# The limiter.


LIMITER = """
from penstock.pytest_plugin import exhaust

def test_limiter(penstock_limiter, penstock_clock):
    assert penstock_limiter.clock is penstock_clock
    assert list(penstock_limiter.limits) == []
    penstock_limiter.define("Orders", "1/minute")
    assert exhaust(penstock_limiter, "Orders", "ada").retry_after == 60
    penstock_clock.advance(60)
    assert penstock_limiter.spend("Orders", "ada")
"""


# Full buckets.


RESET = """
import pytest
from app import app, statuses, create_app
from penstock.pytest_plugin import reset_limits

@pytest.mark.parametrize("turn", range(2))
def test_by_fixture(penstock_reset, turn):
    assert statuses(app) == [200, 200, 429]

def test_by_call():
    other = create_app()
    assert statuses(other) == [200, 200, 429]
    assert statuses(app) == [429, 429, 429]
    reset_limits()
    assert statuses(app) == statuses(other) == [200, 200, 429]
    reset_limits(other.extensions["penstock"].limiter)
    assert statuses(app) == [429, 429, 429]
    assert statuses(other) == [200, 200, 429]
"""


# The time of other packages.


TRAVEL = """
import datetime
import freezegun
import pytest
import time_machine
from app import statuses, create_app

ON = [200, 200, 429]

@pytest.fixture
def app(penstock_travel):
    return create_app()

def test_time_machine(app, penstock_travel):
    with time_machine.travel("2012-11-21T06:00Z", tick=False) as traveller:
        assert penstock_travel.now() == 1353477600
        assert statuses(app) == ON
        traveller.shift(29)
        assert statuses(app, 1) == [429]
        traveller.shift(datetime.timedelta(seconds=31))
        assert statuses(app) == ON
        traveller.move_to("2012-11-21T07:00Z")
        assert penstock_travel.now() == 1353481200
        assert statuses(app) == ON
    assert penstock_travel.now() > 1_600_000_000

def test_freezegun(app, penstock_travel):
    with freezegun.freeze_time("2012-11-21T06:00Z") as frozen:
        assert statuses(app) == ON
        frozen.tick(29)
        assert statuses(app, 1) == [429]
        frozen.tick(datetime.timedelta(seconds=31))
        assert statuses(app) == ON
        frozen.move_to("2012-11-21T07:00Z")
        assert penstock_travel.now() == 1353481200
        assert statuses(app) == ON

@freezegun.freeze_time("2012-11-21T06:00Z", auto_tick_seconds=1)
def test_frozen_before(app, penstock_travel):
    assert 1353477600 <= penstock_travel.now() < 1353477700

def test_nothing_is_followed_afterwards(penstock_clock):
    with time_machine.travel("2012-11-21T06:00Z", tick=False):
        assert penstock_clock.now() == 946684800
"""


SUITES = {
    # The numbers of tests that pass, fail and end in an error.
    "clock": (CLOCK, 9, 1, 0),
    "limiter": (LIMITER, 1, 0, 0),
    "reset": (RESET, 3, 0, 0),
    "travel": (TRAVEL, 4, 0, 0),
}


def test_suites_have_their_stated_outcomes(run: Runner) -> None:
    """In one run, which takes a second to start."""
    run.pytester.makepyfile(**{f"test_{name}": text for name, (text, *_) in SUITES.items()})
    result = run("def test_none(): pass")
    outcomes = {
        name: tuple(
            result.stdout.str().count(f"{outcome} test_{name}.py::")
            for outcome in ("PASSED", "FAILED", "ERROR")
        )
        for name in SUITES
    }
    assert outcomes == {name: tuple(numbers) for name, (_, *numbers) in SUITES.items()}
    result.stdout.fnmatch_lines(["FAILED test_clock.py::test_failure*"])


# Exhausting.


@pytest.mark.parametrize(
    ("limit", "cost", "left", "wait"),
    [
        ("1/minute", 1, 0, 60),
        ("100/minute", 1, 0, 0.6),
        ("100/minute", 7, 2, 3.0),
        ("100/minute", 100, 0, 60),
        ("1000000000/day", 1, 0, 0.0000864),
        (penstock.Limit.fixed_window(count=100, period="1m"), 3, 1, 60),
        (penstock.Limit.leaky_bucket(size=10, drip_rate=2), 1, 0, 2),
        (penstock.Limit.leaky_bucket(size=10, drip_rate=2), 4, 2, 4),
        (penstock.Limit.fixed_rate_window(count=6, period="1m", burst=2), 1, 5, 10),
    ],
)
def test_exhaust_returns_the_first_denied_decision(
    clock: penstock.ManualClock, limit: str | penstock.Limit, cost: int, left: int, wait: float
) -> None:
    limiter = penstock.Limiter({"Orders": limit}, clock=clock)
    denied = exhaust(limiter, "Orders", "ada", cost)
    assert (denied.allowed, denied.cost, denied.id) == (False, cost, "ada")
    assert denied.remaining == left
    assert denied.retry_after == pytest.approx(wait)
    assert exhaust(limiter, "Orders", "ada", cost) == denied
    assert limiter.check("Orders", "grace").allowed


def test_exhaust_refuses_limits_that_never_deny(clock: penstock.ManualClock) -> None:
    limiter = penstock.Limiter({"Orders": "2/minute"}, clock=clock)
    limiter.define("Free", penstock.Limit.unlimited())
    with pytest.raises(ValueError, match="Free"):
        exhaust(limiter, "Free", "ada")
    with pytest.raises(ValueError, match=r"^cost"):
        exhaust(limiter, "Orders", "ada", 0)
    with pytest.raises(penstock.CostTooHigh):
        exhaust(limiter, "Orders", "ada", 3)
    with pytest.raises(penstock.UnknownLimit):
        exhaust(limiter, "Mails", "ada")
    assert limiter.check("Orders", "ada").remaining == 1


def test_exhaust_stops_at_a_bucket_that_refills_as_fast(clock: penstock.ManualClock) -> None:
    limiter = penstock.Limiter({"Orders": "2/minute"}, clock=clock)

    class Slow:
        clock = limiter.clock

        def spend(self, name: str, id: str, cost: int) -> penstock.Decision:
            clock.advance(60)
            return limiter.spend(name, id, cost)

    slow: Any = Slow()
    with pytest.raises(ValueError, match="ManualClock"):
        exhaust(slow, "Orders", "ada")


# Responses.


def flask_response(status: int, fields: dict[str, str], body: bytes) -> Response:
    app = flask.Flask("shop")
    app.add_url_rule("/", view_func=lambda: flask.Response(body, status, fields))
    return app.test_client().get("/")


def django_response(status: int, fields: dict[str, str], body: bytes) -> Response:
    kind = fields.get("Content-Type", "text/plain")
    return django.http.HttpResponse(body, status=status, headers=fields | {"Content-Type": kind})


def httpx_response(status: int, fields: dict[str, str], body: bytes) -> Response:
    return httpx.Response(status, headers=fields, content=body)


def httpx2_response(status: int, fields: dict[str, str], body: bytes) -> Response:
    return httpx2.Response(status, headers=fields, content=body)


MAKERS = [flask_response, django_response, httpx_response, httpx2_response]
JSON = {"Content-Type": "application/problem+json"}


@pytest.fixture
def limiter(clock: penstock.ManualClock) -> penstock.Limiter:
    return penstock.Limiter({"Orders": "6/minute, burst 3"}, clock=clock)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_read_in_every_response(
    make: Make, style: str, limiter: penstock.Limiter
) -> None:
    allowed = make(200, headers(limiter.spend("Orders", "ada"), style), b"")
    assert_not_rate_limited(allowed)
    assert_not_rate_limited(allowed, remaining=2)
    with pytest.raises(AssertionError, match="expected 1 remaining, found 2"):
        assert_not_rate_limited(allowed, remaining=1)
    with pytest.raises(AssertionError, match="found status 200"):
        assert_rate_limited(allowed)

    fields = headers(exhaust(limiter, "Orders", "ada"), style)
    problem = b'{"violated-policies": ["Orders"]}'
    denied = make(429, fields | JSON, problem)
    assert_rate_limited(denied)
    assert_rate_limited(denied, limit="Orders", retry_after=10)
    with pytest.raises(AssertionError, match=r"Mails.*Orders"):
        assert_rate_limited(denied, limit="Mails")
    with pytest.raises(AssertionError, match=r"Retry-After.*9.*10"):
        assert_rate_limited(denied, retry_after=9)
    with pytest.raises(AssertionError, match="429"):
        assert_not_rate_limited(denied)

    without_document = make(429, fields, b"Too many requests")
    if style in ("ietf", "draft-11", "github", "envoy"):
        assert_rate_limited(without_document, limit="Orders")
    else:
        with pytest.raises(AssertionError, match="found no limit"):
            assert_rate_limited(without_document, limit="Orders")


@pytest.mark.parametrize("make", MAKERS)
def test_limits_of_a_request_are_distinguished(make: Make, clock: penstock.ManualClock) -> None:
    limits = {'The "first", of two': "5/minute", "Second": "2/minute"}
    limiter = penstock.Limiter(limits, clock=clock)
    both = [(name, "ada") for name in limits]
    fields = headers(limiter.spend_all(both))
    assert_not_rate_limited(make(200, fields, b""), remaining=1)
    for name, left in zip(limits, (4, 1), strict=True):
        assert_not_rate_limited(make(200, fields, b""), limit=name, remaining=left)
        # Without a document, one that is named may be the one that refused.
        assert_rate_limited(make(429, fields, b""), limit=name)
    with pytest.raises(AssertionError, match=r"5.*Third.*200"):
        assert_not_rate_limited(make(200, fields, b""), limit="Third", remaining=5)
    refusal = make(429, fields | JSON, b'{"violated-policies": ["Second"]}')
    with pytest.raises(AssertionError, match="found refused by Second"):
        assert_rate_limited(refusal, limit='The "first", of two')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"violated-policies": 1}'])
def test_body_that_is_no_problem_document_is_passed_over(body: bytes) -> None:
    fields = {"RateLimit": '"Orders";r=0;t=10'} | JSON
    assert_rate_limited(httpx_response(429, fields, body), limit="Orders")


def test_several_fields_of_one_name_are_one_list() -> None:
    fields = [("RateLimit", '"First";r=3'), ("ratelimit", '"Second";r=2')]
    response = flask.Response(status=200, headers=fields)
    assert_not_rate_limited(response, limit="First", remaining=3)
    assert_not_rate_limited(response, limit="Second", remaining=2)


def test_failure_shows_status_and_fields(clock: penstock.ManualClock) -> None:
    app = flask.Flask("shop")
    limits = Penstock(app, limits={"PerAddress": "1/minute"}, clock=clock)
    app.add_url_rule("/", view_func=limits.limit("PerAddress")(lambda: "served"))
    client = app.test_client()
    with pytest.raises(AssertionError) as unlimited:
        assert_rate_limited(client.get("/"))
    assert str(unlimited.value).splitlines() == [
        "expected a refusal by a limit, status 429, found status 200; header fields:",
        "  Content-Type: text/html; charset=utf-8",
        '  RateLimit-Policy: "PerAddress";q=1;w=60',
        '  RateLimit: "PerAddress";r=0;t=60',
    ]
    with pytest.raises(AssertionError) as limited:
        assert_rate_limited(client.get("/"), retry_after=30)
    assert str(limited.value).splitlines()[0] == (
        "expected Retry-After: 30, found 60; header fields:"
    )


def test_refusal_without_a_wait_has_no_such_field() -> None:
    with pytest.raises(AssertionError, match="Retry-After"):
        assert_rate_limited(httpx_response(429, {}, b""), retry_after=1)


def test_values_that_are_not_responses_are_refused(tmp_path: Path) -> None:
    wrong: Any = tmp_path
    for check in (assert_rate_limited, assert_not_rate_limited):
        with pytest.raises(TypeError, match="status_code"):
            check(wrong)
    with pytest.raises(TypeError, match="remaining"):
        assert_not_rate_limited(httpx_response(200, {}, b""), limit="Orders")


def test_tests_on_the_page_pass(root: Path, run: Runner) -> None:
    page = (root / "docs/testing.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    tests = len(re.findall(r"^ *def test_", code, flags=re.MULTILINE))
    assert tests >= 7
    run(code).assert_outcomes(passed=tests)
    run(code, penstock_clock="manual").assert_outcomes(passed=tests)


def test_pytest_finds_the_plugin_where_the_package_is_installed(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": pytest_plugin.__name__}
    assert "Framework :: Pytest" in project["classifiers"]
