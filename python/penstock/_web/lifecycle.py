"""The life of a request: what limits do from its arrival to the end of its response.

An adapter creates one `Visit` for each request, of a class of its own that reads the framework's
request. Then it calls `enter` for the limits of the request (together, or as they
become known), `respond` when the response starts, `failed` if the application raises, and
`finished` when the body has ended or the client is gone.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, cast, overload

from penstock._validation import slots_error
from penstock._web.decide import NOTHING, UNLIMITED, Allowed, take, take_async
from penstock._web.outcome import Outcome
from penstock._web.request import Response
from penstock.errors import Error, RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock._core import Decision
    from penstock._web.compiled_limit import Entry
    from penstock._web.decide import RouteLimits, Steps
    from penstock._web.headers import EncodedFields, Fields
    from penstock._web.request import Request
    from penstock._web.settle import HeldSlots

_ERROR: Final = Response(HTTPStatus.INTERNAL_SERVER_ERROR, ())


class Visit:
    """One request on its way through its limits.

    Attributes:
        native: The framework's request, or what `read` finds it by.
        peer: The address of the socket's peer.
        is_decided: Whether limits have been decided for the request.
        limits: The limits that were decided last; `None` before the first.
        decision: The decision over all of them, for the view.
        entered: The outcome of `limits` and those before; `None` for an ordinary decision, from
            which `outcome` makes one if something asks.
        slots: What the request holds until its response has been sent.
        cached_request: The request as limits read it, which a view may replace by its own; `None`
            until something asks for `request`.
    """

    # One is created for each request, in 200 instructions less than with a dictionary of its own.
    __slots__ = (
        "_id",
        "cached_request",
        "decision",
        "entered",
        "entries",
        "is_decided",
        "limits",
        "native",
        "peer",
        "slots",
    )

    # Of the last decision that was not taken step by step.
    _id: Any
    # Whether the thread may wait for the store; that of an event loop must not.
    may_block: ClassVar[bool] = True

    native: Any
    peer: str | None
    is_decided: bool
    limits: RouteLimits | None
    decision: Decision
    entered: Outcome | None
    entries: tuple[Entry, ...] | None
    slots: HeldSlots
    cached_request: Request | None

    # Not a constructor, which the interpreter calls in 330 instructions more.
    def arrive(self, native: Any, peer: str | None) -> Self:
        """Begin the visit, and return it."""
        self.native, self.peer = native, peer
        self.limits = self.entered = self.entries = self.cached_request = None
        self.is_decided, self.decision, self.slots = False, NOTHING, ()
        return self

    def read(self) -> Request:
        """Return the request as limits read it; here, `native` is one already."""
        request: Request = self.native
        return request

    @property
    def request(self) -> Any:
        """The request as limits read it, made when something asks."""
        if self.cached_request is None:
            self.cached_request = self.read()
        return self.cached_request

    @property
    def outcome(self) -> Outcome | None:
        """What was decided, in detail; `None` before the first decision."""
        if self.entered is None and self.limits is not None:
            entries = self.limits.entries(self._id) if self.entries is None else self.entries
            self.entered = Outcome(self.limits.settings, self.request, self.decision, entries)
        return self.entered

    @property
    def is_open(self) -> bool:
        """Whether the response settles or refunds something."""
        return self.entered is not None and self.entered.needs_response

    @property
    def is_refundable(self) -> bool:
        """Whether a limit is refunded if the body of the response fails."""
        return self.is_open and self.entered is not None and self.entered.refunds_on_error

    @property
    def needs_end(self) -> bool:
        """Whether something follows from how and when the body of the response ends."""
        return bool(self.slots) or (self.entered is not None and self.is_refundable)

    @overload
    def enter(self, limits: RouteLimits) -> Outcome | None: ...

    @overload
    def enter(self, limits: RouteLimits, *, on_loop: Literal[True]) -> Steps | None: ...

    def enter(self, limits: RouteLimits, *, on_loop: bool = False) -> Outcome | Steps | None:
        """Decide limits, together; the first call to the store is made ahead.

        Args:
            limits: The limits.
            on_loop: Whether to wait for nothing, and to return the steps that follow instead.

        Returns:
            `None` if the request may proceed, and needs nothing but header fields, and the release
            of `slots`; the outcome if it is refused, or its response settles or refunds something.

        Raises:
            StoreError: The store fails, and a limit has the policy `"raise"`.
        """
        # The call ahead is made here, because a function of its own would be one call more.
        id = answer = None
        is_first = not self.is_decided
        if is_first:
            # A local: a method call would look up the class first.
            spend = limits.spend_now if on_loop else limits.spend
            try:
                id = limits.ids_of_peers[self.peer]
            except KeyError:
                id = limits.add_peer(self.peer)
            try:
                if id is None and limits.id_of is not None:
                    # The peer does not tell the id: the request is read.
                    request = self.cached_request
                    id = limits.id_of(self.request if request is None else request)
                if id is not None:
                    answer = spend(id)
            except Error as error:
                answer = error
            else:
                if answer and not limits.has_outcome and not limits.watch.is_awake:
                    self.limits, self._id, self.is_decided = limits, id, True
                    if limits.holds:
                        self.decision, self.slots = answer.decision, (answer,)
                    else:
                        self.decision = answer
                    return None
        steps = limits.decide(self, None if is_first else self.outcome, id, answer)
        # An error refers to this frame: only the garbage collector would find that cycle.
        answer = None
        return steps if on_loop else self._end(limits, take(limits.limiter, steps))

    async def enter_async(self, limits: RouteLimits) -> Outcome | None:
        """Do the same as `enter` on an event loop, without blocking it."""
        if not limits.may_wait:
            return self.enter(limits)
        steps = self.enter(limits, on_loop=True)
        return None if steps is None else self._end(limits, await take_async(limits.limiter, steps))

    def _end(self, limits: RouteLimits, outcome: Outcome | Allowed) -> Outcome | None:
        self.limits = limits
        if isinstance(outcome, Allowed):
            self.entries, self.decision, self.slots = outcome
            self.is_decided = True
            return None
        if outcome.is_degraded:
            self.decision = UNLIMITED
        return self.keep(outcome)

    def keep(self, outcome: Outcome) -> Outcome | None:
        """Keep an outcome, which includes the earlier ones; return it as `enter` does."""
        self.entered, self.is_decided = outcome, True
        if outcome.decision is not None:
            self.decision = outcome.decision
        if outcome.slots:
            self.slots, outcome.slots = (*self.slots, *outcome.slots), ()
        return outcome if outcome.needs_response or outcome.refusal is not None else None

    def respond(self, head: Any) -> None:
        """Settle what the head of the response decides; nothing is settled twice.

        Raises:
            StoreError: The store fails, and a limit has the policy `"raise"`.
        """
        outcome = self.entered
        if outcome is not None and outcome.needs_response:
            outcome.settle(head)
            self.keep(outcome)

    async def respond_async(self, head: Any) -> None:
        """Do the same as `respond` on an event loop."""
        await self._on_loop(self.respond, head)

    def fields(self) -> Fields:
        """Return the header fields of the limits."""
        limits, outcome = self.limits, self.entered
        if outcome is not None:
            return outcome.headers()
        return [] if limits is None else limits.fields(self.decision)

    def add_to(self, own: Fields, status: int | str) -> Fields:
        """Return the header fields of a response, with those of the limits in a new list."""
        limits, outcome = self.limits, self.entered
        if outcome is not None:
            return outcome.add_to(own, status)
        return own if limits is None else limits.fields(self.decision, own)

    def add_encoded_to(self, own: Iterable[tuple[bytes, bytes]], status: int) -> EncodedFields:
        """Do the same as `add_to` with fields as ASGI servers take them."""
        limits, outcome = self.limits, self.entered
        if outcome is not None:
            return outcome.add_encoded_to([*own], status)
        return [*own] if limits is None else limits.encoded_fields(self.decision, own)

    def failed(self, entered: Outcome | None = None, head: Any = _ERROR) -> None:
        """Refund and settle a request whose application raised.

        Args:
            entered: The outcome of the limits that fail; the others stay. `None`: all fail.
            head: The head of the response; `None` if one is still to come.
        """
        outcome = self.entered
        try:
            if outcome is not None and outcome.needs_response:
                if entered is None:
                    outcome.refund_all()
                else:
                    entered.refund()
                if head is not None:
                    outcome.settle(head)
        finally:
            if head is not None:
                self.release()

    async def failed_async(self, entered: Outcome | None = None, head: Any = _ERROR) -> None:
        """Do the same as `failed` on an event loop."""
        await self._on_loop(self.failed, entered, head)

    def finished(self, *, may_block: bool | None = None) -> None:
        """End the request; what nothing has settled stays taken, and slots are given back.

        Args:
            may_block: As in `release`.
        """
        if self.entered is not None and self.entered.needs_response:
            self.entered.keep()
        self.release(may_block=may_block)

    def hold_nothing(self) -> None:
        """Check that no slots are held, because no response will return them.

        Raises:
            ConfigError: Slots are held; they are returned.
        """
        if self.slots and self.outcome is not None:
            self.release(may_block=False)
            raise slots_error(next(x.name for x, _, _ in self.outcome.entries if x.holds))

    def release(self, *, may_block: bool | None = None) -> None:
        """Return the slots, once: the response has been sent, or never will be.

        Args:
            may_block: Whether to wait for the store; `None` for that of the class.
        """
        slots, self.slots = self.slots, ()
        for reservation in slots:
            if self.may_block if may_block is None else may_block:
                # The client's next request finds them free.
                reservation.release()
            else:
                reservation.release_nowait()

    async def _on_loop(self, call: Any, *arguments: Any) -> None:
        if self.is_open and self.entered is not None and self.entered.is_remote:
            await asyncio.to_thread(call, *arguments)
        else:
            call(*arguments)


def admit(limits: RouteLimits, request: Request, earlier: Outcome | None = None) -> Outcome:
    """Decide limits for a request that has no adapter; return the outcome.

    Args:
        limits: The limits.
        request: The request.
        earlier: An earlier outcome of it.

    Raises:
        ConfigError: A limit is on requests in flight.
        StoreError: As `Visit.enter`.
    """
    visit = Visit().arrive(request, request.peer)
    if earlier is not None:
        visit.keep(earlier)
    visit.enter(limits)
    visit.hold_nothing()
    return cast("Outcome", visit.outcome)


def refund_failed(
    outcome: Outcome | None, error: Exception, is_answer: Callable[[Exception], bool]
) -> None:
    """Refund a request whose view raised, unless the exception is an answer, such as a 404."""
    if outcome is not None and not (isinstance(error, RateLimited) or is_answer(error)):
        outcome.refund()
