"""From the limits of a request to their decisions, also when the store fails."""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from penstock.web.fallback import LocalKind, LocalLimiter
from penstock.web.headers import is_refused, strictest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision, Limiter
    from penstock.errors import StoreError
    from penstock.web.request import Id
    from penstock.web.rule import CompiledLimit

Entry: TypeAlias = "tuple[CompiledLimit, Id, int]"
"""A limit, an id and a cost: one transaction of a request."""

_log: Final = logging.getLogger("penstock")


class Verdict(NamedTuple):
    """What was decided about some entries.

    Attributes:
        decision: The decision over all; `None` where none was made.
        entries: The entries that were decided.
        parts: Their decisions, in the same order.
        is_refused: Whether the request must be refused.
    """

    decision: Decision | None
    entries: tuple[Entry, ...]
    parts: Sequence[Decision]
    is_refused: bool


class Counter:
    """Counts by limit name what is rare, from any thread."""

    def __init__(self) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._lock: Final = Lock()

    def add(self, name: str) -> None:
        """Count one more."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, int]:
        """Give all counts as they are now."""
        with self._lock:
            return self._counts.copy()


class Enforcer:
    """Puts the limits of a request to a limiter as one question."""

    def __init__(self, limiter: Limiter, processes: int) -> None:
        self.limiter: Final = limiter
        self.is_failing = False
        self.degraded: Final = Counter()
        self.bad_requests: Final = Counter()
        self._local: Final = LocalLimiter(limiter, processes)

    def decide(self, entries: tuple[Entry, ...]) -> Verdict:
        """Decide, all or nothing; `deduct_when` is only checked, a shadow limit stops nothing.

        Raises:
            TransactionError: Two entries are one bucket.
            StoreError: The store cannot answer.
        """
        parts: Sequence[Decision]
        if len(entries) == 1:
            parts = (self._decide_one(entries[0]),)
        else:
            batch = [
                (t.name, id, cost, t.kind) for t, id, cost in entries if not t.is_shadow_deferred
            ]
            whole = self.limiter.spend_all(batch)
            parts = whole.parts
            if len(batch) < len(entries):
                decided = iter(parts)
                parts = [
                    self._decide_one(e) if e[0].is_shadow_deferred else next(decided)
                    for e in entries
                ]
            if not whole.unlimited:
                return Verdict(whole, entries, parts, is_refused(whole))
        # Nothing here can refuse but a single limit that is no shadow; the strictest speaks for the
        # others.
        term = entries[0][0]
        chief = strictest(parts)
        refused = len(entries) == 1 and is_refused(chief) and not term.is_shadow
        return Verdict(chief, entries, parts, refused)

    def decide_without_store(self, entries: tuple[Entry, ...], error: StoreError) -> Verdict:
        """Decide by the policies of the limits.

        Raises:
            StoreError: One of them is to raise.
        """
        self.store_failed(error)
        policies = {term.on_store_error for term, _, _ in entries}
        if "raise" in policies:
            raise error
        for term, _, _ in entries:
            self.degraded.add(term.name)
        if any(t.on_store_error == "deny" and not t.is_shadow for t, _, _ in entries):
            return Verdict(None, (), (), is_refused=True)
        local = tuple(entry for entry in entries if entry[0].on_store_error == "local")
        if not local:
            return Verdict(None, (), (), is_refused=False)
        parts = self._local.decide(
            [
                (t.name, id, cost, "watch" if t.is_shadow_deferred else t.kind)
                for t, id, cost in local
            ]
        )
        refusing = [
            part
            for part, (term, _, _) in zip(parts, local, strict=True)
            if is_refused(part) and not term.is_shadow
        ]
        return Verdict(strictest(refusing or parts), local, parts, bool(refusing))

    def finish(
        self, entries: Sequence[Entry], verb: Literal["spend", "refund"], *, degraded: bool
    ) -> Sequence[Decision]:
        """Spend what was only checked, or give back what was spent, each on its own; in order.

        Raises:
            StoreError: The store cannot answer.
        """
        calls = [(term.name, id, cost) for term, id, cost in entries]
        if degraded:
            # What this process has decided in the store's place it does not give back: an outage is
            # short.
            kind: LocalKind = "spend" if verb == "spend" else "check"
            return [part for call in calls for part in self._local.decide([(*call, kind)])]
        if len(entries) == 1:
            term, id, cost = entries[0]
            return (term.bound.spend(id, cost) if verb == "spend" else term.bound.refund(id, cost),)
        if verb == "refund":
            return self.limiter.refund_all(calls).parts
        # The request is served already, so that none stops another: each takes what it has room
        # for.
        return self.limiter.spend_all([(*call, "spend_only") for call in calls]).parts

    def distinct(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Keep the last of the entries that are one bucket in different spellings."""
        limits = self.limiter.limits
        found = {limits.explain(entry[0].name, entry[1]).bucket_key: entry for entry in entries}
        return tuple(found.values())

    def store_failed(self, error: StoreError) -> None:
        """Say that the store fails: once, not for each request."""
        if not self.is_failing:
            self.is_failing = True
            _log.warning("the store cannot answer, the limits' policies do: %s", error)

    def store_answered(self) -> None:
        """Say that the store answers again."""
        self.is_failing = False
        _log.warning("the store answers again")

    @staticmethod
    def _decide_one(entry: Entry) -> Decision:
        term, id, cost = entry
        if term.deduct_when is not None:
            return term.bound.check(id, cost)
        return term.bound.spend(id, cost)
