"""Waiting for a turn in a thread; the queues are in the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock._core import Waiter, Wakeup

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from penstock._core import BoundLimit, Decision, Limiter, Reservation, SystemClock
    from penstock.types import AnyTransaction, Id


_T = TypeVar("_T")


class Ready(Generic[_T]):
    """An awaitable whose value is available immediately."""

    def __init__(self, value: _T) -> None:
        self._value: Final = value

    def __await__(self) -> Generator[None, None, _T]:
        yield from ()
        return self._value


def delay(clock: SystemClock, due_ns: int) -> float:
    """Return the seconds until `due_ns`, rounded up to a microsecond so that no waiter is early."""
    return max(-((clock.now_ns() - due_ns) // 1000) / 1e6, 0.0)


def acquire(
    bound: BoundLimit, id: Id, cost: int, timeout_ns: int | None, keep: int = 0
) -> Decision:
    """Block this thread until `cost` can be taken, and take it.

    Raises:
        RateLimited: The wait would be longer than `timeout_ns`.
        Error: As `BoundLimit.spend` raises.
    """
    wakeup = Wakeup()
    waiter = Waiter(bound, id, cost, timeout_ns, wakeup.notify, keep=keep)
    try:
        return _wait(waiter, wakeup)
    finally:
        waiter.leave()


def reserve(bound: BoundLimit, id: Id, estimate: int, timeout_ns: int, keep: int) -> Reservation:
    """Block this thread until `estimate` can be reserved, and reserve it.

    Raises:
        RateLimited: Nothing could be reserved within `timeout_ns`.
        Error: As `BoundLimit.reserve` raises.
    """
    wakeup = Wakeup()
    waiter = Waiter(bound, id, estimate, timeout_ns, wakeup.notify, reserves=True, keep=keep)
    try:
        _wait(waiter, wakeup)
        return waiter.reservation()
    finally:
        waiter.leave()


def reserve_all(
    limiter: Limiter, transactions: Iterable[AnyTransaction], timeout_ns: int
) -> Reservation:
    """Block this thread until several limits allow a call, and reserve it.

    Raises:
        RateLimited: Not everything could be reserved within `timeout_ns`.
        Error: As `Limiter.reserve_all` raises.
    """
    wakeup = Wakeup()
    waiter = Waiter.of_several(limiter, transactions, timeout_ns, wakeup.notify)
    try:
        _wait(waiter, wakeup)
        return waiter.reservation()
    finally:
        waiter.leave()


def acquire_all(
    limiter: Limiter, transactions: Iterable[AnyTransaction], timeout_ns: int | None
) -> Decision:
    """Block this thread until several limits allow a call, and take its tokens.

    Raises:
        RateLimited: The wait would be longer than `timeout_ns`.
        Error: As `Limiter.spend_all` raises.
    """
    wakeup = Wakeup()
    waiter = Waiter.of_several(limiter, transactions, timeout_ns, wakeup.notify, reserves=False)
    try:
        decision = _wait(waiter, wakeup)
        waiter.reservation().release_nowait()
        return decision
    finally:
        waiter.leave()


def _wait(waiter: Waiter, wakeup: Wakeup) -> Decision:
    while (decision := waiter.step()) is None:
        wakeup.wait(waiter.delay())
    return decision
