"""A child that is forked while another thread makes the first call of its kind.

The child has only the thread that forked. What another thread had begun is never finished there, so
nothing may wait for it.
"""

from __future__ import annotations

import os

import pytest
from programs import run

PROGRAM = """
import contextlib, itertools, operator, os, signal, sys, threading
from datetime import timedelta
from decimal import Decimal
from functools import partial
from uuid import UUID

import penstock

notes = penstock.Limit.leaky_bucket(size=4, drip_rate="1s")
limiter = penstock.Limiter({"Orders": "5/day", "Notes": notes})
call = eval(sys.argv[1])
is_started = threading.Lock()
is_started.acquire()

def run(*steps):
    # No Python code runs between the steps, so the interpreter goes to the other thread only where
    # one of them detaches from it.
    return list(itertools.starmap(operator.call, steps))

def call_first():
    # The main thread asks for the interpreter during the sum, and gets it in the first call. This
    # thread then goes on until it needs the interpreter, and does not ask for it.
    with contextlib.suppress(penstock.Error):
        run((is_started.release,), (sum, numbers), (sys.setswitchinterval, 1000), (call,))

numbers = range(4_000_000)
thread = threading.Thread(target=call_first)
thread.start()
is_started.acquire()
if (child := run((sum, numbers), (os.fork,))[-1]) == 0:
    signal.alarm(20)
    status = 99
    try:
        with contextlib.suppress(penstock.Error):
            call()
        status = 0
    finally:
        os._exit(status)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(
    "call",
    [
        "partial(limiter.spend, 'Orders', 'ada', cost=1)",
        "partial(limiter.limit('Orders').spend, 'ada', cost=1)",
        "partial(limiter.spend, 'Orders', UUID(int=1))",
        "partial(limiter.spend, 'Notes', 'ada', 1, factor=Decimal('0.5'))",
        "partial(limiter.spend, 'Nothing', 'ada')",
        "partial(limiter.acquire, 'Orders', 'ada', timeout=timedelta(0))",
        "partial(penstock.ManualClock().advance, timedelta(seconds=1))",
        "limiter.spend('Orders', 'eve').headers",
    ],
)
def test_child_forked_during_a_first_call_makes_the_same_call(call: str) -> None:
    run(PROGRAM, call)


SCRAPE = """
import os, signal, sys, threading

import penstock
from penstock.metrics import PrometheusCollector
from prometheus_client import CollectorRegistry

limiter = penstock.Limiter({"Orders": "5/day"})
is_reading, is_over = threading.Event(), threading.Event()

class Source:
    limiter = limiter

    def incidents(self):
        is_reading.set()
        is_over.wait()
        return {}

def scrape(source):
    collector = PrometheusCollector(source, registry=CollectorRegistry())
    return sum(len(family.samples) for family in collector.collect())

thread = threading.Thread(target=scrape, args=[Source()])
thread.start()
is_reading.wait()
if (child := os.fork()) == 0:
    signal.alarm(20)
    os._exit(0 if scrape(limiter) > 0 else 99)
is_over.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

LOCKS = """
import os, signal, sys, threading

from penstock._locks import fork_safe

locks = [fork_safe(threading.Lock()), fork_safe(threading.RLock())]
is_held, is_over = threading.Event(), threading.Event()

def hold():
    with locks[0], locks[1]:
        is_held.set()
        is_over.wait()

thread = threading.Thread(target=hold)
thread.start()
is_held.wait()
if (child := os.fork()) == 0:
    signal.alarm(20)
    with locks[0], locks[1]:
        os._exit(0)
is_over.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("program", [SCRAPE, LOCKS], ids=["scrape", "locks"])
def test_child_does_not_inherit_what_another_thread_holds(program: str) -> None:
    run(program)
