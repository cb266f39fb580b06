"""Limits of views and blueprints, kept until an application uses them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.web.rule import Rule

_numbers: Final = count(1)


class AttributeNames:
    """Names of the attributes that one extension sets on views and requests.

    Each extension has its own, so that several can limit one view.

    Attributes:
        limits: On a view: its `ViewLimits`.
        exempt: On a view or a class: set if it is exempt from the defaults.
        state: On a request: its `State`.
    """

    def __init__(self) -> None:
        number = next(_numbers)
        self.limits: Final = f"__penstock_{number}__"
        self.exempt: Final = f"__penstock_{number}_exempt__"
        self.state: Final = f"_penstock_{number}_state"


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
    found = getattr(view_class, method.lower(), None)
    # As in Flask, `get` answers HEAD.
    return getattr(view_class, "get", None) if found is None and method == "HEAD" else found
