"""Decides a request under the limits of its route.

One generator decides: it reads the request, asks the store, and concludes. It yields each call to
the store; a thread makes the call, an event loop awaits its answer. `Visit` makes the first call of
an ordinary request ahead: if it allows the request and nothing follows, no generator is needed.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock._core import Decision, Limiter, try_spend, unlimited_decision
from penstock._validation import has_slots
from penstock._web.address import PeerIds
from penstock._web.compiled_limit import CompiledLimit
from penstock._web.headers import strictest
from penstock._web.outcome import Outcome
from penstock._web.penalty import charge_denied, denial
from penstock._web.request import MissingCost, MissingId
from penstock.aio import AsyncLimiter, ask, ask_all
from penstock.errors import (
    CostTooHigh,
    Error,
    InvalidId,
    LimitError,
    StoreError,
    TransactionError,
    UnknownLimit,
)
from penstock.messages import COST_TOO_HIGH, MALFORMED_COST, MALFORMED_ID, MISSING_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from penstock._web.compiled_limit import Entry, PerRequestLimit
    from penstock._web.outcome import ResponseSettings
    from penstock._web.request import Request, Requested
    from penstock._web.settle import HeldSlots
    from penstock._web.setup_checks import Watch
    from penstock.types import AnyTransaction, Id, Transaction

Call: TypeAlias = tuple[Literal["one", "all", "hold", "run"], Any]
"""A call to the store: decide one entry, or transactions as one, hold them, or run a function."""
Steps: TypeAlias = "Generator[Call, Any, Outcome | Allowed]"
"""Yields calls to the store, is sent their answers, and returns what follows."""
_Block: TypeAlias = "tuple[int, Transaction]"
"""The check whether a client is blocked, after the index of its entry."""
_Denied: TypeAlias = "Mapping[int, Decision]"
"""The denials of clients that are blocked, by the index of their entry."""


class Allowed(NamedTuple):
    """A decision that allows a request, and from which nothing else follows."""

    entries: tuple[Entry, ...]
    decision: Decision
    slots: HeldSlots


NOTHING: Final = unlimited_decision(0).replace(settle=lambda _: None)
"""The decision of a request that no limit applies to: allowed, and unlimited."""
UNLIMITED: Final = NOTHING.replace(degraded="the store failed; the request was allowed")
"""The decision of a request that a limit would have decided, if the store had not failed."""

# Shared, because what a waiting request holds makes the garbage collector run.
_NO_BLOCKS: Final[tuple[Sequence[_Block], _Denied]] = ((), {})

_log: Final = logging.getLogger("penstock")
_UNKNOWN: Final = PeerIds(lambda _: None)


class RouteLimits:
    """Limits of a route, decided together; `Visit.enter` applies them to a request.

    Attributes:
        limits: The limits.
        ids_of_peers: The id under all of them by the address of a peer; `None` if the request has
            to be read.
        add_peer: Adds the id of a peer to `ids_of_peers`, and returns it.
        id_of: Reads that id; `None` if more of the request has to be read.
        spend: Decides all of them for that id; returns a reservation if one of them has slots.
        spend_now: Does the same if it has to wait for nothing; else returns `None`.
        fields: Returns header fields of a response, and those of such a decision.
        encoded_fields: Returns the same as bytes.
        holds: Whether `spend` returns a reservation.
        has_outcome: Whether a decision has consequences beyond its header fields and its slots.
        watch: Looks at decided requests, while it is awake.
        limiter: The limiter that decides.
        may_wait: Whether a decision may wait for a server or for another process, so that an event
            loop must not call `spend`.
        needs_response: Whether a limit is settled or refunded after the response.
        needs_end: Whether this is so, or a limit has slots that its end returns.
    """

    def __init__(
        self,
        settings: ResponseSettings,
        watch: Watch,
        report: Callable[[Outcome], object],
        limits: Sequence[CompiledLimit | PerRequestLimit],
    ) -> None:
        self.limits: Final = tuple(limits)
        self.needs_response: Final = any(limit.rule.needs_response for limit in limits)
        self.needs_end = self.needs_response or any(limit.holds for limit in limits)
        enforced = [limit.rule for limit in limits if not limit.is_shadow]
        self._penalizes: Final = any(rule.count_denied or rule.blocks for rule in enforced)
        self._has_shadow: Final = len(enforced) < len(limits)
        self.settings: Final = settings
        self.limiter: Final = settings.store.limiter
        self.may_wait: Final = self.limiter.may_wait
        self.watch: Final = watch
        self._store: Final = settings.store
        self._report: Final = report
        self._logged: Final[set[tuple[str, type]]] = set()
        # A limit that a default and a route both name counts once, as the route defines it.
        plain = {each.name: each for each in limits if isinstance(each, CompiledLimit)}
        self._plain: Final = (
            tuple(plain.values()) if all(limit.is_plain for limit in limits) else ()
        )
        peers = _peers(self._plain)
        self.ids_of_peers: Final[Mapping[str | None, Id | None]] = peers.ids
        self.add_peer: Final[Callable[[str | None], Id | None]] = peers.add
        self.id_of: Final = self._plain[0].id_of if len(self._plain) == 1 else None
        self.holds: Final = any(limit.holds for limit in self._plain)
        self.spend: Final = self._spend_of(self._plain)
        self.spend_now: Final = self._spend_now_of(self._plain)
        writer = settings.writer
        self.fields: Final = writer.fields
        self.encoded_fields: Final = writer.encoded_fields
        # Fields that have one value, or come with further ones, are merged with the response's.
        is_merged = settings.exposed is not None or writer.has_single_fields
        self.has_outcome: Final = is_merged or self.needs_response or settings.is_observed

    def _spend_of(self, plain: tuple[CompiledLimit, ...]) -> Callable[[Id], Any]:
        if len(plain) == 1:
            (limit,) = plain
            if self.holds:
                return lambda id: limit.bound.reserve(id, limit.cost)
            # The core reads an argument more slowly than it takes the default.
            spend = limit.bound.spend
            return spend if limit.cost == 1 else partial(spend, cost=limit.cost)
        decide = self.limiter.reserve_all if self.holds else self.limiter.spend_all
        if any(limit.bound is not limit.unadjusted for limit in plain):
            return lambda id: decide([transaction((x, id, x.cost)) for x in plain])
        calls = [(limit.name, limit.cost) for limit in plain]
        return lambda id: decide([(name, id, cost, "spend") for name, cost in calls])

    def _spend_now_of(self, plain: tuple[CompiledLimit, ...]) -> Callable[[Id], Any]:
        if not self.may_wait:
            return self.spend
        if len(plain) == 1 and not (self.holds or self.limiter.is_remote):
            (limit,) = plain
            if limit.bound is limit.unadjusted:
                # Another process is rarely in the way.
                return partial(try_spend, limit.bound, cost=limit.cost)
        return lambda _: None

    def entries(self, id: Id) -> tuple[Entry, ...]:
        """Return what is asked of the store for an id."""
        return tuple([(limit, id, limit.cost) for limit in self._plain])

    def decide(
        self, visit: Requested, earlier: Outcome | None, id: Id | None = None, answer: Any = None
    ) -> Steps:
        """Decide a request.

        Args:
            visit: What has the request, which is read only if something needs it.
            earlier: The outcome of limits that were decided for it before.
            id: The id under all limits, if nothing else has to be read.
            answer: What the store has answered to the first call, or its error; `None` if it has
                not been made.
        """
        step: tuple[Entry, ...] | Outcome | Allowed = self._first(visit, earlier, id, answer)
        if not step:
            step = earlier or Outcome(self.settings, visit.request, None, (), ())
        else:
            is_ahead = answer is not None
            while not isinstance(step, Outcome | Allowed):
                entries = step
                try:
                    if isinstance(answer, Error):
                        raise answer
                    step = yield from self._ask(visit, entries, earlier, answer)
                except Error as error:
                    step = self._after_error(visit.request, entries, error, is_ahead=is_ahead)
                    answer, is_ahead = None, False
            if isinstance(step, Outcome):
                step = self._conclude(step).merge_earlier(earlier)
        try:
            if self.watch.is_awake and earlier is None:
                is_refused = isinstance(step, Outcome) and (step.refusal or step.is_degraded)
                self.watch.look(visit.request, step.entries, () if is_refused else self.limits)
            if isinstance(step, Outcome) and step is not earlier:
                self._report(step)
        except BaseException:
            # Such as a timeout of gevent in a callable: nothing else knows of the slots.
            _release(step.slots)
            raise
        return step

    def _first(
        self, visit: Requested, earlier: Outcome | None, id: Id | None, answer: Any
    ) -> tuple[Entry, ...] | Outcome:
        """Return what is asked of the store; the outcome of a request without an id or cost."""
        if id is not None:
            return self.entries(id)
        if answer is None:
            return self._read(visit.request, earlier)
        if isinstance(answer, MissingId | InvalidId | CostTooHigh):
            return self._bad_request(visit.request, self._plain[0], answer)
        raise answer

    def _read(self, request: Request, earlier: Outcome | None) -> tuple[Entry, ...] | Outcome:
        """Return what is asked of the store; the outcome of a request without an id or cost."""
        applied = {} if earlier is None else earlier.buckets()
        # By bucket: one that a default and a route both name counts once, as the route defines it.
        entries: dict[tuple[str, Id], Entry] = {}
        for each in self.limits:
            if not (each.is_plain or each.rule.applies_to(request)):
                continue
            limit = each if isinstance(each, CompiledLimit) else each.choose(request)
            if limit is None:
                continue
            if limit.is_chosen:
                limit = limit.choose(request)
            try:
                id = limit.id_of(request)
                if limit.is_ipv6_only and not (isinstance(id, str) and ":" in id):
                    continue
                bucket = (limit.name, id)
                # Not again if another rule applied it; this rule counts each call.
                if applied.get(bucket, limit.rule) is limit.rule:
                    cost = limit.cost if limit.cost_of is None else _cost(limit.cost_of(request))
                    entries[bucket] = (limit, id, cost)
            except (MissingId, MissingCost) as error:
                if not limit.is_shadow:
                    return self._bad_request(request, limit, error)
        return tuple(entries.values())

    def _ask(
        self,
        visit: Requested,
        entries: tuple[Entry, ...],
        earlier: Outcome | None,
        answer: Any,
    ) -> Steps:
        """Decide all or nothing; shadow mode never denies."""
        blocks, blocked = self._look_for_blocks(entries) if self._penalizes else _NO_BLOCKS
        if blocked:
            return self._refuse_blocked(visit.request, entries, None, blocked)
        slots: HeldSlots = ()
        if len(entries) == 1 and not (blocks or entries[0][0].holds):
            # Of entries without a decision over all, only a single enforced limit can deny.
            decision = (yield "one", entries[0]) if answer is None else answer
            parts = [decision]
            is_refused = not (decision or self._has_shadow)
        else:
            whole, slots, parts, denied = yield from self._ask_batch(entries, blocks, answer)
            if denied:
                return self._refuse_blocked(visit.request, entries, parts, denied)
            decision = _without_blocks(entries, parts) if blocks else whole
            is_refused = not decision
            if decision.unlimited:
                decision = strictest(parts)
        if self._store.is_failing:
            self._store.report_success()
        if not (is_refused or self.has_outcome or self._has_shadow or earlier):
            return Allowed(entries, decision, slots)
        outcome = Outcome(self.settings, visit.request, decision, entries, parts)
        if not is_refused:
            outcome.slots = slots
            return outcome
        outcome.refusal = "denied"
        if self._penalizes:
            yield "run", partial(_penalize, self.limiter, outcome)
        return outcome

    def _look_for_blocks(self, entries: tuple[Entry, ...]) -> tuple[Sequence[_Block], _Denied]:
        """Return the checks of blocks to ask a server for; denials, where that needs no server."""
        if self.limiter.is_remote:
            return _blocks(entries), {}
        return [], _blocked(entries)

    def _ask_batch(
        self,
        entries: tuple[Entry, ...],
        blocks: Sequence[_Block],
        answer: Any,
    ) -> Generator[Call, Any, tuple[Decision, HeldSlots, list[Decision], _Denied]]:
        """Decide entries together, with the blocks of clients.

        Returns:
            The decision over all, the slots that are held, the decision of each entry, and the
            denials of blocked clients.
        """
        holds = any(limit.holds for limit, _, _ in entries)
        if answer is None:
            batch = [transaction(each) for each in entries if not each[0].is_shadow_deferred]
            batch += (check for _, check in blocks)
            answer = yield "hold" if holds else "all", batch
        whole: Decision = answer.decision if holds else answer
        slots = (answer,) if holds else ()
        decided = iter(whole.parts)
        parts: list[Decision] = []
        try:
            for entry in entries:
                is_left_out = entry[0].is_shadow_deferred
                parts.append((yield "one", entry) if is_left_out else next(decided))
        except BaseException:
            _release(slots)
            raise
        denied = _blocked_parts(parts, [*zip(blocks, decided, strict=True)]) if blocks else {}
        return whole, slots, parts, denied

    def _refuse_blocked(
        self,
        request: Request,
        entries: tuple[Entry, ...],
        parts: Sequence[Decision] | None,
        denied: _Denied,
    ) -> Outcome:
        """Refuse a request of a blocked client; without `parts`, nothing else was asked."""
        if parts is None:
            parts = [limit.bound.check(id, cost) for limit, id, cost in entries]
        parts = [denied.get(index, part) for index, part in enumerate(parts)]
        decision = strictest([*denied.values()])
        return Outcome(self.settings, request, decision, entries, parts).refuse("denied")

    def _after_error(
        self, request: Request, entries: tuple[Entry, ...], error: Error, *, is_ahead: bool
    ) -> tuple[Entry, ...] | Outcome:
        """Return what to ask instead after an error, or the outcome; nothing has been taken.

        Raises:
            Error: Nothing can be done about it.
        """
        match error:
            case StoreError():
                return self._decide_without_store(request, entries, error)
            case UnknownLimit() if self._store.restore([limit.name for limit, _, _ in entries]):
                return entries
            case TransactionError():
                distinct = self._distinct(entries)
                if len(distinct) < len(entries):
                    return distinct
            case InvalidId() | CostTooHigh():
                enforced = tuple(entry for entry in entries if not entry[0].is_shadow)
                if len(enforced) == len(entries):
                    return self._bad_request(request, entries[0][0], error)
                return enforced or Outcome(self.settings, request, None, (), ())
            case LimitError() if self._have_slots(entries, is_ahead=is_ahead):
                return entries
        raise error

    def _have_slots(self, entries: tuple[Entry, ...], *, is_ahead: bool) -> bool:
        """Return whether limits have slots since they were compiled, by a reload or an override."""
        limits = self.limiter.limits
        changed = [
            x for x, id, _ in entries if not x.holds and has_slots(limits.resolve(x.name, id))
        ]
        for limit in changed:
            limit.hold()
            self.needs_end = True
        return bool(changed) or (is_ahead and any(limit.holds for limit, _, _ in entries))

    def _decide_without_store(
        self, request: Request, entries: tuple[Entry, ...], error: StoreError
    ) -> Outcome:
        """Decide by the `on_store_error` of the limits.

        Raises:
            StoreError: One of them is `"raise"`.
        """
        store = self._store
        store.report_failure(error, entries)
        if any(limit.on_store_error == "raise" for limit, _, _ in entries):
            raise error
        for limit, _, _ in entries:
            store.degraded.add(limit.name)
        local = tuple(entry for entry in entries if entry[0].on_store_error == "local")
        outcome = Outcome(self.settings, request, None, (), ())
        if any(limit.on_store_error == "deny" and not limit.is_shadow for limit, _, _ in entries):
            outcome.refuse("store")
        elif local:
            parts, slots = store.local.decide(local)
            decided = zip(parts, local, strict=True)
            denials = [part for part, (x, _, _) in decided if not (part or x.is_shadow)]
            outcome = Outcome(self.settings, request, strictest(denials or parts), local, parts)
            if denials:
                outcome.refuse("denied")
            else:
                outcome.slots = slots
        outcome.is_degraded = True
        return outcome

    def _conclude(self, outcome: Outcome) -> Outcome:
        if self._has_shadow:
            outcome.mark_shadow()
        if self.needs_response:
            outcome.needs_response = True
            outcome.reserve()
        return outcome

    def _distinct(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries without those whose bucket a later one names in another spelling."""
        limits = self.limiter.limits
        by_bucket = {
            limits.explain(limit.name, id).bucket_key: (limit, id, c) for limit, id, c in entries
        }
        return tuple(by_bucket.values())

    def _bad_request(
        self,
        request: Request,
        limit: CompiledLimit,
        error: MissingId | MissingCost | InvalidId | CostTooHigh,
    ) -> Outcome:
        cause = (limit.name, type(error))
        if cause not in self._logged:
            # Once for each cause: clients must not be able to fill the log.
            self._logged.add(cause)
            _log.warning("requests are refused under the limit %s: %s", limit.name, error)
        outcome = Outcome(self.settings, request, None, (), ())
        if limit.is_shadow:
            return outcome
        self._store.bad_requests.add(limit.name)
        match error:
            case CostTooHigh():
                values = {"cost": error.cost, "limit": error.limit_name}
                return outcome.refuse("request", COST_TOO_HIGH, **values)
            case MissingCost():
                return outcome.refuse("request", MALFORMED_COST)
            case InvalidId():
                return outcome.refuse("request", MALFORMED_ID)
            case _:
                return outcome.refuse("request", MISSING_ID)


def _release(slots: HeldSlots) -> None:
    """Return the slots of a request that is not decided."""
    for reservation in slots:
        reservation.release_nowait()


def take(limiter: Limiter, steps: Steps) -> Outcome | Allowed:
    """Take steps in this thread."""
    try:
        verb, argument = next(steps)
        while True:
            try:
                if verb == "one":
                    limit, id, cost = argument
                    do = limit.bound.check if limit.is_deferred else limit.bound.spend
                    answer: Any = do(id, cost)
                elif verb == "all":
                    answer = limiter.spend_all(argument)
                else:
                    answer = limiter.reserve_all(argument) if verb == "hold" else argument()
            except Exception as error:  # noqa: BLE001  the steps decide about it
                verb, argument = steps.throw(error)
            else:
                verb, argument = steps.send(answer)
    except StopIteration as done:
        outcome: Outcome | Allowed = done.value
        return outcome


async def take_async(limiter: Limiter, steps: Steps) -> Outcome | Allowed:
    """Take steps on an event loop."""
    try:
        verb, argument = next(steps)
        while True:
            try:
                if verb == "run":
                    answer: Any = await asyncio.to_thread(argument)
                elif verb == "hold":
                    answer = (await AsyncLimiter(limiter).reserve_all(argument)).reservation
                elif verb == "all":
                    answer = ask_all("spend", limiter, argument)
                else:
                    limit, id, cost = argument
                    asked: Literal["check", "spend"] = "check" if limit.is_deferred else "spend"
                    answer = ask(asked, limit.unadjusted, id, cost, limit.factor, keep=limit.keep)
                if asyncio.isfuture(answer):
                    answer = await answer
            except Exception as error:  # noqa: BLE001  the steps decide about it
                # A future that has failed has the error, which refers to this frame: a cycle.
                answer = None
                verb, argument = steps.throw(error)
            else:
                verb, argument = steps.send(answer)
    except StopIteration as done:
        outcome: Outcome | Allowed = done.value
        return outcome


def transaction(entry: Entry) -> AnyTransaction:
    """Return an entry as a part of a batch."""
    limit, id, cost = entry
    return limit.name, id, cost, limit.kind, limit.factor, limit.keep


def _peers(plain: tuple[CompiledLimit, ...]) -> PeerIds:
    """Return the ids of peers, which are all `None` unless they are the same under all limits."""
    peers = plain[0].ids_of_peers if plain else None
    if peers is None or any(limit.ids_of_peers is not peers for limit in plain):
        return _UNKNOWN
    return peers


def _blocks(entries: tuple[Entry, ...]) -> list[_Block]:
    """Return checks of the blocks of clients, each with the index of its entry."""
    return [
        (index, check)
        for index, (limit, id, _) in enumerate(entries)
        if limit.penalty is not None and not limit.is_shadow
        for check in limit.penalty.checks(limit.bound, id)
    ]


def _blocked(entries: tuple[Entry, ...]) -> dict[int, Decision]:
    """Return the denials of clients that are blocked, by index; nothing is taken."""
    return {
        index: part
        for index, (limit, id, cost) in enumerate(entries)
        if limit.penalty is not None
        and not limit.is_shadow
        and (part := limit.penalty.blocked_part(limit.bound, id, cost)) is not None
    }


def _blocked_parts(
    parts: Sequence[Decision], blocks: Sequence[tuple[_Block, Decision]]
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


def _penalize(limiter: Limiter, outcome: Outcome) -> None:
    """Apply the penalties of the limits that denied a request.

    Raises:
        StoreError: The store fails.
    """
    parts, entries = list(outcome.parts), outcome.entries
    denied = [
        index
        for index, (limit, _, _) in enumerate(entries)
        if not (parts[index] or limit.is_shadow)
    ]
    penalties = {index: entries[index][0].penalty for index in denied}
    counted = [index for index, each in penalties.items() if each and each.counts_denied]
    if counted:
        later = charge_denied(limiter, [entries[index] for index in counted])
        for index, part in zip(counted, later, strict=True):
            parts[index] = parts[index] if part.allowed else part
    for index, penalty in penalties.items():
        if penalty is not None:
            limit, id, _ = entries[index]
            parts[index] = penalty.denied_part(limit.bound, id, parts[index])
    outcome.replace(parts, strictest([parts[index] for index in denied]))


def _cost(cost: object) -> int:
    """Return what a callable of the user returned if it is a cost; a client may have chosen it."""
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        # Not the value itself: text of a client could be long, or contain line breaks.
        is_number = isinstance(cost, int) and not isinstance(cost, bool)
        shown = "a negative number" if is_number else f"a {type(cost).__name__}"
        raise MissingCost(f"the cost callable must return an integer from 0, found {shown}")
    return cost
