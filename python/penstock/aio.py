"""The limiter for asyncio: the methods of `Limiter` as coroutines.

Over a store on this machine they answer without suspending; only `acquire`, `acquire_all` and
reservations with a timeout ever wait. Over a server they suspend until its reply has arrived. A
call over a shared table that would wait for another process is made in a thread. No call blocks
the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    overload,
)

from penstock import _task_queue as task_queue
from penstock._core import (
    IPV6_PREFIX,
    BoundLimit,
    Decision,
    Limiter,
    Reservation,
    reserve_timeout_ns,
    timeout_ns,
)
from penstock._hints import attach_hints
from penstock._replies import replies_of
from penstock.errors import ConfigError, ReservationError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import TracebackType
    from typing import Never, NoReturn, Self

    from penstock._core import Limit, Limits, ManualClock, SystemClock
    from penstock.types import AnyLimits, AnyTransaction, Factor, Id, Period


_P = ParamSpec("_P")
_T = TypeVar("_T")


async def _in_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Make a call that may wait, in a thread."""
    call_now = functools.partial(call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(None, call_now)


async def _to_the_end(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Make a call that may wait, in a thread, also if its caller is cancelled before it begins."""
    call_now = functools.partial(call, *args, **kwargs)
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call_now))


async def _here(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Make a call that never waits."""
    return call(*args, **kwargs)


_Verb: TypeAlias = Literal["spend", "check", "refund", "charge"]
_Answer: TypeAlias = "Decision | asyncio.Future[Decision]"
_Reserving: TypeAlias = "Reservation | asyncio.Future[Reservation]"
_Plain = TypeVar("_Plain", Limiter, BoundLimit)


@overload
def ask(
    verb: Literal["reserve"],
    bound: BoundLimit,
    id: Id,
    cost: int = 1,
    factor: Factor | None = None,
    *,
    keep: int = 0,
) -> _Reserving: ...


@overload
def ask(
    verb: _Verb,
    bound: BoundLimit,
    id: Id,
    cost: int = 1,
    factor: Factor | None = None,
    *,
    keep: int = 0,
) -> _Answer: ...


# Not `async def`: the garbage collector counts the objects of all callers that wait at the same
# time, so a caller awaits the future itself.
def ask(
    verb: Any,
    bound: BoundLimit,
    id: Id,
    cost: int = 1,
    factor: Factor | None = None,
    *,
    keep: int = 0,
) -> Any:
    """Make a call about one bucket; return its answer, or a future of the running loop."""
    loop = asyncio.get_running_loop()
    answer = replies_of(loop).call(loop, verb, bound, id, cost, factor, keep)
    if answer is None:
        # A refund has no such argument.
        kept = {"keep": keep} if keep else {}
        call = functools.partial(getattr(bound, verb), id, cost, factor=factor, **kept)
        return loop.run_in_executor(None, call)
    return answer


@overload
def ask_all(
    verb: Literal["reserve"], limiter: Limiter, transactions: Sequence[AnyTransaction]
) -> _Reserving: ...


@overload
def ask_all(verb: _Verb, limiter: Limiter, transactions: Sequence[AnyTransaction]) -> _Answer: ...


def ask_all(verb: Any, limiter: Limiter, transactions: Sequence[AnyTransaction]) -> Any:
    """Make a call about several buckets, as `ask` does."""
    loop = asyncio.get_running_loop()
    answer = replies_of(loop).call_all(loop, verb, limiter, transactions)
    if answer is None:
        return loop.run_in_executor(None, getattr(limiter, f"{verb}_all"), transactions)
    return answer


class _Call(Coroutine[Any, Any, _T]):
    """Call of a method, which is made when it is awaited.

    In place of a coroutine, whose truth value is `True`: `if limiter.spend(...)` without `await`
    would let everyone pass.
    """

    __slots__ = ("_arguments", "_keywords", "_running", "_steps")

    def __init__(
        self,
        steps: Callable[..., Generator[Any, Any, _T]],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self._steps: Callable[..., Generator[Any, Any, _T]] | None = steps
        self._arguments = arguments
        self._keywords = keywords
        self._running: Generator[Any, Any, _T] | None = None

    def __await__(self) -> Generator[Any, Any, _T]:
        steps = self._steps
        if steps is None:
            raise RuntimeError("the call was already awaited")
        self._steps = None
        return steps(*self._arguments, **self._keywords)

    def __bool__(self) -> NoReturn:
        name = self._name()
        self.close()
        raise TypeError(f"{name}() is not awaited; write `await` before the call")

    def __del__(self) -> None:
        if self._steps is not None:
            warnings.warn(f"{self._name()}() was never awaited", RuntimeWarning, 2, self)

    def _name(self) -> str:
        return "the call" if self._steps is None else self._steps.__name__

    def send(self, value: Any, /) -> Any:
        """Continue the call, as a task does."""
        if self._running is None:
            self._running = self.__await__()
        return self._running.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the call waits."""
        if self._running is None:
            self._running = self.__await__()
        return self._running.throw(*error)

    def close(self) -> None:
        """Cancel the call, without a warning if it was not awaited."""
        self._steps = None
        if self._running is not None:
            self._running.close()


def _awaitable(
    steps: Callable[_P, Generator[Any, Any, _T]], method: Callable[..., object]
) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Return a function whose calls take `steps` when they are awaited, documented as `method`."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _T]:
        return _Call(steps, args, kwargs)

    functools.update_wrapper(steps, method)
    functools.update_wrapper(call, method)
    return call


def _awaited(
    function: Callable[_P, Coroutine[Any, Any, _T]],
) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Return a coroutine function whose calls have no truth value."""

    def steps(*args: _P.args, **kwargs: _P.kwargs) -> Generator[Any, Any, _T]:
        return function(*args, **kwargs).__await__()

    return _awaitable(steps, function)


class _Verbs(Generic[_Plain]):
    """Base of the classes whose methods are those of `Limiter` or `BoundLimit` as coroutines."""

    def __init__(self, plain: _Plain) -> None:
        self._plain: Final[_Plain] = plain
        self._may_wait: Final = plain.may_wait

    @property
    def is_remote(self) -> bool:
        """Whether a server decides, so that a call waits for its reply."""
        return self._plain.is_remote

    @property
    def may_wait(self) -> bool:
        """Whether a call may wait, for a server or for another process; the loop runs meanwhile."""
        return self._may_wait

    def _ask(self, verb: _Verb, *args: Any, **kwargs: Any) -> _Answer:
        raise NotImplementedError

    def __reduce__(self) -> Never:
        raise TypeError(
            f"an {type(self).__name__} cannot be pickled or copied; pickle the limiter's `limits`, "
            f"and make an AsyncLimiter from them in the other process"
        )

    def __repr__(self) -> str:
        return f"<Async{repr(self._plain)[1:]}"


def _decision(
    method: Callable[Concatenate[_Plain, _P], Decision], verb: _Verb
) -> Callable[Concatenate[_Verbs[_Plain], _P], Coroutine[Any, Any, Decision]]:
    """Return a method about one bucket, to be awaited."""

    def steps(
        self: _Verbs[_Plain], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Generator[Any, Any, Decision]:
        if not self._may_wait:
            return method(self._plain, *args, **kwargs)
        answer = self._ask(verb, *args, **kwargs)
        return answer if isinstance(answer, Decision) else (yield from answer)

    return _awaitable(steps, method)


def _decision_on_several(
    method: Callable[[Limiter, Iterable[AnyTransaction]], Decision], verb: _Verb
) -> Callable[[AsyncLimiter, Iterable[AnyTransaction]], Coroutine[Any, Any, Decision]]:
    """Return a method about several buckets, to be awaited."""

    def steps(
        self: AsyncLimiter, transactions: Iterable[AnyTransaction]
    ) -> Generator[Any, Any, Decision]:
        if not self._may_wait:
            return method(self.limiter, transactions)
        # They may be iterated twice.
        answer = ask_all(verb, self.limiter, [*transactions])
        return answer if isinstance(answer, Decision) else (yield from answer)

    return _awaitable(steps, method)


def _coroutine(
    method: Callable[Concatenate[_Plain, _P], _T], *, asks_store: bool = True
) -> Callable[Concatenate[_Verbs[_Plain], _P], Coroutine[Any, Any, _T]]:
    """Return a method, to be awaited, that runs in a thread if it may wait."""

    def steps(
        self: _Verbs[_Plain], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Generator[Any, Any, _T]:
        if self._may_wait and asks_store:
            in_thread = _in_thread(method, self._plain, *args, **kwargs)
            return (yield from in_thread.__await__())
        return method(self._plain, *args, **kwargs)

    return _awaitable(steps, method)


class AsyncReservation:
    """Tokens taken before their cost is known, or slots, to be ended in a coroutine.

    True if they were allowed. `AsyncLimiter.reserve` returns one, to be awaited or entered:

        async with limiter.reserve("Tokens", "ada", 600) as reservation:
            await reservation.settle(450)

    A denied reservation raises `RateLimited` on entry. At the end of the body, slots are given
    back, and tokens that were not settled stay spent; if it raises, they are refunded. A
    reservation is for one body.
    """

    def __init__(
        self, reserve: Callable[[], Coroutine[Any, Any, Reservation]], *, may_wait: bool = False
    ) -> None:
        self._reserve: Final = reserve
        self._may_wait: Final = may_wait
        self._run: Final = _to_the_end if may_wait else _here
        self._reservation: Reservation | None = None
        self._is_reserving = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self._take().__await__()

    async def _take(self) -> Self:
        if self._reservation is None:
            if self._is_reserving:
                raise ReservationError("another task awaits the reservation; make one for each")
            self._is_reserving = True
            try:
                self._reservation = await self._reserve()
            finally:
                self._is_reserving = False
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

    if TYPE_CHECKING:

        @overload
        async def settle(self, actual: int, /) -> Decision: ...
        @overload
        async def settle(self, name: str, actual: int, /) -> None: ...
        async def settle(self, *args: Any) -> Decision | None:
            """Settle as `Reservation.settle` does."""
    else:

        @_awaited
        async def settle(self, *args: Any) -> Decision | None:
            """Settle as `Reservation.settle` does."""
            return await self._run(self.reservation.settle, *args)

    @_awaited
    async def release(self) -> bool:
        """End the reservation, as `Reservation.release` does."""
        return await self._run(self.reservation.release)

    @_awaited
    async def cancel(self) -> bool:
        """Return everything that was not settled; whether the reservation was open."""
        return await self._run(self.reservation.cancel)

    def release_nowait(self, *, is_cancelled: bool = False) -> bool:
        """End the reservation without waiting, as `Reservation.release_nowait` does."""
        return self.reservation.release_nowait(is_cancelled=is_cancelled)

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
        is_cancelled = exc is not None
        if not self._may_wait:
            self.reservation.release_nowait(is_cancelled=is_cancelled)
            return
        # Begun before the first `await`, so that it is completed even if this task is cancelled.
        loop = asyncio.get_running_loop()
        ended = replies_of(loop).end(loop, self.reservation, is_cancelled)
        if ended is not None:
            await ended

    def __repr__(self) -> str:
        if self._reservation is None:
            return "<AsyncReservation, to be awaited>"
        return f"<Async{repr(self._reservation)[1:]}"


def _reservation(
    find: Callable[[], BoundLimit],
    id: Id,
    estimate: int,
    *,
    factor: Factor | None,
    keep: int,
    timeout: Period | None,
    may_wait: bool,
) -> AsyncReservation:
    """Return a reservation that calls `find` when it is awaited, and waits if given a timeout."""

    async def take() -> Reservation:
        bound, timeout_ns = find(), reserve_timeout_ns(timeout, factor)
        if timeout_ns is not None:
            return await task_queue.reserve(bound, id, estimate, timeout_ns, keep)
        if not may_wait:
            return bound.reserve(id, estimate, factor=factor, keep=keep)
        return await _reserved(ask("reserve", bound, id, estimate, factor, keep=keep))

    return AsyncReservation(take, may_wait=may_wait)


async def _reserved(reserving: _Reserving) -> Reservation:
    """Wait for a reservation. A caller that is cancelled meanwhile leaves nothing reserved."""
    if isinstance(reserving, Reservation):
        return reserving
    try:
        return await asyncio.shield(reserving)
    except asyncio.CancelledError:

        def cancel(done: asyncio.Future[Reservation]) -> None:
            if not done.cancelled() and done.exception() is None:
                done.result().release_nowait(is_cancelled=True)

        reserving.add_done_callback(cancel)
        raise


class AsyncBoundLimit(_Verbs[BoundLimit]):
    """One limit of a limiter, with the methods of `BoundLimit` as coroutines.

    Attributes:
        bound: The limit of the limiter.
    """

    def __init__(self, bound: BoundLimit) -> None:
        super().__init__(bound)
        self.bound: Final = bound

    @property
    def name(self) -> str:
        """The limit's name."""
        return self.bound.name

    def _ask(self, verb: _Verb, *args: Any, **kwargs: Any) -> _Answer:
        return ask(verb, self.bound, *args, **kwargs)

    spend = _decision(BoundLimit.spend, "spend")
    check = _decision(BoundLimit.check, "check")
    refund = _decision(BoundLimit.refund, "refund")
    charge = _decision(BoundLimit.charge, "charge")
    reset = _coroutine(BoundLimit.reset)

    def address_id(self, address: str, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
        """Return the id of the client at an address, as `BoundLimit.address_id` does."""
        return self.bound.address_id(address, ipv6_prefix)

    @_awaited
    async def peek(self, id: Id) -> Decision:
        """Return the current state of the bucket of `id`, as `BoundLimit.peek` does."""
        return await self.check(id, 0)

    spend_each = _coroutine(BoundLimit.spend_each)

    def reserve(
        self,
        id: Id,
        estimate: int = 1,
        *,
        factor: Factor | None = None,
        keep: int = 0,
        timeout: Period | None = None,
    ) -> AsyncReservation:
        """Take `estimate` tokens before the cost is known; to be awaited, or entered."""
        return _reservation(
            lambda: self.bound,
            id,
            estimate,
            factor=factor,
            keep=keep,
            timeout=timeout,
            may_wait=self._may_wait,
        )

    @_awaited
    async def acquire(
        self,
        id: Id,
        cost: int = 1,
        *,
        timeout: Period | None = None,  # noqa: ASYNC109  it refuses; nothing is cancelled
        keep: int = 0,
    ) -> Decision:
        """Wait until the bucket of `id` has `cost` tokens, and take them.

        As `AsyncLimiter.acquire`, without the name.
        """
        return await task_queue.acquire(self.bound, id, cost, timeout_ns(timeout), keep)


class AsyncLimiter(_Verbs[Limiter]):
    """The methods of a `Limiter` as coroutines.

    Args:
        limits: The limits, as for `Limiter`; or a limiter, whose buckets and wait queues are then
            shared.
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
        limits: AnyLimits | Limiter,
        store: str | None = None,
        clock: SystemClock | ManualClock | None = None,
    ) -> None:
        if not isinstance(limits, Limiter):
            limits = Limiter(limits, "memory://" if store is None else store, clock)
        elif store is not None or clock is not None:
            raise TypeError("store and clock are the limiter's own: give limits in its place")
        super().__init__(limits)
        self.limiter: Final = limits

    @property
    def limits(self) -> Limits:
        """The active limits, those of `define` included."""
        return self.limiter.limits

    @property
    def clock(self) -> SystemClock | ManualClock:
        """The clock of the limiter."""
        return self.limiter.clock

    @property
    def store(self) -> str:
        """The URL of the store."""
        return self.limiter.store

    @property
    def is_shared(self) -> bool:
        """Whether other processes count in the same buckets."""
        return self.limiter.is_shared

    def _ask(self, verb: _Verb, name: str, *args: Any, **kwargs: Any) -> _Answer:
        return ask(verb, self.limiter.limit(name), *args, **kwargs)

    spend = _decision(Limiter.spend, "spend")
    check = _decision(Limiter.check, "check")
    refund = _decision(Limiter.refund, "refund")
    charge = _decision(Limiter.charge, "charge")
    reset = _coroutine(Limiter.reset)
    reset_all = _coroutine(Limiter.reset_all)
    spend_all = _decision_on_several(Limiter.spend_all, "spend")
    check_all = _decision_on_several(Limiter.check_all, "check")
    refund_all = _decision_on_several(Limiter.refund_all, "refund")
    spend_each = _coroutine(Limiter.spend_each)
    reload = _coroutine(Limiter.reload)
    stats = _coroutine(Limiter.stats)
    counts = _coroutine(Limiter.counts, asks_store=False)
    top_denied = _coroutine(Limiter.top_denied, asks_store=False)
    close = _coroutine(Limiter.close)

    @_awaited
    async def peek(self, name: str, id: Id) -> Decision:
        """Return the current state of the bucket of `id`, as `Limiter.peek` does."""
        return await self.check(name, id, 0)

    def reserve(
        self,
        name: str,
        id: Id,
        estimate: int = 1,
        *,
        factor: Factor | None = None,
        keep: int = 0,
        timeout: Period | None = None,
    ) -> AsyncReservation:
        """Take `estimate` tokens before the cost is known; to be awaited, or entered.

        It raises as `Limiter.reserve` does, when it is awaited. With a `timeout`, it waits, and
        threads that wait in `Limiter.reserve` are in the same queue.
        """
        return _reservation(
            lambda: self.limiter.limit(name),
            id,
            estimate,
            factor=factor,
            keep=keep,
            timeout=timeout,
            may_wait=self._may_wait,
        )

    def reserve_all(
        self, transactions: Iterable[AnyTransaction], *, timeout: Period | None = None
    ) -> AsyncReservation:
        """Take tokens and slots of several limits in one decision; to be awaited, or entered.

        As `Limiter.reserve_all`. With a `timeout`, it waits, and threads that wait are in the same
        queues.
        """
        transactions = [*transactions]

        async def take() -> Reservation:
            given_ns = timeout_ns(timeout)
            if given_ns is not None:
                return await task_queue.reserve_all(self.limiter, transactions, given_ns)
            if not self._may_wait:
                return self.limiter.reserve_all(transactions)
            return await _reserved(ask_all("reserve", self.limiter, transactions))

        return AsyncReservation(take, may_wait=self._may_wait)

    @_awaited
    async def acquire_all(
        self,
        transactions: Iterable[AnyTransaction],
        *,
        timeout: Period | None = None,  # noqa: ASYNC109  it refuses; nothing is cancelled
    ) -> Decision:
        """Wait until several limits allow a call, and take all of its tokens at once.

        As `Limiter.acquire_all`, in the same queues.
        """
        transactions = [*transactions]
        return await task_queue.acquire_all(self.limiter, transactions, timeout_ns(timeout))

    @_awaited
    async def acquire(
        self,
        name: str,
        id: Id,
        cost: int = 1,
        *,
        timeout: Period | None = None,  # noqa: ASYNC109  it refuses; nothing is cancelled
        keep: int = 0,
    ) -> Decision:
        """Wait until the bucket of `id` under `name` has `cost` tokens, and take them.

        Waiters are served in order of arrival, threads in `Limiter.acquire` included; those that
        keep tokens come after those that keep fewer. A cancelled
        task returns its tokens, and the waiters behind it move up. On a `ManualClock` it waits
        until the clock is advanced.

        Args:
            name: Name of a loaded limit.
            id: The client.
            cost: Tokens, from 0 to what the limit can ever allow.
            timeout: The longest acceptable wait: a string such as `"5s"`, seconds, or a
                `timedelta`; 0 never waits, `None` waits as long as necessary.
            keep: As in `Limiter.spend`.

        Raises:
            RateLimited: The wait would be longer than the timeout; its decision's `retry_after`
                is the wait.
            ValueError: `timeout` is negative or not a number.
        """
        return await self.limit(name).acquire(id, cost, timeout=timeout, keep=keep)

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
            LimitError: The rate string is invalid.
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


def plain_limiter(given: object) -> Limiter:
    """Return the limiter that decides for a `Limiter` or an `AsyncLimiter`.

    Raises:
        ConfigError: It is neither.
    """
    limiter = given.limiter if isinstance(given, AsyncLimiter) else given
    if not isinstance(limiter, Limiter):
        raise ConfigError(f"limiter must be a penstock.Limiter, found {given!r}")
    return limiter


attach_hints(AsyncLimiter, AsyncBoundLimit)
