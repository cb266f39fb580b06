"""`penstock replay` in a pipeline: a check of limits, a comparison by client, and a limits file."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command

STRICT = "Pages: {burst: 2, count: 1, period: 1m}\n"
WIDE = "Pages: {burst: 20, count: 10, period: 1m}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a log, in which one client is fast and another one faster."""
    begin = datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
    events = [(minute * 60, f"192.0.2.{client}") for minute in range(30) for client in range(8)]
    events += [(600 + second * 10, "198.51.100.7") for second in range(30)]
    events += [(600 + second, "203.0.113.66") for second in range(300)]
    lines = [
        f"{address} - - [{begin + datetime.timedelta(seconds=at):%d/%b/%Y:%H:%M:%S +0000}] "
        f'"GET /x HTTP/1.1" 200 12 "-" "curl"\n'
        for at, address in sorted(events)
    ]
    (tmp_path / "access.log").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "strict.yaml").write_text(STRICT, encoding="utf-8")
    (tmp_path / "wide.yaml").write_text(WIDE, encoding="utf-8")
    return tmp_path


def replayed(folder: Path, limits: str, *more: str) -> tuple[str, ...]:
    return ("replay", str(folder / "access.log"), "--limits", str(folder / limits), *more)


def test_a_limit_that_denies_too_much_fails_the_check(folder: Path, command: Command) -> None:
    assert command.run(*replayed(folder, "strict.yaml"), "--fail-if-denied", "90%") == 0
    assert command.run(*replayed(folder, "strict.yaml"), "--fail-if-denied", "0.1%") == 1
    assert "more than 0.1 %" in command.err
    assert "203.0.113.66 (" in command.err
    assert command.run(*replayed(folder, "strict.yaml"), "--fail-if-denied", "0", "--json") == 1
    check = command.json()["check"]
    assert check["passed"] is False
    assert [row["id"] for row in check["denied_clients"]] == ["203.0.113.66", "198.51.100.7"]


def test_a_protected_client_that_is_denied_fails_the_check(folder: Path, command: Command) -> None:
    partners = folder / "partners.txt"
    partners.write_text("# partners\n198.51.100.0/24\n\n192.0.2.1\n9.9.9.9\n", encoding="utf-8")
    assert command.run(*replayed(folder, "wide.yaml"), "--protect", str(partners)) == 0
    assert "9.9.9.9: protected, but not in the log" in command.err
    assert command.run(*replayed(folder, "strict.yaml"), "--protect", str(partners)) == 1
    assert "protected clients are denied: 198.51.100.7 (" in command.err
    assert "203.0.113.66 (" not in command.err
    assert command.run(*replayed(folder, "strict.yaml"), "--protect", "192.0.2.*") == 0


def test_a_comparison_names_who_is_newly_denied_and_who_is_freed(
    folder: Path, command: Command
) -> None:
    page = folder / "out.html"
    strict, wide = str(folder / "strict.yaml"), str(folder / "wide.yaml")
    compared = (*replayed(folder, "strict.yaml"), "--compare", wide)
    assert command.run(*compared, "--report", str(page)) == 0
    head = f"Newly denied: by {strict}, not by {wide}"
    assert head in command.out
    assert head in page.read_text(encoding="utf-8")
    assert command.run(*compared, "--json") == 0
    (change,) = command.json()["changes"]
    assert (change["before"], change["after"]) == (wide, strict)
    assert [row["id"] for row in change["newly_denied"]] == ["198.51.100.7"]
    assert change["freed"] == []
    assert command.run(*replayed(folder, "wide.yaml"), "--compare", strict, "--json") == 0
    (change,) = command.json()["changes"]
    assert [row["id"] for row in change["freed"]] == ["198.51.100.7"]
    assert change["newly_denied"] == []


def test_all_limits_of_the_routes_are_written_as_a_limits_file(
    folder: Path, command: Command
) -> None:
    limits = folder / "app.yaml"
    limits.write_text(
        "Pages: {burst: 2, count: 1, period: 1m, description: all pages}\nUnused: 5/minute\n",
        encoding="utf-8",
    )
    routes = folder / "routes.yaml"
    routes.write_text("- path: /never\n  limits: [Unused]\n- limits: [Pages]\n", encoding="utf-8")
    written = folder / "new.yaml"
    found = ("--routes", str(routes), "--recommend", "--write", str(written))
    assert command.run(*replayed(folder, "app.yaml"), *found, "--json") == 0
    assert "no event spends it" in command.err
    (name,) = command.json()["recommendations"]
    assert name == "Pages"
    loaded = penstock.Limits.load(written)
    assert loaded["Unused"] == penstock.Limit.parse("5/minute")
    recommended = command.json()["recommendations"]["Pages"]
    assert loaded["Pages"].burst == recommended["burst"]
    text = written.read_text(encoding="utf-8")
    assert 'description: "all pages"' in text
    assert "# Pages: 203.0.113.66 makes" in text
    # The new file passes the check that it was made for, except for the client that it names.
    checked = replayed(folder, "new.yaml", "--routes", str(routes), "--protect", "192.0.2.*")
    assert command.run(*checked) == 0


def test_a_proposal_lists_whom_it_denies(folder: Path, command: Command) -> None:
    page = folder / "out.html"
    found = (*replayed(folder, "wide.yaml"), "--recommend")
    assert command.run(*found, "--report", str(page)) == 0
    for text in (command.out, page.read_text(encoding="utf-8")):
        assert "203.0.113.66 makes" in text
        assert "behave" in text
    assert command.run(*found, "--json") == 0
    recommended = command.json()["recommendations"]["Pages"]
    (row,) = recommended["unusual_clients"]
    assert row["id"] == "203.0.113.66"
    assert row["denied_share"] > 0.8
    assert command.run(*found, "--fit-all", "--max-denied", "0.2", "--json") == 0
    recommended = command.json()["recommendations"]["Pages"]
    assert recommended["unusual_clients"] == []
    assert recommended["denied_clients"][0]["id"] == "203.0.113.66"


def test_the_page_of_a_replay_has_the_bucket_with_the_most_denied_events(
    folder: Path, command: Command
) -> None:
    page = folder / "out.html"
    compared = ("--compare", str(folder / "wide.yaml"), "--report", str(page))
    assert command.run(*replayed(folder, "strict.yaml"), *compared) == 0
    assert page.read_text(encoding="utf-8").count("Bucket of 203.0.113.66: tokens left") >= 2
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    "wrong",
    [
        ("--max-denied", "1.5"),
        ("--max-denied", "x%"),
        ("--fail-if-denied", "2"),
        ("--period", "1x", "--recommend"),
        ("--write", "out.yaml"),
    ],
)
def test_wrong_options_are_refused_before_the_log_is_read(
    folder: Path, command: Command, wrong: tuple[str, ...]
) -> None:
    missing = ("replay", str(folder / "missing.log"), "--limits", str(folder / "wide.yaml"))
    if wrong[0] == "--write":
        assert command.run(*missing, *wrong) == 2
    else:
        with pytest.raises(SystemExit, match="2"):
            command.run(*missing, *wrong)


def test_a_log_given_twice_and_a_limits_file_are_refused(folder: Path, command: Command) -> None:
    log = str(folder / "access.log")
    for same in (log, str(folder / ".." / folder.name / "access.log")):
        assert command.run("replay", log, same, "--limit", "1/s") == 2
        assert "twice" in command.err
    assert command.run("replay", log, str(folder / "wide.yaml")) == 2
    assert "--limits" in command.err


def test_a_misspelled_field_of_a_condition_is_named_with_its_option(
    folder: Path, command: Command
) -> None:
    log = str(folder / "access.log")
    assert command.run("replay", log, "--limit", "1/s", "--where", "paht=/x") == 2
    assert command.err.startswith("where must be a field")
    assert "'path'" in command.err


def test_the_heading_of_a_recommendation_names_the_limit(folder: Path, command: Command) -> None:
    log = str(folder / "access.log")
    assert command.run("replay", log, "--limit", "5/minute", "--recommend") == 0
    assert "\nRecommended instead of 5 per minute\n" in command.out


def test_an_excluded_client_that_is_missing_is_named_without_quotes(
    folder: Path, command: Command
) -> None:
    options = ("--recommend", "--exclude", "9.9.9.9")
    assert command.run(*replayed(folder, "wide.yaml"), *options) == 2
    assert "--exclude: the trace has no client '9.9.9.9'" in command.err
    assert '"exclude' not in command.err
