"""The steps of an outbound request: wait, acquire, send, and retry."""

from __future__ import annotations

import datetime
import itertools
import logging
import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypedDict

from penstock._core import rate_limited_error
from penstock.errors import ConfigError, RateLimited, StoreError
from penstock.locks import fork_safe
from penstock.outbound.learned import LearnedPace
from penstock.parse_headers import ReceivedLimit, parse
from penstock.validation import check_call, duration_ns, is_whole

if TYPE_CHECKING:
    from penstock._core import Decision, Limiter, ManualClock, Reservation, SystemClock
    from penstock.types import Id, Period


IdSource: TypeAlias = "Id | Callable[[Any], Id] | None"
"""The client id: the request's host, one id for all requests, or a callable that returns it."""
StoreFailure: TypeAlias = Literal["allow", "raise"]
PaceMode: TypeAlias = Literal["limit", "auto"]
_Steps: TypeAlias = Generator[tuple[Any, ...], Any, Any]

_log: Final = logging.getLogger("penstock")

_SECOND_NS: Final = 1_000_000_000
# No service can stop requests for longer, by mistake or on purpose.
_MAX_HOLD_NS: Final = 24 * 60 * 60 * _SECOND_NS
_MAX_DIGITS: Final = 9
_MAX_HOLDS: Final = 1024
_BUSY: Final = frozenset({429, 503})
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
            a text such as `"30s"` or a `timedelta`; 0 never waits, `None` waits as long as
            necessary. The default is 30 seconds.
        pace: `"limit"`, the default, sends as fast as the limit allows. `"auto"` also learns from
            the responses what the service accepts.
        retries: How often an idempotent request is sent again that was answered with 429 or 503,
            if its body can be. The default is 0.
        on_store_error: `"allow"`, the default, sends unpaced when the store fails, and logs that;
            `"raise"` raises `StoreError`.
    """

    id: IdSource
    cost: int | Callable[[Any], int]
    timeout: Period | None
    pace: PaceMode
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


def retry_after_ns(headers: Mapping[str, str], now_ns: int) -> int | None:
    """Return the wait that a response asks for; `None` if there is none or it is malformed.

    At most a day. A date counts from the response's own `Date`, or else from `now_ns`, so that two
    machines need not agree on the time.

    Source: RFC 9110, section 10.2.3.

    Examples:
        >>> from penstock.outbound.steps import retry_after_ns
        >>> retry_after_ns({"Retry-After": "30"}, 0)
        30000000000
        >>> retry_after_ns(
        ...     {
        ...         "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT",
        ...         "Date": "Fri, 31 Dec 1999 23:59:29 GMT",
        ...     },
        ...     0,
        ... )
        30000000000
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        digits = value.lstrip("0")
        # Python refuses to parse thousands of digits, leading zeros included.
        few = len(digits) <= _MAX_DIGITS
        wait_ns = int(digits or "0") * _SECOND_NS if few else _MAX_HOLD_NS
        return min(wait_ns, _MAX_HOLD_NS)
    until_ns = _date_ns(value)
    if until_ns is None:
        return None
    sent_ns = _date_ns(headers.get("Date", ""))
    return min(max(until_ns - (now_ns if sent_ns is None else sent_ns), 0), _MAX_HOLD_NS)


def exhausted_ns(headers: Mapping[str, str], now_ns: int) -> int | None:
    """Return the wait of a response whose rate-limit fields say that no request is left.

    `None` if some are, or the fields do not say for how long. At most a day. A reset that is an
    instant counts as a date in `retry_after_ns`.

    Examples:
        >>> from penstock.outbound.steps import exhausted_ns
        >>> exhausted_ns({"RateLimit": '"default";r=0;t=30'}, 0)
        30000000000
        >>> exhausted_ns({"RateLimit": '"default";r=1;t=30'}, 0) is None
        True
    """
    waits = [
        limit.reset_after
        for limit in _stated(headers, now_ns)
        if limit.remaining == 0 and limit.reset_after is not None
    ]
    if not waits:
        return None
    return min(math.ceil(max(waits)) * _SECOND_NS, _MAX_HOLD_NS)


def _stated(headers: Mapping[str, str], now_ns: int) -> list[ReceivedLimit]:
    """Return the limits that a response states."""
    sent_ns = _date_ns(headers.get("Date", ""))
    return parse(headers, (now_ns if sent_ns is None else sent_ns) / _SECOND_NS)


def _date_ns(value: str) -> int | None:
    try:
        date = parsedate_to_datetime(value)
        # RFC 9110, section 5.6.7: a form without a zone is in UTC too.
        date = date if date.tzinfo is not None else date.replace(tzinfo=datetime.UTC)
        return int(date.timestamp()) * _SECOND_NS
    except (ValueError, OverflowError, TypeError):
        return None


class Cooldowns:
    """The times until which the requests of each id are delayed."""

    def __init__(self, clock: SystemClock | ManualClock) -> None:
        self._clock: Final = clock
        self._until_ns: Final[dict[Id, int]] = {}
        self._lock: Final = fork_safe(Lock())

    def until_ns(self, id: Id) -> int:
        """Return the end of a cooldown; an instant in the past if there is none."""
        return self._until_ns.get(id, 0)

    def hold(self, id: Id, until_ns: int) -> None:
        """Delay requests of an id; a cooldown is never shortened."""
        with self._lock:
            if len(self._until_ns) >= _MAX_HOLDS:
                now_ns = self._clock.now_ns()
                for other in [other for other, end in self._until_ns.items() if end <= now_ns]:
                    del self._until_ns[other]
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
        pace: PaceMode = "limit",
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
        _check_choice("pace", pace, ("limit", "auto"))
        _check_choice("on_store_error", on_store_error, ("allow", "raise"))
        self.name: Final = names[0]
        self.limiter: Final = limiter
        # Each limit, and whether it is on requests in flight; `None` if there is only one rate.
        self._reserved: Final = (
            [*zip(names, are_slots, strict=True)] if len(names) > 1 or any(are_slots) else None
        )
        self.cooldowns: Final = Cooldowns(limiter.clock)
        self._id: Final = id
        self._cost: Final = cost
        self._timeout_ns: Final = None if timeout is None else duration_ns(timeout, "timeout")
        self._retries: Final = retries
        self._on_store_error: Final = on_store_error
        self._messages: Final = messages
        self._learned: Final = LearnedPace() if pace == "auto" else None
        self._is_store_failing = False

    def steps(self, request: Any) -> _Steps:
        """Yield the steps of a request, each a verb and its arguments; return the response.

        `acquire`, `check` and `refund` take an id and a cost, `reserve_all` and `check_all`
        transactions, `acquire` and `reserve_all` a timeout in seconds too; `wait` takes an
        instant; `send` takes nothing, and `read` a response.

        Raises:
            RateLimited: The request would have to wait for longer than the timeout.
        """
        now_ns = self.limiter.clock.now_ns
        id = self._id_of(request)
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
            response, is_refused = yield from self._send(id, reservation)
            if not is_refused:
                self._hold_if_exhausted(response, id)
                return response
            due_ns = self._retry_at_ns(response, id, retries)
            if retries == self._retries or not self._may_be_repeated(request):
                return response
            if deadline_ns is not None and due_ns > deadline_ns:
                return response
            # Frees the connection during the wait.
            yield ("read", response)

    def _send(self, id: Id, reservation: Reservation | None) -> _Steps:
        """Send a request, and learn from the response; return it and whether it is a refusal."""
        now_ns, learned = self.limiter.clock.now_ns, self._learned
        sent_ns = now_ns()
        if learned is not None:
            learned.count(id, sent_ns)
        try:
            response = yield ("send",)
            if reservation is not None:
                response = self._messages.hold(response, reservation)
        except BaseException:
            # Also when the task is cancelled.
            if reservation is not None:
                reservation.release_nowait()
            raise
        is_refused = self._messages.status_of(response) in _BUSY
        if learned is not None:
            stated = _stated(response.headers, now := now_ns())
            learned.learn(id, stated, sent_ns=sent_ns, now_ns=now, is_refused=is_refused)
        return response, is_refused

    def _may_be_repeated(self, request: Any) -> bool:
        return request.method in _IDEMPOTENT and self._messages.is_replayable(request)

    def _turn(self, id: Id, cost: int, due_ns: int, deadline_ns: int | None) -> _Steps:
        """Wait for the end of the cooldown, then for the turn, then for the limit.

        Return the reservation, unless there is only one rate.
        """
        now_ns = self.limiter.clock.now_ns
        while True:
            now = now_ns()
            until_ns = max(due_ns, self.cooldowns.until_ns(id))
            is_held = until_ns > now
            if not is_held and self._learned is not None:
                until_ns = self._learned.take_turn(id, now, deadline_ns)
            if until_ns > now:
                if deadline_ns is not None and until_ns > deadline_ns:
                    decision: Decision = yield self._check(id, cost)
                    raise rate_limited_error(decision, until_ns - now)
                yield ("wait", until_ns)
                now = now_ns()
                if is_held or self.cooldowns.until_ns(id) > now:
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

    def _retry_at_ns(self, response: Any, id: Id, retries: int) -> int:
        """Return when to retry the request; delay other requests if the service asks for it."""
        now_ns = self.limiter.clock.now_ns()
        wait_ns = retry_after_ns(response.headers, now_ns)
        if wait_ns is None:
            wait_ns = exhausted_ns(response.headers, now_ns)
        if wait_ns is None:
            # Without a `Retry-After`: one second, then two, then four, less up to half of it.
            seconds = 2.0 ** min(retries, 10) * random.uniform(0.5, 1)  # noqa: S311  it spreads, it hides nothing
            return now_ns + int(seconds * _SECOND_NS)
        if wait_ns:
            _log.info("%s asked for no requests for %g s", id, wait_ns / _SECOND_NS)
            self.cooldowns.hold(id, now_ns + wait_ns)
        return now_ns + wait_ns

    def _hold_if_exhausted(self, response: Any, id: Id) -> None:
        """Delay requests if a response says that no quota remains."""
        now_ns = self.limiter.clock.now_ns()
        wait_ns = exhausted_ns(response.headers, now_ns)
        if wait_ns:
            _log.info("%s has no requests left for %g s", id, wait_ns / _SECOND_NS)
            self.cooldowns.hold(id, now_ns + wait_ns)

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


def _check_choice(option: str, given: object, choices: tuple[str, str]) -> None:
    if given not in choices:
        raise ConfigError(f"{option} must be {' or '.join(map(repr, choices))}, found {given!r}")
