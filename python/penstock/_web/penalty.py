"""Penalties of clients that exceed a limit: refused requests count, or the client is blocked.

A block is a fixed window of one request, in a bucket of its own: full while the client is not
blocked. So every store can keep it, and of several refusals at once only the first starts a block.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock._core import Limit, parse_duration
from penstock._locks import fork_safe
from penstock.errors import ConfigError
from penstock.messages import format_duration
from penstock.types import Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core import BoundLimit, Decision, Limiter
    from penstock._web.settle import Asked
    from penstock.types import AnyTransaction, Id, Period, TransactionKind

# A level is forgotten after this many times the longest block.
_MEMORY: Final = 2


def block_limits(block_for: Period | Sequence[Period]) -> tuple[Limit, ...]:
    """Return the windows of the blocks, the shortest first.

    Raises:
        ConfigError: The lengths do not ascend, or there is none.
        LimitError: One is not a whole number of milliseconds.
    """
    times = block_for if isinstance(block_for, list | tuple) else (block_for,)
    for each in times:
        # A wrong one is reported under the name of the option, not of a window's field.
        parse_duration(each, "block_for")
    limits = tuple(Limit.fixed_window(count=1, period=each) for each in times)
    lengths = [limit.period_ns for limit in limits]
    if not lengths or lengths != sorted(set(lengths)):
        raise ConfigError(f"block_for must be one time or ascending times, found {block_for!r}")
    return limits


_lock: Final = fork_safe(Lock())
# For each limiter, the blocks of its limits by name.
_blocks: Final[WeakKeyDictionary[Limiter, dict[str, tuple[Limit, ...]]]] = WeakKeyDictionary()


def buckets_of_blocks(name: str, blocks: Sequence[Limit]) -> dict[str, Limit]:
    """Return the limits that keep the blocks of a limit, and the level of several, by name."""
    if len(blocks) < 2:  # noqa: PLR2004  with one block, there are no levels
        return {f"{name}_blocked": block for block in blocks}
    buckets = {f"{name}_blocked_{level}": block for level, block in enumerate(blocks, 1)}
    period = f"{_MEMORY * blocks[-1].period_ns}ns"
    levels = Limit.token_bucket(burst=len(blocks), count=1, period=period)
    return {**buckets, f"{name}_blocks": levels}


def define_blocks(limiter: Limiter, name: str, blocks: tuple[Limit, ...]) -> list[BoundLimit]:
    """Add the limits that keep the blocks of a limit, unless they have been added.

    Raises:
        ConfigError: Another rule blocks the clients of the limit for other times, or another limit
            has one of the names.
    """
    with _lock:
        known = _blocks.setdefault(limiter, {})
        before = known.get(name, blocks)
        if before != blocks:
            raise ConfigError(
                f"{name}: all limits of this name must have the same block_for, "
                f"found {_times(before)} and {_times(blocks)}"
            )
        buckets = buckets_of_blocks(name, blocks)
        if name not in known:
            for taken in buckets.keys() & limiter.limits.keys():
                raise ConfigError(
                    f"{name}: block_for needs the name {taken}, which another limit has; "
                    f"rename that limit"
                )
            for bucket, limit in buckets.items():
                limiter.define(bucket, limit)
            known[name] = blocks
    return [limiter.limit(bucket) for bucket in buckets]


def _times(blocks: Sequence[Limit]) -> str:
    return ", ".join(format_duration(block.period_ns) for block in blocks)


class Penalty:
    """The treatment of clients that exceed one limit.

    Args:
        limiter: The limiter, to which the limits of the blocks are added.
        name: The name of the limit.
        blocks: The windows of the blocks; none if no client is blocked.
        count_denied: Whether a refused request takes its cost, too.

    Attributes:
        counts_denied: Whether a refused request takes its cost.

    Raises:
        ConfigError: As `define_blocks`.
    """

    def __init__(
        self, limiter: Limiter, name: str, blocks: tuple[Limit, ...], *, count_denied: bool
    ) -> None:
        self._limiter: Final = limiter
        self.counts_denied: Final = count_denied
        bound = define_blocks(limiter, name, blocks)
        self._blocks: Final = tuple(bound[: len(blocks)])
        self._levels: Final = bound[-1] if len(blocks) > 1 else None

    def blocked_part(self, bound: BoundLimit, id: Id, cost: int) -> Decision | None:
        """Return the denial of a blocked client; `None` if it is not blocked.

        Raises:
            StoreError: The store fails.
        """
        if not self._blocks:
            return None
        id = self._canonical(bound, id)
        wait = self._wait(id, self._level(id))
        return None if wait == 0 else denial(bound.check(id, cost), wait)

    def checks(self, bound: BoundLimit, id: Id) -> list[Transaction]:
        """Return transactions that are denied while a client is blocked, and take nothing.

        Raises:
            InvalidId: The id does not fit the limit.
        """
        if not self._blocks:
            return []
        id = self._canonical(bound, id)
        return [Transaction(block.name, id, 1, "check") for block in self._blocks]

    def denied_part(self, bound: BoundLimit, id: Id, part: Decision) -> Decision:
        """Return the decision about a denied client, who is blocked from now on.

        Raises:
            StoreError: The store fails.
        """
        return denial(part, self._block(self._canonical(bound, id))) if self._blocks else part

    def _block(self, id: Id) -> int:
        """Block a client unless it is, and return the nanoseconds until the block ends."""
        if self._levels is None:
            # The only block either begins now or has begun.
            return self._blocks[0].spend(id, 1).reset_after_ns
        # Read once: a level that another thread adds meanwhile must not lengthen its block.
        level = self._level(id)
        wait = self._wait(id, level)
        if wait:
            return wait
        block = self._blocks[min(level, len(self._blocks) - 1)]
        decision = block.spend(id, 1)
        if decision.allowed:
            self._levels.spend(id, 1)
        return decision.reset_after_ns

    def _level(self, id: Id) -> int:
        """Return how many blocks of a client are remembered."""
        levels = self._levels
        return 0 if levels is None else len(self._blocks) - levels.peek(id).remaining

    def _wait(self, id: Id, level: int) -> int:
        """Return the nanoseconds until a block ends; 0 if there is none."""
        if self._levels is not None and level == 0:
            return 0
        decisions: Sequence[Decision]
        if self._limiter.is_remote and len(self._blocks) > 1:
            # One round trip.
            decisions = self._limiter.check_all([(block.name, id) for block in self._blocks]).parts
        else:
            decisions = [block.check(id, 1) for block in self._blocks]
        return max(0 if each.allowed else each.retry_after_ns for each in decisions)

    def _canonical(self, bound: BoundLimit, id: Id) -> Id:
        # The limits of blocks have ids of any format: every spelling of an id is one client.
        if self._limiter.is_remote:
            return self._limiter.limits.explain(bound.name, id).id
        return bound.check(id, 0).id or id


def denial(part: Decision, wait_ns: int) -> Decision:
    """Return a decision as the denial of a client that has to wait."""
    retry_after = 0 if part.allowed else part.retry_after_ns
    return part.replace(allowed=False, remaining=0, retry_after_ns=max(wait_ns, retry_after))


def charge_denied(limiter: Limiter, entries: Sequence[Asked]) -> Sequence[Decision]:
    """Charge requests that were denied; return the decisions about the same requests afterwards.

    Raises:
        StoreError: The store fails.
    """
    if len(entries) == 1:
        limit, id, cost = entries[0]
        limit.bound.charge(id, cost)
        return (limit.bound.check(id, cost),)

    def as_kind(kind: TransactionKind) -> list[AnyTransaction]:
        return [
            (limit.name, id, cost, kind, limit.factor, limit.keep) for limit, id, cost in entries
        ]

    limiter.spend_all(as_kind("charge"))
    return limiter.check_all(as_kind("check")).parts
