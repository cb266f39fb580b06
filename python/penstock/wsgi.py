"""Limits for any WSGI application (PEP 3333)."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from penstock.errors import ConfigError
from penstock.validation import check_names, is_coroutine_function
from penstock.web.guard import Guard, GuardOptions
from penstock.web.identity import EnvironRequest, ReadyId
from penstock.web.outcome import RefundOnErrorBody
from penstock.web.rule import LimitOptions, RuleOptions, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from penstock._core import Limit, Limiter
    from penstock.web.outcome import Outcome

    _ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
    _Started = Callable[..., Callable[[bytes], object]]
    _Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

__all__ = ["PenstockMiddleware", "Response"]


class _Options(LimitOptions, GuardOptions, total=False):
    """The keywords of a guard and of a limit together."""


@dataclass(frozen=True)
class Response:
    """What a `deduct_when` sees of a response: its head, before it is sent.

    Attributes:
        status_code: The status, such as 401.
        headers: The fields as the application gave them.
    """

    status_code: int
    headers: Sequence[tuple[str, str]]


class PenstockMiddleware:
    """Apply limits to every request of an application.

    The decision is at hand in `environ["penstock.decision"]`. A refused request never reaches the
    application.

    Args:
        app: The application.
        limiter: A ready limiter, in place of the options `limits`, `overrides`, `store` and
            `clock`.
        limit: The name of a limit, a text such as `"100/minute"`, or several; several are one
            decision.
        options: Those of a guard (`limits`, `headers`, `trusted_proxies`, ...) and those of a limit
            (`id`, `cost`, `methods`, ...). `on_denied` may give a WSGI application, a text, or
            `None`.

    Raises:
        ConfigError: Something that cannot be, and what would do.

    Example:
        >>> from wsgiref.simple_server import demo_app
        >>> from penstock.wsgi import PenstockMiddleware
        >>> app = PenstockMiddleware(demo_app, limit="100/minute")
    """

    def __init__(
        self,
        app: _Application,
        limiter: Limiter | None = None,
        *,
        limit: str | Limit | Sequence[str | Limit],
        **options: Unpack[_Options],
    ) -> None:
        check_names(options, _Options.__optional_keys__, "PenstockMiddleware")
        if is_coroutine_function(on_denied := options.get("on_denied")):
            raise ConfigError(f"on_denied must be an ordinary function, found {on_denied!r}")
        of_guard = {k: v for k, v in options.items() if k in GuardOptions.__optional_keys__}
        of_limit = {k: v for k, v in options.items() if k not in of_guard}
        limits = limit if isinstance(limit, list | tuple) else (limit,)
        rule = make_rule(limits, "default", cast("RuleOptions", of_limit))
        if isinstance(rule.id, ReadyId) and rule.id.needs_route:
            raise ConfigError(
                f"{rule.id!r} needs routes, which WSGI does not know; "
                f"use by_address, or the adapter of your framework"
            )
        self.app: Final = app
        self.guard: Final = Guard(limiter, **cast("GuardOptions", of_guard))
        self._plan: Final = self.guard.route_limits([rule])
        self._admit: Final = self._plan.admit
        self._needs_response: Final = self._plan.needs_response
        self._is_served = False

    def __call__(self, environ: dict[str, Any], start_response: _Started) -> Iterable[bytes]:
        """Answer a request, or let the application answer it."""
        if not self.guard.enabled:
            return self.app(environ, start_response)
        if not self._is_served:
            self._is_served = True
            self.guard.warn_if_multiprocess(environ)
        outcome = self._admit(EnvironRequest(environ))
        environ["penstock.decision"] = outcome.decision
        if outcome.refusal is not None:
            return self._refuse(outcome, environ, start_response)
        if self._needs_response:
            return self._serve_and_look_back(outcome, environ, start_response)

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            # A new list: the application may keep its own for every response.
            if exc_info is None:
                return start_response(status, [*headers, *outcome.headers()])
            return start_response(status, [*headers, *outcome.headers()], exc_info)

        return self.app(environ, start)

    def _serve_and_look_back(
        self, outcome: Outcome, environ: dict[str, Any], start_response: _Started
    ) -> Iterable[bytes]:
        """Serve a request whose limits want to know how it went."""
        settled = False

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            nonlocal settled
            # An application may start again to tell of an error; it counts as it was first told.
            if not settled:
                settled = True
                outcome.settle(Response(int(status[:3]), headers))
            shown = [*headers, *outcome.headers()]
            return start_response(status, shown, *(() if exc_info is None else (exc_info,)))

        try:
            body = self.app(environ, start)
        except Exception:
            outcome.refund()
            raise
        return RefundOnErrorBody(body, outcome) if self._plan.refunds_on_error else body

    def _refuse(
        self, outcome: Outcome, environ: dict[str, Any], start_response: _Started
    ) -> Iterable[bytes]:
        answer = None if self.guard.on_denied is None else self.guard.on_denied(outcome)
        if callable(answer):

            def start(
                status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
            ) -> Callable[[bytes], object]:
                shown = [*headers, *outcome.headers()]
                return start_response(status, shown, *(() if exc_info is None else (exc_info,)))

            told: Iterable[bytes] = answer(environ, start)
            return told
        if answer is None:
            content_type, body = outcome.body()
        elif isinstance(answer, str):
            content_type, body = "text/plain; charset=utf-8", answer.encode()
        else:
            raise ConfigError(
                f"on_denied must give a WSGI application, a text or None, found {answer!r}"
            )
        status = HTTPStatus(outcome.status)
        start_response(
            f"{status.value} {status.phrase}",
            [
                ("Content-Type", content_type),
                ("Content-Length", str(len(body))),
                *outcome.headers(),
            ],
        )
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
