"""The compiled limits of a route: from a request to its outcome."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock._core import try_spend
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
from penstock.validation import has_slots
from penstock.web.address import PeerIds
from penstock.web.compiled_limit import CompiledLimit
from penstock.web.enforce import transaction
from penstock.web.outcome import Outcome
from penstock.web.request import MissingCost, MissingId

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock._core import Decision, Reservation
    from penstock.types import Id
    from penstock.web.compiled_limit import Entry
    from penstock.web.enforce import Enforcer, Steps
    from penstock.web.per_request import PerRequestLimit
    from penstock.web.request import Request

_log: Final = logging.getLogger("penstock")


_UNKNOWN: Final = PeerIds(lambda _: None)


class RouteLimits:
    """Limits of a route, decided together; `Visit.enter` applies them to a request.

    Attributes:
        limits: The limits.
        known: The id under all of them by the address of a peer; `None` if the request has to be
            read.
        learn: Adds the id of a peer to `known`, and returns it.
        id_of: Reads that id; `None` if more of the request has to be read.
        spend: Decides all of them for that id; returns a reservation if one of them has slots.
        spend_async: Does the same on an event loop; returns a future if that has to wait.
        fields: Returns the header fields of such a decision.
        encoded_fields: Returns the same as bytes.
        holds: Whether `spend` returns a reservation.
        has_outcome: Whether a decision has consequences beyond its header fields and its slots.
        is_followed: Whether one of the two is true.
        watch: Looks at decided requests, while it is awake.
        limiter: The limiter that decides.
        may_wait: Whether a decision may wait for a server or for another process, so that an event
            loop must not call `spend`.
        needs_response: Whether a limit is settled or refunded after the response.
        needs_end: Whether this is so, or a limit has slots that its end returns.
    """

    def __init__(
        self, enforcer: Enforcer, limits: Sequence[CompiledLimit | PerRequestLimit]
    ) -> None:
        self.limits: Final = tuple(limits)
        self.needs_response: Final = any(
            limit.rule.refund_on_error or limit.rule.is_settled for limit in limits
        )
        self.needs_end = self.needs_response or any(limit.holds for limit in limits)
        self._penalizes: Final = any(
            limit.rule.count_denied or limit.rule.blocks for limit in limits if not limit.is_shadow
        )
        self._has_shadow: Final = any(limit.is_shadow for limit in limits)
        self.limiter: Final = enforcer.store.limiter
        self.may_wait: Final = self.limiter.may_wait
        self.watch: Final = enforcer.watch
        self._enforcer: Final = enforcer
        self.settings: Final = enforcer.settings
        self._store: Final = enforcer.store
        self._observers: Final = enforcer.observers
        self._logged: Final[set[tuple[str, type]]] = set()
        # A limit that a default and a route both name counts once, as the route defines it.
        plain = {each.name: each for each in limits if isinstance(each, CompiledLimit)}
        self._plain: Final = (
            tuple(plain.values()) if all(limit.is_plain for limit in limits) else ()
        )
        peers = _peers(self._plain)
        self.known: Final[Mapping[str | None, Id | None]] = peers.ids
        self.learn: Final[Callable[[str | None], Id | None]] = peers.learn
        self.id_of: Final = self._plain[0].id_of if len(self._plain) == 1 else None
        self.holds: Final = any(limit.holds for limit in self._plain)
        self.spend: Final = self._spend_of(self._plain)
        self.spend_async: Final = self._spend_async_of(self._plain)
        writer = self.settings.writer
        self.fields: Final = writer.fields
        self.encoded_fields: Final = writer.encoded_fields
        # Fields that have one value, or come with further ones, are merged with the response's.
        is_merged = self.settings.exposed is not None or writer.has_single_fields
        self.has_outcome: Final = is_merged or self.needs_response or self._observers.is_observed
        self.is_followed: Final = self.holds or self.has_outcome

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

    def _spend_async_of(
        self, plain: tuple[CompiledLimit, ...]
    ) -> Callable[[Id], Decision | Awaitable[Any]]:
        limiter = self.limiter
        if self.holds:

            async def hold(id: Id) -> Reservation:
                batch = [transaction((x, id, x.cost)) for x in plain]
                return (await AsyncLimiter(limiter).reserve_all(batch)).reservation

            return hold
        if len(plain) != 1:
            return lambda id: ask_all(
                "spend", limiter, [transaction((x, id, x.cost)) for x in plain]
            )
        (limit,) = plain
        bound, cost, factor, keep = limit.unadjusted, limit.cost, limit.factor, limit.keep

        def spend(id: Id) -> Decision | asyncio.Future[Decision]:
            return ask("spend", bound, id, cost, factor, keep=keep)

        if self.limiter.is_remote or limit.bound is not bound:
            return spend
        # Another process is rarely in the way.
        spend_now = partial(try_spend, bound, cost=cost)
        return lambda id: spend(id) if (decision := spend_now(id)) is None else decision

    def _entries(self, id: Id) -> tuple[Entry, ...]:
        return tuple([(limit, id, limit.cost) for limit in self._plain])

    def outcome_of(self, request: Request, id: Id, decision: Decision) -> Outcome:
        """Return the outcome of a decision of `spend`."""
        return Outcome(self.settings, request, decision, self._entries(id))

    def follow(self, request: Request, id: Id, decision: Decision) -> Outcome:
        """Act on a decision of `spend`, and return its outcome."""
        outcome = self.outcome_of(request, id, decision)
        if not decision:
            outcome.refusal = "denied"
        return self._report(self._conclude(outcome), None)

    def _report(self, outcome: Outcome, earlier: Outcome | None) -> Outcome:
        if outcome.refusal is not None:
            self._observers.report_refusal(outcome)
        if self._observers.is_observed and outcome is not earlier:
            self._observers.report_decision(outcome)
        return outcome

    def steps(self, request: Request, earlier: Outcome | None = None) -> Steps:
        """Read a request and decide it step by step."""
        return self._report((yield from self._evaluate(request, earlier)), earlier)

    def recover(self, request: Request, id: Id | None, error: Error) -> Steps:
        """Do what follows from an error of `id_of`, if `id` is `None`, or of `spend`."""
        if id is not None:
            entries = self._entries(id)
            # Limits that have slots since a reload are held, step by step.
            holds = type(error) is LimitError and any(limit.holds for limit, _, _ in entries)
            decide = self._decide(request, entries, None)
            outcome = yield from (decide if holds else self._recover(request, entries, error, None))
        elif isinstance(error, MissingId | InvalidId | CostTooHigh):
            outcome = self._bad_request(request, self._plain[0], error, None)
        else:
            raise error
        return self._report(outcome, None)

    def _evaluate(self, request: Request, earlier: Outcome | None) -> Steps:
        applied = {} if earlier is None else earlier.buckets()
        # By bucket: one that a default and a route both name counts once, as the route defines it.
        found: dict[tuple[str, Id], Entry] = {}
        for given in self.limits:
            if not (given.is_plain or given.rule.applies_to(request)):
                continue
            limit = given if isinstance(given, CompiledLimit) else given.choose(request)
            if limit is None:
                continue
            if limit.is_chosen:
                limit = limit.choose(request)
            try:
                id = limit.id_of(request)
                if not limit.applies_to_id(id):
                    continue
                bucket = (limit.name, id)
                # Not again if another rule applied it; this rule counts each call.
                if applied.get(bucket, limit.rule) is limit.rule:
                    cost = limit.cost if limit.cost_of is None else _cost(limit.cost_of(request))
                    found[bucket] = (limit, id, cost)
            except (MissingId, MissingCost) as error:
                if not limit.is_shadow:
                    return self._bad_request(request, limit, error, earlier)
        return (yield from self._decide(request, tuple(found.values()), earlier))

    def _decide(
        self, request: Request, entries: tuple[Entry, ...], earlier: Outcome | None
    ) -> Steps:
        if not entries:
            return earlier or Outcome(self.settings, request, None, (), ())
        try:
            outcome = self._enforcer.decide_blocked(request, entries) if self._penalizes else None
            if outcome is None:
                outcome = yield from self._enforcer.decide(request, entries)
            if self._penalizes and outcome.refusal == "denied" and not outcome.is_blocked:
                yield "run", partial(self._enforcer.penalize, outcome)
        except Error as error:
            return (yield from self._recover(request, entries, error, earlier))
        return self._conclude(outcome).merge_earlier(earlier)

    def _recover(
        self, request: Request, entries: tuple[Entry, ...], error: Error, earlier: Outcome | None
    ) -> Steps:
        """Do what follows from an error of the store or of a callable; nothing was taken."""
        match error:
            case StoreError():
                outcome = self._enforcer.decide_without_store(request, entries, error)
                return self._conclude(outcome).merge_earlier(earlier)
            case UnknownLimit() if self._store.restore([limit.name for limit, _, _ in entries]):
                return (yield from self._decide(request, entries, earlier))
            case TransactionError():
                distinct = self._enforcer.distinct(entries)
                if len(distinct) == len(entries):
                    raise error
                return (yield from self._decide(request, distinct, earlier))
            case InvalidId() | CostTooHigh():
                enforced = tuple(entry for entry in entries if not entry[0].is_shadow)
                if len(enforced) < len(entries):
                    return (yield from self._decide(request, enforced, earlier))
                return self._bad_request(request, entries[0][0], error, earlier)
            case LimitError() if self._have_slots(entries):
                return (yield from self._decide(request, entries, earlier))
        raise error

    def _have_slots(self, entries: tuple[Entry, ...]) -> bool:
        """Return whether limits have slots since they were compiled, by a reload or an override."""
        limits = self.limiter.limits
        found = [x for x, id, _ in entries if not x.holds and has_slots(limits.resolve(x.name, id))]
        for limit in found:
            limit.hold()
            self.needs_end = True
        return bool(found)

    def _conclude(self, outcome: Outcome) -> Outcome:
        if self._has_shadow:
            outcome.mark_shadow()
        if self.needs_response:
            outcome.needs_response = True
            outcome.reserve()
        return outcome

    def _bad_request(
        self,
        request: Request,
        limit: CompiledLimit,
        error: MissingId | MissingCost | InvalidId | CostTooHigh,
        earlier: Outcome | None,
    ) -> Outcome:
        cause = (limit.name, type(error))
        if cause not in self._logged:
            # Once for each cause: clients must not be able to fill the log.
            self._logged.add(cause)
            _log.warning("requests are refused under the limit %s: %s", limit.name, error)
        outcome = Outcome(self.settings, request, None, (), ()).merge_earlier(earlier)
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


def _peers(plain: tuple[CompiledLimit, ...]) -> PeerIds:
    """Return the ids of peers, which are all `None` unless they are the same under all limits."""
    peers = plain[0].ids_of_peers if plain else None
    if peers is None or any(limit.ids_of_peers is not peers for limit in plain):
        return _UNKNOWN
    return peers


def _cost(found: object) -> int:
    """Return what a callable of the user returned if it is a cost; a client may have chosen it."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        message = f"the cost callable must return an integer from 0, found {_describe(found)}"
        raise MissingCost(message)
    return found


def _describe(found: object) -> str:
    # Not the value itself: text of a client could be long, or contain line breaks.
    is_number = isinstance(found, int) and not isinstance(found, bool)
    return "a negative number" if is_number else f"a {type(found).__name__}"
