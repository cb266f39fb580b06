"""Limits of one application: those of each route, and the progress of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from penstock._web.route_table import EXEMPT, RouteTable, never_counting, scope_of
from penstock.asgi.visit import VISIT_KEY, AsgiVisit, store_decision, visit_of
from penstock.errors import ConfigError
from penstock.fastapi.around import overrides_of, put_around
from penstock.fastapi.request import FastapiRequest, RequestRefused, mount_template, route_of
from penstock.fastapi.routes import (
    check_parameters,
    has_limit,
    limited_routes,
    limits_in,
    limits_of_app,
    per_request,
    unreached_paths,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterator, Mapping

    from fastapi import FastAPI
    from fastapi.dependencies.models import Dependant
    from starlette.requests import HTTPConnection

    from penstock._web.decide import RouteLimits
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import Mistake
    from penstock._web.rule import Rule
    from penstock.asgi.request import Receive, Scope
    from penstock.errors import RateLimited
    from penstock.fastapi.route_limit import RouteLimit

ROOT_PATH_KEY: Final = "penstock.fastapi.root_path"
"""The key of a scope under which the path is stored at which its application is mounted."""


class _Tree:
    """Limits in the dependencies of a route.

    Attributes:
        route: The route, referenced so that its `id()` is not reused.
        limits: Those that are decided before the endpoint runs.
        scope: The name under which unnamed limits are kept.
        has_dependencies: Whether FastAPI resolves an option of one of them.
        is_async: Whether an option of one of them is awaited.
        replaced: Limits of the application that do not apply to the route.
        compiled: All of them, compiled; `None` until the first request.
    """

    __slots__ = (
        "compiled",
        "has_dependencies",
        "is_async",
        "limits",
        "replaced",
        "route",
        "scope",
    )

    def __init__(
        self,
        route: Any,
        limits: tuple[RouteLimit, ...],
        replaced: tuple[RouteLimit, ...],
        scope: str,
    ) -> None:
        self.route: Final = route
        self.limits: Final = limits
        self.replaced: Final = replaced
        self.scope: Final = scope
        self.has_dependencies: Final = any(limit.has_dependencies for limit in limits)
        self.is_async: Final = any(limit.is_async for limit in limits)
        self.compiled: RouteLimits | None = None


class _Progress(FastapiRequest):
    """A request, and its progress through the dependencies of its route.

    Attributes:
        called: The limits that FastAPI has called.
        is_decided: Whether the limits of the route have been decided.
        waiting: The limits that wait for those which have not been called yet; `None` if none do.
    """

    __slots__ = ("called", "is_decided", "waiting")

    def __init__(
        self, scope: Scope, native: HTTPConnection | None = None, receive: Receive | None = None
    ) -> None:
        super().__init__(scope, native, receive)
        self.called: tuple[RouteLimit, ...] = ()
        # Of what is decided around the route, all is decided by then.
        self.is_decided = receive is not None
        self.waiting: _Tree | None = None


class FastapiLimits(RouteTable):
    """Limits of an application on which `install` was called.

    Attributes:
        is_started: Whether the limits of all routes have been checked and named.
        needs_response: Whether one of them is settled or refunded after its endpoint.
        may_be_late: Whether one of them may be decided by `decide_late`.
    """

    def __init__(self, app: FastAPI, guard: Guard) -> None:
        super().__init__(guard)
        self.is_started = False
        self.needs_response = False
        self.may_be_late = False
        self._app: Final = app
        self._may_wait: Final = guard.limiter.may_wait
        self._rules: Final[dict[tuple[RouteLimit, str], Rule]] = {}
        self._trees: Final[dict[tuple[int, str, str], _Tree]] = {}

    def registered_rules(self) -> Iterator[Rule]:
        """Yield the rules of all routes, in the order of registration."""
        for route in limited_routes(self._app.routes):
            for limit in route.limits:
                yield self._rule(limit, _scope_of(route.dependant.call, route.path))

    def check(self) -> None:
        """Check the limits of all routes, and those of messages, which may not hold slots.

        Raises:
            ConfigError: As `Guard.check`.
            LimitError: As `Guard.check`.
        """
        super().check()
        check_parameters(self._app)
        for sentence, fix in never_counting(self._counted()):
            raise ConfigError(f"{sentence}; {fix}")
        self.guard.check(
            [
                self._rule(limit, _scope_of(route.dependant.call, route.path))
                for route in limited_routes(self._app.routes)
                for limit in route.limits
                if not limit.is_per_request
            ],
            may_hold=False,
        )

    def _counted(self) -> Iterator[tuple[object, Rule, Collection[str]]]:
        for route in limited_routes(self._app.routes):
            # The request of a WebSocket has a method, too.
            methods = getattr(route.route, "methods", None) or ("GET",)
            for limit in route.limits:
                yield limit, self._rule(limit, _scope_of(route.dependant.call, route.path)), methods

    def mistakes(self) -> Iterator[Mistake]:
        """Yield the routes that the limits of the application do not reach."""
        if limits_of_app(self._app):
            for path in unreached_paths(self._app.routes):
                yield (
                    f"the limits of the application do not apply to {path} and below",
                    "use PenstockMiddleware, limit the routes in it, or mark it with exempt",
                )

    def start(self) -> None:
        """Check all routes before the first request, name their limits, and put them around.

        Raises:
            ConfigError: As `check`.
            LimitError: As `check`.
        """
        if not self.is_started:
            self.check()
            self.bind_all()
            self.report_mistakes()
            if not any(has_limit(each) for each in self._app.user_middleware):
                self.report_if_idle()
            for limited in limited_routes(self._app.routes):
                put_around(limited.route, per_request(limited.limits))
            self.is_started = True

    def enforce(
        self, limit: RouteLimit, connection: HTTPConnection, values: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Decide the limits of a route when FastAPI calls one of them.

        Returns:
            What has to be awaited until they are decided; `None` if they are.

        Raises:
            RequestRefused: The request is refused.
        """
        scope = connection.scope
        visit = visit_of(scope, self.guard.limiter)
        if visit is None:
            # The guard is disabled.
            return None
        request = visit.request
        if not isinstance(request, _Progress):
            request = visit.cached_request = _Progress(scope, connection)
        if values:
            request.resolved = {**(request.resolved or {}), **limit.resolved(values)}
        tree = self._tree(scope, overrides_of(scope))
        limits = tree.limits
        if limit in limits:
            if request.is_decided or limit in request.called:
                return None
            request.called += (limit,)
            if tree.has_dependencies and len(request.called) < len(limits):
                request.waiting = tree
                return None
            request.is_decided = True
            request.waiting = None
        elif limit in tree.replaced:
            return None
        else:
            # It is in an override of a dependency, or was called directly.
            limits = (limit,)
        if tree.is_async or limits is not tree.limits:
            return self._decide(limits, tree, request, visit)
        return self._enter(tree, scope, visit)

    def decide_around(
        self, scope: Scope, receive: Receive, overridden: Mapping[Any, Any] | None
    ) -> Awaitable[None] | None:
        """Decide the limits of a route before its dependencies, as `enforce` does.

        Args:
            scope: The scope.
            receive: What receives the messages of the request.
            overridden: The dependencies that a test replaces.

        Raises:
            RequestRefused: The request is refused.
        """
        # As `visit_of`, without the call unless there are several.
        visit: AsgiVisit | None = scope.get(VISIT_KEY)
        limiter = self.guard.limiter
        if visit is None or visit.limiter is not limiter:
            visit = visit_of(scope, limiter)
        if visit is None:
            return None
        tree = self._tree(scope, overridden)
        if not tree.limits:
            return None
        visit.cached_request, visit.reader = None, (_Progress, receive)
        return self._enter(tree, scope, visit)

    def _enter(self, tree: _Tree, scope: Scope, visit: AsgiVisit) -> Awaitable[None] | None:
        """Decide the limits of a route, whose values are known."""
        if tree.compiled is None:
            tree.compiled = self._compile(tree.limits, tree.scope)
        if self._may_wait:
            return _wait(visit.enter_async(tree.compiled), scope, visit)
        _proceed(visit.enter(tree.compiled), scope, visit)
        return None

    def denied(self, connection: HTTPConnection, error: RateLimited) -> RequestRefused:
        """Return the refusal of a request that a limit denied which its endpoint called itself."""
        visit = visit_of(connection.scope, self.guard.limiter)
        earlier = None if visit is None else visit.outcome
        outcome = self.guard.denied(
            FastapiRequest(connection.scope, connection), error.decision, earlier
        )
        if visit is not None:
            visit.keep(outcome)
        store_decision(connection.scope, error.decision)
        return RequestRefused(outcome)

    def limits_of(self, limit: RouteLimit, scope: Scope) -> RouteLimits | None:
        """Return one limit of a request's route, compiled; `None` if the guard is disabled."""
        if not self.guard.enabled:
            return None
        return self._compile((limit,), self._tree(scope, overrides_of(scope)).scope)

    async def _decide(
        self,
        limits: tuple[RouteLimit, ...],
        tree: _Tree,
        request: FastapiRequest,
        visit: AsgiVisit,
    ) -> None:
        """Decide limits of a request that have to be awaited.

        Raises:
            RequestRefused: The request is refused.
        """
        for limit in limits:
            if limit.is_async:
                await limit.resolve(request)
        outcome = await visit.enter_async(self._compile(limits, tree.scope))
        _proceed(outcome, request.native.scope, visit)

    async def decide_late(self, scope: Scope) -> RequestRefused | None:
        """Decide the limits that were called before another dependency refused the request.

        Returns:
            The refusal; `None` if the limits allow the request, or there are none.
        """
        visit = visit_of(scope, self.guard.limiter)
        request = None if visit is None else visit.request
        if visit is None or not isinstance(request, _Progress) or request.waiting is None:
            return None
        tree, request.waiting = request.waiting, None
        try:
            await self._decide(request.called, tree, request, visit)
        except RequestRefused as refused:
            return refused
        return None

    def _compile(self, limits: tuple[RouteLimit, ...], scope: str) -> RouteLimits:
        key = limits, scope
        place = self.compiled.get(key)
        if place is None:
            rules = tuple([self._rule(limit, scope) for limit in limits])
            place = self.add(key, None, rules=rules)
        return cast("RouteLimits", place.limits)

    def _rule(self, limit: RouteLimit, scope: str) -> Rule:
        # One rule for each limit of a route, however often it is compiled.
        with self._lock:
            rule = self._rules.get((limit, scope))
            if rule is None:
                rule = self._rules[limit, scope] = limit.rule(scope)
                if rule.refund_on_error or rule.is_settled:
                    self.needs_response = True
                self.may_be_late |= limit.has_dependencies
            return rule

    def _tree(self, scope: Scope, replaced: Mapping[Any, Any] | None) -> _Tree:
        """Return the limits of a request's route, without those that a test replaces."""
        route, method = route_of(scope), scope.get("method", "GET")
        root, path = scope[ROOT_PATH_KEY], scope["root_path"]
        # Most applications mount nothing, and a comparison takes less than a call.
        is_mounted = path != root
        mount = mount_template(self._app.routes, path.removeprefix(root)) if is_mounted else ""
        # A route answers few methods, and it has been found already.
        key = id(route), mount, method
        tree = None if replaced else self._trees.get(key)
        if tree is None:
            defaults = limits_of_app(scope.get("app"))
            tree = self._make_tree(route, replaced or {}, defaults, mount, method)
            if not replaced:
                self._trees[key] = tree
        return tree

    def _make_tree(
        self,
        route: Any,
        overridden: Mapping[Any, Any],
        defaults: tuple[RouteLimit, ...],
        mount: str,
        method: str,
    ) -> _Tree:
        dependant: Dependant | None = getattr(route, "dependant", None)
        endpoint = None if dependant is None else dependant.call
        path: str | None = getattr(route, "path_format", None)
        scope = _scope_of(endpoint, None if path is None else f"{mount}{path}")
        limits = () if dependant is None else per_request(limits_in(route, overridden))
        own = [self._rule(limit, scope) for limit in limits if limit not in defaults]
        is_replaced = hasattr(endpoint, EXEMPT) or self.are_defaults_replaced(own, method)
        replaced = defaults if is_replaced else ()
        return _Tree(route, tuple([x for x in limits if x not in replaced]), replaced, scope)


async def _wait(entering: Awaitable[Outcome | None], scope: Scope, visit: AsgiVisit) -> None:
    _proceed(await entering, scope, visit)


def _proceed(outcome: Outcome | None, scope: Scope, visit: AsgiVisit) -> None:
    """Show a decision to the application, or refuse the request.

    Raises:
        RequestRefused: The outcome refuses it.
    """
    # As `store_decision`, with one call less.
    scope.setdefault("state", {})["penstock"] = visit.decision
    if outcome is not None and outcome.refusal is not None:
        raise RequestRefused(outcome)


def _scope_of(endpoint: object, path: str | None) -> str:
    """Return the scope of an endpoint on one of its routes, such as that of a router's prefix."""
    scope = scope_of(endpoint)
    return scope if path is None else f"{scope} {path}"
