"""The views that the URLconf reaches, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from penstock.django.view_limits import THROTTLE, class_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_routes() -> Iterator[tuple[str, Any]]:
    """Yield the routes of the URLconf in order, each with its view."""
    if getattr(settings, "ROOT_URLCONF", None):
        yield from _below(get_resolver(), "/")


def _below(resolver: URLResolver, prefix: str) -> Iterator[tuple[str, Any]]:
    for pattern in resolver.url_patterns:
        route = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _below(pattern, route)
        elif isinstance(pattern, URLPattern):
            yield route, pattern.callback


def all_views() -> Iterator[Any]:
    """Yield the views of the URLconf, each once."""
    seen: set[int] = set()
    for _, view in all_routes():
        if id(view) not in seen:
            seen.add(id(view))
            yield view


def throttles_of(view: Any) -> Iterator[tuple[Any, Any, type]]:
    """Yield our throttles of a view, each with the view's scope and class."""
    view_class = class_of(view)
    if view_class is None:
        return
    arguments = getattr(view, "initkwargs", None) or {}
    scope = arguments.get("throttle_scope", getattr(view_class, "throttle_scope", None))
    classes = arguments.get("throttle_classes", getattr(view_class, "throttle_classes", ()))
    for throttle in classes:
        if hasattr(throttle, THROTTLE):
            yield throttle(), scope, view_class
