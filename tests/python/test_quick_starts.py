"""The first example of five other packages, beside what their page in our docs writes for it.

Both are asked the same at the same times, and clients see the same. The packages are those that
the benchmarks install; fastapi-limiter is not one of them, so its README says what to expect.
"""

# ruff: noqa: PLC0415  Django's settings must be there first, and the packages may be missing

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import flask
import pytest
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import penstock
import penstock.fastapi
from penstock import ManualClock
from penstock.adapter import reset_guards

if TYPE_CHECKING:
    from conftest import DjangoSite

PAGE = Path(__file__).parents[2] / "docs/coming-from.md"


class Seen(NamedTuple):
    """The visible parts of a response."""

    status: int
    retry_after: str | None


Ask: TypeAlias = Callable[[str], Seen]


def in_flask(app: flask.Flask) -> Ask:
    def ask(path: str) -> Seen:
        answer = app.test_client().get(path)
        return Seen(answer.status_code, answer.headers.get("Retry-After"))

    return ask


def in_fastapi(app: FastAPI) -> Ask:
    def ask(path: str) -> Seen:
        answer = TestClient(app, client=("203.0.113.7", 50000)).get(path)
        return Seen(answer.status_code, answer.headers.get("Retry-After"))

    return ask


def in_django(site: DjangoSite, path: str, view: Any) -> Ask:
    site.route(path, view)

    def ask(_: str) -> Seen:
        answer = site.get(f"/{path}")
        return Seen(answer.status_code, answer.headers.get("Retry-After"))

    return ask


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """One clock for both: the others read Python's. It begins with a day, as windows do."""
    clock = ManualClock(start=1_699_920_000)
    monkeypatch.setattr("time.time", lambda: clock.now_ns() / 1e9)
    return clock


@pytest.fixture
def ours(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page."""
    defaults = {**flask.Flask.default_config, "PENSTOCK_CLOCK": clock}
    monkeypatch.setattr(flask.Flask, "default_config", defaults)
    make = penstock.fastapi.install
    monkeypatch.setattr(
        penstock.fastapi, "install", lambda app, **options: make(app, clock=clock, **options)
    )
    page = Sybil([PythonCodeBlockParser()]).parse(PAGE)
    page.namespace.update({"__name__": "quick_starts", "penstock": penstock})
    for example in page.examples():
        example.evaluate()
    reset_guards()
    names: dict[str, Any] = page.namespace
    return names


def play(asks: list[Ask], clock: ManualClock, script: Sequence[tuple[float, str, int]]) -> Any:
    """Request a path from each application at each step, and return the responses of each."""
    seen: list[list[list[Seen]]] = [[] for _ in asks]
    for wait, path, times in script:
        clock.advance(wait)
        for number, ask in enumerate(asks):
            seen[number].append([ask(path) for _ in range(times)])
    return seen


def statuses(step: list[Seen]) -> list[int]:
    return [seen.status for seen in step]


def test_flask_limiter(clock: ManualClock, ours: dict[str, Any]) -> None:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = flask.Flask("theirs")
    limiter = Limiter(
        get_remote_address,
        app=app,
        default_limits=["2 per minute", "1 per second"],
        storage_uri="memory://",
        strategy="fixed-window",
        headers_enabled=True,
    )

    @app.get("/news")
    def news() -> str:
        return "news"

    @app.get("/report")
    @limiter.limit("1 per day")
    def report() -> str:
        return "report"

    @app.get("/health")
    @limiter.exempt
    def health() -> str:
        return "up"

    script = [
        (0, "/news", 2),
        (1, "/news", 1),
        (1, "/news", 1),
        (58, "/news", 1),
        (0, "/report", 2),
        (0, "/health", 9),
    ]
    theirs, mine = play([in_flask(app), in_flask(ours["app"])], clock, script)
    assert [statuses(step) for step in mine] == [
        [200, 429],
        [200],
        [429],
        [200],
        [200, 429],
        [200] * 9,
    ]
    assert [statuses(step) for step in mine] == [statuses(step) for step in theirs]
    waits = [
        [step[-1].retry_after for step in steps if step[-1].status == 429]
        for steps in (mine, theirs)
    ]
    assert waits[0] == ["1", "58", "86400"]
    # Its waits are a second longer than needed.
    assert [int(wait or 0) - 1 for wait in waits[1]] == [int(wait or 0) for wait in waits[0]]


def test_slowapi(clock: ManualClock, ours: dict[str, Any]) -> None:
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    app = FastAPI()
    limiter = app.state.limiter = Limiter(key_func=get_remote_address)
    handler: Any = _rate_limit_exceeded_handler
    app.add_exception_handler(RateLimitExceeded, handler)

    @app.get("/home")
    @limiter.limit("5/minute")
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("home")

    script = [(0, "/home", 7), (59, "/home", 1), (1, "/home", 6)]
    theirs, mine = play([in_fastapi(app), in_fastapi(ours["api"])], clock, script)
    assert [statuses(step) for step in mine] == [[200] * 5 + [429] * 2, [429], [200] * 5 + [429]]
    assert [statuses(step) for step in mine] == [statuses(step) for step in theirs]
    assert mine[0][-1].retry_after == "60"


def test_fastapi_limiter(clock: ManualClock, ours: dict[str, Any]) -> None:
    (mine,) = play([in_fastapi(ours["greetings"])], clock, [(0, "/", 3), (5, "/", 3)])
    assert [statuses(step) for step in mine] == [[200, 200, 429]] * 2
    assert mine[0][-1].retry_after == "5"


def test_django_ratelimit(clock: ManualClock, ours: dict[str, Any], site: DjangoSite) -> None:
    from django.http import HttpRequest, HttpResponse
    from django_ratelimit.decorators import ratelimit

    def orders(request: HttpRequest) -> HttpResponse:
        return HttpResponse("orders")

    site.set(PENSTOCK={"CLOCK": clock})
    limited = ratelimit(key="ip", rate="100/h")(orders)
    asks = [in_django(site, "theirs", limited), in_django(site, "mine", ours["orders"])]
    # Its windows begin at an instant that depends on the client.
    theirs, mine = play(asks, clock, [(0, "", 102), (3600, "", 1)])
    assert [statuses(step) for step in mine] == [[200] * 100 + [429] * 2, [200]]
    # Its refusals are 403, without a time.
    assert [statuses(step) for step in theirs] == [[200] * 100 + [403] * 2, [200]]
    assert mine[0][-1].retry_after == "3600"


def test_rest_framework(
    clock: ManualClock, ours: dict[str, Any], site: DjangoSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rest_framework.response import Response
    from rest_framework.throttling import AnonRateThrottle, SimpleRateThrottle, UserRateThrottle
    from rest_framework.views import APIView

    rates = {"anon": "100/day", "user": "1000/day"}
    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", rates)
    monkeypatch.setattr(SimpleRateThrottle, "timer", lambda _: clock.now_ns() / 1e9)

    class View(APIView):
        def get(self, _: Any) -> Response:
            return Response({})

    site.set(PENSTOCK={"CLOCK": clock})
    asks = [
        in_django(site, name, View.as_view(throttle_classes=throttles))
        for name, throttles in (
            ("theirs", [AnonRateThrottle, UserRateThrottle]),
            ("mine", [ours["AnonymousThrottle"], ours["UserThrottle"]]),
        )
    ]
    script = [(0, "", 102), (86_399, "", 1), (1, "", 1)]
    theirs, mine = play(asks, clock, script)
    assert [statuses(step) for step in mine] == [[200] * 100 + [429] * 2, [429], [200]]
    assert mine == theirs
