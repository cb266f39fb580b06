"""Decisions while the store fails: in this process, at its share of each limit.

If as many processes fall back as were expected, together they allow about what the store would
have allowed.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock._core import Limit, Limiter, Transaction
from penstock.errors import StoreError
from penstock.locks import fork_safe
from penstock.web.reservations import OpenReservations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock._core import Decision
    from penstock.types import Factor, Id, TransactionKind
    from penstock.web.rule import Entry

LocalKind: TypeAlias = Literal["spend", "check", "spend_only", "watch"]

_Call: TypeAlias = "tuple[str, Id, int, LocalKind, Factor | None]"

_log: Final = logging.getLogger("penstock")

_DECIDE: Final = ("spend", "check")
_SPEND: Final = ("spend", "spend_only")

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

    def decide(self, calls: Sequence[_Call]) -> list[Decision]:
        """Decide calls together, all or nothing; return their decisions, marked as degraded.

        A kind is that of a transaction, or `"watch"`, which is neither decisive nor spent.
        """
        # Each limit has a limiter of its own here, so all are checked first, under one lock.
        with self._lock:
            found = [
                (*self._find(name, id, cost, factor), kind)
                for name, id, cost, kind, factor in calls
            ]
            checked = [limiter.check(*call) for limiter, call, _ in found]
            decisive = (
                part for part, (_, _, kind) in zip(checked, found, strict=True) if kind in _DECIDE
            )
            parts = checked
            if all(decisive):
                parts = [
                    limiter.spend(*call) if kind in _SPEND else part
                    for part, (limiter, call, kind) in zip(checked, found, strict=True)
                ]
        return [part.replace(degraded=_DEGRADED) for part in parts]

    def change(self, entry: Entry, taken: int, cost: int) -> Decision | None:
        """Replace what an entry has taken by what it costs; `None` if both are the same."""
        limit, id, _ = entry
        if taken == cost:
            return None
        limiter, (name, canonical, tokens, factor) = self._find(
            limit.name, id, abs(cost - taken), limit.factor
        )
        do = limiter.refund if cost < taken else limiter.spend
        return do(name, canonical, tokens, factor).replace(degraded=_DEGRADED)

    def _find(
        self, name: str, id: Id, cost: int, factor: Factor | None
    ) -> tuple[Limiter, tuple[str, Id, int, Factor | None]]:
        why = self._limiter.limits.explain(name, id)
        limit = why.limit.share(self._processes)
        limiter = self._limiters.get((name, limit))
        if limiter is None:
            if len(self._limiters) >= _MAX_LIMITERS:
                self._limiters.clear()
            limiter = Limiter({name: limit}, clock=self._limiter.clock)
            self._limiters[name, limit] = limiter
        # The share may be smaller than a cost that the whole limit allows.
        return limiter, (name, why.id, min(cost, limit.max_cost), factor)


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

    Attributes:
        limiter: The limiter.
        local: The limiter of the policy `"local"`.
        is_failing: Whether the store failed the last time it was asked.
        on_failure: Called when it begins to fail.
        degraded: Decisions made by a policy because the store failed.
        bad_requests: Requests refused because their id or cost is invalid.
        reservations: Tokens that a response has yet to settle.
    """

    def __init__(self, limiter: Limiter, processes: int) -> None:
        self.limiter: Final = limiter
        self.local: Final = LocalLimiter(limiter, processes)
        self.is_failing = False
        self.on_failure: Callable[[], object] = lambda: None
        self.degraded: Final = Counter()
        self.bad_requests: Final = Counter()
        self.reservations: Final = OpenReservations(self._release)
        # The limits of the file that routes name, as they were when the routes were compiled.
        self._named: Final[dict[str, Limit]] = {}
        self._lock: Final = fork_safe(Lock())

    def has_limit(self, name: str) -> bool:
        """Return whether a limit is loaded; restore one that a route had before a reload."""
        limits = self.limiter.limits
        if name not in limits:
            return self.restore([name])
        # A limit with overrides alone allows all other clients.
        self._named[name] = limits.default(name) or Limit.unlimited()
        return True

    def restore(self, names: Iterable[str]) -> bool:
        """Load limits again that a reload left out although routes name them.

        Returns:
            Whether all of them are loaded.
        """
        with self._lock:
            limits = self.limiter.limits
            missing = {name: self._named.get(name) for name in names if name not in limits}
            found = {name: limit for name, limit in missing.items() if limit is not None}
            if found:
                self.limiter.reload(limits | found)
        for name in found:
            _log.error(
                "the reloaded limits lack %s, which a route names; its last limit stays active",
                name,
            )
        return found.keys() == missing.keys()

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
                later[index] = limit.bound.reserve(id, 0).settle(cost - taken)
            elif limit.is_deferred:
                later[index] = limit.bound.check(id, 0)
        for entries, verb in ((refunds, "refund"), (spends, "spend")):
            if entries:
                decisions = self._finish([*entries.values()], verb)
                for index, decision in zip(entries, decisions, strict=True):
                    later[index] = decision
        return later

    def recharge(self, changes: Sequence[tuple[Entry, int, int]], degraded: bool) -> None:
        """Do as `change`, after the response; a failure is logged unless a limit raises it.

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
            bound = limit.bound
            return (bound.spend(id, cost) if verb == "spend" else bound.refund(id, cost),)
        if verb == "refund":
            return self.limiter.refund_all(_transactions(entries, "spend")).parts
        # The request was served, so the limits are charged independently, each as far as possible.
        return self.limiter.spend_all(_transactions(entries, "spend_only")).parts


def _transactions(entries: Sequence[Entry], kind: TransactionKind) -> list[Transaction]:
    return [Transaction(limit.name, id, cost, kind, limit.factor) for limit, id, cost in entries]
