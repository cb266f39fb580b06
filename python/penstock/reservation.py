"""Tokens that are taken before their cost is known, and slots of requests in flight."""

import warnings

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable
    from types import TracebackType
    from typing import Never, Self, TypeVar, overload

    from penstock._core import Decision, Replies, ReservedTokens
    from penstock.wait_queue import Ready

    _T = TypeVar("_T")

__all__ = ["Reservation"]

_MAX_ID = 60


class Reservation:
    """Tokens taken before the actual cost is known, and slots of limits on requests in flight.

    `bool(reservation)` is whether they were allowed. As a context manager, with `with` or `async
    with`, a denied reservation raises `RateLimited` on entry. At the end of the block, slots are
    given back, and tokens that were not settled stay spent at the estimate; an exception refunds
    them. A reservation that is dropped without an end issues a `ResourceWarning`: its tokens stay
    spent, and its slots are given back. In a process that was forked off, it has no effect.

    Examples:
        >>> clock = penstock.ManualClock()
        >>> limiter = penstock.Limiter({"Tokens": "1000/minute"}, clock=clock)
        >>> with limiter.reserve("Tokens", "ada", 600) as reservation:
        ...     decision = reservation.settle(450)
        >>> decision.remaining
        550
    """

    __module__ = "penstock"
    __slots__ = ("_is_pending", "_tokens")

    def __init__(self, tokens: "ReservedTokens") -> None:
        self._tokens = tokens
        # Whether no call has tried to end it.
        self._is_pending = True

    @property
    def decision(self) -> "Decision":
        """The decision about the estimates."""
        return self._tokens.decision

    @property
    def estimate(self) -> int:
        """The tokens or slots that were reserved; of several limits, those of the strictest."""
        return self._tokens.decision.cost

    if TYPE_CHECKING:

        @overload
        def settle(self, actual: int, /) -> Decision: ...
        @overload
        def settle(self, name: str, actual: int, /) -> None: ...

    def settle(
        self, name_or_actual: "str | int", actual: "int | None" = None, /
    ) -> "Decision | None":
        """Replace the estimate by the actual tokens: return the difference, or charge it.

        `settle(actual)` settles a reservation of one limit immediately. `settle(name, actual)`
        settles one of several limits, with the call that ends the reservation.

        `actual` may exceed the burst. The charge overdraws the bucket by at most one full bucket;
        the rest is not taken. While the bucket is overdrawn, every spend is denied (a window
        forgets the overdraft when it ends). A denied reservation has taken no tokens, and `settle`
        returns its denied decision.

        Args:
            name_or_actual: The actual tokens, at least 0; the limit's name if several limits are
                reserved.
            actual: The actual tokens, after a name.

        Returns:
            With one argument: the decision, which is allowed if all of `actual` has been taken.
            After a charge, `retry_after` is the time until the bucket is no longer overdrawn.
            `cost` is `actual`.

        Raises:
            ReservationError: The reservation is already settled or cancelled, the store's reply was
                lost, the name is not among its limits, or the limit has slots.
            CostNegative: `actual` is below 0.
            StoreError: The store failed. The reservation can be settled later, unless the reply was
                lost (`StoreTimeout`): then it is unknown what is charged.

        Examples:
            >>> limiter = penstock.Limiter({"Tokens": "60/minute"}, clock=penstock.ManualClock())
            >>> limiter.reserve("Tokens", "ada", 50).settle(75).retry_after
            15.0
        """
        if actual is not None:
            self._tokens.settle_later(name_or_actual, actual)  # type: ignore[arg-type]
            return None
        self._is_pending = False
        return self._tokens.settle(name_or_actual)  # type: ignore[arg-type]

    def release(self) -> bool:
        """End the reservation: return its slots, and charge what was settled.

        Tokens that were not settled stay spent. The end of a `with` block calls it.

        Returns:
            Whether the reservation was open: it ends only once.

        Raises:
            StoreError: The store failed, and there are no slots. A slot is given back later if the
                store has not executed the call; otherwise it expires.
        """
        self._is_pending = False
        return self._tokens.end(is_cancelled=False, waits=True)

    def release_nowait(self, *, is_cancelled: bool = False) -> bool:
        """End the reservation as `release` or `cancel` does, without waiting for the store.

        For a coroutine, and for callbacks at the end of a response: it never blocks, needs no
        event loop, and what it has begun is completed if the caller is cancelled.
        """
        self._is_pending = False
        return self._tokens.end(is_cancelled=is_cancelled, waits=False)

    def _end_in(
        self,
        replies_of: "Callable[[AbstractEventLoop], Replies]",
        *,
        is_cancelled: bool,
    ) -> "Future[Decision] | None":
        """End it without waiting; return a future of the running loop if a server has to reply."""
        if not self._tokens.is_remote:
            self.release_nowait(is_cancelled=is_cancelled)
            return None
        from asyncio import get_running_loop  # noqa: PLC0415  as above

        self._is_pending = False
        loop = get_running_loop()
        return replies_of(loop).end(loop, self._tokens, is_cancelled)

    def cancel(self) -> bool:
        """Return slots, and the tokens that were not settled; return whether it was open.

        Has no effect after the reservation was settled, cancelled or denied.

        Raises:
            StoreError: As `release`. The reservation can be cancelled later.
        """
        self._is_pending = False
        return self._tokens.end(is_cancelled=True, waits=True)

    def abandon(self) -> None:
        """Forget the reservation, as a process that is killed does: for tests.

        Its slots expire after one to two leases; its tokens stay spent.
        """
        self._is_pending = False
        self._tokens.abandon()

    def __bool__(self) -> bool:
        return bool(self._tokens.decision)

    def __enter__(self) -> "Self":
        self._tokens.decision.raise_if_denied()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: "TracebackType | None",
        /,
    ) -> None:
        if exc is None:
            self.release()
            return
        try:
            self.cancel()
        except Exception as error:  # noqa: BLE001  the exception of the body takes precedence
            exc.add_note(f"the reservation could not be cancelled: {error}")

    def __aenter__(self) -> "Ready[Self]":
        return _ready(self.__enter__())

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: "TracebackType | None",
        /,
    ) -> "Ready[None]":
        self.release_nowait(is_cancelled=exc is not None)
        return _ready(None)

    def __del__(self) -> None:
        if self._is_pending and self._tokens.is_pending:
            message = f"{self!r} was dropped: settle, release or cancel it; its tokens stay spent"
            self._tokens.end(is_cancelled=False, waits=False)
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> "Never":
        raise TypeError(
            "a Reservation cannot be pickled or copied; end it in the process that reserved"
        )

    def __repr__(self) -> str:
        tokens = self._tokens
        id = repr(str(tokens.decision.id)[:_MAX_ID])[1:-1]
        return f"<Reservation {tokens.decision.name} {id}: {self.estimate}, {tokens.stage}>"


def _ready(value: "_T") -> "Ready[_T]":
    """Return an awaitable that completes immediately with `value`."""
    from penstock.wait_queue import Ready  # noqa: PLC0415  it imports `typing`, as above

    return Ready(value)
