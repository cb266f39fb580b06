"""Slots of processes that are killed with SIGKILL, in real time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis_servers import Server

pytestmark = pytest.mark.slow

COUNT = 2
LEASE = 2
# Two leases, and one more epoch for a machine that is busy.
SECONDS_TO_FREE = 2 * LEASE + 2.05

START = f"""
import fcntl, itertools, os, signal, sys, penstock
url, folder = sys.argv[1:]
limiter = penstock.Limiter({{"Exports": "{COUNT} in flight, lease {LEASE}s"}}, url)
"""

# Each holder of a slot has one of as many locks, which the kernel takes from a killed process. If
# none is free, more than `COUNT` slots are held.
TAKE_TURNS = f"""{START}
locks = [open(os.path.join(folder, str(number)), "w") for number in range({COUNT})]

def is_free(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

turns = 0
while True:
    reservation = limiter.reserve("Exports", "ada")
    if reservation:
        lock = next(filter(is_free, locks), None)
        if lock is None:
            print("above the count", flush=True)
            break
        # Takes as long as a call to the store, so that holders meet.
        limiter.peek("Exports", "ada")
        fcntl.flock(lock, fcntl.LOCK_UN)
        turns += 1
        if turns % 50 == 0:
            print("taken", limiter.clock.now(), flush=True)
    reservation.release()
"""

HOLD = f"""{START}
while not (reservation := limiter.reserve("Exports", "ada", {COUNT})):
    pass
print("taken", flush=True)
signal.pause()
"""

WAIT = f"""{START}
with limiter.reserve("Exports", "ada", {COUNT}, timeout=60):
    print("taken", flush=True)
"""


class Programs:
    """Programs on one store.

    Attributes:
        limiter: A limiter on the same store.
    """

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        limits = {"Exports": f"{COUNT} in flight, lease {LEASE}s"}
        self.limiter = stack.enter_context(penstock.Limiter(limits, url))
        self._arguments = [url, str(folder)]
        self._stack = stack
        self._clock = penstock.SystemClock()

    def start(self, program: str) -> subprocess.Popen[str]:
        """Start a program that prints when it has taken slots."""
        started = subprocess.Popen(
            [sys.executable, "-c", program, *self._arguments], stdout=subprocess.PIPE, text=True
        )
        self._stack.enter_context(started)
        self._stack.callback(started.kill)
        return started

    @property
    def held(self) -> int:
        """The slots that are held."""
        return COUNT - self.limiter.peek("Exports", "ada").remaining

    def check_for(self, seconds: float, held: int) -> None:
        """Check that slots stay held."""
        end = self._clock.now() + seconds
        while self._clock.now() < end:
            assert self.held == held
            Event().wait(0.02)

    def wait_until_free(self) -> None:
        """Wait until no slot is held, hardly longer than those of a killed process may be."""
        deadline = self._clock.now() + SECONDS_TO_FREE + 20
        while self.held:
            assert self._clock.now() < deadline, self.held
            Event().wait(0.02)
        with self.limiter.reserve("Exports", "ada", COUNT):
            pass


@pytest.fixture(params=["shm", "redis"])
def programs(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server
) -> Iterator[Programs]:
    # A deadline for a busy machine.
    redis = f"{redis_server.url}?deadline=20s"
    url = redis if request.param == "redis" else f"shm://{tmp_path}/table"
    with ExitStack() as stack:
        yield Programs(url, tmp_path, stack)


def read(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def test_slots_of_a_killed_holder_are_renewed_until_then_and_free_later(programs: Programs) -> None:
    holder = programs.start(HOLD)
    assert read(holder) == "taken"
    # Longer than without a renewal.
    programs.check_for(SECONDS_TO_FREE, COUNT)
    holder.kill()
    programs.check_for(0.2, COUNT)
    programs.wait_until_free()


def test_a_process_that_waits_takes_the_slots_of_a_killed_one(programs: Programs) -> None:
    holder = programs.start(HOLD)
    assert read(holder) == "taken"
    waiters = [programs.start(WAIT) for _ in range(2)]
    programs.check_for(0.5, COUNT)
    # A waiter that is killed leaves the others no slot less.
    waiters.pop().kill()
    holder.kill()
    assert read(waiters[0]) == "taken"
    assert waiters[0].wait() == 0
    programs.wait_until_free()


def test_killed_processes_never_lift_the_count(programs: Programs) -> None:
    takers = [programs.start(TAKE_TURNS) for _ in range(5)]
    for taker in takers:
        assert "taken" in read(taker)
    *victims, survivor = takers
    for victim in victims:
        victim.kill()
    # Until the slots of the victims are free, and beyond.
    end = penstock.SystemClock().now() + SECONDS_TO_FREE + 0.5
    while (said := read(survivor)).startswith("taken") and float(said.split()[1]) < end:
        pass
    assert said.startswith("taken")
    survivor.kill()
    for taker in takers:
        assert "above" not in taker.communicate()[0]
    programs.wait_until_free()
