"""The limits of the project: which apply to a request, and the response if one denies it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from penstock._web.headers import strictest
from penstock._web.route_table import (
    RouteTable,
    functions_within,
    hides_exemption,
    nested_limits,
    never_counting,
)
from penstock._web.rule import METHODS, unread_limits
from penstock.django.deferred import waits_for_user
from penstock.django.ends import watch_request, watch_response
from penstock.django.request import (
    AsyncDjangoRequest,
    Deferred,
    DjangoRequest,
    DjangoVisit,
    UserNotLoaded,
)
from penstock.django.signals import limit_denied
from penstock.django.urls import (
    all_routes,
    all_views,
    has_own_throttles,
    has_throttle,
    throttles_of,
    unread_scopes,
)
from penstock.django.view_limits import (
    DECORATED,
    all_rules,
    class_of,
    directly_within,
    methods_of,
    route_of,
)
from penstock.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest

    from penstock._web.decide import RouteLimits
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import Mistake, PlaceLimits, Route, ViewLimits
    from penstock._web.rule import Rule
    from penstock.errors import RateLimited

_Answer = TypeVar("_Answer")
_Arguments = TypeVarTuple("_Arguments")

_HTML: Final = "text/html; charset=utf-8"
# List fields: ours are added to those that the view has set. The fields of limits replace others,
# because those of a cached page describe another request.
_LISTS: Final = frozenset({"Link", "Access-Control-Expose-Headers"})


class DjangoLimits(RouteTable):
    """Limits of the project's views.

    Attributes:
        guard: The guard of the project.
        defaults: The rules of all views.
        may_wait: Whether a call of the store may wait for a server or for another process.
    """

    def __init__(self, guard: Guard, defaults: tuple[Rule, ...]) -> None:
        super().__init__(guard, defaults)
        self.may_wait: Final = guard.limiter.may_wait
        logging.getLogger("django.request").addFilter(_is_reported)

    def limits_for_view(
        self, limits: ViewLimits, http: HttpRequest, visit: DjangoVisit, view_object: object
    ) -> RouteLimits | None:
        """Return what a decorator must evaluate; `None` for nothing.

        The outermost decorator evaluates default limits and directly nested limits, too, all in one
        decision.

        Args:
            limits: The decorator's.
            http: Django's request.
            visit: Its visit.
            view_object: The view, if it is the object of a class; else `None`.
        """
        if not self.guard.enabled:
            return None
        if limits in visit.covered:
            visit.covered = tuple(other for other in visit.covered if other is not limits)
            return None
        is_first = not visit.is_decided and visit.deferred is None
        # Only the middleware applies the default limits of a view.
        needs_view = is_first and visit.has_middleware
        view, method = self.view_of(http) if needs_view else (None, "")
        owner = None if view_object is None else type(view_object)
        key = (limits, view, method, owner, is_first)
        place = self.compiled.get(key)
        if place is None:
            within = directly_within(limits, owner, method) if is_first else ()
            route = None if view is None else route_of(view, method)
            # Limits of a method are reached after the authentication, and have no class here.
            is_class = owner is not None and getattr(limits.view, "__name__", "") == "dispatch"
            view_class = owner if is_class else class_of(limits.view)
            place = self._add(key, route, view_class, limits, *within)
        if is_first:
            visit.covered = place.covered
        return self._defer(place, visit) if place.needs_user else place.limits

    def enter_route(
        self, http: HttpRequest, visit: DjangoVisit, *, after_view: bool = False
    ) -> HttpResponseBase | None:
        """Evaluate the default limits if the view has not; return the response of a refusal.

        Args:
            http: Django's request.
            visit: Its visit.
            after_view: Whether the view has been called, or skipped.
        """
        limits = self._limits_for_route(http, visit, after_view=after_view)
        outcome = None if limits is None else self.evaluate(limits, http, http, visit)
        if outcome is None or outcome.refusal is None:
            return None
        return self.refusal_response(outcome)

    async def enter_route_async(
        self, http: HttpRequest, visit: DjangoVisit, *, after_view: bool = False
    ) -> HttpResponseBase | None:
        """Do the same as `enter_route` on an event loop."""
        limits = self._limits_for_route(http, visit, after_view=after_view)
        outcome = None if limits is None else await self.evaluate_async(limits, http, http, visit)
        if outcome is None or outcome.refusal is None:
            return None
        return await on_loop(self.refusal_response, outcome)

    def _limits_for_route(
        self, http: HttpRequest, visit: DjangoVisit, *, after_view: bool
    ) -> RouteLimits | None:
        if not self.guard.enabled or visit.is_decided:
            return None
        if not self._is_bound:
            self.bind_all()
        if not self.defaults:
            return None
        view, method = self.view_of(http)
        if view is None:
            return None
        key = (view, method, after_view)
        place = self.compiled.get(key)
        if place is None:
            route = route_of(view, method)
            by_view = not after_view and (route.is_limited or has_throttle(view))
            place = self._add(key, None if by_view else route, None if after_view else route.owner)
        return self._defer(place, visit) if place.needs_user else place.limits

    @staticmethod
    def view_of(http: HttpRequest) -> tuple[object, str]:
        """Return the view and the method of a request."""
        match = http.resolver_match
        if match is None:
            return None, ""
        return match.func, http.method if http.method in METHODS else ""

    def _add(
        self, key: object, route: Route | None, view_class: type | None, *own: ViewLimits
    ) -> PlaceLimits:
        place = self.add(key, route, *own)
        if place.limits is not None and view_class is not None:
            rules = [limit.rule for limit in place.limits.limits]
            needs_user = waits_for_user(view_class, rules)
            place = self.compiled[key] = replace(place, needs_user=needs_user)
        return place

    def _defer(self, place: PlaceLimits, visit: DjangoVisit) -> RouteLimits | None:
        """Defer limits that wait for the user, and return `None`."""
        if place.limits is not None:
            if visit.deferred is None:
                visit.deferred = Deferred(self.evaluate)
            visit.deferred.add(place.limits)
        return None

    def finish_deferred(
        self, response: HttpResponseBase, http: HttpRequest, visit: DjangoVisit
    ) -> HttpResponseBase:
        """Return the response of a view with deferred limits: its own, or that of a refusal."""
        deferred = visit.deferred
        if deferred is None:
            return response
        # The view may have ended before it has authenticated the request.
        deferred.evaluate(http, http, visit)
        if deferred.outcome is not None and deferred.is_refused:
            refused = self.refusal_response(deferred.outcome)
            response.close()
            response = refused
        visit.deferred = None
        return response

    def evaluate(
        self, limits: RouteLimits, native: Any, http: HttpRequest, visit: DjangoVisit
    ) -> Outcome | None:
        """Evaluate limits for a request, and send the signal of a denial.

        Args:
            limits: The limits.
            native: The view's request.
            http: Django's request.
            visit: Its visit.

        Returns:
            The outcome; `None` for an ordinary request, which may proceed.
        """
        if native is not http or visit.is_decided:
            visit.cached_request = DjangoRequest(native, http)
        outcome = visit.enter(limits)
        if visit.slots:
            watch_request(http, visit)
        http.penstock = visit.decision  # type: ignore[attr-defined]
        if limit_denied.receivers:
            _send(visit.outcome, visit.request)
        return outcome

    async def evaluate_async(
        self, limits: RouteLimits, native: Any, http: HttpRequest, visit: DjangoVisit
    ) -> Outcome | None:
        """Do the same as `evaluate` on an event loop; await queries, or run them in a thread."""
        visit.is_on_loop = True
        if native is not http or visit.is_decided:
            visit.cached_request = AsyncDjangoRequest(native, http)
        try:
            try:
                outcome = await visit.enter_async(limits)
            except UserNotLoaded:
                # Nothing has been spent yet.
                await visit.request.load_user()
                outcome = await visit.enter_async(limits)
        except SynchronousOnlyOperation:
            # A callable of the application queries the database.
            visit.cached_request = DjangoRequest(native, http)
            outcome = await sync_to_async(visit.enter)(limits)
        if visit.slots:
            watch_request(http, visit)
        http.penstock = visit.decision  # type: ignore[attr-defined]
        if limit_denied.receivers:
            await sync_to_async(_send)(visit.outcome, visit.request)
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
        fields, body = outcome.body(answer, text_type=_HTML)
        return HttpResponse(body, status=outcome.status, headers=dict(fields))

    def respond_to_denial(
        self, error: RateLimited, request: DjangoRequest, visit: DjangoVisit
    ) -> HttpResponseBase:
        """Return the response of a view that raised `RateLimited` itself."""
        return self.refusal_response(self.record_denial(error, request, visit))

    def record_denial(
        self, error: RateLimited, request: DjangoRequest, visit: DjangoVisit
    ) -> Outcome:
        """Return the outcome of a view that raised `RateLimited` itself, and send the signal."""
        outcome = self.guard.denied(request, error.decision, visit.outcome)
        visit.keep(outcome)
        visit.show(request.http)
        _send(outcome, request)
        return outcome

    def apply_headers(
        self, response: HttpResponseBase, http: HttpRequest, visit: DjangoVisit
    ) -> HttpResponseBase:
        """Settle limits that depend on the response, and write the header fields."""
        if http.resolver_match is None and response.status_code != 429:  # noqa: PLR2004
            # No view was called. If the cache of the site has responded, the page has the fields of
            # the client for which it was rendered. (A 429 is another limiter's.)
            for name in self.guard.field_names:
                del response.headers[name]
        if not visit.is_decided:
            if self.may_be_idle:
                self.report_if_idle()
            return response
        if visit.entered is not None or visit.slots:
            if visit.is_open:
                visit.respond(response)
                visit.show(http)
            if visit.needs_end:
                watch_response(response, http, visit)
        headers, limits = response.headers, visit.limits
        if visit.entered is None and limits is not None:
            # As `visit.fields`, with one call less.
            fields_of = limits.fields
            fields = fields_of(visit.decision)
        else:
            fields = visit.fields()
        for name, value in fields:
            is_added = name in _LISTS and name in headers
            headers[name] = f"{headers[name]}, {value}" if is_added else value
        return response

    def bind_all(self) -> None:
        """Name the unnamed limits of all views, and log what has no effect, once."""
        with self._lock:
            if not self._is_bound:
                self.report_mistakes()
            super().bind_all()

    def mistakes(self) -> Iterator[Mistake]:
        """Yield limits, exemptions and scopes without effect, and methods without a view."""
        known = self.guard.limiter.limits
        reads_another_name: set[type | None] = set()
        for route in _undecorated_routes():
            yield (
                f"{route}: the limit of the view has no effect, as its function has no decorator",
                "write @limit(...) above the function",
            )
        for route, view in all_routes():
            if self.defaults and hides_exemption(view):
                yield (
                    f"{route}: the exemption has no effect because a decorator hides it",
                    "use functools.wraps in that decorator, or put exempt above it",
                )
            for name in unread_limits(class_of(view)):
                yield (
                    f"{route}: {name} of the view's class is not read",
                    "write @limit(...) above the class",
                )
            for name, value in unread_scopes(view):
                if value in known:
                    reads_another_name.add(class_of(view))
                    yield (
                        f"{route}: {name} = {value!r} has no effect, because no throttle reads it",
                        "add PenstockThrottle to throttle_classes, and write throttle_scope",
                    )
        for view_class, route in _unlimited_throttles().items():
            if view_class not in reads_another_name:
                yield (
                    f"{route}: PenstockThrottle of {view_class.__name__} has no limit",
                    "write throttle_scope, or a subclass with a limit",
                )
        yield from never_counting(
            (rule, rule, (method,))
            for view in all_views()
            for method in methods_of(view)
            for rule in route_of(view, method).rules
        )

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


def _undecorated_routes() -> Iterator[str]:
    """Yield the routes of functions that were decorated, where no route has the decorator."""
    routes = [*all_routes()]
    functions = (each for _, view in routes for each in functions_within(view))
    reached = {limits.view for limits in nested_limits(functions)}
    unreached = {limits.view for limits in [*DECORATED]} - reached
    yield from (route for route, view in routes if view in unreached)


def _unlimited_throttles() -> dict[type, str]:
    """Return the classes of views with a throttle of their own that has no limit, with a route."""
    unlimited: dict[type, str] = {}
    limited: set[type] = set()
    for route, view in all_routes():
        for throttle, scope, view_class in throttles_of(view):
            with suppress(Error):
                if throttle.penstock_rule(scope, view_class) is not None:
                    limited.add(view_class)
                elif has_own_throttles(view_class):
                    unlimited.setdefault(view_class, route)
    return {
        view_class: route for view_class, route in unlimited.items() if view_class not in limited
    }


def _is_reported(record: logging.LogRecord) -> bool:
    """Return whether a record is not about a refusal because the store fails.

    Django logs each response from 500 on as an error, which is mailed to `ADMINS`. The failure of
    the store has been logged once.
    """
    visit = getattr(getattr(record, "request", None), "_penstock_visit", None)
    entered = None if visit is None else visit.entered
    return entered is None or entered.refusal != "store" or record.exc_info is not None


async def on_loop(
    call: Callable[[*_Arguments], _Answer],
    *arguments: *_Arguments,
    may_block: bool = False,
) -> _Answer:
    """Make a call on an event loop; in a thread if it may block, or queries the database."""
    if not may_block:
        try:
            return call(*arguments)
        except SynchronousOnlyOperation:
            # A callable of the application made a query; nothing has been changed yet.
            pass
    return await sync_to_async(call)(*arguments)


def _send(outcome: Outcome | None, request: DjangoRequest) -> None:
    if limit_denied.receivers and (arguments := _denial(outcome)) is not None:
        limit_denied.send_robust(_sender(request.http), request=request.native, **arguments)


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
