"""`penstock store`, on tables that limiters of this process and of others use."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

import penstock
from penstock import Limiter, Limits, ManualClock
from penstock._core import set_default_clock
from penstock.adapter import EnvironRequest
from penstock.identity import ClientAddress

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
def limiter(shm_url: str, limits: str) -> Limiter:
    """A limiter whose table has three buckets."""
    limiter = Limiter(Limits.load(limits), store=shm_url)
    limiter.spend("Orders", ADA, 10)
    limiter.spend("Orders", GRACE, 5)
    limiter.spend("Pages", ADA, 3)
    return limiter


@pytest.mark.usefixtures("limiter")
def test_inspect_shows_the_table(shm_url: str, tmp_path: Path, command: Command) -> None:
    shown = command.json_of("store", "inspect", shm_url)
    # The table's file is of the machine's clock, not of the manual one.
    assert shown.pop("age") is not None
    assert shown.pop("slots") >= 2000
    assert shown.pop("bytes") >= 32_000
    assert shown == {
        "store": shm_url,
        "file": f"{tmp_path}/table",
        "buckets": 3,
        "capacity": 1000,
        "forgotten": 0,
        "evicted": 0,
        "shared": 0,
        "refused": 0,
        "recovered_locks": 0,
        "reset_within": {"1s": 0, "1m": 2, "1h": 0, "1d": 1, "later": 0},
        # A window of an hour is kept for 7 * 2**19 ms: lifetimes are rounded up.
        "slowest": [
            {"reset_after": 3670.016, "tally": 3, "slots": None, "bucket_key": None},
            {"reset_after": 60.0, "tally": None, "slots": None, "bucket_key": None},
            {"reset_after": 30.0, "tally": None, "slots": None, "bucket_key": None},
        ],
        "nearest": None,
    }


def test_inspect_shows_the_slots_of_both_epochs_and_when_they_expire(
    shm_url: str, clock: ManualClock, command: Command
) -> None:
    limiter = Limiter({"Calls": "9 in flight, lease 2s"}, shm_url, clock=clock)
    # Of a process that was killed.
    limiter.reserve("Calls", "ada", 2).abandon()
    clock.advance(3)
    with limiter.reserve("Calls", "ada"):
        # An epoch is 2.048 s, and the second one began that long after the first.
        row = {"reset_after": 3.144, "tally": None, "slots": 3, "bucket_key": None}
        assert command.json_of("store", "inspect", shm_url)["slowest"] == [row]
        assert command.run("store", "inspect", shm_url) == 0
    shown = re.search(r"slots of requests in flight\n(?:.*\n)+? *3\.14 s +3\b", command.out)
    assert shown is not None, command.out
    assert "slowest" not in command.out


@pytest.mark.usefixtures("limiter")
def test_inspect_shows_the_buckets_of_given_clients_nearest_to_their_limit(
    shm_url: str, limits: str, command: Command
) -> None:
    # "ada" is no address, so it has a bucket under Pages only, which is full.
    inspect = ["store", "inspect", shm_url, "--limits", limits, "--ids", GRACE, ADA, "ada"]
    first, second, third = command.json_of(*inspect)["nearest"]
    assert first == {
        "bucket_key": f"Orders:{ADA}",
        "limit": "Orders",
        "id": ADA,
        "remaining": 0,
        "full": 10,
        "reset_after": 60.0,
    }
    assert (second["bucket_key"], second["remaining"]) == (f"Orders:{GRACE}", 5)
    assert (third["bucket_key"], third["remaining"]) == (f"Pages:{ADA}", 97)
    assert command.run(*inspect) == 0
    assert f"Orders:{ADA}" in command.out


def test_inspect_finds_the_bucket_of_an_address_with_its_network(
    limiter: Limiter, shm_url: str, limits: str, command: Command
) -> None:
    limiter.spend("Orders", ClientAddress()(EnvironRequest({"REMOTE_ADDR": "2001:db8::1"})))
    shown = command.json_of("store", "inspect", shm_url, "--limits", limits, "--ids", "2001:db8::1")
    assert [bucket["bucket_key"] for bucket in shown["nearest"]] == ["Orders:2001:db8::"]


def test_counters_include_denials_of_a_full_table(tmp_path: Path, command: Command) -> None:
    url = f"shm://{tmp_path}/small?capacity=10&overflow=deny"
    limiter = Limiter({"Orders": "1/day"}, store=url)
    denied = [limiter.spend("Orders", number).allowed for number in range(200)].count(False)
    shown = command.json_of("store", "inspect", url)
    assert shown["refused"] == denied > 0
    assert shown["buckets"] == 200 - denied
    assert len(shown["slowest"]) == 10


@pytest.mark.usefixtures("limiter")
def test_top_prints_the_view_of_inspect_once(shm_url: str, command: Command) -> None:
    assert command.run("store", "inspect", shm_url) == 0
    inspected = command.out
    assert "3 of 1,000 (0.3 %)" in inspected
    assert command.run("store", "top", shm_url, "--once") == 0
    assert command.out == inspected


@pytest.mark.parametrize("without", ["", "rich"])
def test_top_follows_the_table_on_a_terminal_until_it_is_interrupted(
    shm_url: str, without: str
) -> None:
    limiter = Limiter({"Orders": "10/day"}, store=shm_url, clock=penstock.SystemClock())
    limiter.spend("Orders", "ada")
    code = f"import sys; sys.modules[{without!r}] = None\n" if without else ""
    code += "import sys; from penstock.cli.main import main; sys.exit(main(sys.argv[1:]))"
    options = ["store", "top", shm_url, "--interval", "0.05"]
    shown = pexpect.spawn(
        sys.executable, ["-c", code, *options], encoding="utf-8", dimensions=(50, 120), timeout=60
    )
    shown.expect_exact("1 of 1,000 (0.1 %)")
    limiter.spend("Orders", "grace")
    shown.expect_exact("2 of 1,000 (0.2 %)")
    shown.expect_exact("/s)")
    shown.sendintr()
    shown.expect(pexpect.EOF)
    assert shown.wait() == 0


@pytest.mark.usefixtures("limiter")
def test_top_prints_one_view_after_another_into_a_pipe(shm_url: str) -> None:
    command = [sys.executable, "-m", "penstock", "store", "top", shm_url, "--interval", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        views = 0
        while views < 3:
            views += process.stdout.readline().startswith("store ")
        process.terminate()


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


@pytest.mark.parametrize("action", [["inspect"], ["top", "--once"], ["clear", "--yes"]])
def test_command_never_creates_a_store(
    command: Command, shm_url: str, tmp_path: Path, action: list[str]
) -> None:
    assert command.run("store", *action, shm_url) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", [["inspect"], ["top", "--once"], ["clear", "--yes"]])
@pytest.mark.parametrize(("url", "status"), [("memory://", 1), ("shm://a/b", 2), ("table", 2)])
def test_store_that_cannot_be_reached_is_an_error(
    action: list[str], url: str, status: int, command: Command
) -> None:
    assert command.run("store", *action, url) == status
    assert url in command.err
    assert command.out == ""


@pytest.mark.usefixtures("limiter")
@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["inspect", "--ids", ADA], 2),
        (["inspect", "--overrides", "overrides.yaml"], 2),
        (["clear", "Orders", ADA], 2),
        (["clear", "Orders", "--limits", "LIMITS"], 2),
        (["clear", "Unknown", ADA, "--limits", "LIMITS"], 1),
        (["clear", "Orders", "ada", "--limits", "LIMITS"], 1),
        (["top", "--interval", "0"], 2),
        (["top", "--interval", "nan"], 2),
    ],
)
def test_wrong_options_are_an_error(
    command: Command, shm_url: str, limits: str, options: list[str], status: int
) -> None:
    given = [limits if option == "LIMITS" else option for option in options]
    assert command.run("store", given[0], shm_url, *given[1:]) == status
