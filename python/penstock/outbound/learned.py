"""The pace that a service accepts, learned from its responses."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from penstock.locks import fork_safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.parse_headers import ReceivedLimit
    from penstock.types import Id

_SECOND_NS: Final = 1_000_000_000
_MAX_IDS: Final = 1024
# Each response without a refusal raises the rate by this share of the rate that was refused last.
_STEP: Final = 0.01
# A service is tried again after a minute at the latest, because it may have been restarted.
_MIN_RATE: Final = 1 / 60


@dataclass(slots=True)
class _Service:
    """The learned pace of the service of one id.

    Attributes:
        next_ns: When the next request may be sent.
        rate: The requests per second that it accepts, as far as is known; `None` if it has never
            refused one, or states its limits.
        step: What a response without a refusal adds to the rate.
        refused_ns: When the rate was last reduced; -1 for never.
        is_refusing: Whether it refused the last request.
        is_delayed: Whether a request was delayed since the rate was last changed.
        spacing_ns: The time between requests that follows from the limits that it states.
        stated_until_ns: Until when that applies.
        second_ns: The beginning of the current second in which requests are counted.
        sent: How many requests were sent in it.
        sent_before: How many were sent in the second before.
    """

    next_ns: int = 0
    rate: float | None = None
    step: float = 0.0
    refused_ns: int = -1
    is_refusing: bool = False
    is_delayed: bool = False
    spacing_ns: int = 0
    stated_until_ns: int = 0
    second_ns: int = 0
    sent: int = 0
    sent_before: int = 0

    def interval_ns(self, now_ns: int) -> int:
        """Return the time between requests; 0 if nothing limits them."""
        learned_ns = 0 if self.rate is None else int(_SECOND_NS / self.rate)
        return max(learned_ns, self.spacing_ns if now_ns < self.stated_until_ns else 0)


class LearnedPace:
    """The pace of the requests of each id, as the responses suggest; thread-safe.

    A service that states its limits: once less than half of a quota is left, the rest is spread
    until the quota is renewed. A service that does not: a refusal halves the rate of requests, and
    every other response raises it by a constant step, so that the rate stays near the limit of the
    service (additive increase, multiplicative decrease; RFC 5681 does the same
    for TCP).
    """

    def __init__(self) -> None:
        # In order of their last use.
        self._services: Final[dict[Id, _Service]] = {}
        self._lock: Final = fork_safe(Lock())

    def take_turn(self, id: Id, now_ns: int, deadline_ns: int | None) -> int:
        """Return when a request may be sent; that turn is taken if it is not after the deadline."""
        with self._lock:
            service = self._service(id)
            interval_ns = service.interval_ns(now_ns)
            if not interval_ns:
                return now_ns
            turn_ns = max(now_ns, service.next_ns)
            if deadline_ns is None or turn_ns <= deadline_ns:
                service.next_ns = turn_ns + interval_ns
                service.is_delayed = service.is_delayed or turn_ns > now_ns
            return turn_ns

    def count(self, id: Id, now_ns: int) -> None:
        """Count a request that is sent."""
        with self._lock:
            service = self._service(id)
            if now_ns - service.second_ns >= _SECOND_NS:
                is_next = now_ns - service.second_ns < 2 * _SECOND_NS
                service.sent_before = service.sent if is_next else 0
                service.second_ns, service.sent = now_ns, 0
            service.sent += 1

    def learn(
        self,
        id: Id,
        stated: Iterable[ReceivedLimit],
        *,
        sent_ns: int,
        now_ns: int,
        is_refused: bool,
    ) -> None:
        """Learn from a response.

        Args:
            id: The client id of its request.
            stated: The limits that the response states.
            sent_ns: When the request was sent.
            now_ns: The current instant.
            is_refused: Whether the service refused the request because of too many.
        """
        known = [limit for limit in stated if limit.remaining is not None and limit.reset_after]
        with self._lock:
            service = self._service(id)
            if known:
                service.rate = None
                _spread(service, known, now_ns)
            elif sent_ns <= service.refused_ns:
                # It was sent at an earlier rate, so it is no evidence about this one.
                pass
            elif is_refused:
                _reduce(service, now_ns)
            else:
                service.is_refusing = False
                # A rate that delayed no request was not tested.
                if service.rate is not None and service.is_delayed:
                    service.rate += service.step
                    service.is_delayed = False

    def _service(self, id: Id) -> _Service:
        service = self._services.pop(id, None)
        if service is None:
            service = _Service()
            if len(self._services) >= _MAX_IDS:
                del self._services[next(iter(self._services))]
        self._services[id] = service
        return service


def _spread(service: _Service, stated: Iterable[ReceivedLimit], now_ns: int) -> None:
    """Spread the remaining requests of the limits that a service states."""
    service.spacing_ns = service.stated_until_ns = 0
    for limit in stated:
        remaining, seconds = limit.remaining or 0, limit.reset_after or 0.0
        is_scarce = limit.quota is None or 2 * remaining < limit.quota
        if remaining and is_scarce:
            spacing_ns = int(seconds * _SECOND_NS) // remaining
            if spacing_ns > service.spacing_ns:
                service.spacing_ns = spacing_ns
                service.stated_until_ns = now_ns + int(seconds * _SECOND_NS)


def _reduce(service: _Service, now_ns: int) -> None:
    """Halve the rate of requests."""
    rate = service.rate
    if rate is None:
        rate = float(max(service.sent, service.sent_before, 1))
    if not service.is_refusing:
        # After several refusals in a row, return to the rate of the first one.
        service.step = rate * _STEP
    service.rate = max(rate / 2, _MIN_RATE)
    service.is_refusing, service.is_delayed = True, False
    service.refused_ns = now_ns
    service.next_ns = now_ns + service.interval_ns(now_ns)
