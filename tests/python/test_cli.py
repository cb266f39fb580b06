"""The command line."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock._cli import check
from penstock._cli import main as cli

if TYPE_CHECKING:
    from conftest import Command, Write

LIMITS = """
OrdersPerAddress: {burst: 20, count: 10, period: 1m, id: ipAddress}
Clicks: {algorithm: leaky-bucket, size: 10, drip_rate: 2s, drip_size: 1}
Reports: {algorithm: fixed-window, count: 5, period: 1h}
Mails: {algorithm: fixed-rate-window, count: 60, period: 1m, burst: 2}
"""
OVERRIDES = """
- OrdersPerAddress: {burst: 200, count: 100, period: 1m, ids: [10.0.0.0/8]}
"""


@pytest.fixture
def limits(write: Write) -> str:
    """A limits file without faults."""
    return write("limits.yaml", LIMITS)


@pytest.fixture
def overrides(write: Write) -> str:
    """An overrides file without faults."""
    return write("overrides.yaml", OVERRIDES)


@pytest.fixture
def busted(write: Write) -> str:
    """A limits file with a fault."""
    return write("busted.yaml", "Orders: {burst: 0, count: 1, period: 1m}\n")


def test_check_of_valid_files_prints_a_summary(
    limits: str, overrides: str, command: Command
) -> None:
    assert command.run("check", "--limits", limits) == 0
    assert (command.out, command.err) == (f"{limits}: 4 limits, no errors\n", "")
    assert command.run("check", "--limits", limits, "--overrides", overrides) == 0
    assert command.out == f"{limits}: 4 limits, {overrides}: 1 override, no errors\n"


@pytest.mark.parametrize("wanted", [["check"], ["explain", "Orders", "ada"]])
def test_a_fault_is_printed_with_its_file_line_and_limit(
    busted: str, command: Command, wanted: list[str]
) -> None:
    assert command.run(*wanted, "--limits", busted) == 1
    assert command.out == ""
    assert command.err.startswith(f"{busted}:1: Orders: ")


def test_check_names_an_override_whose_limit_does_not_exist(write: Write, command: Command) -> None:
    limits = write("limits.yaml", 'Orders: "5/minute"\nFree: {algorithm: unlimited}\n')
    entry = "{burst: 2, count: 1, period: 1m, ids: [ada]}"
    overrides = write("overrides.yaml", f"- Order: {entry}\n- Free: {entry}\n")
    assert command.run("check", "--limits", limits, "--overrides", overrides) == 1
    assert command.err.startswith(f"{overrides}: Order: ")
    assert "did you mean 'Orders'?" in command.err
    wanted = ["check", "--json", "--limits", limits, "--overrides", overrides]
    assert command.run(*wanted) == 1
    (problem,) = command.json()["problems"]
    assert (problem["file"], problem["limit"]) == (overrides, "Order")


def test_check_prints_json(limits: str, busted: str, command: Command) -> None:
    assert command.json_of("check", "--limits", limits)["problems"] == []
    assert command.run("check", "--json", "--limits", busted) == 1
    (problem,) = command.json()["problems"]
    assert problem == {
        "file": busted,
        "line": 1,
        "limit": "Orders",
        "message": "burst must be at least 1, found 0",
    }


def test_explain_shows_the_limit_and_its_worst_case(
    limits: str, overrides: str, command: Command
) -> None:
    wanted = ["explain", "OrdersPerAddress", "10.1.2.3", "--limits", limits]
    wanted += ["--overrides", overrides]
    facts = command.json_of(*wanted)
    assert facts["limit"] == "100 per minute, 200 at once"
    assert (facts["file"], facts["line"]) == (overrides, 2)
    assert facts["bucket_key"] == "OrdersPerAddress:10.1.2.3"
    numbers = facts["numbers"]
    assert (numbers["at_once"], numbers["per_day"]) == (200, 144_000)
    assert (numbers["interval_ns"], numbers["worst_in_interval"]) == (60 * 10**9, 300)
    assert command.run(*wanted) == 0
    assert facts["admits"] in command.out


def test_explain_shows_the_bucket_of_an_address_with_its_network(
    limits: str, command: Command
) -> None:
    facts = command.json_of("explain", "OrdersPerAddress", "2001:db8::7", "--limits", limits)
    assert facts["bucket_key"] == "OrdersPerAddress:2001:db8::"


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("Clicks", {"at_once": 10, "per_day": 43_200, "worst_in_interval": 20}),
        ("Reports", {"at_once": 5, "per_day": 120, "worst_in_interval": 10}),
        ("Mails", {"at_once": 3, "per_day": 89_280, "worst_in_interval": 65}),
    ],
)
def test_explain_covers_each_algorithm(
    limits: str, command: Command, name: str, numbers: dict[str, int]
) -> None:
    facts = command.json_of("explain", name, "ada", "--limits", limits)
    assert {key: facts["numbers"][key] for key in numbers} == numbers


@pytest.mark.parametrize(("name", "id"), [("Unknown", "ada"), ("OrdersPerAddress", "ada")])
def test_explain_of_an_unknown_limit_or_id_fails(
    limits: str, command: Command, name: str, id: str
) -> None:
    assert command.run("explain", name, id, "--limits", limits) == 1
    assert name in command.err


@pytest.mark.parametrize("wrong", [[], ["chek"], ["check"], ["check", "a"], ["--loud"]])
def test_wrong_use_exits_with_2_and_shows_usage(wrong: list[str], command: Command) -> None:
    with pytest.raises(SystemExit) as ended:
        command.run(*wrong)
    assert ended.value.code == 2
    assert command.err.startswith("usage: penstock")


def test_help_lists_each_command_with_its_summary(command: Command) -> None:
    with pytest.raises(SystemExit) as ended:
        command.run("--help")
    assert ended.value.code == 0
    text = " ".join(command.out.split())
    assert [c.name for c in cli.COMMANDS] == [
        "check", "explain", "replay", "store"
    ]  # fmt: skip
    for each in cli.COMMANDS:
        assert f"{each.name} {each.summary}" in text


def test_version_is_printed(command: Command) -> None:
    with pytest.raises(SystemExit):
        command.run("--version")
    assert command.out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (FileNotFoundError("no file"), 2)]
)
def test_command_that_ends_early_has_the_status_of_its_cause(
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
    raised: BaseException,
    status: int,
) -> None:
    def run(_: object) -> int:
        raise raised

    monkeypatch.setattr(check, "run", run)
    assert command.run("check", "--limits", "limits.yaml") == status
    assert command.err == ("no file\n" if status == 2 else "")


def test_closed_pipe_is_not_an_error(limits: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "explain", "Clicks", "ada", "--limits", limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
