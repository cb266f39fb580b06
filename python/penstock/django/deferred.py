"""Limits of REST framework's views that wait until the view has authenticated its request.

Such a view finds the user itself, after the decorators and the middleware have been called.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from penstock.django.request import visit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest

    from penstock._web.rule import Rule
    from penstock.django.request import DjangoVisit

_AUTHENTICATE: Final = "perform_authentication"
_MARK: Final = "__penstock_deferred__"


def waits_for_user(view_class: Any, rules: Iterable[Rule]) -> bool:
    """Return whether rules of a class of views wait for its authentication.

    Other rules, such as those by address, do not: a refused request costs no look-up of a user.
    """
    authenticate = getattr(view_class, _AUTHENTICATE, None)
    if authenticate is None or not any(rule.may_need_user for rule in rules):
        return False
    if not hasattr(authenticate, _MARK):
        setattr(view_class, _AUTHENTICATE, _evaluating(authenticate))
    return True


def _evaluating(authenticate: Any) -> Any:
    """Return a method that evaluates deferred limits after an authentication, failed or not.

    Asynchronous views call it in a thread.
    """

    @wraps(authenticate)
    def perform_authentication(view: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        try:
            authenticate(view, request, *args, **kwargs)
        finally:
            http = request._request  # noqa: SLF001  the only way to Django's request
            _evaluate(request, http, visit_of(http))

    setattr(perform_authentication, _MARK, True)
    return perform_authentication


def _evaluate(request: Any, http: HttpRequest, visit: DjangoVisit) -> None:
    deferred = visit.deferred
    if deferred is None:
        return
    deferred.evaluate(request, http, visit)
    if deferred.outcome is not None and deferred.is_refused:
        # Only views of REST framework get here, so it is installed.
        from rest_framework.exceptions import APIException  # noqa: PLC0415

        # Ends the view. Its response is replaced by that of the refusal.
        error = APIException(deferred.outcome.problem.detail)
        error.status_code = deferred.outcome.status
        raise error
