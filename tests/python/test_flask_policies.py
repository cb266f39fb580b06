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
    from werkzeug.exceptions import HTTPException


def hello() -> str:
    """Greet."""
    return "hello"


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
