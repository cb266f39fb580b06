"""Limits that are decided around their route, before FastAPI reads the body of a request.

A dependency takes several times as long as a limit, and a request that waits for a server within
the dependencies holds a hundred objects more. So limits that FastAPI would call first, and that
need nothing from it, are taken out of the dependencies of their route. If something replaces one of
them, as tests do with `dependency_overrides`, the route gets them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.routing import APIRoute

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fastapi.dependencies.models import Dependant

    from penstock.asgi.request import Receive, Scope, Send
    from penstock.fastapi.route_limit import RouteLimit

APP_LIMITS_KEY: Final = "penstock.fastapi"
"""The key of a scope under which the `FastapiLimits` of its application is stored."""


def app_limits_of(scope: Scope) -> Any:
    """Return the `FastapiLimits` of the application that serves a request.

    Raises:
        ConfigError: `install` has not been called.
    """
    app_limits = scope.get(APP_LIMITS_KEY)
    if app_limits is None:
        raise ConfigError(
            "this application has no limits yet; call penstock.fastapi.install(app, limits=...)"
        )
    return app_limits


def overrides_of(scope: Scope) -> Mapping[Any, Any] | None:
    """Return the dependencies that a test replaces in the application of a request."""
    overridden: Mapping[Any, Any] | None = getattr(scope.get("app"), "dependency_overrides", None)
    return overridden


class LimitsAround:
    """A route's application, with its limits around it.

    Attributes:
        dependencies: All dependencies of the route.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        dependant: Dependant,
        limits: Sequence[RouteLimit],
    ) -> None:
        self.dependencies: Final = tuple(dependant.dependencies)
        self._app: Final = app
        self._left: Final = dependant.dependencies
        self._limits: Final[frozenset[object]] = frozenset(limits)
        self._is_around = True
        # The handler of the route has this list.
        # An endpoint that names one gets its value from FastAPI: it is decided by then.
        self._left[:] = [x for x in self.dependencies if x.name or x.call not in self._limits]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide the limits, and serve the request."""
        if self._is_around:
            overridden = overrides_of(scope)
            if overridden and not self._limits.isdisjoint(overridden):
                self._is_around = False
                self._left[:] = self.dependencies
            else:
                pending = app_limits_of(scope).decide_around(scope, receive, overridden)
                if pending is not None:
                    await pending
        await self._app(scope, receive, send)


def dependencies_of(route: Any) -> Sequence[Dependant]:
    """Return the dependencies of a route, with limits that are decided around it."""
    app = getattr(route, "app", None)
    dependencies: Sequence[Dependant] = (
        app.dependencies if isinstance(app, LimitsAround) else route.dependant.dependencies
    )
    return dependencies


def put_around(route: Any, limits: Sequence[RouteLimit]) -> None:
    """Decide the limits of a route around it, if that makes no difference.

    Args:
        route: The route, with what its routers add.
        limits: Those of its limits that are decided before the endpoint runs.
    """
    # Newer releases show what routers add through an object that cannot be changed.
    target = getattr(route, "_effective_route", route)
    written = getattr(route, "original_route", route)
    if (
        not isinstance(written, APIRoute)
        or isinstance(target.app, LimitsAround)
        # A class of the application may do something before the dependencies.
        or type(written).get_route_handler is not APIRoute.get_route_handler
        or any(limit.has_dependencies or limit.is_async for limit in limits)
    ):
        return
    calls: list[Any] = [each.call for each in route.dependant.dependencies]
    # Something before the first, or around one of them, may prepare what a limit reads.
    if limits and calls[0] in limits and set(limits).issubset(calls):
        target.app = LimitsAround(target.app, route.dependant, limits)
