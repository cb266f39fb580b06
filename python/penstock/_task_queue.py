"""Waiting for a turn in a task; the queues are in the core."""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, cast

from penstock._core import Decision, waiter_of_several
from penstock._core import waiter as waiter_of_one
from penstock._replies import replies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from penstock._core import BoundLimit, Limiter, Reservation, Waiter
    from penstock.types import AnyTransaction, Id


_YEAR: Final = 365 * 86_400


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

    def weak_notify(self) -> Callable[[], None]:
        """Return `notify` for a queue, which must not keep an abandoned task alive."""
        notify = weakref.WeakMethod(self.notify)

        def call() -> None:
            if (now := notify()) is not None:
                now()

        return call

    async def wait(self, seconds: float | None) -> None:
        """Wait until notified, or for `seconds`."""
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        # Always a timer, through which the event loop keeps the task alive. Nothing else may.
        handle = self._loop.call_later(_YEAR if seconds is None else seconds, self._wake)
        try:
            if not self._is_notified:
                await self._future
        finally:
            handle.cancel()
        self._is_notified = False


async def acquire(
    bound: BoundLimit, id: Id, cost: int, timeout_ns: int | None, keep: int
) -> Decision:
    """Acquire as `Limiter.acquire` does."""
    wakeup = _Wakeup()
    waiter = waiter_of_one(bound, id, cost, timeout_ns, wakeup.weak_notify(), keep=keep)
    if bound.may_wait:
        return await _acquire_waiting(waiter, wakeup, bound, id, cost=cost, keep=keep)
    return cast("Decision", await _served(waiter, wakeup))


async def reserve(
    bound: BoundLimit, id: Id, estimate: int, timeout_ns: int, keep: int
) -> Reservation:
    """Reserve as `Limiter.reserve` does with a timeout."""
    wakeup = _Wakeup()
    notify = wakeup.weak_notify()
    waiter = waiter_of_one(bound, id, estimate, timeout_ns, notify, reserves=True, keep=keep)
    return cast("Reservation", await _served(waiter, wakeup, may_wait=bound.may_wait))


async def reserve_all(
    limiter: Limiter, transactions: Sequence[AnyTransaction], timeout_ns: int
) -> Reservation:
    """Reserve as `Limiter.reserve_all` does with a timeout."""
    wakeup = _Wakeup()
    notify = wakeup.weak_notify()
    waiter = waiter_of_several(limiter, transactions, timeout_ns, notify, reserves=True)
    return cast("Reservation", await _served(waiter, wakeup, may_wait=limiter.may_wait))


async def acquire_all(
    limiter: Limiter, transactions: Sequence[AnyTransaction], timeout_ns: int | None
) -> Decision:
    """Acquire as `Limiter.acquire_all` does."""
    wakeup = _Wakeup()
    waiter = waiter_of_several(limiter, transactions, timeout_ns, wakeup.weak_notify())
    return cast("Decision", await _served(waiter, wakeup, may_wait=limiter.may_wait))


async def _served(waiter: Waiter, wakeup: _Wakeup, *, may_wait: bool = False) -> object:
    """Return the result when it is the waiter's turn."""
    if may_wait:
        thread = _line_of(asyncio.get_running_loop()).thread
        return await _served_in(thread, waiter, wakeup, thread.submit(waiter.step))
    try:
        while not waiter.step():
            await wakeup.wait(waiter.delay())
        return waiter.result()
    finally:
        waiter.leave()


async def _served_in(
    thread: ThreadPoolExecutor, waiter: Waiter, wakeup: _Wakeup, stepping: Future[bool]
) -> object:
    """Return the result of a waiter whose steps may wait, after its first one."""
    try:
        while not await asyncio.wrap_future(stepping):
            await wakeup.wait(waiter.delay())
            stepping = thread.submit(waiter.step)
        return waiter.result()
    finally:
        # In the same thread, and therefore after a step that is still running.
        thread.submit(waiter.leave)


class _Line:
    """The callers of one loop that wait for tokens from stores that may wait."""

    def __init__(self) -> None:
        # One thread, so that callers join the wait queues in the order of their arrival.
        self.thread: Final = ThreadPoolExecutor(1, "penstock-acquire")
        self.buckets: Final[dict[tuple[BoundLimit, Id, int], _Callers]] = {}


class _Callers:
    """The callers of one loop that wait for one bucket and keep as many tokens."""

    def __init__(self) -> None:
        self.count = 0
        # Set when the first caller has its tokens or is about to join the queue.
        self.first_has_asked: Final = asyncio.Event()


_lines: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]] = (
    weakref.WeakKeyDictionary()
)


def _line_of(loop: asyncio.AbstractEventLoop) -> _Line:
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    return line


def _is_taken(answer: Decision | asyncio.Future[Decision]) -> bool:
    """Return whether tokens were taken for a caller that was cancelled before it was awake."""
    if isinstance(answer, Decision) or answer.cancelled() or answer.exception() is not None:
        return False
    decision = answer.result()
    return decision.allowed and not (decision.would_deny or decision.unlimited)


async def _acquire_waiting(
    waiter: Waiter, wakeup: _Wakeup, bound: BoundLimit, id: Id, *, cost: int, keep: int
) -> Decision:
    """Acquire immediately if possible, otherwise in the wait queue's thread."""
    loop = asyncio.get_running_loop()
    line = _line_of(loop)
    callers = line.buckets.setdefault((bound, id, keep), _Callers())
    callers.count += 1
    try:
        if callers.count > 1:
            await callers.first_has_asked.wait()
            stepping = line.thread.submit(waiter.step)
        else:
            try:
                answer = replies_of(loop).call(loop, "acquire", bound, id, cost, keep=keep)
                if answer is not None:
                    try:
                        decision = answer if isinstance(answer, Decision) else await answer
                    except asyncio.CancelledError:
                        if _is_taken(answer):
                            line.thread.submit(bound.refund, id, cost)
                        raise
                    if decision:
                        return decision
                stepping = line.thread.submit(waiter.step)
            finally:
                callers.first_has_asked.set()
        return cast("Decision", await _served_in(line.thread, waiter, wakeup, stepping))
    finally:
        callers.count -= 1
        if callers.count == 0:
            del line.buckets[bound, id, keep]
