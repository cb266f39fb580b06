"""Transports that take the steps of a pace, in a thread or in a task."""

from __future__ import annotations

import asyncio
import functools
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


def _wait(clock: SystemClock | ManualClock, until_ns: int) -> None:
    event = Event()
    if not isinstance(clock, ManualClock):
        event.wait(min(delay(clock, until_ns), TIMEOUT_MAX))
        return
    timer = clock.set_timer(until_ns, event.set)
    try:
        # A clock that was moved before the timer was set does not call it.
        if clock.now_ns() < until_ns:
            event.wait()
    finally:
        clock.drop_timer(timer)


async def _wait_in_task(clock: SystemClock | ManualClock, until_ns: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    if not isinstance(clock, ManualClock):
        handle = loop.call_later(delay(clock, until_ns), wake)
        try:
            await future
        finally:
            handle.cancel()
        return
    timer = clock.set_timer(until_ns, lambda: loop.call_soon_threadsafe(wake))
    try:
        if clock.now_ns() < until_ns:
            await future
    finally:
        clock.drop_timer(timer)


class _Transport:
    """Base of both kinds of transports.

    `_library` is the client library, and `_error` its error for a request that was not sent; the
    module of each library sets them.
    """

    _library: Any
    _error: ClassVar[type[Any]]
    _inner_type: ClassVar[str]
    _limiter_types: ClassVar[tuple[type, ...]] = (Limiter,)

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
        if not isinstance(limiter, self._limiter_types):
            raise ConfigError(f"limiter must be a penstock.Limiter, found {limiter!r}")
        self.pace: Final = Pace(
            limiter.limiter if isinstance(limiter, AsyncLimiter) else limiter,
            name,
            id=id,
            cost=cost,
            timeout=timeout,
            retries=retries,
            on_store_error=on_store_error,
            replayable=self._replayable,
        )
        self.transport: Final[Any] = (
            getattr(self._library, self._inner_type)() if transport is None else transport
        )

    def _replayable(self, request: Any) -> bool:
        return isinstance(request.stream, self._library.ByteStream)

    def _calls(self, limiter: Any, **others: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        """Return what each step calls."""
        name = self.pace.name
        return {
            verb: functools.partial(getattr(limiter, verb), name)
            for verb in ("acquire", "check", "refund")
        } | others


class PacedTransport(_Transport):
    """Take the steps of a pace in a thread."""

    _inner_type = "HTTPTransport"

    def handle_request(self, request: Any) -> Any:
        """Send a request when its turn has come."""
        return self.take_steps(
            request,
            send=lambda: self.transport.handle_request(request),
            read=lambda response: response.read(),
        )

    def take_steps(self, request: Any, **sends: Callable[..., Any]) -> Any:
        """Take the steps of a request; `send` sends it, and `read` reads a response."""
        calls = self._calls(
            self.pace.limiter,
            wait=functools.partial(_wait, self.pace.limiter.clock),
            **sends,
        )
        steps = self.pace.steps(request)
        try:
            verb, *given = next(steps)
            while True:
                try:
                    answer = calls[verb](*given)
                except Exception as error:  # noqa: BLE001  the steps decide about it
                    verb, *given = steps.throw(error)
                else:
                    verb, *given = steps.send(answer)
        except StopIteration as done:
            return done.value
        except RateLimited as error:
            raise self._error(str(error), error.decision) from None

    def close(self) -> None:
        """Close the inner transport."""
        self.transport.close()


class AsyncPacedTransport(_Transport):
    """Take the steps of a pace in a task."""

    _inner_type = "AsyncHTTPTransport"
    _limiter_types = (Limiter, AsyncLimiter)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its turn has come; the event loop is not blocked."""
        calls = self._calls(
            AsyncLimiter(self.pace.limiter),
            wait=functools.partial(_wait_in_task, self.pace.limiter.clock),
            send=lambda: self.transport.handle_async_request(request),
            read=lambda response: response.aread(),
        )
        steps = self.pace.steps(request)
        try:
            verb, *given = next(steps)
            while True:
                try:
                    answer = await calls[verb](*given)
                except Exception as error:  # noqa: BLE001  the steps decide about it
                    verb, *given = steps.throw(error)
                else:
                    verb, *given = steps.send(answer)
        except StopIteration as done:
            return done.value
        except RateLimited as error:
            raise self._error(str(error), error.decision) from None

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.transport.aclose()
