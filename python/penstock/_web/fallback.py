"""The store of a guard, and who decides while it fails.

If as many processes fall back as were expected, together they allow about what the store would
have allowed.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Final

from penstock._core import Limit, Limiter, Limits, restore_limit
from penstock._locks import fork_safe
from penstock._validation import has_slots, is_whole
from penstock._web.settle import OpenReservations, adjust, ask, verb_of
from penstock.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock._core import Decision, Reservation
    from penstock._web.settle import Asked, AskedLimit, Change, HeldSlots
    from penstock.types import Factor, Id

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

_DEGRADED: Final = "the store failed; this process decided by its share of the limit"


class LocalLimiter:
    """Decides in this process, with the clock of another limiter and a share of its limits."""

    def __init__(self, limiter: Limiter, processes: int) -> None:
        self._limiter: Final = limiter
        self._processes: Final = processes
        self._limiters: Final[dict[tuple[str, Limit], Limiter]] = {}
        self._lock: Final = fork_safe(Lock())

    def decide(self, entries: Sequence[Asked]) -> tuple[list[Decision], HeldSlots]:
        """Decide entries together, all or nothing; return their decisions, and what is held."""
        held: list[Reservation] = []
        # Each limit has a limiter of its own here, so all are checked first, under one lock.
        with self._lock:
            calls = [self._find(*entry) for entry in entries]
            parts = [_check(*call) for call in calls]
            if all(part or entry[0].is_shadow for part, entry in zip(parts, entries, strict=True)):
                for index, (limit, _, _) in enumerate(entries):
                    if not limit.is_deferred:
                        parts[index] = _take(*calls[index], held)
        return [_degraded(part) for part in parts], tuple(held)

    def change(self, entry: Asked, taken: int, cost: int) -> Decision | None:
        """Replace what an entry has taken by what it costs; `None` if both are the same."""
        if taken == cost:
            return None
        limit, id, _ = entry
        limiter, call, keep = self._find(limit, id, abs(cost - taken))
        name, canonical, change, factor = call
        make = getattr(limiter, verb_of(entry, taken, cost))
        decision: Decision = make(name, canonical, change, factor=factor)
        if keep:
            decision = limiter.check(name, canonical, 0, factor=factor, keep=keep)
        return _degraded(decision)

    def _find(
        self, of: AskedLimit, id: Id, cost: int
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


class Counter:
    """Counts rare events by limit name; thread-safe."""

    def __init__(self) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._lock: Final = fork_safe(Lock())

    def add(self, name: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, int]:
        """Return the current counts."""
        with self._lock:
            return self._counts.copy()


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

    def report_failure(self, error: StoreError, entries: Iterable[Asked]) -> None:
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

    def change(self, changes: Sequence[Change], *, degraded: bool) -> list[Decision | None]:
        """Replace what entries have taken by what they cost, as `adjust` does.

        Args:
            changes: What changes.
            degraded: Whether this process decided, because the store failed.

        Raises:
            StoreError: The store fails.
        """
        if degraded:
            return [self.local.change(*change) for change in changes]
        return adjust(self.limiter, changes)

    def recharge(self, changes: Sequence[Change], degraded: bool) -> None:
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

    def _release(self, entries: Sequence[Asked]) -> None:
        """Return the tokens of a reservation that nothing settled."""
        try:
            ask(self.limiter, [(entry, "refund") for entry in entries])
        except StoreError as error:
            self.report_failure(error, entries)
