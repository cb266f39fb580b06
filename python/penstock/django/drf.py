"""Rate limits for Django REST framework: a throttle, and a mixin for views.

REST framework calls the throttles of a view one after another; ours are decided together, all or
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from django.core.exceptions import ImproperlyConfigured

from penstock._extras import Extra
from penstock._web.address import ClientAddress
from penstock._web.compile import view_scope
from penstock._web.headers import seconds, wait_ns
from penstock._web.identity import by_user, compile_id, everyone, shared
from penstock._web.rule import CHOICES, LIMIT_HINTS, Rule, RuleOptions, make_rule
from penstock.django import conf
from penstock.django.request import DjangoRequest, visit_of
from penstock.django.view_limits import SIMILARITY, THROTTLE, check_view_class, route_of
from penstock.errors import ConfigError, LimitError, RateLimited

with Extra("drf"):
    from rest_framework.exceptions import APIException, ParseError, Throttled
    from rest_framework.throttling import BaseThrottle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest
    from rest_framework.request import Request
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from penstock._core import Limit
    from penstock._web.identity import IdSource
    from penstock._web.outcome import Outcome
    from penstock._web.route_table import PlaceLimits
    from penstock.django.app_limits import DjangoLimits
    from penstock.types import Id

    _View = APIView
else:
    _View = object

__all__ = ["PenstockMixin", "PenstockThrottle", "everyone", "shared"]

_SECOND_NS: Final = 1_000_000_000

_Key = tuple[type, object]
"""What tells the throttles of a view apart: the class, and its limit."""
_Place = tuple[tuple[_Key, ...], type, str | None, tuple[object, str] | None]
"""The throttles, the class of the view, its scope, and the view if default limits may apply."""

_rules: Final[dict[tuple[type, object, type], Rule]] = {}
# The module of REST framework's own `get_throttles`; an override may create throttles per request.
# Not imported: its import reads the setting that may name this module.
_VIEWS: Final = "rest_framework.views"
# Classes of views with that method, which is looked up once for each.
_plain_views: Final[set[type]] = set()

_LIMIT: Final = "use limit, such as limit = '60/minute'"
# Attributes of other throttles, and what to write here.
_HINTS: Final = {
    **LIMIT_HINTS,
    "THROTTLE_RATES": _LIMIT,
    "get_cache_key": "use get_id, which returns the id of the client",
    "get_ident": "use id, or get_id, which returns the id of the client",
    "ident": "use id, or get_id, which returns the id of the client",
    "get_rate": "use options, such as options = {'limit': function}",
    "parse_rate": _LIMIT,
    "rate": _LIMIT,
    "scope": "use limit with the name of a limit, or throttle_scope of the view",
    "throttle_scope": "it is an attribute of the view; use limit here",
}
_ATTRIBUTES: Final = ("get_id", "id", "limit", "options")


class _Unavailable(APIException):
    status_code = 503
    default_code = "unavailable"


class PenstockThrottle(BaseThrottle):
    """Throttle that applies limits of penstock.

    The limit is the class's own `limit`, or the view's `throttle_scope`; a view without either is
    not limited. A rate such as `"30/minute"` belongs to the class of views as its
    `throttle_scope`, and to all views of the throttle as its `limit`.

    Attributes:
        limit: The name of a limit, a rate, or several; several are one decision.
        id: The client, as the option of `limit`. The default is the primary key of REST framework's
            authenticated user, and the address of an anonymous one. `get_id` can return it, too.
        options: Other options of a limit, such as `{"cost": 5}`.

    Raises:
        ConfigError: A subclass has a wrong option, or an attribute that would have no effect, such
            as `rate`.
        ImproperlyConfigured: A limit is unknown or wrong; `manage.py check` reports it, too.
    """

    limit: ClassVar[str | Limit | Sequence[str | Limit] | None] = None
    id: ClassVar[IdSource | None] = None
    options: ClassVar[RuleOptions] = {}

    _wait: float | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the attributes of the class.

        Raises:
            ConfigError: One is wrong, or would have no effect.
        """
        super().__init_subclass__(**kwargs)
        if isinstance(cls.limit, list):
            # A part of keys.
            cls.limit = tuple(cls.limit)
        own = [base for base in cls.__mro__ if not issubclass(PenstockThrottle, base)]
        for name in (name for base in own for name in vars(base)):
            _check_attribute(cls, name)
        try:
            cls._check_options()
        except (ConfigError, LimitError) as error:
            raise ConfigError(f"{cls.__name__}: {error}") from error

    @classmethod
    def _check_options(cls) -> None:
        options: object = cls.options
        if not isinstance(options, Mapping):
            raise ConfigError(f"options must be a dict such as {{'cost': 5}}, found {options!r}")
        sources = {
            "id": cls.id is not None,
            "get_id": cls.has_own_id(),
            "options['id']": "id" in options,
        }
        used = [source for source, is_used in sources.items() if is_used]
        if len(used) > 1:
            raise ConfigError(f"the id is given once, found {' and '.join(used)}")
        # If the view has the limit, any one shows whether the options are right.
        limits: Any = "1/minute" if cls.limit is None and CHOICES.isdisjoint(options) else cls.limit
        if not isinstance(limits, list | tuple):
            limits = () if limits is None else (limits,)
        make_rule(limits, "", cls.options)
        compile_id(cls.options.get("id", cls.id or by_user), ClientAddress())

    def get_id(self, request: Request, view: APIView) -> Id | None:  # noqa: ARG002  for overrides
        """Return the id of the client; `None` for the user, or else the address."""
        return None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether the request may proceed; evaluates all our throttles of the view.

        Raises:
            APIException: The request has no valid id or cost, or the store fails and the policy is
                to refuse.
            ImproperlyConfigured: A limit is unknown or wrong.
        """
        http = request._request  # noqa: SLF001  the only way to Django's request
        visit, key = visit_of(http), (type(self), self.limit)
        outcome: Outcome | None = None
        if key in visit.covered_throttles:
            # It was evaluated with another throttle of the view; a second call counts again.
            visit.covered_throttles = _without(key, visit.covered_throttles)
            outcome = visit.outcome
        elif (app_limits := conf.current()).guard.enabled:
            throttles: Sequence[PenstockThrottle] = (self,)
            keys: tuple[_Key, ...] = (key,)
            if len(view.throttle_classes) > 1 or type(view) not in _plain_views:
                if type(view).get_throttles.__module__ == _VIEWS:
                    _plain_views.add(type(view))
                ours = [t for t in view.get_throttles() if isinstance(t, PenstockThrottle)]
                if key in (of_ours := tuple([(type(t), t.limit) for t in ours])):
                    throttles, keys = ours, of_ours
                    visit.covered_throttles = _without(key, keys)
            needs_view = visit.has_middleware and not visit.is_decided
            served_by = app_limits.view_of(http) if needs_view else None
            place = keys, type(view), getattr(view, "throttle_scope", None), served_by
            try:
                compiled = app_limits.compiled.get(place)
            except TypeError:
                # A scope that cannot be a key, such as a list, is no limit.
                compiled = None
            limits = (_add(place, throttles, app_limits) if compiled is None else compiled).limits
            if limits is not None:
                if limits.needs_end and not visit.has_writer:
                    _check_writer(view)
                # For those whose `get_id` returns the id. The view refers to the request: a cycle.
                visit.throttles = throttles, keys, view
                try:
                    outcome = app_limits.evaluate(limits, request, http, visit)
                finally:
                    visit.throttles = ()
        self._wait = None if outcome is None else _wait_of(outcome)
        return self._wait is None

    def wait(self) -> float | None:
        """Return the seconds until the request could be allowed; `None` if it was."""
        return self._wait

    def penstock_rule(self, scope: str | None, view_class: type) -> Rule | None:
        """Return the rule of this throttle on a class of views; `None` if it has no limit.

        Raises:
            ConfigError: An option or a limit is wrong.
        """
        cls, limit, owner = type(self), self.limit, type(self)
        if limit is None and not CHOICES.isdisjoint(self.options):
            limit = ()
        if limit is None:
            if scope is None:
                return None
            if not isinstance(cast("object", scope), str):
                raise ConfigError(f"throttle_scope must be one limit or one rate, found {scope!r}")
            limit, owner = scope, view_class
        rule = _rules.get((cls, limit, owner))
        if rule is None:
            # Not of the instance, which would bind a function as a method.
            options: RuleOptions = {"id": cls.id or by_user, **self.options}
            if self.has_own_id():
                key = cls, self.limit
                options = {**options, "id": lambda request: _own_id(key, request)}
            limits: Any = limit if isinstance(limit, tuple) else (limit,)
            of = view_scope(owner.__module__, owner.__qualname__)
            rule = make_rule(limits, of, options)
            _rules[cls, limit, owner] = rule
        return rule

    @classmethod
    def has_own_id(cls) -> bool:
        """Return whether `get_id` is overridden."""
        return cls.get_id is not PenstockThrottle.get_id


def _check_attribute(cls: type[PenstockThrottle], name: str) -> None:
    """Check an attribute that a subclass adds.

    Raises:
        ConfigError: It would have no effect.
    """
    if name.startswith("_") or name in vars(PenstockThrottle):
        return
    options = RuleOptions.__optional_keys__
    if name in options:
        instead = f"write it in options, such as options = {{{name!r}: ...}}"
    elif name in _HINTS:
        instead = _HINTS[name]
    elif near := get_close_matches(name, (*_ATTRIBUTES, *options), 1, SIMILARITY):
        instead = f"did you mean {near[0]!r}?"
    else:
        return
    raise ConfigError(f"{cls.__name__}.{name} is not read; {instead}")


# For code that must not import REST framework.
setattr(PenstockThrottle, THROTTLE, True)


class PenstockMixin(_View):
    """Mixin that evaluates our throttles last and together, and writes the header fields.

    Put it before `APIView` or a view set among the bases. The header fields need it only without
    `PenstockMiddleware`.

    Attributes:
        throttle_scope: The name of a limit; an action of a view set may have its own.
    """

    throttle_scope: str | None = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Serve a request; end it if it is stopped, such as by a timeout of gevent."""
        try:
            return super().dispatch(request, *args, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception):
                visit_of(request).finished()
            raise

    def check_throttles(self, request: Request) -> None:
        """Call other throttles first, so that ours take nothing from a request they refuse."""
        throttles, view = self.get_throttles(), cast("APIView", self)
        for are_ours in (False, True):
            called = [t for t in throttles if isinstance(t, PenstockThrottle) is are_ours]
            denied = [t.wait() for t in called if not t.allow_request(request, view)]
            if denied:
                waits = [wait for wait in denied if wait is not None]
                self.throttled(request, cast("float", max(waits, default=None)))

    def handle_exception(self, exc: Exception) -> Response:
        """Respond to `RateLimited` as to a throttle; refund a view that failed."""
        http = self.request._request  # noqa: SLF001  as above
        visit = visit_of(http)
        if isinstance(exc, RateLimited):
            outcome = conf.current().record_denial(exc, DjangoRequest(self.request, http), visit)
            exc = Throttled(_wait_of(outcome))
        try:
            return super().handle_exception(exc)
        except Exception:
            if visit.has_writer:
                visit.failed(head=None)
            else:
                # No response follows that this could settle.
                visit.failed()
            raise

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Write the header fields, unless the middleware does."""
        response = super().finalize_response(request, response, *args, **kwargs)
        http = getattr(request, "_request", request)
        visit = visit_of(http)
        if not visit.has_writer:
            conf.current().apply_headers(response, http, visit)
        return response


def _without(key: _Key, keys: tuple[_Key, ...]) -> tuple[_Key, ...]:
    """Return keys of throttles without one of the given throttle's."""
    index = keys.index(key)
    return keys[:index] + keys[index + 1 :]


def _add(
    place: _Place, throttles: Sequence[PenstockThrottle], app_limits: DjangoLimits
) -> PlaceLimits:
    """Compile the limits of throttles, with the default limits.

    Raises:
        ImproperlyConfigured: A limit is unknown or wrong.
    """
    _, view_class, scope, served_by = place
    view, method = served_by or (None, "")
    try:
        check_view_class(view_class)
        each = (throttle.penstock_rule(scope, view_class) for throttle in throttles)
        rules = tuple({rule: None for rule in each if rule is not None})
        return app_limits.add(place, None if view is None else route_of(view, method), rules=rules)
    except (ConfigError, LimitError) as error:
        raise ImproperlyConfigured(f"{view_class.__name__}: {error}") from error


def _check_writer(view: APIView) -> None:
    """Check that the response of a view is known, on which a limit depends.

    Raises:
        ImproperlyConfigured: It is not.
    """
    if not isinstance(view, PenstockMixin):
        raise ImproperlyConfigured(
            f"{type(view).__name__}: a limit depends on the response, which is not known here; "
            f"add PenstockMiddleware, or PenstockMixin to the view"
        )


def _own_id(key: _Key, request: Request) -> Id | None:
    """Return the id from a throttle's `get_id`, or the user or address if it returns `None`."""
    http = request._request  # noqa: SLF001  as above
    throttles, keys, view = visit_of(http).throttles
    id: Id | None = throttles[keys.index(key)].get_id(request, view)
    if id is not None:
        return id
    read = compile_id(by_user, conf.current().guard.address)
    return read(DjangoRequest(request, http))


def _wait_of(outcome: Outcome) -> float | None:
    """Return the exact wait of a denied client in seconds; `None` for others.

    Raises:
        APIException: The request was refused for another reason.
    """
    if outcome.refusal == "request":
        raise ParseError(outcome.problem.detail)
    if outcome.refusal == "store":
        raise _Unavailable(outcome.problem.detail)
    retry_after = outcome.retry_after
    if outcome.decision is None or retry_after is None:
        return None
    exact = wait_ns(outcome.decision)
    # A random extra wait is in whole seconds.
    return exact / _SECOND_NS if seconds(exact) == retry_after else float(retry_after)
