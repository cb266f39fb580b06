"""Outbound pacing for requests: requests wait for their turn and honor `Retry-After`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import urlsplit

from penstock._extras import Extra
from penstock.outbound.transport import NotSent, PacedInThread

with Extra("requests"):
    import requests
    import requests.adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock._core import Limiter, Reservation
    from penstock.outbound import PaceOptions

__all__ = ["Adapter", "TurnTimeout"]


class TurnTimeout(NotSent, requests.exceptions.ConnectTimeout):
    """A request that was not sent because its wait would exceed the timeout.

    Like a request that waited too long for a connection, it may safely be made again.

    Attributes:
        decision: The decision; its `retry_after` says how long to wait, in seconds.
    """


class _Body:
    """Body of a response that calls a function when it has been read or is closed.

    Args:
        raw: The body.
        release: The function.
    """

    def __init__(self, raw: Any, release: Callable[[], object]) -> None:
        self._raw: Final = raw
        self._release: Final = release

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._raw, name)
        # A body without `stream` is read by `read`.
        return functools.partial(self._stream, attribute) if name == "stream" else attribute

    def _stream(self, stream: Callable[..., Iterator[bytes]], *args: Any, **kwargs: Any) -> Any:
        try:
            yield from stream(*args, **kwargs)
        finally:
            self._release()

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        """Read a part of the body, or its rest."""
        part: bytes = self._raw.read(*args, **kwargs)
        if not part or (args[0] if args else kwargs.get("amt")) is None:
            self._release()
        return part

    def close(self) -> None:
        """Close the body."""
        try:
            self._raw.close()
        finally:
            self._release()


class Adapter(PacedInThread, requests.adapters.BaseAdapter):
    """Adapter for `requests.Session` that sends each request when a limit allows it.

    Mount it for the URLs of a service: `session.mount("https://", Adapter(limiter, "PartnerApi"))`.

    Args:
        limiter: The limiter that decides; several sessions may share it.
        name: The limit, or several, as in `penstock.httpx.Transport`.
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
        name: str | Sequence[str],
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

    def hold(self, response: Any, reservation: Reservation) -> Any:
        """Return a response that ends a reservation when it has been read or is closed."""
        response.raw = _Body(response.raw, reservation.release)
        return response

    def close(self) -> None:
        """Close the inner adapter."""
        self.adapter.close()

    def host_of(self, request: requests.PreparedRequest) -> str:
        """Return the host of a request."""
        try:
            return urlsplit(request.url or "").hostname or ""
        except ValueError:
            # The inner adapter raises the error of the library.
            return ""

    def is_replayable(self, request: requests.PreparedRequest) -> bool:
        """Return whether the body of a request can be sent again."""
        return request.body is None or isinstance(request.body, bytes | str)
