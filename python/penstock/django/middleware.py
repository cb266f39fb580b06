"""The middleware: the limits of all views, headers on every response, and what views raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from penstock.django import conf
from penstock.django.decorators import is_failure
from penstock.django.request import DjangoRequest, LoopRequest, state_of
from penstock.django.streams import give_back
from penstock.errors import ConfigError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from penstock.django.request import State

__all__ = ["PenstockMiddleware"]


class PenstockMiddleware:
    """Apply limits to the views of a project, and tell its clients.

    Put it below `AuthenticationMiddleware`, so that limits by user know the user. It is
    asynchronous where what it wraps is, and never sends a request to another thread by itself.

    Args:
        get_response: What comes next.

    Raises:
        ConfigError: The setting `PENSTOCK` cannot be used: found when the server starts.
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
        """Answer a request."""
        state = state_of(request)
        if state.is_routed:
            # It stands in MIDDLEWARE twice; the outer one does the work.
            return self.get_response(request)
        state.is_routed = state.is_told = True
        if self._is_async:
            return self._acall(request, state)
        return self._finish(request, self.get_response(request), state)

    async def _acall(self, request: HttpRequest, state: State) -> HttpResponseBase:
        response: HttpResponseBase = await self.get_response(request)
        installed = conf.current()
        if state.outcome is None:
            plan = installed.due_of_route(request, is_left=True)
            if plan is not None:
                outcome = await installed.aask(plan, LoopRequest(request, request), state)
                if outcome.refusal is not None:
                    response.close()
                    response = await installed.arefusal(outcome)
        return await installed.atell(response, request, state)

    def _finish(
        self, request: HttpRequest, response: HttpResponseBase, state: State
    ) -> HttpResponseBase:
        """Tell the client, and count a view that was not reached."""
        installed = conf.current()
        if state.outcome is None:
            plan = installed.due_of_route(request, is_left=True)
            if plan is not None:
                outcome = installed.ask(plan, request, request, state)
                if outcome.refusal is not None:
                    response.close()
                    response = installed.refusal(outcome)
        return installed.tell(response, request, state)

    def _process_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        """Ask the limits of all views, where the view does not do so itself."""
        installed = conf.current()
        plan = installed.due_of_route(request)
        if plan is None or (state := state_of(request)).outcome is not None:
            return None
        outcome = installed.ask(plan, request, request, state)
        return None if outcome.refusal is None else installed.refusal(outcome)

    async def _aprocess_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        installed = conf.current()
        plan = installed.due_of_route(request)
        if plan is None or (state := state_of(request)).outcome is not None:
            return None
        outcome = await installed.aask(plan, LoopRequest(request, request), state)
        return None if outcome.refusal is None else await installed.arefusal(outcome)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Answer for a view that was denied by a limit it asked itself; give back what failed."""
        installed, state = conf.current(), state_of(request)
        if isinstance(exception, RateLimited):
            return installed.raised(exception, DjangoRequest(request, request), state)
        if state.outcome is not None and is_failure(exception):
            give_back(state.outcome)
        return None
