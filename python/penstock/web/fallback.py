"""A limiter in this process, at its share of each limit: what decides while the store cannot.

If as many processes fall back as were expected, all of them together allow about what the store
would have.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock._core import Limit, Limiter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import Decision
    from penstock.web.request import Id

LocalKind: TypeAlias = Literal["spend", "check", "spend_only", "watch"]

_DECIDE: Final = ("spend", "check")
_SPEND: Final = ("spend", "spend_only")

_MILLISECOND_NS: Final = 1_000_000
# One for each limit in force, overrides included.
_MOST_LIMITERS: Final = 1024


def per_process_share(limit: Limit, processes: int) -> Limit:
    """Give one process's share of a limit: one in `processes` of the rate, at least one at once.

    Example:
        >>> from penstock.web.fallback import per_process_share
        >>> per_process_share(penstock.Limit.parse("100/minute"), 4) == penstock.Limit.token_bucket(
        ...     burst=25, count=100, period="4m"
        ... )
        True
    """
    match limit.algorithm:
        case "token-bucket":
            return Limit.token_bucket(
                burst=max(limit.burst // processes, 1),
                count=limit.count,
                period=f"{limit.period_ns * processes}ns",
            )
        case "leaky-bucket":
            return Limit.leaky_bucket(
                size=max(limit.size // processes, 1),
                drip_rate=f"{limit.drip_rate_ns * processes}ns",
                drip_size=limit.drip_size,
            )
        case "fixed-window":
            count, period_ns = _window(limit.count, limit.period_ns, processes)
            return Limit.fixed_window(count=count, period=f"{period_ns}ns")
        case "fixed-rate-window":
            count, period_ns = _window(limit.count, limit.period_ns, processes)
            burst = limit.burst // processes
            return Limit.fixed_rate_window(count=count, period=f"{period_ns}ns", burst=burst)
        case _:
            return limit


def _window(count: int, period_ns: int, processes: int) -> tuple[int, int]:
    """Give a window's share: fewer in its time, or one in a longer; whole milliseconds, up."""
    if count >= processes:
        return count // processes, period_ns
    milliseconds = -(-period_ns * processes // (count * _MILLISECOND_NS))
    return 1, milliseconds * _MILLISECOND_NS


_DEGRADED: Final = "the store failed; this process decided by its share of the limit"


class LocalLimiter:
    """Decides in this process, on the clock of another limiter and by its limits' shares."""

    def __init__(self, limiter: Limiter, processes: int) -> None:
        self._limiter: Final = limiter
        self._processes: Final = processes
        self._limiters: Final[dict[tuple[str, Limit], Limiter]] = {}
        self._lock: Final = Lock()

    def decide(self, calls: Sequence[tuple[str, Id, int, LocalKind]]) -> list[Decision]:
        """Decide as one, all or nothing; give the decisions in order, each marked as degraded.

        A kind is as in a transaction; `"watch"` neither decides nor is spent.
        """
        # Each limit has a limiter of its own here, so that it is asked first, under one lock.
        with self._lock:
            found = [(*self._find(name, id, cost), kind) for name, id, cost, kind in calls]
            checked = [limiter.check(*call) for limiter, call, _ in found]
            firm = (
                part for part, (*_, kind) in zip(checked, calls, strict=True) if kind in _DECIDE
            )
            parts = checked
            if all(firm):
                parts = [
                    limiter.spend(*call) if kind in _SPEND else part
                    for part, (limiter, call, kind) in zip(checked, found, strict=True)
                ]
        return [part.replace(degraded=_DEGRADED) for part in parts]

    def _find(self, name: str, id: Id, cost: int) -> tuple[Limiter, tuple[str, Id, int]]:
        why = self._limiter.limits.explain(name, id)
        limit = per_process_share(why.limit, self._processes)
        limiter = self._limiters.get((name, limit))
        if limiter is None:
            if len(self._limiters) >= _MOST_LIMITERS:
                self._limiters.clear()
            limiter = Limiter({name: limit}, clock=self._limiter.clock)
            self._limiters[name, limit] = limiter
        # A share may be smaller than a request that the whole limit would have allowed.
        return limiter, (name, why.id, min(cost, limit.max_cost))
