"""Requests and heads of responses, as adapters show them to limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.types import Id


class MissingId(Error):
    """A request without a client id, or with a malformed one."""


class MissingCost(Error):
    """A request with a malformed cost."""


class Request(Protocol):
    """A request as an adapter shows it; limits read only what they need."""

    @property
    def native(self) -> object:
        """The framework's own request, for callables of the user."""

    @property
    def method(self) -> str:
        """The method, in capitals."""

    @property
    def peer(self) -> str | None:
        """The address of the socket's peer; `None` or empty if it has none."""

    @property
    def route(self) -> str | None:
        """The template of the route, such as `/orders/<id>`; `None` if there are no routes."""

    @property
    def user(self) -> Id | None:
        """The user who is logged in; `None` for an anonymous request."""

    @property
    def is_disconnected(self) -> bool:
        """Whether the client is known to have disconnected before its request was read."""

    def header(self, name: str) -> str | None:
        """Return a header, its lines joined with commas; `None` if it is missing."""


class Requested(Protocol):
    """What has a request, and makes the object that limits read only if something needs it."""

    @property
    def request(self) -> Any:
        """The request as limits read it."""


@dataclass(frozen=True)
class Response:
    """Head of a response that has not been sent yet, as `deduct_when` gets it.

    Attributes:
        status_code: The status, such as 401. For a WebSocket: 101 if it is accepted, 403 if it is
            closed instead.
        headers: The header fields that the application set.
    """

    status_code: int
    headers: Sequence[tuple[str, str]]


class WatchedInput:
    """Body of a WSGI request that notes whether the client has left before it was read.

    Args:
        stream: The body, as the server provides it.
        length: The value of `CONTENT_LENGTH`.
    """

    def __init__(self, stream: Any, length: str | None) -> None:
        self._stream: Final = stream
        self._left = int(length) if length and length.isdecimal() and length.isascii() else 0
        self.is_broken = False

    def read(self, *size: int) -> bytes:
        """Read bytes."""
        return self._watched(self._stream.read, size)

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, which not all servers offer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, *size: int) -> bytes:
        """Read a line."""
        return self._watched(self._stream.readline, size)

    def readlines(self, *hint: int) -> list[bytes]:
        """Read all lines; a hint is not needed."""
        del hint
        return [*self]

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""
        while line := self.readline():
            yield line

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the server's object."""
        return getattr(self._stream, name)

    def _watched(self, read: Callable[..., bytes], size: tuple[int, ...]) -> bytes:
        try:
            data = read(*size)
        except OSError:
            self.is_broken = True
            raise
        self._left -= len(data)
        # The body has ended before its length.
        if not data and self._left > 0 and size != (0,):
            self.is_broken = True
        return data


class EnvironRequest:
    """A WSGI request (PEP 3333).

    Attributes:
        peer: `REMOTE_ADDR`, which is empty if the server listens on a Unix socket.
    """

    __slots__ = ("_environ", "peer")

    # Set by the constructor, for 350 instructions: nearly every limit reads it, and a property
    # takes 850.
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
        return str(self._environ.get("REQUEST_METHOD", "GET")).upper()

    @property
    def route(self) -> str | None:
        """WSGI has no routes."""
        return None

    @property
    def is_disconnected(self) -> bool:
        """Whether reading the body failed, once `watch_body` has been called."""
        body = self._environ.get("wsgi.input")
        return isinstance(body, WatchedInput) and body.is_broken

    @property
    def is_multiprocess(self) -> bool | None:
        """Whether the server has several processes; `None` if it does not say so.

        A server that denies it is not believed: some do so for every worker.
        """
        return True if self._environ.get("wsgi.multiprocess") else None

    def watch_body(self) -> None:
        """Note from now on whether the client disconnects while its body is read."""
        body = self._environ.get("wsgi.input")
        if body is not None and not isinstance(body, WatchedInput):
            length = self._environ.get("CONTENT_LENGTH")
            self._environ["wsgi.input"] = WatchedInput(body, length)

    @property
    def user(self) -> Id | None:
        """`REMOTE_USER`, which only the server sets."""
        return self._environ.get("REMOTE_USER") or None

    def header(self, name: str) -> str | None:
        """Return a header, its lines joined with commas; `None` if it is missing."""
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = f"HTTP_{key}"
        return self._environ.get(key)


def id_of_key(key: object) -> Id | None:
    """Return a user's key in the application's database as an id; `None` if it cannot be one.

    Other objects become strings, such as a UUID. One without a `str` of its own is not an id: its
    default text differs each time.

    Examples:
        >>> from uuid import UUID
        >>> from penstock._web.request import id_of_key
        >>> id_of_key(UUID(int=7))
        '00000000-0000-0000-0000-000000000007'
        >>> id_of_key(object()) is None
        True
    """
    if key is None or isinstance(key, str | int):
        return key
    has_text = type(key).__str__ is not object.__str__
    return str(key) if has_text and not callable(key) else None
