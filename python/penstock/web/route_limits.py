"""The limits of a route made ready: from a request to its admission."""

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

__all__ = ["RouteLimits"]

_log: Final = logging.getLogger("penstock")


class _Admit(Protocol):
    def __call__(self, request: Request, earlier: Outcome | None = None) -> Outcome: ...


class RouteLimits:
    """Limits that are asked about a request as one decision.

    Attributes:
        admit: Gives the admission of a request; a second argument is an earlier answer about the
            same request, and buckets that other rules have asked for it are not asked again. Raises
            `StoreError` where a policy says so, and whatever a callable of the user raises.
        deducts: Whether one of the limits waits for the response.
        refunds: Whether one of them is given back when the view raises.
    """

    def __init__(self, manner: ResponseSettings, terms: Sequence[CompiledLimit]) -> None:
        self.terms: Final = tuple(terms)
        self.refunds: Final = any(term.refund_on_error for term in terms)
        self.deducts: Final = any(term.deduct_when is not None for term in terms)
        looks_back = self.deducts or self.refunds
        self._manner: Final = replace(manner, looks_back=looks_back)
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
            return self._unmeasured(request, term, error, None)
        manner = self._manner
        if manner.decider.is_failing:
            manner.decider.store_answered()
        admission = Outcome(manner, request, decision, ((term, id, cost),), (decision,))
        if not (decision or term.is_shadow):
            admission.refusal = "denied"
        return admission

    def _admit_all(self, request: Request, earlier: Outcome | None = None) -> Outcome:
        asked = {} if earlier is None else earlier.buckets()
        # By bucket: what a default and a route both name counts once, as the route says it.
        found: dict[tuple[str, Id], Entry] = {}
        for term in self.terms:
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
                    return self._unmeasured(request, term, error, earlier)
        return self._decide(request, tuple(found.values()), earlier)

    def _decide(
        self, request: Request, entries: tuple[Entry, ...], earlier: Outcome | None
    ) -> Outcome:
        manner = self._manner
        if not entries:
            return earlier or Outcome(manner, request, None, (), ())
        try:
            verdict = manner.decider.decide(entries)
        except StoreError as error:
            return self._without_store(request, entries, error, earlier)
        except TransactionError:
            distinct = manner.decider.distinct(entries)
            if len(distinct) == len(entries):
                raise
            return self._decide(request, distinct, earlier)
        except (InvalidId, CostTooHigh) as error:
            firm = tuple(entry for entry in entries if not entry[0].is_shadow)
            if len(firm) < len(entries):
                return self._decide(request, firm, earlier)
            return self._unmeasured(request, entries[0][0], error, earlier)
        if manner.decider.is_failing:
            manner.decider.store_answered()
        admission = Outcome(manner, request, verdict.decision, verdict.entries, verdict.parts)
        if verdict.is_refused:
            admission.refuse("denied")
        return admission.follow(earlier)

    def _without_store(
        self,
        request: Request,
        entries: tuple[Entry, ...],
        error: StoreError,
        earlier: Outcome | None,
    ) -> Outcome:
        decider = self._manner.decider
        decision, decided, parts, refused = decider.decide_without_store(entries, error)
        admission = Outcome(self._manner, request, decision, decided, parts)
        admission.is_degraded = True
        if refused:
            admission.refuse("store" if decision is None else "denied")
        return admission.follow(earlier)

    def _unmeasured(
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
        admission = Outcome(self._manner, request, None, (), ()).follow(earlier)
        if term.is_shadow:
            return admission
        self._manner.decider.unmeasured.add(term.name)
        if isinstance(error, CostTooHigh):
            return admission.refuse(
                "request",
                "This request costs {cost}, more than {limit} could ever allow.",
                cost=error.cost,
                limit=error.limit,
            )
        if isinstance(error, MissingCost):
            return admission.refuse("request", "What this request costs cannot be read.")
        if isinstance(error, InvalidId):
            return admission.refuse(
                "request", "This request names its sender in a way that cannot be read."
            )
        return admission.refuse("request", "This request does not say who sends it.")


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
