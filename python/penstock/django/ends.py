"""How requests end: what returns their slots, whichever response is sent, or none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_started
from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from penstock.django.request import DjangoVisit

_VISITS_KEY: Final = "penstock.visits"
"""The key of a scope for the visits that the server's task ends; `None` is stored after that."""


def watch_request(http: HttpRequest, visit: DjangoVisit) -> None:
    """End a visit with its request.

    Django closes a request with the last response, whichever middleware made it. Under ASGI there
    may be no response, or an unclosed one: if the client leaves, or the server cannot send. So the
    visit also ends with the server's task, and with the task that sends the response if that fails.
    It always ends with the latter if the server's was cancelled before, because Django goes on, and
    does not close the response.
    """
    own = vars(http)
    if isinstance(own.get("close"), _Close):
        return
    own["close"] = _Close(http, visit)
    scope = getattr(http, "scope", None)
    if scope is None:
        return
    visits = scope.get(_VISITS_KEY, [])
    if visits is not None:
        visits.append(visit)
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # A thread, for which the server's task waits.
        return
    if task is not None:
        end = partial(_end_all, [visit]) if visits is None else partial(_end_failed, visit)
        task.add_done_callback(end)


class _Close:
    """The `close` of a request that holds slots."""

    __slots__ = ("_http", "_visit")

    def __init__(self, http: HttpRequest, visit: DjangoVisit) -> None:
        # Weak: the request has this as an attribute.
        self._http: Final = ref(http)
        self._visit: Final = visit

    def __call__(self) -> None:
        http = self._http()
        try:
            if http is not None:
                type(http).close(http)
        finally:
            self._visit.release()


def ends_with_thread(http: HttpRequest) -> bool:
    """Return whether a cancelled request goes on in a thread, which the server's task awaits."""
    match = http.resolver_match
    is_noted = getattr(http, "scope", {}).get(_VISITS_KEY) is not None
    return is_noted and match is not None and not iscoroutinefunction(match.func)


def _note_task(*, scope: dict[str, Any], **_: Any) -> Awaitable[None]:
    """Have the server's task end the visits of a request."""
    scope[_VISITS_KEY] = []
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(partial(_end_with_server, scope))
    return _nothing()


async def _nothing() -> None:
    pass


def _end_with_server(scope: dict[str, Any], task: object) -> None:
    visits: list[DjangoVisit] = scope[_VISITS_KEY]
    scope[_VISITS_KEY] = None
    _end_all(visits, task)


def _end_all(visits: list[DjangoVisit], _: object) -> None:
    for visit in visits:
        visit.finished(may_block=False)


def _end_failed(visit: DjangoVisit, task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        http = visit.native()
        has_failed = http is None or not ends_with_thread(http)
    else:
        has_failed = task.exception() is not None
    if has_failed:
        visit.finished(may_block=False)


# Django calls it in the server's task, and awaits what it returns in another one.
markcoroutinefunction(_note_task)
request_started.connect(_note_task, sender=ASGIHandler)


def watch_response(response: HttpResponseBase, http: HttpRequest, visit: DjangoVisit) -> None:
    """Refund a request whose streamed body fails, and return its slots when it has been sent."""
    # Django calls them when the server closes the response; it has no public way. First: one of the
    # view's may raise. The request must exist until then, for its own `close`.
    response._resource_closers.insert(0, partial(_release, visit, http))  # type: ignore[attr-defined]  # noqa: SLF001
    # The server sends files itself.
    if isinstance(response, StreamingHttpResponse) and not hasattr(response, "file_to_stream"):
        wrap: Any = _async if response.is_async else _sync
        response.streaming_content = wrap(response.streaming_content, visit)


def _release(visit: DjangoVisit, _: HttpRequest) -> None:
    visit.release()


def _sync(body: Iterator[bytes], visit: DjangoVisit) -> Iterator[bytes]:
    try:
        yield from body
    except Exception:
        visit.failed(head=None)
        raise


async def _async(body: AsyncIterator[bytes], visit: DjangoVisit) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except Exception:
        await visit.failed_async(head=None)
        raise
    finally:
        # Under ASGI, the response of a client that has left is not closed.
        visit.release(may_block=False)
