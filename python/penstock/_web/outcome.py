"""The outcome of a request's limits, and what follows from it for the response."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock._validation import is_number
from penstock._web.headers import (
    EncodedFields,
    Fields,
    Writer,
    encoded,
    merge,
    seconds,
    strictest,
    wait_ns,
)
from penstock._web.problem import (
    TEXT,
    Problem,
    bad_request,
    custom_body,
    quota_exceeded,
    reduced_capacity,
)
from penstock._web.settle import ViewCost
from penstock.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision
    from penstock._web.compiled_limit import Entry
    from penstock._web.fallback import StoreAccess
    from penstock._web.request import Request
    from penstock._web.rule import Rule
    from penstock._web.settle import HeldSlots
    from penstock.messages import Translator
    from penstock.types import Id

Refusal: TypeAlias = Literal["denied", "store", "request"]
"""Why a request is refused: a limit denied it, the store failed, or its id or cost is invalid."""


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """The settings of a guard with which its outcomes write a response and settle it.

    Attributes:
        writer: Writes the header styles.
        exposed: Names of the header fields that scripts of other origins may read; `None` for no
            such header.
        spread: Random extra wait, as a share of the wait.
        translator: Translates refusals.
        store: The limiter, or its local fallback.
        is_observed: Whether every outcome is reported, not only refusals.

    Raises:
        ConfigError: The extra wait is not a share.
    """

    writer: Writer
    exposed: str | None
    spread: float
    translator: Translator
    store: StoreAccess
    is_observed: bool

    def __post_init__(self) -> None:
        """Check the extra wait."""
        if not is_number(self.spread, 0, 1):
            raise ConfigError(f"spread must be from 0 to 1, found {self.spread!r}; 0.03 is 3 %")


class Outcome:
    """Outcome of the limits of one request.

    Attributes:
        request: The request, as its adapter shows it.
        decision: The decision over all limits that were evaluated; `None` if none was.
        entries: The limits that were evaluated, each with id and cost.
        refusal: Why the request is refused; `None` if it may proceed.
        is_degraded: Whether the store failed and `on_store_error` decided.
        needs_response: Whether a limit is settled or refunded after the response.
        slots: What has been held, until the request keeps it.
    """

    # Defaults that most outcomes keep are on the class: creating an outcome is on the hot path.
    is_degraded: bool = False
    needs_response: bool = False
    slots: HeldSlots = ()
    _earlier: tuple[Outcome, ...] = ()
    _is_refunded: bool = False
    _is_settled: bool = False
    _reservation: int | None = None
    _view_cost: ViewCost | None = None
    _problem: Problem | None = None
    _wait_ns: int = -1
    _detail: tuple[str, dict[str, object]] = ("", {})

    def __init__(
        self,
        settings: ResponseSettings,
        request: Request,
        decision: Decision | None,
        entries: tuple[Entry, ...],
        parts: Sequence[Decision] | None = None,
    ) -> None:
        self.request = request
        self.decision = decision
        self.entries = entries
        self.refusal: Refusal | None = None
        # `None` for those of the decision itself, as long as nothing is added to them.
        self._parts = parts
        self._settings = settings

    @property
    def parts(self) -> Sequence[Decision]:
        """The decisions of the entries, in the same order."""
        if self._parts is None:
            return () if self.decision is None else self.decision.parts
        return self._parts

    def replace(self, parts: Sequence[Decision], decision: Decision) -> None:
        """Replace the decisions of the entries, and the decision over all."""
        self._parts, self.decision = parts, decision

    def refuse(self, refusal: Refusal, detail: str = "", **values: object) -> Outcome:
        """Refuse the request; `detail` is a template for its message if there is no decision."""
        self.refusal = refusal
        self._detail = detail, values
        return self

    def merge_earlier(self, earlier: Outcome | None) -> Outcome:
        """Add an earlier outcome of the same request, so that the headers show both."""
        if earlier is not None:
            self._parts = self.parts
            self._earlier = earlier.history
            self.needs_response = True
            of_earlier = earlier._view_cost  # noqa: SLF001  the same class
            if of_earlier is not None:
                self._settle_by_view(of_earlier)
        return self

    @property
    def is_remote(self) -> bool:
        """Whether a server decides: an event loop must refund and settle in a thread."""
        return self._settings.store.limiter.is_remote

    @property
    def retry_after(self) -> int | None:
        """Whole seconds until a denied client may retry, rounded up; `None` if not denied."""
        return seconds(self._wait()) if self.refusal == "denied" else None

    @property
    def problem(self) -> Problem:
        """The content of the refusal."""
        if self._problem is None:
            self._problem = self._make_problem()
        return self._problem

    def _make_problem(self) -> Problem:
        translator = self._settings.translator
        if self.refusal == "denied" and self.decision is not None:
            return quota_exceeded(self.decision, self.parts, self._wait(), translator)
        if self.refusal == "store":
            return reduced_capacity(translator)
        template, values = self._detail
        return bad_request(translator.translate(template, **values), translator)

    @property
    def status(self) -> int:
        """The status code of the refusal: 429, 503 if the store failed, 400 for a bad request."""
        return self.problem.status

    def body(
        self, answer: object = None, expected: str = "a response", *, text_type: str = TEXT
    ) -> tuple[Fields, bytes]:
        """Return the body of the refusal in the form that the client accepts, and its fields.

        Args:
            answer: What `on_denied` returned; `None` for the usual body.
            expected: The framework's own response type, for the error message.
            text_type: The content type of text.

        Raises:
            ConfigError: `answer` cannot be a body.
        """
        if answer is None:
            return self.problem.body(self.request.header("Accept"))
        return custom_body(answer, expected, text_type)

    def headers(self) -> Fields:
        """Return the header fields of the response, served or refused, without those of a body."""
        settings, decision = self._settings, self.decision
        if (
            decision is None
            or self._parts is not None
            or len(self.entries) != 1
            or self.refusal is not None
            or settings.exposed is not None
        ):
            return self._all_fields()
        # Of one decision that refuses nothing, which is most of them.
        return settings.writer.fields(decision)

    def _all_fields(self) -> Fields:
        settings, decision = self._settings, self.decision
        wait = self._wait() if self.refusal == "denied" else None
        if self._earlier:
            fields = self._merged_fields(wait)
        elif decision is None:
            fields = []
        else:
            fields = settings.writer.many(self.parts, decision, wait)
        if wait is not None:
            fields.append(("Retry-After", str(seconds(wait))))
        if self.refusal is not None:
            fields += self.problem.headers()
        if settings.exposed is not None and fields:
            fields.append(("Access-Control-Expose-Headers", settings.exposed))
        return fields

    def add_to(self, own: Sequence[tuple[str, str]], status: int | str) -> Fields:
        """Return the header fields of a response with those of the outcome; see `headers.merge`.

        Args:
            own: The response's fields.
            status: Its status, such as `200` or `"200 OK"`.
        """
        if self.refusal is None and not self._settings.writer.has_single_fields:
            return [*own, *self.headers()]
        stays, fields = self._merge([name for name, _ in own], status)
        return [*compress(own, stays), *fields]

    def add_encoded_to(self, own: Sequence[tuple[bytes, bytes]], status: int) -> EncodedFields:
        """Do the same as `add_to` with fields as ASGI servers take them."""
        if self.refusal is None and not self._settings.writer.has_single_fields:
            return [*own, *encoded(self.headers())]
        stays, merged = self._merge([name.decode("latin-1") for name, _ in own], status)
        kept, fields = [*compress(own, stays)], encoded(merged)
        if self.refusal is not None:
            # An exception handler of the application may have added the fields of a refusal itself.
            fields = [field for field in fields if field not in kept]
        return [*kept, *fields]

    def _merge(self, own: Sequence[str], status: int | str) -> tuple[list[bool], Fields]:
        # The response is a refusal of another limit, further inside: its numbers stay.
        keeps_own = self.refusal is None and str(status).startswith(("429", "503"))
        return merge(own, self.headers(), keeps_own=keeps_own)

    @property
    def history(self) -> tuple[Outcome, ...]:
        """All outcomes of the request, the earliest first; this one is the last."""
        return (*self._earlier, self)

    @property
    def refunds_on_error(self) -> bool:
        """Whether a limit of the request is refunded if its response fails."""
        return any(limit.refunds_on_error for each in self.history for limit, _, _ in each.entries)

    def buckets(self) -> dict[tuple[str, Id], Rule]:
        """Return the buckets of the request in order, each with the rule that applied it."""
        return {(limit.name, id): limit.rule for o in self.history for limit, id, _ in o.entries}

    def mark_shadow(self) -> None:
        """Show limits in shadow mode on this route like those of the file: they deny nothing."""
        # A decision by policy may have no parts.
        if self.decision is None or not self.parts:
            return
        decisions = zip(self.entries, self.parts, strict=True)
        parts = [
            part.replace(shadow_mode=True) if limit.is_shadow else part
            for (limit, _, _), part in decisions
        ]
        if len(self.decision.parts) > 1:
            self.replace(parts, self.decision.replace(parts=parts))
        else:
            self.replace(parts, strictest(parts) if self.refusal is None else self.decision)

    def reserve(self) -> None:
        """Remember what was taken for the response to settle, in case that it never does."""
        decision = self.decision
        if self.refusal is None and decision is not None:
            taken = [
                entry
                for index, entry in enumerate(self.entries)
                if entry[0].is_settled and self._has_taken(index)
            ]
            # What this process decides is not the store's to release.
            if taken and not self.is_degraded:
                reservations = self._settings.store.reservations
                self._reservation = reservations.open(taken, decision.now_ns, self)
            if any(limit.rule.settle for limit, _, _ in taken):
                self._settle_by_view(None)

    def _settle_by_view(self, earlier: ViewCost | None) -> None:
        """Let the view settle what limits of this outcome, and of earlier ones, have reserved."""
        self._view_cost = ViewCost(self._settings.store.recharge, earlier)
        if self.decision is not None:
            self.decision = self.decision.replace(settle=self._view_cost)

    def settle(self, response: Any) -> None:
        """Spend what the response says: the tokens of `deduct_when` and `cost_from_response`.

        Args:
            response: The framework's response.

        Raises:
            StoreError: The store failed, and a limit has the policy `"raise"`.
        """
        for outcome in self.history:
            outcome._settle(response)  # noqa: SLF001  the same class

    def keep(self) -> None:
        """Leave everything taken: there is no response, because the client has disconnected."""
        for outcome in self.history:
            outcome._close()  # noqa: SLF001  the same class

    def refund(self) -> None:
        """Return, once, the tokens that this outcome spent under limits with `refund_on_error`.

        Raises:
            StoreError: As `settle`.
        """
        if self.refusal is not None or self._is_refunded:
            return
        self._is_refunded = True
        if not self.request.is_disconnected:
            changes = [
                (index, self._taken(index), 0)
                for index, (limit, _, _) in enumerate(self.entries)
                if limit.refunds_on_error and not (limit.is_settled and self._is_settled)
            ]
            self._apply(changes)

    def refund_all(self) -> None:
        """Refund all outcomes of the request.

        Raises:
            StoreError: As `settle`.
        """
        for outcome in self.history:
            outcome.refund()

    def _settle(self, response: Any) -> None:
        if self.refusal is not None or self._is_settled:
            return
        if self.request.is_disconnected:
            self._close()
            return
        used = None if self._view_cost is None else self._view_cost.actual
        costs: dict[int, int] = {}
        for index, (limit, _, cost) in enumerate(self.entries):
            rule = limit.rule
            if limit.is_settled and not (self._is_refunded and rule.refund_on_error):
                if used is not None and rule.settle:
                    costs[index] = used
                else:
                    costs[index] = limit.cost_of_response(response, cost)
        # Closed after the callables of the user, which may raise, and be called again.
        is_open = self._close()
        changes = []
        for index, cost in costs.items():
            limit, _, estimate = self.entries[index]
            if limit.is_deferred:
                changes.append((index, 0, cost))
            # In shadow mode, a limit that denied has taken nothing, and takes nothing now.
            elif self._has_taken(index):
                changes.append((index, estimate if is_open else 0, cost))
        self._apply(changes)
        if self._view_cost is not None:
            charged = [
                (self.entries[index], cost)
                for index, _, cost in changes
                if self.entries[index][0].rule.settle
            ]
            self._view_cost.charge(charged, is_degraded=self.is_degraded)

    def _close(self) -> bool:
        """End the reservation; return `False` if it was released."""
        self._is_settled = True
        if self._reservation is None:
            return True
        return self._settings.store.reservations.close(self._reservation)

    def _has_taken(self, index: int) -> bool:
        """Whether an entry took its cost; a limit in shadow mode that denied took nothing."""
        part = self.parts[index]
        return not self.entries[index][0].is_deferred and part.allowed and not part.would_deny

    def _taken(self, index: int) -> int:
        return self.entries[index][2] if self._has_taken(index) else 0

    def _apply(self, changes: list[tuple[int, int, int]]) -> None:
        """Replace what entries have taken; their decisions replace the first ones in the headers.

        Args:
            changes: The index of an entry, what it has taken, and what it costs.
        """
        store = self._settings.store
        parts = list(self.parts)
        entries = [(self.entries[index], taken, cost) for index, taken, cost in changes]
        try:
            for (index, _, _), later in zip(
                changes, store.change(entries, degraded=self.is_degraded), strict=True
            ):
                if later is not None:
                    # The request was served, whatever is left for the next one.
                    shadow_mode = parts[index].shadow_mode
                    parts[index] = later.replace(allowed=True, shadow_mode=shadow_mode)
        except StoreError as error:
            store.report_failure(error, [entry for entry, _, _ in entries])
            if any(limit.on_store_error == "raise" for (limit, _, _), _, _ in entries):
                raise
            return
        if changes:
            decision = strictest(parts)
            if self._view_cost is not None:
                decision = decision.replace(settle=self._view_cost)
            self.replace(parts, decision)

    def _merged_fields(self, wait_ns: int | None) -> Fields:
        """Return the fields of all outcomes of the request, their limits in order."""
        decisions = [each.decision for each in self.history if each.decision is not None]
        if not decisions:
            return []
        # A bucket that was decided several times is shown once, as it is now.
        parts: dict[tuple[str | None, str | None], Decision] = {}
        for outcome in self.history:
            for part in outcome.parts:
                parts[part.name, part.id] = part
        # A header with one value describes the denying limit, which is the last one evaluated.
        decision = strictest(decisions) if wait_ns is None else decisions[-1]
        return self._settings.writer.many([*parts.values()], decision, wait_ns)

    def _wait(self) -> int:
        if self._wait_ns < 0:
            wait = 0 if self.decision is None else wait_ns(self.decision)
            # Never negative: a client must not return early.
            extra = wait * self._settings.spread * random.random()  # noqa: S311  not a secret
            self._wait_ns = wait + int(extra)
        return self._wait_ns
