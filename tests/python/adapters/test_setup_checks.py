"""Configuration errors that the first requests reveal, in every framework."""

from __future__ import annotations

import sys
import threading
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import pytest
from adapters.case import Route, limited
from adapters.drivers import (
    Asgi,
    InDjango,
    InDjangoWithoutMiddleware,
    InFastapi,
    InFlask,
    Wsgi,
    only,
)
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute
from starlette.testclient import TestClient

import penstock
from penstock.asgi import PenstockMiddleware
from penstock.flask import Penstock
from penstock.identity import by_user, shared

if TYPE_CHECKING:
    from adapters.conftest import Serve
    from starlette.requests import Request as StarletteRequest

    from penstock._web.identity import ReadyId

PACKAGE = str(Path(penstock.__file__).parent)
PROXY = "10.0.0.1"
LARGE = Route("/", (limited("Large"),))


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the codes of the findings, in order."""
    found = [record.getMessage() for record in caplog.records if record.name == "penstock"]
    assert all(f"/codes/#{text[:4].lower()}" in text for text in found)
    return [text.partition(":")[0] for text in found]


@pytest.mark.parametrize(
    ("header", "value"), [("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=203.0.113.9")]
)
def test_forwarded_header_without_a_trusted_proxy_is_reported_once(
    serve: Serve, caplog: pytest.LogCaptureFixture, header: str, value: str
) -> None:
    app = serve(LARGE)
    app.statuses(3, headers={header: value}, peer=PROXY)
    assert codes(caplog) == ["P001"]
    assert PROXY in caplog.text


def test_forwarded_header_of_a_trusted_proxy_is_not_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(LARGE, trusted_proxies=[PROXY])
    app.statuses(3, headers={"X-Forwarded-For": "203.0.113.9"}, peer=PROXY)
    app.statuses(3, headers={"X-Forwarded-For": "203.0.113.9"})
    assert codes(caplog) == []


def test_forged_header_does_not_hide_the_proxy(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(LARGE)
    app.statuses(2, headers={"X-Forwarded-For": "1.2.3.4"})
    app.statuses(2, headers={"X-Forwarded-For": "203.0.113.9"}, peer=PROXY)
    assert codes(caplog) == ["P001", "P001"]


@only(lambda driver: driver is Wsgi)
@pytest.mark.parametrize(
    ("header", "value", "peer"),
    [
        ("X-Forwarded-For", "203.0.113.9", "203.0.113.9"),
        ("X-Forwarded-For", "1.2.3.4, 203.0.113.9:4711, 10.0.0.1", "203.0.113.9"),
        ("X-Forwarded-For", "10.0.0.7", "10.0.0.7"),
        ("X-Forwarded-For", "127.0.0.1", "127.0.0.1"),
        ("Forwarded", 'for="[2001:db8:0::7]";proto=https', "2001:db8::7"),
    ],
)
def test_header_from_which_the_server_took_the_address_is_not_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture, header: str, value: str, peer: str
) -> None:
    app = serve(LARGE)
    assert app.statuses(3, headers={header: value}, peer=peer) == [200, 200, 200]
    assert codes(caplog) == []


@only(lambda driver: driver is Wsgi)
def test_two_proxies_on_one_machine_are_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(LARGE)
    app.ask(headers={"X-Forwarded-For": "203.0.113.9, 127.0.0.1"}, peer="127.0.0.1")
    assert codes(caplog) == ["P001"]


@only(lambda driver: driver is Wsgi)
def test_forged_peer_is_escaped_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    app = serve(LARGE)
    app.ask(headers={"X-Forwarded-For": "203.0.113.9"}, peer="\x1b[31m\x9b")
    assert "P001" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)


@only(lambda driver: driver is Wsgi)
@pytest.mark.parametrize("options", [{"trusted_proxies": [PROXY]}, {"hops": 1}], ids=str)
def test_trusted_proxy_whose_header_does_not_arrive_is_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    app = serve(Route("/", (limited("9999/minute"),)), **options)
    app.statuses(1000, peer=PROXY)
    assert codes(caplog) == ["P002"]


@only(lambda driver: driver is Wsgi)
def test_health_checks_of_a_trusted_proxy_are_not_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(Route("/", (limited("9999/minute"),)), trusted_proxies=[PROXY])
    app.statuses(800, peer=PROXY)
    app.statuses(200, peer=PROXY, headers={"X-Forwarded-For": "203.0.113.9"})
    assert codes(caplog) == []


@only(lambda driver: driver is Wsgi)
@pytest.mark.parametrize(("peer", "expected"), [(PROXY, ["P002"]), ("203.0.113.7", [])])
def test_one_private_peer_of_nearly_all_requests_is_reported(
    serve: Serve, caplog: pytest.LogCaptureFixture, peer: str, expected: list[str]
) -> None:
    app = serve(Route("/", (limited("9999/minute"),)))
    app.statuses(960, peer=peer)
    for number in range(60):
        app.ask(peer=f"198.51.100.{number}")
    assert codes(caplog) == expected


@only(lambda driver: driver in {Wsgi, InFlask})
@pytest.mark.parametrize(
    ("several", "expected_processes", "expected"),
    [(True, 1, ["P003"]), (True, 4, []), (False, 1, [])],
)
def test_server_with_several_processes_is_reported_once(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    *,
    several: bool,
    expected_processes: int,
    expected: list[str],
) -> None:
    app = serve(LARGE, expected_processes=expected_processes)
    app.environ["wsgi.multiprocess"] = several
    app.statuses(3)
    assert codes(caplog) == expected


@pytest.mark.parametrize(
    ("id", "logged_in", "expected"),
    [
        (by_user, 0, 1),
        (by_user(missing=shared("visitors")), 0, 1),
        (by_user, 1, 0),
        (by_user(missing="refuse"), 0, 0),
    ],
)
def test_by_user_that_finds_no_user_is_reported(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    id: ReadyId,
    logged_in: int,
    expected: int,
) -> None:
    monkeypatch.setattr("penstock._web.identity.OBSERVED", 50)
    app = flask.Flask("shop")
    limits = Penstock(app, limits={"PerUser": "5000/minute"})

    @app.get("/orders")
    @limits.limit("PerUser", id=id)
    def orders() -> str:
        return "orders"

    @app.get("/account")
    @limits.limit("PerUser", id=id)
    def account() -> str:
        return "account"

    client = app.test_client()
    public = {"REMOTE_ADDR": "203.0.113.7"}
    for _ in range(logged_in):
        client.get("/account", environ_base={**public, "REMOTE_USER": "ada"})
    for path in ("/orders", "/account"):
        for _ in range(27):
            client.get(path, environ_base=public)
    assert caplog.text.count("P006:") == expected


def test_settings_of_another_package_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = flask.Flask("shop")
    app.config.update(RATELIMIT_STORAGE_URI="redis://", RATELIMIT_DEFAULT="5/minute")
    Penstock(app)
    assert codes(caplog) == ["P005"]
    assert "RATELIMIT_STORAGE_URI (here PENSTOCK_STORE)" in caplog.text


# Of flask-limiter and slowapi.
OF_APPLICATIONS = """
    application_limits auto_check config_filename default default_limits default_limits_cost
    default_limits_deduct_when default_limits_exempt_when default_limits_per_method
    fail_on_first_breach header_name_mapping headers_enabled in_memory_fallback
    in_memory_fallback_enabled key_func key_prefix meta_limits on_breach request_identifier
    retry_after storage_options storage_uri strategy swallow_errors
""".split()  # noqa: SIM905  a table of words
# Of these, django-ratelimit and fastapi-limiter.
OF_LIMITS = """
    block callback error_message group hours identifier key key_func method minutes on_breach
    per_method rate scope seconds times
""".split()  # noqa: SIM905  a table of words


OWN = "block_for cost deduct_when exempt_when id methods mode tiers".split()  # noqa: SIM905  as above


@pytest.mark.parametrize("keyword", [*OF_APPLICATIONS, *OWN])
def test_keyword_of_something_else_is_an_error(keyword: str) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Penstock(flask.Flask("shop"), **{keyword: "x"})  # type: ignore[arg-type]
    assert "xpected one of" not in str(caught.value), "the error does not say what to write"


@pytest.mark.parametrize("keyword", OF_LIMITS)
def test_keyword_of_another_packages_limit_is_an_error(keyword: str) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Penstock(flask.Flask("shop")).limit("5/minute", **{keyword: "x"})  # type: ignore[arg-type]
    assert "xpected one of" not in str(caught.value), "the error does not say what to write"


@pytest.mark.parametrize(
    ("limit", "hint"), [(lambda: "5/minute", "limit="), (5, None), (["5/minute"], None)]
)
def test_limit_of_another_type_is_an_error(limit: Any, hint: str | None) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Penstock(flask.Flask("shop")).limit(limit)
    assert ("in parentheses" in str(caught.value)) == (hint is not None)
    assert hint is None or hint in str(caught.value)


def test_function_in_place_of_the_application_is_an_error() -> None:
    with pytest.raises(penstock.ConfigError, match="id="):
        Penstock(lambda: "203.0.113.7")  # type: ignore[arg-type]


def test_text_in_place_of_a_limits_file_is_an_error_with_a_hint() -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Penstock(flask.Flask("shop"), limits="5/minute")
    assert "{'PerAddress': '5/minute'}" in str(caught.value)


def test_client_of_a_test_without_an_address_is_refused_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hello(request: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse("hello")

    starlette = Starlette(routes=[StarletteRoute("/", hello)])
    app = PenstockMiddleware(starlette, limit="5/minute", limits={})
    assert TestClient(app).get("/").status_code == 400
    assert "P004" in caplog.text
    client = TestClient(app, client=("203.0.113.7", 50000))
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("driver", "is_default"),
    [
        *product([Wsgi, Asgi, InFlask, InFastapi, InDjango, InDjangoWithoutMiddleware], [False]),
        *product([InFlask, InFastapi, InDjango], [True]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_first_request_walks_the_road_of_all_later_ones(
    serve: Serve, limiter: penstock.Limiter, is_default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock._web.setup_checks.OBSERVED", 20)
    limit = limited("Large", cost=lambda _: 0)
    route = Route("/", () if is_default else (limit,))
    app = serve(route, default=limit if is_default else None)
    walked: list[set[str]] = []

    def walk() -> None:
        seen: set[str] = set()

        def note(frame: Any, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                seen.add(frame.f_code.co_qualname)

        # Starlette's test client serves in a thread of its own.
        threading.setprofile(note)
        sys.setprofile(note)
        answer = app.ask()
        sys.setprofile(None)
        threading.setprofile(None)
        assert answer.header("RateLimit") == '"Large";r=100'
        walked.append(seen)

    walk()
    app.statuses(20)
    walk()
    first, later = walked
    # What is done at once, and what looks on.
    assert first - later >= {"Watch.look", "SetupChecks.observe"}
    assert later <= first
    # Nothing looks on any more, and a failing store still has its policy.
    limiter.close()
    assert app.statuses(2) == [200, 200]
