"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli import demo
from penstock.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

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
def limits(tmp_path: Path) -> str:
    """A limits file without faults."""
    file = tmp_path / "limits.yaml"
    file.write_text(LIMITS, encoding="utf-8")
    return str(file)


@pytest.fixture
def overrides(tmp_path: Path) -> str:
    """An overrides file without faults."""
    file = tmp_path / "overrides.yaml"
    file.write_text(OVERRIDES, encoding="utf-8")
    return str(file)


@pytest.fixture
def busted(tmp_path: Path) -> str:
    """A limits file with a fault."""
    file = tmp_path / "busted.yaml"
    file.write_text("Orders: {burst: 0, count: 1, period: 1m}\n", encoding="utf-8")
    return str(file)


def test_check_of_valid_files_prints_a_summary(
    limits: str, overrides: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", limits]) == 0
    assert cli.main(["check", limits, overrides]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{limits}: 4 limits, no faults\n" * 2
    assert printed.err == ""


def test_check_prints_file_line_and_limit_of_a_fault(
    busted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", busted]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{busted}:1: Orders: ")


def test_check_prints_json(limits: str, busted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--json", limits]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert cli.main(["check", "--json", busted]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert f"{busted}:1: Orders: " in problem


def test_explain_shows_the_limit_and_what_it_admits(
    limits: str, overrides: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["explain", limits, "OrdersPerAddress", "10.1.2.3", "--overrides", overrides]
    assert cli.main([*wanted, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["limit"] == "100 per minute, 200 at once"
    assert (facts["file"], facts["line"]) == (overrides, 2)
    assert facts["bucket_key"] == "OrdersPerAddress:10.1.2.3"
    numbers = facts["numbers"]
    assert (numbers["at_once"], numbers["per_day"]) == (200, 144_000)
    assert (numbers["interval_ns"], numbers["worst_in_interval"]) == (60 * 10**9, 300)
    assert cli.main(wanted) == 0
    assert facts["admits"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("Clicks", {"at_once": 10, "per_day": 43_200, "worst_in_interval": 20}),
        ("Reports", {"at_once": 5, "per_day": 120, "worst_in_interval": 10}),
        ("Mails", {"at_once": 3, "per_day": 89_280, "worst_in_interval": 65}),
    ],
)
def test_explain_covers_each_algorithm(
    limits: str, capsys: pytest.CaptureFixture[str], name: str, numbers: dict[str, int]
) -> None:
    assert cli.main(["explain", limits, name, "ada", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {key: facts["numbers"][key] for key in numbers} == numbers


@pytest.mark.parametrize(("name", "id"), [("Unknown", "ada"), ("OrdersPerAddress", "ada")])
def test_explain_of_an_unknown_limit_or_id_fails(
    limits: str, capsys: pytest.CaptureFixture[str], name: str, id: str
) -> None:
    assert cli.main(["explain", limits, name, id]) == 1
    assert name in capsys.readouterr().err


def test_explain_reports_faults_of_the_file(
    busted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", busted, "Orders", "ada"]) == 1
    assert "busted.yaml:1" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [[], ["chek"], ["check"], ["check", "a", "b", "c"], ["--loud"]])
def test_wrong_use_exits_with_2_and_shows_usage(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(wrong)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: penstock")


def test_help_lists_each_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [c.name for c in cli.COMMANDS] == [
        "check", "explain", "simulate", "replay", "store", "migrate-check", "demo"
    ]  # fmt: skip
    for command in cli.COMMANDS:
        assert f"{command.name} {command.summary}" in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (FileNotFoundError("no file"), 2)]
)
def test_command_that_ends_early_has_the_status_of_its_cause(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    status: int,
) -> None:
    def run(_: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo"]) == status
    assert capsys.readouterr().err == ("no file\n" if status == 2 else "")


def test_demo_without_flask_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert cli.main(["demo"]) == 1
    assert "pip install 'penstock[flask]'" in capsys.readouterr().err


def test_demo_runs_as_a_module_into_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "429 TOO MANY REQUESTS" in done.stdout


def test_closed_pipe_is_not_an_error(limits: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "explain", limits, "Clicks", "ada"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
