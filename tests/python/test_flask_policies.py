"""Errors, streams and refusals in Flask."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import flask
import pytest
from sites import get, limit_fields, remaining

import penstock
from penstock.flask import Penstock, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from werkzeug.exceptions import HTTPException


def hello() -> str:
    """Greet."""
    return "hello"


def fails() -> str:
    raise ValueError


def not_found() -> str:
    flask.abort(404)


async def fails_async() -> str:
    raise ValueError


@pytest.mark.parametrize(
    ("view", "expected"), [(fails, 2), (fails_async, 2), (not_found, 1), (hello, 1)]
)
@pytest.mark.parametrize("handled", [False, True])
def test_failed_view_is_refunded(
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
    assert remaining(limiter, "PerAddress") == expected
    assert f";r={expected}" in limit_fields(response)["RateLimit"]


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


def test_fields_of_the_view_are_merged(app: flask.Flask, limiter: penstock.Limiter) -> None:
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
    # A list field has both values; a field with a single value has ours.
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
    assert response.json["why"].startswith("Too many requests for 127.0.0.1")
    assert limit_fields(response)["Retry-After"] == "30"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ({"error": "slow down"}, 429, '{"error":"slow down"}\n'),
        (("slow down", 420), 420, "slow down"),
    ],
)
def test_on_denied_may_return_what_a_view_returns(
    app: flask.Flask, limiter: penstock.Limiter, answer: Any, status: int, body: str
) -> None:
    limits = Penstock(app, limiter, on_denied=lambda _: answer)
    app.get("/")(limits.limit("PerAddress")(hello))
    *_, response = [get(app) for _ in range(3)]
    assert (response.status_code, response.text) == (status, body)
    assert limit_fields(response)["Retry-After"] == "30"


def test_broken_stream_is_refunded_and_closed(
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
    assert (remaining(limiter, "Large"), remaining(limiter, "PerUser")) == (99, 4)
    with pytest.raises(LookupError):
        assert get(app, "/?bad=1").text
    assert (remaining(limiter, "Large"), remaining(limiter, "PerUser")) == (99, 3)
    # The body of a HEAD response is closed before it starts.
    assert app.test_client().head("/").status_code == 200
    assert remaining(limiter, "Large") == 98
    assert closed == ["GET", "GET"]


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
