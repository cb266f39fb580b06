"""Tokens that are taken before their cost is known."""

import warnings

# Neither `__future__` nor `typing` is imported: they would take most of the time of
# `import penstock`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Never, Self, TypeVar

    from penstock._core import Decision, ReservedTokens
    from penstock.wait_queue import Ready

    _T = TypeVar("_T")

__all__ = ["Reservation"]

_MAX_ID = 60


class Reservation:
    """Tokens taken before the actual cost is known.

    `bool(reservation)` is whether they were allowed. As a context manager, with `with` or `async
    with`, a denied reservation raises `RateLimited` on entry. If the body does not settle it, it is
    settled at the estimate; an exception cancels it. A reservation that is dropped without that
    issues a `ResourceWarning`: its tokens stay spent.

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
        # Whether no call has tried to settle or cancel it.
        self._is_pending = True

    @property
    def decision(self) -> "Decision":
        """The decision about the estimate."""
        return self._tokens.decision

    @property
    def estimate(self) -> int:
        """The tokens that were reserved."""
        return self._tokens.decision.cost

    def settle(self, actual: int) -> "Decision":
        """Replace the estimate by `actual` tokens: return the difference, or charge it.

        `actual` may exceed the burst. The charge overdraws the bucket by at most one full bucket;
        the rest is not taken. While the bucket is overdrawn, every spend is denied (a window
        forgets the overdraft when it ends). A denied reservation has taken no tokens, and `settle`
        returns its denied decision.

        Args:
            actual: Tokens, at least 0.

        Returns:
            The decision, which is allowed if all of `actual` has been taken. After a charge,
            `retry_after` is the time until the bucket is no longer overdrawn. `cost` is `actual`.

        Raises:
            ReservationError: The reservation is already settled or cancelled, or the store's reply
                was lost.
            CostNegative: `actual` is below 0.
            StoreError: The store failed. The reservation can be settled later, unless the reply was
                lost (`StoreTimeout`): then it is unknown what is charged.

        Examples:
            >>> limiter = penstock.Limiter({"Tokens": "60/minute"}, clock=penstock.ManualClock())
            >>> limiter.reserve("Tokens", "ada", 50).settle(75).retry_after
            15.0
        """
        self._is_pending = False
        return self._tokens.settle(actual)

    def cancel(self) -> bool:
        """Refund all reserved tokens, and return whether there were any.

        Has no effect after the reservation was settled, cancelled or denied.

        Raises:
            StoreError: The store failed. The reservation can be cancelled later.
        """
        self._is_pending = False
        return self._tokens.cancel()

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
            self._tokens.keep()
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
        self.__exit__(exc_type, exc, traceback)
        return _ready(None)

    def __del__(self) -> None:
        if self._is_pending and self._tokens.stage == "open" and self.estimate:
            message = f"{self!r} was dropped: settle or cancel it; its tokens stay spent"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> "Never":
        raise TypeError(
            "a Reservation cannot be pickled or copied; settle or cancel it in the process that "
            "reserved"
        )

    def __repr__(self) -> str:
        tokens = self._tokens
        id = repr(str(tokens.decision.id)[:_MAX_ID])[1:-1]
        return f"<Reservation {tokens.decision.name} {id}: {self.estimate}, {tokens.stage}>"


def _ready(value: "_T") -> "Ready[_T]":
    """Return an awaitable that completes immediately with `value`."""
    from penstock.wait_queue import Ready  # noqa: PLC0415  it imports `typing`, as above

    return Ready(value)
