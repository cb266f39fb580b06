"""Outbound pacing for requests: requests wait for their turn and honor `Retry-After`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import urlsplit

import requests
import requests.adapters

from penstock.outbound.transport import NotSent, PacedInThread

if TYPE_CHECKING:
    from penstock._core import Limiter
    from penstock.outbound import PaceOptions

__all__ = ["Adapter", "TurnTimeout"]


class TurnTimeout(NotSent, requests.exceptions.ConnectTimeout):
    """A request that was not sent because its wait would exceed the timeout.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """


class Adapter(PacedInThread, requests.adapters.BaseAdapter):
    """Adapter for `requests.Session` that sends each request when a limit allows it.

    Mount it for the URLs of a service: `session.mount("https://", Adapter(limiter, "PartnerApi"))`.

    Args:
        limiter: The limiter that decides; several sessions may share it.
        name: The limit.
        adapter: The inner adapter, closed with this one; by default a
            `requests.adapters.HTTPAdapter()`.
        options: As in `penstock.httpx.Transport`.

    Raises:
        ConfigError: An argument is invalid.
    """

    _error = TurnTimeout

    def __init__(
        self,
        limiter: Limiter,
        name: str,
        *,
        adapter: requests.adapters.BaseAdapter | None = None,
        **options: Unpack[PaceOptions],
    ) -> None:
        super().__init__(limiter, name, **options)
        self.adapter: Final = requests.adapters.HTTPAdapter() if adapter is None else adapter

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        """Send a request when its turn has come."""
        return self.take_steps(
            request,
            send=lambda: self.adapter.send(request, *args, **kwargs),
            read=lambda response: response.content,
        )

    def close(self) -> None:
        """Close the inner adapter."""
        self.adapter.close()

    def host_of(self, request: requests.PreparedRequest) -> str:
        """Return the host of a request."""
        return urlsplit(request.url or "").hostname or ""

    def is_replayable(self, request: requests.PreparedRequest) -> bool:
        """Return whether the body of a request can be sent again."""
        return request.body is None or isinstance(request.body, bytes | str)
