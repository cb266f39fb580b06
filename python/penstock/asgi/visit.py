"""The visit of a request, shared by all middlewares and dependencies that decide its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from penstock._web.decide import NOTHING
from penstock._web.lifecycle import Visit
from penstock._web.request import Response
from penstock.asgi.exchange import BODIES
from penstock.asgi.request import AsgiRequest
from penstock.asgi.response import STARTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock._core import Decision, Limiter
    from penstock.asgi.request import Message, Receive, Scope, Send

VISIT_KEY: Final = "penstock.visit"
"""The key of a scope under which the innermost `AsgiVisit` is stored."""

_SWITCHING_PROTOCOLS: Final = 101
# What servers answer if a WebSocket is closed before it is accepted.
_FORBIDDEN: Final = 403


class AsgiVisit(Visit):
    """A request under one limiter; the application sends its response through it.

    Attributes:
        limiter: The limiter.
        outer: The visit under another limiter, of a middleware further outside; `None` for none.
        has_started: Whether the response has started.
        send_on: Sends a message on to the server.
        reader: Makes the request, with what receives its messages; `None` for that of the scope.
    """

    __slots__ = ("has_started", "limiter", "outer", "reader", "send_on")

    # Set by the middleware: a method of this class would be one call more for each request.
    has_started: bool
    limiter: Limiter
    outer: AsgiVisit | None
    reader: tuple[Callable[[Scope, None, Receive], AsgiRequest], Receive] | None
    send_on: Send

    may_block: ClassVar[bool] = False

    def read(self) -> AsgiRequest:
        """Return the request."""
        if self.reader is None:
            return AsgiRequest(self.native)
        make, receive = self.reader
        return make(self.native, None, receive)

    # Not `async def`, which would cost one coroutine more for each message.
    def send(self, message: Message) -> Awaitable[None]:
        """Send a message, with the fields of limits if it starts the response."""
        # A local: a method call would look up the class first.
        send = self.send_on
        if self.has_started:
            if self.slots:
                return self._send_and_release(message)
            return send(message)
        kind = message["type"]
        starts = kind in STARTS
        if starts or kind == "websocket.close":
            self.has_started = True
            limits = self.limits
            if self.entered is not None:
                if self.is_open:
                    if self.limiter.is_remote:
                        return self._settle_and_send(message, starts=starts)
                    self.respond(_head(message))
                if starts:
                    message = self._with_fields(message)
            elif starts and limits is not None:
                # As `_with_fields`, with two calls less.
                fields_of = limits.encoded_fields
                own = message.get("headers") or ()
                message = {**message, "headers": fields_of(self.decision, own)}
        return send(message)

    def _with_fields(self, message: Message) -> Message:
        own = message.get("headers") or ()
        # A new message: an application may send the same response again.
        return {**message, "headers": self.add_encoded_to(own, message.get("status", 0))}

    async def _settle_and_send(self, message: Message, *, starts: bool) -> None:
        """Settle limits over a server, which the event loop must not wait for."""
        await self.respond_async(_head(message))
        await self.send_on(self._with_fields(message) if starts else message)

    async def _send_and_release(self, message: Message) -> None:
        """Send a part of a response; a task that runs after the last one holds no slot."""
        await self.send_on(message)
        if message["type"] in BODIES and not message.get("more_body"):
            self.release()

    def end(self) -> None:
        """End the request.

        The outermost middleware calls it, because one in between may hold the response back until
        those further inside have ended.
        """
        if self.entered is not None or self.slots:
            self.finished()
        # They refer to the scope, which refers to this visit.
        self.entered = self.cached_request = self.reader = None


def visit_of(scope: Scope, limiter: Limiter) -> AsgiVisit | None:
    """Return the visit of a request under a limiter; `None` if no middleware created one."""
    visit: AsgiVisit | None = scope.get(VISIT_KEY)
    while visit is not None and visit.limiter is not limiter:
        visit = visit.outer
    return visit


def store_decision(scope: Scope, decision: Decision) -> None:
    """Store a decision where the application finds it: in `request.state.penstock`."""
    scope.setdefault("state", {})["penstock"] = decision


def show_nothing(scope: Scope) -> None:
    """Store that no limit has decided the request so far."""
    scope.setdefault("state", {}).setdefault("penstock", NOTHING)


def _head(message: Message) -> Response:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in message.get("headers") or ()
    ]
    default = _FORBIDDEN if message["type"] == "websocket.close" else _SWITCHING_PROTOCOLS
    return Response(message.get("status", default), headers)
