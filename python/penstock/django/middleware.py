"""The middleware: default limits, header fields, and exceptions of views."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from penstock.django import conf
from penstock.django.app_limits import on_loop
from penstock.django.decorators import is_answer, is_disconnect
from penstock.django.ends import ends_with_thread
from penstock.django.request import DjangoRequest, visit_of
from penstock.errors import ConfigError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from penstock.django.request import DjangoVisit


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
        visit = visit_of(request)
        if visit.has_middleware:
            # MIDDLEWARE lists it twice; the outer one does the work.
            return self.get_response(request)
        visit.has_middleware = visit.has_writer = True
        if self._is_async:
            return self._serve_async(request, visit)
        try:
            response = self.get_response(request)
        except Exception:
            # Only with the setting DEBUG_PROPAGATE_EXCEPTIONS; there is no response to settle.
            visit.failed()
            raise
        except BaseException:
            visit.finished()
            raise
        app_limits = conf.current()
        try:
            if visit.deferred is not None:
                response = app_limits.finish_deferred(response, request, visit)
            elif not visit.is_decided:
                # Its view was not reached.
                refusal = app_limits.enter_route(request, visit, after_view=True)
                if refusal is not None:
                    response.close()
                    response = refusal
            return app_limits.apply_headers(response, request, visit)
        except BaseException:
            # A callable of the application has failed, or was stopped.
            visit.finished()
            raise

    async def _serve_async(self, request: HttpRequest, visit: DjangoVisit) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
        except Exception:
            await visit.failed_async()
            raise
        except BaseException as error:
            # The client has left, for example: its tokens stay spent.
            if not (isinstance(error, CancelledError) and ends_with_thread(request)):
                visit.finished(may_block=False)
            raise
        app_limits = conf.current()
        try:
            if visit.deferred is not None:
                finish, may_block = app_limits.finish_deferred, app_limits.may_wait
                response = await on_loop(finish, response, request, visit, may_block=may_block)
            elif not visit.is_decided:
                refusal = await app_limits.enter_route_async(request, visit, after_view=True)
                if refusal is not None:
                    response.close()
                    response = refusal
            may_block = app_limits.may_wait and visit.is_open
            return await on_loop(
                app_limits.apply_headers, response, request, visit, may_block=may_block
            )
        except BaseException:
            visit.finished(may_block=False)
            raise

    def _process_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        """Apply default limits to a view without limits of its own."""
        return conf.current().enter_route(request, visit_of(request))

    async def _aprocess_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        return await conf.current().enter_route_async(request, visit_of(request))

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Respond for a view that raised `RateLimited`; refund a view that failed."""
        app_limits, visit = conf.current(), visit_of(request)
        if isinstance(exception, RateLimited):
            return app_limits.respond_to_denial(exception, DjangoRequest(request, request), visit)
        if is_disconnect(exception):
            visit.finished()
        elif not is_answer(exception):
            visit.failed(head=None)
        return None
