"""The decorator: limits on functions, methods, classes of views and what `as_view()` gives.

A view's limits, those of its class and those of all views are one decision, made where the
outermost decorator of ours stands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.db import connections
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase
from django.views.generic import View

from penstock.django import conf
from penstock.django.request import DjangoRequest, LoopRequest, seen, state_of
from penstock.django.view_limits import EXEMPT, MARK, ViewLimits, class_of, mark_of
from penstock.errors import ConfigError, RateLimited
from penstock.web.rule import Rule, RuleOptions, make_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Limit
    from penstock.web.outcome import Outcome

__all__ = ["Limiting", "exempt", "is_failure", "limit"]

_Target = TypeVar("_Target", bound=Callable[..., Any])

# What Django answers with a status below 500.
_ANSWERS: Final = (
    BadRequest,
    Http404,
    MultiPartParserError,
    PermissionDenied,
    RateLimited,
    SuspiciousOperation,
)

_async_classes: Final[dict[type, bool]] = {}


class Limiting:
    """Some limits with their options: what `limit(...)` gives, to be put on views.

    It may also stand in the setting `PENSTOCK["DEFAULT"]`.
    """

    __slots__ = ("__weakref__", "_limits", "_marks", "_options", "_shared")

    def __init__(
        self, limits: Sequence[str | Limit], options: RuleOptions, scope: str | None = None
    ) -> None:
        # Made once for nothing, so that a mistake is found where it was written.
        rule = make_rule(limits, scope or "", options, is_shared=scope is not None)
        self._limits: Final = tuple(limits)
        self._options: Final = options
        self._shared: Final = None if scope is None else rule
        self._marks: Final[dict[tuple[object, type | None], ViewLimits]] = {}

    def rule(self, scope: str) -> Rule:
        """Give the rule of these limits on a view, whose texts are kept under `scope`."""
        return self._shared or make_rule(self._limits, scope, self._options)

    def __call__(self, target: _Target) -> _Target:
        """Limit a view or a class of views."""
        if isinstance(target, type):
            if not issubclass(target, View):
                raise ConfigError(f"a limit goes on a view or a class of views, found {target!r}")
            limited: Any = target
            limited.dispatch = self._wrapped(limited.dispatch, target)
            return target
        if isinstance(target, partial | _Bound) and hasattr(target, "__wrapped__"):
            return cast("_Target", self._bound(target))
        return cast("_Target", self._wrapped(target, target))

    def _mark(self, view: Callable[..., Any], target: object) -> ViewLimits:
        rule = self.rule(_scope_of(target))
        stacked = mark_of(view)
        # Decorators one on another are one decision, so there is one wrapper.
        if stacked is not None:
            return ViewLimits(stacked.view, (rule, *stacked.rules))
        return ViewLimits(view, (rule,))

    def _bound(self, target: partial[Any] | _Bound) -> _Bound:
        # `method_decorator` decorates a bound method anew for each call; its mark is one and the
        # same.
        if isinstance(target, _Bound):
            inner, owner, call = target.mark, None, target.call
        else:
            inner, call = cast("Any", target).__wrapped__, target
            owner = type(getattr(call.func, "__self__", None))
        mark = self._marks.get((inner, owner))
        if mark is None:
            mark = self._marks[inner, owner] = self._mark_of_method(inner, owner)
        return _Bound(mark, call)

    def _mark_of_method(self, inner: Any, owner: type | None) -> ViewLimits:
        if isinstance(inner, ViewLimits):
            return ViewLimits(inner.view, (self.rule(inner.rules[0].scope), *inner.rules))
        method: Callable[..., Any] = inner
        name = method.__name__
        for cls in owner.__mro__ if owner is not None else ():
            # The class on which it was put, for the method itself may be a parent's.
            if getattr(vars(cls).get(name), "__wrapped__", None) is method:
                scope = f"{cls.__module__}.{cls.__qualname__}.{name}"
                return self._marks.setdefault(
                    (method, cls), ViewLimits(method, (self.rule(scope),))
                )
        return ViewLimits(method, (self.rule(_scope_of(method)),))

    def _wrapped(self, view: Callable[..., Any], target: object) -> Callable[..., Any]:
        mark = self._mark(view, target)
        inner = mark.view
        if iscoroutinefunction(inner):

            @wraps(view)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                native, http, owner = seen(args, kwargs)
                return await _serve_later(mark, inner, native, http, owner, args, kwargs)

        elif getattr(inner, "__name__", "") == "dispatch":

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                native, http, owner = seen(args, kwargs)
                serve = _serve_later if _is_async(owner) else _serve
                return serve(mark, inner, native, http, owner, args, kwargs)

        else:

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                if args and isinstance(args[0], HttpRequest):
                    return _serve(mark, inner, args[0], args[0], None, args, kwargs)
                native, http, owner = seen(args, kwargs)
                return _serve(mark, inner, native, http, owner, args, kwargs)

        mark.wrapper = limited
        setattr(limited, MARK, mark)
        return limited


def _is_async(owner: object) -> bool:
    """Whether the `dispatch` of a class gives something to await: Django looks at all methods."""
    view_class = type(owner)
    found = _async_classes.get(view_class)
    if found is None:
        found = _async_classes[view_class] = bool(getattr(view_class, "view_is_async", False))
    return found


class _Bound:
    """A bound method that `method_decorator` has handed to us, limited for one call."""

    __slots__ = ("__dict__", "call", "mark")

    def __init__(self, mark: ViewLimits, call: Callable[..., Any]) -> None:
        self.mark: Final = mark
        self.call: Final = call
        self.__wrapped__: Final = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        native, http, _ = seen(args, kwargs)
        view = self.mark.view
        owner = getattr(getattr(self.call, "func", None), "__self__", None)
        is_async = iscoroutinefunction(view) or (
            getattr(view, "__name__", "") == "dispatch" and _is_async(owner)
        )
        serve = _serve_later if is_async else _serve
        return serve(self.mark, self.call, native, http, owner, args, kwargs)


def _serve(  # noqa: PLR0917  the hot path: keywords would cost
    mark: ViewLimits,
    view: Callable[..., Any],
    native: Any,
    http: HttpRequest,
    owner: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Ask a view's limits, and let it answer if they allow."""
    installed = conf.current()
    state = state_of(http)
    is_inner, state.is_told = state.is_told, True
    try:
        plan = installed.due(mark, http, state, None if owner is None else type(owner))
        outcome = None if plan is None else installed.ask(plan, native, http, state)
        if outcome is not None and outcome.refusal is not None:
            response: Any = installed.refusal(outcome)
        else:
            try:
                response = view(*args, **kwargs)
            except RateLimited as error:
                if is_inner:
                    raise
                _roll_back()
                response = installed.raised(error, DjangoRequest(native, http), state)
            except Exception as error:
                _give_back_for(outcome, error)
                raise
    finally:
        state.is_told = is_inner
    if is_inner or not isinstance(response, HttpResponseBase):
        return response
    return installed.tell(response, http, state)


async def _serve_later(  # noqa: PLR0917  as above
    mark: ViewLimits,
    view: Callable[..., Any],
    native: Any,
    http: HttpRequest,
    owner: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Do as `_serve` on an event loop."""
    installed = conf.current()
    state = state_of(http)
    request = LoopRequest(native, http)
    is_inner, state.is_told = state.is_told, True
    try:
        plan = installed.due(mark, http, state, None if owner is None else type(owner))
        outcome = None if plan is None else await installed.aask(plan, request, state)
        if outcome is not None and outcome.refusal is not None:
            response: Any = await installed.arefusal(outcome)
        else:
            try:
                response = await view(*args, **kwargs)
            except RateLimited as error:
                if is_inner:
                    raise
                response = await installed.araised(error, request, state)
            except Exception as error:
                _give_back_for(outcome, error)
                raise
    finally:
        state.is_told = is_inner
    if is_inner or not isinstance(response, HttpResponseBase):
        return response
    return await installed.atell(response, http, state)


def _give_back_for(outcome: Outcome | None, error: Exception) -> None:
    if outcome is not None and is_failure(error):
        outcome.refund()


def is_failure(error: Exception) -> bool:
    """Whether an exception is a failure of the view, and not an answer such as 404."""
    return not isinstance(error, _ANSWERS)


def _roll_back() -> None:
    """Have what the view has written undone, as if its exception had gone on."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)


class _Limit:
    """Makes limits for views; what `penstock.django.limit` is."""

    def __call__(self, *limits: str | Limit, **options: Unpack[RuleOptions]) -> Limiting:
        """Make a decorator; several limits are one decision.

        It goes on functions, `async` functions, methods, with `method_decorator` or bare, classes
        of views, what `as_view()` gives, and `AdminSite.login`.

        Args:
            limits: Names of limits, texts such as `"30/minute"` that belong to the view alone, or
                limits.
            options: See `penstock.web.rule.RuleOptions`.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        return Limiting(limits, options)

    def shared(self, *limits: str | Limit, scope: str, **options: Unpack[RuleOptions]) -> Limiting:
        """Make a decorator whose text limits are one for all views that it is put on.

        Args:
            limits: As in `limit`.
            scope: The name under which texts are kept.
            options: As in `limit`.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        return Limiting(limits, options, scope)


limit: Final = _Limit()
"""Limit a view: `@limit("PerAddress")`; see its `__call__` and `limit.shared`."""


def exempt(target: _Target) -> _Target:
    """Free a view or a class of views from the limits of all views; its own limits stay."""
    try:
        setattr(target, EXEMPT, True)
    except AttributeError:
        # A bound method takes no attributes.
        @wraps(target)
        def exempted(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        setattr(exempted, EXEMPT, True)
        return cast("_Target", exempted)
    return target


def _scope_of(target: object) -> str:
    """Give the name under which the text limits of a view are kept."""
    if not callable(target):
        raise ConfigError(f"a limit goes on a view or a class of views, found {target!r}")
    named = class_of(target) or (target if hasattr(target, "__qualname__") else type(target))
    return f"{named.__module__}.{named.__qualname__}"
