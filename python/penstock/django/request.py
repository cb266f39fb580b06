"""Django's request as the guard reads it, and its visit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import ref

from django.http import HttpRequest

from penstock._web.lifecycle import Visit
from penstock._web.request import EnvironRequest
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._web.decide import RouteLimits
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import ViewLimits
    from penstock.types import Id

    _Evaluate: TypeAlias = "Callable[[RouteLimits, Any, HttpRequest, DjangoVisit], Outcome | None]"


class DjangoVisit(Visit):
    """Limits of one request, as far as they have been evaluated.

    Attributes:
        covered: Nested limits that were evaluated with outer ones, each for one call.
        throttles: Our throttles that are evaluated, their keys, and the view.
        covered_throttles: Keys of throttles that were evaluated with another one, each for one
            call.
        deferred: Limits that wait for the view to authenticate the request; `None` for none.
        has_middleware: Whether the middleware is installed, which applies default limits.
        has_writer: Whether an outer decorator or the middleware writes the header fields.
        is_on_loop: Whether `request` is read on an event loop.
    """

    __slots__ = (
        "covered",
        "covered_throttles",
        "deferred",
        "has_middleware",
        "has_writer",
        "is_on_loop",
        "throttles",
    )

    # Set by `visit_of`: a method of this class would be one call more for each request.
    covered: tuple[ViewLimits, ...]
    throttles: tuple[Any, ...]
    covered_throttles: tuple[Any, ...]
    deferred: Deferred | None
    has_middleware: bool
    has_writer: bool
    is_on_loop: bool

    def read(self) -> DjangoRequest:
        """Return the request; a view may set its own, such as that of REST framework."""
        http = self.native()
        kind = AsyncDjangoRequest if self.is_on_loop else DjangoRequest
        return kind(http, cast("HttpRequest", http))

    def stopped(self, error: BaseException, *, is_inner: bool, may_block: bool = True) -> None:
        """Return the slots of a view that raised, unless a response follows.

        Args:
            error: What was raised.
            is_inner: Whether the middleware or an outer decorator sees an `Exception`, too.
            may_block: As in `release`.
        """
        if not isinstance(error, Exception):
            # Such as a timeout of gevent, or a client that has left: the tokens stay spent.
            self.finished(may_block=may_block)
        elif not is_inner:
            self.release(may_block=may_block)

    def show(self, http: HttpRequest) -> None:
        """Show the decision to the view."""
        http.penstock = self.decision  # type: ignore[attr-defined]


class Deferred:
    """Limits of one request that wait for its user.

    Args:
        evaluate: Evaluates limits, as `DjangoLimits.evaluate` does.

    Attributes:
        outcome: The last outcome of these limits; `None` if none has been evaluated.
    """

    __slots__ = ("_evaluate", "_pending", "outcome")

    def __init__(self, evaluate: _Evaluate) -> None:
        self.outcome: Outcome | None = None
        self._evaluate: Final = evaluate
        self._pending: list[RouteLimits] = []

    def add(self, limits: RouteLimits) -> None:
        """Add limits, which are evaluated after those before."""
        self._pending.append(limits)

    def evaluate(self, native: Any, http: HttpRequest, visit: DjangoVisit) -> None:
        """Evaluate the limits, unless that has happened, until one refuses the request."""
        while self._pending:
            self.outcome = self._evaluate(self._pending[0], native, http, visit)
            # Afterwards: an id that fails, because it may not query here, is read again elsewhere.
            del self._pending[: None if self.is_refused else 1]

    @property
    def is_refused(self) -> bool:
        """Whether the limits refuse the request."""
        return self.outcome is not None and self.outcome.refusal is not None


def visit_of(http: HttpRequest) -> DjangoVisit:
    """Return the visit of a request, which is created if necessary."""
    # `http.__dict__` would create a dictionary object, and take 380 instructions more.
    visit: DjangoVisit | None = getattr(http, "_penstock_visit", None)
    if visit is None:
        # Weak: Django's request keeps this.
        visit = DjangoVisit().arrive(ref(http), http.META.get("REMOTE_ADDR"))
        visit.covered = visit.throttles = visit.covered_throttles = ()
        visit.deferred = None
        visit.has_middleware = visit.has_writer = visit.is_on_loop = False
        http._penstock_visit = visit  # type: ignore[attr-defined]  # noqa: SLF001  our own attribute
        http.penstock = visit.decision  # type: ignore[attr-defined]
    return visit


class DjangoRequest(EnvironRequest):
    """A request with a route and a user.

    Args:
        native: The view's request, of Django or of REST framework.
        http: Django's request.
    """

    __slots__ = ("_http", "_native", "_owner")

    # Django and REST framework authenticate by themselves.
    knows_users = True

    def __init__(self, native: Any, http: HttpRequest) -> None:
        self._environ = meta = http.META
        # Weak: Django's request keeps its outcomes, which keep this. The cycle would wait for the
        # garbage collector.
        self._http: Final = ref(http)
        self._native: Final = self._http if native is http else ref(native)
        # Returns what has the user.
        self._owner: Callable[[], Any] = self._native
        self.peer = meta.get("REMOTE_ADDR")

    @property
    def native(self) -> Any:
        """The view's request; `None` after it has ended."""
        return self._native()

    @property
    def http(self) -> HttpRequest:
        """Django's request."""
        http = self._http()
        if http is None:
            raise ReferenceError("the request has ended; keep a reference to it")
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
    def is_multiprocess(self) -> bool | None:
        """Whether the server has several processes; `None` if it does not say so."""
        if self._environ.get("SERVER_NAME") == "testserver":
            # Django's test client says so, whatever runs it.
            return False
        # Under ASGI, Django fills in a value that means nothing.
        return None if hasattr(self.http, "scope") else super().is_multiprocess

    @property
    def user(self) -> Id | None:
        """The primary key of the authenticated user; without Django's users, `REMOTE_USER`."""
        user = getattr(self._owner(), "user", self)
        if user is self:
            return super().user
        if user is None or not getattr(user, "is_authenticated", False):
            return None
        pk = getattr(user, "pk", None)
        return pk if pk is None or isinstance(pk, str | int) else str(pk)


class UserNotLoaded(Exception):
    """Raised if an id needs the user, who must be awaited first."""


class AsyncDjangoRequest(DjangoRequest):
    """A request on an event loop, where database queries must be awaited."""

    __slots__ = ()

    def __init__(self, native: Any, http: HttpRequest) -> None:
        super().__init__(native, http)
        self._owner = _no_owner

    async def load_user(self) -> None:
        """Load the authenticated user without blocking the event loop."""
        native = self._native()
        # The user of a REST framework request is that of its own authentication.
        auser = getattr(native, "auser", None) if native is self._http() else None
        if auser is None:
            self._owner = self._native
        else:
            owner = SimpleNamespace(user=await auser())
            self._owner = lambda: owner


def _no_owner() -> Any:
    raise UserNotLoaded


def find_request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, HttpRequest, Any]:
    """Return the view's request, Django's request, and the view's `self` or `None`.

    The request is the first argument, the one after `self`, or the keyword `request`.

    Raises:
        ConfigError: There is no request, so the function is not a view.
    """
    for index, argument in enumerate((*args[:2], kwargs.get("request"))):
        if isinstance(argument, HttpRequest):
            return argument, argument, args[0] if index == 1 else None
        # REST framework's request contains Django's.
        inner = getattr(argument, "_request", None)
        if isinstance(inner, HttpRequest):
            return argument, inner, args[0] if index == 1 else None
    raise ConfigError(
        f"a limited view takes the request first, or after self; found {len(args)} arguments "
        f"and no request"
    )
