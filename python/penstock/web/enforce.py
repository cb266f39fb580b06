"""Decides the limits of a request in one call, also while the store fails.

Decisions are generators that yield store calls. A thread executes them; an event loop awaits the
replies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock._core import Decision, Limiter, unlimited_decision
from penstock.aio import AsyncLimiter, ask, ask_all
from penstock.errors import ConfigError
from penstock.validation import is_coroutine_function, is_number, takes
from penstock.web.headers import strictest, values
from penstock.web.outcome import Outcome
from penstock.web.penalty import denial
from penstock.web.store_access import Counter, HeldSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from penstock._core import ManualClock, Reservation, SystemClock
    from penstock.errors import StoreError
    from penstock.types import AnyTransaction, Transaction
    from penstock.web.compiled_limit import Entry
    from penstock.web.outcome import ResponseSettings
    from penstock.web.request import Request
    from penstock.web.setup_checks import Watch


Call: TypeAlias = tuple[Literal["one", "all", "hold", "run"], Any]
"""A call to the store: decide one entry, or transactions as one, hold them, or run a function."""
Steps: TypeAlias = "Generator[Call, Any, Outcome]"
"""Yields calls to the store, is sent their answers, and returns an outcome."""


NOTHING: Final = unlimited_decision(0).replace(settle=lambda _: None)
"""The decision of a request that no limit applies to: allowed, and unlimited."""
UNLIMITED: Final = NOTHING.replace(degraded="the store failed; the request was allowed")
"""The decision of a request that a limit would have decided, if the store had not failed."""


_log: Final = logging.getLogger("penstock")
_refusals: Final = logging.getLogger("penstock.refusals")

# Refused clients must not be able to fill the disk.
_RECORDS: Final = "10/second, burst 100"
_STATUSES: Final = {"denied": 429, "store": 503, "request": 400}
# What a client sends is cut here; e-mail addresses are shorter.
_MAX_LENGTH: Final = 256


def used_share(decision: Decision) -> float:
    """Return the used share of a limit's quota, from 0 to 1; 0 if no limit applies.

    Examples:
        >>> from penstock.guard import used_share
        >>> limiter = penstock.Limiter({"Orders": "5/minute"}, clock=penstock.ManualClock())
        >>> used_share(limiter.spend("Orders", "ada", 4))
        0.8
    """
    if decision.unlimited:
        return 0.0
    quota = values(decision).quota
    return max(quota - decision.remaining, 0) / quota


class Observers:
    """Reports the decisions of a guard.

    Args:
        clock: The clock of the guard.
        on_decision: Called with each decision and the framework's request.
        near_limit: The used share of a quota from which decisions are counted.

    Raises:
        ConfigError: An option is invalid.

    Attributes:
        near: Decisions that used at least the share `near_limit`, by limit name.
        is_observed: Whether decisions have to be passed to `report_decision`.
    """

    def __init__(
        self,
        clock: SystemClock | ManualClock,
        on_decision: Callable[[Decision, Any], object] | None,
        near_limit: float | None,
    ) -> None:
        if on_decision is not None and (
            is_coroutine_function(on_decision) or not takes(on_decision, 2)
        ):
            raise ConfigError(
                f"on_decision must be a function of the decision and the request, "
                f"found {on_decision!r}"
            )
        if near_limit is not None and not is_number(near_limit, 0, 1):
            raise ConfigError(f"near_limit must be from 0 to 1, found {near_limit!r}; 0.8 is 80 %")
        self.near: Final = Counter()
        self.is_observed: Final = on_decision is not None or near_limit is not None
        self._on_decision: Final = on_decision
        self._near_limit: Final = near_limit
        self._records: Final = Limiter({"records": _RECORDS}, clock=clock).limit("records")
        self._suppressed = 0

    def report_decision(self, outcome: Outcome) -> None:
        """Report a decision."""
        decision = outcome.decision
        if decision is None:
            return
        share = self._near_limit
        if share is not None:
            for part in outcome.parts:
                if part.name is not None and used_share(part) >= share:
                    self.near.add(part.name)
        if self._on_decision is not None:
            try:
                self._on_decision(decision, outcome.request.native)
            except Exception:  # noqa: BLE001  any error of the user's code
                # The request has been decided, and must not fail because of an observer.
                _log.exception("on_decision raised an exception")

    def report_refusal(self, outcome: Outcome) -> None:
        """Log a refusal, unless there are too many."""
        if not _refusals.isEnabledFor(logging.INFO):
            return
        if not self._records.spend("refusals"):
            self._suppressed += 1
            return
        suppressed, self._suppressed = self._suppressed, 0
        decision, request = outcome.decision, outcome.request
        reason = outcome.refusal or "denied"
        limit = None if decision is None else decision.binding
        id = None if decision is None or decision.id is None else decision.id[:_MAX_LENGTH]
        retry_after = outcome.retry_after
        _refusals.info(
            "refused with status %d: %s, limit %s, id %r, retry after %s s",
            _STATUSES[reason],
            reason,
            limit,
            id,
            retry_after,
            extra={
                "status": _STATUSES[reason],
                "reason": reason,
                "limit": limit,
                "id": id,
                "retry_after": retry_after,
                "method": request.method[:_MAX_LENGTH],
                "route": request.route,
                "suppressed": suppressed,
            },
        )


class Enforcer:
    """Decides entries of a request, each a limit with an id and a cost."""

    def __init__(self, settings: ResponseSettings, observers: Observers, watch: Watch) -> None:
        self.observers: Final = observers
        self.settings: Final = settings
        self.store: Final = settings.store
        self._is_remote: Final = self.store.limiter.is_remote
        self.watch: Final = watch

    def decide(self, request: Request, entries: tuple[Entry, ...]) -> Steps:
        """Decide all or nothing; shadow mode never denies.

        Raises:
            TransactionError: Two entries name one bucket.
            StoreError: The store fails.
        """
        parts: Sequence[Decision]
        decision: Decision | None = None
        blocks = self._blocks(entries) if self._is_remote else ()
        holds = any(limit.holds for limit, _, _ in entries)
        slots: HeldSlots | None = None
        if len(entries) == 1 and not (blocks or holds):
            parts = ((yield "one", entries[0]),)
        else:
            batch = [transaction(entry) for entry in entries if not entry[0].is_shadow_deferred]
            batch += (check for _, check in blocks)
            if holds:
                reservation = yield "hold", batch
                whole, slots = reservation.decision, HeldSlots((reservation,))
            else:
                whole = yield "all", batch
            decided = iter(whole.parts)
            parts = []
            for entry in entries:
                is_left_out = entry[0].is_shadow_deferred
                parts.append((yield "one", entry) if is_left_out else next(decided))
            if blocks:
                denied = _blocked_parts(parts, [*zip(blocks, decided, strict=True)])
                if denied:
                    return self._refuse_blocked(request, entries, parts, denied)
                decision = _without_blocks(entries, parts)
            elif not whole.unlimited:
                decision = whole
        if decision is None:
            decision = strictest(parts)
            # Of entries without a decision over all, only a single enforced limit can deny.
            refused = len(entries) == 1 and not decision and not entries[0][0].is_shadow
        else:
            refused = not decision
        if self.store.is_failing:
            self.store.report_success()
        outcome = Outcome(self.settings, request, decision, entries, parts)
        if refused:
            return outcome.refuse("denied")
        outcome.slots = slots
        return outcome

    def decide_blocked(self, request: Request, entries: tuple[Entry, ...]) -> Outcome | None:
        """Refuse a client that is blocked, without taking anything; `None` if it is not blocked.

        Over a server, `decide` does so in the same call.

        Raises:
            StoreError: The store fails.
        """
        if self._is_remote:
            return None
        denied = {
            index: part
            for index, (limit, id, cost) in enumerate(entries)
            if limit.penalty is not None
            and not limit.is_shadow
            and (part := limit.penalty.blocked_part(limit.bound, id, cost)) is not None
        }
        if not denied:
            return None
        parts = [
            denied[index] if index in denied else limit.bound.check(id, cost)
            for index, (limit, id, cost) in enumerate(entries)
        ]
        return self._refuse_blocked(request, entries, parts, denied)

    def _refuse_blocked(
        self,
        request: Request,
        entries: tuple[Entry, ...],
        parts: Sequence[Decision],
        denied: Mapping[int, Decision],
    ) -> Outcome:
        parts = [denied.get(index, part) for index, part in enumerate(parts)]
        outcome = Outcome(self.settings, request, strictest([*denied.values()]), entries, parts)
        outcome.is_blocked = True
        return outcome.refuse("denied")

    def _blocks(self, entries: tuple[Entry, ...]) -> list[tuple[int, Transaction]]:
        """Return checks of the blocks of clients, each with the index of its entry."""
        return [
            (index, check)
            for index, (limit, id, _) in enumerate(entries)
            if limit.penalty is not None and not limit.is_shadow
            for check in limit.penalty.checks(limit.bound, id)
        ]

    def penalize(self, outcome: Outcome) -> None:
        """Apply the penalties of the limits that denied a request.

        Raises:
            StoreError: The store fails.
        """
        parts = list(outcome.parts)
        denied = []
        for index, (limit, id, cost) in enumerate(outcome.entries):
            if not (parts[index] or limit.is_shadow):
                if limit.penalty is not None:
                    parts[index] = limit.penalty.denied_part(limit.bound, id, cost, parts[index])
                denied.append(parts[index])
        outcome.replace(parts, strictest(denied))

    def decide_without_store(
        self, request: Request, entries: tuple[Entry, ...], error: StoreError
    ) -> Outcome:
        """Decide by the `on_store_error` of the limits.

        Raises:
            StoreError: One of them is `"raise"`.
        """
        self.store.report_failure(error, entries)
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
        held: list[Reservation] = []
        parts = self.store.local.decide(
            [
                (
                    limit.name,
                    id,
                    cost,
                    "watch" if limit.is_shadow_deferred else limit.kind,
                    limit.factor,
                    limit.keep,
                )
                for limit, id, cost in entries
            ],
            held,
        )
        denials = [
            part
            for part, (limit, _, _) in zip(parts, entries, strict=True)
            if not (part or limit.is_shadow)
        ]
        outcome = Outcome(self.settings, request, strictest(denials or parts), entries, parts)
        if denials:
            return outcome.refuse("denied")
        outcome.slots = HeldSlots(held) if held else None
        return outcome

    def distinct(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries without those whose bucket a later one names in another spelling."""
        limits = self.store.limiter.limits
        found = {
            limits.explain(limit.name, id).bucket_key: (limit, id, c) for limit, id, c in entries
        }
        return tuple(found.values())


def take(limiter: Limiter, steps: Steps) -> Outcome:
    """Take steps in this thread."""
    spend_all = limiter.spend_all
    try:
        verb, given = next(steps)
        while True:
            try:
                if verb == "all":
                    answer: Any = spend_all(given)
                elif verb == "hold":
                    answer = limiter.reserve_all(given)
                else:
                    answer = _decide(given) if verb == "one" else given()
            except Exception as error:  # noqa: BLE001  the steps decide about it
                verb, given = steps.throw(error)
            else:
                verb, given = steps.send(answer)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _decide(entry: Entry) -> Decision:
    limit, id, cost = entry
    return limit.bound.check(id, cost) if limit.is_deferred else limit.bound.spend(id, cost)


async def take_async(limiter: Limiter, steps: Steps) -> Outcome:
    """Take steps on an event loop."""
    try:
        verb, given = next(steps)
        while True:
            try:
                if verb == "run":
                    answer: Any = await asyncio.to_thread(given)
                elif verb == "hold":
                    answer = (await AsyncLimiter(limiter).reserve_all(given)).reservation
                elif verb == "all":
                    answer = ask_all("spend", limiter, given)
                else:
                    limit, id, cost = given
                    asked: Literal["check", "spend"] = "check" if limit.is_deferred else "spend"
                    answer = ask(asked, limit.unadjusted, id, cost, limit.factor, keep=limit.keep)
                if asyncio.isfuture(answer):
                    answer = await answer
            except Exception as error:  # noqa: BLE001  the steps decide about it
                verb, given = steps.throw(error)
            else:
                verb, given = steps.send(answer)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def transaction(entry: Entry) -> AnyTransaction:
    """Return an entry as a part of a batch."""
    limit, id, cost = entry
    return limit.name, id, cost, limit.kind, limit.factor, limit.keep


def _blocked_parts(
    parts: Sequence[Decision], blocks: Sequence[tuple[tuple[int, Transaction], Decision]]
) -> dict[int, Decision]:
    """Return the denials of the entries whose client is blocked, by index."""
    waits: dict[int, int] = {}
    for (index, _), block in blocks:
        if not block.allowed:
            waits[index] = max(waits.get(index, 0), block.retry_after_ns)
    return {index: denial(parts[index], wait) for index, wait in waits.items()}


def _without_blocks(entries: tuple[Entry, ...], parts: Sequence[Decision]) -> Decision:
    """Return the decision over all entries; one with blocks is enforced."""
    enforced = [
        part for (limit, _, _), part in zip(entries, parts, strict=True) if not limit.is_shadow
    ]
    decision = strictest(enforced)
    return decision if len(parts) == 1 else decision.replace(parts=parts)
