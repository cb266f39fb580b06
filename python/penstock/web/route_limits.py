"""The compiled limits of a route: from a request to its outcome."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.errors import CostTooHigh, Error, InvalidId, StoreError, TransactionError
from penstock.web.identity import by_user, known_user
from penstock.web.messages import COST_TOO_HIGH, MALFORMED_COST, MALFORMED_ID, MISSING_ID
from penstock.web.outcome import Outcome
from penstock.web.request import MissingCost, MissingId
from penstock.web.rule import CompiledLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision
    from penstock.types import Id
    from penstock.web.choice import ChosenLimit
    from penstock.web.enforce import Enforcer, Steps
    from penstock.web.request import Request
    from penstock.web.rule import Entry

_log: Final = logging.getLogger("penstock")


class _Admit(Protocol):
    def __call__(self, request: Request, earlier: Outcome | None = None) -> Outcome: ...


class RouteLimits:
    """Limits of a route, decided together.

    Attributes:
        admit: Returns the outcome of a request. A second argument is an earlier outcome of the same
            request; buckets that other rules applied to it are not spent again. Raises `StoreError`
            if the store fails and a policy is `"raise"`, and whatever a callable of the user
            raises. On an event loop, use `penstock.web.async_admit.admit`.
        limits: The limits.
        is_direct: Whether `spend` can decide most requests by the address of the peer.
        is_direct_by_user: Whether it can if it also gets the user.
        fields: Returns the header fields of a decision of `spend`, which are all lists.
        encoded_fields: Returns the same as bytes.
        needs_response: Whether a limit is settled or refunded after the response.
        refunds_on_error: Whether a limit is refunded if the view raises.
        limiter: The limiter that decides.
        is_remote: Whether a server decides, so that `admit` waits.
    """

    def __init__(self, enforcer: Enforcer, limits: Sequence[CompiledLimit | ChosenLimit]) -> None:
        self.limits: Final = tuple(limits)
        self.refunds_on_error: Final = any(limit.rule.refund_on_error for limit in limits)
        self.needs_response: Final = self.refunds_on_error or any(
            limit.rule.is_settled for limit in limits
        )
        self._penalizes: Final = any(
            limit.rule.count_denied or limit.rule.blocks for limit in limits if not limit.is_shadow
        )
        self._has_shadow: Final = any(limit.is_shadow for limit in limits)
        self.limiter: Final = enforcer.store.limiter
        self.is_remote: Final = self.limiter.is_remote
        self._enforcer: Final = enforcer
        self._settings: Final = enforcer.settings
        self._store: Final = enforcer.store
        self._events: Final = enforcer.events
        self._logged: Final[set[tuple[str, type]]] = set()
        self.admit: _Admit
        only = limits[0] if len(limits) == 1 else None
        if isinstance(only, CompiledLimit) and only.is_plain:
            self._only: Final = only
            spend = only.bound.spend
            # The core reads an argument more slowly than it takes the default.
            self._spend: Final = spend if only.cost == 1 else partial(spend, cost=only.cost)
            self.admit = self._admit_one
        else:
            self.admit = self._admit_all
        self._admit: Final = self.admit
        writer = self._settings.writer
        is_direct = (
            isinstance(only, CompiledLimit)
            and only.is_direct
            and not (self.is_remote or self.needs_response or self._events.is_observed)
            and self._settings.exposed is None
            and not writer.has_single_fields
        )
        reads_user = any(limit.rule.id is by_user for limit in limits)
        self.is_direct: Final = is_direct and not reads_user
        self.is_direct_by_user: Final = is_direct and reads_user
        self.fields: Final = writer.one
        self.encoded_fields: Final = writer.one_encoded
        if self._events.is_observed:
            self.admit = self._admit_and_report

    def spend(self, peer: str | None, user: Id | None = None) -> Decision | None:
        """Decide an ordinary request from what its adapter has read.

        Nothing else is created for such a request; `conclude` makes an outcome of the decision if
        it denies the request, or if other limits follow.

        Args:
            peer: The address of the socket's peer.
            user: The user who is logged in, if `is_direct_by_user`; `None` if anonymous.

        Returns:
            The decision; `None` if `admit` has to decide.
        """
        # Locals: called as methods, they would first be looked for in the class.
        limit, spend = self._only, self._spend
        # `None` during the checks of the set-up, which observe what `admit` reads.
        if (ids_of_peers := limit.ids_of_peers) is None or self._store.is_failing:
            return None
        id: Id | None
        if user is None:
            id = ids_of_peers[peer or ""]
        else:
            id = user if type(user) is int else known_user(user)
        if id is None:
            return None
        try:
            return spend(id)
        except Error:
            # Nothing was taken, so `admit` decides what follows from it.
            return None

    def conclude(self, request: Request, decision: Decision) -> Outcome:
        """Return the outcome of a request that `spend` has decided."""
        return self._admit_one(request, None, decision)

    def _admit_one(
        self, request: Request, earlier: Outcome | None = None, decision: Decision | None = None
    ) -> Outcome:
        """Fast path: one limit, which needs only the id of the request, and may have decided."""
        if earlier is not None:
            return self._admit_all(request, earlier)
        limit = self._only
        cost = limit.cost
        try:
            id = limit.id_of(request)
            if decision is None:
                try:
                    decision = self._spend(id)
                except StoreError as error:
                    outcome = self._decide_without_store(request, ((limit, id, cost),), error, None)
                    return self._reported(outcome)
        except (MissingId, InvalidId, CostTooHigh) as error:
            return self._reported(self._bad_request(request, limit, error, None))
        if self._store.is_failing:
            self._store.report_success()
        outcome = Outcome(self._settings, request, decision, ((limit, id, cost),))
        if not decision:
            outcome.refusal = "denied"
            self._events.refused(outcome)
        if self.needs_response:
            outcome.needs_response = True
            outcome.reserve()
        return outcome

    def _reported(self, outcome: Outcome) -> Outcome:
        if outcome.refusal is not None:
            self._events.refused(outcome)
        return outcome

    def _admit_and_report(self, request: Request, earlier: Outcome | None = None) -> Outcome:
        outcome = self._admit(request, earlier)
        if outcome is not earlier:
            self._events.decided(outcome)
        return outcome

    def _admit_all(self, request: Request, earlier: Outcome | None = None) -> Outcome:
        return self._reported(self._enforcer.take(self._evaluate(request, earlier)))

    def steps(self, request: Request, earlier: Outcome | None = None) -> Steps:
        """Decide as `admit`, for an event loop, which must not wait for the store."""
        outcome = self._reported((yield from self._evaluate(request, earlier)))
        if self._events.is_observed and outcome is not earlier:
            self._events.decided(outcome)
        return outcome

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
            return earlier or Outcome(self._settings, request, None, (), ())
        try:
            outcome = self._enforcer.decide_blocked(request, entries) if self._penalizes else None
            if outcome is None:
                outcome = yield from self._enforcer.decide(request, entries)
            if self._penalizes and outcome.refusal == "denied" and not outcome.is_blocked:
                yield "run", partial(self._enforcer.penalize, outcome)
        except StoreError as error:
            return self._decide_without_store(request, entries, error, earlier)
        except TransactionError:
            distinct = self._enforcer.distinct(entries)
            if len(distinct) == len(entries):
                raise
            return (yield from self._decide(request, distinct, earlier))
        except (InvalidId, CostTooHigh) as error:
            enforced = tuple(entry for entry in entries if not entry[0].is_shadow)
            if len(enforced) < len(entries):
                return (yield from self._decide(request, enforced, earlier))
            return self._bad_request(request, entries[0][0], error, earlier)
        return self._conclude(outcome).merge_earlier(earlier)

    def _conclude(self, outcome: Outcome) -> Outcome:
        if self._has_shadow:
            outcome.mark_shadow()
        if self.needs_response:
            outcome.needs_response = True
            outcome.reserve()
        return outcome

    def _decide_without_store(
        self,
        request: Request,
        entries: tuple[Entry, ...],
        error: StoreError,
        earlier: Outcome | None,
    ) -> Outcome:
        outcome = self._enforcer.decide_without_store(request, entries, error)
        if self._has_shadow:
            outcome.mark_shadow()
        outcome.needs_response = self.needs_response
        return outcome.merge_earlier(earlier)

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
        outcome = Outcome(self._settings, request, None, (), ()).merge_earlier(earlier)
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


class RequestLimits:
    """Limits of one request, as far as they have been evaluated.

    Each adapter decides ordinary requests itself, with `RouteLimits.spend`: one call less.

    Attributes:
        decision: The decision of an ordinary request, as long as nothing asks for its outcome.
        limits: The limits of that decision.
    """

    # One is created for each request, which is faster without a dictionary of its own.
    __slots__ = ("_outcome", "decision", "limits")

    # The constructors of the adapters set them to `None`, which is faster than one of this class.
    decision: Decision | None
    _outcome: Outcome | None
    # Set with the decision.
    limits: RouteLimits

    @property
    def outcome(self) -> Outcome | None:
        """The latest outcome, merged with the earlier ones; `None` before the first."""
        if self.decision is not None and (request := self._request()) is not None:
            self.outcome = self.limits.conclude(request, self.decision)
        return self._outcome

    @outcome.setter
    def outcome(self, outcome: Outcome | None) -> None:
        self.decision = None
        self._outcome = outcome

    @property
    def is_evaluated(self) -> bool:
        """Whether a limit has been evaluated."""
        return self._outcome is not None or self.decision is not None

    def _request(self) -> Request | None:
        """Return the request, from which an outcome is made; `None` if it has ended."""
        raise NotImplementedError


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
