"""What was decided about one request, and what that means for its response."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.errors import StoreError
from penstock.web.headers import Fields, Writer, seconds, strictest, wait_ns
from penstock.web.problem import Problem, bad_request, quota_exceeded, reduced_capacity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock._core import Decision
    from penstock.web.enforce import Enforcer, Entry
    from penstock.web.messages import Words
    from penstock.web.request import Id, Request
    from penstock.web.rule import Rule

Refusal: TypeAlias = Literal["denied", "store", "request"]
"""Why a request is refused: a limit denied it, the store failed, or it cannot be measured."""


@dataclass(frozen=True)
class ResponseSettings:
    """How a guard speaks to clients.

    Attributes:
        writer: Writes the header styles.
        exposed: The names of fields that scripts of other origins may read; `None` for no such
            header.
        spread: How much random extra wait is told, as a share of the wait.
        enforcer: Who is asked after the response.
        words: What refusals are told in.
        needs_response: Whether a limit waits for the response, or is given back on an error.
    """

    writer: Writer
    exposed: str | None
    spread: float
    enforcer: Enforcer
    words: Words
    needs_response: bool = False


class Outcome:
    """The answer of a guard about one request.

    Attributes:
        request: The request, as its adapter shows it.
        decision: The decision over all limits that were asked; `None` where none was.
        entries: The limits that were asked, each with id and cost.
        parts: The decisions of the entries, in the same order.
        refusal: Why the request is refused; `None` where it may pass.
        is_degraded: Whether the store failed and a policy answered.
        needs_response: Whether a limit waits for the response, or is given back on an error.
    """

    # What most requests leave alone stands on the class, so that making an answer costs little.
    is_degraded: bool = False
    _is_refunded: bool = False
    _problem: Problem | None = None
    _wait_ns: int = -1
    _why: tuple[str, dict[str, object]] = ("", {})

    def __init__(
        self,
        settings: ResponseSettings,
        request: Request,
        decision: Decision | None,
        entries: tuple[Entry, ...],
        parts: Sequence[Decision],
    ) -> None:
        self.request = request
        self.decision = decision
        self.entries = entries
        self.parts = parts
        self.needs_response = settings.needs_response
        # Read of every request, and found sooner here than on the class.
        self.refusal: Refusal | None = None
        self._earlier: tuple[Outcome, ...] = ()
        self._settings = settings

    def refuse(self, refusal: Refusal, why: str = "", **values: object) -> Outcome:
        """Refuse the request; where no decision says why, one of the templates does."""
        self.refusal = refusal
        self._why = why, values
        return self

    def merge_earlier(self, earlier: Outcome | None) -> Outcome:
        """Join an earlier answer about the same request, so that its headers speak of both."""
        if earlier is not None:
            self._earlier = earlier.history
            self.needs_response = True
        return self

    @property
    def retry_after(self) -> int | None:
        """Whole seconds until a denied client may come back, rounded up; else `None`."""
        return seconds(self._wait()) if self.refusal == "denied" else None

    @property
    def problem(self) -> Problem:
        """What a refused client is told, in words."""
        if self._problem is None:
            self._problem = self._make_problem()
        return self._problem

    def _make_problem(self) -> Problem:
        words = self._settings.words
        if self.refusal == "denied" and self.decision is not None:
            return quota_exceeded(self.decision, self.parts, self._wait(), words)
        if self.refusal == "store":
            return reduced_capacity(words)
        template, values = self._why
        return bad_request(words.say(template, **values), words)

    @property
    def status(self) -> int:
        """The refusal's status code: 429, 503 where the store failed, 400 for a faulty request."""
        return self.problem.status

    def body(self) -> tuple[str, bytes]:
        """Give the content type and body of the refusal, in the form that the client accepts."""
        return self.problem.body(self.request.header("Accept"))

    def headers(self) -> Fields:
        """Give the header fields of the response, served or refused; not the body's own."""
        settings = self._settings
        refused = self.refusal is not None
        decision = self.decision
        if self._earlier:
            fields = self._joined()
        elif decision is None:
            fields = []
        elif len(self.parts) == 1:
            fields = settings.writer.one(decision, refused)
        else:
            fields = settings.writer.many(self.parts, decision, refused=refused)
        if refused:
            if self.refusal == "denied":
                fields.append(("Retry-After", str(seconds(self._wait()))))
            fields += self.problem.headers()
        if settings.exposed is not None and fields:
            fields.append(("Access-Control-Expose-Headers", settings.exposed))
        return fields

    @property
    def history(self) -> tuple[Outcome, ...]:
        """The earlier answers about the request, and this one."""
        return (*self._earlier, self)

    def buckets(self) -> dict[tuple[str, Id], Rule]:
        """Give the buckets that were asked, in order, each with the rule that asked it."""
        return {(term.name, id): term.rule for a in self.history for term, id, _ in a.entries}

    def settle(self, response: Any) -> None:
        """Spend what was only checked, where its `deduct_when` says so of the framework's response.

        Raises:
            StoreError: The store failed, and a limit's policy is to raise.
        """
        for answer in self.history:
            answer._settle(response)  # noqa: SLF001  another of this class

    def _settle(self, response: Any) -> None:
        if self._settings.needs_response and self.refusal is None:
            due = [
                place
                for place, (term, _, _) in enumerate(self.entries)
                if term.deduct_when is not None and term.deduct_when(response)
            ]
            self._replace(due, "spend")

    def refund(self) -> None:
        """Give back, once, what this answer spent under limits with `refund_on_error`.

        Raises:
            StoreError: The store failed, and a limit's policy is to raise.
        """
        if self._settings.needs_response and self.refusal is None and not self._is_refunded:
            self._is_refunded = True
            due = [
                place
                for place, (term, _, _) in enumerate(self.entries)
                # A shadow limit that denied has taken nothing, one with `deduct_when` not yet.
                if term.refund_on_error
                and term.deduct_when is None
                and self.parts[place].allowed
                and not self.parts[place].would_deny
            ]
            self._replace(due, "refund")

    def refund_all(self) -> None:
        """Refund the request under all limits that were evaluated for it.

        Raises:
            StoreError: As `refund`.
        """
        for outcome in self.history:
            outcome.refund()

    def _replace(self, places: list[int], verb: Literal["spend", "refund"]) -> None:
        """Take the second step for some entries, and show its decisions in place of the first's."""
        if not places:
            return
        entries = [self.entries[place] for place in places]
        enforcer = self._settings.enforcer
        try:
            later = enforcer.finish(entries, verb, degraded=self.is_degraded)
        except StoreError as error:
            enforcer.store_failed(error)
            if any(term.on_store_error == "raise" for term, _, _ in entries):
                raise
            return
        parts = list(self.parts)
        for place, decision in zip(places, later, strict=True):
            parts[place] = decision
        self.parts = parts
        self.decision = strictest(parts)

    def _joined(self) -> Fields:
        """Give the fields of this answer and the earlier ones together, their limits in order."""
        chiefs = [answer.decision for answer in self.history if answer.decision is not None]
        if not chiefs:
            return []
        # A bucket that was asked again and again is shown once, as it stands.
        parts: dict[tuple[str | None, str | None], Decision] = {}
        for answer in self.history:
            for part in answer.parts:
                parts[part.name, part.id] = part
        # What refuses speaks where only one can; it is the last, for nothing is asked after a
        # refusal.
        chief = chiefs[-1] if self.refusal == "denied" else strictest(chiefs)
        return self._settings.writer.many(
            [*parts.values()], chief, refused=self.refusal == "denied"
        )

    def _wait(self) -> int:
        if self._wait_ns < 0:
            wait = 0 if self.decision is None else wait_ns(self.decision)
            # Upwards only, so that nobody comes early.
            extra = wait * self._settings.spread * random.random()  # noqa: S311  it spreads, it hides nothing
            self._wait_ns = wait + int(extra)
        return self._wait_ns


class RefundOnErrorBody:
    """A body of WSGI that gives back what its request took, should it fail on the way.

    Args:
        body: The body; closed with this one.
        outcomes: All answers about the request.
    """

    def __init__(self, body: Iterable[Any], *outcomes: Outcome) -> None:
        self._body = body
        self._outcomes = outcomes

    def __iter__(self) -> Iterator[Any]:
        """Give the body's parts."""
        try:
            yield from self._body
        except Exception:
            for outcome in self._outcomes:
                outcome.refund()
            raise

    def close(self) -> None:
        """Close the body."""
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
