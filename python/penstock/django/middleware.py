"""The middleware: default limits, header fields, and exceptions of views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from penstock.django import conf
from penstock.django.decorators import is_answer, is_disconnect, run, run_async
from penstock.django.request import DjangoRequest, state_of
from penstock.errors import ConfigError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from penstock.django.app_limits import DjangoLimits
    from penstock.django.decorators import Steps
    from penstock.django.request import State


class PenstockMiddleware:
    """Middleware that applies limits to the views of a project and writes the header fields.

    Put it below `AuthenticationMiddleware`, so that limits by user know the user. It is
    asynchronous if what it wraps is, and never moves a request to another thread itself.

    Args:
        get_response: The next middleware or the view.

    Raises:
        ConfigError: The setting `PENSTOCK` is wrong, which is found when the server starts.
    """

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        if not callable(get_response):
            raise ConfigError(f"get_response must be a callable, found {get_response!r}")
        self.get_response: Final[Any] = get_response
        self.process_view: Callable[..., Any] = self._process_view
        self._is_async: Final = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view
        conf.current()

    def __call__(self, request: HttpRequest) -> Any:
        """Return the response to a request."""
        state = state_of(request)
        if state.has_middleware:
            # MIDDLEWARE lists it twice; the outer one does the work.
            return self.get_response(request)
        state.has_middleware = state.has_writer = True
        steps = self._serve(request, state)
        return run_async(steps) if self._is_async else run(steps)

    def _serve(self, request: HttpRequest, state: State) -> Steps:
        """Write the header fields; evaluate the limits of a view that was not reached."""
        response = yield self.get_response(request)
        app_limits, calls = self._calls()
        if state.deferred is not None:
            response = yield calls.finish_deferred(response, request, state)
        else:
            limits = app_limits.limits_for_route(request, state, after_view=True)
            if limits is not None:
                outcome = yield calls.evaluate(limits, request, request, state)
                if outcome is not None and outcome.refusal is not None:
                    response.close()
                    response = yield calls.refusal_response(outcome)
        return (yield calls.apply_headers(response, request, state))

    def _calls(self) -> tuple[DjangoLimits, Any]:
        """Return the limits of the project, and the object whose methods make calls."""
        app_limits = conf.current()
        return app_limits, app_limits.on_loop if self._is_async else app_limits

    def _process_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        """Apply default limits to a view without limits of its own."""
        response: HttpResponseBase | None = run(self._enter_view(request))
        return response

    async def _aprocess_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        response: HttpResponseBase | None = await run_async(self._enter_view(request))
        return response

    def _enter_view(self, request: HttpRequest) -> Steps:
        (app_limits, calls), state = self._calls(), state_of(request)
        limits = app_limits.limits_for_route(request, state)
        if limits is None:
            return None
        outcome = yield calls.evaluate(limits, request, request, state)
        if outcome is None or outcome.refusal is None:
            return None
        return (yield calls.refusal_response(outcome))

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Respond for a view that raised `RateLimited`; refund a view that failed."""
        app_limits, state = conf.current(), state_of(request)
        if isinstance(exception, RateLimited):
            return app_limits.respond_to_denial(exception, DjangoRequest(request, request), state)
        if is_disconnect(exception):
            state.finished()
        elif not is_answer(exception):
            state.failed(head=None)
        return None
