"""`penstock replay` in a pipeline: a check of limits, a comparison by client, and a limits file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tables import json_lines

if TYPE_CHECKING:
    from conftest import Command, Write

STRICT = "Pages: {burst: 2, count: 1, period: 1m}\n"
WIDE = "Pages: {burst: 20, count: 10, period: 1m}\n"


@pytest.fixture
def log(write: Write) -> str:
    """A log in which one client is fast and another one faster."""
    events = [(minute * 60, f"192.0.2.{client}") for minute in range(30) for client in range(8)]
    events += [(600 + second * 10, "198.51.100.7") for second in range(30)]
    events += [(600 + second, "203.0.113.66") for second in range(300)]
    rows = [f"{1_795_000_000 + second},{address},/x\n" for second, address in sorted(events)]
    return write("access.jsonl", json_lines("time,ip,path\n" + "".join(rows)))


@pytest.fixture
def strict(log: str, write: Write) -> tuple[str, ...]:
    """The arguments that replay the log with a limit that denies both."""
    return ("replay", log, "--limits", write("strict.yaml", STRICT))


@pytest.fixture
def wide(log: str, write: Write) -> tuple[str, ...]:
    """The arguments that replay the log with a limit that denies the faster one."""
    return ("replay", log, "--limits", write("wide.yaml", WIDE))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The path of a report."""
    return tmp_path / "out.html"


def test_a_limit_that_denies_too_much_fails_the_check(
    strict: tuple[str, ...], command: Command
) -> None:
    assert command.run(*strict, "--fail-if-denied", "90%") == 0
    assert command.run(*strict, "--fail-if-denied", "0.1%") == 1
    assert "more than 0.1 %" in command.err
    assert "203.0.113.66 (" in command.err
    assert command.run(*strict, "--fail-if-denied", "0", "--json") == 1
    check = command.json()["check"]
    assert len(check["problems"]) == 1
    assert [row["id"] for row in check["denied_clients"]] == ["203.0.113.66", "198.51.100.7"]


def test_a_protected_client_that_is_denied_fails_the_check(
    strict: tuple[str, ...], wide: tuple[str, ...], command: Command, write: Write
) -> None:
    text = "# partners\n198.51.100.0/24 # all of them\n\n192.0.2.1\n9.9.9.9\n"
    partners = "@" + write("partners.txt", f"\ufeff{text}")
    assert command.run(*wide, "--protect", partners) == 0
    assert "9.9.9.9: protected, but not in the log" in command.err
    assert command.run(*strict, "--protect", partners) == 1
    assert "protected clients are denied: 198.51.100.7 (" in command.err
    assert "203.0.113.66 (" not in command.err
    assert command.run(*strict, "--protect", "192.0.2.*") == 0


def test_a_list_of_clients_that_is_not_read_is_no_passed_check(
    wide: tuple[str, ...], command: Command, write: Write
) -> None:
    partners, empty = write("partners.txt", "192.0.2.1\n"), write("empty.txt", "# none yet\n")
    for named in (partners, f"@{empty}", f"@{partners}.old"):
        with pytest.raises(SystemExit) as raised:
            command.run(*wide, "--protect", named)
        assert raised.value.code == 2
        assert f"--protect: {named.strip('@')}" in command.err.replace("cannot read ", "")


def test_a_comparison_names_who_is_denied_by_only_one_limit(
    strict: tuple[str, ...], wide: tuple[str, ...], command: Command, page: Path
) -> None:
    stricter, wider = strict[-1], wide[-1]
    assert command.run(*strict, "--compare", wider, "--report", str(page)) == 0
    head = f"Denied by only one of {stricter} and {wider}"
    assert head in command.out
    assert head in page.read_text(encoding="utf-8")
    for limits, other in ((strict, wider), (wide, stricter)):
        ((row,),) = command.json_of(*limits, "--compare", other)["changes"]
        assert (row["id"], row["denied_only_by"]) == ("198.51.100.7", stricter)


def test_the_chosen_limit_is_written_to_a_new_file(
    strict: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    written = tmp_path / "new.yaml"
    options = [*strict, "--recommend", "--write", str(written)]
    # The storm is most of the log, so that it has to be accepted by name.
    assert command.run(*options) == 1
    assert "203.0.113.66" in command.err
    assert not written.exists()
    options += ["--accept", "203.0.113.*"]
    recommended = command.json_of(*options)["recommendation"]
    text = written.read_text(encoding="utf-8")
    assert text.endswith(recommended["yaml"])
    assert "203.0.113.66" in text
    # The new file passes the check that it was made for, except for the client that it names.
    limits = ("--limits", str(written))
    assert command.run(strict[0], strict[1], *limits, "--protect", "192.0.2.*") == 0
    # What is there is never replaced.
    assert command.run(*options) == 2
    assert written.read_text(encoding="utf-8") == text


def test_many_clients_that_lose_much_together_have_to_be_accepted(
    command: Command, tmp_path: Path
) -> None:
    log, written = tmp_path / "keys.log", tmp_path / "new.yaml"
    # 110 keys with less than a hundredth of the requests each, and people with two.
    keys = [f"203.0.113.{number}" for number in range(110)]
    people = [f"198.51.{number // 250}.{number % 250}" for number in range(2000)]
    ids = [id for part in range(120) for id in (*keys, *people[part * 33 :][:33])]
    lines = (
        f"{id} - - [20/Nov/2026:{part // 60 // 60:02}:{part // 60 % 60:02}:{part % 60:02} +0000] "
        '"GET / HTTP/1.1" 200 5\n'
        for part, id in zip(np.linspace(0, 14_399, len(ids)).astype(int).tolist(), ids, strict=True)
    )
    log.write_text("".join(lines))
    options = ("--limit", "60/minute", "--recommend", "--period", "15m", "--write", str(written))
    assert command.run("replay", str(log), *options) == 1
    assert "203.0.113." in command.err
    assert not written.exists()
    assert command.run("replay", str(log), *options, "--accept", "203.0.113.0/24") == 0
    assert written.exists()


def test_a_proposal_lists_whom_it_denies(
    wide: tuple[str, ...], command: Command, page: Path
) -> None:
    assert command.run(*wide, "--recommend", "--report", str(page)) == 0
    for text in (command.out, page.read_text(encoding="utf-8")):
        assert "203.0.113.66" in text
        assert "far from the rest" in text
    recommended = command.json_of(*wide, "--recommend")["recommendation"]
    (row,) = recommended["far_clients"]
    assert row["id"] == "203.0.113.66"
    assert row["denied_share"] > 0.8
    spared = ("--recommend", "--protect", "203.0.113.66")
    recommended = command.json_of(*wide, *spared)["recommendation"]
    assert recommended["far_clients"] == recommended["denied_clients"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        ("--fail-if-denied", "2"),
        ("--fail-if-denied", "1"),
        ("--period", "1x", "--recommend"),
    ],
)
def test_wrong_options_are_refused_before_the_log_is_read(
    command: Command, wrong: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.run("replay", "missing.log", "--limit", "1/s", *wrong)


def test_a_log_given_twice_and_a_limits_file_are_refused(
    log: str, wide: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    for same in (log, str(tmp_path / ".." / tmp_path.name / "access.jsonl")):
        assert command.run("replay", log, same, "--limit", "1/s") == 2
        assert "twice" in command.err
    assert command.run("replay", log, wide[-1]) == 2
    assert "--limits" in command.err


def test_the_heading_of_a_recommendation_names_the_limit(log: str, command: Command) -> None:
    assert command.run("replay", log, "--limit", "5/minute", "--recommend") == 0
    assert "\nRecommended instead of 5 per minute\n" in command.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--where", "paht=/x"), "where must be a field"),
        (("--recommend", "--exclude", "9.9.9.9"), "--exclude: the trace has no client '9.9.9.9'"),
        (("--write", "out.yaml"), "--recommend"),
        (("--recommend", "--write", "missing/out.yaml"), "--write: the folder"),
        (("--recommend", "--choose", "99"), "--choose: row must be"),
        (("--report", "LOG"), "--report: "),
    ],
)
def test_an_option_that_does_not_fit_the_log_is_named(
    log: str, command: Command, options: tuple[str, ...], message: str
) -> None:
    given = [option.replace("LOG", log) for option in options]
    assert command.run("replay", log, "--limit", "1/s", *given) == 2
    assert message in command.err
    assert Path(log).read_bytes().startswith(b"{")
