"""The smallest applications, and a client of those on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from guards import PEER

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def hello_wsgi(environ: object, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


async def hello_asgi(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def client_of(app: Any) -> httpx.AsyncClient:
    """Return a client of an ASGI application."""
    transport = httpx.ASGITransport(app, client=(PEER, 50000))
    return httpx.AsyncClient(transport=transport, base_url="http://shop.example")
