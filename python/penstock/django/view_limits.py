"""Attributes that decorators set on views, and how to read them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from django.views.generic import View

from penstock._web.compile import view_scope
from penstock._web.route_table import Route, ViewLimits, nested_limits, outermost_limits
from penstock._web.rule import METHODS
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock._web.rule import Rule

THROTTLE: Final = "__penstock_throttle__"
"""Marks our throttles, for code that must not import REST framework."""
SIMILARITY: Final = 0.8
"""From this ratio on, a name is taken for a misspelled one. Names of different things have less."""

_ATTRIBUTES: Final = ("throttle_classes", "throttle_scope")
# `method_decorator` applies a decorator to a function of its own, and to the method at each call.
METHOD_SCOPE: Final = "django.utils.decorators:"
METHOD_MARK: Final = "__penstock_method__"
"""How the attributes of a method begin by which its class shows such decorators."""
DECORATED: Final[WeakSet[ViewLimits]] = WeakSet()
"""The limits of all functions that were decorated."""
_checked: Final[set[type]] = set()
_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options", "trace")


def route_of(view: object, method: str) -> Route:
    """Return a route as limits see it, by its view and a method."""
    view_class = class_of(view)
    functions = (view, getattr(view_class, "dispatch", None), method_of(view, method))
    return Route(method, functions, view_class)


def directly_within(limits: ViewLimits, owner: type | None, method: str) -> Iterator[ViewLimits]:
    """Yield the limits within others that are reached without a check that could refuse."""
    function: object = limits.view
    view_class = getattr(function, "view_class", None)
    if view_class is not None:
        owner, function = view_class, view_class.dispatch
        inner = outermost_limits(function)
        if inner is not None:
            yield inner
            function = inner.view
    if owner is not None and function is View.dispatch:
        # As in Django, `get` answers HEAD unless the class has a function for it.
        name = "get" if method == "HEAD" and not hasattr(owner, "head") else method.lower()
        inner = outermost_limits(getattr(owner, name, None))
        if inner is not None:
            yield inner


def all_rules(view: object) -> Iterator[Rule]:
    """Yield the rules of a view and of its class, also those within other decorators."""
    routes = [route_of(view, method) for method in ("", *_METHODS)]
    functions = [function for route in routes for function in route.functions]
    for limits in nested_limits(functions):
        if not limits.rules[0].scope.startswith(METHOD_SCOPE):
            yield from limits.rules
    names = {function.__name__ for function in functions if hasattr(function, "__name__")}
    seen: set[tuple[str, object]] = set()
    # From the base: the function of a class has the marks of the inherited one, too.
    for cls in reversed(getattr(class_of(view), "__mro__", ())):
        for name, function in [each for each in vars(cls).items() if each[0] in names]:
            for key, decorator in getattr(function, "__dict__", {}).items():
                if key.startswith(METHOD_MARK) and (name, decorator) not in seen:
                    seen.add((name, decorator))
                    yield decorator.rule(scope_of_method(cls, name))


def decorated_class(view_class: type | None, method: Callable[..., Any]) -> type | None:
    """Return the class on which `method_decorator` decorated a method, which may be inherited."""
    bases = () if view_class is None else view_class.__mro__
    for cls in reversed(bases):
        function = vars(cls).get(method.__name__)
        while function is not None:
            function = getattr(function, "__wrapped__", None)
            if function is method:
                return cls
    return None


def scope_of_method(cls: type, name: str) -> str:
    """Return the scope of a method's limits."""
    return view_scope(cls.__module__, f"{cls.__qualname__}.{name}")


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


def methods_of(view: object) -> Iterator[str]:
    """Yield the methods that a view may serve: all, unless its class has functions for some."""
    own = [method for method in map(str.upper, _METHODS) if method_of(view, method) is not None]
    yield from METHODS if set(own) <= {"OPTIONS"} else own


def method_of(view: object, method: str) -> object:
    """Return the function of a class-based view for an HTTP method; `None` if there is none."""
    # A view set maps methods to its functions in `actions`.
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    function = getattr(class_of(view), name, None)
    # As in Django, `get` answers HEAD.
    return method_of(view, "GET") if function is None and method == "HEAD" else function
