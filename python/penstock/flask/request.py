"""Flask's request as a guard sees it, and a refusal as Flask sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from weakref import ref

from flask import Flask, Request, current_app, g, request
from werkzeug.exceptions import BadRequest, HTTPException, ServiceUnavailable, TooManyRequests

from penstock.web.request import EnvironRequest, Id, id_of_key

if TYPE_CHECKING:
    from penstock.web.guard import Guard
    from penstock.web.outcome import Outcome

__all__ = [
    "FlaskRequest",
    "RequestRefused",
    "current_request",
    "refused",
    "this_app",
]

# Flask's request and application themselves: each look through its proxies costs more than a
# decision. Both are documented uses of the proxies.
current_request: Final[Callable[[], Request]] = request._get_current_object  # type: ignore[attr-defined]  # noqa: SLF001
"""Give the request of this context."""
this_app: Final[Callable[[], Flask]] = current_app._get_current_object  # type: ignore[attr-defined]  # noqa: SLF001
"""Give the application of this context."""


class RequestRefused(TooManyRequests):
    """A refused request, as an HTTP error: an error handler for 429 sees it.

    Attributes:
        outcome: What was decided; `outcome.decision` may be `None` where no limit was asked.
    """

    outcome: Outcome


class _RefusedUnmeasured(BadRequest):
    outcome: Outcome


class _RefusedWithoutStore(ServiceUnavailable):
    outcome: Outcome


class FlaskRequest(EnvironRequest):
    """A request with a route and a user."""

    __slots__ = ("_native",)

    def __init__(self, native: Request) -> None:
        self._environ = environ = native.environ
        # Weak, for Flask's request keeps its answer, and that keeps this: a circle would wait for
        # the garbage collector.
        self._native = ref(native)
        self.peer = environ.get("REMOTE_ADDR")

    @property
    def native(self) -> Request | None:
        """Flask's request; `None` once it is gone."""
        return self._native()

    @property
    def route(self) -> str | None:
        """The route's template, such as `/orders/<id>`."""
        rule = getattr(self._native(), "url_rule", None)
        return None if rule is None else rule.rule

    @property
    def user(self) -> Id | None:
        """Who has logged in, by Flask-Login, `g.user` or the server."""
        # Flask-Login where the application uses it; else `g.user`, the custom of Flask's own
        # tutorial.
        login = sys.modules.get("flask_login")
        if login is not None and hasattr(current_app, "login_manager"):
            return _user_id(login.current_user)
        return _user_id(g.get("user")) or super().user


def _user_id(user: object) -> Id | None:
    if user is None or isinstance(user, str | int):
        return user
    if getattr(user, "is_anonymous", False) is True:
        return None
    if callable(find := getattr(user, "get_id", None)):
        found = find()
    elif isinstance(user, Mapping):
        found = user.get("id")
    else:
        found = getattr(user, "id", None)
    return id_of_key(found)


def refused(guard: Guard, outcome: Outcome) -> HTTPException:
    """Make the error that refuses a request, with its response."""
    answer = None if guard.on_denied is None else guard.on_denied(outcome)
    if answer is None:
        content_type, body = outcome.body()
        response = current_app.response_class(body, outcome.status, content_type=content_type)
    else:
        response = current_app.make_response(answer)
        if isinstance(answer, str | bytes | dict | list):
            response.status_code = outcome.status
    error = _ERRORS[outcome.status](outcome.problem.detail, response)
    error.outcome = outcome
    return error


_ERRORS: Final[dict[int, type[RequestRefused | _RefusedUnmeasured | _RefusedWithoutStore]]] = {
    400: _RefusedUnmeasured,
    429: RequestRefused,
    503: _RefusedWithoutStore,
}
