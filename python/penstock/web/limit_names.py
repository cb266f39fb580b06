"""Names of limits that are written on a view without one.

Clients see them in header fields, so a name is as short as it can be: that of the view, with its
module only if another view has the same. Every process registers its views in the same order, so
all of them choose the same names. A view that is found later has its full name, because processes
serve requests in different orders.
"""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock.locks import fork_safe
from penstock.web.penalty import buckets_of_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._core import BoundLimit, Limit, Limiter
    from penstock.web.rule import Rule

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


class LimitNames:
    """The limits of a limiter that a guard has named.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter: Final = limiter
        self._defined: Final[set[str]] = set()
        self._is_started = False

    def end_start(self) -> None:
        """Do the same as `Guard.end_start`."""
        self._is_started = True

    def name_of(self, rule: Rule) -> str:
        """Return the name of the limits of a rule's scope."""
        return scope_name(rule.scope, self._limiter, is_late=self._is_started)

    def define(self, rule: Rule, limit: Limit) -> BoundLimit:
        """Define a limit under the name of its rule's scope, or with the first free number."""
        scope = self.name_of(rule)
        for number in count(1):
            name = scope if number == 1 else f"{scope}-{number}"
            known = self._limiter.limits
            if name not in known:
                if not known.keys().isdisjoint(buckets_of_blocks(name, rule.blocks)):
                    # The name of a block is taken, such as that of a view `login_blocked`.
                    continue
                self._defined.add(name)
                return self._limiter.define(name, limit)
            # Reused if the same application was created twice, each with a guard of one limiter.
            is_reused = rule.is_shared or self._is_started or name not in self._defined
            if is_reused and known.default(name) == limit:
                self._defined.add(name)
                return self._limiter.limit(name)
        raise AssertionError("count() is endless")
