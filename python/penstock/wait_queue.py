"""Those who wait for their turn: one line for each bucket, first come, first served.

As far as a bucket can owe what they wait for, it is taken as they come, so that nobody else gets
it. The others stand in the line of this process, and the first of them takes its place when there
is room.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from threading import TIMEOUT_MAX, Event, RLock
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from penstock._core import ManualClock
from penstock.errors import Error, RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock._core import BoundLimit, Decision, Reservation, SystemClock
    from penstock.types import Id

__all__ = ["Ready", "WaitQueues", "Waiter", "acquire", "delay", "refusal"]

_T = TypeVar("_T")
_Key: TypeAlias = tuple[str, str]

_NOWHERE: Final[_Key] = ("", "")
_END_NS: Final = 2**63 - 1


class Ready(Generic[_T]):
    """A value that can be awaited and is there at once."""

    def __init__(self, value: _T) -> None:
        self._value: Final = value

    def __await__(self) -> Generator[None, None, _T]:
        yield from ()
        return self._value


class Waiter:
    """Somebody who waits in a line.

    Attributes:
        bound: The limit.
        id: Whose bucket it is, as given.
        cost: Tokens.
        key: The limit's name and the id in canonical spelling, once it stands in a line.
        deadline_ns: The latest turn that will do, on the limiter's clock; `None` for any.
        notify: Called when there is something new, from any thread; must not wait.
        due_ns: When to ask again; `None` until known.
        told_ns: The `due_ns` that the waiter was told of; `None` until it is told.
        place: What was taken for the waiter, if anything was yet.
        interval_ns: How much earlier others come for each token of the place that is given back;
            `None` where that cannot be told.
        algorithm: That of the limit under which the place was taken.
        timer: What rings at `due_ns` on a `ManualClock`.
        decision: The answer, once it is the waiter's turn.
        error: What is raised in place of an answer.
        is_served: Whether the answer was handed out.
    """

    __slots__ = (
        "algorithm",
        "bound",
        "cost",
        "deadline_ns",
        "decision",
        "due_ns",
        "error",
        "id",
        "interval_ns",
        "is_served",
        "key",
        "notify",
        "place",
        "timer",
        "told_ns",
    )

    def __init__(
        self,
        bound: BoundLimit,
        id: Id,
        cost: int,
        notify: Callable[[], object],
    ) -> None:
        self.bound: Final = bound
        self.id: Final = id
        self.cost: Final = cost
        self.key: _Key = _NOWHERE
        self.notify: Final = notify
        self.deadline_ns: int | None = None
        self.due_ns: int | None = None
        self.told_ns: int | None = None
        self.place: Reservation | None = None
        self.interval_ns: int | None = None
        self.algorithm: str | None = None
        self.timer: tuple[int, int] | None = None
        self.decision: Decision | None = None
        self.error: Error | None = None
        self.is_served = False

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to ask."""
        return self.due_ns is not None and self.due_ns <= now_ns

    def is_overdue(self, now_ns: int) -> bool:
        """Whether it has waited in the queue as long as it would."""
        if not self.is_waiting():
            return False
        return self.deadline_ns is not None and self.deadline_ns <= now_ns

    def is_waiting(self) -> bool:
        """Whether it has neither a place nor been refused one."""
        return self.place is None and self.error is None

    def is_too_late(self, turn_ns: int) -> bool:
        """Whether a turn then would not do."""
        return self.deadline_ns is not None and turn_ns > self.deadline_ns


class _Line:
    """The line of one bucket."""

    __slots__ = ("placed", "queue", "tail")

    def __init__(self) -> None:
        self.placed: Final[list[Waiter]] = []
        """Those for whom a place was taken in the store, first of all."""
        self.queue: Final[deque[Waiter]] = deque()
        """Those behind them."""
        self.tail: tuple[int, int] | None = None
        """The turn of the last in the queue, as the core reckons it; `None` if not reckoned."""


class WaitQueues:
    """All lines of a limiter. A line is there as long as somebody waits in it."""

    def __init__(self, clock: SystemClock | ManualClock) -> None:
        self.clock: Final = clock
        # Whoever waits may be dropped by the garbage collector within a call, and then leaves.
        self._lock = RLock()
        self._lines: dict[_Key, _Line] = {}
        _everyones.add(self)

    def __len__(self) -> int:
        return len(self._lines)

    def forget(self) -> None:
        """Begin anew, as a forked process must: those who wait are in another one."""
        self._lock = RLock()
        self._lines = {}

    def take(self, bound: BoundLimit, id: Id, cost: int) -> Decision | None:
        """Take `cost` if it is there and nobody waits for anything."""
        return (not self._lines and bound.spend(id, cost)) or None

    def join(self, waiter: Waiter, timeout_ns: int | None) -> None:
        """Take what is wanted if it is there and nobody waits, else join the line.

        Whoever joins leaves, whatever happens: also if this raises, or is interrupted.

        Raises:
            RateLimited: The wait would be longer than `timeout_ns`.
            Error: As `BoundLimit.spend` raises.
        """
        bound, id, cost = waiter.bound, waiter.id, waiter.cost
        with self._lock:
            # It raises for what cannot be, and tells how the id is spelled.
            decision = bound.check(id, cost)
            key = (bound.name, decision.id or "")
            line = self._lines.get(key)
            if decision.unlimited or decision.would_deny or (line is None and decision.allowed):
                decision = bound.spend(id, cost)
                if decision:
                    waiter.decision = decision
                    return
            line = line or _Line()
            if timeout_ns is not None:
                waiter.deadline_ns = decision.now_ns + timeout_ns
            tail = self._turn_behind(line, waiter)
            if tail is not None and waiter.is_too_late(tail[0]):
                raise refusal(decision, tail[0])
            waiter.key = key
            self._lines[key] = line
            line.queue.append(waiter)
            line.tail = tail
            if len(line.queue) == 1:
                self._promote(line)
                self._tidy(key, line)
            elif waiter.deadline_ns is not None:
                # Should others come between, it is told no later than that.
                self._set_due(line, waiter, waiter.deadline_ns)

    def step(self, waiter: Waiter) -> Decision | None:
        """Give the decision if it is the waiter's turn; else `due_ns` says when to ask again.

        Raises:
            RateLimited: Others came between, and the wait became longer than the timeout.
            Error: A reload took the limit away, or the store cannot answer.
        """
        with self._lock:
            self._serve(waiter)
            if waiter.error is not None:
                raise waiter.error
            waiter.is_served = waiter.decision is not None
            return waiter.decision

    def leave(self, waiter: Waiter) -> None:
        """Give the waiter's place back, unless it was served; those behind move up."""
        with self._lock:
            self._drop_timer(waiter)
            if waiter.is_served:
                return
            line = self._lines.get(waiter.key) or _Line()
            if waiter.error is not None and waiter not in islice(line.queue, 1):
                return
            self._remove(line, waiter)
            self._move_up(line)
            self._tidy(waiter.key, line)

    def _serve(self, waiter: Waiter) -> None:
        """Give the waiter an answer if it is its turn."""
        if waiter.decision is not None or waiter.error is not None:
            return
        line = self._lines.get(waiter.key) or _Line()
        if waiter.place is None and waiter.is_due(self.clock.now_ns()):
            self._promote(line)
            self._refuse_overdue(line, waiter)
        if waiter.place is not None and waiter.is_due(self.clock.now_ns()):
            # It is not among them if this was interrupted here before.
            if waiter in line.placed:
                line.placed.remove(waiter)
            waiter.decision = _answer(waiter, waiter.place)
            self._drop_timer(waiter)
            # Before those who move up are told anything.
            self._tell(line, waiter)
            self._move_up(line)
        self._tidy(waiter.key, line)

    def _refuse_overdue(self, line: _Line, waiter: Waiter) -> None:
        """Refuse a waiter that stands in the queue still, when it would wait no longer."""
        if not waiter.is_overdue(self.clock.now_ns()):
            return
        place = line.queue.index(waiter)
        costs = [other.cost for other in islice(line.queue, place + 1)]
        self._remove(line, waiter)
        try:
            decision = waiter.bound.check(waiter.id, waiter.cost)
            turn = waiter.bound._turn(waiter.id, costs, None)  # noqa: SLF001  the core
            waiter.error = refusal(decision, decision.now_ns if turn is None else turn[0])
        except Error as error:
            waiter.error = error
        self._drop_timer(waiter)
        self._tell(line, waiter)

    def _ring(self, waiter: Waiter) -> None:
        """Serve a waiter as a `ManualClock` passes its turn, however far it is moved at once."""
        try:
            with self._lock:
                self._serve(waiter)
        except BaseException:
            # Nobody rings a second time: it has to ask for itself.
            waiter.notify()
            raise

    def _set_due(self, line: _Line, waiter: Waiter, due_ns: int) -> None:
        """Have the waiter served at an instant."""
        # Told once it is: an interruption on the way leaves somebody to be told.
        waiter.due_ns, waiter.told_ns = due_ns, None
        if isinstance(self.clock, ManualClock):
            self._drop_timer(waiter)
            at_ns = min(due_ns, _END_NS)
            waiter.timer = self.clock._set_timer(at_ns, lambda: self._ring(waiter))  # noqa: SLF001  the core
            if waiter.is_due(self.clock.now_ns()):
                self._tell(line, waiter)
        else:
            self._tell(line, waiter)
        waiter.told_ns = due_ns

    def _drop_timer(self, waiter: Waiter) -> None:
        if waiter.timer is not None and isinstance(self.clock, ManualClock):
            self.clock._drop_timer(waiter.timer)  # noqa: SLF001  the core
        waiter.timer = None

    def _turn_behind(self, line: _Line, waiter: Waiter) -> tuple[int, int] | None:
        """Reckon the turn of a waiter who comes behind all others; `None` if it needs none."""
        if line.queue and line.tail is not None:
            return waiter.bound._turn(waiter.id, [waiter.cost], line.tail)  # noqa: SLF001  the core
        costs = [*(other.cost for other in line.queue), waiter.cost]
        return waiter.bound._turn(waiter.id, costs, None)  # noqa: SLF001  the core

    def _move_up(self, line: _Line) -> None:
        """Tell the first if it comes earlier now, and take places in what room there is."""
        # Again where the first is gone, because it could not be told.
        while line.placed and (first := line.placed[0]).due_ns != first.told_ns:
            self._set_due(line, first, first.due_ns or 0)
        self._promote(line)

    def _promote(self, line: _Line) -> None:
        """Take places for the first of the queue, as many as there is room for."""
        while line.queue:
            waiter = line.queue[0]
            if waiter.is_waiting():
                due_ns = self._ask(line, waiter)
                if due_ns is not None:
                    self._set_due(line, waiter, due_ns)
                if line.queue and line.queue[0] is waiter and waiter.is_waiting():
                    return
                continue
            # It stands in the queue until it stands elsewhere, so that one whom an interruption
            # stopped midway is found here by the next.
            if waiter.error is not None:
                line.tail = None
                line.queue.popleft()
                self._tell(line, waiter)
                continue
            if waiter not in line.placed[-1:]:
                line.placed.append(waiter)
            line.queue.popleft()
            self._set_due(line, waiter, waiter.due_ns or 0)

    def _ask(self, line: _Line, waiter: Waiter) -> int | None:
        """Take a place for the first of the queue, or give when to ask again."""
        last = line.placed[-1] if line.placed else None
        if last and last.interval_ns is None and not last.is_due(self.clock.now_ns()):
            # If that one left, its followers' turns could not be told: so there are none yet.
            due_ns = last.due_ns or 0
            return due_ns if waiter.deadline_ns is None else min(due_ns, waiter.deadline_ns)
        try:
            place, wait_ns, interval_ns = waiter.bound._place(waiter.id, waiter.cost)  # noqa: SLF001  the core
        except Error as error:
            waiter.error = error
            return None
        if not line.queue or line.queue[0] is not waiter or not waiter.is_waiting():
            # Somebody left meanwhile, dropped by the garbage collector, and this was seen to.
            _give_back(place)
            return None
        turn_ns = place.decision.now_ns + wait_ns
        # What is there is had, though a clock went on meanwhile.
        if wait_ns > 0 and waiter.is_too_late(turn_ns):
            _give_back(place)
            waiter.error = refusal(place.decision, turn_ns)
        elif place:
            waiter.due_ns, waiter.interval_ns = turn_ns, interval_ns
            waiter.algorithm = place.decision.limit.algorithm
            waiter.place = place
        else:
            return turn_ns
        return None

    def _remove(self, line: _Line, waiter: Waiter) -> None:
        """Take a waiter out of the line."""
        line.tail = waiter.due_ns = None
        self._drop_timer(waiter)
        if waiter in line.queue:
            line.queue.remove(waiter)
        if waiter.place is None:
            return
        # Whoever had its turn, and does not take it, stood before all.
        behind = [*line.placed]
        if waiter in line.placed:
            behind = line.placed[line.placed.index(waiter) + 1 :]
            line.placed.remove(waiter)
        if _give_back(waiter.place) and waiter.interval_ns is not None:
            # Each is told once it is the first: were all told at once, many that leave would be
            # many times many that are told.
            interval_ns, algorithm = waiter.interval_ns, waiter.algorithm
            gained_ns = waiter.cost * interval_ns
            for other in behind:
                # A reload may have come between the two. Of another algorithm the bucket is
                # another; at another pace less may be gained, and nobody comes before its turn.
                if other.due_ns is None or other.algorithm != algorithm:
                    continue
                if other.interval_ns == interval_ns:
                    other.due_ns -= gained_ns
                elif other.interval_ns is not None:
                    other.due_ns -= min(gained_ns, waiter.cost * other.interval_ns)

    def _tell(self, line: _Line, waiter: Waiter) -> None:
        try:
            waiter.notify()
        except RuntimeError:
            # The event loop in which it waited is closed.
            self._remove(line, waiter)

    def _tidy(self, key: _Key, line: _Line) -> None:
        if not line.queue:
            line.tail = None
            if not line.placed:
                self._lines.pop(key, None)


_everyones: Final[WeakSet[WaitQueues]] = WeakSet()


def _forget_all() -> None:
    for lines in _everyones:
        lines.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def refusal(decision: Decision, turn_ns: int) -> RateLimited:
    """Make the error for a turn that would come too late."""
    wait_ns = turn_ns - decision.now_ns
    denied = decision.replace(allowed=False, retry_after_ns=wait_ns)
    message = f"denied by {decision.name}: the turn would come in {wait_ns / 1e9:g} s, too late"
    return RateLimited(message, denied)


def _give_back(place: Reservation) -> bool:
    """Give a place back; whether that could be done. If not, it lapses as time goes by."""
    try:
        return place.cancel()
    except Error:
        return False


def _answer(waiter: Waiter, place: Reservation) -> Decision:
    """Give the decision of a waiter who has its turn, with the bucket's numbers as they stand."""
    try:
        peek = waiter.bound.check(waiter.id, 0)
        again = waiter.bound.check(waiter.id, waiter.cost)
    except Error:
        # The limit is gone or the store is out of reach; the place was taken before.
        peek = again = place.decision
    retry_after_ns = 0 if again.allowed else again.retry_after_ns
    return peek.replace(allowed=True, cost=waiter.cost, retry_after_ns=retry_after_ns)


def delay(clock: SystemClock, due_ns: int) -> float:
    """Give the seconds until `due_ns`, rounded up to a microsecond: nobody is to come early."""
    return max(-((clock.now_ns() - due_ns) // 1000) / 1e6, 0.0)


def acquire(bound: BoundLimit, id: Id, cost: int, timeout_ns: int | None) -> Decision:
    """Wait until `cost` can be taken, and take it; other threads go on meanwhile.

    Raises:
        RateLimited: The wait would be longer than `timeout_ns`.
        Error: As `BoundLimit.spend` raises.
    """
    lines = bound._lines  # noqa: SLF001  the core
    if (decision := lines.take(bound, id, cost)) is not None:
        return decision
    event = Event()
    waiter = Waiter(bound, id, cost, event.set)
    try:
        lines.join(waiter, timeout_ns)
        while (decision := lines.step(waiter)) is None:
            _wait(lines.clock, waiter.due_ns, event)
            event.clear()
    finally:
        lines.leave(waiter)
    return decision


def _wait(clock: SystemClock | ManualClock, due_ns: int | None, event: Event) -> None:
    if due_ns is None or isinstance(clock, ManualClock):
        # Somebody else rings.
        event.wait()
    else:
        event.wait(min(delay(clock, due_ns), TIMEOUT_MAX))
