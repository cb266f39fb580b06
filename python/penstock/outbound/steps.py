"""The steps of an outbound request: wait, acquire, send, and retry."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Generator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypedDict

from penstock._core import rate_limited_error
from penstock._locks import fork_safe
from penstock._validation import check_call, is_whole, read_timeout
from penstock.errors import ConfigError, RateLimited, StoreError
from penstock.outbound import received

if TYPE_CHECKING:
    from penstock._core import Decision, Limiter, ManualClock, Reservation, SystemClock
    from penstock.types import Id, Period


IdSource: TypeAlias = "Id | Callable[[Any], Id] | None"
"""The client id: the request's host, one id for all requests, or a callable that returns it."""
StoreFailure: TypeAlias = Literal["allow", "raise"]
_Steps: TypeAlias = Generator[tuple[Any, ...], Any, Any]

_log: Final = logging.getLogger("penstock")

_SECOND_NS: Final = 1_000_000_000
_MAX_HOLDS: Final = 1024
_TOO_MANY: Final = 429
_BUSY: Final = frozenset({_TOO_MANY, 503})
# RFC 9110, section 9.2.2.
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
_MAX_RETRIES: Final = 100
# In seconds: without a timeout, a reservation does not wait.
_FOREVER: Final = 100 * 365 * 86_400


class PaceOptions(TypedDict, total=False):
    """Keywords of a pace, which every client has.

    Attributes:
        id: The client id: the request's host by default, one id for all requests, or a callable
            of the request.
        cost: Tokens of a rate, or a callable of the request that returns them. The default is 1.
        timeout: The longest that a request may wait before it is sent, retries included: seconds,
            a string such as `"30s"` or a `timedelta`; 0 never waits, `None` waits as long as
            necessary. The default is 30 seconds.
        retries: How often an idempotent request is sent again that was answered with 429 or 503,
            if its body can be. The default is 0.
        on_store_error: `"allow"`, the default, sends unpaced when the store fails, and logs that;
            `"raise"` raises `StoreError`.
    """

    id: IdSource
    cost: int | Callable[[Any], int]
    timeout: Period | None
    retries: int
    on_store_error: StoreFailure


class Messages(Protocol):
    """Reads the requests and responses of a client library."""

    def hold(self, response: Any, reservation: Reservation) -> Any:
        """Return a response that ends a reservation when it has been read or is closed."""

    def host_of(self, request: Any) -> str:
        """Return the host of a request."""

    def status_of(self, response: Any) -> int:
        """Return the status of a response."""

    def is_replayable(self, request: Any) -> bool:
        """Return whether the body of a request can be sent again."""


class Cooldowns:
    """The times until which the requests of each id are delayed."""

    def __init__(self, clock: SystemClock | ManualClock) -> None:
        self._clock: Final = clock
        self._until_ns: Final[dict[Id, int]] = {}
        self._search_at = _MAX_HOLDS
        self._lock: Final = fork_safe(Lock())

    def until_ns(self, id: Id) -> int:
        """Return the end of a cooldown; an instant in the past if there is none."""
        return self._until_ns.get(id, 0)

    def hold(self, id: Id, until_ns: int) -> None:
        """Delay requests of an id; a cooldown is never shortened."""
        with self._lock:
            if len(self._until_ns) >= self._search_at:
                now_ns = self._clock.steady_ns()
                for other in [other for other, end in self._until_ns.items() if end <= now_ns]:
                    del self._until_ns[other]
                # Not for each response, if many hosts ask for long waits.
                self._search_at = max(_MAX_HOLDS, 2 * len(self._until_ns))
            self._until_ns[id] = max(until_ns, self._until_ns.get(id, 0))


class Pace:
    """The pacing of requests, in steps.

    Args:
        limiter: The limiter that decides.
        name: The limit, or several, which are decided together.
        messages: Reads the requests and responses.
        id: As in `PaceOptions`; so are the others.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        limiter: Limiter,
        name: str | Sequence[str],
        messages: Messages,
        *,
        id: IdSource = None,
        cost: int | Callable[[Any], int] = 1,
        timeout: Period | None = 30,
        retries: int = 0,
        on_store_error: StoreFailure = "allow",
    ) -> None:
        names = [name] if isinstance(name, str) else [*name]
        if not names:
            raise ConfigError("a pace needs a limit, found none")
        are_slots = [check_call(limiter.limits, name, id, cost) for name in names]
        if not is_whole(retries, 0, _MAX_RETRIES):
            raise ConfigError(
                f"retries must be a whole number from 0 to {_MAX_RETRIES}, found {retries!r}"
            )
        if on_store_error not in ("allow", "raise"):
            raise ConfigError(
                f"on_store_error must be 'allow' or 'raise', found {on_store_error!r}"
            )
        self.name: Final = names[0]
        self.limiter: Final = limiter
        # Each limit, and whether it is on requests in flight; `None` if there is only one rate.
        self._reserved: Final = (
            [*zip(names, are_slots, strict=True)] if len(names) > 1 or any(are_slots) else None
        )
        self.cooldowns: Final = Cooldowns(limiter.clock)
        self._id: Final = id
        self._cost: Final = cost
        self._timeout_ns: Final = read_timeout(timeout)
        self._retries: Final = retries
        self._on_store_error: Final = on_store_error
        self._messages: Final = messages
        self._is_store_failing = False

    def steps(self, request: Any) -> _Steps:
        """Yield the steps of a request, each a verb and its arguments; return the response.

        `acquire`, `check` and `refund` take an id and a cost, `reserve_all` and `check_all`
        transactions, `acquire` and `reserve_all` a timeout in seconds too; `wait` takes an
        instant; `send` takes nothing, and `read` a response.

        Raises:
            RateLimited: The request would have to wait for longer than the timeout.
        """
        now_ns = self.limiter.clock.steady_ns
        id = self._id_of(request)
        if id == "" and self._id is None:
            # A URL without a host, which the client library refuses in its own words.
            return (yield ("send",))
        cost = self._cost(request) if callable(self._cost) else self._cost
        deadline_ns = None if self._timeout_ns is None else now_ns() + self._timeout_ns
        response, due_ns = None, 0
        for retries in itertools.count():
            try:
                reservation = yield from self._turn(id, cost, due_ns, deadline_ns)
            except RateLimited:
                if response is None:
                    raise
                # The service's own response is more informative than a timeout.
                return response
            response = yield from self._send(reservation)
            status = self._messages.status_of(response)
            due_ns = self._hold(response, status, id, retries)
            if status not in _BUSY or retries == self._retries:
                return response
            if request.method not in _IDEMPOTENT or not self._messages.is_replayable(request):
                return response
            if deadline_ns is not None and due_ns > deadline_ns:
                return response
            try:
                # Frees the connection during the wait.
                yield ("read", response)
            except BaseException:
                # The caller does not get the response, and cannot close it.
                if reservation is not None:
                    reservation.release_nowait()
                raise

    def _send(self, reservation: Reservation | None) -> _Steps:
        """Send a request; return the response, which ends the reservation."""
        try:
            response = yield ("send",)
            return response if reservation is None else self._messages.hold(response, reservation)
        except BaseException:
            # Also when the task is cancelled.
            if reservation is not None:
                reservation.release_nowait()
            raise

    def _turn(self, id: Id, cost: int, due_ns: int, deadline_ns: int | None) -> _Steps:
        """Wait for the end of the cooldown, then for the limit.

        Return the reservation, unless there is only one rate.
        """
        now_ns = self.limiter.clock.steady_ns
        while True:
            now = now_ns()
            until_ns = max(due_ns, self.cooldowns.until_ns(id))
            if until_ns > now:
                if deadline_ns is not None and until_ns > deadline_ns:
                    decision: Decision = yield self._check(id, cost)
                    raise rate_limited_error(decision, until_ns - now)
                yield ("wait", until_ns)
                continue
            reservation: Reservation | None = None
            left = None if deadline_ns is None else max(deadline_ns - now, 0) / _SECOND_NS
            try:
                if self._reserved is None:
                    yield ("acquire", id, cost, left)
                else:
                    wanted = self._transactions(id, cost)
                    reservation = yield ("reserve_all", wanted, _FOREVER if left is None else left)
            except StoreError as error:
                self._note_store_error(error)
                return None
            self._note_store_answer()
            if self.cooldowns.until_ns(id) <= now_ns():
                return reservation
            # A cooldown began during the wait. If the waiting requests kept their tokens, all would
            # be sent at the instant it ends.
            if reservation is None:
                yield ("refund", id, cost)
            else:
                reservation.release_nowait(is_cancelled=True)

    def _transactions(self, id: Id, cost: int) -> list[tuple[str, Id, int]]:
        reserved = self._reserved or ()
        return [(name, id, 1 if is_slot else cost) for name, is_slot in reserved]

    def _check(self, id: Id, cost: int) -> tuple[Any, ...]:
        """Return the step that checks the limits."""
        if self._reserved is None:
            return "check", id, cost
        return "check_all", self._transactions(id, cost)

    def _hold(self, response: Any, status: int, id: Id, retries: int) -> int:
        """Delay further requests of an id as a response asks; return when they may be sent."""
        clock = self.limiter.clock
        now_ns = clock.steady_ns()
        wait_ns = received.wait_ns(status, response.headers.items(), clock.now_ns())
        if not wait_ns and status in _BUSY:
            # It does not say for how long: one second, then two, then four, less up to half of it.
            seconds = 2.0 ** min(retries, 10) * random.uniform(0.5, 1)  # noqa: S311  it spreads, it hides nothing
            wait_ns = int(seconds * _SECOND_NS)
            if status != _TOO_MANY:
                # It may concern a single resource, so only this request is delayed.
                return now_ns + wait_ns
        if wait_ns:
            _log.info("%s accepts no requests for %g s", id, wait_ns / _SECOND_NS)
            self.cooldowns.hold(id, now_ns + wait_ns)
        return now_ns + wait_ns

    def _id_of(self, request: Any) -> Id:
        if self._id is None:
            return self._messages.host_of(request)
        return self._id(request) if callable(self._id) else self._id

    def _note_store_error(self, error: StoreError) -> None:
        if self._on_store_error == "raise":
            raise error
        if not self._is_store_failing:
            self._is_store_failing = True
            _log.warning("the store does not answer, requests are sent unpaced: %s", error)

    def _note_store_answer(self) -> None:
        if self._is_store_failing:
            self._is_store_failing = False
            _log.warning("the store answers again")
