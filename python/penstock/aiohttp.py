"""Outbound pacing for aiohttp: requests wait for their turn and honor `Retry-After`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._extras import Extra
from penstock.outbound.transport import NotSent, PacedInTask

with Extra("aiohttp"):
    import aiohttp
    from aiohttp.payload import BytesPayload

if TYPE_CHECKING:
    from penstock._core import Reservation

__all__ = ["Middleware", "TurnTimeout"]


class TurnTimeout(NotSent, aiohttp.ConnectionTimeoutError):
    """A request that was not sent because its wait would exceed the timeout.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """


class Middleware(PacedInTask):
    """Client middleware for aiohttp that sends each request when a limit allows it.

    It goes last among the middlewares, next to the connection:
    `ClientSession(middlewares=[Middleware(limiter, "PartnerApi")])`.

    Args:
        limiter: A `Limiter` or an `AsyncLimiter`; several sessions may share it.
        name: The limit, or several, as in `penstock.httpx.Transport`. A slot is held until the
            response has arrived or is closed.
        options: As in `penstock.httpx.Transport`.

    Raises:
        ConfigError: An argument is invalid.
    """

    _error = TurnTimeout

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request when its turn has come."""
        response: aiohttp.ClientResponse = await self.take_steps(
            request, send=lambda: handler(request), read=lambda response: response.read()
        )
        return response

    def hold(self, response: aiohttp.ClientResponse, reservation: Reservation) -> Any:
        """Return a response that ends a reservation when it has arrived or is closed."""

        def release() -> None:
            reservation.release_nowait()

        if response.connection is None:
            release()
        else:
            response.connection.add_callback(release)
        return response

    def host_of(self, request: aiohttp.ClientRequest) -> str:
        """Return the host of a request."""
        return request.url.host or ""

    def status_of(self, response: aiohttp.ClientResponse) -> int:
        """Return the status of a response."""
        return response.status

    def is_replayable(self, request: aiohttp.ClientRequest) -> bool:
        """Return whether the body of a request can be sent again."""
        body: Any = request.body
        return isinstance(body, bytes | BytesPayload)
