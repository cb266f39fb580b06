"""What the decorator leaves on views, and how it is found again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.web.rule import Rule

__all__ = [
    "EXEMPT",
    "MARK",
    "THROTTLE",
    "ViewLimits",
    "class_of",
    "mark_of",
    "marks_of",
    "method_of",
]

MARK: Final = "__penstock__"
EXEMPT: Final = "__penstock_exempt__"
THROTTLE: Final = "__penstock_throttle__"
"""What tells a throttle of ours to those who must not import REST framework."""

_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options", "trace")


class ViewLimits:
    """The rules of a view, from the outermost to the innermost.

    Attributes:
        view: What is limited.
        wrapper: What stands in its place; `None` where it is made anew for each call.
    """

    __slots__ = ("__weakref__", "rules", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], rules: tuple[Rule, ...]) -> None:
        self.view: Final = view
        self.rules: Final = rules
        self.wrapper: Callable[..., Any] | None = None


def mark_of(view: object) -> ViewLimits | None:
    """Give the mark of a view that the decorator itself has made, with nothing around it."""
    mark: ViewLimits | None = getattr(view, MARK, None)
    # Other decorators copy our mark when they wrap; theirs is then another function.
    return mark if mark is not None and mark.wrapper is view else None


def class_of(view: object) -> type | None:
    """Give the class whose `as_view()` made a view; `None` where there is none."""
    made_by: type | None = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return made_by


def method_of(view: object, method: str) -> object:
    """Give a class's function for an HTTP method; `None` where there is no class."""
    # A view set says in `actions` which of its functions answers.
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    view_class = class_of(view)
    found = getattr(view_class, name, None)
    # As Django does: HEAD is answered by `get`.
    return method_of(view, "GET") if found is None and method == "HEAD" else found


def marks_of(view: object) -> Iterator[ViewLimits]:
    """Give all marks that stand on a view and on its class, also below other decorators."""
    seen: set[int] = set()
    functions = (view, getattr(class_of(view), "dispatch", None))
    for function in (*functions, *(method_of(view, method) for method in _METHODS)):
        step = function
        while step is not None and id(step) not in seen:
            seen.add(id(step))
            mark: ViewLimits | None = getattr(step, MARK, None)
            if mark is not None and id(mark) not in seen:
                seen.add(id(mark))
                yield mark
            step = getattr(step, "__wrapped__", None)
