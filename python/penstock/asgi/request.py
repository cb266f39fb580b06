"""An ASGI scope as a `penstock.adapter.Request`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock._web.request import id_of_key

if TYPE_CHECKING:
    from penstock.types import Id

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Attributes of the frameworks' user classes that identify a user, the most reliable first.
_USER_ATTRIBUTES: Final = ("id", "identity", "username")


class AsgiRequest:
    """A request, or a WebSocket before it is accepted.

    Attributes:
        resolved: Values found for its limits before they are decided; `None` for most requests.
        peer: The address of the socket's peer; `None` on a Unix socket.
    """

    # One is created for each request, in 200 instructions less than with a dictionary of its own.
    __slots__ = ("_scope", "peer", "resolved")

    # The middleware watches the messages itself.
    is_disconnected: Final = False

    def __init__(self, scope: Scope) -> None:
        client = scope.get("client")
        self._scope = scope
        # Set by the constructor, for 350 instructions: nearly every limit reads it, and a property
        # takes 850.
        self.peer: str | None = client[0] if client else None
        self.resolved: dict[object, Any] | None = None

    @property
    def native(self) -> object:
        """The scope."""
        return self._scope

    @property
    def method(self) -> str:
        """The method, in capitals; that of a WebSocket is `GET`."""
        return str(self._scope.get("method", "GET")).upper()

    @property
    def route(self) -> str | None:
        """`None`: a middleware does not know the route."""
        return None

    @property
    def user(self) -> Id | None:
        """The user that an authentication middleware stored in the scope."""
        return _user_id(self._scope.get("user"))

    def header(self, name: str) -> str | None:
        """Return a header, its lines joined with commas; `None` if it is missing."""
        wanted = name.lower().encode("latin-1")
        lines = [value for field, value in self._scope.get("headers", ()) if field == wanted]
        return b", ".join(lines).decode("latin-1") if lines else None


def _user_id(user: object) -> Id | None:
    if user is None or isinstance(user, str | int):
        return user
    if isinstance(user, Mapping):
        return id_of_key(user.get("id"))
    if getattr(user, "is_authenticated", True) is False:
        return None
    for name in _USER_ATTRIBUTES:
        try:
            value = getattr(user, name, None)
        except NotImplementedError:
            # Starlette's base class leaves the property to its subclasses.
            continue
        id = id_of_key(value)
        if id is not None:
            return id
    return None
