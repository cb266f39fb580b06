"""The store of a guard: changes after a response, and decisions while it fails.

If as many processes fall back as were expected, together they allow about what the store would
have allowed.
"""

from __future__ import annotations

import logging
from itertools import count, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import ref

from penstock._core import Limit, Limiter, Limits, restore_limit
from penstock.errors import ConfigError, StoreError
from penstock.locks import fork_safe
from penstock.types import Transaction
from penstock.validation import has_slots, is_whole
from penstock.web.findings import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock._core import Decision, Reservation
    from penstock.types import Factor, Id, TransactionKind
    from penstock.web.compiled_limit import CompiledLimit, Entry

_Recharge: TypeAlias = "Callable[[Sequence[tuple[Entry, int, int]], bool], None]"

_log: Final = logging.getLogger("penstock")

_MAX_PROCESSES: Final = 100_000
# One for each active limit, overrides included.
_MAX_LIMITERS: Final = 1024

_EFFECTS: Final = {
    "raise": "StoreError is raised",
    "deny": "requests are refused",
    "local": "this process decides by its share of each limit",
    "allow": "requests are allowed",
}
"""What happens to requests by policy; the first of several policies applies."""

RELEASE_AFTER_NS: Final = 600 * 1_000_000_000
"""Nanoseconds after which the reservation of a request that was dropped is released."""

_DEGRADED: Final = "the store failed; this process decided by its share of the limit"


class HeldSlots:
    """What a request holds until its response has been sent.

    If nothing releases it, its reservations give the slots back when they are dropped, and issue a
    `ResourceWarning`: the end of the request was missed, and the collector may be late.

    Args:
        reservations: The slots, with the rates that were decided together with them.
    """

    __slots__ = ("_reservations",)

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self._reservations = reservations

    def add(self, other: HeldSlots) -> None:
        """Also hold what `other` holds."""
        self._reservations = (*other._reservations, *self._reservations)
        other._reservations = ()

    def release(self, *, waits: bool) -> None:
        """Return the slots, once.

        Args:
            waits: Whether to wait for the store, so that the client's next request finds them free.
        """
        reservations, self._reservations = self._reservations, ()
        for reservation in reservations:
            if waits:
                reservation.release()
            else:
                reservation.release_nowait()


class LocalLimiter:
    """Decides in this process, with the clock of another limiter and a share of its limits."""

    def __init__(self, limiter: Limiter, processes: int) -> None:
        self._limiter: Final = limiter
        self._processes: Final = processes
        self._limiters: Final[dict[tuple[str, Limit], Limiter]] = {}
        self._lock: Final = fork_safe(Lock())

    def decide(self, entries: Sequence[Entry]) -> tuple[list[Decision], HeldSlots | None]:
        """Decide entries together, all or nothing; return their decisions, and what is held."""
        held: list[Reservation] = []
        # Each limit has a limiter of its own here, so all are checked first, under one lock.
        with self._lock:
            found = [self._find(*entry) for entry in entries]
            parts = [_check(*adjusted) for adjusted in found]
            if all(part or entry[0].is_shadow for part, entry in zip(parts, entries, strict=True)):
                for index, (limit, _, _) in enumerate(entries):
                    if not limit.is_deferred:
                        parts[index] = _take(*found[index], held)
        return [_degraded(part) for part in parts], HeldSlots(held) if held else None

    def change(self, entry: Entry, taken: int, cost: int) -> Decision | None:
        """Replace what an entry has taken by what it costs; `None` if both are the same."""
        if taken == cost:
            return None
        limit, id, _ = entry
        limiter, call, keep = self._find(limit, id, abs(cost - taken))
        name, canonical, change, factor = call
        make = limiter.refund if cost < taken else limiter.spend
        decision = make(name, canonical, change, factor=factor)
        if keep:
            decision = limiter.check(name, canonical, 0, factor=factor, keep=keep)
        return _degraded(decision)

    def _find(
        self, of: CompiledLimit, id: Id, cost: int
    ) -> tuple[Limiter, tuple[str, Id, int, Factor | None], int]:
        name, factor = of.name, of.factor
        why = self._limiter.limits.explain(name, id)
        limit = why.limit.share(self._processes)
        limiter = self._limiters.get((name, limit))
        if limiter is None:
            if len(self._limiters) >= _MAX_LIMITERS:
                self._limiters.clear()
            limiter = Limiter({name: limit}, clock=self._limiter.clock)
            self._limiters[name, limit] = limiter
        # The share may be smaller than a cost, or a cost and keep, that the whole limit allows.
        divided = limit if factor is None else limiter.check(name, why.id, 0, factor=factor).limit
        cost = min(cost, divided.max_cost)
        keep = min(-(-of.keep // self._processes), divided.max_cost - cost)
        return limiter, (name, why.id, cost, factor), keep


def _degraded(part: Decision) -> Decision:
    return part.replace(degraded=_DEGRADED)


def _check(limiter: Limiter, call: tuple[str, Id, int, Factor | None], keep: int) -> Decision:
    name, id, cost, factor = call
    return limiter.check(name, id, cost, factor=factor, keep=keep)


def _take(
    limiter: Limiter, call: tuple[str, Id, int, Factor | None], keep: int, held: list[Reservation]
) -> Decision:
    name, id, cost, factor = call
    if not has_slots(limiter.limits.default(name)):
        return limiter.spend(name, id, cost, factor=factor, keep=keep)
    reservation = limiter.reserve(name, id, cost, factor=factor, keep=keep)
    held.append(reservation)
    return reservation.decision


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
        self._charged: list[tuple[Entry, int]] = []
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

    def charge(self, entries: list[tuple[Entry, int]], *, is_degraded: bool) -> None:
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

    def __init__(self, release: Callable[[Sequence[Entry]], object]) -> None:
        self._release: Final = release
        # In the order of their instants.
        self._open: Final[dict[int, tuple[int, ref[object], Sequence[Entry]]]] = {}
        self._numbers: Final = count()
        self._lock: Final = fork_safe(Lock())

    def open(self, entries: Sequence[Entry], now_ns: int, owner: object) -> int:
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

    def _take_dropped(self, now_ns: int) -> list[Sequence[Entry]]:
        """Remove and return the old reservations of requests that do not exist any more."""
        dropped: list[Sequence[Entry]] = []
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


class StoreAccess:
    """The limiter of a guard, with the local one that decides while the store fails.

    Args:
        limiter: The limiter.
        expected_processes: How many processes share its limits.

    Raises:
        ConfigError: The number of processes is invalid.

    Attributes:
        limiter: The limiter.
        local: The limiter of the policy `"local"`.
        is_failing: Whether the store failed the last time it was asked.
        on_failure: Called when it begins to fail.
        degraded: Decisions made by a policy because the store failed.
        bad_requests: Requests refused because their id or cost is invalid.
        reservations: Tokens that a response has yet to settle.
    """

    def __init__(self, limiter: Limiter, expected_processes: int) -> None:
        if not is_whole(expected_processes, 1, _MAX_PROCESSES):
            raise ConfigError(f"expected_processes must be 1 or more, found {expected_processes!r}")
        self.limiter: Final = limiter
        self.local: Final = LocalLimiter(limiter, expected_processes)
        self.is_failing = False
        self.on_failure: Callable[[], object] = lambda: None
        self.degraded: Final = Counter()
        self.bad_requests: Final = Counter()
        self.reservations: Final = OpenReservations(self._release)
        # The limits with those that routes name, as they were when the routes were compiled.
        self._named: Final[dict[str, Limits]] = {}

    def has_limit(self, name: str) -> bool:
        """Return whether a limit is loaded; restore one that a route had before a reload."""
        limits = self.limiter.limits
        if name not in limits:
            return self.restore([name])
        self._named[name] = limits
        return True

    def restore(self, names: Iterable[str]) -> bool:
        """Load limits again that a reload left out although routes name them.

        Returns:
            Whether all of them are loaded.
        """
        is_complete = True
        for name in names:
            limits = self._named.get(name)
            if limits is not None and restore_limit(self.limiter, name, limits):
                _log.error(
                    "the reloaded limits lack %s, which a route names; its last limit stays active",
                    name,
                )
            is_complete = is_complete and (limits is not None or name in self.limiter.limits)
        return is_complete

    def report_failure(self, error: StoreError, entries: Iterable[Entry]) -> None:
        """Log that the store fails, and what applies to entries: once, not for each request."""
        if not self.is_failing:
            self.is_failing = True
            self.on_failure()
            policies = {limit.on_store_error for limit, _, _ in entries}
            policy, effect = next(each for each in _EFFECTS.items() if each[0] in policies)
            _log.warning("store failed (%s); %s (on_store_error=%s)", error, effect, policy)

    def report_success(self) -> None:
        """Log that the store works again."""
        self.is_failing = False
        _log.warning("the store works again")

    def change(
        self, changes: Sequence[tuple[Entry, int, int]], *, degraded: bool
    ) -> list[Decision | None]:
        """Replace what entries have taken by what they cost, each on its own.

        Args:
            changes: An entry, what it has taken, and what it costs.
            degraded: Whether this process decided, because the store failed.

        Returns:
            The decision of each, in order; `None` if there is nothing to change.

        Raises:
            StoreError: The store fails.
        """
        if degraded:
            return [self.local.change(entry, taken, cost) for entry, taken, cost in changes]
        later: list[Decision | None] = [None] * len(changes)
        # By verb, because several refunds or spends are one call to the store.
        refunds: dict[int, Entry] = {}
        spends: dict[int, Entry] = {}
        for index, ((limit, id, estimate), taken, cost) in enumerate(changes):
            if cost < taken:
                refunds[index] = (limit, id, taken - cost)
            elif cost > taken and taken == 0 and cost == estimate:
                spends[index] = (limit, id, cost)
            elif cost > taken:
                # More than was expected: it may overdraw the bucket.
                reservation = limit.unadjusted.reserve(id, 0, factor=limit.factor)
                later[index] = reservation.settle(cost - taken)
            elif limit.is_deferred:
                later[index] = limit.bound.check(id, 0)
        for entries, verb in ((refunds, "refund"), (spends, "spend")):
            if entries:
                decisions = self._finish([*entries.values()], verb)
                for index, decision in zip(entries, decisions, strict=True):
                    later[index] = decision
        return [
            # The client may use the part of the bucket above the tokens that it keeps.
            limit.bound.check(id, 0) if limit.keep and decision is not None else decision
            for ((limit, id, _), _, _), decision in zip(changes, later, strict=True)
        ]

    def recharge(self, changes: Sequence[tuple[Entry, int, int]], degraded: bool) -> None:
        """Do the same as `change` after the response; log a failure unless a limit raises it.

        Raises:
            StoreError: The store fails, and a limit has the policy `"raise"`.
        """
        try:
            self.change(changes, degraded=degraded)
        except StoreError as error:
            self.report_failure(error, [entry for entry, _, _ in changes])
            if any(limit.on_store_error == "raise" for (limit, _, _), _, _ in changes):
                raise

    def _release(self, entries: Sequence[Entry]) -> None:
        """Return the tokens of a reservation that nothing settled."""
        try:
            self._finish(entries, "refund")
        except StoreError as error:
            self.report_failure(error, entries)

    def _finish(self, entries: Sequence[Entry], verb: str) -> Sequence[Decision]:
        if len(entries) == 1:
            limit, id, cost = entries[0]
            # Without the tokens to keep: what was served is charged in full.
            change = limit.unadjusted.spend if verb == "spend" else limit.unadjusted.refund
            return (change(id, cost, factor=limit.factor),)
        if verb == "refund":
            return self.limiter.refund_all(_transactions(entries, "spend")).parts
        # The request was served, so the limits are charged independently, each as far as possible.
        return self.limiter.spend_all(_transactions(entries, "spend_only")).parts


def _transactions(entries: Sequence[Entry], kind: TransactionKind) -> list[Transaction]:
    return [Transaction(limit.name, id, cost, kind, limit.factor) for limit, id, cost in entries]
