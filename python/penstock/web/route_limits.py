"""The limits of a route made ready: from a request to its outcome."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.errors import CostTooHigh, InvalidId, StoreError, TransactionError
from penstock.web.outcome import Outcome, ResponseSettings
from penstock.web.request import MissingCost, MissingId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.web.enforce import Entry
    from penstock.web.request import Id, Request
    from penstock.web.rule import CompiledLimit

_log: Final = logging.getLogger("penstock")


class _Admit(Protocol):
    def __call__(self, request: Request, earlier: Outcome | None = None) -> Outcome: ...


class RouteLimits:
    """Limits that are asked about a request as one decision.

    Attributes:
        admit: Gives the outcome of a request; a second argument is an earlier answer about the
            same request, and buckets that other rules have asked for it are not asked again. Raises
            `StoreError` where a policy says so, and whatever a callable of the user raises.
        limits: The limits, compiled.
        needs_response: Whether a limit is settled or refunded after the response.
        refunds_on_error: Whether a limit is refunded when the view raises.
    """

    def __init__(self, settings: ResponseSettings, terms: Sequence[CompiledLimit]) -> None:
        self.limits: Final = tuple(terms)
        self.refunds_on_error: Final = any(term.refund_on_error for term in terms)
        self.needs_response: Final = self.refunds_on_error or any(
            term.deduct_when is not None for term in terms
        )
        self._settings: Final = replace(settings, needs_response=self.needs_response)
        self._complaints: Final[set[tuple[str, type]]] = set()
        self.admit: _Admit
        if len(terms) == 1 and terms[0].is_plain:
            self._first: Final = terms[0]
            self._spend: Final = terms[0].bound.spend
            self.admit = self._admit_one
        else:
            self.admit = self._admit_all

    def _admit_one(self, request: Request, earlier: Outcome | None = None) -> Outcome:
        """Take the straight way: one limit, of which nothing but the id is to be found."""
        if earlier is not None:
            return self._admit_all(request, earlier)
        term = self._first
        cost = term.cost
        try:
            id = term.id_of(request)
            try:
                decision = self._spend(id, cost)
            except StoreError as error:
                return self._without_store(request, ((term, id, cost),), error, None)
        except (MissingId, InvalidId, CostTooHigh) as error:
            return self._bad_request(request, term, error, None)
        settings = self._settings
        if settings.enforcer.is_failing:
            settings.enforcer.store_answered()
        outcome = Outcome(settings, request, decision, ((term, id, cost),), (decision,))
        if not (decision or term.is_shadow):
            outcome.refusal = "denied"
        return outcome

    def _admit_all(self, request: Request, earlier: Outcome | None = None) -> Outcome:
        asked = {} if earlier is None else earlier.buckets()
        # By bucket: what a default and a route both name counts once, as the route says it.
        found: dict[tuple[str, Id], Entry] = {}
        for term in self.limits:
            if not (term.is_plain or term.applies_to(request)):
                continue
            try:
                id = term.id_of(request)
                bucket = (term.name, id)
                # Another rule has asked it: once is enough. This rule itself asks for each call.
                if asked.get(bucket, term.rule) is term.rule:
                    cost = term.cost if term.cost_of is None else _found_cost(term.cost_of(request))
                    found[bucket] = (term, id, cost)
            except (MissingId, MissingCost) as error:
                if not term.is_shadow:
                    return self._bad_request(request, term, error, earlier)
        return self._decide(request, tuple(found.values()), earlier)

    def _decide(
        self, request: Request, entries: tuple[Entry, ...], earlier: Outcome | None
    ) -> Outcome:
        settings = self._settings
        if not entries:
            return earlier or Outcome(settings, request, None, (), ())
        try:
            verdict = settings.enforcer.decide(entries)
        except StoreError as error:
            return self._without_store(request, entries, error, earlier)
        except TransactionError:
            distinct = settings.enforcer.distinct(entries)
            if len(distinct) == len(entries):
                raise
            return self._decide(request, distinct, earlier)
        except (InvalidId, CostTooHigh) as error:
            firm = tuple(entry for entry in entries if not entry[0].is_shadow)
            if len(firm) < len(entries):
                return self._decide(request, firm, earlier)
            return self._bad_request(request, entries[0][0], error, earlier)
        if settings.enforcer.is_failing:
            settings.enforcer.store_answered()
        outcome = Outcome(settings, request, verdict.decision, verdict.entries, verdict.parts)
        if verdict.is_refused:
            outcome.refuse("denied")
        return outcome.merge_earlier(earlier)

    def _without_store(
        self,
        request: Request,
        entries: tuple[Entry, ...],
        error: StoreError,
        earlier: Outcome | None,
    ) -> Outcome:
        enforcer = self._settings.enforcer
        decision, decided, parts, refused = enforcer.decide_without_store(entries, error)
        outcome = Outcome(self._settings, request, decision, decided, parts)
        outcome.is_degraded = True
        if refused:
            outcome.refuse("store" if decision is None else "denied")
        return outcome.merge_earlier(earlier)

    def _bad_request(
        self,
        request: Request,
        term: CompiledLimit,
        error: MissingId | MissingCost | InvalidId | CostTooHigh,
        earlier: Outcome | None,
    ) -> Outcome:
        cause = (term.name, type(error))
        if cause not in self._complaints:
            # Once of each cause: whoever sends such requests must not fill the log.
            self._complaints.add(cause)
            _log.warning("requests are refused under the limit %s: %s", term.name, error)
        outcome = Outcome(self._settings, request, None, (), ()).merge_earlier(earlier)
        if term.is_shadow:
            return outcome
        self._settings.enforcer.bad_requests.add(term.name)
        if isinstance(error, CostTooHigh):
            return outcome.refuse(
                "request",
                "This request costs {cost}, more than {limit} could ever allow.",
                cost=error.cost,
                limit=error.limit,
            )
        if isinstance(error, MissingCost):
            return outcome.refuse("request", "What this request costs cannot be read.")
        if isinstance(error, InvalidId):
            return outcome.refuse(
                "request", "This request names its sender in a way that cannot be read."
            )
        return outcome.refuse("request", "This request does not say who sends it.")


def _found_cost(found: object) -> int:
    """Give what a callable of the user has found, if it is a cost; a client may have chosen it."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        message = f"the cost callable must give a whole number from 0, found {_shown(found)}"
        raise MissingCost(message)
    return found


def _shown(found: object) -> str:
    # Not the value itself: a client's words could be long, and break lines of the log.
    is_number = isinstance(found, int) and not isinstance(found, bool)
    return "one below 0" if is_number else f"a {type(found).__name__}"
