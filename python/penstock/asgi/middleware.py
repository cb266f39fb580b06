"""The middleware: asks before the application does, and adds the fields of limits to what it sends.

Middlewares that share a limiter are one: the outermost writes the fields, once, for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from penstock.asgi.callables import AsyncCallables, AsyncLimitOptions, AsyncRuleOptions
from penstock.asgi.refusal import refuse
from penstock.asgi.request import AsgiRequest
from penstock.asgi.request_state import VISIT, RequestState
from penstock.errors import ConfigError
from penstock.web.adapter import check_routeless, split_options
from penstock.web.guard import Guard, GuardOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock._core import Limit, Limiter
    from penstock.asgi.request import Message, Receive, Scope, Send
    from penstock.web.outcome import Outcome

_LIMITED: Final = frozenset({"http", "websocket"})
_GONE: Final = frozenset({"http.disconnect", "websocket.disconnect"})


class _Options(AsyncLimitOptions, GuardOptions, total=False):
    """The keywords of a guard and of a limit together."""


class PenstockMiddleware:
    """Apply limits to every request and WebSocket of an application.

    The decision is at hand in `scope["state"]["penstock"]`, which Starlette shows as
    `request.state.penstock`. A refused request never reaches the application; a WebSocket is
    refused before it opens.

    Args:
        app: The application.
        limiter: A ready limiter, in place of the options `limits`, `overrides`, `store` and
            `clock`; or a guard, in place of all options but those of the limit.
        limit: The name of a limit, a text such as `"100/minute"`, or several; several are one
            decision. Without it nothing is asked here, and the fields of what middlewares inside
            ask are written.
        options: Those of a guard (`limits`, `headers`, `trusted_proxies`, ...) and those of a limit
            (`id`, `cost`, `methods`, ...), whose callables take the scope or nothing, and may be
            `async def`. `on_denied` may give an ASGI application, a text, or `None`.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
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
        limit: str | Limit | Sequence[str | Limit] | None = None,
        **options: Unpack[_Options],
    ) -> None:
        guard_options, limit_options = split_options(options, "PenstockMiddleware")
        self.app: Final = app
        self.guard: Final = _guard(limiter, guard_options)
        self._admit: Final = None if limit is None else self._compile(limit, limit_options)
        if limit is None and limit_options:
            raise ConfigError(f"{', '.join(sorted(limit_options))} need a limit, found limit=None")

    def _compile(
        self, limit: str | Limit | Sequence[str | Limit], options: dict[str, object]
    ) -> Callable[[AsgiRequest, Outcome | None], Outcome]:
        callables = AsyncCallables(cast("AsyncRuleOptions", options))
        limits = limit if isinstance(limit, list | tuple) else (limit,)
        rule = callables.rule(cast("Sequence[str | Limit]", limits), "default")
        check_routeless(
            rule,
            f"use by_address and a separate middleware for each route, "
            f"or in FastAPI RateLimit(id={rule.id!r})",
        )
        compiled = self.guard.route_limits([rule])
        self._refunds_on_error = compiled.refunds_on_error
        self._callables = callables if callables.is_async else None
        return compiled.admit

    # For a middleware without a limit.
    _refunds_on_error = False
    _callables: AsyncCallables | None = None

    # Each framework has types of its own for the three, and none of them fits another's.
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let the application answer it."""
        guard = self.guard
        if scope["type"] not in _LIMITED or not guard.enabled:
            await self.app(scope, receive, send)
            return
        limiter = guard.limiter
        outer: RequestState | None = scope.get(VISIT)
        visit = None if outer is None else outer.under(limiter)
        is_first = visit is None
        if visit is None:
            visit = scope[VISIT] = RequestState(limiter, outer, send)
            send = visit.send
        outcome = None
        try:
            if self._admit is not None:
                request = AsgiRequest(scope)
                if self._callables is not None:
                    await self._callables.find(request)
                outcome = visit.outcome = self._admit(request, visit.outcome)
                state = scope.get("state")
                if state is None:
                    state = scope["state"] = {}
                state["penstock"] = outcome.decision
                if outcome.refusal is not None:
                    await refuse(guard, outcome, scope, receive, send)
                    return
            if self._refunds_on_error:
                await self._serve_or_refund(outcome, visit, scope, receive, send)
            else:
                await self.app(scope, receive, send)
        finally:
            # Left in its scope, what refers to that scope would wait for the garbage collector.
            scope[VISIT] = outer
            # What a middleware itself asks refers to the scope alone.
            if is_first and visit.progress is not None:
                visit.forget()

    async def _serve_or_refund(
        self, own: Outcome | None, visit: RequestState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request whose tokens go back when the application raises.

        A client that leaves is no fault of the application: what its request took stays taken, or a
        client could leave before each answer, and never pay. A cancelled task is no error either.
        """
        is_gone = False

        async def hear() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or message["type"] in _GONE
            return message

        async def tell(message: Message) -> None:
            nonlocal is_gone
            try:
                await send(message)
            except OSError:
                # So a server says that nobody listens (ASGI, HTTP 2.4).
                is_gone = True
                raise

        try:
            await self.app(scope, hear, tell)
        except Exception:
            # Where nothing is asked here, it is for the limits that were asked further inside.
            if own is not None:
                answers: tuple[Outcome, ...] = (own,)
            else:
                answers = () if visit.outcome is None else visit.outcome.history
            for answer in () if is_gone else answers:
                answer.refund()
            raise


def _guard(limiter: Limiter | Guard | None, options: GuardOptions) -> Guard:
    if not isinstance(limiter, Guard):
        return Guard(limiter, **options)
    if options:
        raise ConfigError(f"a guard has its options already, found {', '.join(sorted(options))}")
    return limiter
