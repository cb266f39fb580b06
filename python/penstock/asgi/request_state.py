"""State of a request, shared by all middlewares and dependencies that decide its limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.asgi.request import AsgiRequest
from penstock.asgi.response import STARTS, with_fields
from penstock.web.adapter import Response
from penstock.web.route_limits import RequestLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock._core import Decision, Limiter
    from penstock.asgi.request import Message, Scope, Send
    from penstock.web.outcome import Outcome
    from penstock.web.route_limits import RouteLimits

STATE_KEY: Final = "penstock.state"
"""The key of a scope under which the innermost `RequestState` is stored."""

_SWITCHING_PROTOCOLS: Final = 101
# What servers answer if a WebSocket is closed before it is accepted.
_FORBIDDEN: Final = 403


class RequestState(RequestLimits):
    """State of one request under one limiter; the application sends its response through it.

    Attributes:
        limiter: The limiter.
        outer: The state under another limiter, of a middleware further outside; `None` for none.
        progress: The request of an adapter further inside, with its progress there.
    """

    __slots__ = ("_fields", "_is_open", "_scope", "_send", "limiter", "outer", "progress")

    def __init__(self, limiter: Limiter, outer: RequestState | None, send: Send) -> None:
        self.decision = self._outcome = None
        self.progress: AsgiRequest | None = None
        self._is_open = False
        self.limiter: Final = limiter
        self.outer: Final = outer
        self._send: Final = send

    def _request(self) -> AsgiRequest:
        return self.progress or AsgiRequest(self._scope)

    def spend(self, limits: RouteLimits, scope: Scope) -> Decision | None:
        """Decide an ordinary request, whose outcome is created only when something asks for it.

        Returns:
            The decision; `None` if the limits have to be evaluated.
        """
        if not limits.is_direct or self._outcome is not None or self.decision is not None:
            return None
        client = scope.get("client")
        decision = limits.spend(client[0] if client else None)
        if decision is not None:
            self.limits, self._scope, self.decision = limits, scope, decision
            # Now, and not with the response, when what they are made of has left the caches.
            fields_of = limits.encoded_fields
            self._fields = fields_of(decision)
            store_decision(scope, decision)
        return decision

    # Not `async def`, which would cost one coroutine more for each message.
    def send(self, message: Message) -> Awaitable[None]:
        """Send a message, with the fields of limits if it starts the response."""
        # A local: called as a method, it would first be looked for in the class.
        send = self._send
        if self._is_open:
            return send(message)
        kind = message["type"]
        starts = kind in STARTS
        if starts or kind == "websocket.close":
            self._is_open = True
            outcome = self._outcome
            if outcome is not None:
                if outcome.needs_response:
                    if self.limiter.is_remote:
                        return self._settle_and_send(outcome, message, starts=starts)
                    outcome.settle(_head(message))
                if starts:
                    message = with_fields(message, outcome)
            elif starts and self.decision is not None:
                # A new message: an application may send the same response again.
                message = {**message, "headers": [*(message.get("headers") or ()), *self._fields]}
        return send(message)

    async def _settle_and_send(self, outcome: Outcome, message: Message, *, starts: bool) -> None:
        """Settle limits over a server, which the event loop must not wait for."""
        await asyncio.to_thread(outcome.settle, _head(message))
        await self._send(with_fields(message, outcome) if starts else message)

    def end(self) -> None:
        """Leave everything taken that no response has settled, and drop what refers to the request.

        The outermost middleware calls it, because one in between may hold the response back until
        those further inside have ended.
        """
        outcome = self._outcome
        if outcome is not None and outcome.needs_response:
            outcome.keep()
        # Only the progress of an adapter further inside refers to the request, which itself refers
        # to this state.
        if self.progress is not None:
            self.decision = self._outcome = self.progress = None


def state_of(scope: Scope, limiter: Limiter) -> RequestState | None:
    """Return the state of a request under a limiter; `None` if no middleware created one."""
    state: RequestState | None = scope.get(STATE_KEY)
    while state is not None and state.limiter is not limiter:
        state = state.outer
    return state


def store_decision(scope: Scope, decision: Decision | None) -> None:
    """Store a decision where the application finds it: in `request.state.penstock`."""
    scope.setdefault("state", {})["penstock"] = decision


def _head(message: Message) -> Response:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in message.get("headers") or ()
    ]
    default = _FORBIDDEN if message["type"] == "websocket.close" else _SWITCHING_PROTOCOLS
    return Response(message.get("status", default), headers)
