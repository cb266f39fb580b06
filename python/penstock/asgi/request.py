"""An ASGI scope as a guard sees it, and the head of a response as a limit sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.web.request import id_of_key

if TYPE_CHECKING:
    from penstock.web.request import Id

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Where the custom user classes of frameworks keep what names the user, the surest first.
_NAMES_OF_USERS: Final = ("id", "identity", "username")


class AsgiRequest:
    """A request, or a WebSocket that is about to open, by its scope.

    Attributes:
        found: What has been awaited for its limits before they are asked.
        peer: The address of the client; a server that listens on a Unix socket has none.
    """

    # Most requests have no limit that awaits anything.
    found: dict[object, Any] | None = None

    def __init__(self, scope: Scope) -> None:
        client = scope.get("client")
        self._scope: Final = scope
        # Found at once, for nearly every limit asks for it, and a property costs more.
        self.peer: Final[str | None] = client[0] if client else None

    @property
    def native(self) -> object:
        """The scope itself."""
        return self._scope

    @property
    def method(self) -> str:
        """The method, in capitals; a WebSocket begins with `GET`."""
        return str(self._scope.get("method", "GET"))

    @property
    def route(self) -> str | None:
        """A middleware stands outside the routes."""
        return None

    @property
    def user(self) -> Id | None:
        """Who has logged in, as an authentication middleware outside has left it in the scope."""
        return _user_id(self._scope.get("user"))

    def header(self, name: str) -> str | None:
        """Give a header, its lines joined with commas; `None` where there is none."""
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
    for name in _NAMES_OF_USERS:
        try:
            found = getattr(user, name, None)
        except NotImplementedError:
            # Starlette's base class has the name, and leaves it to others to fill.
            continue
        id = id_of_key(found)
        if id is not None:
            return id
    return None
