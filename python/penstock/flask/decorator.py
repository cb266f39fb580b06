"""The decorator of the extension, and the scopes of what it decorates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flask import Blueprint, Flask
from flask.views import View

from penstock._web import route_table
from penstock._web.compile import view_scope
from penstock._web.rule import Rule, RuleOptions, WrittenLimits
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._core import Limit

RULE: Final = "__penstock_rule__"
"""The attribute of a function in the `decorators` of a class that holds its `Rule`."""
_AS_VIEW: Final = f"{View.as_view.__qualname__}.<locals>.view"
_Target = TypeVar("_Target", bound=Callable[..., Any] | Blueprint)


class LimitDecorator(WrittenLimits):
    """Limits with their options, as `limit` and `shared` return them: a decorator of views."""

    def __init__(
        self,
        limited: Callable[[Any, Rule], Any],
        limits: tuple[str | Limit, ...],
        options: RuleOptions,
        scope: str | None = None,
    ) -> None:
        super().__init__(limits, options, scope)
        self._limited: Final = limited

    def __call__(self, target: _Target) -> _Target:
        """Limit a view, a class of views or a blueprint."""
        limited: _Target = self._limited(target, self.rule(scope_of(target)))
        return limited


def wrong_target(target: object) -> ConfigError:
    """Return the error that something which is no view was limited."""
    return ConfigError(
        f"limit a view, a class of views or a blueprint, found {target!r}; for all views, use "
        f"limits.default(...)"
    )


def scope_of(target: object) -> str:
    """Return the scope under which the rates of a view are kept."""
    if isinstance(target, Blueprint):
        return view_scope(target.import_name, target.name)
    # A server calls an application; a wrapper around it would limit nothing.
    if not callable(target) or isinstance(target, Flask):
        raise wrong_target(target)
    scope = route_table.scope_of(target)
    # All functions that `as_view` returns have one qualified name; their name is the class's.
    name = getattr(target, "__name__", "")
    return scope.removesuffix(_AS_VIEW) + name if scope.endswith(_AS_VIEW) else scope
