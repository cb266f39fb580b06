"""What the OpenAPI document says about refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.fastapi.routes import asked, limited_routes
from penstock.web.headers import compile_style

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
_MEANINGS: Final = {
    "RateLimit": "What is left under each limit, and when there is more.",
    "RateLimit-Policy": "The limits.",
}


def rate_limited_responses(
    headers: str | Sequence[str] | None = "ietf",
) -> dict[int | str, dict[str, Any]]:
    """Give what stands in `responses=` of a route, a router or an application with limits.

    Args:
        headers: The header style or styles, as `install` was told.

    Raises:
        ConfigError: No style has this name.

    Example:
        >>> from penstock.fastapi import rate_limited_responses
        >>> sorted(rate_limited_responses()[429]["headers"])
        ['RateLimit', 'RateLimit-Policy', 'Retry-After']
    """
    names = () if headers is None else compile_style(headers).names
    fields: dict[str, Any] = {
        "Retry-After": {
            "description": "Seconds to wait.",
            "schema": {"type": "integer", "minimum": 0},
        }
    }
    for name in names:
        fields[name] = {
            "description": _MEANINGS.get(name, "How the client stands with its limits."),
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
    """Have an application's document say of each route with limits that it may refuse."""
    make = app.openapi
    refusal = rate_limited_responses(headers)[429]

    def openapi() -> dict[str, Any]:
        schema = make()
        paths = schema.get("paths", {})
        for limited in limited_routes(app.routes):
            if not asked(limited.limits):
                continue
            operations = paths.get(limited.route.path_format, {})
            for method in getattr(limited.route, "methods", None) or ():
                operation = operations.get(method.lower())
                if operation is not None:
                    operation.setdefault("responses", {}).setdefault("429", refusal)
        return schema

    # As FastAPI's own documentation replaces it.
    app.openapi = openapi  # type: ignore[method-assign]
