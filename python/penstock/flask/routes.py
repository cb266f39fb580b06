"""Limits of views and blueprints, kept until an application uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._web.rule import Rule


# Read by the classes of Flask-RESTful, which inherit an empty one.
_OF_METHODS: Final = "method_decorators"


class Routes:
    """Limits and exemptions of the blueprints of one application."""

    def __init__(self) -> None:
        self.rules: Final[dict[str, tuple[Rule, ...]]] = {}
        self.exempt: Final[set[str]] = set()


def blueprints_of(endpoint: str) -> list[str]:
    """Return the blueprints of an endpoint, from the innermost to the outermost.

    Examples:
        >>> from penstock.flask.routes import blueprints_of
        >>> blueprints_of("shop.orders.index")
        ['shop.orders', 'shop']
    """
    parts = endpoint.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def method_of(view: object, method: str) -> object:
    """Return the function of a class-based view for an HTTP method; `None` if there is none."""
    view_class = getattr(view, "view_class", None)
    function = getattr(view_class, method.lower(), None)
    # As in Flask, `get` answers HEAD.
    return getattr(view_class, "get", None) if function is None and method == "HEAD" else function


def read_attributes(view_class: type | None) -> tuple[str, ...]:
    """Return the names of the attributes whose decorators are applied to a class of views."""
    bases = getattr(view_class, "__bases__", ())
    is_read = any(hasattr(base, _OF_METHODS) for base in bases)
    return ("decorators", _OF_METHODS) if is_read else ("decorators",)


def decorators_of(view: object, method: str) -> Iterator[Any]:
    """Yield the decorators that Flask-RESTful applies to a method for each request.

    The outermost is first.
    """
    listed = getattr(getattr(view, "view_class", None), _OF_METHODS, ())
    yield from reversed(listed.get(method.lower(), ()) if isinstance(listed, Mapping) else listed)
