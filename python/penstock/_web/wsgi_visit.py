"""Visits of WSGI requests: how a response starts, and how its body ends."""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from penstock._web.lifecycle import Visit
from penstock._web.request import EnvironRequest, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from penstock._core import Limiter

    ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
    Start = Callable[..., Callable[[bytes], object]]
    Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

MIDDLEWARE_KEY: Final = "penstock.middleware"
"""The key of an environ under which the visit of the innermost middleware is stored."""
VISIT_KEY: Final = "penstock.visit"
"""The key of an environ under which the visit is stored whose fields the response gets."""


class WsgiVisit(Visit):
    """A visit whose `native` is an environ, and whose response starts as in PEP 3333.

    Attributes:
        start_response: The server's.
        has_started: Whether the response has started.
        outer: The visit of a middleware further outside; `None` for none. Only middlewares have it.
    """

    __slots__ = ("has_started", "outer", "start_response")

    # Set by adapters: a method of this class would be one call more for each request.
    start_response: Start
    has_started: bool
    outer: WsgiVisit | None

    def read(self) -> EnvironRequest:
        """Return the request."""
        return EnvironRequest(self.native)

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Start the response; an application may do so again to report an error."""
        self.has_started = True
        start_response, limits = self.start_response, self.limits
        if self.entered is None and limits is not None:
            # As `add_to`, with one call less.
            fields_of = limits.fields
            headers = fields_of(self.decision, headers)
        else:
            if self.is_open:
                self.respond(Response(int(status[:3]), headers))
            headers = self.add_to(headers, status)
        if exc_info is None:
            return start_response(status, headers)
        return start_response(status, headers, exc_info)

    def leave(self) -> None:
        """Remove the visit of a middleware from its environ, with which it is a cycle."""
        if self.native.get(MIDDLEWARE_KEY) is self:
            self.native[MIDDLEWARE_KEY] = self.outer

    def under(self, limiter: Limiter) -> WsgiVisit | None:
        """Return the visit under a limiter, this or an outer one; `None` if there is none."""
        visit: WsgiVisit | None = self
        while visit is not None and (visit.limits is None or visit.limits.limiter is not limiter):
            visit = visit.outer
        return visit

    def take_over(self, limiter: Limiter) -> None:
        """Continue the visit of a middleware with the same limiter, if there is one.

        An adapter calls it before it decides its first limits. A bucket that the middleware has
        charged is not charged again, and the middleware writes no fields.
        """
        innermost: WsgiVisit | None = self.native.get(MIDDLEWARE_KEY)
        outer = None if innermost is None else innermost.under(limiter)
        if outer is not None and (earlier := outer.outcome) is not None:
            self.slots, outer.slots = outer.slots, ()
            outer.limits = outer.entered = None
            self.keep(earlier)

    def stopped(self, error: BaseException) -> None:
        """End a request whose application raised; only what failed is refunded."""
        if isinstance(error, Exception):
            self.failed()
        else:
            # Such as a timeout of gevent, or the end of the worker.
            self.finished()

    def watch_response(self, body: Iterable[Any]) -> Iterable[Any]:
        """Return a body that calls `failed` if it breaks, and `finished` at its end."""
        wrapper = self.native.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            # The server sends the file itself, if it gets its own object.
            with suppress(AttributeError):
                body.close = _Body(body, self).close  # type: ignore[attr-defined]
                return body
        return _Body(body, self)


class _Body:
    """A WSGI body that tells a visit how it ends."""

    def __init__(self, body: Iterable[Any], visit: WsgiVisit) -> None:
        self._body: Final = body
        self._close: Final = getattr(body, "close", None)
        self._visit: Final = visit

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the parts of the body."""
        visit = self._visit
        has_limits_to_come = visit.native.get(MIDDLEWARE_KEY) is visit
        is_watched = visit.entered is not None and visit.is_refundable
        return self._parts() if is_watched or has_limits_to_come else iter(self._body)

    def _parts(self) -> Iterator[Any]:
        try:
            yield from self._body
        except Exception:
            self._visit.failed()
            raise

    def close(self) -> None:
        """Close the body."""
        try:
            if self._close is not None:
                self._close()
        finally:
            self._visit.leave()
            self._visit.finished()


def limit_responses(serve: Application) -> Application:
    """Wrap the WSGI application of a framework whose views are limited further inside.

    The adapter stores the visit of a request under `VISIT_KEY` once it has decided a limit. The
    framework has to start its response before it returns the body.
    """

    @wraps(serve)
    def limited_wsgi_app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        # A view may call another limited application with its own environ.
        is_nested, outer = VISIT_KEY in environ, environ.get(VISIT_KEY)
        environ[VISIT_KEY] = None

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            visit: WsgiVisit | None = environ[VISIT_KEY]
            if visit is not None:
                visit.start_response = start_response
                return visit.start(status, headers, exc_info)
            if exc_info is None:
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        try:
            body = serve(environ, start)
        except BaseException as error:
            visit: WsgiVisit | None = environ[VISIT_KEY]
            if visit is not None:
                visit.stopped(error)
            raise
        else:
            visit = environ[VISIT_KEY]
            # Most have neither, so this needs no call.
            if visit is None or not (visit.slots or visit.entered is not None):
                return body
            return visit.watch_response(body) if visit.needs_end else body
        finally:
            # A visit refers to its environ: a cycle waits for the garbage collector.
            del environ[VISIT_KEY]
            if is_nested:
                environ[VISIT_KEY] = outer

    return limited_wsgi_app
