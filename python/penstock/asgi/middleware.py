"""The middleware: decides limits before the application runs, and adds their response headers.

Of several middlewares with one limiter, the outermost writes the fields of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from penstock._validation import takes
from penstock._web.guard import Guard, GuardOptions, check_routeless, split_limit, split_options
from penstock._web.rule import AsyncReader, LimitOptions
from penstock.asgi.callables import AsyncLimits
from penstock.asgi.exchange import Exchange
from penstock.asgi.response import refuse
from penstock.asgi.visit import (
    VISIT_KEY,
    AsgiVisit,
    show_nothing,
    store_decision,
    visit_of,
)
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock._core import Limit, Limiter
    from penstock._web.decide import RouteLimits
    from penstock._web.rule import AsyncRuleOptions
    from penstock.asgi.request import Receive, Scope, Send

_LIMITED: Final = frozenset({"http", "websocket"})


class _Options(LimitOptions[AsyncReader], GuardOptions, total=False):
    """Keywords of a guard and of a limit."""


class PenstockMiddleware:
    """Apply limits to every request and WebSocket of an application.

    The decision is in `scope["state"]["penstock"]`, which Starlette shows as
    `request.state.penstock`. A refused request does not reach the application; a WebSocket is
    refused before it is accepted.

    Args:
        app: The application.
        limiter: A limiter, instead of the options `limits`, `overrides`, `store` and `clock`; or a
            guard, instead of all options except those of the limit.
        limit: The name of a limit, a rate string such as `"100/minute"`, or a list of them, which
            are decided together; or a callable that returns the limit of a request. Without it, the
            middleware only writes the headers of limits that are decided further inside.
        options: The options of a guard (`limits`, `headers`, `trusted_proxies`, ...) and of a limit
            (`id`, `cost`, `methods`, ...), whose callables take the scope or nothing, and may be
            `async def`. `on_denied` may return an ASGI application, text, a dict or `None`.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.

    Examples:
        >>> from penstock.asgi import PenstockMiddleware
        >>> async def hello(scope, receive, send):
        ...     await send({"type": "http.response.start", "status": 200, "headers": []})
        ...     await send({"type": "http.response.body", "body": b"hello"})
        >>> app = PenstockMiddleware(hello, limit="100/minute")
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        limiter: Limiter | Guard | None = None,
        *,
        limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None = None,
        **options: Unpack[_Options],
    ) -> None:
        if not takes(app, 3) and takes(app, 2):
            raise ConfigError(
                f"{app!r} is a WSGI application; use penstock.wsgi.PenstockMiddleware"
            )
        guard_options, limit_options = split_options(options, "PenstockMiddleware")
        self.app: Final = app
        self.guard: Final = _guard(limiter, guard_options)
        has_limit = limit is not None or "tiers" in limit_options
        self._limits: Final = self._compile(limit, limit_options) if has_limit else None
        self._waits: Final = self.guard.limiter.may_wait or self._awaited is not None
        if limit_options and not has_limit:
            raise ConfigError(f"{', '.join(sorted(limit_options))} need a limit, found limit=None")
        if not (has_limit or isinstance(limiter, Guard)):
            raise ConfigError(
                "PenstockMiddleware needs a limit, such as limit='PerAddress'; without one, pass "
                "the guard of the limits further inside"
            )

    def _compile(
        self,
        limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None,
        options: dict[str, object],
    ) -> RouteLimits:
        limits, options = split_limit(limit, options)
        written = AsyncLimits(limits, cast("AsyncRuleOptions", options))
        rule = written.rule("default")
        check_routeless(
            rule,
            f"use by_address and a separate middleware for each route, "
            f"or in FastAPI RateLimit(id={rule.id!r})",
        )
        compiled = self.guard.route_limits([rule])
        self._needs_response = compiled.needs_response
        self._awaited = written if written.is_async else None
        return compiled

    # For a middleware without a limit.
    _needs_response = False
    _awaited: AsyncLimits | None = None

    # Frameworks have types of their own for the three, which are not compatible.
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it to the application."""
        # Locals: a method call would look up the class first.
        app, guard = self.app, self.guard
        if scope["type"] not in _LIMITED:
            await app(scope, receive, send)
            return
        if not guard.enabled:
            show_nothing(scope)
            await app(scope, receive, send)
            return
        limiter = guard.limiter
        outer: AsgiVisit | None = scope.get(VISIT_KEY)
        visit = None if outer is None else visit_of(scope, limiter)
        is_outermost = visit is None
        if visit is None:
            client = scope.get("client")
            visit = scope[VISIT_KEY] = AsgiVisit().arrive(scope, client[0] if client else None)
            visit.limiter, visit.outer, visit.send_on = limiter, outer, send
            visit.has_started, visit.reader = False, None
            send = visit.send
        try:
            limits = self._limits
            outcome = None
            if limits is None:
                show_nothing(scope)
            elif self._waits:
                if self._awaited is not None:
                    await self._awaited.resolve(visit.request)
                outcome = await visit.enter_async(limits)
                store_decision(scope, visit.decision)
            else:
                outcome = visit.enter(limits)
                # As `store_decision`, with one call less.
                scope.setdefault("state", {})["penstock"] = visit.decision
            if outcome is not None and outcome.refusal is not None:
                await refuse(guard, outcome, scope, receive, send)
            elif self._needs_response:
                await self._serve_and_watch(visit, scope, receive, send)
            else:
                await app(scope, receive, send)
        finally:
            # The visit must not stay in the scope: a reference cycle waits for the collector.
            scope[VISIT_KEY] = outer
            if is_outermost:
                visit.end()

    async def _serve_and_watch(
        self, visit: AsgiVisit, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request; refund or settle it if the application raises.

        A request whose client disconnected is not refunded, or clients could avoid all limits by
        disconnecting before the response. Neither is a cancelled task, nor one whose response was
        sent before a background task failed.
        """
        # Without a limit of its own, it refunds those further inside.
        own = None if self._limits is None else visit.entered
        exchange = Exchange(receive, send)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            if not (exchange.is_disconnected or exchange.is_served):
                await visit.failed_async(own)
            raise


def _guard(limiter: Limiter | Guard | None, options: GuardOptions) -> Guard:
    if not isinstance(limiter, Guard):
        return Guard(limiter, **options)
    if options:
        raise ConfigError(f"a guard has its options already, found {', '.join(sorted(options))}")
    return limiter
