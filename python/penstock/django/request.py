"""Django's request as a guard sees it, and what is remembered about it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from django.http import HttpRequest

from penstock.errors import ConfigError
from penstock.web.request import EnvironRequest, Id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.django.view_limits import ViewLimits
    from penstock.web.outcome import Outcome

__all__ = ["DjangoRequest", "LoopRequest", "State", "UserWanted", "seen", "state_of"]

_STATE: Final = "_penstock_state"
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class State:
    """What is remembered about one request.

    Attributes:
        outcome: The newest answer; `None` where no limit was asked yet.
        covered: Marks whose limits have been asked by one further out, for one call each.
        throttles: Throttles of ours that the view has, by the key of their rule.
        pending: Throttles that have been asked by another of the view, for one call each.
        is_routed: Whether the middleware is there, so that the limits of all views hold.
        is_told: Whether somebody further out writes the headers.
    """

    __slots__ = ("covered", "is_routed", "is_told", "outcome", "pending", "throttles")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.covered: tuple[ViewLimits, ...] = ()
        self.throttles: Mapping[Any, Any] = _NONE
        self.pending: tuple[Any, ...] = ()
        self.is_routed = False
        self.is_told = False


def state_of(http: HttpRequest) -> State:
    """Give what is remembered about a request, new where nothing is."""
    # Not by `__dict__`: asked for that, the interpreter makes a dictionary of the attributes, and
    # finds all of them later from then on.
    state: State | None = getattr(http, _STATE, None)
    if state is None:
        state = State()
        setattr(http, _STATE, state)
        http.penstock = None  # type: ignore[attr-defined]
    return state


class DjangoRequest(EnvironRequest):
    """A request with a route and a user.

    Args:
        native: The request as the view got it, of Django or of REST framework.
        http: Django's request.
    """

    __slots__ = ("_http", "_native")

    def __init__(self, native: Any, http: HttpRequest) -> None:
        self._environ = meta = http.META
        # Weak, for Django's request keeps its answers, and they keep this: a circle would wait for
        # the garbage collector.
        self._http: Final = ref(http)
        self._native: Final = self._http if native is http else ref(native)
        self.peer = meta.get("REMOTE_ADDR")

    @property
    def native(self) -> Any:
        """The request as the view got it; `None` once it is gone."""
        return self._native()

    @property
    def http(self) -> HttpRequest:
        """Django's request."""
        http = self._http()
        if http is None:
            raise ReferenceError("the request is gone; keep it as long as what asks about it")
        return http

    @property
    def method(self) -> str:
        """The method, in capitals."""
        return self.http.method or "GET"

    @property
    def route(self) -> str | None:
        """The route's template, such as `/orders/<int:number>/`."""
        match = self.http.resolver_match
        return None if match is None or match.route is None else f"/{match.route}"

    @property
    def user(self) -> Id | None:
        """The primary key of who has logged in; without Django's users, `REMOTE_USER`."""
        return self._id_of(getattr(self._native(), "user", self))

    def _id_of(self, user: Any) -> Id | None:
        if user is self:
            return super().user
        if not getattr(user, "is_authenticated", False):
            return None
        pk = getattr(user, "pk", None)
        return pk if pk is None or isinstance(pk, str | int) else str(pk)


class UserWanted(Exception):
    """Somebody asks for the user, who has to be awaited first."""


class LoopRequest(DjangoRequest):
    """A request that is looked at on an event loop, where no database may be asked."""

    __slots__ = ("_found", "_is_found")

    def __init__(self, native: Any, http: HttpRequest) -> None:
        super().__init__(native, http)
        self._is_found = False

    @property
    def user(self) -> Id | None:
        """The user, once found."""
        if not self._is_found:
            raise UserWanted
        return self._id_of(self._found)

    async def find_user(self) -> None:
        """Ask who has logged in, as Django asks: without stopping the loop."""
        auser = getattr(self.http, "auser", None)
        self._found = getattr(self._native(), "user", self) if auser is None else await auser()
        self._is_found = True


def seen(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, HttpRequest, Any]:
    """Find the request among the arguments of a view: first, after `self`, or by its name.

    Gives it as the view gets it, Django's own, and the `self` before it or `None`.

    Raises:
        ConfigError: There is none, so that the function is no view.
    """
    for place, given in enumerate((*args[:2], kwargs.get("request"))):
        if isinstance(given, HttpRequest):
            return given, given, args[0] if place == 1 else None
        # REST framework's request holds Django's.
        inner = getattr(given, "_request", None)
        if isinstance(inner, HttpRequest):
            return given, inner, args[0] if place == 1 else None
    raise ConfigError(
        f"a limited view takes the request first, or after self; found {len(args)} arguments "
        f"and no request"
    )
