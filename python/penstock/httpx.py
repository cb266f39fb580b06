"""Outbound pacing for httpx: requests wait for their turn and honor `Retry-After`."""

from __future__ import annotations

from penstock._extras import Extra
from penstock.outbound.transport import AsyncPacedTransport, HeldStream, NotSent, PacedTransport

with Extra("httpx"):
    import httpx

__all__ = ["AsyncTransport", "Transport", "TurnTimeout"]


class TurnTimeout(NotSent, httpx.PoolTimeout):
    """A request that was not sent because its wait would exceed the timeout.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """


class _Body(HeldStream, httpx.SyncByteStream, httpx.AsyncByteStream):
    pass


class Transport(PacedTransport, httpx.BaseTransport):
    """Transport for `httpx.Client` that sends each request when a limit allows it.

    Further requests of the same id are delayed for as long as a response asks, with `Retry-After`
    or with fields that say that nothing remains, for at most a day. Redirects and
    retries are requests, and wait for a turn of their own.

    Args:
        limiter: The limiter that decides; several clients may share it.
        name: The limit, or several, which are decided together. A slot of a limit on requests in
            flight is held until the response has been read or is closed.
        transport: The inner transport, entered and closed with this one; by default an
            `httpx.HTTPTransport()`.
        options: `id`, `cost`, `timeout`, `retries` and `on_store_error`; see
            `penstock.outbound.PaceOptions`.

    Raises:
        ConfigError: An argument is invalid.

    Examples:
        >>> import httpx
        >>> from penstock.httpx import Transport
        >>> limiter = penstock.Limiter({"PartnerApi": "2/minute"}, clock=penstock.ManualClock())
        >>> inner = httpx.MockTransport(lambda request: httpx.Response(204))
        >>> client = httpx.Client(transport=Transport(limiter, "PartnerApi", transport=inner))
        >>> [client.get("https://api.example.com").status_code for _ in range(2)]
        [204, 204]
        >>> limiter.check("PartnerApi", "api.example.com").retry_after
        30.0
    """

    _library = httpx
    _error = TurnTimeout
    _held_stream = _Body


class AsyncTransport(AsyncPacedTransport, httpx.AsyncBaseTransport):
    """Transport for `httpx.AsyncClient`, like `Transport`.

    Args:
        limiter: A `Limiter` or an `AsyncLimiter`.
        name: As in `Transport`; so are the others.
    """

    _library = httpx
    _error = TurnTimeout
    _held_stream = _Body
