"""What stands in `Depends`: a limit of a route, and a limit of a WebSocket's messages."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from fastapi.params import Depends
from starlette.requests import HTTPConnection

from penstock.asgi.callables import AsyncCallables, AsyncRuleOptions, ResolvedValue
from penstock.errors import ConfigError
from penstock.fastapi.request import FastapiRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock._core import Limit
    from penstock.asgi.request import Scope
    from penstock.fastapi.app_limits import AppLimits
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits
    from penstock.web.rule import Rule

INSTALLED: Final = "penstock.fastapi"
"""Where a request's scope has what `install` made."""

_FROM_DEPENDENCIES: Final = ("id", "cost", "exempt_when")


class RouteLimit:
    """One or several limits of a route, told in its dependencies."""

    def __init__(
        self, *limits: str | Limit, scope: str | None = None, **options: Unpack[AsyncRuleOptions]
    ) -> None:
        given = cast("dict[str, Any]", options)
        found = {name: given[name] for name in _FROM_DEPENDENCIES if _is_dependency(given, name)}
        self._slots: Final = {name: ResolvedValue() for name in found}
        self._limits: Final = limits
        self._scope: Final = scope
        self.callables: Final = AsyncCallables(cast("AsyncRuleOptions", {**given, **self._slots}))
        # Made once for nothing, so that a mistake is found where it was written.
        self.callables.rule(limits, "")
        # What FastAPI reads, to find out before each call what is asked for here.
        kind = inspect.Parameter.KEYWORD_ONLY
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter("connection", kind, annotation=HTTPConnection),
                *(
                    inspect.Parameter(name, kind, annotation=Any, default=depends)
                    for name, depends in found.items()
                ),
            ]
        )

    @property
    def waits(self) -> bool:
        """Whether FastAPI finds something out for it, such as its id."""
        return bool(self._slots)

    def rule(self, scope: str) -> Rule:
        """Make its rule for a route, under whose scope its texts are kept unless it has one."""
        if self._scope is None:
            return self.callables.rule(self._limits, scope)
        return self.callables.rule(self._limits, self._scope, is_shared=True)

    def found(self, values: Mapping[str, Any]) -> dict[object, Any]:
        """Give what FastAPI has found out, as the limit's request keeps it."""
        return {slot: values[name] for name, slot in self._slots.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._limits))})"


class RateLimit(RouteLimit):
    """Limit a route, a router, an application or a WebSocket; stands in `Depends`.

    All `RateLimit`s of a route, wherever they stand in its dependencies, are one decision, made
    where FastAPI comes to the first of them. Where one of them waits for a dependency, it is made
    where the last is reached, or before the response leaves if another dependency refuses.

    Args:
        limits: Names of limits, texts such as `"30/minute"` that belong to the route alone, or
            limits.
        scope: A name for texts that several routes share.
        options: See `penstock.web.rule.RuleOptions`. A callable takes the `Request` or `WebSocket`,
            or nothing, and may be `async def`. `Depends(...)` lets FastAPI find the value.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
        >>> from fastapi import Depends, FastAPI
        >>> from penstock.fastapi import RateLimit, install
        >>> app = FastAPI()
        >>> guard = install(app, limits={"PerAddress": "5/minute"})
        >>> @app.get("/orders", dependencies=[Depends(RateLimit("PerAddress"))])
        ... async def orders():
        ...     return {"orders": []}
    """

    async def __call__(self, connection: HTTPConnection, **values: Any) -> None:
        """Ask the limits of the route, as FastAPI does for each request.

        Raises:
            RequestRefused: They refuse.
            ConfigError: Nobody has called `install`.
        """
        await _installed(connection.scope).enforce(self, connection, values)


class Messages:
    """The limit of one WebSocket's messages, as `MessageLimit` gives it to an endpoint."""

    def __init__(
        self,
        limit: MessageLimit,
        plan: RouteLimits | None,
        connection: HTTPConnection,
        found: dict[object, Any],
    ) -> None:
        self._limit: Final = limit
        self._plan: Final = plan
        self._connection: Final = connection
        self._found: Final = found

    async def ask(self) -> Outcome | None:
        """Spend for one message; give what refuses it, or `None` where it may pass."""
        if self._plan is None:
            return None
        request = FastapiRequest(self._connection)
        request.found = dict(self._found)
        if self._limit.callables.is_async:
            await self._limit.callables.find(request)
        outcome = self._plan.admit(request)
        return None if outcome.refusal is None else outcome


class MessageLimit(RouteLimit):
    """Limit what comes over a WebSocket once it is open; stands in `Depends`.

    The endpoint gets `Messages`, and asks for each message. The arguments are those of `RateLimit`.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
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

    async def __call__(self, connection: HTTPConnection, **values: Any) -> Messages:
        """Give what the endpoint asks for each message."""
        plan = _installed(connection.scope).plan_of(self, connection.scope)
        return Messages(self, plan, connection, self.found(values))


def _is_dependency(options: dict[str, Any], name: str) -> bool:
    return isinstance(options.get(name), Depends)


def _installed(scope: Scope) -> AppLimits:
    installed: AppLimits | None = scope.get(INSTALLED)
    if installed is None:
        raise ConfigError(
            "this application has no limits yet; call penstock.fastapi.install(app, limits=...)"
        )
    return installed
