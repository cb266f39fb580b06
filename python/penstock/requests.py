"""Outbound pacing for requests: requests wait for their turn and honor `Retry-After`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import requests.adapters

from penstock.errors import RateLimited
from penstock.outbound import PacedTransport

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable

    from penstock._core import Decision, Limiter
    from penstock.outbound import IdSource, StoreFailure

__all__ = ["Adapter", "TurnTimeout"]


class TurnTimeout(RateLimited, requests.exceptions.ConnectTimeout):
    """A request that was not sent, because its turn would have come too late.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """

    def __init__(self, message: str, decision: Decision) -> None:
        requests.exceptions.ConnectTimeout.__init__(self, message)
        self.args = (message, decision)
        self.decision = decision


class Adapter(PacedTransport, requests.adapters.BaseAdapter):
    """An adapter for `requests.Session` that sends each request when a limit allows it.

    Mount it for the URLs of a service: `session.mount("https://", Adapter(limiter, "PartnerApi"))`.
    The arguments are those of `penstock.httpx.Transport`; `adapter` is the inner adapter, by
    default a `requests.adapters.HTTPAdapter()`.

    Raises:
        ConfigError: An argument is invalid.
    """

    _library = requests.adapters
    _inner_type = "HTTPAdapter"
    _error = TurnTimeout

    def __init__(
        self,
        limiter: Limiter,
        name: str,
        *,
        id: IdSource = None,
        cost: int | Callable[[Any], int] = 1,
        timeout: str | float | datetime.timedelta | None = 30,
        retries: int = 0,
        on_store_error: StoreFailure = "allow",
        adapter: requests.adapters.BaseAdapter | None = None,
    ) -> None:
        super().__init__(
            limiter,
            name,
            id=_host if id is None else id,
            cost=cost,
            timeout=timeout,
            retries=retries,
            on_store_error=on_store_error,
            transport=adapter,
        )

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        """Send a request when its turn has come."""
        return self.take_steps(
            request,
            send=lambda: self.transport.send(request, *args, **kwargs),
            read=lambda response: response.content,
        )

    def _replayable(self, request: Any) -> bool:
        return request.body is None or isinstance(request.body, bytes | str)


def _host(request: requests.PreparedRequest) -> str:
    return urlsplit(request.url or "").hostname or ""
