"""Dependencies: a limit of a route, and a limit of a WebSocket's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock._web.identity import IdSource, by_address
from penstock._web.lifecycle import Visit
from penstock.fastapi.around import app_limits_of
from penstock.fastapi.request import FastapiRequest
from penstock.fastapi.route_limit import RouteLimit, refuse_endpoint

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from penstock._web.decide import RouteLimits
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock.types import Id


class RateLimit(RouteLimit):
    """Limit a route, a router, an application or a WebSocket; use it in `Depends`.

    All `RateLimit`s among the dependencies of a route are decided together, when FastAPI calls the
    first of them; before the body of the request is read, if nothing comes before them. If one of
    them has a dependency of its own, such as its id, they are decided when the last one is called,
    or before the response starts if another dependency refuses the request.

    Args:
        limits: Names of limits, rate strings such as `"30/minute"`, which belong to the route
            alone, or limits.
        scope: A name for rate strings that several routes share.
        options: Options of a limit; docs/options.md lists them. A callable takes the `Request` or
            `WebSocket`, or nothing, and may be `async def`. With `Depends(...)`, FastAPI resolves
            the value.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.

    Examples:
        >>> from fastapi import Depends, FastAPI
        >>> from penstock.fastapi import RateLimit, install
        >>> app = FastAPI()
        >>> guard = install(app, limits={"PerAddress": "5/minute"})
        >>> @app.get("/orders", dependencies=[Depends(RateLimit("PerAddress"))])
        ... async def orders():
        ...     return {"orders": []}
    """

    is_per_request = True

    @refuse_endpoint
    async def __call__(self, connection: HTTPConnection, **values: Any) -> None:
        """Decide the limits of the route; FastAPI calls it for each request.

        Raises:
            RequestRefused: The request is refused.
            ConfigError: `install` has not been called.
        """
        pending = app_limits_of(connection.scope).enforce(self, connection, values)
        if pending is not None:
            await pending


class Messages:
    """Limit of one WebSocket's messages, as `MessageLimit` passes it to the endpoint."""

    def __init__(
        self,
        limit: MessageLimit,
        limits: RouteLimits | None,
        connection: HTTPConnection,
        resolved: dict[object, Any],
    ) -> None:
        self._limit: Final = limit
        self._limits: Final = limits
        self._connection: Final = connection
        self._resolved: Final = resolved

    async def ask(self) -> Outcome | None:
        """Spend for one message; return the outcome that refuses it, `None` if it may proceed.

        Raises:
            ConfigError: The limit is on requests in flight.
        """
        if self._limits is None:
            return None
        request = FastapiRequest(self._connection.scope, self._connection)
        request.resolved = dict(self._resolved)
        if self._limit.is_async:
            await self._limit.resolve(request)
        visit = Visit().arrive(request, request.peer)
        outcome = await visit.enter_async(self._limits)
        # An override or a reload may have added slots since the start.
        visit.hold_nothing()
        return outcome if outcome is not None and outcome.refusal is not None else None


class MessageLimit(RouteLimit):
    """Limit the messages of an accepted WebSocket; use it in `Depends`.

    The endpoint gets `Messages`, and asks it for each message. The arguments are those of
    `RateLimit`. A limit on requests in flight is an error: it belongs in a `RateLimit` of the
    WebSocket.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.

    Examples:
        >>> from typing import Annotated
        >>> from fastapi import Depends, FastAPI, WebSocket
        >>> from penstock.fastapi import MessageLimit, Messages, install
        >>> app = FastAPI()
        >>> guard = install(app, limits={"PerAddress": "5/minute"})
        >>> @app.websocket("/chat")
        ... async def chat(
        ...     websocket: WebSocket,
        ...     messages: Annotated[Messages, Depends(MessageLimit("PerAddress"))],
        ... ):
        ...     await websocket.accept()
        ...     async for text in websocket.iter_text():
        ...         refused = await messages.ask()
        ...         answer = "echo" if refused is None else f"wait {refused.retry_after} s"
        ...         await websocket.send_text(answer)
    """

    is_per_request = False

    @refuse_endpoint
    async def __call__(self, connection: HTTPConnection, **values: Any) -> Messages:
        """Return the limit of the WebSocket's messages."""
        limits = app_limits_of(connection.scope).limits_of(self, connection.scope)
        return Messages(self, limits, connection, self.resolved(values))


def client_id(connection: HTTPConnection, name: str, id: IdSource = by_address) -> Id:
    """Return the id of a request's client under a limit, to call the limiter with.

    Args:
        connection: The `Request` or `WebSocket`.
        name: The name of a loaded limit.
        id: As the option of `RateLimit`, except that it is not awaited.

    Raises:
        ConfigError: `install` has not been called.
        UnknownLimit: No limit has this name.
        MissingId: The request has no id, or a malformed one.
    """
    guard: Guard = app_limits_of(connection.scope).guard
    return guard.client_id(FastapiRequest(connection.scope, connection), name, id)
