"""Waits in greenlets of gevent, whose patches a program applies first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from programs import run

pytest.importorskip("gevent", reason="no wheel for this interpreter")

START = """
from gevent import monkey
monkey.patch_all({patches})
import gevent, json, threading, time, penstock
ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.01)

gevent.spawn(tick)
limiter = penstock.Limiter({{
    "Calls": "3/second, burst 1", "Slots": "1 in flight", "Both": "100/second"
}})
began = time.monotonic()
"""
END = """
print(json.dumps([ticks, time.monotonic() - began, result]))
"""


def program(text: str, patches: str = "") -> tuple[int, float, Any]:
    """Run a program under gevent; return the ticks of another greenlet, the time and its result."""
    ticks, seconds, result = json.loads(run(START.format(patches=patches) + text + END))
    return ticks, seconds, result


@pytest.mark.parametrize("patches", ["", "thread=False", "time=False"])
def test_other_greenlets_run_while_one_waits_for_a_rate(patches: str) -> None:
    ticks, seconds, result = program(
        """
limiter.acquire("Calls", "ada")
waits = [gevent.spawn(limiter.acquire, "Calls", "ada") for _ in range(2)]
result = [wait.get().allowed for wait in waits]
""",
        patches,
    )
    assert result == [True, True]
    assert seconds >= 0.6
    assert ticks > 3


@pytest.mark.parametrize("release", ["gevent.spawn", "gevent.get_hub().threadpool.spawn"])
def test_a_greenlet_gets_a_slot_when_another_greenlet_or_thread_returns_it(release: str) -> None:
    ticks, seconds, result = program(
        f"""
held = limiter.reserve("Slots", "ada")
waiting = gevent.spawn(limiter.reserve, "Slots", "ada", timeout=60)
joint = gevent.spawn(limiter.reserve_all, [("Both", "ada"), ("Slots", "ada")], timeout=60)
gevent.sleep(0.2)
{release}(held.release)
got = waiting.get()
got.release()
result = [bool(got), bool(joint.get())]
joint.get().release()
"""
    )
    assert result == [True, True]
    assert 0.2 <= seconds < 60
    assert ticks > 3


def test_a_wait_ends_with_its_timeout_and_with_its_greenlet() -> None:
    _, _, result = program(
        """
held = limiter.reserve("Slots", "ada")
try:
    limiter.reserve("Slots", "ada", timeout=0.2)
except penstock.RateLimited as error:
    timeout = error.decision
killed = gevent.spawn(limiter.reserve, "Slots", "ada", timeout=60)
gevent.sleep(0.1)
killed.kill()
held.release()
is_killed = isinstance(killed.value, gevent.GreenletExit)
result = [bool(timeout), is_killed, limiter.peek("Slots", "ada").remaining]
"""
    )
    assert result == [False, True, 1]


def test_a_manual_clock_wakes_a_greenlet() -> None:
    _, seconds, result = program(
        """
clock = penstock.ManualClock()
limiter = penstock.Limiter({"Calls": "1/hour"}, clock=clock)
limiter.acquire("Calls", "ada")
waiting = gevent.spawn(limiter.acquire, "Calls", "ada")
gevent.sleep(0.1)
clock.advance("1h")
result = waiting.get().allowed
"""
    )
    assert result
    assert seconds < 60
