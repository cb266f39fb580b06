"""Helpers that the tests of Flask and Django share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import flask
    from werkzeug.test import TestResponse

    import penstock

ADDRESS = "127.0.0.1"
"""The client's address in the test clients of both frameworks."""


def get(app: flask.Flask, path: str = "/", **options: Any) -> TestResponse:
    """Request a page of a Flask application as a new client."""
    return app.test_client().get(path, **options)


def limit_fields(response: Any) -> dict[str, str]:
    """Return the header fields of limits."""
    names = ("Retry-After", "Cache-Control")
    items = response.headers.items()
    return {name: value for name, value in items if name.startswith("RateLimit") or name in names}


def remaining(limiter: penstock.Limiter, name: str, id: str = ADDRESS) -> int:
    """Return the tokens that a bucket contains."""
    return limiter.check(name, id, 0).remaining


def site_remaining(name: str, id: str = ADDRESS) -> int:
    """Return the tokens that a bucket of the current Django settings contains."""
    from penstock.django import get_limiter  # noqa: PLC0415  the settings of the test

    return remaining(get_limiter(), name, id)
