"""FastAPI's request as a guard sees it, and a refusal as FastAPI sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import HTTPException

from penstock.asgi.refusal import refuse
from penstock.asgi.request import AsgiRequest

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from penstock.asgi.request import Receive, Scope, Send
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome


class RequestRefused(HTTPException):
    """A refused request, as an HTTP error: a handler for it, or for its status, sees it.

    Attributes:
        outcome: What was decided; `outcome.decision` may be `None` where no limit was asked.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status, outcome.problem.detail, headers=dict(outcome.headers()))
        self.outcome: Final = outcome


class Refusal:
    """The usual answer to a refused request, an ASGI application."""

    def __init__(self, guard: Guard, outcome: Outcome) -> None:
        self._guard: Final = guard
        self._outcome: Final = outcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await refuse(self._guard, self._outcome, scope, receive, send)


class FastapiRequest(AsgiRequest):
    """A request, or a WebSocket, with a route."""

    def __init__(self, native: HTTPConnection) -> None:
        super().__init__(native.scope)
        self._native: Final = native

    @property
    def native(self) -> HTTPConnection:
        """FastAPI's `Request` or `WebSocket`."""
        return self._native

    @property
    def route(self) -> str | None:
        """The route's template, such as `/orders/{id}`, the prefixes of its routers included."""
        return getattr(route_of(self._scope), "path_format", None)


def route_of(scope: Scope) -> Any:
    """Give the route of a request as the application has it, with all that its routers add.

    `None` where there is no route.
    """
    route = scope.get("route")
    inner = scope.get("fastapi")
    # Newer releases leave the route as it was written, and keep beside it what its routers make of
    # it.
    context = inner.get("effective_route_context") if isinstance(inner, dict) else None
    return context if context is not None and context.original_route is route else route
