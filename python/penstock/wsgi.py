"""Rate limits for any WSGI application (PEP 3333)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Never, Unpack, cast

from penstock.web.enforce import NOTHING
from penstock.web.guard import Guard
from penstock.web.lifecycle import Visit
from penstock.web.options import (
    GuardOptions,
    check_on_denied,
    check_routeless,
    split_limit,
    split_options,
)
from penstock.web.request import EnvironRequest, Response
from penstock.web.rule import LimitOptions, RuleOptions, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from penstock._core import Limit, Limiter
    from penstock.web.outcome import Outcome

    _ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
    _Start = Callable[..., Callable[[bytes], object]]
    _Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

__all__ = ["PenstockMiddleware", "Response"]


class _Options(LimitOptions[Never], GuardOptions, total=False):
    """Keywords of a guard and of a limit."""


class PenstockMiddleware:
    """Apply limits to every request of an application.

    The decision is in `environ["penstock.decision"]`. A refused request does not reach the
    application.

    Args:
        app: The application.
        limiter: A limiter, instead of the options `limits`, `overrides`, `store` and `clock`.
        limit: The name of a limit, a text such as `"100/minute"`, or a list of them, which are
            decided together; or a callable that returns the limit of a request.
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
        app: _Application,
        limiter: Limiter | None = None,
        *,
        limit: str | Limit | Sequence[str | Limit] | Callable[..., Any] | None = None,
        **options: Unpack[_Options],
    ) -> None:
        guard_options, limit_options = split_options(options, "PenstockMiddleware")
        check_on_denied(options.get("on_denied"))
        limits, limit_options = split_limit(limit, limit_options)
        rule = make_rule(limits, "default", cast("RuleOptions", limit_options))
        check_routeless(rule, "use by_address, or the adapter of your framework")
        self.app: Final = app
        self.guard: Final = Guard(limiter, **guard_options)
        self._limits: Final = self.guard.route_limits([rule])

    def __call__(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        """Answer a request, or pass it to the application."""
        if not self.guard.enabled:
            environ["penstock.decision"] = NOTHING
            return self.app(environ, start_response)
        # A local: a method call would look up the class first.
        app = self.app
        visit = _Visit(environ, environ.get("REMOTE_ADDR"))
        visit.start_response = start_response
        outcome = visit.enter(self._limits)
        environ["penstock.decision"] = visit.decision
        if outcome is None:
            if visit.slots is None:
                return app(environ, visit.start)
        elif outcome.refusal is not None:
            return self._refuse(outcome, environ, visit.start)
        else:
            visit.request.watch_body()
        visit.has_started = False
        try:
            body = app(environ, visit.start)
        except Exception:
            visit.failed()
            raise
        if visit.has_started and not visit.needs_end:
            return body
        return visit.watch_response(body, environ)

    def _refuse(self, outcome: Outcome, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        answer = self.guard.custom_response(outcome)
        if callable(answer):
            response: Iterable[bytes] = answer(environ, start)
            return response
        fields, body = outcome.body(answer, "a WSGI application")
        status = HTTPStatus(outcome.status)
        start(f"{status.value} {status.phrase}", [*fields, ("Content-Length", str(len(body)))])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


class _Visit(Visit):
    """The limits of one request, and its response as the application starts it."""

    __slots__ = ("has_started", "start_response")

    # Set by the middleware: a constructor of this class would be one call more for each request.
    start_response: _Start
    has_started: bool

    def read(self) -> EnvironRequest:
        """Return the request."""
        return EnvironRequest(self.native)

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Start the response; an application may do so again to report an error."""
        start_response = self.start_response
        limits, outcome = self.limits, self.entered
        if outcome is None and limits is not None:
            # As `add_to`, with one call less.
            fields_of = limits.fields
            headers = [*headers, *fields_of(self.decision)]
        else:
            if self.is_open:
                self.has_started = True
                self.respond(Response(int(status[:3]), headers))
            headers = self.add_to(headers, status)
        if exc_info is None:
            return start_response(status, headers)
        return start_response(status, headers, exc_info)
