"""The decorator of the Flask extension, on functions: ids, errors, streams and refusals."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import flask
import pytest
from flask.views import MethodView
from sites import ADDRESS, get, limit_fields, remaining
from werkzeug.test import Client
from werkzeug.wrappers import Response

import penstock
from penstock._web.identity import by_user
from penstock.flask import Penstock, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from werkzeug.exceptions import HTTPException


def hello() -> str:
    """Greet."""
    return "hello"


def test_view_called_without_a_request_is_not_limited(app: flask.Flask, limits: Penstock) -> None:
    view = limits.limit("PerAddress")(hello)
    assert [view() for _ in range(3)] == ["hello"] * 3
    with app.app_context():
        assert [view() for _ in range(3)] == ["hello"] * 3


def test_outcome_is_there_when_something_asks_for_it(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    search = limits.limit("Other")(hello)
    seen: list[str] = []

    @app.get("/<what>")
    @limits.limit("PerAddress")
    def view(what: str) -> str:
        @flask.after_this_request
        def note(response: flask.Response) -> flask.Response:
            outcome = limits.outcome()
            assert outcome is not None
            assert outcome.decision == limits.decision()
            seen.extend(limit.name for limit, _, _ in outcome.entries)
            return response

        if what == "fail":
            raise ValueError(what)
        return search() if what == "search" else ""

    asked, failed = get(app, "/ask"), get(app, "/fail")
    assert limit_fields(asked)["RateLimit"] == '"PerAddress";r=1;t=30'
    assert (failed.status_code, limit_fields(failed)["RateLimit"]) == (500, '"PerAddress";r=0;t=30')
    both = get(app, "/search", environ_base={"REMOTE_ADDR": "203.0.113.9"})
    assert limit_fields(both)["RateLimit"] == '"PerAddress";r=1;t=30, "Other";r=8;t=7'
    assert seen == ["PerAddress", "PerAddress", "Other"]
    assert remaining(limiter, "PerAddress") == 0


def test_fields_are_written_once_however_the_application_is_called(
    app: flask.Flask, limiter: penstock.Limiter
) -> None:
    """Some servers keep `app.wsgi_app` as it is before an extension replaces it."""
    inner: Any = app.wsgi_app
    app.get("/")(Penstock(app, limiter).limit("Large")(hello))

    def copied(environ: dict[str, Any], start_response: Any) -> Any:
        return app.wsgi_app({**environ}, start_response)

    def nested(environ: dict[str, Any], start_response: Any) -> Any:
        # The client is limited by both.
        return Response.from_app(app.wsgi_app, environ)(environ, start_response)

    for number, serve in enumerate((inner, app.wsgi_app, app, copied, nested), 1):
        response = Client(serve).get("/", environ_base={"REMOTE_ADDR": ADDRESS})
        assert response.headers.getlist("RateLimit") == [f'"Large";r={100 - number};t=1']
        assert len(response.headers.getlist("RateLimit-Policy")) == 1


def test_id_callable_may_take_no_argument(app: flask.Flask, limits: Penstock) -> None:
    @app.post("/")
    @limits.limit("PerAddress", id=lambda: flask.request.form["user"])
    def login() -> str:
        return ""

    client = app.test_client()
    statuses = [client.post("/", data={"user": "ada"}).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.post("/", data={"user": "grace"}).status_code == 200
    # Flask itself answers 400 for a missing field.
    assert client.post("/").status_code == 400


USERS: Final = (
    (None, f"address:{ADDRESS}"),
    ("", f"address:{ADDRESS}"),
    ("ada", "ada"),
    ("203.0.113.7", "user:203.0.113.7"),
    (7, "7"),
    ({"id": 7, "name": "ada"}, "7"),
    (SimpleNamespace(id="u-7"), "u-7"),
    (SimpleNamespace(id=UUID(int=7)), str(UUID(int=7))),
    ({"id": UUID(int=7)}, str(UUID(int=7))),
    (SimpleNamespace(id=object()), f"address:{ADDRESS}"),
    (SimpleNamespace(get_id=lambda: "u-8"), "u-8"),
    (SimpleNamespace(is_anonymous=True, id="guest"), f"address:{ADDRESS}"),
    (SimpleNamespace(), f"address:{ADDRESS}"),
)


def test_by_user_reads_the_user_of_the_application(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    users = iter(USERS)

    @app.before_request
    def load() -> None:
        flask.g.user = next(users)[0]

    app.get("/")(limits.limit("PerUser", id=by_user)(hello))
    for _, id in USERS:
        assert limit_fields(get(app))["RateLimit"] == '"PerUser";r=4;t=720'
        assert remaining(limiter, "PerUser", id) == 4
        limiter.reset("PerUser", id)


def test_by_user_reads_flask_login_where_it_is_used(
    app: flask.Flask,
    limits: Penstock,
    limiter: penstock.Limiter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = ModuleType("flask_login")
    user = SimpleNamespace(is_anonymous=False, get_id=lambda: "17")
    monkeypatch.setattr(login, "current_user", user, raising=False)
    monkeypatch.setitem(sys.modules, "flask_login", login)
    monkeypatch.setattr(app, "login_manager", object(), raising=False)
    app.get("/")(limits.limit("PerUser", id=by_user)(hello))
    get(app)
    assert remaining(limiter, "PerUser", "17") == 4


class WithoutThreads(flask.Flask):
    """Counts the coroutines that it runs, each in a thread with an event loop."""

    loops = 0

    def async_to_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        self.loops += 1
        return super().async_to_sync(func)


def test_refused_request_of_a_coroutine_starts_no_event_loop(limiter: penstock.Limiter) -> None:
    app = WithoutThreads("shop")
    limits = Penstock(app, limiter)

    @app.get("/")
    @limits.limit("PerAddress")
    async def view() -> str:
        return "hello"

    class Orders(MethodView):
        @limits.limit("PerUser")
        async def get(self) -> str:
            return "orders"

    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    assert [get(app).status_code for _ in range(9)] == [200] * 2 + [429] * 7
    assert [get(app, "/orders").status_code for _ in range(9)] == [200] * 5 + [429] * 4
    assert app.loops == 7


def test_limited_coroutine_can_be_awaited(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    @limits.limit("PerAddress")
    async def rows() -> str:
        return "rows"

    @app.get("/")
    async def view() -> str:
        return await rows()

    assert asyncio.run(rows()) == "rows"
    assert [get(app).status_code for _ in range(3)] == [200, 200, 429]


def fails() -> str:
    raise ValueError


def test_failed_view_whose_error_is_handled_is_refunded(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    app.get("/")(limits.limit("PerAddress", refund_on_error=True)(fails))
    app.register_error_handler(ValueError, lambda _: ("sorry", 500))
    assert limit_fields(get(app))["RateLimit"] == '"PerAddress";r=2'
    assert remaining(limiter, "PerAddress") == 2


def test_on_denied_may_return_what_a_view_returns(
    app: flask.Flask, limiter: penstock.Limiter
) -> None:
    limits = Penstock(app, limiter, on_denied=lambda _: ("slow down", 420))
    app.get("/")(limits.limit("PerAddress")(hello))
    *_, response = [get(app) for _ in range(3)]
    assert (response.status_code, response.text) == (420, "slow down")
    assert limit_fields(response)["Retry-After"] == "30"


def test_stream_of_a_head_request_is_closed_and_counted(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    @app.get("/")
    @limits.limit("Large", refund_on_error=True)
    def stream() -> flask.Response:
        return flask.Response(flask.stream_with_context(iter(["some"])))

    # The body is closed before it starts.
    assert app.test_client().head("/").status_code == 200
    assert remaining(limiter, "Large") == 99


def test_error_within_a_limited_function_refunds_its_own_limit_only(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    inner = limits.limit("PerUser", refund_on_error=True)(fails)

    @app.get("/")
    @limits.limit("PerAddress", refund_on_error=True)
    def view() -> str:
        with suppress(ValueError):
            inner()
        return ""

    assert limit_fields(get(app))["RateLimit"] == '"PerAddress";r=1;t=30, "PerUser";r=5'
    assert (remaining(limiter, "PerAddress"), remaining(limiter, "PerUser")) == (1, 5)


def test_error_handler_of_the_application_may_respond(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("PerAddress")(hello))

    @app.errorhandler(429)
    def too_many(error: HTTPException) -> tuple[dict[str, Any], int]:
        assert isinstance(error, RequestRefused)
        assert error.outcome.decision is not None
        return {"wait": error.outcome.retry_after, "why": error.description}, 429

    *_, response = [get(app) for _ in range(3)]
    assert response.json is not None
    assert response.json["wait"] == 30
    assert "127.0.0.1" in response.json["why"]
    assert limit_fields(response)["Retry-After"] == "30"


@pytest.mark.parametrize(
    ("kind", "handler", "text"),
    [
        (429, lambda error: (f"wait {error.outcome.retry_after}", 429), "wait 720"),
        (penstock.RateLimited, lambda error: (f"{error.decision.id}", 503), "ada"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_handler_of_the_application_responds_to_rate_limited(
    app: flask.Flask,
    limiter: penstock.Limiter,
    *,
    kind: Any,
    handler: Any,
    text: str,
    is_first: bool,
) -> None:
    if is_first:
        app.register_error_handler(kind, handler)
    Penstock(app, limiter)
    if not is_first:
        app.register_error_handler(kind, handler)

    @app.get("/")
    def export() -> str:
        limiter.spend("PerUser", "ada", 5)
        limiter.spend("PerUser", "ada").raise_if_denied()
        return "rows"

    assert get(app).text == text


def test_view_calls_another_limited_application_with_its_own_environ() -> None:
    outer, inner = flask.Flask("outer"), flask.Flask("inner")
    limiter = penstock.Limiter({"Slots": "1 in flight"})
    Penstock(outer, limiter).default("Slots")
    Penstock(inner, limits={"Inner": "2/minute"}).default("Inner")
    inner.add_url_rule("/", view_func=hello)

    @outer.get("/")
    def view() -> flask.Response:
        started: list[str] = []

        def start(status: str, *_: object) -> Callable[[bytes], object]:
            started.append(status)
            return bytes

        body = b"".join(inner.wsgi_app(flask.request.environ, start))
        return flask.Response(body, started[0])

    client = outer.test_client()
    responses = [client.get("/", buffered=True) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    # The visit of the outer application was not lost with that of the inner one.
    assert [limit_fields(response)["RateLimit"] for response in responses] == ['"Slots";r=0'] * 3
    assert limiter.peek("Slots", ADDRESS).remaining == 1
