"""Reports the decisions of a guard: to the application, and refusals to the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from penstock._core import Limiter
from penstock._validation import is_coroutine_function, is_number, takes
from penstock._web.fallback import Counter
from penstock._web.headers import values
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._core import Decision, ManualClock, SystemClock
    from penstock._web.outcome import Outcome

_log: Final = logging.getLogger("penstock")
_refusals: Final = logging.getLogger("penstock.refusals")

# Refused clients must not be able to fill the disk.
_RECORDS: Final = "10/second, burst 100"
_STATUSES: Final = {"denied": 429, "store": 503, "request": 400}
# What a client sends is cut here; e-mail addresses are shorter.
_MAX_LENGTH: Final = 256


def used_share(decision: Decision) -> float:
    """Return the used share of a limit's quota, from 0 to 1; 0 if no limit applies.

    Examples:
        >>> from penstock.adapter import used_share
        >>> limiter = penstock.Limiter({"Orders": "5/minute"}, clock=penstock.ManualClock())
        >>> used_share(limiter.spend("Orders", "ada", 4))
        0.8
    """
    if decision.unlimited:
        return 0.0
    quota = values(decision).quota
    return max(quota - decision.remaining, 0) / quota


class Observers:
    """Reports the decisions of a guard.

    Args:
        clock: The clock of the guard.
        on_decision: Called with each decision and the framework's request.
        near_limit: The used share of a quota from which decisions are counted.

    Raises:
        ConfigError: An option is invalid.

    Attributes:
        near: Decisions that used at least the share `near_limit`, by limit name.
        is_observed: Whether every outcome has to be passed to `report`, not only refusals.
    """

    def __init__(
        self,
        clock: SystemClock | ManualClock,
        on_decision: Callable[[Decision, Any], object] | None,
        near_limit: float | None,
    ) -> None:
        if on_decision is not None and (
            is_coroutine_function(on_decision) or not takes(on_decision, 2)
        ):
            raise ConfigError(
                f"on_decision must be a function of the decision and the request, "
                f"found {on_decision!r}"
            )
        if near_limit is not None and not is_number(near_limit, 0, 1):
            raise ConfigError(f"near_limit must be from 0 to 1, found {near_limit!r}; 0.8 is 80 %")
        self.near: Final = Counter()
        self.is_observed: Final = on_decision is not None or near_limit is not None
        self._on_decision: Final = on_decision
        self._near_limit: Final = near_limit
        self._records: Final = Limiter({"records": _RECORDS}, clock=clock).limit("records")
        self._suppressed = 0

    def report(self, outcome: Outcome) -> None:
        """Report an outcome, and log it if the request is refused."""
        if outcome.refusal is not None:
            self.report_refusal(outcome)
        decision = outcome.decision
        if decision is None:
            return
        share = self._near_limit
        if share is not None:
            for part in outcome.parts:
                if part.name is not None and used_share(part) >= share:
                    self.near.add(part.name)
        if self._on_decision is not None:
            try:
                self._on_decision(decision, outcome.request.native)
            except Exception:  # noqa: BLE001  any error of the user's code
                # The request has been decided, and must not fail because of an observer.
                _log.exception("on_decision raised an exception")

    def report_refusal(self, outcome: Outcome) -> None:
        """Log a refusal, unless there are too many."""
        if not _refusals.isEnabledFor(logging.INFO):
            return
        if not self._records.spend("refusals"):
            self._suppressed += 1
            return
        suppressed, self._suppressed = self._suppressed, 0
        decision, request = outcome.decision, outcome.request
        reason = outcome.refusal or "denied"
        limit = None if decision is None else decision.binding
        id = None if decision is None or decision.id is None else decision.id[:_MAX_LENGTH]
        retry_after = outcome.retry_after
        _refusals.info(
            "refused with status %d: %s, limit %s, id %r, retry after %s s",
            _STATUSES[reason],
            reason,
            limit,
            id,
            retry_after,
            extra={
                "status": _STATUSES[reason],
                "reason": reason,
                "limit": limit,
                "id": id,
                "retry_after": retry_after,
                "method": request.method[:_MAX_LENGTH],
                "route": request.route,
                "suppressed": suppressed,
            },
        )
