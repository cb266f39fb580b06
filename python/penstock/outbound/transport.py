"""Drivers of a pace, in a thread or in a task, and the transports of httpx."""

from __future__ import annotations

import asyncio
import functools
import inspect
from threading import TIMEOUT_MAX, Event
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, Unpack

from penstock._core import ManualClock
from penstock._validation import check_names
from penstock._wait_queue import delay
from penstock.aio import AsyncLimiter, plain_limiter
from penstock.errors import Error, RateLimited
from penstock.outbound.steps import Pace, PaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from penstock._core import Decision, Limiter, Reservation, SystemClock
    from penstock.types import AnyTransaction


def _wait(clock: SystemClock | ManualClock, until_ns: int) -> None:
    event = Event()
    if not isinstance(clock, ManualClock):
        event.wait(min(delay(clock, until_ns), TIMEOUT_MAX))
        return
    timer = clock.set_timer(until_ns, event.set)
    try:
        # The clock may have advanced before the timer was set.
        if clock.steady_ns() < until_ns:
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
        if clock.steady_ns() < until_ns:
            await future
    finally:
        clock.drop_timer(timer)


class NotSent(RateLimited):
    """Base of the errors of client libraries for a request whose wait would exceed the timeout."""

    def __init__(self, message: str, decision: Decision) -> None:
        # The constructor of the library's own error, which is the next base class.
        super(Error, self).__init__(message)
        self.args = (message, decision)
        self.decision = decision


class Paced:
    """Base of the drivers of a pace: the options, and access to messages.

    The module of each library sets `_error`, its error for a request that was not sent.

    Args:
        limiter: The limiter that decides.
        name: The limit, or several, which are decided together.
        options: See `penstock.outbound.PaceOptions`.

    Raises:
        ConfigError: An argument is invalid.
    """

    _error: ClassVar[type[NotSent]]

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str | Sequence[str],
        **options: Unpack[PaceOptions],
    ) -> None:
        check_names(options, PaceOptions.__optional_keys__, type(self).__name__)
        self.pace: Final = Pace(plain_limiter(limiter), name, self, **options)

    def host_of(self, request: Any) -> str:
        """Return the host of a request."""
        host: str = request.url.host
        return host

    def status_of(self, response: Any) -> int:
        """Return the status of a response."""
        status: int = response.status_code
        return status

    def is_replayable(self, request: Any) -> bool:
        """Return whether the body of a request can be sent again."""
        raise NotImplementedError

    def hold(self, response: Any, reservation: Reservation) -> Any:
        """Return a response that ends a reservation when it has been read or is closed."""
        release = self._release_of(reservation)
        if response.is_closed:
            release()
        else:
            response.stream = self._held_stream(response.stream, release)
        return response

    def _release_of(self, reservation: Reservation) -> Callable[[], object]:
        raise NotImplementedError

    def _held_stream(self, stream: Any, release: Callable[[], object]) -> Any:
        """Return a body of httpx that calls a function when it is closed."""
        raise NotImplementedError

    def _calls(self, limiter: Any, **others: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        """Return the function of each step."""
        name = self.pace.name
        return {
            "acquire": lambda id, cost, timeout: limiter.acquire(name, id, cost, timeout=timeout),
            "check": functools.partial(limiter.check, name),
            "refund": functools.partial(limiter.refund, name),
            **others,
        }

    async def _take(self, request: Any, calls: Mapping[str, Callable[..., Any]]) -> Any:
        """Execute the steps of a request by the functions of each, and await what they return."""
        steps = self.pace.steps(request)
        try:
            verb, *arguments = next(steps)
            while True:
                try:
                    answer = calls[verb](*arguments)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except Exception as error:  # noqa: BLE001  the steps decide about it
                    verb, *arguments = steps.throw(error)
                else:
                    verb, *arguments = steps.send(answer)
        except StopIteration as done:
            return done.value
        except RateLimited as error:
            raise self._error(str(error), error.decision) from None
        finally:
            # If the request is cancelled, what it holds is given back.
            steps.close()


class PacedInThread(Paced):
    """Executes the steps of a pace in a thread."""

    def _release_of(self, reservation: Reservation) -> Callable[[], object]:
        return reservation.release

    def take_steps(self, request: Any, **sends: Callable[..., Any]) -> Any:
        """Execute the steps of a request; `send` sends it, and `read` reads a response."""
        limiter = self.pace.limiter
        calls = self._calls(
            limiter,
            reserve_all=lambda wanted, timeout: limiter.reserve_all(wanted, timeout=timeout),
            check_all=limiter.check_all,
            wait=functools.partial(_wait, limiter.clock),
            **sends,
        )
        try:
            # No call returns something to await, so the coroutine runs to its end.
            self._take(request, calls).send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a step of a thread was awaited")


class PacedInTask(Paced):
    """Executes the steps of a pace in a task, without blocking the event loop."""

    def _release_of(self, reservation: Reservation) -> Callable[[], object]:
        return reservation.release_nowait

    async def take_steps(self, request: Any, **sends: Callable[..., Awaitable[Any]]) -> Any:
        """Execute the steps of a request; `send` sends it, and `read` reads a response."""
        limiter = AsyncLimiter(self.pace.limiter)

        async def reserve_all(wanted: list[AnyTransaction], timeout: float) -> Reservation:  # noqa: ASYNC109  it refuses; nothing is cancelled
            return (await limiter.reserve_all(wanted, timeout=timeout)).reservation

        calls = self._calls(
            limiter,
            reserve_all=reserve_all,
            check_all=limiter.check_all,
            wait=functools.partial(_wait_in_task, limiter.clock),
            **sends,
        )
        return await self._take(request, calls)


class HeldStream:
    """Body of a response of httpx that calls a function when it is closed, as it is after reading.

    Args:
        stream: The body.
        release: The function.
    """

    def __init__(self, stream: Any, release: Callable[[], object]) -> None:
        self._stream: Final = stream
        self._release: Final = release

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    def close(self) -> None:
        """Close the body."""
        try:
            self._stream.close()
        finally:
            self._release()

    async def aclose(self) -> None:
        """Close the body."""
        try:
            await self._stream.aclose()
        finally:
            self._release()


class PacedTransport(PacedInThread):
    """Transport of httpx or httpx2, which is `_library`.

    Args:
        limiter: As in `Paced`; so is `name`.
        transport: The inner transport, entered and closed with this one; by default the library's
            own.
        options: As in `Paced`.
    """

    _library: Any

    def __init__(
        self,
        limiter: Limiter,
        name: str | Sequence[str],
        *,
        transport: Any = None,
        **options: Unpack[PaceOptions],
    ) -> None:
        super().__init__(limiter, name, **options)
        self.transport: Final = self._library.HTTPTransport() if transport is None else transport

    def handle_request(self, request: Any) -> Any:
        """Send a request when its turn has come."""
        return self.take_steps(
            request,
            send=lambda: self.transport.handle_request(request),
            read=lambda response: response.read(),
        )

    def is_replayable(self, request: Any) -> bool:
        """Return whether the body of a request can be sent again."""
        return isinstance(request.stream, self._library.ByteStream)

    def __enter__(self) -> Self:
        self.transport.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.transport.__exit__(*error)

    def close(self) -> None:
        """Close the inner transport."""
        self.transport.close()


class AsyncPacedTransport(PacedInTask):
    """As `PacedTransport`, on asyncio."""

    _library: Any

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        name: str | Sequence[str],
        *,
        transport: Any = None,
        **options: Unpack[PaceOptions],
    ) -> None:
        super().__init__(limiter, name, **options)
        library = self._library
        self.transport: Final = library.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its turn has come; the event loop is not blocked."""
        return await self.take_steps(
            request,
            send=lambda: self.transport.handle_async_request(request),
            read=lambda response: response.aread(),
        )

    def is_replayable(self, request: Any) -> bool:
        """Return whether the body of a request can be sent again."""
        return isinstance(request.stream, self._library.ByteStream)

    async def __aenter__(self) -> Self:
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.__aexit__(*error)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.transport.aclose()
