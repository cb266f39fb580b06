"""What may be said about a limit in Flask, and what a refused client gets."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import flask
import pytest

import penstock
from penstock.flask import Penstock, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeLimiter
    from werkzeug.exceptions import HTTPException
    from werkzeug.test import TestResponse

ADDRESS = "127.0.0.1"


@pytest.fixture
def limiter(make_limiter: MakeLimiter) -> penstock.Limiter:
    return make_limiter(
        {"PerAddress": "2/minute", "PerUser": "5/hour", "Large": "100/minute", "Other": "9/minute"}
    )


@pytest.fixture
def app() -> flask.Flask:
    return flask.Flask(__name__)


@pytest.fixture
def limits(app: flask.Flask, limiter: penstock.Limiter) -> Penstock:
    return Penstock(app, limiter)


def get(app: flask.Flask, path: str = "/", **options: Any) -> TestResponse:
    """Get a page as a new client."""
    return app.test_client().get(path, **options)


def ours(response: TestResponse) -> dict[str, str]:
    """Give the header fields of limits."""
    names = ("Retry-After", "Cache-Control")
    return {k: v for k, v in response.headers if k.startswith("RateLimit") or k in names}


def left(limiter: penstock.Limiter, name: str, id: str = ADDRESS) -> int:
    """Give what a bucket has left."""
    return limiter.check(name, id, 0).remaining


def hello() -> str:
    """Greet."""
    return "hello"


def fails() -> str:
    raise ValueError


def says_no() -> str:
    flask.abort(404)


async def fails_later() -> str:
    raise ValueError


@pytest.mark.parametrize(
    ("view", "expected"), [(fails, 2), (fails_later, 2), (says_no, 1), (hello, 1)]
)
@pytest.mark.parametrize("handled", [False, True])
def test_request_whose_view_raised_is_given_back_if_so_said(
    app: flask.Flask,
    limits: Penstock,
    limiter: penstock.Limiter,
    view: Callable[..., Any],
    expected: int,
    *,
    handled: bool,
) -> None:
    app.get("/")(limits.limit("PerAddress", refund_on_error=True)(view))
    if handled:
        app.register_error_handler(ValueError, lambda _: ("sorry", 500))
    response = get(app)
    assert left(limiter, "PerAddress") == expected
    assert f";r={expected}" in ours(response)["RateLimit"]


def test_error_within_a_limited_function_gives_back_its_own_limit_alone(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    inner = limits.limit("PerUser", refund_on_error=True)(fails)

    @app.get("/")
    @limits.limit("PerAddress", refund_on_error=True)
    def view() -> str:
        with suppress(ValueError):
            inner()
        return ""

    assert ours(get(app))["RateLimit"] == '"PerAddress";r=1;t=30, "PerUser";r=5'
    assert (left(limiter, "PerAddress"), left(limiter, "PerUser")) == (1, 5)


def test_errors_of_the_view_have_headers_too(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("PerAddress")(says_no))
    response = get(app)
    assert response.status_code == 404
    assert ours(response)["RateLimit"] == '"PerAddress";r=1;t=30'


def test_view_may_have_headers_of_its_own(app: flask.Flask, limiter: penstock.Limiter) -> None:
    limits = Penstock(app, limiter, headers=["ietf", "sharkey"], expose_headers=True)

    @app.get("/")
    @limits.limit("PerAddress")
    def view() -> flask.Response:
        response = flask.Response("")
        response.headers["Access-Control-Expose-Headers"] = "X-Mine"
        response.headers["RateLimit"] = '"upstream";r=7'
        response.headers["X-RateLimit-Remaining"] = "7"
        return response

    response = get(app)
    # A list has both, one behind the other; of a single value there can be but one.
    assert response.headers.getlist("RateLimit") == [
        '"upstream";r=7',
        '"PerAddress";r=1;t=30',
    ]
    assert response.headers.getlist("X-RateLimit-Remaining") == ["1"]
    assert response.headers.getlist("Access-Control-Expose-Headers") == [
        "X-Mine",
        (
            "RateLimit-Policy, RateLimit, X-RateLimit-Remaining, X-RateLimit-Clear, "
            "X-RateLimit-Reset, Retry-After"
        ),
    ]


def test_error_handler_of_the_application_may_answer(app: flask.Flask, limits: Penstock) -> None:
    app.get("/")(limits.limit("PerAddress")(hello))

    @app.errorhandler(429)
    def too_many(error: HTTPException) -> tuple[dict[str, Any], int]:
        assert isinstance(error, RequestRefused)
        assert error.outcome.decision is not None
        return {"wait": error.outcome.retry_after, "why": error.description}, 429

    *_, response = [get(app) for _ in range(3)]
    assert response.json is not None
    assert response.json["wait"] == 30
    assert response.json["why"].startswith("Too many requests for 127.0.0.1")
    assert ours(response)["Retry-After"] == "30"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ("slow down", 429, "slow down"),
        ({"error": "slow down"}, 429, '{"error":"slow down"}\n'),
        (("slow down", 420), 420, "slow down"),
    ],
)
def test_refusal_can_be_the_applications_own(
    app: flask.Flask, limiter: penstock.Limiter, answer: Any, status: int, body: str
) -> None:
    limits = Penstock(app, limiter, on_denied=lambda _: answer)
    app.get("/")(limits.limit("PerAddress")(hello))
    *_, response = [get(app) for _ in range(3)]
    assert (response.status_code, response.text) == (status, body)
    assert ours(response)["Retry-After"] == "30"


def test_stream_that_breaks_gives_back_and_closes(
    app: flask.Flask, limits: Penstock, limiter: penstock.Limiter
) -> None:
    closed: list[str] = []

    def parts(request: flask.Request = flask.request) -> Iterator[str]:
        try:
            yield "some"
            if "bad" in request.args:
                raise LookupError
            yield "all"
        finally:
            closed.append(request.method)

    @app.get("/")
    @limits.limit("PerUser")
    @limits.limit("Large", refund_on_error=True)
    def stream() -> flask.Response:
        return flask.Response(flask.stream_with_context(parts()))

    assert get(app).text == "someall"
    assert (left(limiter, "Large"), left(limiter, "PerUser")) == (99, 4)
    with pytest.raises(LookupError):
        assert get(app, "/?bad=1").text
    assert (left(limiter, "Large"), left(limiter, "PerUser")) == (99, 3)
    # The body of HEAD is closed without having begun.
    assert app.test_client().head("/").status_code == 200
    assert left(limiter, "Large") == 98
    assert closed == ["GET", "GET"]


@pytest.mark.parametrize(
    ("kind", "handler", "text"),
    [
        (429, lambda error: (f"wait {error.outcome.retry_after}", 429), "wait 720"),
        (penstock.RateLimited, lambda error: (f"{error.decision.id}", 503), "ada"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_handler_of_the_application_answers_for_it(
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
