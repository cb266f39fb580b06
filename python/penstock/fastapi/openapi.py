"""Refusals in the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock._web.headers import compile_style
from penstock.fastapi.routes import limited_routes, per_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

_TEXT: Final = {"type": "string"}
# RFC 9457, with the member of draft-ietf-httpapi-ratelimit-headers-11, section 5.
_PROBLEM: Final = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {**_TEXT, "format": "uri"},
        "title": _TEXT,
        "status": {"type": "integer", "const": 429},
        "detail": _TEXT,
        "violated-policies": {"type": "array", "items": _TEXT},
    },
}
_DESCRIPTIONS: Final = {
    "RateLimit": "The remaining requests of each limit, and when more become available.",
    "RateLimit-Policy": "The limits.",
}


def rate_limited_responses(
    headers: str | Sequence[str] | None = "ietf",
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route, a router or an application with limits.

    Args:
        headers: The header style or styles that were passed to `install`.

    Raises:
        ConfigError: A style is unknown.

    Examples:
        >>> from penstock.fastapi import rate_limited_responses
        >>> sorted(rate_limited_responses()[429]["headers"])
        ['RateLimit', 'RateLimit-Policy', 'Retry-After']
    """
    names = () if headers is None else compile_style(headers).names
    fields: dict[str, Any] = {
        "Retry-After": {
            "description": "Seconds to wait before a retry.",
            "schema": {"type": "integer", "minimum": 0},
        }
    }
    for name in names:
        fields[name] = {
            "description": _DESCRIPTIONS.get(name, "The state of the client's limits."),
            "schema": _TEXT,
        }
    return {
        429: {
            "description": "Too many requests",
            "headers": fields,
            "content": {"application/problem+json": {"schema": _PROBLEM}},
        }
    }


def document(app: FastAPI, headers: str | Sequence[str] | None) -> None:
    """Add the refusals of limited routes to an application's OpenAPI document."""
    make = app.openapi
    refusal = rate_limited_responses(headers)[429]

    def openapi() -> dict[str, Any]:
        schema = make()
        paths = schema.get("paths", {})
        for limited in limited_routes(app.routes):
            if not per_request(limited.limits):
                continue
            operations = paths.get(limited.path, {})
            for method in getattr(limited.route, "methods", None) or ():
                operation = operations.get(method.lower())
                if operation is not None:
                    operation.setdefault("responses", {}).setdefault("429", refusal)
        return schema

    # FastAPI documents this way of extending the document.
    app.openapi = openapi  # type: ignore[method-assign]
