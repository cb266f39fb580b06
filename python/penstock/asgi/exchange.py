"""The messages of one request, watched for how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.asgi.request import Message, Receive, Send

_DISCONNECTS: Final = frozenset({"http.disconnect", "websocket.disconnect"})


class Exchange:
    """Passes on the messages of a request and its response.

    Attributes:
        is_disconnected: Whether the client has disconnected.
        is_complete: Whether the whole response has been sent.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive: Final = receive
        self._send: Final = send
        self.is_disconnected = False
        self.is_complete = False

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
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.is_complete = True
