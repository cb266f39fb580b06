"""What is said about views and blueprints, before there is an application to say it to."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.web.rule import Rule

__all__ = ["AttributeNames", "Routes", "ViewLimits", "blueprints_of", "method_of"]

_numbers: Final = count(1)


class AttributeNames:
    """The attributes in which one extension keeps what it knows of views and requests.

    Each extension has its own, so that several may limit one view.

    Attributes:
        mark: Where a view keeps its mark.
        exempt: Where a view or a class says that it is exempt.
        outcome: Where a request keeps what has been decided about it.
        covered: Where a request keeps the mark of a method that its class has asked for.
    """

    def __init__(self) -> None:
        number = next(_numbers)
        self.mark: Final = f"__penstock_{number}__"
        self.exempt: Final = f"__penstock_{number}_exempt__"
        self.outcome: Final = f"_penstock_{number}_outcome"
        self.covered: Final = f"_penstock_{number}_covered"

    def mark_of(self, view: object) -> ViewLimits | None:
        """Give the mark of a view that the decorator itself has made, with nothing around it."""
        mark: ViewLimits | None = getattr(view, self.mark, None)
        # Other decorators copy our mark when they wrap; theirs is then another function.
        return mark if mark is not None and mark.wrapper is view else None

    def marks_within(self, view: object) -> list[ViewLimits]:
        """Give all marks of a view, from the outermost to the innermost."""
        marks: list[ViewLimits] = []
        while view is not None:
            mark: ViewLimits | None = getattr(view, self.mark, None)
            if mark is not None and mark not in marks:
                marks.append(mark)
            view = getattr(view, "__wrapped__", None)
        return marks


class ViewLimits:
    """What the decorator leaves on a view: its rules, from the outermost to the innermost."""

    __slots__ = ("__weakref__", "rules", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], rules: tuple[Rule, ...]) -> None:
        self.view = view
        self.rules = rules
        self.wrapper: Callable[..., Any] | None = None


class Routes:
    """What is said about the routes of one application by blueprint."""

    def __init__(self) -> None:
        self.rules: Final[dict[str, tuple[Rule, ...]]] = {}
        self.exempt: Final[set[str]] = set()


def blueprints_of(endpoint: str) -> list[str]:
    """Give the blueprints of an endpoint, from the innermost to the outermost.

    Example:
        >>> from penstock.flask.routes import blueprints_of
        >>> blueprints_of("shop.orders.index")
        ['shop.orders', 'shop']
    """
    parts = endpoint.split(".")
    return [".".join(parts[:most]) for most in range(len(parts) - 1, 0, -1)]


def method_of(view: object, method: str) -> object:
    """Give a class's view for an HTTP method; `None` where there is no class."""
    view_class = getattr(view, "view_class", None)
    found = getattr(view_class, method.lower(), None)
    # As Flask does: HEAD is answered by `get`.
    return getattr(view_class, "get", None) if found is None and method == "HEAD" else found
