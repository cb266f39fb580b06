"""Flask's request as the guard reads it, its visit, and refusals as HTTP errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flask import Flask, Request, current_app, g, request
from werkzeug.exceptions import BadRequest, HTTPException, ServiceUnavailable, TooManyRequests

from penstock._web.request import EnvironRequest, id_of_key
from penstock._web.wsgi_visit import WsgiVisit

if TYPE_CHECKING:
    from penstock._web.guard import Guard
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import ViewLimits
    from penstock.types import Id

# An attribute takes 8,400 instructions through a proxy, and 1,400 without. Flask documents both
# ways round them.
current_request: Final[Callable[[], Request]] = request._get_current_object  # type: ignore[attr-defined]  # noqa: SLF001
"""Return the request of this context."""
this_app: Final[Callable[[], Flask]] = current_app._get_current_object  # type: ignore[attr-defined]  # noqa: SLF001
"""Return the application of this context."""


class RequestRefused(TooManyRequests):
    """A denied request as an HTTP error, which an error handler for 429 receives.

    Attributes:
        outcome: The outcome; `outcome.decision` is the decision.
    """

    outcome: Outcome


class _MalformedRequest(BadRequest):
    outcome: Outcome


class _StoreUnavailable(ServiceUnavailable):
    outcome: Outcome


class FlaskRequest(EnvironRequest):
    """A request with a route and a user."""

    __slots__ = ()

    # Flask's request keeps its outcome, which keeps this. A reference in return would be a cycle
    # that waits for the garbage collector.
    @property
    def native(self) -> Request | None:
        """Flask's request; `None` outside its context, such as after it has ended."""
        try:
            native = current_request()
        except RuntimeError:
            return None
        return native if native.environ is self._environ else None

    @property
    def route(self) -> str | None:
        """The route's template, such as `/orders/<id>`."""
        rule = getattr(self.native, "url_rule", None)
        return None if rule is None else rule.rule

    @property
    def user(self) -> Id | None:
        """The authenticated user, from Flask-Login, `g.user` or the server."""
        return user_of(self._environ)


def user_of(environ: dict[str, Any]) -> Id | None:
    """Return the user of the current request; `None` for an anonymous one."""
    # Flask-Login if the application uses it; else `g.user`, as in Flask's tutorial.
    login = sys.modules.get("flask_login")
    if login is not None and hasattr(this_app(), "login_manager"):
        return _user_id(login.current_user)
    return _user_id(g.get("user")) or environ.get("REMOTE_USER") or None


def _user_id(user: object) -> Id | None:
    if user is None or isinstance(user, str | int):
        return user
    if getattr(user, "is_anonymous", False) is True:
        return None
    if callable(get_id := getattr(user, "get_id", None)):
        key = get_id()
    elif isinstance(user, Mapping):
        key = user.get("id")
    else:
        key = getattr(user, "id", None)
    return id_of_key(key)


class FlaskVisit(WsgiVisit):
    """Limits of one request.

    Attributes:
        covered: Limits of a method that were evaluated with its class's.
    """

    __slots__ = ("covered",)

    # Set by `visit_of`: a method of this class would be one call more for each request.
    covered: tuple[ViewLimits, ...]

    def read(self) -> FlaskRequest:
        """Return the request."""
        return FlaskRequest(self.native)


def visit_of(native: Request) -> FlaskVisit:
    """Return the visit of a request, which is created if necessary."""
    visit: FlaskVisit | None = getattr(native, "_penstock_visit", None)
    if visit is None:
        # Not the request, which keeps it: the cycle would wait for the garbage collector.
        environ = native.environ
        visit = FlaskVisit().arrive(environ, environ.get("REMOTE_ADDR"))
        visit.covered = ()
        native._penstock_visit = visit  # type: ignore[attr-defined]  # noqa: SLF001  our own attribute
    return visit


def refusal_error(guard: Guard, outcome: Outcome) -> HTTPException:
    """Return the HTTP error that refuses a request, with its response."""
    answer = guard.custom_response(outcome)
    if answer is None:
        fields, body = outcome.body()
        response = current_app.response_class(body, outcome.status, fields)
    else:
        response = current_app.make_response(answer)
        if isinstance(answer, str | bytes | dict | list):
            response.status_code = outcome.status
    error = _ERRORS[outcome.status](outcome.problem.detail, response)
    error.outcome = outcome
    return error


_Error: TypeAlias = RequestRefused | _MalformedRequest | _StoreUnavailable
_ERRORS: Final[dict[int, type[_Error]]] = {
    400: _MalformedRequest,
    429: RequestRefused,
    503: _StoreUnavailable,
}
REFUSALS: Final = tuple(_ERRORS.values())
"""What `refusal_error` returns."""
