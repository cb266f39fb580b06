"""The life of a request: what limits do from its arrival to the end of its response.

An adapter creates one `Visit` for each request, of a class of its own that reads the framework's
request. Then it calls `enter` for the limits of the request (together, or as they
become known), `respond` when the response starts, `failed` if the application raises, and
`finished` when the body has ended or the client is gone.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import Error
from penstock.web.enforce import NOTHING, UNLIMITED, take, take_async
from penstock.web.request import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock._core import Decision
    from penstock.types import Id
    from penstock.web.enforce import Steps
    from penstock.web.headers import EncodedFields, Fields
    from penstock.web.outcome import Outcome
    from penstock.web.request import Request
    from penstock.web.route_limits import RouteLimits

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
    """

    # One is created for each request, which is faster without a dictionary of its own.
    __slots__ = (
        "_id",
        "_request",
        "decision",
        "entered",
        "is_decided",
        "limits",
        "native",
        "peer",
    )

    # Set with `limits`.
    _id: Id

    def __init__(self, native: Any, peer: str | None) -> None:
        self.native = native
        self.peer = peer
        self.is_decided = False
        self.limits: RouteLimits | None = None
        self.decision: Decision = NOTHING
        self.entered: Outcome | None = None
        self._request: Request | None = None

    def read(self) -> Request:
        """Return the request as limits read it; here, `native` is one already."""
        request: Request = self.native
        return request

    @property
    def request(self) -> Any:
        """The request as limits read it, made when something asks; a view may set another one."""
        if self._request is None:
            self._request = self.read()
        return self._request

    @request.setter
    def request(self, request: Request) -> None:
        self._request = request

    @property
    def outcome(self) -> Outcome | None:
        """What was decided, in detail; `None` before the first decision."""
        if self.entered is None and self.limits is not None:
            self.entered = self.limits.outcome_of(self.request, self._id, self.decision)
        return self.entered

    @property
    def is_open(self) -> bool:
        """Whether the response settles or refunds something."""
        return self.entered is not None and self.entered.needs_response

    def enter(self, limits: RouteLimits) -> Outcome | None:
        """Decide limits, together.

        Returns:
            `None` if the request may proceed, and needs nothing but header fields; the outcome if
            it is refused, or its response settles or refunds something.

        Raises:
            StoreError: The store fails, and a limit has the policy `"raise"`.
        """
        # Locals: a method call would look up the class first.
        id: Id | None = None
        spend = limits.spend
        try:
            if self.is_decided:
                return self._take(limits, limits.steps(self.request, self.outcome))
            try:
                id = limits.known[self.peer]
            except KeyError:
                id = limits.learn(self.peer)
            if id is None:
                # The peer does not tell the id: the request is read.
                if limits.id_of is None:
                    return self._take(limits, limits.steps(self.request))
                id = limits.id_of(self.request)
            decision = spend(id)
        except Error as error:
            return self._take(limits, limits.recover(self.request, id, error))
        self.limits, self.decision, self._id, self.is_decided = limits, decision, id, True
        return self._followed(limits, id, decision)

    async def enter_async(self, limits: RouteLimits) -> Outcome | None:
        """Do as `enter` on an event loop, which waits for no server and no other process."""
        if not limits.may_wait:
            return self.enter(limits)
        id = None if self.is_decided or limits.is_remote else self._id_under(limits)
        if id is None:
            steps = limits.steps(self.request, self.outcome)
            return self._took(limits, await take_async(limits.limiter, steps))
        try:
            decision = limits.try_spend(id)
            if decision is None:
                decision = await asyncio.to_thread(limits.spend, id)
        except Error as error:
            return self._take(limits, limits.recover(self.request, id, error))
        self.limits, self.decision, self._id, self.is_decided = limits, decision, id, True
        return self._followed(limits, id, decision)

    def _id_under(self, limits: RouteLimits) -> Id | None:
        """Return the id under all of the limits; `None` if that takes the steps of each limit."""
        try:
            id = limits.known[self.peer] if self.peer in limits.known else limits.learn(self.peer)
            return limits.id_of(self.request) if id is None and limits.id_of is not None else id
        except Error:
            # The steps meet it again, and treat it by the limits' policies.
            return None

    def _followed(self, limits: RouteLimits, id: Id, decision: Decision) -> Outcome | None:
        """Do what follows from a decision, and return its outcome as `enter` does."""
        if limits.watch.is_awake:
            limits.watch.look(self.request)
        if limits.is_followed or not decision:
            return self.keep(limits.follow(self.request, id, decision))
        return None

    def _take(self, limits: RouteLimits, steps: Steps) -> Outcome | None:
        return self._took(limits, take(limits.limiter, steps))

    def _took(self, limits: RouteLimits, outcome: Outcome) -> Outcome | None:
        """Keep an outcome that was found step by step."""
        if not self.is_decided and limits.watch.is_awake:
            limits.watch.look(self.request, is_decided=False)
        self.limits = limits
        if outcome.is_degraded:
            self.decision = UNLIMITED
        return self.keep(outcome)

    def keep(self, outcome: Outcome) -> Outcome | None:
        """Keep an outcome, which includes the earlier ones; return it as `enter` does."""
        self.entered, self.is_decided = outcome, True
        if outcome.decision is not None:
            self.decision = outcome.decision
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
        """Do as `respond` on an event loop."""
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
        return own if limits is None else [*own, *limits.fields(self.decision)]

    def add_encoded_to(self, own: Iterable[tuple[bytes, bytes]], status: int) -> EncodedFields:
        """Do as `add_to` with fields as ASGI servers take them."""
        limits, outcome = self.limits, self.entered
        if outcome is not None:
            return outcome.add_encoded_to([*own], status)
        return [*own] if limits is None else [*own, *limits.encoded_fields(self.decision)]

    def failed(self, entered: Outcome | None = None, head: Any = _ERROR) -> None:
        """Refund and settle a request whose application raised.

        Args:
            entered: The outcome of the limits that fail; the others stay. `None`: all fail.
            head: The head of the response; `None` if one is still to come.
        """
        outcome = self.entered
        if outcome is not None and outcome.needs_response:
            if entered is None:
                outcome.refund_all()
            else:
                entered.refund()
            if head is not None:
                outcome.settle(head)

    async def failed_async(self, entered: Outcome | None = None, head: Any = _ERROR) -> None:
        """Do as `failed` on an event loop."""
        await self._on_loop(self.failed, entered, head)

    def finished(self) -> None:
        """End the request; what nothing has settled stays taken."""
        if self.entered is not None and self.entered.needs_response:
            self.entered.keep()

    def watched(self, body: Iterable[Any]) -> Iterable[Any]:
        """Return a body that calls `failed` if it breaks, and `finished` at its end."""
        return _Body(body, self)

    async def _on_loop(self, call: Any, *arguments: Any) -> None:
        if self.entered is not None and self.entered.needs_response:
            if self.entered.is_remote:
                await asyncio.to_thread(call, *arguments)
            else:
                call(*arguments)


class _Body:
    """A WSGI body that tells a request how it ends."""

    def __init__(self, body: Iterable[Any], request: Visit) -> None:
        self._body: Final = body
        self._request: Final = request

    def __iter__(self) -> Iterator[Any]:
        """Yield the parts of the body."""
        try:
            yield from self._body
        except Exception:
            self._request.failed()
            raise

    def close(self) -> None:
        """Close the body."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._request.finished()
