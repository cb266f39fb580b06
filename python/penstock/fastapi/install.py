"""Adds limits to an application, with the middlewares that they need."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from fastapi import WebSocket
from starlette import middleware
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from penstock._validation import is_coroutine_function
from penstock._web.guard import Guard, GuardOptions, check_options
from penstock.asgi.middleware import PenstockMiddleware
from penstock.asgi.response import STARTS
from penstock.errors import ConfigError, RateLimited
from penstock.fastapi.app_limits import ROOT_PATH_KEY, FastapiLimits
from penstock.fastapi.around import APP_LIMITS_KEY
from penstock.fastapi.openapi import document
from penstock.fastapi.request import Refusal, RequestRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from fastapi import FastAPI
    from starlette.requests import HTTPConnection

    from penstock._core import Limiter
    from penstock.asgi.request import Message, Receive, Scope, Send


class Middleware(PenstockMiddleware):
    """Middleware of an application, through which its dependencies find its limits."""

    def __init__(self, app: Callable[..., Awaitable[None]], app_limits: FastapiLimits) -> None:
        super().__init__(app, app_limits.guard)
        self._app_limits: Final = app_limits

    # Not `async def`, which would cost one coroutine more for each request.
    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Pass a request to the application, and add the headers of its limits."""
        if scope["type"] != "lifespan":
            app_limits = self._app_limits
            if not app_limits.is_started:
                app_limits.start()
            self._needs_response = app_limits.needs_response
            scope[APP_LIMITS_KEY] = app_limits
            scope[ROOT_PATH_KEY] = scope.setdefault("root_path", "")
        # Not `super()`, which takes 790 instructions more.
        return PenstockMiddleware.__call__(self, scope, receive, send)


class LateRefusals:
    """Middleware that decides limits which wait for a dependency, if the request ends before it."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        app_limits: FastapiLimits,
        handle: Callable[[Request, RequestRefused], Awaitable[Any]],
    ) -> None:
        self.app: Final = app
        self._app_limits: Final = app_limits
        self._handle: Final = handle

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Pass a request to the application, and decide before its response starts."""
        if scope["type"] == "lifespan" or not self._app_limits.may_be_late:
            return self.app(scope, receive, send)
        return self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = False

        async def send_or_refuse(message: Message) -> None:
            nonlocal is_refused
            if message["type"] in STARTS or message["type"] == "websocket.close":
                is_refused = await self._refuse(scope, receive, send)
            if not is_refused:
                await send(message)

        try:
            await self.app(scope, receive, send_or_refuse)
        except Exception:
            if not await self._refuse(scope, receive, send):
                raise

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> bool:
        refused = await self._app_limits.decide_late(scope)
        if refused is None or scope["type"] != "http":
            return False
        response = await self._handle(Request(scope, receive), refused)
        await response(scope, receive, send)
        return True


def install(
    app: FastAPI,
    limiter: Limiter | None = None,
    *,
    openapi: bool = True,
    **options: Unpack[GuardOptions],
) -> Guard:
    """Add limits to an application; its routes use them with `Depends(RateLimit(...))`.

    The guard is stored in `app.state.penstock`. The limits of existing routes are checked now,
    those of later ones when the application starts.

    Args:
        app: The application.
        limiter: A limiter, instead of the options `limits`, `overrides`, `store` and `clock`.
        openapi: Whether the OpenAPI document lists the refusals of limited routes.
        options: The options of `penstock.adapter.Guard`. `on_denied` may return a response, text, a
            dict or `None`.

    Returns:
        The guard.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.
    """
    if hasattr(app.state, "penstock"):
        raise ConfigError(f"{app!r} has limits already; call install once")
    if app.middleware_stack is not None:
        raise ConfigError(
            f"{app!r} has started; call install where the application is created, not in its "
            f"lifespan"
        )
    check_options(options, "install")
    guard = Guard(limiter, **options)
    app_limits = FastapiLimits(app, guard)
    app_limits.check()

    async def respond(connection: HTTPConnection, error: Exception) -> Any:
        refusal = Refusal(guard, cast("RequestRefused", error).outcome)
        if isinstance(connection, WebSocket):
            # Only newer releases send what a handler returns for a WebSocket.
            await refusal(connection.scope, connection.receive, connection.send)
            return None
        # Starlette calls it as an ASGI application.
        return refusal

    async def handle(connection: HTTPConnection, refused: RequestRefused) -> Any:
        """Respond to a refusal that no dependency has raised as if one had."""
        handler: Any = app.exception_handlers.get(refused.status_code)
        handler = handler or app.exception_handlers[RequestRefused]
        if is_coroutine_function(handler):
            return await handler(connection, refused)
        return await run_in_threadpool(handler, connection, refused)

    async def respond_denied(connection: HTTPConnection, error: Exception) -> Any:
        if isinstance(connection, WebSocket):
            raise error
        return await handle(connection, app_limits.denied(connection, cast("RateLimited", error)))

    app.add_middleware(Middleware, app_limits=app_limits)
    # The innermost: its refusals pass through the middlewares of the application, such as CORS.
    late = middleware.Middleware(LateRefusals, app_limits=app_limits, handle=handle)
    app.user_middleware.append(late)
    app.state.penstock = guard
    # A handler of the application stays, also if it is added later.
    app.exception_handlers.setdefault(RequestRefused, cast("Any", respond))
    app.exception_handlers.setdefault(RateLimited, cast("Any", respond_denied))
    _check_at_start(app, app_limits)
    if openapi:
        document(app, options.get("headers", "ietf"))
    return guard


def _check_at_start(app: FastAPI, app_limits: FastapiLimits) -> None:
    """Check the limits in the application's lifespan, so that a faulty one stops the server."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncIterator[Any]:
        app_limits.start()
        async with inner(started) as state:
            yield state

    app.router.lifespan_context = lifespan
