"""Rate limits for any WSGI application (PEP 3333)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Never, Unpack, cast

from penstock._validation import is_coroutine_function, takes
from penstock._web.decide import NOTHING
from penstock._web.guard import (
    Guard,
    GuardOptions,
    check_on_denied,
    check_routeless,
    split_limit,
    split_options,
)
from penstock._web.identity import everyone, shared
from penstock._web.request import Response
from penstock._web.rule import LimitOptions, RuleOptions, make_rule
from penstock._web.wsgi_visit import MIDDLEWARE_KEY, WsgiVisit
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock._core import Limit, Limiter
    from penstock._web.outcome import Outcome
    from penstock._web.wsgi_visit import Application, Start

__all__ = ["PenstockMiddleware", "Response", "everyone", "shared"]


class _Options(LimitOptions[Never], GuardOptions, total=False):
    """Keywords of a guard and of a limit."""


class PenstockMiddleware:
    """Apply limits to every request of an application.

    The decision is in `environ["penstock.decision"]`. A refused request does not reach the
    application. Of several middlewares with one limiter, the outermost writes the fields of all.

    Args:
        app: The application.
        limiter: A limiter, instead of the options `limits`, `overrides`, `store` and `clock`.
        limit: The name of a limit, a rate string such as `"100/minute"`, or a list of them, which
            are decided together; or a callable that returns the limit of a request.
        options: The options of a guard (`limits`, `headers`, `trusted_proxies`, ...) and of a limit
            (`id`, `cost`, `methods`, ...). `on_denied` may return a WSGI application, text, a dict
            or `None`.

    Raises:
        ConfigError: An option is invalid; the message says what to write instead.

    Examples:
        >>> from wsgiref.simple_server import demo_app
        >>> from penstock.wsgi import PenstockMiddleware
        >>> app = PenstockMiddleware(demo_app, limit="100/minute")
    """

    def __init__(
        self,
        app: Application,
        limiter: Limiter | None = None,
        *,
        limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None = None,
        **options: Unpack[_Options],
    ) -> None:
        if is_coroutine_function(app) or (takes(app, 3) and not takes(app, 2)):
            raise ConfigError(
                f"{app!r} is an ASGI application; use penstock.asgi.PenstockMiddleware"
            )
        guard_options, limit_options = split_options(options, "PenstockMiddleware")
        check_on_denied(options.get("on_denied"))
        limits, limit_options = split_limit(limit, limit_options)
        rule = make_rule(limits, "default", cast("RuleOptions", limit_options))
        check_routeless(rule, "use by_address, or the adapter of your framework")
        self.app: Final = app
        self.guard: Final = Guard(limiter, **guard_options)
        self._limits: Final = self.guard.route_limits([rule])

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Answer a request, or pass it to the application."""
        if not self.guard.enabled:
            environ["penstock.decision"] = NOTHING
            return self.app(environ, start_response)
        # Locals: a method call would look up the class first.
        app, limits = self.app, self._limits
        outer: WsgiVisit | None = None
        if MIDDLEWARE_KEY in environ:
            outer = environ[MIDDLEWARE_KEY]
            if outer is not None and (visit := outer.under(limits.limiter)) is not None:
                return self._serve_within(visit, environ, start_response)
        visit = environ[MIDDLEWARE_KEY] = WsgiVisit().arrive(environ, environ.get("REMOTE_ADDR"))
        visit.start_response, visit.outer, visit.has_started = start_response, outer, False
        try:
            outcome = visit.enter(limits)
            environ["penstock.decision"] = visit.decision
            if outcome is None:
                body = app(environ, visit.start)
            else:
                body = self._serve(visit, outcome, environ, visit.start)
        except BaseException as error:
            visit.leave()
            visit.stopped(error)
            raise
        # A response that has not started may do so, with limits further inside, as it is read.
        if visit.has_started:
            environ[MIDDLEWARE_KEY], entered = outer, visit.entered
            if not (visit.slots or (entered is not None and entered.needs_response)):
                return body
        return visit.watch_response(body)

    def _serve_within(
        self, visit: WsgiVisit, environ: dict[str, Any], start: Start
    ) -> Iterable[bytes]:
        """Answer a request of a middleware further outside, which writes the fields and ends it."""
        outcome = None
        try:
            outcome = visit.enter(self._limits)
            environ["penstock.decision"] = visit.decision
            if outcome is None:
                return self.app(environ, start)
            return self._serve(visit, outcome, environ, start)
        except Exception:
            if outcome is not None:
                visit.failed(outcome, head=None)
            raise

    def _serve(
        self, visit: WsgiVisit, outcome: Outcome, environ: dict[str, Any], start: Start
    ) -> Iterable[bytes]:
        """Refuse a request, or pass it on and note whether its client disconnects."""
        if outcome.refusal is not None:
            return self._refuse(outcome, environ, start)
        visit.request.watch_body()
        return self.app(environ, start)

    def _refuse(self, outcome: Outcome, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        answer = self.guard.custom_response(outcome)
        if callable(answer):
            response: Iterable[bytes] = answer(environ, start)
            return response
        fields, body = outcome.body(answer, "a WSGI application")
        status = HTTPStatus(outcome.status)
        start(f"{status.value} {status.phrase}", [*fields, ("Content-Length", str(len(body)))])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
