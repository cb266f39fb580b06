"""Penalties against a model in plain Python, and from several threads at once.

1. A request is refused exactly where the model refuses it, and the wait is the model's.
2. Of several refusals at once, one starts a block, and it is one level.
"""

from __future__ import annotations

import sys
from subprocess import PIPE, Popen
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.adapter import EnvironRequest, Guard, admit, make_rule

if TYPE_CHECKING:
    from pathlib import Path

    from penstock._web.outcome import Outcome

SECOND = 10**9


class Model:
    """One client of a token bucket of `count` per `count * interval` ns, with penalties.

    Attributes:
        tat: When the bucket is full.
        blocked_until: When the last block ends.
        forgotten: When the last remembered block is forgotten.
    """

    def __init__(self, count: int, interval: int, blocks: list[int], *, count_denied: bool) -> None:
        self.interval, self.burst = interval, count * interval
        self.blocks, self.count_denied = blocks, count_denied
        self.memory = 2 * blocks[-1] if blocks else 0
        self.tat = self.blocked_until = self.forgotten = 0

    def ask(self, now: int) -> int:
        """Return the wait of a refused request; 0 if it may proceed."""
        full_at = max(self.tat, now)
        wait = full_at + self.interval - self.burst - now
        if now < self.blocked_until:
            return max(wait, self.blocked_until - now)
        if wait <= 0:
            self.tat = full_at + self.interval
            return 0
        if self.count_denied:
            # Unless it is overdrawn.
            if full_at - self.burst <= now:
                self.tat = full_at = full_at + self.interval
            wait = full_at + self.interval - self.burst - now
        if self.blocks:
            # Blocks that are remembered, each for `memory`, one after another.
            level = -(-max(self.forgotten - now, 0) // self.memory)
            self.blocked_until = now + self.blocks[min(level, len(self.blocks) - 1)]
            if level < len(self.blocks):
                self.forgotten = max(self.forgotten, now) + self.memory
            wait = max(wait, self.blocked_until - now)
        return wait


def asks(blocks: list[int], clock: penstock.ManualClock, **options: Any) -> Any:
    """Return the function that decides requests of one client: three per three seconds."""
    guard = Guard(clock=clock)
    penalty: Any = {**options, "block_for": [f"{block}ns" for block in blocks] or None}
    limits = guard.route_limits([make_rule(["3 per 3 seconds"], "logins", penalty)])
    request = EnvironRequest({"REMOTE_ADDR": "203.0.113.7"})

    def ask() -> Outcome:
        return admit(limits, request)

    return ask


@given(
    blocks=st.lists(st.integers(1, 40), max_size=3, unique=True).map(sorted),
    count_denied=st.booleans(),
    steps=st.lists(
        st.sampled_from([0, 0, 0, 1, 50, 500, 999, 1000, 4000, 15_000, 90_000]), max_size=60
    ),
)
def test_penalties_are_those_of_the_model(
    blocks: list[int], steps: list[int], *, count_denied: bool
) -> None:
    clock = penstock.ManualClock(1)
    lengths = [block * SECOND for block in blocks]
    ask = asks(lengths, clock, count_denied=count_denied)
    model = Model(3, SECOND, lengths, count_denied=count_denied)
    for step in steps:
        clock.advance_ns(step * 1_000_000)
        outcome = ask()
        expected = model.ask(clock.now_ns())
        assert (outcome.refusal == "denied") == (expected > 0)
        if expected:
            assert outcome.decision.retry_after_ns == expected
            assert outcome.decision.remaining == 0


@pytest.mark.parametrize("blocks", [[10], [10, 100]])
def test_refusals_at_once_start_one_block(blocks: list[int], clock: penstock.ManualClock) -> None:
    ask = asks([block * SECOND for block in blocks], clock)
    for _ in range(10):
        statuses: list[int] = []
        gate = Barrier(8)

        def hammer(gate: Barrier = gate, statuses: list[int] = statuses) -> None:
            gate.wait()
            statuses.extend(ask().status if ask().refusal else 200 for _ in range(20))

        threads = [Thread(target=hammer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 429 in statuses
        assert ask().decision.retry_after_ns == 10 * SECOND
        # Long enough to forget the block, so that the next one is the first again.
        clock.advance(1000)


# Sends as many requests as a line of input states, and prints the waits of the refusals.
ASK = """
import sys
from penstock.adapter import EnvironRequest, Guard, admit, make_rule

guard = Guard(limits={"Logins": "2/second"}, store=sys.argv[1])
limits = guard.route_limits([make_rule(["Logins"], "logins", {"block_for": ["10m", "1h"]})])
request = EnvironRequest({"REMOTE_ADDR": sys.argv[2]})
for line in sys.stdin:
    outcomes = [admit(limits, request) for _ in range(int(line))]
    print(*(outcome.retry_after for outcome in outcomes), flush=True)
"""


def test_client_that_one_process_blocks_is_blocked_in_all(tmp_path: Path) -> None:
    url = f"shm://{tmp_path}/table?capacity=1000"

    def worker(address: str) -> Popen[str]:
        command = [sys.executable, "-c", ASK, url, address]
        return Popen(command, stdin=PIPE, stdout=PIPE, text=True)

    def ask(process: Popen[str], times: int) -> list[str]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(times, file=process.stdin, flush=True)
        return process.stdout.readline().split()

    with worker("203.0.113.7") as first, worker("203.0.113.7") as second, worker("::1") as other:
        assert ask(second, 1) == ["None"]
        waits = ask(first, 30)
        assert 580 < int(waits[-1]) <= 600
        # Without the block, the limit would let it pass within half a second.
        assert all(580 < int(wait) <= 600 for wait in ask(second, 3))
        assert ask(other, 1) == ["None"]
        for process in (first, second, other):
            process.communicate()
