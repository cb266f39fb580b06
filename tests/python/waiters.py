"""Callers that wait for their turn, on an event loop that runs only when a test says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from loops import turn_over

import penstock
from penstock import AsyncReservation

if TYPE_CHECKING:
    from collections.abc import Coroutine

SECOND = 1_000_000_000


def left(limiter: penstock.Limiter, *names: str) -> list[int]:
    """Return what is left of the limits of `ada`."""
    return [limiter.peek(name, "ada").remaining for name in names]


class Crowd:
    """Tasks that wait, and what became of them.

    Attributes:
        idle: Name of a limit for which no task waits, if the limiter's store may be a server.
        outcomes: Each task that is done, with the seconds from the start until it was served, or
            the name of its error.
        held: The reservations of the tasks that were served.
    """

    idle: ClassVar[str | None] = None

    def __init__(self, limiter: penstock.Limiter) -> None:
        self.limiter = limiter
        self.calls = penstock.AsyncLimiter(limiter)
        self.clock: Any = limiter.clock
        self.start_ns = limiter.clock.now_ns()
        self.loop = asyncio.new_event_loop()
        self.outcomes: list[tuple[str, float | str]] = []
        self.held: dict[str, penstock.Reservation] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *wanted: Any, **options: Any) -> penstock.Decision | AsyncReservation:
        """Make the call for which a task waits."""
        raise NotImplementedError

    def start(self, who: str, *wanted: Any, **options: Any) -> None:
        """Start a task."""
        self.tasks[who] = self.loop.create_task(self._wait(who, wanted, options))

    def send(self, who: str, *wanted: Any, **options: Any) -> None:
        """Start a task, and let it run until it waits."""
        self.start(who, *wanted, **options)
        self.run()

    async def _wait(self, who: str, wanted: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            answer = await self.ask(*wanted, **options)
        except penstock.Error as error:
            self.outcomes.append((who, type(error).__name__))
            return
        if isinstance(answer, AsyncReservation):
            self.held[who] = answer.reservation
            answer = answer.decision
        self.outcomes.append((who, self.seconds(answer)))

    def seconds(self, decision: penstock.Decision) -> float:
        """Return the time from the start until a decision."""
        return (decision.now_ns - self.start_ns) / SECOND

    def run(self) -> None:
        """Run everything on the loop that is ready, and what comes of it."""
        self.loop.run_until_complete(self.settle())

    async def settle(self) -> None:
        for _ in range(4 if self.idle else 0):
            await turn_over()
            # Over a store that may wait, it follows the steps of the tasks in the same thread.
            await self.calls.reserve(self.idle or "", "settle", 0, timeout=0)
        await turn_over()

    def run_until_done(self, waits: Coroutine[Any, Any, Any]) -> Any:
        """Run the loop, tasks included, until `waits` is done."""
        return self.loop.run_until_complete(asyncio.wait_for(waits, 30))

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run."""
        self.clock.advance(seconds)
        self.run()

    def release(self, who: str) -> None:
        """Return the slots of a task that was served, and run."""
        self.held.pop(who).release()
        self.run()

    def leave(self, *names: str) -> None:
        """Cancel tasks, and run."""
        for who in names:
            self.tasks[who].cancel()
        self.run()

    def taken(self) -> list[tuple[str, float | str]]:
        """Run; return the new outcomes."""
        self.run()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def waiting(self) -> list[str]:
        """Run; return the names of the tasks that wait."""
        self.run()
        return [who for who, task in self.tasks.items() if not task.done()]

    def close(self) -> None:
        """Cancel all tasks, return what they hold, and close the loop."""
        if not self.loop.is_closed():
            self.leave(*self.tasks)
            for reservation in self.held.values():
                reservation.release()
            self.loop.close()
