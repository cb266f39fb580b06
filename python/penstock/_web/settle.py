"""What requests ask of the store, hold, and settle when their response is known."""

from __future__ import annotations

from itertools import count, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast
from weakref import ref

from penstock._locks import fork_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock._core import BoundLimit, Decision, Limiter, Reservation
    from penstock.types import Factor, Id, StorePolicy, TransactionKind

Asked: TypeAlias = "tuple[AskedLimit, Id, int]"
"""A limit, an id and a cost: one transaction of a request."""
Change: TypeAlias = "tuple[Asked, int, int]"
"""An entry, what it has taken, and what it costs."""
ChangeVerb: TypeAlias = Literal["refund", "spend", "charge"]
HeldSlots: TypeAlias = "tuple[Reservation, ...]"
"""What a request holds until its response has been sent.

If nothing releases it, its reservations give the slots back when they are dropped, and issue a
`ResourceWarning`: the end of the request was missed, and the collector may be late.
"""
_Recharge: TypeAlias = "Callable[[Sequence[Change], bool], None]"

# The kinds of transactions by which changes are one call. Each change is on its own: the request
# was served.
_KINDS: Final[dict[ChangeVerb, TransactionKind]] = {
    "refund": "spend",
    "spend": "spend_only",
    "charge": "charge",
}

RELEASE_AFTER_NS: Final = 600 * 1_000_000_000
"""Nanoseconds after which the reservation of a request that was dropped is released."""


class AskedLimit:
    """A limit as a request asks for it.

    Attributes:
        name: The limit's name.
        bound: The limit of the limiter; its methods pass the factor and the tokens to keep.
        unadjusted: The same, whose methods pass neither.
        factor: What the size of a leaky bucket is divided by; `None` for no factor.
        keep: How many tokens a request leaves for more important ones.
        on_store_error: What happens to requests while the store fails.
        is_shadow: Whether it denies nothing.
        is_deferred: Whether it is only checked before the view, and spent after it.
    """

    def __init__(
        self,
        bound: BoundLimit,
        factor: Factor | None,
        keep: int,
        on_store_error: StorePolicy,
        *,
        is_shadow: bool,
        is_deferred: bool,
    ) -> None:
        self.name: Final = bound.name
        self.factor: Final = factor
        self.keep: Final = keep
        self.unadjusted: Final = bound
        is_adjusted = factor is not None or keep > 0
        adjusted = cast("BoundLimit", _AdjustedLimit(bound, factor, keep))
        self.bound: Final = adjusted if is_adjusted else bound
        self.on_store_error: Final = on_store_error
        self.is_shadow: Final = is_shadow
        self.is_deferred: Final = is_deferred


class _AdjustedLimit:
    """A bound limit whose methods pass a factor, and tokens to keep."""

    def __init__(self, bound: BoundLimit, factor: Factor | None, keep: int) -> None:
        self.name: Final = bound.name
        self._bound: Final = bound
        self._factor: Final = factor
        self._keep: Final = keep

    def spend(self, id: Id, cost: int = 1) -> Decision:
        """Take tokens."""
        return self._bound.spend(id, cost, factor=self._factor, keep=self._keep)

    def check(self, id: Id, cost: int) -> Decision:
        """Decide without taking tokens."""
        return self._bound.check(id, cost, factor=self._factor, keep=self._keep)

    def charge(self, id: Id, cost: int) -> Decision:
        """Take tokens that were used already."""
        return self._bound.charge(id, cost, factor=self._factor, keep=self._keep)

    def reserve(self, id: Id, estimate: int) -> Reservation:
        """Take tokens before the cost is known."""
        return self._bound.reserve(id, estimate, factor=self._factor, keep=self._keep)


class ViewCost:
    """The actual cost reported by a view, for limits that reserve; `Decision.settle` calls it.

    It does not refer to the request: the decision, which refers to it, is part of that.

    Args:
        recharge: Changes what entries have been charged: each entry, its charge and its cost, and
            whether this process decided.
        earlier: That of limits which were evaluated before for the same request.

    Attributes:
        actual: What the view used; `None` until it settles.
    """

    __slots__ = ("_charged", "_is_degraded", "_recharge", "actual", "earlier")

    def __init__(self, recharge: _Recharge, earlier: ViewCost | None) -> None:
        self.actual: int | None = None
        self.earlier: Final = earlier
        self._recharge: Final = recharge
        self._charged: Sequence[tuple[Asked, int]] = ()
        self._is_degraded = False

    def __call__(self, actual: int) -> None:
        """Remember what the view used; a response that has started is settled again.

        Raises:
            StoreError: The store failed, and a limit has the policy `"raise"`.
        """
        self.actual = actual
        changes = [(entry, charged, actual) for entry, charged in self._charged]
        self._charged = [(entry, actual) for entry, _ in self._charged]
        self._recharge(changes, self._is_degraded)
        if self.earlier is not None:
            self.earlier(actual)

    def charge(self, entries: Sequence[tuple[Asked, int]], *, is_degraded: bool) -> None:
        """Remember what entries have been charged when the response started."""
        self._charged = entries
        self._is_degraded = is_degraded


class OpenReservations:
    """The reservations of one process that are neither settled nor released; thread-safe.

    A framework may drop a request without a response that settles it. Its tokens are returned when
    a later request reserves some. A request that still runs keeps its own: a client that sends its
    body slowly could otherwise have any number of requests open.

    Args:
        release: Returns the tokens of entries.
    """

    def __init__(self, release: Callable[[Sequence[Asked]], object]) -> None:
        self._release: Final = release
        # In the order of their instants.
        self._open: Final[dict[int, tuple[int, ref[object], Sequence[Asked]]]] = {}
        self._numbers: Final = count()
        self._lock: Final = fork_safe(Lock())

    def open(self, entries: Sequence[Asked], now_ns: int, owner: object) -> int:
        """Add a reservation, and release old ones; return its number.

        Args:
            entries: What was taken.
            now_ns: The instant of its decision.
            owner: What exists as long as the request does.
        """
        with self._lock:
            number = next(self._numbers)
            dropped = self._take_dropped(now_ns)
            self._open[number] = (now_ns, ref(owner), entries)
        for taken in dropped:
            self._release(taken)
        return number

    def _take_dropped(self, now_ns: int) -> list[Sequence[Asked]]:
        """Remove and return the old reservations of requests that do not exist any more."""
        dropped: list[Sequence[Asked]] = []
        old = list(
            takewhile(lambda other: self._open[other][0] + RELEASE_AFTER_NS <= now_ns, self._open)
        )
        for number in old:
            _, owner, entries = self._open.pop(number)
            if owner() is None:
                dropped.append(entries)
            else:
                # Looked at later again, and not by each request until then.
                self._open[number] = (now_ns, owner, entries)
        return dropped

    def close(self, number: int) -> bool:
        """Remove a reservation; return whether it was still open."""
        with self._lock:
            return self._open.pop(number, None) is not None

    def __len__(self) -> int:
        """Return how many reservations are open."""
        return len(self._open)


def adjust(limiter: Limiter, changes: Sequence[Change]) -> list[Decision | None]:
    """Replace what entries have taken by what they cost, each on its own.

    Returns:
        The decision of each, in order; `None` if there is nothing to change.

    Raises:
        StoreError: The store fails.
    """
    later: list[Decision | None] = [None] * len(changes)
    # Refunds are one call to the store, and everything else is another.
    refunds: dict[int, tuple[Asked, ChangeVerb]] = {}
    takes: dict[int, tuple[Asked, ChangeVerb]] = {}
    for index, (entry, taken, cost) in enumerate(changes):
        limit, id, _ = entry
        if cost < taken:
            refunds[index] = (limit, id, taken - cost), "refund"
        elif cost > taken or (limit.is_deferred and not limit.keep):
            takes[index] = (limit, id, cost - taken), verb_of(entry, taken, cost)
    for calls in (refunds, takes):
        if calls:
            for index, decision in zip(calls, ask(limiter, [*calls.values()]), strict=True):
                later[index] = decision
    for index, ((limit, id, _), _, _) in enumerate(changes):
        if limit.keep and (limit.is_deferred or later[index] is not None):
            # The client may use the part of the bucket above the tokens that it keeps.
            later[index] = limit.bound.check(id, 0)
    return later


def verb_of(entry: Asked, taken: int, cost: int) -> ChangeVerb:
    """Return the verb that replaces what an entry has taken by what it costs."""
    if cost < taken:
        return "refund"
    # What was only checked is taken if it is still there; more than was expected may overdraw.
    return "spend" if taken == 0 and cost == entry[2] else "charge"


def ask(limiter: Limiter, calls: Sequence[tuple[Asked, ChangeVerb]]) -> Sequence[Decision]:
    """Make changes in one call to the store: only refunds, or none.

    Raises:
        StoreError: The store fails.
    """
    (limit, id, cost), verb = calls[0]
    if len(calls) == 1:
        # Without the tokens to keep: what was served is charged in full.
        decision: Decision = getattr(limit.unadjusted, verb)(id, cost, factor=limit.factor)
        return (decision,)
    batch = [(x.name, id, cost, _KINDS[each], x.factor) for (x, id, cost), each in calls]
    return (limiter.refund_all if verb == "refund" else limiter.spend_all)(batch).parts
