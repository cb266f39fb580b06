"""What has been decided about a request, for all on its way, and how its client is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.asgi.refusal import STARTS, with_fields
from penstock.web.adapter import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock._core import Limiter
    from penstock.asgi.request import Message, Scope, Send
    from penstock.web.outcome import Outcome

VISIT: Final = "penstock.visit"
"""Where a request's scope has the visit that began last."""

_SWITCHING_PROTOCOLS: Final = 101
# What a server answers when a WebSocket is closed before it is open.
_FORBIDDEN: Final = 403


class RequestState:
    """One request under one limiter: what the application sends by, once limits have been asked.

    Attributes:
        outcome: The newest answer, which follows the earlier ones; `None` before the first.
        pending: Decides what must be decided before the response leaves, and says whether it has
            sent a refusal in its place; `None` for nothing.
        progress: What an adapter inside wants to remember of the request.
    """

    # What most requests leave alone stands on the class, so that making a visit costs little.
    _is_replaced = False

    def __init__(self, limiter: Limiter, outer: RequestState | None, send: Send) -> None:
        # Read of every request, and found sooner here than on the class.
        self.outcome: Outcome | None = None
        self.pending: Callable[[Send], Awaitable[bool]] | None = None
        self.progress: object = None
        self._is_open = False
        self._limiter: Final = limiter
        self._outer: Final = outer
        self._send: Final = send

    def under(self, limiter: Limiter) -> RequestState | None:
        """Give the visit under a limiter: this one, or one that began further outside."""
        visit: RequestState | None = self
        while visit is not None and visit._limiter is not limiter:  # noqa: SLF001  another of this class
            visit = visit._outer  # noqa: SLF001  another of this class
        return visit

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message; a coroutine less than one that awaited the server's own."""
        if self._is_open:
            return _nothing() if self._is_replaced else self._send(message)
        kind = message["type"]
        starts = kind in STARTS
        if starts or kind == "websocket.close":
            if self.pending is not None:
                return self._decide_and_send(message)
            self._is_open = True
            outcome = self.outcome
            if outcome is not None:
                if outcome.needs_response:
                    outcome.settle(_head(message))
                if starts:
                    message = with_fields(message, outcome)
        return self._send(message)

    def forget(self) -> None:
        """Let go of what refers to the request, which refers to this by how it is answered."""
        self.outcome = self.pending = self.progress = None

    async def _decide_and_send(self, message: Message) -> None:
        """Decide late, before a response leaves whose request was not asked about to the end."""
        decide, self.pending = self.pending, None
        if decide is not None and await decide(self.send):
            # What the application goes on to say is the rest of an answer that nobody gets.
            self._is_replaced = True
        else:
            await self.send(message)


def visit_of(scope: Scope, limiter: Limiter) -> RequestState | None:
    """Give the visit of a request under a limiter; `None` where no middleware has begun one."""
    newest: RequestState | None = scope.get(VISIT)
    return None if newest is None else newest.under(limiter)


def remember(scope: Scope, outcome: Outcome) -> None:
    """Leave the decision where the application finds it."""
    scope.setdefault("state", {})["penstock"] = outcome.decision


def _head(message: Message) -> Response:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in message.get("headers") or ()
    ]
    without = _FORBIDDEN if message["type"] == "websocket.close" else _SWITCHING_PROTOCOLS
    return Response(message.get("status", without), headers)


async def _nothing() -> None:
    """Send nothing."""
