"""Attributes that decorators set on views, and how to read them."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.web.adapter import ViewLimits, nested_limits, outermost_limits
from penstock.web.limit_names import view_scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.web.rule import Rule

LIMITS: Final = "__penstock__"
EXEMPT: Final = "__penstock_exempt__"
THROTTLE: Final = "__penstock_throttle__"
"""Marks our throttles, for code that must not import REST framework."""
SIMILARITY: Final = 0.8
"""From this ratio on, a name is taken for a misspelled one. Names of different things have less."""

_ATTRIBUTES: Final = ("throttle_classes", "throttle_scope")
# `method_decorator` applies a decorator to a function of its own, and to the method at each call.
_DECORATED: Final = "django.utils.decorators:"
_checked: Final[set[type]] = set()
_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options", "trace")


def own_limits(view: object) -> ViewLimits | None:
    """Return the limits of a view; `None` if it has none, or another decorator is around them."""
    return outermost_limits(view, LIMITS)


def all_rules(view: object) -> Iterator[Rule]:
    """Yield the rules of a view and of its class, also those within other decorators."""
    view_class = class_of(view)
    functions = (view, getattr(view_class, "dispatch", None))
    methods = (method_of(view, method) for method in _METHODS)
    for limits in nested_limits((*functions, *methods), LIMITS):
        scope = None
        if limits.rules[0].scope.startswith(_DECORATED) and view_class is not None:
            scope = _scope_in(view_class, limits)
        for rule in limits.rules:
            yield rule if scope is None else replace(rule, scope=scope)


def _scope_in(view_class: type, limits: ViewLimits) -> str | None:
    """Return the scope of a method's limits, as a call of the method names it."""
    for cls in view_class.__mro__:
        for name, function in vars(cls).items():
            if getattr(function, LIMITS, None) is limits:
                return view_scope(cls.__module__, f"{cls.__qualname__}.{name}")
    return None


def class_of(view: object) -> type | None:
    """Return the class whose `as_view()` returned a view; `None` if there is none."""
    view_class: type | None = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return view_class


def check_view_class(view_class: type | None) -> None:
    """Check that a class of REST framework's views has no misspelled attribute of throttles.

    Raises:
        ConfigError: It has one, such as `throttle_scop`.
    """
    if view_class is None or view_class in _checked or not hasattr(view_class, _ATTRIBUTES[0]):
        return
    for name in dir(view_class):
        near = get_close_matches(name, _ATTRIBUTES, 1, SIMILARITY)
        if near and name not in _ATTRIBUTES:
            raise ConfigError(f"{name} is not read; did you mean {near[0]!r}?")
    _checked.add(view_class)


def method_of(view: object, method: str) -> object:
    """Return the function of a class-based view for an HTTP method; `None` if there is none."""
    # A view set maps methods to its functions in `actions`.
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    found = getattr(class_of(view), name, None)
    # As in Django, `get` answers HEAD.
    return method_of(view, "GET") if found is None and method == "HEAD" else found
