"""Who takes the steps of a course: a thread, or a task."""

from __future__ import annotations

import asyncio
from threading import TIMEOUT_MAX, Event
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock._core import Limiter, ManualClock
from penstock.aio import AsyncLimiter
from penstock.errors import ConfigError, RateLimited
from penstock.outbound.steps import Pace
from penstock.wait_queue import delay

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable

    from penstock._core import SystemClock
    from penstock.outbound.steps import IdSource, StoreFailure

__all__ = ["AsyncPacedTransport", "PacedTransport"]


def _limiter(given: object, *others: type) -> Any:
    if not isinstance(given, (Limiter, *others)):
        raise ConfigError(f"limiter must be a penstock.Limiter, found {given!r}")
    return given


def _wait(clock: SystemClock | ManualClock, until_ns: int) -> None:
    event = Event()
    if not isinstance(clock, ManualClock):
        event.wait(min(delay(clock, until_ns), TIMEOUT_MAX))
        return
    timer = clock.set_timer(until_ns, event.set)
    try:
        # Moved before the timer was set, the clock does not ring it.
        if clock.now_ns() < until_ns:
            event.wait()
    finally:
        clock.drop_timer(timer)


async def _wait_in_task(clock: SystemClock | ManualClock, until_ns: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def ring() -> None:
        if not future.done():
            future.set_result(None)

    if not isinstance(clock, ManualClock):
        handle = loop.call_later(delay(clock, until_ns), ring)
        try:
            await future
        finally:
            handle.cancel()
        return
    timer = clock.set_timer(until_ns, lambda: loop.call_soon_threadsafe(ring))
    try:
        if clock.now_ns() < until_ns:
            await future
    finally:
        clock.drop_timer(timer)


class _Transport:
    """What the two kinds of transports share."""

    # Set by the module of each client library.
    _byte_stream: ClassVar[type]
    _error: ClassVar[type[Any]]

    def _replayable(self, request: Any) -> bool:
        return isinstance(request.stream, self._byte_stream)


class PacedTransport(_Transport):
    """Take the steps of a pace in a thread."""

    _inner_type: ClassVar[type[Any]]

    def __init__(
        self,
        limiter: Limiter,
        name: str,
        *,
        id: IdSource = None,
        cost: int | Callable[[Any], int] = 1,
        timeout: str | float | datetime.timedelta | None = 30,
        retries: int = 0,
        on_store_error: StoreFailure = "allow",
        transport: Any = None,
    ) -> None:
        self.pace: Final = Pace(
            _limiter(limiter),
            name,
            id=id,
            cost=cost,
            timeout=timeout,
            retries=retries,
            on_store_error=on_store_error,
            replayable=self._replayable,
        )
        self.transport: Final = self._inner_type() if transport is None else transport

    def handle_request(self, request: Any) -> Any:
        """Send a request when its turn has come."""
        limiter, name = self.pace.limiter, self.pace.name
        verbs: dict[str, Callable[..., Any]] = {
            "acquire": lambda id, cost, timeout: limiter.acquire(name, id, cost, timeout),
            "check": lambda id, cost: limiter.check(name, id, cost),
            "refund": lambda id, cost: limiter.refund(name, id, cost),
            "wait": lambda until_ns: _wait(limiter.clock, until_ns),
            "send": lambda: self.transport.handle_request(request),
            "read": lambda response: response.read(),
        }
        course = self.pace.course(request)
        try:
            verb, *given = next(course)
            while True:
                try:
                    answer = verbs[verb](*given)
                except Exception as error:  # noqa: BLE001  the course decides about it
                    verb, *given = course.throw(error)
                else:
                    verb, *given = course.send(answer)
        except StopIteration as done:
            return done.value
        except RateLimited as error:
            raise self._error(str(error), error.decision) from None

    def close(self) -> None:
        """Close the transport within."""
        self.transport.close()


class AsyncPacedTransport(_Transport):
    """Take the steps of a pace in a task."""

    _inner_type: ClassVar[type[Any]]

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str,
        *,
        id: IdSource = None,
        cost: int | Callable[[Any], int] = 1,
        timeout: str | float | datetime.timedelta | None = 30,
        retries: int = 0,
        on_store_error: StoreFailure = "allow",
        transport: Any = None,
    ) -> None:
        given = _limiter(limiter, AsyncLimiter)
        self._limiter: Final = given if isinstance(given, AsyncLimiter) else AsyncLimiter(given)
        self.pace: Final = Pace(
            self._limiter.limiter,
            name,
            id=id,
            cost=cost,
            timeout=timeout,
            retries=retries,
            on_store_error=on_store_error,
            replayable=self._replayable,
        )
        self.transport: Final = self._inner_type() if transport is None else transport

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its turn has come; the event loop goes on meanwhile."""
        limiter, name = self._limiter, self.pace.name
        verbs: dict[str, Callable[..., Any]] = {
            "acquire": lambda id, cost, timeout: limiter.acquire(name, id, cost, timeout),
            "check": lambda id, cost: limiter.check(name, id, cost),
            "refund": lambda id, cost: limiter.refund(name, id, cost),
            "wait": lambda until_ns: _wait_in_task(limiter.clock, until_ns),
            "send": lambda: self.transport.handle_async_request(request),
            "read": lambda response: response.aread(),
        }
        course = self.pace.course(request)
        try:
            verb, *given = next(course)
            while True:
                try:
                    answer = await verbs[verb](*given)
                except Exception as error:  # noqa: BLE001  the course decides about it
                    verb, *given = course.throw(error)
                else:
                    verb, *given = course.send(answer)
        except StopIteration as done:
            return done.value
        except RateLimited as error:
            raise self._error(str(error), error.decision) from None

    async def aclose(self) -> None:
        """Close the transport within."""
        await self.transport.aclose()
