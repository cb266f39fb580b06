"""Outbound pacing for httpx2: as `penstock.httpx`, for the client that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from penstock.errors import RateLimited
from penstock.outbound import AsyncPacedTransport, PacedTransport

if TYPE_CHECKING:
    from penstock._core import Decision

__all__ = ["AsyncTransport", "Transport", "TurnTimeout"]


class TurnTimeout(RateLimited, httpx2.PoolTimeout):
    """A request that was not sent, for its turn would have come too late.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: What was decided; its `retry_after` says how long to wait, in seconds.
    """

    def __init__(
        self, message: str, decision: Decision, *, request: httpx2.Request | None = None
    ) -> None:
        httpx2.PoolTimeout.__init__(self, message, request=request)
        self.args = (message, decision)
        self.decision = decision


class Transport(PacedTransport, httpx2.BaseTransport):
    """A transport for `httpx2.Client` that sends each request when a limit allows it.

    After a 429 or 503 with a `Retry-After`, further requests of the same id are held back until
    then. Redirects and retries are requests, and wait for a turn of their own.

    Args:
        limiter: What decides; several clients may share it.
        name: The limit.
        id: Whose bucket a request counts in: its host's unless said, one id for all, or a callable
            of the request.
        cost: Tokens, or a callable of the request that gives them.
        timeout: The longest that a request may wait before it is sent, retries included: seconds,
            a text such as `"30s"` or a `timedelta`; 0 never waits, `None` waits as long as it
            takes.
        retries: How often an idempotent request is sent again that was answered with 429 or 503,
            if its body can be.
        on_store_error: `"allow"` sends unpaced when the store fails, and says so in the log;
            `"raise"` raises `StoreError`.
        transport: What sends; an `httpx2.HTTPTransport()` unless said. It is closed with this one.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
        >>> import httpx2
        >>> from penstock.httpx import Transport
        >>> limiter = penstock.Limiter({"PartnerApi": "2/minute"}, clock=penstock.ManualClock())
        >>> inner = httpx2.MockTransport(lambda request: httpx2.Response(204))
        >>> client = httpx2.Client(transport=Transport(limiter, "PartnerApi", transport=inner))
        >>> [client.get("https://api.example.com").status_code for _ in range(2)]
        [204, 204]
        >>> limiter.check("PartnerApi", "api.example.com").retry_after
        30.0
    """

    _byte_stream = httpx2.ByteStream
    _error = TurnTimeout
    _inner_type = httpx2.HTTPTransport


class AsyncTransport(AsyncPacedTransport, httpx2.AsyncBaseTransport):
    """A transport for `httpx2.AsyncClient`; as `Transport`, on asyncio.

    Args:
        limiter: A `Limiter` or an `AsyncLimiter`.
        name: As in `Transport`; so are the others.
    """

    _byte_stream = httpx2.ByteStream
    _error = TurnTimeout
    _inner_type = httpx2.AsyncHTTPTransport
