"""The verbs of a limiter, awaitable.

Over a store in this process they answer at once, on the loop's own thread; only `acquire` ever
waits.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Final

from penstock._core import Limiter, Waiter, _timeout_ns
from penstock.errors import ReservationError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from penstock._core import (
        BoundLimit,
        Decision,
        Decisions,
        Limit,
        Limits,
        ManualClock,
        Reservation,
        SystemClock,
    )
    from penstock.types import AnyTransaction, Counts, DeniedBucket, Factor, Id

__all__ = ["AsyncBoundLimit", "AsyncLimiter", "AsyncReservation"]

_YEAR: Final = 365 * 86_400


class AsyncReservation:
    """Tokens that were taken before the cost was known, to be settled in a coroutine.

    True if they were allowed. `AsyncLimiter.reserve` makes one that is to be awaited, or entered:

        async with limiter.reserve("Tokens", "ada", 600) as reservation:
            await reservation.settle(450)

    A denied one raises `RateLimited` on entry. If the body does not settle it the estimate stands,
    and an exception gives everything back.
    """

    def __init__(self, reserve: Callable[[], Reservation]) -> None:
        self._reserve: Final = reserve
        self._reservation: Reservation | None = None

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        self._take()
        return self

    def _take(self) -> Reservation:
        if self._reservation is None:
            self._reservation = self._reserve()
        return self._reservation

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
        """Tokens that were asked for beforehand."""
        return self.reservation.estimate

    async def settle(self, actual: int) -> Decision:
        """Take `actual` tokens in place of the estimate, as `Reservation.settle` does."""
        return self.reservation.settle(actual)

    async def cancel(self) -> bool:
        """Give everything back; whether there was anything to give back."""
        return self.reservation.cancel()

    def __bool__(self) -> bool:
        return bool(self.reservation)

    async def __aenter__(self) -> Self:
        await self._take().__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.reservation.__aexit__(exc_type, exc, traceback)

    def __repr__(self) -> str:
        if self._reservation is None:
            return "<AsyncReservation, to be awaited>"
        return f"<Async{repr(self._reservation)[1:]}"


class AsyncBoundLimit:
    """One limit of a limiter, with the same verbs less the name.

    Attributes:
        bound: The limit of the limiter.
    """

    def __init__(self, bound: BoundLimit) -> None:
        self.bound: Final = bound

    @property
    def name(self) -> str:
        """The limit's name."""
        return self.bound.name

    async def spend(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Take `cost` tokens from the bucket of `id`, if it has them."""
        return self.bound.spend(id, cost, factor)

    async def check(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Ask whether `cost` tokens could be taken, without taking them."""
        return self.bound.check(id, cost, factor)

    async def refund(self, id: Id, cost: int = 1, factor: Factor | None = None) -> Decision:
        """Give `cost` tokens back to the bucket of `id`."""
        return self.bound.refund(id, cost, factor)

    async def peek(self, id: Id) -> Decision:
        """Return the bucket of `id` as it is now, without taking anything."""
        return self.bound.peek(id)

    async def reset(self, id: Id) -> bool:
        """Forget the bucket of `id`; whether there was one."""
        return self.bound.reset(id)

    async def spend_each(
        self, ids: Iterable[Id], costs: int | Iterable[int] | None = None
    ) -> Decisions:
        """Decide for many ids, each on its own, at one instant."""
        return self.bound.spend_each(ids, costs)

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
        return await _acquire(self.bound, id, cost, _timeout_ns(timeout))

    def __repr__(self) -> str:
        return f"<Async{repr(self.bound)[1:]}"


class AsyncLimiter:
    """The verbs of a `Limiter`, awaitable.

    It is made as a `Limiter` is, or around one, whose buckets it then shares.

    Args:
        limits: The limits, or the limiter that decides.
        store: The address of the store; only without a limiter.
        clock: The clock that decides; only without a limiter.

    Attributes:
        limiter: The limiter that decides.

    Raises:
        TypeError: A store or a clock beside a limiter, which has them.

    Example:
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
        """The limits in force, those of `define` included."""
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

    async def spend(
        self, name: str, id: Id, cost: int = 1, factor: Factor | None = None
    ) -> Decision:
        """Take `cost` tokens from the bucket of `id` under the limit `name`, if it has them."""
        return self.limiter.spend(name, id, cost, factor)

    async def check(
        self, name: str, id: Id, cost: int = 1, factor: Factor | None = None
    ) -> Decision:
        """Ask whether `cost` tokens could be taken, without taking them."""
        return self.limiter.check(name, id, cost, factor)

    async def refund(
        self, name: str, id: Id, cost: int = 1, factor: Factor | None = None
    ) -> Decision:
        """Give `cost` tokens back to the bucket of `id` under the limit `name`."""
        return self.limiter.refund(name, id, cost, factor)

    async def peek(self, name: str, id: Id) -> Decision:
        """Return the bucket of `id` under `name` as it is now, without taking anything."""
        return self.limiter.peek(name, id)

    async def reset_all(self, buckets: Iterable[tuple[str, Id]]) -> int:
        """Clear several buckets, and return how many of them existed."""
        return self.limiter.reset_all(buckets)

    async def reset(self, name: str, id: Id) -> bool:
        """Forget the bucket of `id` under the limit `name`; whether there was one."""
        return self.limiter.reset(name, id)

    async def spend_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Take from several buckets, all or nothing, as one decision."""
        return self.limiter.spend_all(transactions)

    async def check_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Ask whether `spend_all` would be allowed, without taking anything."""
        return self.limiter.check_all(transactions)

    async def refund_all(self, transactions: Iterable[AnyTransaction]) -> Decision:
        """Give back to several buckets, each on its own."""
        return self.limiter.refund_all(transactions)

    async def spend_each(
        self, name: str, ids: Iterable[Id], costs: int | Iterable[int] | None = None
    ) -> Decisions:
        """Decide for many ids under the limit `name`, each on its own, at one instant."""
        return self.limiter.spend_each(name, ids, costs)

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

        Who came first is served first, threads in `Limiter.acquire` included. If the task is
        cancelled its place is given back, and those behind it move up. On a `ManualClock` it waits
        until the clock is moved.

        Args:
            name: A limit from the loaded limits.
            id: Who is asking.
            cost: Tokens, 0 to what the limit can ever allow.
            timeout: The longest wait that will do, in seconds or as a `timedelta`; 0 never waits,
                `None` waits as long as it takes.

        Raises:
            RateLimited: The wait would be longer than the timeout; its decision's `retry_after`
                is the wait.
            ValueError: `timeout` is negative or no number.
        """
        return await _acquire(self.limiter.limit(name), id, cost, _timeout_ns(timeout))

    def limit(self, name: str) -> AsyncBoundLimit:
        """Give one limit with the same verbs less the name.

        Raises:
            UnknownLimit: No limit has this name.
        """
        return AsyncBoundLimit(self.limiter.limit(name))

    def define(self, name: str, limit: Limit | str) -> AsyncBoundLimit:
        """Add a limit beside the loaded ones; it survives `reload`.

        Raises:
            ConfigError: The name is taken, or can be no name.
            LimitError: The text says no limit.
        """
        return AsyncBoundLimit(self.limiter.define(name, limit))

    async def reload(self, limits: Limits | Mapping[str, Limit | str]) -> None:
        """Replace the limits in one step; buckets stay.

        Raises:
            ConfigError: The limits cannot be used; those in force are left alone.
        """
        self.limiter.reload(limits)

    async def stats(self) -> dict[str, Any]:
        """Give the store's figures: buckets, slots, bytes, what was forgotten and evicted."""
        return self.limiter.stats()

    async def counts(self) -> dict[str, Counts]:
        """Give what was decided under each limit since the limiter was made."""
        return self.limiter.counts()

    async def top_denied(self, name: str | None = None, n: int = 10) -> list[DeniedBucket]:
        """Give the buckets that are denied most, most denied first.

        Raises:
            UnknownLimit: No limit has this name.
            ValueError: `n` is below 0.
        """
        return self.limiter.top_denied(name, n)

    async def close(self) -> None:
        """Let go of the store; later calls raise `StoreError`."""
        self.limiter.close()

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
        self.limiter.close()

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
        # Always a timer: through it the event loop keeps the task alive, which nobody else may do.
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
