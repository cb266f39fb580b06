"""What an adapter shows of a request, to be read only where a limit asks."""

from __future__ import annotations

import ipaddress
from typing import Any, Protocol, TypeAlias

from penstock.errors import Error

Id: TypeAlias = str | int | bytes | ipaddress.IPv4Address | ipaddress.IPv6Address
"""What names one client under a limit."""


class MissingId(Error):
    """A request that does not say who asks, or says it in a way that cannot be read."""


class MissingCost(Error):
    """A request whose cost cannot be read."""


class Request(Protocol):
    """What an adapter shows of a request; everything is read only when a limit asks for it."""

    @property
    def native(self) -> object:
        """The framework's own request, for callables of the user."""

    @property
    def method(self) -> str:
        """The method, in capitals."""

    @property
    def peer(self) -> str | None:
        """The address at the other end of the socket; `None` or empty where it has none."""

    @property
    def route(self) -> str | None:
        """The template of the route, such as `/orders/<id>`; `None` where there are no routes."""

    @property
    def user(self) -> Id | None:
        """Who has logged in; `None` where nobody has."""

    def header(self, name: str) -> str | None:
        """Give a header, its lines joined with commas; `None` where there is none."""


class EnvironRequest:
    """A request as WSGI hands it over (PEP 3333).

    Attributes:
        peer: `REMOTE_ADDR`; a server that listens on a Unix socket leaves it empty.
    """

    __slots__ = ("_environ", "peer")

    # Found at once, for nearly every limit asks for it, and a property costs more than the look-up.
    peer: str | None

    def __init__(self, environ: dict[str, Any]) -> None:
        self._environ = environ
        self.peer = environ.get("REMOTE_ADDR")

    @property
    def native(self) -> object:
        """The environ itself."""
        return self._environ

    @property
    def method(self) -> str:
        """The method, in capitals."""
        return str(self._environ.get("REQUEST_METHOD", "GET"))

    @property
    def route(self) -> str | None:
        """WSGI has no routes."""
        return None

    @property
    def user(self) -> Id | None:
        """`REMOTE_USER`, which the server sets, never the client."""
        return self._environ.get("REMOTE_USER") or None

    def header(self, name: str) -> str | None:
        """Give a header, its lines joined with commas; `None` where there is none."""
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = f"HTTP_{key}"
        return self._environ.get(key)


def id_of_key(key: object) -> Id | None:
    """Give what names a user in an application's own store as an id; `None` for what names nobody.

    A key with a text of its own, such as a UUID, is named by that. An object that has none would be
    somebody else each time.

    Example:
        >>> from uuid import UUID
        >>> from penstock.web.request import id_of_key
        >>> id_of_key(UUID(int=7))
        '00000000-0000-0000-0000-000000000007'
        >>> id_of_key(object()) is None
        True
    """
    if key is None or isinstance(key, str | int):
        return key
    has_text = type(key).__str__ is not object.__str__
    return str(key) if has_text and not callable(key) else None
