"""Routes of an application, and the limits in their dependencies."""

from __future__ import annotations

import dis
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastapi import routing
from starlette.routing import Mount, Route, WebSocketRoute

from penstock._web.route_table import EXEMPT, check_exempt
from penstock._web.rule import CHOICES
from penstock.asgi.middleware import PenstockMiddleware
from penstock.errors import ConfigError
from penstock.fastapi.around import dependencies_of
from penstock.fastapi.route_limit import RouteLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from fastapi.dependencies.models import Dependant
    from starlette.middleware import Middleware

_Endpoint = TypeVar("_Endpoint", bound="Callable[..., Any]")


class LimitedRoute(NamedTuple):
    """A route that has limits.

    Attributes:
        route: The route, with what its routers add.
        path: Its template, with the path at which its application is mounted.
        dependant: Its tree of dependencies.
        limits: The limits in the tree, in the order in which FastAPI calls them.
    """

    route: Any
    path: str
    dependant: Dependant
    limits: tuple[RouteLimit, ...]


def limited_routes(routes: Iterable[Any], mounted_at: str = "") -> Iterator[LimitedRoute]:
    """Yield the routes that have limits, also those of mounted applications.

    Args:
        routes: The routes of an application.
        mounted_at: The template of the path at which it is mounted.
    """
    # Newer releases include a router as a whole; this yields its routes.
    flatten = getattr(routing, "iter_route_contexts", iter)
    for route in flatten(routes):
        dependant: Dependant | None = getattr(route, "dependant", None)
        if dependant is not None:
            limits = tuple(limits_in(route))
            if limits:
                path = f"{mounted_at}{getattr(route, 'path_format', '')}"
                yield LimitedRoute(route, path, dependant, limits)
            continue
        mounted = getattr(route, "app", None)
        # A mounted application with limits of its own checks them itself.
        if not hasattr(getattr(mounted, "state", None), "penstock"):
            inside = getattr(mounted, "routes", None) or ()
            # An application for a host name has no path of its own.
            yield from limited_routes(inside, f"{mounted_at}{getattr(route, 'path', None) or ''}")


def unreached_paths(routes: Iterable[Any]) -> Iterator[str]:
    """Yield where the dependencies of an application do not apply, unless there are limits."""
    for context in getattr(routing, "iter_route_contexts", iter)(routes):
        route = getattr(context, "original_route", context)
        if getattr(route, "dependant", None) is not None:
            continue
        within = getattr(route, "app", None)
        # Not the pages of the documentation, and not static files.
        is_page = isinstance(route, Route | WebSocketRoute) and vars(route).get(
            "include_in_schema", True
        )
        is_application = isinstance(route, Mount) and bool(getattr(within, "routes", None))
        is_exempt = any(hasattr(x, EXEMPT) for x in (within, getattr(route, "endpoint", None)))
        has_limits = hasattr(getattr(within, "state", None), "penstock")
        if (is_page or is_application) and not (
            is_exempt or has_limits or any(limited_routes([route]))
        ):
            yield context.path


def has_limit(middleware: Middleware) -> bool:
    """Return whether a middleware of an application is one of ours that has a limit."""
    of_class: object = middleware.cls
    return of_class is PenstockMiddleware and not middleware.kwargs.keys().isdisjoint(CHOICES)


def check_parameters(app: Any) -> None:
    """Check that no endpoint has a limit where FastAPI does not look for one.

    Raises:
        ConfigError: A parameter has a limit without `Depends`, a dependency returns a limit, a
            limit was added after the route, or no endpoint asks a limit of messages.
    """
    of_app = limits_of_app(app)
    for limit in of_app:
        # What is wrong with them is reported here.
        limit.is_used = True
    for route in getattr(routing, "iter_route_contexts", iter)(app.routes):
        dependant: Dependant | None = getattr(route, "dependant", None)
        if dependant is None:
            continue
        _check_late(route, of_app)
        for parameter in _signature_of(dependant.call).parameters.values():
            for declared in (parameter.default, *getattr(parameter.annotation, "__metadata__", ())):
                if isinstance(declared, RouteLimit):
                    raise ConfigError(
                        f"{route.path}: {declared!r} of the parameter {parameter.name} needs "
                        f"Depends; write Depends({declared!r})"
                    )
        _check_factories(dependencies_of(route), route.path)
        _check_messages(route)


def _check_messages(route: Any) -> None:
    """Check that the endpoint of a route can ask its limits of messages.

    Raises:
        ConfigError: The route is no WebSocket, or no parameter gets the limit.
    """
    is_http = getattr(route, "methods", None) is not None
    for limit in limits_in(route) if is_http else ():
        if not limit.is_per_request:
            raise ConfigError(
                f"{route.path}: {limit!r} limits the messages of a WebSocket; use RateLimit"
            )
    for dependency in dependencies_of(route):
        call: Any = dependency.call
        # FastAPI knows the name of the parameter that gets a value; `dependencies=` has none.
        if isinstance(call, RouteLimit) and not call.is_per_request and dependency.name is None:
            raise ConfigError(
                f"{route.path}: {call!r} counts the messages that the endpoint asks it about; "
                f"write it as a parameter, messages: Annotated[Messages, Depends({call!r})]"
            )


def _check_late(route: Any, of_app: Iterable[RouteLimit]) -> None:
    """Check that FastAPI has read the limits of a route and of its application.

    Raises:
        ConfigError: One was added after the route.
    """
    reached = set(limits_in(route))
    own = (getattr(each, "dependency", None) for each in getattr(route, "dependencies", ()))
    for limit in (*of_app, *own):
        if isinstance(limit, RouteLimit) and limit not in reached:
            limit.is_used = True
            raise ConfigError(
                f"{route.path}: {limit!r} was added after the route, and is not read; add it before"
            )


def _check_factories(dependencies: Iterable[Dependant], path: str) -> None:
    """Check that no dependency returns a limit, which nothing would decide.

    Raises:
        ConfigError: One does by its annotation; or it uses a limit, and does not decide a request.
    """
    for dependency in dependencies:
        call: Any = dependency.call
        _check_factories(dependency.dependencies, path)
        if not isinstance(call, FunctionType):
            continue
        has_request = (
            dependency.request_param_name
            or dependency.websocket_param_name
            or dependency.http_connection_param_name
        )
        used = [] if has_request and _awaits(call) else inspect.getclosurevars(call)[:2]
        returned = _signature_of(call).return_annotation
        if any(map(_is_limit, (returned, *(each for names in used for each in names.values())))):
            raise ConfigError(
                f"{path}: the dependency {call.__name__} returns a limit, or does not await one, "
                f"so nothing would decide it; write Depends(RateLimit(...)), whose limit= or tier= "
                f"may depend on the request"
            )


def _awaits(call: FunctionType) -> bool:
    return any(step.opname == "GET_AWAITABLE" for step in dis.get_instructions(call))


def _is_limit(value: object) -> bool:
    return isinstance(value, RouteLimit) or (
        isinstance(value, type) and issubclass(value, RouteLimit)
    )


def _signature_of(call: Any) -> inspect.Signature:
    try:
        return inspect.signature(call, eval_str=True)
    except (NameError, TypeError, ValueError):
        # Names that only a type checker knows: FastAPI cannot read them either.
        return inspect.Signature()


def limits_in(route: Any, replaced: Collection[object] = ()) -> Iterator[RouteLimit]:
    """Yield the limits in a route's dependencies, each once, without those that a test replaces."""
    seen: set[RouteLimit] = set()
    for limit in _walk(dependencies_of(route), replaced):
        if limit not in seen:
            seen.add(limit)
            yield limit


def exempt(endpoint: _Endpoint) -> _Endpoint:
    """Exempt an endpoint from the limits of its application; those of its routers stay.

    The limits of an application are those in `FastAPI(dependencies=[...])`.

    Raises:
        ConfigError: It is no endpoint, such as the path of one.

    Examples:
        >>> from fastapi import Depends, FastAPI
        >>> from penstock.fastapi import RateLimit, exempt, install
        >>> app = FastAPI(dependencies=[Depends(RateLimit("5/minute"))])
        >>> guard = install(app)
        >>> @app.get("/health")
        ... @exempt
        ... async def health():
        ...     return "up"
    """
    check_exempt(endpoint)
    setattr(endpoint, EXEMPT, True)
    return endpoint


def limits_of_app(app: object) -> tuple[RouteLimit, ...]:
    """Return the limits in the dependencies of an application."""
    declared = getattr(getattr(app, "router", None), "dependencies", ())
    calls = (depends.dependency for depends in declared)
    return tuple(call for call in calls if isinstance(call, RouteLimit))


def _walk(dependencies: Iterable[Dependant], replaced: Collection[object]) -> Iterator[RouteLimit]:
    for dependency in dependencies:
        if dependency.call in replaced:
            continue
        yield from _walk(dependency.dependencies, replaced)
        call: Any = dependency.call
        if isinstance(call, type) and issubclass(call, RouteLimit):
            name = call.__name__
            raise ConfigError(f"Depends({name}) has no limit; use Depends({name}('PerAddress'))")
        if isinstance(call, RouteLimit):
            yield call


def per_request(limits: Iterable[RouteLimit]) -> tuple[RouteLimit, ...]:
    """Return the limits that are decided before the endpoint runs."""
    return tuple(limit for limit in limits if limit.is_per_request)
