"""Outbound pacing for httpx2: like `penstock.httpx`, for its successor."""

from __future__ import annotations

from penstock._extras import Extra
from penstock.outbound.transport import AsyncPacedTransport, HeldStream, NotSent, PacedTransport

with Extra("httpx2"):
    import httpx2

__all__ = ["AsyncTransport", "Transport", "TurnTimeout"]


class TurnTimeout(NotSent, httpx2.PoolTimeout):
    """A request that was not sent because its wait would exceed the timeout.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """


class _Body(HeldStream, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    pass


class Transport(PacedTransport, httpx2.BaseTransport):
    """Transport for `httpx2.Client` that sends each request when a limit allows it.

    The arguments are those of `penstock.httpx.Transport`.

    Examples:
        >>> import httpx2
        >>> from penstock.httpx2 import Transport
        >>> limiter = penstock.Limiter({"PartnerApi": "2/minute"}, clock=penstock.ManualClock())
        >>> inner = httpx2.MockTransport(lambda request: httpx2.Response(204))
        >>> client = httpx2.Client(transport=Transport(limiter, "PartnerApi", transport=inner))
        >>> [client.get("https://api.example.com").status_code for _ in range(2)]
        [204, 204]
        >>> limiter.check("PartnerApi", "api.example.com").retry_after
        30.0
    """

    _library = httpx2
    _error = TurnTimeout
    _held_stream = _Body


class AsyncTransport(AsyncPacedTransport, httpx2.AsyncBaseTransport):
    """Transport for `httpx2.AsyncClient`, like `Transport`.

    The arguments are those of `penstock.httpx.AsyncTransport`.
    """

    _library = httpx2
    _error = TurnTimeout
    _held_stream = _Body
