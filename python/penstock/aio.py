"""The limiter for asyncio: the methods of `Limiter` as coroutines.

Over a store in this process they answer without suspending; only `acquire` ever waits.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from penstock._core import BoundLimit, Limiter, Waiter, timeout_ns
from penstock.errors import ReservationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from penstock._core import Decision, Limit, Limits, ManualClock, Reservation, SystemClock
    from penstock.types import Factor, Id


_YEAR: Final = 365 * 86_400

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def _ask(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Ask the store. A store that may wait has only this call to suspend in."""
    return call(*args, **kwargs)


def _of_limiter(
    method: Callable[Concatenate[Limiter, _P], _T],
) -> Callable[Concatenate[AsyncLimiter, _P], Coroutine[Any, Any, _T]]:
    """Return a method of `Limiter` as a coroutine, with its parameters and docstring."""

    async def call(self: AsyncLimiter, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await _ask(method, self.limiter, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


def _of_bound(
    method: Callable[Concatenate[BoundLimit, _P], _T],
) -> Callable[Concatenate[AsyncBoundLimit, _P], Coroutine[Any, Any, _T]]:
    """Return a method of `BoundLimit` as a coroutine, with its parameters and docstring."""

    async def call(self: AsyncBoundLimit, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await _ask(method, self.bound, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class AsyncReservation:
    """Tokens taken before their cost is known, to be settled in a coroutine.

    True if they were allowed. `AsyncLimiter.reserve` returns one, to be awaited or entered:

        async with limiter.reserve("Tokens", "ada", 600) as reservation:
            await reservation.settle(450)

    A denied reservation raises `RateLimited` on entry. It is settled at the estimate if the body
    does not settle it, and cancelled if the body raises.
    """

    def __init__(self, reserve: Callable[[], Reservation]) -> None:
        self._reserve: Final = reserve
        self._reservation: Reservation | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._take().__await__()

    async def _take(self) -> Self:
        if self._reservation is None:
            self._reservation = await _ask(self._reserve)
        return self

    @property
    def reservation(self) -> Reservation:
        """The reservation of the limiter.

        Raises:
            ReservationError: It was not awaited yet, nor entered.
        """
        if self._reservation is None:
            raise ReservationError("nothing is reserved yet: await the reservation, or enter it")
        return self._reservation

    @property
    def decision(self) -> Decision:
        """The decision about the estimate."""
        return self.reservation.decision

    @property
    def estimate(self) -> int:
        """Tokens that were reserved."""
        return self.reservation.estimate

    async def settle(self, actual: int) -> Decision:
        """Take `actual` tokens in place of the estimate, as `Reservation.settle` does."""
        return await _ask(self.reservation.settle, actual)

    async def cancel(self) -> bool:
        """Return everything; whether there was anything to return."""
        return await _ask(self.reservation.cancel)

    def __bool__(self) -> bool:
        return bool(self.reservation)

    async def __aenter__(self) -> Self:
        await self._take()
        self.reservation.__enter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await _ask(self.reservation.__exit__, exc_type, exc, traceback)

    def __repr__(self) -> str:
        if self._reservation is None:
            return "<AsyncReservation, to be awaited>"
        return f"<Async{repr(self._reservation)[1:]}"


class AsyncBoundLimit:
    """One limit of a limiter, with the methods of `BoundLimit` as coroutines.

    Attributes:
        bound: The limit of the limiter.
    """

    def __init__(self, bound: BoundLimit) -> None:
        self.bound: Final = bound

    @property
    def name(self) -> str:
        """The limit's name."""
        return self.bound.name

    spend = _of_bound(BoundLimit.spend)
    check = _of_bound(BoundLimit.check)
    refund = _of_bound(BoundLimit.refund)
    peek = _of_bound(BoundLimit.peek)
    reset = _of_bound(BoundLimit.reset)
    spend_each = _of_bound(BoundLimit.spend_each)

    def reserve(
        self, id: Id, estimate: int = 1, *, factor: Factor | None = None
    ) -> AsyncReservation:
        """Take `estimate` tokens before the cost is known; to be awaited, or entered."""
        return AsyncReservation(lambda: self.bound.reserve(id, estimate, factor=factor))

    async def acquire(
        self,
        id: Id,
        cost: int = 1,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  it refuses, it cuts nothing off
    ) -> Decision:
        """Wait until the bucket of `id` has `cost` tokens, and take them.

        As `AsyncLimiter.acquire`, without the name.
        """
        return await _acquire(self.bound, id, cost, timeout_ns(timeout))

    def __repr__(self) -> str:
        return f"<Async{repr(self.bound)[1:]}"


class AsyncLimiter:
    """The methods of a `Limiter` as coroutines.

    Args:
        limits: The limits; or a limiter, whose buckets and wait queues are then shared.
        store: The address of the store; only without a limiter.
        clock: The clock that decides; only without a limiter.

    Attributes:
        limiter: The limiter that decides.

    Raises:
        TypeError: A store or a clock is given together with a limiter, which has its own.

    Examples:
        >>> import asyncio
        >>> limiter = penstock.AsyncLimiter({"Orders": "2/minute"})
        >>> async def order() -> bool:
        ...     return (await limiter.spend("Orders", "ada")).allowed
        >>> asyncio.run(order())
        True
    """

    def __init__(
        self,
        limits: Limits | Mapping[str, Limit | str] | Limiter,
        store: str | None = None,
        clock: SystemClock | ManualClock | None = None,
    ) -> None:
        self.limiter: Limiter
        if isinstance(limits, Limiter):
            if store is not None or clock is not None:
                raise TypeError("store and clock are the limiter's own: give limits in its place")
            self.limiter = limits
        else:
            self.limiter = Limiter(limits, "memory://" if store is None else store, clock)

    @property
    def limits(self) -> Limits:
        """The active limits, those of `define` included."""
        return self.limiter.limits

    @property
    def clock(self) -> SystemClock | ManualClock:
        """The clock that decides."""
        return self.limiter.clock

    @property
    def store(self) -> str:
        """The address of the store."""
        return self.limiter.store

    @property
    def is_shared(self) -> bool:
        """Whether other processes count in the same buckets."""
        return self.limiter.is_shared

    spend = _of_limiter(Limiter.spend)
    check = _of_limiter(Limiter.check)
    refund = _of_limiter(Limiter.refund)
    peek = _of_limiter(Limiter.peek)
    reset = _of_limiter(Limiter.reset)
    reset_all = _of_limiter(Limiter.reset_all)
    spend_all = _of_limiter(Limiter.spend_all)
    check_all = _of_limiter(Limiter.check_all)
    refund_all = _of_limiter(Limiter.refund_all)
    spend_each = _of_limiter(Limiter.spend_each)
    reload = _of_limiter(Limiter.reload)
    stats = _of_limiter(Limiter.stats)
    counts = _of_limiter(Limiter.counts)
    top_denied = _of_limiter(Limiter.top_denied)
    close = _of_limiter(Limiter.close)

    def reserve(
        self, name: str, id: Id, estimate: int = 1, *, factor: Factor | None = None
    ) -> AsyncReservation:
        """Take `estimate` tokens before the cost is known; to be awaited, or entered.

        It raises as `Limiter.reserve` does, when it is awaited.
        """
        return AsyncReservation(lambda: self.limiter.reserve(name, id, estimate, factor=factor))

    async def acquire(
        self,
        name: str,
        id: Id,
        cost: int = 1,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  it refuses, it cuts nothing off
    ) -> Decision:
        """Wait until the bucket of `id` under `name` has `cost` tokens, and take them.

        Waiters are served in order of arrival, threads in `Limiter.acquire` included. A cancelled
        task returns its tokens, and the waiters behind it move up. On a `ManualClock` it waits
        until the clock is advanced.

        Args:
            name: Name of a loaded limit.
            id: The client.
            cost: Tokens, from 0 to what the limit can ever allow.
            timeout: The longest acceptable wait, in seconds or as a `timedelta`; 0 never waits,
                `None` waits as long as necessary.

        Raises:
            RateLimited: The wait would be longer than the timeout; its decision's `retry_after`
                is the wait.
            ValueError: `timeout` is negative or not a number.
        """
        return await _acquire(self.limiter.limit(name), id, cost, timeout_ns(timeout))

    def limit(self, name: str) -> AsyncBoundLimit:
        """Return one limit with the same methods less the name.

        Raises:
            UnknownLimit: No limit has this name.
        """
        return AsyncBoundLimit(self.limiter.limit(name))

    def define(self, name: str, limit: Limit | str) -> AsyncBoundLimit:
        """Add a limit beside the loaded ones; it survives `reload`.

        Raises:
            ConfigError: The name is taken or invalid.
            LimitError: The text is not a limit.
        """
        return AsyncBoundLimit(self.limiter.define(name, limit))

    def __len__(self) -> int:
        return len(self.limiter)

    def __bool__(self) -> bool:
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self.limiter)[1:]}"


class _Wakeup:
    """Wakes one coroutine."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._is_notified = False

    def notify(self) -> None:
        """Wake the coroutine, from any thread."""
        self._is_notified = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Wait until notified, or for `seconds`."""
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        # Always a timer: through it the event loop keeps the task alive, which nothing else may do.
        handle = self._loop.call_later(_YEAR if seconds is None else seconds, self._wake)
        try:
            if not self._is_notified:
                await self._future
        finally:
            handle.cancel()
        self._is_notified = False


async def _acquire(bound: BoundLimit, id: Id, cost: int, timeout_ns: int | None) -> Decision:
    wakeup = _Wakeup()
    # The queue must not keep an abandoned task alive.
    notify = weakref.WeakMethod(wakeup.notify)
    waiter = Waiter(bound, id, cost, timeout_ns, lambda: (wake := notify()) and wake())
    try:
        while (decision := waiter.step()) is None:
            await wakeup.wait(waiter.delay())
    finally:
        waiter.leave()
    return decision
