"""`penstock store clear`, on tables that limiters of this process and of others use."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

from penstock import Limiter, Limits, ManualClock
from penstock._core import set_default_clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Command, Write

LIMITS = """
Orders: {burst: 10, count: 10, period: 1m, id: ipAddress}
Pages: {algorithm: fixed-window, count: 100, period: 1h}
"""
ADA, GRACE = "192.0.2.1", "192.0.2.2"


@pytest.fixture(autouse=True)
def default_clock(clock: ManualClock) -> Iterator[None]:
    """Let the command use the clock of the test."""
    before = set_default_clock(clock)
    yield
    set_default_clock(before)


@pytest.fixture
def limits(write: Write) -> str:
    """The limits file."""
    return write("limits.yaml", LIMITS)


@pytest.fixture
def limiter(shm_url: str, limits: str, clock: ManualClock) -> Limiter:
    """A limiter whose table has three buckets."""
    limiter = Limiter(Limits.load(limits), store=shm_url, clock=clock)
    limiter.spend("Orders", ADA, 10)
    limiter.spend("Orders", GRACE, 5)
    limiter.spend("Pages", ADA, 3)
    return limiter


def test_clear_resets_all_buckets(limiter: Limiter, shm_url: str, command: Command) -> None:
    assert command.json_of("store", "clear", shm_url, "--yes") == {"cleared": 3}
    assert limiter.peek("Orders", ADA).remaining == 10
    assert limiter.stats()["buckets"] == 0
    assert limiter.spend("Orders", ADA, 10)


def test_clear_resets_one_bucket(
    limiter: Limiter, shm_url: str, limits: str, command: Command
) -> None:
    clear = ["store", "clear", shm_url, "Orders", ADA, "--limits", limits]
    assert command.json_of(*clear) == {"cleared": 1}
    assert command.json_of(*clear) == {"cleared": 0}
    assert limiter.peek("Orders", ADA).remaining == 10
    assert limiter.peek("Orders", GRACE).remaining == 5


@pytest.mark.parametrize(("answer", "remaining"), [("n", 0), ("", 0), ("y", 10)])
def test_clear_of_all_buckets_asks_first(
    limiter: Limiter, shm_url: str, answer: str, remaining: int
) -> None:
    asked = pexpect.spawn(sys.executable, ["-m", "penstock", "store", "clear", shm_url], timeout=60)
    asked.expect_exact("[y/N]")
    asked.sendline(answer)
    asked.expect(pexpect.EOF)
    assert asked.wait() == 0
    assert limiter.peek("Orders", ADA).remaining == remaining


def test_clear_without_confirmation_does_nothing(limiter: Limiter, shm_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "store", "clear", shm_url],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 2
    assert limiter.peek("Orders", ADA).remaining == 0


def test_command_never_creates_a_store(command: Command, shm_url: str, tmp_path: Path) -> None:
    assert command.run("store", "clear", "--yes", shm_url) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("url", "status"), [("memory://", 1), ("shm://a/b", 2), ("table", 2)])
def test_store_that_cannot_be_reached_is_an_error(url: str, status: int, command: Command) -> None:
    assert command.run("store", "clear", "--yes", url) == status
    assert url in command.err
    assert command.out == ""


@pytest.mark.usefixtures("limiter")
@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["clear", "--overrides", "overrides.yaml"], 2),
        (["clear", "Orders", ADA], 2),
        (["clear", "Orders", "--limits", "LIMITS"], 2),
        (["clear", "Unknown", ADA, "--limits", "LIMITS"], 1),
        (["clear", "Orders", "ada", "--limits", "LIMITS"], 1),
    ],
)
def test_wrong_options_are_an_error(
    command: Command, shm_url: str, limits: str, options: list[str], status: int
) -> None:
    given = [limits if option == "LIMITS" else option for option in options]
    assert command.run("store", given[0], shm_url, *given[1:]) == status
