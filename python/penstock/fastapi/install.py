"""From an application without limits to one with them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack, cast

from fastapi import WebSocket
from starlette.concurrency import run_in_threadpool

from penstock.errors import ConfigError, RateLimited
from penstock.fastapi.app_limits import AppLimits, Middleware
from penstock.fastapi.openapi import document
from penstock.fastapi.request import Refusal, RequestRefused
from penstock.validation import is_coroutine_function
from penstock.web.guard import Guard, GuardOptions, check_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI
    from starlette.requests import HTTPConnection

    from penstock._core import Limiter


def install(
    app: FastAPI,
    limiter: Limiter | None = None,
    *,
    openapi: bool = True,
    **options: Unpack[GuardOptions],
) -> Guard:
    """Give an application limits: routes have them by `Depends(RateLimit(...))`.

    The guard is at hand in `app.state.penstock`. Limits of routes are checked now, and those of
    routes that are added later when the application starts.

    Args:
        app: The application.
        limiter: A ready limiter, in place of the options `limits`, `overrides`, `store` and
            `clock`.
        openapi: Whether the OpenAPI document says which routes may refuse, and how.
        options: Those of `penstock.web.guard.Guard`. `on_denied` may give a response, a text, or
            `None`.

    Returns:
        The guard.

    Raises:
        ConfigError: Something that cannot be, and what would do.
    """
    if hasattr(app.state, "penstock"):
        raise ConfigError(f"{app!r} has limits already; call install once")
    check_options(options, "install")
    guard = Guard(limiter, **options)
    installed = AppLimits(app, guard)
    installed.check()
    app.add_middleware(Middleware, installed=installed)
    app.state.penstock = guard

    async def answer(connection: HTTPConnection, error: Exception) -> Any:
        refusal = Refusal(guard, cast("RequestRefused", error).outcome)
        if isinstance(connection, WebSocket):
            # Only newer releases send what a handler gives for a WebSocket.
            await refusal(connection.scope, connection.receive, connection.send)
            return None
        # Starlette sends whatever it can call as an application.
        return refusal

    async def answer_denied(connection: HTTPConnection, error: Exception) -> Any:
        if isinstance(connection, WebSocket):
            raise error
        refused = installed.denied(connection, cast("RateLimited", error))
        # A handler for 429 sees it as any other refusal.
        handler: Any = app.exception_handlers.get(refused.status_code)
        handler = handler or app.exception_handlers[RequestRefused]
        if is_coroutine_function(handler):
            return await handler(connection, refused)
        return await run_in_threadpool(handler, connection, refused)

    # The application's own handler stays, whichever came first.
    app.exception_handlers.setdefault(RequestRefused, cast("Any", answer))
    app.exception_handlers.setdefault(RateLimited, cast("Any", answer_denied))
    _check_at_start(app, installed)
    if openapi:
        document(app, options.get("headers", "ietf"))
    return guard


def _check_at_start(app: FastAPI, installed: AppLimits) -> None:
    """Have a server that runs an application's lifespan stop there, if a limit is wrong."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncIterator[Any]:
        installed.start()
        async with inner(started) as state:
            yield state

    app.router.lifespan_context = lifespan
