"""The routes of an application, and which limits stand in their dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import routing

from penstock.errors import ConfigError
from penstock.fastapi.rate_limit import RateLimit, RouteLimit
from penstock.web import adapter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fastapi.dependencies.models import Dependant


class LimitedRoute(NamedTuple):
    """A route that has limits.

    Attributes:
        route: The route, or what its routers make of it.
        dependant: Its tree of dependencies.
        limits: The limits in it, in the order in which FastAPI comes to them.
    """

    route: Any
    dependant: Dependant
    limits: tuple[RouteLimit, ...]


def limited_routes(routes: Iterable[Any]) -> Iterator[LimitedRoute]:
    """Give the routes that have limits, those of mounted applications too."""
    # Newer releases include a router as it is; this gives what its routes come to.
    spread = getattr(routing, "iter_route_contexts", iter)
    for route in spread(routes):
        dependant: Dependant | None = getattr(route, "dependant", None)
        if dependant is not None:
            limits = tuple(limits_in(dependant))
            if limits:
                yield LimitedRoute(route, dependant, limits)
            continue
        mounted = getattr(route, "app", None)
        # An application that has limits installed itself answers for itself.
        if not hasattr(getattr(mounted, "state", None), "penstock"):
            yield from limited_routes(getattr(mounted, "routes", None) or ())


def limits_in(dependant: Dependant, replaced: Collection[object] = ()) -> Iterator[RouteLimit]:
    """Give the limits of a tree of dependencies, each once, but those that a test replaces."""
    seen: set[RouteLimit] = set()
    for limit in _walk(dependant, replaced):
        if limit not in seen:
            seen.add(limit)
            yield limit


def _walk(dependant: Dependant, replaced: Collection[object]) -> Iterator[RouteLimit]:
    for dependency in dependant.dependencies:
        if dependency.call in replaced:
            continue
        yield from _walk(dependency, replaced)
        call: Any = dependency.call
        if isinstance(call, type) and issubclass(call, RouteLimit):
            raise ConfigError(
                f"Depends({call.__name__}) has no limit; "
                f"Depends({call.__name__}('PerAddress')) would do"
            )
        if isinstance(call, RouteLimit):
            yield call


def scope_of(dependant: Dependant | None) -> str:
    """Return the name under which the unnamed limits of a route are kept."""
    return adapter.scope_of(None if dependant is None else dependant.call)


def asked(limits: Iterable[RouteLimit]) -> tuple[RateLimit, ...]:
    """Give those that are asked before the endpoint runs."""
    return tuple(limit for limit in limits if isinstance(limit, RateLimit))
