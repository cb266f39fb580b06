"""Names of limits that are written on a view without one.

Clients see them in header fields, so a name is as short as it can be: that of the view, with its
module only if another view has the same. Every process registers its views in the same order, so
all of them choose the same names. A view that is found later has its full name, because processes
serve requests in different orders.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock.locks import fork_safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._core import Limiter

_lock: Final = fork_safe(Lock())
# For each limiter, the names of scopes.
_names: Final[WeakKeyDictionary[Limiter, dict[str, str]]] = WeakKeyDictionary()


def view_scope(module: str, name: str) -> str:
    """Return the scope of a view: what tells it from all others.

    The template of a route can follow, after a space, if its routes count apart.

    Args:
        module: The view's module.
        name: The view's qualified name.

    Examples:
        >>> from penstock.web.limit_names import view_scope
        >>> view_scope("shop.views", "orders")
        'shop.views:orders'
    """
    return f"{module}:{name}"


def scope_name(scope: str, limiter: Limiter, *, is_late: bool = False) -> str:
    """Return the name of the limits of a scope; the same for each call.

    Args:
        scope: The scope.
        limiter: The limiter of the limits.
        is_late: Whether requests are served already, so that a new name must not depend on those
            before.

    Examples:
        >>> from penstock.web.limit_names import scope_name
        >>> limiter = penstock.Limiter({})
        >>> scope_name("shop.views:create.<locals>.orders", limiter)
        'orders'
        >>> scope_name("blog.views:orders", limiter)
        'views.orders'
        >>> scope_name("news.views:orders", limiter, is_late=True)
        'news.views.orders'
    """
    if ":" not in scope:
        # A name that the application chose.
        return scope
    with _lock:
        names = _names.setdefault(limiter, {})
        if scope not in names:
            *short, full = _candidates(scope)
            taken = {*limiter.limits, *names.values()}
            free = (name for name in short if not (is_late or name in taken))
            names[scope] = next(free, full)
        return names[scope]


def _candidates(scope: str) -> Iterator[str]:
    module, _, view = scope.partition(":")
    qualified, _, route = view.partition(" ")
    short = qualified.rpartition("<locals>.")[2]
    yield short
    if route:
        yield f"{short} {route}"
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield f"{'.'.join(parts[-length:])}.{short}"
    yield f"{module}.{view}"
