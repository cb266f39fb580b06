"""Limits for Django REST framework: a throttle, and a mixin for views.

REST framework asks a view's throttles one after another; those of ours answer together, as one
decision: all or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from django.core.exceptions import ImproperlyConfigured
from rest_framework.exceptions import APIException, ParseError, Throttled
from rest_framework.throttling import BaseThrottle

from penstock.django import conf
from penstock.django.request import DjangoRequest, state_of
from penstock.django.streams import give_back
from penstock.django.view_limits import THROTTLE
from penstock.errors import ConfigError, LimitError, RateLimited
from penstock.web.headers import seconds, wait_ns
from penstock.web.identity import by_user, compile_id
from penstock.web.rule import Rule, RuleOptions, make_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rest_framework.request import Request
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from penstock._core import Limit
    from penstock.django.request import State
    from penstock.web.outcome import Outcome
    from penstock.web.request import Id

    _View = APIView
else:
    _View = object

__all__ = ["PenstockMixin", "PenstockThrottle"]

_SECOND_NS: Final = 1_000_000_000

_Key = tuple[type, object, type]

_rules: Final[dict[_Key, Rule]] = {}
# By the throttles of a view: their rules, and whether one of them says itself who asks.
_groups: Final[dict[tuple[_Key | None, ...], tuple[tuple[Rule, ...], bool]]] = {}
# Where REST framework's own `get_throttles` comes from; another one may make throttles for each
# request. Not imported: it reads the setting that may name this module.
_VIEWS: Final = "rest_framework.views"


class _Unavailable(APIException):
    status_code = 503
    default_code = "unavailable"


class PenstockThrottle(BaseThrottle):
    """A throttle that asks a limit of penstock.

    The limit is the class's own `limit`, or else the view's `throttle_scope`; a view without either
    is not limited. It counts by the primary key of who has logged in, by REST framework's own
    account, and those who have not by address. A text such as `"30/minute"` belongs to the class of
    views where it is the scope, and to all views of the throttle where it is its `limit`.

    Attributes:
        limit: The name of a limit, a text, or several; several are one decision.
        options: Those of `penstock.web.rule.RuleOptions`, such as `{"cost": 5}`.

    Raises:
        ImproperlyConfigured: No limit has the name; `manage.py check` finds it too.
    """

    limit: ClassVar[str | Limit | Sequence[str | Limit] | None] = None
    options: ClassVar[RuleOptions] = {}

    _wait: float | None = None

    def get_id(self, request: Request, view: APIView) -> Id | None:  # noqa: ARG002  for those who override it
        """Say who is asking; `None` for the user, or else the address."""
        return None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Whether the request may pass; asks all throttles of ours that the view has, at once."""
        http = request._request  # noqa: SLF001  its one way to Django's request
        state = state_of(http)
        key = self.penstock_key(getattr(view, "throttle_scope", None), type(view))
        if state.pending and key in state.pending:
            # Another of the view has asked for this one too, for this one call.
            pending = [*state.pending]
            pending.remove(key)
            state.pending = tuple(pending)
        elif len(view.throttle_classes) == 1 and view.get_throttles.__module__ == _VIEWS:
            installed = conf.current()
            plan = installed.straight.get(key)
            if plan is None or not installed.guard.enabled:
                _ask((self,), (key,), request, view, state)
            else:
                _raise_unless_decided(installed.ask(plan, request, http, state))
        else:
            throttles = [t for t in view.get_throttles() if isinstance(t, PenstockThrottle)]
            keys = _keys(throttles, view)
            if key not in keys:
                throttles, keys = [self], (key,)
            _ask(throttles, keys, request, view, state)
            state.pending = tuple(other for other in keys if other != key and other is not None)
        outcome = state.outcome
        refused = outcome is not None and outcome.refusal is not None
        self._wait = _wait_of(outcome) if refused else None
        return self._wait is None

    def wait(self) -> float | None:
        """Give the seconds until the request could be allowed; `None` where it was."""
        return self._wait

    def penstock_rule(self, scope: str | None, view_class: type) -> Rule | None:
        """Give the rule of this throttle on a class of views; `None` where it has no limit.

        Raises:
            ConfigError: Something that cannot be, and what would do.
        """
        key = self.penstock_key(scope, view_class)
        if key is None:
            return None
        rule = _rules.get(key)
        if rule is None:
            rule = _rules[key] = self._make_rule(key)
        return rule

    def penstock_key(self, scope: str | None, view_class: type) -> _Key | None:
        """Give what names the rule of this throttle on a class of views; `None` as above."""
        cls = type(self)
        limits = self.limit
        if limits is not None:
            return cls, tuple(limits) if isinstance(limits, list) else limits, cls
        return None if scope is None else (cls, scope, view_class)

    def _make_rule(self, key: _Key) -> Rule:
        cls, given, owner = key
        limits: Any = given if isinstance(given, tuple) else (given,)
        options: RuleOptions = {"id": by_user, **self.options}
        if self.has_own_id():
            options = {**options, "id": lambda request: _own_id(key, request)}
        kept_under = f"{owner.__module__}.{owner.__name__}"
        return make_rule(limits, kept_under, options, is_shared=owner is cls)

    @classmethod
    def has_own_id(cls) -> bool:
        """Whether `get_id` has been overridden."""
        return cls.get_id is not PenstockThrottle.get_id


# For those who must not import REST framework.
setattr(PenstockThrottle, THROTTLE, True)


class PenstockMixin(_View):
    """A view whose throttles of ours are asked last and together, and whose responses tell of it.

    Put it before `APIView` or a view set among the bases. The headers need it only where
    `PenstockMiddleware` is missing.

    Attributes:
        throttle_scope: The name of a limit; an action of a view set may have its own.
    """

    throttle_scope: str | None = None

    def check_throttles(self, request: Request) -> None:
        """Ask the other throttles first, so that ours take nothing from a request they refuse."""
        throttles = self.get_throttles()
        ours = [t for t in throttles if isinstance(t, PenstockThrottle)]
        others = [t for t in throttles if not isinstance(t, PenstockThrottle)]
        waits = [t.wait() for t in others if not t.allow_request(request, cast("APIView", self))]
        if not waits:
            state = state_of(request._request)  # noqa: SLF001  as above
            if ours:
                _ask(ours, _keys(ours, self), request, cast("APIView", self), state)
            wait = _wait_of(state.outcome) if ours else None
            if wait is None:
                return
            waits = [wait]
        known = [wait for wait in waits if wait is not None]
        self.throttled(request, cast("float", max(known, default=None)))

    def handle_exception(self, exc: Exception) -> Response:
        """Answer a limit that the view asked itself as a throttle's; give back what failed."""
        http = self.request._request  # noqa: SLF001  as above
        state = state_of(http)
        if isinstance(exc, RateLimited):
            conf.current().note_raised(exc, DjangoRequest(self.request, http), state)
            exc = Throttled(_wait_of(state.outcome))
        try:
            return super().handle_exception(exc)
        except Exception:
            if state.outcome is not None:
                give_back(state.outcome)
            raise

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Write the headers, where the middleware does not."""
        response = super().finalize_response(request, response, *args, **kwargs)
        http = getattr(request, "_request", request)
        state = state_of(http)
        if not state.is_told:
            conf.current().tell(response, http, state)
        return response


def _keys(throttles: Sequence[PenstockThrottle], view: object) -> tuple[_Key | None, ...]:
    scope = getattr(view, "throttle_scope", None)
    return tuple(throttle.penstock_key(scope, type(view)) for throttle in throttles)


def _ask(
    throttles: Sequence[PenstockThrottle],
    keys: tuple[_Key | None, ...],
    request: Request,
    view: APIView,
    state: State,
) -> None:
    """Ask the limits of throttles as one decision.

    Raises:
        APIException: The request cannot be measured, or the store fails and a policy refuses.
        ImproperlyConfigured: A limit that cannot be.
    """
    installed = conf.current()
    http = request._request  # noqa: SLF001  as above
    try:
        group = _groups.get(keys)
        if group is None:
            scope = getattr(view, "throttle_scope", None)
            found = (throttle.penstock_rule(scope, type(view)) for throttle in throttles)
            rules = tuple({rule: None for rule in found if rule is not None})
            own_ids = any(throttle.has_own_id() for throttle in throttles)
            group = _groups[keys] = (rules, own_ids)
        plan = installed.due_of(group[0], http, state)
    except (ConfigError, LimitError) as error:
        raise ImproperlyConfigured(f"{type(view).__name__}: {error}") from error
    if plan is None:
        return
    if group[1]:
        state.throttles = {
            key: (throttle, view) for key, throttle in zip(keys, throttles, strict=True)
        }
    if plan.needs_response and not (state.is_told or isinstance(view, PenstockMixin)):
        raise ImproperlyConfigured(
            f"{type(view).__name__}: a limit waits for the response, of which nobody tells it; "
            f"add PenstockMiddleware, or PenstockMixin to the view"
        )
    if len(keys) == 1 and not (installed.defaults or group[1] or plan.needs_response):
        installed.straight[keys[0]] = plan
    _raise_unless_decided(installed.ask(plan, request, http, state))


def _raise_unless_decided(outcome: Outcome) -> None:
    if outcome.refusal == "request":
        raise ParseError(outcome.problem.detail)
    if outcome.refusal == "store":
        raise _Unavailable(outcome.problem.detail)


def _own_id(key: _Key, request: Request) -> Id | None:
    """Ask a throttle's `get_id`; where it says nothing, find the user or the address."""
    http = request._request  # noqa: SLF001  as above
    throttle, view = state_of(http).throttles[key]
    found: Id | None = throttle.get_id(request, view)
    if found is not None:
        return found
    find = compile_id(by_user, conf.current().guard.address.finder())
    return find(DjangoRequest(request, http))


def _wait_of(outcome: Outcome | None) -> float | None:
    """Give the seconds that a refused client is told to wait, exactly; `None` for others."""
    if outcome is None or outcome.decision is None:
        return None
    told = outcome.retry_after
    if told is None:
        return None
    exact = wait_ns(outcome.decision)
    # A random extra wait is told in whole seconds.
    return exact / _SECOND_NS if seconds(exact) == told else float(told)
