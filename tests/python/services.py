"""Services for tests of outbound requests, and clocks that advance while a request waits."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.outbound.steps import Pace

START = 1_000_000_000


class Server:
    """A service with scripted responses, and a driver that advances a clock instead of waiting."""

    def __init__(self, clock: penstock.ManualClock, *answers: Any) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.sent: list[float] = []
        self.verbs: list[str] = []
        self.store_fails = False

    def drive(self, pace: Pace, method: str = "GET", host: str = "api.example.com") -> int:
        """Execute all steps of a request; return the status of its response."""
        steps = pace.steps(SimpleNamespace(method=method, url=SimpleNamespace(host=host)))
        try:
            step = next(steps)
            while True:
                self.verbs.append(step[0])
                try:
                    answer = getattr(self, step[0])(pace, *step[1:])
                except Exception as error:  # noqa: BLE001  as the transports do
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            status: int = done.value.status_code
            return status

    def repeat(self, pace: Pace, times: int) -> list[int]:
        """Send requests one after another; return the statuses of their responses."""
        return [self.drive(pace) for _ in range(times)]

    def acquire(self, pace: Pace, id: str, cost: int, timeout: float | None) -> None:
        if self.store_fails:
            raise penstock.StoreUnavailable("out of reach")
        while not (decision := pace.limiter.spend(pace.name, id, cost)):
            if timeout is not None and decision.retry_after > timeout:
                decision.raise_if_denied()
            self.clock.advance_ns(decision.retry_after_ns)

    def check(self, pace: Pace, id: str, cost: int) -> penstock.Decision:
        return pace.limiter.check(pace.name, id, cost)

    def refund(self, pace: Pace, id: str, cost: int) -> None:
        pace.limiter.refund(pace.name, id, cost)

    def wait(self, pace: Pace, until_ns: int) -> None:
        assert pace.limiter.clock is self.clock
        self.clock.set_ns(until_ns)

    def send(self, _: Pace) -> Any:
        self.sent.append(self.clock.now() - START)
        answer = self.answers.pop(0) if self.answers else 200
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        return SimpleNamespace(status_code=status, headers=headers)

    def read(self, _: Pace, response: Any) -> None:
        assert response.status_code in (429, 503)


class Scripted:
    """Reads the requests and responses of a `Server`."""

    def __init__(self, *, is_replayable: bool = True) -> None:
        self.replayable = is_replayable

    def host_of(self, request: Any) -> str:
        host: str = request.url.host
        return host

    def status_of(self, response: Any) -> int:
        status: int = response.status_code
        return status

    def is_replayable(self, _: Any) -> bool:
        return self.replayable

    def hold(self, response: Any, reservation: penstock.Reservation) -> Any:
        reservation.release()
        return response


def in_time(clock: penstock.ManualClock, call: Callable[[], Any]) -> Any:
    """Call in a thread, and advance the clock until it returns."""
    outcome: list[Any] = []
    done = Event()

    def run() -> None:
        try:
            outcome.append(call())
        finally:
            done.set()

    thread = Thread(target=run)
    thread.start()
    while not done.wait(0.01):
        clock.advance(0.5)
    thread.join()
    (answer,) = outcome
    return answer


async def in_loops_time(clock: penstock.ManualClock, call: Coroutine[Any, Any, Any]) -> Any:
    """Await in a task, and advance the clock until it is done."""
    task = asyncio.create_task(call)
    while not task.done():
        await asyncio.wait({task}, timeout=0.01)
        clock.advance(0 if task.done() else 0.5)
    return task.result()
