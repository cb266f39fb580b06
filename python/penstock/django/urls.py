"""The views that the URLconf reaches, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from penstock.django.view_limits import THROTTLE, class_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


def has_throttle(view: Any) -> bool:
    """Return whether a throttle of ours decides the requests of a view."""
    return any(hasattr(throttle, THROTTLE) for throttle in _throttle_classes(view))


def has_own_throttles(view_class: type) -> bool:
    """Return whether a class of views has throttles of its own, not those of the settings."""
    bases = (each for each in view_class.__mro__ if each.__module__ == "rest_framework.views")
    of_settings = getattr(next(bases, None), "throttle_classes", None)
    return getattr(view_class, "throttle_classes", None) is not of_settings


def throttles_of(view: Any) -> Iterator[tuple[Any, Any, type]]:
    """Yield our throttles of a view, each with the view's scope and class."""
    view_class = class_of(view)
    if view_class is None:
        return
    scope = _arguments(view).get("throttle_scope", getattr(view_class, "throttle_scope", None))
    for throttle in _throttle_classes(view):
        if hasattr(throttle, THROTTLE):
            yield throttle(), scope, view_class


def unread_scopes(view: Any) -> Iterator[tuple[str, object]]:
    """Yield what looks like the limit of a view of REST framework, and no throttle reads."""
    view_class = class_of(view)
    if not hasattr(view_class, "throttle_classes"):
        return
    # A class of REST framework's reads the scope, too.
    names = ["limit", "scope"]
    if not any(
        hasattr(each, THROTTLE) or hasattr(each, "scope_attr") for each in _throttle_classes(view)
    ):
        names.append("throttle_scope")
    for name in names:
        value = _arguments(view).get(name, getattr(view_class, name, None))
        if isinstance(value, str):
            yield name, value


def _throttle_classes(view: Any) -> Iterable[type]:
    of_class = getattr(class_of(view), "throttle_classes", ())
    classes: Iterable[type] = _arguments(view).get("throttle_classes", of_class)
    return classes


def _arguments(view: Any) -> dict[str, Any]:
    """Return the arguments of `as_view`."""
    return getattr(view, "initkwargs", None) or getattr(view, "view_initkwargs", None) or {}
