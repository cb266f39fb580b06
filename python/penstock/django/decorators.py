"""The decorator: limits on functions, methods, classes of views and what `as_view()` returns.

The limits of a view, of its class and the default limits are decided together by the outermost of
our decorators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestAborted,
    SuspiciousOperation,
)
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase
from django.views.generic import View

from penstock._web.lifecycle import refund_failed
from penstock._web.route_table import EXEMPT, ViewLimits, check_exempt, scope_of
from penstock._web.rule import RuleOptions, WrittenLimits
from penstock.django import conf
from penstock.django.app_limits import on_loop
from penstock.django.request import AsyncDjangoRequest, DjangoRequest, find_request, visit_of
from penstock.django.signals import limit_denied
from penstock.django.view_limits import (
    DECORATED,
    METHOD_MARK,
    METHOD_SCOPE,
    class_of,
    decorated_class,
    scope_of_method,
)
from penstock.errors import ConfigError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Limit
    from penstock._web.outcome import Outcome
    from penstock.django.request import DjangoVisit

_Target = TypeVar("_Target", bound=Callable[..., Any])

# Exceptions that Django turns into a status below 500.
_ANSWERS: Final = (
    BadRequest,
    Http404,
    MultiPartParserError,
    PermissionDenied,
    RateLimited,
    SuspiciousOperation,
)

_async_classes: Final[dict[type, bool]] = {}


class LimitDecorator(WrittenLimits):
    """Limits with their options, as `limit(...)` returns them: a decorator of views.

    The setting `PENSTOCK["DEFAULT"]` may contain it, too.
    """

    def __init__(
        self, limits: Sequence[str | Limit], options: RuleOptions, scope: str | None = None
    ) -> None:
        super().__init__(limits, options, scope)
        self._methods: Final[dict[tuple[object, type | None], ViewLimits]] = {}

    def __call__(self, target: _Target) -> _Target:
        """Limit a view or a class of views."""
        if isinstance(target, type):
            if not issubclass(target, View):
                raise _wrong_target(target)
            view_class: Any = target
            view_class.dispatch = self._wrap(view_class.dispatch, target)
            return target
        if isinstance(target, partial | _BoundMethod) and hasattr(target, "__wrapped__"):
            return cast("_Target", self._bound(target))
        return cast("_Target", self._wrap(target, target))

    def _bound(self, target: partial[Any] | _BoundMethod) -> _BoundMethod:
        # `method_decorator` decorates a bound method again for each call; its limits stay the same.
        if isinstance(target, _BoundMethod):
            inner, owner, call = target.limits, None, target.call
        else:
            inner, call = cast("Any", target).__wrapped__, target
            owner = type(getattr(call.func, "__self__", None))
        limits = self._methods.get((inner, owner))
        if limits is None:
            limits = self._methods[inner, owner] = self._method_limits(inner, owner)
        return _BoundMethod(limits, call)

    def _method_limits(self, inner: Any, owner: type | None) -> ViewLimits:
        if isinstance(inner, ViewLimits):
            return ViewLimits(inner.view, (self.rule(inner.rules[0].scope), *inner.rules))
        method: Callable[..., Any] = inner
        cls = decorated_class(owner, method)
        if cls is None:
            return ViewLimits(method, (self.rule(_scope_of(method)),))
        rule = self.rule(scope_of_method(cls, method.__name__))
        return self._methods.setdefault((method, cls), ViewLimits(method, (rule,)))

    def _wrap(self, view: Callable[..., Any], target: object) -> Callable[..., Any]:
        limits = ViewLimits.stacked(view, self.rule(_scope_of(target)))
        DECORATED.add(limits)
        inner = limits.view
        if iscoroutinefunction(inner):

            @wraps(view)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                native, http, owner = find_request(args, kwargs)
                return await _serve_async(limits, inner, native, http, owner, args, kwargs)

        elif getattr(inner, "__name__", "") == "dispatch":

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                native, http, owner = find_request(args, kwargs)
                serve = _serve_async if _is_async(owner) else _serve
                return serve(limits, inner, native, http, owner, args, kwargs)

        else:

            @wraps(view)
            def limited(*args: Any, **kwargs: Any) -> Any:
                if args and isinstance(http := args[0], HttpRequest):
                    return _serve(limits, inner, http, http, None, args, kwargs)
                native, http, owner = find_request(args, kwargs)
                return _serve(limits, inner, native, http, owner, args, kwargs)

        limits.put_on(limited)
        if limits.rules[0].scope.startswith(METHOD_SCOPE):
            # Stacked, they overwrite each other's other attributes.
            setattr(limited, f"{METHOD_MARK}{id(self)}", self)
        return limited


def _is_async(owner: object) -> bool:
    """Return whether the `dispatch` of a class is asynchronous; Django inspects all its methods."""
    view_class = type(owner)
    is_async = _async_classes.get(view_class)
    if is_async is None:
        is_async = _async_classes[view_class] = bool(getattr(view_class, "view_is_async", False))
    return is_async


class _BoundMethod:
    """A bound method from `method_decorator`, limited for one call."""

    __slots__ = ("__dict__", "call", "limits")

    def __init__(self, limits: ViewLimits, call: Callable[..., Any]) -> None:
        self.limits: Final = limits
        self.call: Final = call
        self.__wrapped__: Final = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        native, http, _ = find_request(args, kwargs)
        view = self.limits.view
        owner = getattr(getattr(self.call, "func", None), "__self__", None)
        is_async = iscoroutinefunction(view) or (
            getattr(view, "__name__", "") == "dispatch" and _is_async(owner)
        )
        serve = _serve_async if is_async else _serve
        return serve(self.limits, self.call, native, http, owner, args, kwargs)


def _serve(  # noqa: PLR0917  keywords take 360 instructions more
    limits: ViewLimits,
    view: Callable[..., Any],
    native: Any,
    http: HttpRequest,
    owner: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Evaluate the limits of a view, and call it if they allow the request."""
    app_limits, visit = conf.loaded or conf.current(), visit_of(http)
    is_inner, visit.has_writer = visit.has_writer, True
    outcome: Outcome | None = None
    try:
        compiled = app_limits.limits_for_view(limits, http, visit, owner)
        if compiled is not None:
            outcome = app_limits.evaluate(compiled, native, http, visit)
        if outcome is not None and outcome.refusal is not None:
            response: Any = app_limits.refusal_response(outcome)
        else:
            try:
                response = view(*args, **kwargs)
            except RateLimited as error:
                if is_inner:
                    raise
                _roll_back()
                response = app_limits.respond_to_denial(error, DjangoRequest(native, http), visit)
            except Exception as error:
                _fail(outcome, error, visit, is_inner=is_inner)
                raise
            if visit.deferred is not None and compiled is None:
                response = app_limits.finish_deferred(response, http, visit)
        if not is_inner and isinstance(response, HttpResponseBase):
            response = app_limits.apply_headers(response, http, visit)
    except BaseException as error:
        visit.stopped(error, is_inner=is_inner)
        raise
    finally:
        visit.has_writer = is_inner
    return response


# A generator with the steps of both adds half a microsecond to each request of a thread.
async def _serve_async(  # noqa: PLR0917  as above
    limits: ViewLimits,
    view: Callable[..., Any],
    native: Any,
    http: HttpRequest,
    owner: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Do the same as `_serve` on an event loop."""
    app_limits, visit = conf.loaded or conf.current(), visit_of(http)
    is_inner, visit.has_writer = visit.has_writer, True
    outcome: Outcome | None = None
    try:
        compiled = app_limits.limits_for_view(limits, http, visit, owner)
        if compiled is not None:
            outcome = await app_limits.evaluate_async(compiled, native, http, visit)
        if outcome is not None and outcome.refusal is not None:
            response: Any = await on_loop(app_limits.refusal_response, outcome)
        else:
            try:
                response = await view(*args, **kwargs)
            except RateLimited as error:
                if is_inner:
                    raise
                respond, request = app_limits.respond_to_denial, AsyncDjangoRequest(native, http)
                may_block = bool(limit_denied.receivers)
                response = await on_loop(respond, error, request, visit, may_block=may_block)
            except Exception as error:
                is_followed = visit.is_open or bool(visit.slots)
                may_block = app_limits.may_wait and is_followed
                await on_loop(
                    partial(_fail, is_inner=is_inner), outcome, error, visit, may_block=may_block
                )
                raise
            if visit.deferred is not None and compiled is None:
                finish, may_block = app_limits.finish_deferred, app_limits.may_wait
                response = await on_loop(finish, response, http, visit, may_block=may_block)
        if not is_inner and isinstance(response, HttpResponseBase):
            may_block = app_limits.may_wait and visit.is_open
            apply = app_limits.apply_headers
            response = await on_loop(apply, response, http, visit, may_block=may_block)
    except BaseException as error:
        visit.stopped(error, is_inner=is_inner, may_block=False)
        raise
    finally:
        visit.has_writer = is_inner
    return response


def is_answer(error: Exception) -> bool:
    """Return whether an exception is a response such as 404, not a failure of the view."""
    return isinstance(error, _ANSWERS)


def is_disconnect(error: BaseException | None) -> bool:
    """Return whether an exception came from a client that left before its request was read."""
    while error is not None:
        if isinstance(error, UnreadablePostError | RequestAborted):
            return True
        error = error.__cause__ or error.__context__
    return False


def _fail(outcome: Outcome | None, error: Exception, visit: DjangoVisit, *, is_inner: bool) -> None:
    """Refund a view that raised; settle it, unless an outer decorator or the middleware does."""
    if outcome is None and visit.deferred is not None:
        outcome = visit.deferred.outcome
    if outcome is not None and outcome.needs_response:
        if is_disconnect(error):
            outcome.keep()
        else:
            refund_failed(outcome, error, is_answer)
            if not is_inner:
                outcome.settle(HttpResponse(status=_status_of(error)))
    if not is_inner:
        visit.release()


def _status_of(error: Exception) -> int:
    """Return the status with which Django answers an exception."""
    if isinstance(error, Http404):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, PermissionDenied):
        return HTTPStatus.FORBIDDEN
    return HTTPStatus.BAD_REQUEST if is_answer(error) else HTTPStatus.INTERNAL_SERVER_ERROR


def _roll_back() -> None:
    """Roll back what the view has written, as its exception would have done."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)


class _Limit:
    """Type of `penstock.django.limit`."""

    def __call__(self, *limits: str | Limit, **options: Unpack[RuleOptions]) -> LimitDecorator:
        """Return a decorator that limits a view; several limits are one decision.

        It decorates functions, coroutine functions, methods (directly or by `method_decorator`),
        classes of views, what `as_view()` returns, and `AdminSite.login`.

        Args:
            limits: Names of loaded limits, rates such as `"30/minute"`, or `Limit` objects. A rate
                or a `Limit` is the view's own.
            options: Options of a limit, such as `id` and `cost`; docs/options.md lists them.

        Raises:
            ConfigError: An option or a limit is wrong.
        """
        return LimitDecorator(limits, options)

    def shared(
        self, *limits: str | Limit, scope: str, **options: Unpack[RuleOptions]
    ) -> LimitDecorator:
        """Return a decorator whose rates are shared by all views that it decorates.

        Args:
            limits: As in `limit`.
            scope: The name of the shared rates.
            options: As in `limit`.

        Raises:
            ConfigError: As `limit`.
        """
        return LimitDecorator(limits, options, scope)


limit: Final = _Limit()
"""Limit a view: `@limit("PerAddress")`; see its `__call__` and `limit.shared`."""


def exempt(target: _Target) -> _Target:
    """Exempt a view or a class of views from the default limits; its own limits stay.

    Raises:
        ConfigError: It is neither, such as an `AdminSite`.
    """
    check_exempt(target)
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


def _wrong_target(target: object) -> ConfigError:
    return ConfigError(f"limit a view or a class of views, found {target!r}")


def _scope_of(target: object) -> str:
    """Return the scope under which the rates of a view are kept."""
    if not callable(target):
        raise _wrong_target(target)
    return scope_of(class_of(target) or target)
