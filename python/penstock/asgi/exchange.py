"""The messages of one request, watched for how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.asgi.request import Message, Receive, Send

_SERVER_ERROR: Final = 500
BODIES: Final = frozenset(
    {"http.response.body", "http.response.pathsend", "http.response.zerocopysend"}
)
"""The messages that carry a body; the last one has no `more_body`."""
_DISCONNECTS: Final = frozenset({"http.disconnect", "websocket.disconnect"})


class Exchange:
    """Passes on the messages of a request and its response.

    Attributes:
        is_disconnected: Whether the client has disconnected.
        is_served: Whether a whole response below 500 has been sent, so that what fails later is
            not the client's concern.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive: Final = receive
        self._send: Final = send
        self.is_disconnected = False
        self.is_served = False
        self._status = 0

    async def receive(self) -> Message:
        """Receive a message."""
        message = await self._receive()
        if message["type"] in _DISCONNECTS:
            self.is_disconnected = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message."""
        try:
            await self._send(message)
        except OSError:
            # The client has disconnected (ASGI, HTTP 2.4).
            self.is_disconnected = True
            raise
        kind = message["type"]
        if kind == "http.response.start":
            self._status = message["status"]
        elif kind in BODIES and not message.get("more_body"):
            self.is_served = self._status < _SERVER_ERROR
