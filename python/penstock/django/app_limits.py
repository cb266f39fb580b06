"""What is in force: the guard, which limits each view has, and what a refused client gets."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.generic import View

from penstock.django.request import DjangoRequest, LoopRequest, State, UserWanted
from penstock.django.signals import limit_denied
from penstock.django.streams import refunding
from penstock.django.urls import all_views, rules_of, throttles_of
from penstock.django.view_limits import (
    EXEMPT,
    MARK,
    THROTTLE,
    ViewLimits,
    class_of,
    mark_of,
    method_of,
)
from penstock.errors import ConfigError, Error
from penstock.web.headers import strictest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest

    from penstock.errors import RateLimited
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Rule

__all__ = ["AppLimits"]

_METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
)
# Fields that are lists, and may stand in a response already: ours goes beside what is there. Fields
# of limits are replaced, for a page that was cached speaks of another request.
_LISTS: Final = frozenset({"Link", "Access-Control-Expose-Headers"})


class AppLimits:
    """What the settings put in force.

    Attributes:
        guard: What decides.
        defaults: The limits of all views.
        straight: By the key of a throttle that is alone on its view, what it asks, where that is
            the same for every request.
    """

    def __init__(self, guard: Guard, defaults: tuple[Rule, ...]) -> None:
        self.guard: Final = guard
        self.defaults: Final = defaults
        self._plans: Final[
            dict[tuple[object, ...], tuple[RouteLimits | None, tuple[ViewLimits, ...]]]
        ] = {}
        self.straight: Final[dict[object, RouteLimits]] = {}
        # By the mark of a function what it asks, where that is the same for every request.
        self._alone: Final[dict[ViewLimits, RouteLimits]] = {}
        self._lock: Final = Lock()
        self._is_bound = False

    def due(
        self, mark: ViewLimits, http: HttpRequest, state: State, owner: type | None
    ) -> RouteLimits | None:
        """Give what is to be asked now where a decorator stands; `None` for nothing.

        The first one asks the limits of all views too, and those of marks that are sure to come
        next; they are one decision.
        """
        if not self.guard.enabled:
            return None
        if state.covered and mark in state.covered:
            state.covered = tuple(other for other in state.covered if other is not mark)
            return None
        alone = self._alone.get(mark)
        if alone is not None:
            return alone
        if state.outcome is not None:
            return self._plan((mark,), lambda: (mark.rules, ()))[0]
        match = http.resolver_match if state.is_routed else None
        view = None if match is None else match.func
        method = http.method if http.method in _METHODS else None
        key = (mark, view, method, owner)
        found = self._plans.get(key)
        if found is None:
            inner = _sure_to_come(mark, owner, method or "")
            found = self._plan(
                key,
                lambda: (
                    (*self._route_rules(view, method), *mark.rules, *_rules_of_all(inner)),
                    inner,
                ),
            )
        state.covered = found[1]
        # Nothing on the route and nothing within adds to the limits of a function.
        if not (self.defaults or owner) and found[0] is not None and class_of(mark.view) is None:
            self._alone[mark] = found[0]
        return found[0]

    def due_of_route(self, http: HttpRequest, *, is_left: bool = False) -> RouteLimits | None:
        """Give the limits of all views, for a view that does not ask for them itself.

        `is_left` says that it had its turn and was not reached.
        """
        if not (self.defaults and self.guard.enabled) or (match := http.resolver_match) is None:
            return None
        view, method = match.func, http.method if http.method in _METHODS else None
        key = (view, method, is_left)
        found = self._plans.get(key)
        if found is None:
            asks_itself = not is_left and _asks_itself(view, method)
            found = self._plan(
                key, lambda: (() if asks_itself else self._route_rules(view, method), ())
            )
        return found[0]

    def due_of(
        self, rules: tuple[Rule, ...], http: HttpRequest, state: State
    ) -> RouteLimits | None:
        """Give rules that a view brings itself, as its throttles do, with those of all views."""
        if not self.guard.enabled:
            return None
        match = http.resolver_match if state.is_routed and state.outcome is None else None
        view = None if match is None else match.func
        key = (rules, view, http.method if view is not None and http.method in _METHODS else None)
        found = self._plans.get(key)
        if found is None:
            found = self._plan(key, lambda: ((*self._route_rules(view, key[2]), *rules), ()))
        return found[0]

    def ask(self, plan: RouteLimits, native: Any, http: HttpRequest, state: State) -> Outcome:
        """Ask limits about a request, and tell those who listen.

        Args:
            plan: The limits.
            native: The request as the view got it.
            http: Django's request.
            state: What is remembered about it.
        """
        request = DjangoRequest(native, http)
        outcome = plan.admit(request, state.outcome)
        state.outcome = outcome
        http.penstock = outcome.decision  # type: ignore[attr-defined]
        if limit_denied.receivers:
            _send(outcome, request)
        return outcome

    async def aask(self, plan: RouteLimits, request: LoopRequest, state: State) -> Outcome:
        """Do as `ask` on an event loop: what needs the database is awaited or gets a thread."""
        earlier = state.outcome
        try:
            outcome = await _admit_on_loop(plan, request, earlier)
        except SynchronousOnlyOperation:
            # A callable of the user asks the database. Nothing is spent before all ids are found.
            admit = sync_to_async(plan.admit)
            outcome = await admit(DjangoRequest(request.native, request.http), earlier)
        _note(outcome, request, state)
        await _asend(outcome, request)
        return outcome

    def refusal(self, outcome: Outcome) -> HttpResponseBase:
        """Make the response of a refused request, without the fields that it shares with others."""
        answer = None if self.guard.on_denied is None else self.guard.on_denied(outcome)
        if answer is None:
            content_type, body = outcome.body()
            return HttpResponse(body, status=outcome.status, content_type=content_type)
        if isinstance(answer, HttpResponseBase):
            if not getattr(answer, "is_rendered", True):
                answer.render()  # type: ignore[attr-defined]
            return answer
        if isinstance(answer, str | bytes):
            return HttpResponse(answer, status=outcome.status)
        if isinstance(answer, dict | list):
            return JsonResponse(answer, status=outcome.status, safe=False)
        raise ConfigError(
            f"on_denied must give a response, a text, a dict or None, found {answer!r}"
        )

    async def arefusal(self, outcome: Outcome) -> HttpResponseBase:
        """Do as `refusal` on an event loop."""
        try:
            return self.refusal(outcome)
        except SynchronousOnlyOperation:
            return await sync_to_async(self.refusal)(outcome)

    def raised(self, error: RateLimited, request: DjangoRequest, state: State) -> HttpResponseBase:
        """Make the response of a view that was denied by a limit it asked itself."""
        return self.refusal(self.note_raised(error, request, state))

    def note_raised(self, error: RateLimited, request: DjangoRequest, state: State) -> Outcome:
        """Count a limit that a view asked itself among what was decided about its request."""
        outcome = self.guard.denied(request, error.decision, state.outcome)
        _note(outcome, request, state)
        _send(outcome, request)
        return outcome

    async def araised(
        self, error: RateLimited, request: DjangoRequest, state: State
    ) -> HttpResponseBase:
        """Do as `raised` on an event loop."""
        outcome = self.guard.denied(request, error.decision, state.outcome)
        _note(outcome, request, state)
        await _asend(outcome, request)
        return await self.arefusal(outcome)

    def tell(self, response: HttpResponseBase, http: HttpRequest, state: State) -> HttpResponseBase:
        """Spend what waited for the response, and write the headers."""
        outcome = state.outcome
        if outcome is None:
            return response
        if outcome.needs_response:
            outcome.settle(response)
            http.penstock = outcome.decision  # type: ignore[attr-defined]
            refunding(response, outcome)
        headers = response.headers
        for name, value in outcome.headers():
            if name in _LISTS and name in headers:
                headers[name] = f"{headers[name]}, {value}"
            else:
                headers[name] = value
        return response

    async def atell(
        self, response: HttpResponseBase, http: HttpRequest, state: State
    ) -> HttpResponseBase:
        """Do as `tell` on an event loop."""
        try:
            return self.tell(response, http, state)
        except SynchronousOnlyOperation:
            # A `deduct_when` asks the database. With several answers, one may have spent already.
            if state.outcome is None or len(state.outcome.history) > 1:
                raise
            return await sync_to_async(self.tell)(response, http, state)

    def bind_all(self) -> None:
        """Keep the texts of all views in the order of the URLconf.

        So that every process has them under the same names. A fault is for the view that has it.
        """
        with self._lock:
            if not self._is_bound:
                self._is_bound = True
                for rule in (*self.defaults, *_rules_of_views()):
                    # `method_decorator` tries a decorator on a function of its own; the method's
                    # limits are kept when it is called.
                    if not rule.scope.startswith("django.utils.decorators."):
                        # One that is faulty is told by the checks, and raises where it is asked.
                        with suppress(Error):
                            self.guard.route_limits([rule])

    def _plan(
        self,
        key: tuple[object, ...],
        find: Callable[[], tuple[tuple[Rule, ...], tuple[ViewLimits, ...]]],
    ) -> tuple[RouteLimits | None, tuple[ViewLimits, ...]]:
        found = self._plans.get(key)
        if found is None:
            self.bind_all()
            rules, covered = find()
            found = (self.guard.route_limits(rules) if rules else None, covered)
            self._plans[key] = found
        return found

    def _route_rules(self, view: object, method: str | None) -> tuple[Rule, ...]:
        if view is None:
            return ()
        exempt = (view, class_of(view), method_of(view, method or ""))
        return () if any(hasattr(one, EXEMPT) for one in exempt) else self.defaults


def _rules_of_views() -> Iterator[Rule]:
    """Give the rules of all views, also those of their throttles, in the order of the URLconf."""
    for view in all_views():
        yield from rules_of(view)
        for throttle, scope, view_class in throttles_of(view):
            # As above.
            with suppress(Error):
                rule = throttle.penstock_rule(scope, view_class)
                if rule is not None:
                    yield rule


def _sure_to_come(mark: ViewLimits, owner: type | None, method: str) -> tuple[ViewLimits, ...]:
    """Give the marks that a view's mark has within it, with nothing between that could refuse."""
    found = []
    function: object = mark.view
    view_class = getattr(function, "view_class", None)
    if view_class is not None:
        owner, function = view_class, view_class.dispatch
        inner = mark_of(function)
        if inner is not None:
            found.append(inner)
            function = inner.view
    if owner is not None and function is View.dispatch:
        # As Django does: HEAD is answered by `get`, unless the class has an answer of its own.
        name = "get" if method == "HEAD" and not hasattr(owner, "head") else method.lower()
        inner = mark_of(getattr(owner, name, None))
        if inner is not None:
            found.append(inner)
    return tuple(found)


def _rules_of_all(marks: tuple[ViewLimits, ...]) -> tuple[Rule, ...]:
    return tuple(rule for mark in marks for rule in mark.rules)


def _asks_itself(view: object, method: str | None) -> bool:
    """Whether a view has a limit or a throttle of its own, as far as can be seen from outside."""
    view_class = class_of(view)
    functions = (view, getattr(view_class, "dispatch", None), method_of(view, method or ""))
    if any(hasattr(function, MARK) for function in functions):
        return True
    said = getattr(view, "initkwargs", None) or getattr(view, "view_initkwargs", None) or {}
    throttles = said.get("throttle_classes", getattr(view_class, "throttle_classes", ()))
    return any(hasattr(throttle, THROTTLE) for throttle in throttles)


async def _admit_on_loop(
    plan: RouteLimits, request: LoopRequest, earlier: Outcome | None
) -> Outcome:
    try:
        return plan.admit(request, earlier)
    except UserWanted:
        await request.find_user()
    return plan.admit(request, earlier)


def _note(outcome: Outcome, request: DjangoRequest, state: State) -> None:
    """Remember an answer, for the headers and for the view."""
    state.outcome = outcome
    request.http.penstock = outcome.decision  # type: ignore[attr-defined]


def _send(outcome: Outcome, request: DjangoRequest) -> None:
    if limit_denied.receivers and (sent := _denial(outcome)) is not None:
        limit_denied.send_robust(_sender(request.http), request=request.native, **sent)


async def _asend(outcome: Outcome, request: DjangoRequest) -> None:
    if limit_denied.receivers and (sent := _denial(outcome)) is not None:
        await limit_denied.asend_robust(_sender(request.http), request=request.native, **sent)


def _denial(outcome: Outcome) -> dict[str, Any] | None:
    """Give what is told of a denial; `None` where no limit denied."""
    denied = [part for part in outcome.parts if part.would_deny or not part.allowed]
    if outcome.refusal not in (None, "denied") or not denied:
        return None
    shadow = outcome.refusal is None
    decision = strictest(denied) if shadow else outcome.decision
    return {"decision": decision, "outcome": outcome, "shadow": shadow}


def _sender(http: HttpRequest) -> Any:
    return None if http.resolver_match is None else http.resolver_match.func
