"""Processes with different limits on one bucket, as during a rolling deploy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from redis_servers import Server

# Waits for a line, then spends, all at one instant.
PROGRAM = """
import sys, penstock
from penstock import Limit
clock = penstock.ManualClock(1_700_000_000)
limiter = penstock.Limiter({"Orders": eval(sys.argv[2])}, store=sys.argv[1], clock=clock)
print("ready", flush=True)
sys.stdin.readline()
print(sum(limiter.spend("Orders", "ada").allowed for _ in range(2000)))
"""

PAIRS = [
    (
        "Limit.token_bucket(burst=10, count=1, period='1m')",
        "Limit.token_bucket(burst=300, count=1, period='1m')",
    ),
    ("Limit.leaky_bucket(size=10)", "Limit.leaky_bucket(size=300)"),
    (
        "Limit.fixed_window(count=10, period='1m')",
        "Limit.fixed_window(count=300, period='1m')",
    ),
    (
        "Limit.fixed_rate_window(count=60, period='1m', burst=9)",
        "Limit.fixed_rate_window(count=60, period='1m', burst=299)",
    ),
]


def admitted(url: str, limits: tuple[str, ...]) -> list[int]:
    """Run a program for each limit at the same time; return how many spends each was allowed."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, limit],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for limit in limits
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    return [int(program.communicate(timeout=60)[0]) for program in programs]


@pytest.mark.parametrize("limits", PAIRS)
def test_processes_with_two_limits_admit_what_the_larger_one_does(
    tmp_path: Path, limits: tuple[str, str]
) -> None:
    both = admitted(f"shm://{tmp_path}/table?capacity=1000", (*limits, *limits))
    assert sum(both) == 300


@pytest.mark.parametrize("limits", PAIRS)
def test_processes_with_two_limits_share_a_server(
    redis_server: Server, limits: tuple[str, str]
) -> None:
    both = admitted(f"{redis_server.url}?deny_cache=0&deadline=10s", limits)
    assert sum(both) == 300
