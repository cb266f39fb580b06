"""The limits of one application: which each route has, and where a request stands with them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from penstock.asgi.middleware import PenstockMiddleware
from penstock.asgi.refusal import refuse
from penstock.asgi.request_state import RequestState, remember, visit_of
from penstock.fastapi.rate_limit import INSTALLED, RateLimit, RouteLimit
from penstock.fastapi.request import FastapiRequest, RequestRefused, route_of
from penstock.fastapi.routes import asked, limited_routes, limits_in, scope_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from fastapi import FastAPI
    from fastapi.dependencies.models import Dependant
    from starlette.requests import HTTPConnection

    from penstock.asgi.request import Scope, Send
    from penstock.errors import RateLimited
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Rule


class _Tree:
    """The limits that a request's route has; the tree of dependencies is kept, to keep its id.

    Attributes:
        limits: Those that are asked before the endpoint runs.
        name: The name under which its text limits are kept.
        waits: Whether FastAPI finds something out for one of them.
        plan: All of them, ready to be asked; `None` until they first are.
    """

    __slots__ = ("dependant", "limits", "name", "plan", "waits")

    def __init__(self, dependant: Dependant | None, replaced: Mapping[Any, Any]) -> None:
        limits = () if dependant is None else asked(limits_in(dependant, replaced))
        self.dependant: Final = dependant
        self.limits: Final = limits
        self.name: Final = scope_of(dependant)
        self.waits: Final = any(limit.waits for limit in limits)
        self.plan: RouteLimits | None = None


class _Progress:
    """How far a request has come through the dependencies of its route."""

    __slots__ = ("is_decided", "reached", "request")

    def __init__(self, connection: HTTPConnection) -> None:
        self.request: Final = FastapiRequest(connection)
        self.reached: Final[list[RateLimit]] = []
        self.is_decided = False


class AppLimits:
    """What `install` makes of an application.

    Attributes:
        guard: What decides for it.
        is_started: Whether the limits of all routes have been checked and made ready.
        refunds: Whether one of them is given back when its endpoint raises.
    """

    def __init__(self, app: FastAPI, guard: Guard) -> None:
        self.guard: Final = guard
        self.is_started = False
        self.refunds = False
        self._app: Final = app
        self._lock: Final = Lock()
        self._rules: Final[dict[tuple[RouteLimit, str], Rule]] = {}
        self._plans: Final[dict[tuple[tuple[RouteLimit, ...], str], RouteLimits]] = {}
        self._trees: Final[dict[int, _Tree]] = {}

    def check(self) -> None:
        """Find the mistakes in the limits of all routes that there are.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        self.guard.check(rule for rule in self._all_rules())

    def start(self) -> None:
        """Check all routes before the first request, and make their limits ready.

        Raises:
            ConfigError: As `check`.
            LimitError: As `check`.
        """
        if self.is_started:
            return
        with self._lock:
            self.check()
            # In the order of registration, so that every process keeps texts under the same names.
            for rule in self._all_rules():
                self.guard.route_limits([rule])
            self.is_started = True

    async def enforce(
        self, limit: RateLimit, connection: HTTPConnection, values: Mapping[str, Any]
    ) -> None:
        """Ask a route's limits where FastAPI comes to one of them.

        Raises:
            RequestRefused: They refuse.
        """
        scope = connection.scope
        visit = visit_of(scope, self.guard.limiter)
        if visit is None:
            # The guard is switched off.
            return
        progress = visit.progress
        if not isinstance(progress, _Progress):
            progress = visit.progress = _Progress(connection)
        if values:
            progress.request.found = {**(progress.request.found or {}), **limit.found(values)}
        tree = self._tree(scope)
        limits = tree.limits
        if limit not in limits:
            # It stands in what replaces a dependency, or was called by hand.
            limits = (limit,)
        elif progress.is_decided or limit in progress.reached:
            return
        else:
            progress.reached.append(limit)
            if tree.waits and len(progress.reached) < len(limits):
                visit.pending = lambda send: self._decide_late(tree, progress, visit, send)
                return
            progress.is_decided = True
            visit.pending = None
        for one in limits:
            if one.callables.is_async:
                await one.callables.find(progress.request)
        outcome = self._decide(limits, tree, progress, visit)
        if outcome.refusal is not None:
            raise RequestRefused(outcome)

    def denied(self, connection: HTTPConnection, error: RateLimited) -> RequestRefused:
        """Make the refusal of a request whose endpoint has asked a limit itself, and was denied."""
        visit = visit_of(connection.scope, self.guard.limiter)
        earlier = None if visit is None else visit.outcome
        outcome = self.guard.denied(FastapiRequest(connection), error.decision, earlier)
        if visit is not None:
            visit.outcome = outcome
        remember(connection.scope, outcome)
        return RequestRefused(outcome)

    def plan_of(self, limit: RouteLimit, scope: Scope) -> RouteLimits | None:
        """Give the plan of one limit on a request's route; `None` where limits are off."""
        return self._plan((limit,), self._tree(scope).name) if self.guard.enabled else None

    def _decide(
        self, limits: tuple[RateLimit, ...], tree: _Tree, progress: _Progress, visit: RequestState
    ) -> Outcome:
        plan = tree.plan if limits is tree.limits else self._plan(limits, tree.name)
        if plan is None:
            plan = tree.plan = self._plan(limits, tree.name)
        request = progress.request
        outcome = visit.outcome = plan.admit(request, visit.outcome)
        remember(request.native.scope, outcome)
        return outcome

    async def _decide_late(
        self, tree: _Tree, progress: _Progress, visit: RequestState, send: Send
    ) -> bool:
        """Ask the limits that were reached, where another dependency has refused meanwhile."""
        for limit in progress.reached:
            if limit.callables.is_async:
                await limit.callables.find(progress.request)
        outcome = self._decide(tuple(progress.reached), tree, progress, visit)
        native = progress.request.native
        if outcome.refusal is None or not isinstance(native, Request):
            return False
        await refuse(self.guard, outcome, native.scope, native.receive, send)
        return True

    def _plan(self, limits: tuple[RouteLimit, ...], name: str) -> RouteLimits:
        plan = self._plans.get((limits, name))
        if plan is None:
            with self._lock:
                plan = self.guard.route_limits([self._rule(limit, name) for limit in limits])
            self._plans[limits, name] = plan
        return plan

    def _rule(self, limit: RouteLimit, name: str) -> Rule:
        # One rule for a limit on a route, however many plans it is part of.
        rule = self._rules.get((limit, name))
        if rule is None:
            rule = self._rules[limit, name] = limit.rule(name)
            self.refunds = self.refunds or rule.refund_on_error
        return rule

    def _all_rules(self) -> Iterator[Rule]:
        for route in limited_routes(self._app.routes):
            for limit in route.limits:
                yield self._rule(limit, scope_of(route.dependant))

    def _tree(self, scope: Scope) -> _Tree:
        """Give the limits of a request's route, but those that a test replaces."""
        dependant: Dependant | None = getattr(route_of(scope), "dependant", None)
        replaced = getattr(scope.get("app"), "dependency_overrides", None)
        if replaced and dependant is not None:
            return _Tree(dependant, replaced)
        tree = self._trees.get(id(dependant))
        if tree is None:
            tree = self._trees[id(dependant)] = _Tree(dependant, {})
        return tree


class Middleware(PenstockMiddleware):
    """Stands around an application, so that its dependencies find its limits."""

    def __init__(self, app: Callable[..., Awaitable[None]], installed: AppLimits) -> None:
        super().__init__(app, installed.guard)
        self._installed: Final = installed

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Let the application answer a request, and tell the client of its limits."""
        if scope["type"] != "lifespan":
            installed = self._installed
            if not installed.is_started:
                installed.start()
            self._refunds_on_error = installed.refunds
            scope[INSTALLED] = installed
        # Given on, not awaited: a coroutine less for each request.
        return super().__call__(scope, receive, send)
