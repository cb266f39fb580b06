"""FastAPI's request as a `penstock.adapter.Request`, and refusals as FastAPI's exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from penstock.asgi.request import AsgiRequest
from penstock.asgi.response import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import HTTPConnection

    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock.asgi.request import Receive, Scope, Send


class RequestRefused(HTTPException):
    """A refused request; exception handlers for it, or for its status, can respond to it.

    Attributes:
        outcome: The outcome; `outcome.decision` is `None` if no limit was evaluated.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status, outcome.problem.detail, headers=dict(outcome.headers()))
        self.outcome: Final = outcome


class Refusal:
    """The usual response to a refused request, as an ASGI application."""

    def __init__(self, guard: Guard, outcome: Outcome) -> None:
        self._guard: Final = guard
        self._outcome: Final = outcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await refuse(self._guard, self._outcome, scope, receive, send)


class FastapiRequest(AsgiRequest):
    """A request or a WebSocket, with its route."""

    __slots__ = ("_native", "_receive")

    def __init__(
        self, scope: Scope, native: HTTPConnection | None = None, receive: Receive | None = None
    ) -> None:
        client = scope.get("client")
        self._scope = scope
        self.peer = client[0] if client else None
        self.resolved = None
        self._native = native
        self._receive: Final = receive

    @property
    def native(self) -> HTTPConnection:
        """FastAPI's `Request` or `WebSocket`, made when something asks."""
        if self._native is None:
            self._native = (
                Request(self._scope)
                if self._receive is None
                else Request(self._scope, self._receive)
            )
        return self._native

    @property
    def route(self) -> str | None:
        """The template of the route, such as `/orders/{id}`.

        With the prefixes of its routers, and the path at which its application is mounted.
        """
        scope = self._scope
        path: str | None = getattr(route_of(scope), "path_format", None)
        # Only mounts set it: the path at which a server has the application.
        root = scope.get("app_root_path")
        if path is None or root is None:
            return path
        mounted_at = scope["root_path"].removeprefix(root)
        return f"{mount_template(scope['router'].routes, mounted_at)}{path}"


def route_of(scope: Scope) -> Any:
    """Return the route of a request, with what its routers add; `None` if it has none."""
    route = scope.get("route")
    inner = scope.get("fastapi")
    # Newer releases keep the route as it was written, and store what its routers add beside it.
    context = inner.get("effective_route_context") if isinstance(inner, dict) else None
    return context if context is not None and context.original_route is route else route


def mount_template(routes: Iterable[Any], path: str) -> str:
    """Return the template of the mounts that lead to a path, such as `/tenants/{tenant}`.

    Args:
        routes: The routes of an application.
        path: A path below it at which another one is mounted.
    """
    for route in routes:
        if not isinstance(route, Mount) or (match := route.path_regex.match(f"{path}/")) is None:
            continue
        rest = match["path"].rstrip("/")
        if not rest:
            return route.path
        template = mount_template(route.routes, f"/{rest}")
        if template:
            return f"{route.path}{template}"
    return ""
