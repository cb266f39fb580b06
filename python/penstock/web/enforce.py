"""Decides the limits of a request in one call, also while the store fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._core import Transaction
from penstock.web.headers import is_refused, strictest
from penstock.web.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision
    from penstock.errors import StoreError
    from penstock.types import AnyTransaction
    from penstock.web.events import Events
    from penstock.web.outcome import ResponseSettings
    from penstock.web.request import Request
    from penstock.web.rule import Entry


class Enforcer:
    """Decides entries of a request, each a limit with an id and a cost."""

    def __init__(self, settings: ResponseSettings, events: Events) -> None:
        self.events: Final = events
        self.settings: Final = settings
        self.store: Final = settings.store

    def decide(self, request: Request, entries: tuple[Entry, ...]) -> Outcome:
        """Decide all or nothing; shadow mode never denies.

        Raises:
            TransactionError: Two entries name one bucket.
            StoreError: The store fails.
        """
        parts: Sequence[Decision]
        decision: Decision | None = None
        if len(entries) == 1:
            parts = (_decide_one(entries[0]),)
        else:
            batch = [_transaction(entry) for entry in entries if not entry[0].is_shadow_deferred]
            whole = self.store.limiter.spend_all(batch)
            parts = whole.parts
            if len(batch) < len(entries):
                decided = iter(parts)
                parts = [
                    _decide_one(entry) if entry[0].is_shadow_deferred else next(decided)
                    for entry in entries
                ]
            if not whole.unlimited:
                decision = whole
        if decision is None:
            decision = strictest(parts)
            # Of entries without a decision over all, only a single enforced limit can deny.
            refused = len(entries) == 1 and is_refused(decision) and not entries[0][0].is_shadow
        else:
            refused = is_refused(decision)
        if self.store.is_failing:
            self.store.report_success()
        outcome = Outcome(self.settings, request, decision, entries, parts)
        return outcome.refuse("denied") if refused else outcome

    def decide_blocked(self, request: Request, entries: tuple[Entry, ...]) -> Outcome | None:
        """Refuse a client that is blocked, without taking anything; `None` if it is not blocked.

        Raises:
            StoreError: The store fails.
        """
        found = {
            index: part
            for index, (limit, id, cost) in enumerate(entries)
            if limit.penalty is not None
            and not limit.is_shadow
            and (part := limit.penalty.blocked_part(limit.bound, id, cost)) is not None
        }
        if not found:
            return None
        parts = [
            found[index] if index in found else limit.bound.check(id, cost)
            for index, (limit, id, cost) in enumerate(entries)
        ]
        outcome = Outcome(self.settings, request, strictest([*found.values()]), entries, parts)
        return outcome.refuse("denied")

    def penalize(self, outcome: Outcome) -> None:
        """Apply the penalties of the limits that denied a request.

        Raises:
            StoreError: The store fails.
        """
        parts = list(outcome.parts)
        denied = []
        for index, (limit, id, cost) in enumerate(outcome.entries):
            if is_refused(parts[index]) and not limit.is_shadow:
                if limit.penalty is not None:
                    parts[index] = limit.penalty.denied_part(limit.bound, id, cost, parts[index])
                denied.append(parts[index])
        outcome.parts, outcome.decision = parts, strictest(denied)

    def decide_without_store(
        self, request: Request, entries: tuple[Entry, ...], error: StoreError
    ) -> Outcome:
        """Decide by the `on_store_error` of the limits.

        Raises:
            StoreError: One of them is `"raise"`.
        """
        self.store.report_failure(error)
        if any(limit.on_store_error == "raise" for limit, _, _ in entries):
            raise error
        for limit, _, _ in entries:
            self.store.degraded.add(limit.name)
        if any(limit.on_store_error == "deny" and not limit.is_shadow for limit, _, _ in entries):
            outcome = Outcome(self.settings, request, None, (), ()).refuse("store")
        else:
            local = tuple(entry for entry in entries if entry[0].on_store_error == "local")
            outcome = self._decide_locally(request, local)
        outcome.is_degraded = True
        return outcome

    def _decide_locally(self, request: Request, entries: tuple[Entry, ...]) -> Outcome:
        if not entries:
            return Outcome(self.settings, request, None, (), ())
        parts = self.store.local.decide(
            [
                (
                    limit.name,
                    id,
                    cost,
                    "watch" if limit.is_shadow_deferred else limit.kind,
                    limit.factor,
                )
                for limit, id, cost in entries
            ]
        )
        denials = [
            part
            for part, (limit, _, _) in zip(parts, entries, strict=True)
            if is_refused(part) and not limit.is_shadow
        ]
        outcome = Outcome(self.settings, request, strictest(denials or parts), entries, parts)
        return outcome.refuse("denied") if denials else outcome

    def distinct(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries without those whose bucket a later one names in another spelling."""
        limits = self.store.limiter.limits
        found = {
            limits.explain(limit.name, id).bucket_key: (limit, id, c) for limit, id, c in entries
        }
        return tuple(found.values())


def _transaction(entry: Entry) -> AnyTransaction:
    limit, id, cost = entry
    if limit.factor is None:
        return limit.name, id, cost, limit.kind
    return Transaction(limit.name, id, cost, limit.kind, limit.factor)


def _decide_one(entry: Entry) -> Decision:
    limit, id, cost = entry
    if limit.is_deferred:
        return limit.bound.check(id, cost)
    return limit.bound.spend(id, cost)
