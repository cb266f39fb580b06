"""Rate limits for any WSGI application (PEP 3333)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from penstock.web.adapter import (
    Response,
    check_on_denied,
    check_routeless,
    refusal_body,
    split_limit,
    split_options,
)
from penstock.web.guard import Guard, GuardOptions
from penstock.web.outcome import RefundOnErrorBody
from penstock.web.request import EnvironRequest
from penstock.web.rule import LimitOptions, RuleOptions, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from penstock._core import Limit, Limiter
    from penstock.web.outcome import Outcome

    _ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
    _Start = Callable[..., Callable[[bytes], object]]
    _Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

__all__ = ["PenstockMiddleware", "Response"]


class _Options(LimitOptions, GuardOptions, total=False):
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
        self._needs_response: Final = self._limits.needs_response

    def __call__(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        """Answer a request, or pass it to the application."""
        if not self.guard.enabled:
            return self.app(environ, start_response)
        limits, decision = self._limits, None
        if limits.is_direct:
            decision = limits.spend(environ.get("REMOTE_ADDR"))
            if decision:
                environ["penstock.decision"] = decision
                # A local: called as a method, it would first be looked for in the class.
                fields_of, app = limits.fields, self.app
                fields = fields_of(decision)

                def start(
                    status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
                ) -> Callable[[bytes], object]:
                    # A new list: the application may reuse its own.
                    headers = [*headers, *fields]
                    if exc_info is None:
                        return start_response(status, headers)
                    return start_response(status, headers, exc_info)

                return app(environ, start)
        request = EnvironRequest(environ)
        outcome = limits.admit(request) if decision is None else limits.conclude(request, decision)
        environ["penstock.decision"] = outcome.decision
        if outcome.refusal is not None:
            return self._refuse(outcome, environ, start_response)
        if self._needs_response:
            request.watch_body()
            return self._serve_and_settle(outcome, environ, start_response)
        return self.app(environ, _with_headers(outcome, start_response))

    def _serve_and_settle(
        self, outcome: Outcome, environ: dict[str, Any], start_response: _Start
    ) -> Iterable[bytes]:
        """Serve a request that is settled or refunded after its response."""
        start_with_headers = _with_headers(outcome, start_response)
        settled = False

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            nonlocal settled
            # An application may start again to report an error; the first status is settled.
            if not settled:
                settled = True
                outcome.settle(Response(int(status[:3]), headers))
            return start_with_headers(status, headers, exc_info)

        try:
            body = self.app(environ, start)
        except Exception:
            _undo(outcome, is_settled=settled)
            raise
        if not settled:
            return _LateBody(body, outcome, lambda: settled)
        return RefundOnErrorBody(body, outcome) if self._limits.refunds_on_error else body

    def _refuse(
        self, outcome: Outcome, environ: dict[str, Any], start_response: _Start
    ) -> Iterable[bytes]:
        answer = self.guard.custom_response(outcome)
        start = _with_headers(outcome, start_response)
        if callable(answer):
            response: Iterable[bytes] = answer(environ, start)
            return response
        fields, body = refusal_body(outcome, answer, "a WSGI application")
        status = HTTPStatus(outcome.status)
        start(f"{status.value} {status.phrase}", [*fields, ("Content-Length", str(len(body)))])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


class _LateBody(RefundOnErrorBody):
    """Body of a response that starts while the body is iterated, such as that of a generator.

    Args:
        body: The body.
        outcome: The outcome of the request.
        is_settled: Returns whether the response has started.
    """

    def __init__(
        self, body: Iterable[Any], outcome: Outcome, is_settled: Callable[[], bool]
    ) -> None:
        super().__init__(body, outcome)
        self._outcome: Final = outcome
        self._is_settled: Final = is_settled

    def __iter__(self) -> Iterator[Any]:
        """Yield the parts of the body."""
        try:
            yield from super().__iter__()
        except Exception:
            _undo(self._outcome, is_settled=self._is_settled())
            raise

    def close(self) -> None:
        """Close the body; without a response to settle it, everything stays taken."""
        try:
            super().close()
        finally:
            self._outcome.keep()


def _undo(outcome: Outcome, *, is_settled: bool) -> None:
    """Refund a request whose application raised, and settle it unless that has happened."""
    outcome.refund()
    if not is_settled:
        outcome.settle(Response(HTTPStatus.INTERNAL_SERVER_ERROR, ()))


def _with_headers(outcome: Outcome, start_response: _Start) -> _Start:
    """Return a `start_response` that adds the headers of an outcome."""

    def start(
        status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        # A new list: the application may reuse its own.
        merged = outcome.add_to(headers, status)
        if exc_info is None:
            return start_response(status, merged)
        return start_response(status, merged, exc_info)

    return start
