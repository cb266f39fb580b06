"""What is said about views and blueprints, before there is an application to say it to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.rule import Rule

__all__ = ["EXEMPT", "MARK", "Mark", "Routes", "mark_of", "method_of"]

MARK: Final = "__penstock__"
EXEMPT: Final = "__penstock_exempt__"


class Mark:
    """What the decorator leaves on a view: its rules, from the outermost to the innermost."""

    __slots__ = ("__weakref__", "rules", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], rules: tuple[Rule, ...]) -> None:
        self.view = view
        self.rules = rules
        self.wrapper: Callable[..., Any] | None = None


def mark_of(view: object) -> Mark | None:
    """Give the mark of a view that the decorator itself has made, with nothing around it."""
    mark: Mark | None = getattr(view, MARK, None)
    # Other decorators copy our mark when they wrap; theirs is then another function.
    return mark if mark is not None and mark.wrapper is view else None


class Routes:
    """What is said about the routes of one application by blueprint."""

    def __init__(self) -> None:
        self.rules: Final[dict[str, tuple[Rule, ...]]] = {}
        self.exempt: Final[set[str]] = set()


def method_of(view: object, method: str) -> object:
    """Give a class's view for an HTTP method; `None` where there is no class."""
    view_class = getattr(view, "view_class", None)
    found = getattr(view_class, method.lower(), None)
    # As Flask does: HEAD is answered by `get`.
    return getattr(view_class, "get", None) if found is None and method == "HEAD" else found
