"""The limits of the project: which apply to a request, and the response if one denies it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.generic import View

from penstock.django.deferred import waits_for_user
from penstock.django.request import (
    AsyncDjangoRequest,
    Deferred,
    DjangoRequest,
    State,
    UserNotLoaded,
    state_of,
)
from penstock.django.signals import limit_denied
from penstock.django.streams import refund_broken_stream
from penstock.django.urls import all_views, throttles_of
from penstock.django.view_limits import (
    EXEMPT,
    LIMITS,
    THROTTLE,
    all_rules,
    class_of,
    method_of,
    own_limits,
)
from penstock.errors import Error
from penstock.web import adapter
from penstock.web.adapter import nested_limits, refusal_body
from penstock.web.compile import make_room
from penstock.web.headers import strictest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest

    from penstock.errors import RateLimited
    from penstock.web.adapter import ViewLimits
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Rule

_Compiled: TypeAlias = "tuple[RouteLimits | None, tuple[ViewLimits, ...], bool]"
"""Limits, the nested ones that are part of them, and whether they wait for the user."""

_HTML: Final = "text/html; charset=utf-8"
_METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
)
# List fields: ours are added to those that the view has set. The fields of limits replace others,
# because those of a cached page describe another request.
_LISTS: Final = frozenset({"Link", "Access-Control-Expose-Headers"})


class DjangoLimits(adapter.AppLimits):
    """Limits of the project's views.

    Attributes:
        guard: The guard of the project.
        defaults: The rules of all views.
        single_views: What is evaluated for the limits of a function, if it is the same for every
            request.
        single_throttles: What is evaluated for a throttle that is alone on its view and needs
            nothing else of the request, by its class, its limit, the view's scope and class.
    """

    def __init__(self, guard: Guard, defaults: tuple[Rule, ...]) -> None:
        super().__init__(guard, defaults)
        self.single_throttles: Final[dict[object, RouteLimits]] = {}
        self.single_views: Final[dict[ViewLimits, RouteLimits]] = {}
        self._may_wait: Final = guard.limiter.may_wait
        self._compiled: Final[dict[tuple[object, ...], _Compiled]] = {}

    def limits_for_view(
        self, limits: ViewLimits, http: HttpRequest, state: State, owner: type | None
    ) -> RouteLimits | None:
        """Return what a decorator must evaluate; `None` for nothing.

        The outermost decorator evaluates default limits and directly nested limits, too, all in one
        decision.
        """
        if not self.guard.enabled:
            return None
        single = self.single_views.get(limits)
        if single is not None and not state.covered:
            return single
        if limits in state.covered:
            state.covered = tuple(other for other in state.covered if other is not limits)
            return None
        # Limits of a method are reached after the authentication, and have no class here.
        is_class = owner is not None and getattr(limits.view, "__name__", "") == "dispatch"
        view_class = owner if is_class else class_of(limits.view)
        if state.is_decided or state.deferred is not None:
            compiled = self._compiled.get((limits,))
            if compiled is None:
                compiled = self._compile((limits,), limits.rules, (), view_class)
            return self._unless_deferred(compiled, state)
        match = http.resolver_match if state.has_middleware else None
        view = None if match is None else match.func
        method = http.method if http.method in _METHODS else None
        key = (limits, view, method, owner)
        compiled = self._compiled.get(key)
        if compiled is None:
            nested = _directly_nested(limits, owner, method or "")
            own = limits.rules
            for inner in nested:
                own += inner.rules
            rules = (*self._default_rules(view, method, own), *own)
            compiled = self._compile(key, rules, nested, view_class)
        state.covered = compiled[1]
        if compiled[2]:
            return self._unless_deferred(compiled, state)
        # Neither defaults nor a class can add limits to this function.
        is_single = not (self.defaults or owner or view_class)
        if is_single and compiled[0] is not None:
            make_room(self.single_views)
            self.single_views[limits] = compiled[0]
        return compiled[0]

    def limits_for_route(
        self, http: HttpRequest, *, after_view: bool = False
    ) -> RouteLimits | None:
        """Return the default limits, for a view that does not evaluate them itself.

        Args:
            http: Django's request.
            after_view: Whether the view has been called, or skipped.
        """
        if not (self.defaults and self.guard.enabled) or (match := http.resolver_match) is None:
            return None
        view, method = match.func, http.method if http.method in _METHODS else None
        key = (view, method, after_view)
        compiled = self._compiled.get(key)
        if compiled is None:
            by_view = not after_view and _has_limits(view, method)
            rules = () if by_view else self._default_rules(view, method)
            compiled = self._compile(key, rules, (), None if after_view else class_of(view))
        if not compiled[2]:
            return compiled[0]
        state = state_of(http)
        return None if state.is_decided else self._unless_deferred(compiled, state)

    def _unless_deferred(self, compiled: _Compiled, state: State) -> RouteLimits | None:
        """Return limits; if they wait for the user, defer them and return `None`."""
        limits, _, waits = compiled
        if limits is None or not waits:
            return limits
        if state.deferred is None:
            state.deferred = Deferred(self.evaluate)
        state.deferred.add(limits)
        return None

    def finish_deferred(
        self, response: HttpResponseBase, http: HttpRequest, state: State
    ) -> HttpResponseBase:
        """Return the response of a view with deferred limits: its own, or that of a refusal."""
        deferred = state.deferred
        if deferred is None:
            return response
        # The view may have ended before it has authenticated the request.
        deferred.evaluate(http, http, state)
        if deferred.outcome is not None and deferred.is_refused:
            refused = self.refusal_response(deferred.outcome)
            response.close()
            response = refused
        state.deferred = None
        return response

    async def afinish_deferred(
        self, response: HttpResponseBase, http: HttpRequest, state: State
    ) -> HttpResponseBase:
        """Do as `finish_deferred` on an event loop."""
        if state.deferred is None:
            return response
        call = partial(self.finish_deferred, response, http, state)
        return await _on_loop(call, waits=self._may_wait)

    def limits_for_rules(
        self, rules: tuple[Rule, ...], http: HttpRequest, state: State
    ) -> RouteLimits | None:
        """Return rules that a view supplies itself, such as throttles, with the default limits."""
        if not self.guard.enabled:
            return None
        match = None
        if state.has_middleware and not state.is_decided:
            match = http.resolver_match
        view = None if match is None else match.func
        method = http.method if view is not None and http.method in _METHODS else None
        key = (rules, view, method)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(key, (*self._default_rules(view, method, rules), *rules))
        return compiled[0]

    def evaluate(
        self, limits: RouteLimits, native: Any, http: HttpRequest, state: State
    ) -> Outcome | None:
        """Evaluate limits for a request, and send the signal of a denial.

        Args:
            limits: The limits.
            native: The view's request.
            http: Django's request.
            state: Its state.

        Returns:
            The outcome; `None` for an ordinary request, which may proceed.
        """
        if native is not http or state.is_decided:
            state.request = DjangoRequest(native, http)
        outcome = state.enter(limits)
        http.penstock = state.decision  # type: ignore[attr-defined]
        if limit_denied.receivers:
            _send(state.outcome, state.request)
        return outcome

    async def aevaluate(
        self, limits: RouteLimits, native: Any, http: HttpRequest, state: State
    ) -> Outcome | None:
        """Do as `evaluate` on an event loop.

        Database queries are awaited, or run in a thread.
        """
        request = state.request = AsyncDjangoRequest(native, http)
        try:
            try:
                outcome = await state.enter_async(limits)
            except UserNotLoaded:
                # So far, nothing has been spent.
                await request.load_user()
                outcome = await state.enter_async(limits)
        except SynchronousOnlyOperation:
            # A callable of the user queries the database.
            state.request = DjangoRequest(native, http)
            outcome = await sync_to_async(state.enter)(limits)
        http.penstock = state.decision  # type: ignore[attr-defined]
        if limit_denied.receivers:
            await _asend(state.outcome, state.request)
        return outcome

    def refusal_response(self, outcome: Outcome) -> HttpResponseBase:
        """Return the response of a refused request, without the fields of limits."""
        answer = self.guard.custom_response(outcome)
        if isinstance(answer, HttpResponseBase):
            if not getattr(answer, "is_rendered", True):
                answer.render()  # type: ignore[attr-defined]
            return answer
        if isinstance(answer, dict | list):
            return JsonResponse(answer, status=outcome.status, safe=False)
        fields, body = refusal_body(outcome, answer, "a response", text_type=_HTML)
        return HttpResponse(body, status=outcome.status, headers=dict(fields))

    async def arefusal_response(self, outcome: Outcome) -> HttpResponseBase:
        """Do as `refusal_response` on an event loop."""
        return await _on_loop(partial(self.refusal_response, outcome))

    def respond_to_denial(
        self, error: RateLimited, request: DjangoRequest, state: State
    ) -> HttpResponseBase:
        """Return the response of a view that raised `RateLimited` itself."""
        return self.refusal_response(self.record_denial(error, request, state))

    def record_denial(self, error: RateLimited, request: DjangoRequest, state: State) -> Outcome:
        """Return the outcome of a view that raised `RateLimited` itself."""
        http = request.http
        outcome = self.guard.denied(request, error.decision, state.outcome)
        state.keep(outcome)
        state.show(http)
        _send(outcome, request)
        return outcome

    async def arespond_to_denial(
        self, error: RateLimited, request: DjangoRequest, state: State
    ) -> HttpResponseBase:
        """Do as `respond_to_denial` on an event loop."""
        http = request.http
        outcome = self.guard.denied(request, error.decision, state.outcome)
        state.keep(outcome)
        state.show(http)
        await _asend(outcome, request)
        return await self.arefusal_response(outcome)

    def apply_headers(
        self, response: HttpResponseBase, http: HttpRequest, state: State
    ) -> HttpResponseBase:
        """Settle limits that depend on the response, and write the header fields."""
        if http.resolver_match is None and response.status_code != 429:  # noqa: PLR2004
            # No view was called. If the cache of the site has responded, the page has the fields of
            # the client for which it was rendered. (A 429 is another limiter's.)
            for name in self.guard.field_names:
                del response.headers[name]
        if not state.is_decided:
            return response
        if state.is_open:
            state.respond(response)
            state.show(http)
            refund_broken_stream(response, state)
        headers = response.headers
        # As `headers[name] = value`, which takes longer.
        set_field = headers.__setitem__
        for name, value in state.fields():
            is_added = name in _LISTS and name in headers
            set_field(name, f"{headers[name]}, {value}" if is_added else value)
        return response

    async def aapply_headers(
        self, response: HttpResponseBase, http: HttpRequest, state: State
    ) -> HttpResponseBase:
        """Do as `apply_headers` on an event loop."""
        call = partial(self.apply_headers, response, http, state)
        return await _on_loop(call, waits=self._may_wait and state.is_open)

    def registered_rules(self) -> Iterator[Rule]:
        """Yield the rules of all views and throttles, in the order of the URLconf."""
        yield from self.defaults
        for view in all_views():
            yield from all_rules(view)
            for throttle, scope, view_class in throttles_of(view):
                # The system checks report a faulty throttle, and it raises when it is used.
                with suppress(Error):
                    throttle_rule = throttle.penstock_rule(scope, view_class)
                    if throttle_rule is not None:
                        yield throttle_rule

    def _compile(
        self,
        key: tuple[object, ...],
        rules: tuple[Rule, ...],
        nested: tuple[ViewLimits, ...] = (),
        view_class: type | None = None,
    ) -> _Compiled:
        waits = view_class is not None and waits_for_user(view_class, rules)
        make_room(self._compiled)
        compiled = self._compiled[key] = (self.compile(rules), nested, waits)
        return compiled

    def _default_rules(
        self, view: object, method: str | None, own: tuple[Rule, ...] = ()
    ) -> tuple[Rule, ...]:
        if view is None:
            return ()
        functions = (view, class_of(view), method_of(view, method or ""))
        if any(hasattr(function, EXEMPT) for function in functions):
            return ()
        # Those within other decorators are decided later, but belong to the route, too.
        of_view = (view, getattr(class_of(view), "dispatch", None), method_of(view, method or ""))
        nested = [rule for limits in nested_limits(of_view, LIMITS) for rule in limits.rules]
        return self.defaults_beside((*own, *nested), method or "")


def _directly_nested(limits: ViewLimits, owner: type | None, method: str) -> tuple[ViewLimits, ...]:
    """Return the limits within others that are reached without a check that could refuse."""
    nested = []
    function: object = limits.view
    view_class = getattr(function, "view_class", None)
    if view_class is not None:
        owner, function = view_class, view_class.dispatch
        inner = own_limits(function)
        if inner is not None:
            nested.append(inner)
            function = inner.view
    if owner is not None and function is View.dispatch:
        # As in Django, `get` answers HEAD unless the class has a function for it.
        name = "get" if method == "HEAD" and not hasattr(owner, "head") else method.lower()
        inner = own_limits(getattr(owner, name, None))
        if inner is not None:
            nested.append(inner)
    return tuple(nested)


def _has_limits(view: object, method: str | None) -> bool:
    """Return whether a view is known to have a limit or a throttle of its own."""
    view_class = class_of(view)
    functions = (view, getattr(view_class, "dispatch", None), method_of(view, method or ""))
    if any(hasattr(function, LIMITS) for function in functions):
        return True
    arguments = getattr(view, "initkwargs", None) or getattr(view, "view_initkwargs", None) or {}
    throttles = arguments.get("throttle_classes", getattr(view_class, "throttle_classes", ()))
    return any(hasattr(throttle, THROTTLE) for throttle in throttles)


async def _on_loop(
    call: Callable[[], HttpResponseBase], *, waits: bool = False
) -> HttpResponseBase:
    """Make a call on an event loop, or in a thread if it waits or queries the database."""
    if not waits:
        # A callable of the user that queries raises this before anything has been changed.
        with suppress(SynchronousOnlyOperation):
            return call()
    return await sync_to_async(call)()


def _send(outcome: Outcome | None, request: DjangoRequest) -> None:
    if limit_denied.receivers and (arguments := _denial(outcome)) is not None:
        limit_denied.send_robust(_sender(request.http), request=request.native, **arguments)


async def _asend(outcome: Outcome | None, request: DjangoRequest) -> None:
    if limit_denied.receivers and (arguments := _denial(outcome)) is not None:
        await limit_denied.asend_robust(_sender(request.http), request=request.native, **arguments)


def _denial(outcome: Outcome | None) -> dict[str, Any] | None:
    """Return the arguments of the signal; `None` if no limit denied the request."""
    if outcome is None:
        return None
    denied = [part for part in outcome.parts if part.would_deny or not part.allowed]
    if outcome.refusal not in (None, "denied") or not denied:
        return None
    shadow = outcome.refusal is None
    decision = strictest(denied) if shadow else outcome.decision
    return {"decision": decision, "outcome": outcome, "shadow": shadow}


def _sender(http: HttpRequest) -> Any:
    return None if http.resolver_match is None else http.resolver_match.func
