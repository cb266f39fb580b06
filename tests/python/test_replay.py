"""The command `penstock replay`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import programs
import pytest
from sample_log import write_access_log
from tables import json_lines

import penstock
from penstock._cli import replay
from penstock.simulate import Trace, simulate
from penstock.simulate.log import read_log

if TYPE_CHECKING:
    from conftest import Command, Write

LIMITS = """
Pages: {burst: 60, count: 30, period: 1m}
Searches: {burst: 5, count: 5, period: 1m}
"""
STRICTER = "Pages: {burst: 20, count: 10, period: 1m}"
PROGRAM = [sys.executable, "-m", "penstock"]
EVENTS = 5_000
SECONDS = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An access log of one hour."""
    path = tmp_path_factory.mktemp("log") / "access.log"
    return str(write_access_log(path, events=EVENTS, seed=1, hours=1.0))


@pytest.fixture
def short(write: Write) -> str:
    """A log with four events of one client."""
    times = "".join(f"2026-11-20T00:00:0{second},192.0.2.1\n" for second in range(4))
    return write("a.jsonl", json_lines(f"ts,ip\n{times}"))


@pytest.fixture
def limits(write: Write) -> str:
    return write("limits.yaml", LIMITS)


@pytest.fixture
def stricter(write: Write) -> str:
    return write("stricter.yaml", STRICTER)


def facts(command: Command) -> dict[str, str]:
    """Return the lines of facts that a command printed: what each begins with, and the rest."""
    pairs = (line.split("  ", 1) for line in command.out.splitlines() if "  " in line)
    return {head.strip(): rest.strip() for head, rest in pairs}


def denied(command: Command, *arguments: str) -> list[int]:
    """Run a command; return how many events each limit denies."""
    return [each["summary"]["denied"] for each in command.json_of(*arguments)["limits"]]


def test_replay_in_parts_equals_the_whole_trace(
    command: Command, limits: str, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay, "read_log", lambda path, **options: read_log(path, **options, chunk_events=700)
    )
    (found,) = command.json_of("replay", log, "--limits", limits, "--name", "Searches")["limits"]
    whole = simulate(penstock.Limits.parse(LIMITS), Trace.from_log(log), name="Searches")
    assert found["summary"] == whole.summary().to_dict()
    assert found["summary"]["denied"] > 0
    clients = whole.by_client().rows()
    assert found["clients"] == [next(clients) for _ in found["clients"]]
    assert sum(found["waits"].values()) == found["summary"]["denied"]


def test_json_has_stable_keys(command: Command, limits: str, stricter: str, log: str) -> None:
    arguments = ["replay", log, "--limits", limits, "--name", "Pages"]
    answer = command.json_of(*arguments, "--compare", stricter, "--recommend")
    keys = ["changes", "first_ns", "last_ns", "limits", "log", "recommendation", "source"]
    assert sorted(answer) == keys
    assert [each["title"] for each in answer["limits"]] == [limits, stricter]
    for each in answer["limits"]:
        assert sorted(each) == ["admits", "clients", "limit", "summary", "title", "waits"]
        assert each["summary"]["events"] == EVENTS
    assert answer["limits"][0]["summary"]["denied"] < answer["limits"][1]["summary"]["denied"]
    assert answer["log"]["lines"] == EVENTS
    found = answer["recommendation"]
    assert sorted(found) == [
        "chosen", "denied_clients", "far_clients", "left_out", "limits", "name", "not_found",
        "refused", "yaml",
    ]  # fmt: skip
    assert list(penstock.Limits.parse(found["yaml"])) == ["Pages"]
    alone = command.json_of(*arguments)
    assert sorted(alone) == ["first_ns", "last_ns", "limits", "log", "source"]


def test_overrides_and_field_options_apply(command: Command, limits: str, write: Write) -> None:
    overrides = write("own.yaml", "- Pages: {burst: 1, count: 1, period: 1h, ids: [ada]}\n")
    log = write("app.jsonl", json_lines("time,user,tokens\n" + "1795000000,ada,20\n" * 5))
    arguments = ["replay", log, "--limits", limits, "--name", "Pages"]
    assert denied(command, *arguments, "--overrides", overrides, "--id", "user") == [4]
    assert denied(command, *arguments, "--id", "user", "--cost", "tokens") == [2]
    (found,) = command.json_of(*arguments, "--id", "none")["limits"]
    assert [each["id"] for each in found["clients"]] == ["*"]


def test_bad_lines_are_counted_and_shown(command: Command, log: str, write: Write) -> None:
    worse = write("worse.log", "what is this\x1b[2J\n" + Path(log).read_text("utf-8"))
    assert command.run("replay", worse, "--limit", "30/minute") == 0
    assert facts(command)["read"].endswith("1 did not parse")
    assert command.err.startswith(f"left out: {worse}:1: ")
    assert "what is this\ufffd" in command.err
    assert "\x1b" not in command.out + command.err
    found = command.json_of("replay", worse, "--limit", "30/minute")["log"]
    assert (found["skipped"], found["examples"][0]["line"]) == (1, 1)


def test_log_with_too_many_bad_lines_is_refused(command: Command, write: Write) -> None:
    bad = write("bad.log", "nothing\nof this\nis a log\n")
    assert command.run("replay", bad, "--limit", "30/minute") == 1
    assert command.out == ""
    assert bad in command.err


def test_control_characters_in_ids_are_replaced(command: Command, write: Write) -> None:
    log = write("app.jsonl", '{"ts": 1795000000, "user": "\\u001b[2Jada"}\n' * 3)
    assert command.run("replay", log, "--limit", "1/hour", "--id", "user") == 0
    assert "\ufffd[2Jada" in command.out
    assert "\x1b" not in command.out


def test_report_pages_show_the_results(
    command: Command, limits: str, stricter: str, log: str, tmp_path: Path
) -> None:
    page = tmp_path / "out.html"
    arguments = ["replay", log, "--limits", limits, "--name", "Pages", "--report", str(page)]
    assert command.run(*arguments, "--recommend") == 0
    html = page.read_text("utf-8")
    assert "<h1>Pages: 30 per minute, 60 at once</h1>" in html
    assert f"{EVENTS:,} events" in html
    assert "Recommended for Pages: " in html
    assert command.run(*arguments, "--compare", stricter) == 0
    assert "Comparison" in page.read_text("utf-8")


WRONG_USES = [
    (["replay", "{log}"], "--limit"),
    (["replay", "{log}", "--limits", "{limits}", "--limit", "1/second"], "--limit"),
    (["replay", "{log}", "--limit", "1/fortnight"], "--limit: "),
    (["replay", "{log}", "--limits", "{limits}"], "--name to select a limit; found Pages"),
    (["replay", "{log}", "--limits", "absent.yaml"], "absent.yaml"),
    (["replay", "{log}", "--limit", "1/second", "--overrides", "x.yaml"], "--overrides"),
    (["replay", "{log}", "--limit", "1/second", "--report", "."], ". is a folder"),
    (["replay", "{log}", "--limit", "1/second", "--choose", "1"], "--choose needs --recommend"),
    (["replay", "{log}", "--recommend"], "--recommend begins with any limit"),
    (["replay", "{log}", "--limit", "5 in flight"], "--duration"),
    (["replay", "no*.log", "--limit", "1/second"], "no*.log"),
    (["replay", "{log}", "--limit", "1/second", "--tz", "Nowhere"], "tz must be"),
    (["replay", "absent.log", "--limit", "1/second"], "absent.log"),
    (["replay", "{log}", "--limit", "1/second", "--report", "absent/out.html"], "absent"),
    (["replay", "{log}", "--limit", "1/second", "--compare", "often"], "often"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USES)
def test_wrong_use_is_refused_first(
    command: Command, limits: str, log: str, arguments: list[str], message: str
) -> None:
    given = [argument.format(limits=limits, log=log) for argument in arguments]
    assert command.run(*given) == 2
    assert command.out == ""
    assert message in command.err
    assert "Traceback" not in command.err


def test_faults_of_limits_and_ids_exit_with_1(
    command: Command, limits: str, log: str, write: Write
) -> None:
    busted = write("busted.yaml", "Pages: {burst: 0, count: 1, period: 1m}\n")
    assert command.run("replay", log, "--limits", busted) == 1
    assert command.err.startswith(f"{busted}:1: Pages: ")
    assert command.run("replay", log, "--limits", limits, "--name", "Page") == 1
    assert "did you mean 'Pages'?" in command.err
    assert command.out == ""


def test_missing_library_is_named_before_reading_the_log(
    command: Command, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command.run("replay", log, "--limit", "1/second", "--report=out.html") == 2
    assert "pip install 'penstock[notebook]'" in command.err
    assert command.out == ""


def test_without_numpy_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None; sys.stderr = sys.stdout\n"
        "from penstock._cli.main import main\n"
        "print(main(['replay', 'a.log', '--limit', '1/second']))"
    )
    assert re.fullmatch(r".*pip install 'penstock\[numpy\]'`\n2\n", programs.run(program))


def test_standard_input_is_read_and_a_pipe_gets_no_color(log: str) -> None:
    done = subprocess.run(
        [*PROGRAM, "replay", "-", "--limit", "30/minute"],
        input=Path(log).read_bytes(),
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert f"{EVENTS:,} events of {EVENTS:,} lines".encode() in done.stdout
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_any_output_is_good_enough(log: str, json: list[str]) -> None:
    command = [*PROGRAM, "replay", log, "--limit", "30/minute", "--recommend", *json]
    ascii_only = ["env", "PYTHONIOENCODING=ascii", *command]
    done = subprocess.run(ascii_only, capture_output=True, check=True)
    assert b"per minute" in done.stdout
    assert done.stdout.isascii()
    # A program without an output has no object for it.
    shell = ["sh", "-c", '"$@" >&-', "sh", *command]
    assert subprocess.run(shell, capture_output=True, check=True).stderr == b""


def test_help_has_examples(command: Command) -> None:
    with pytest.raises(SystemExit):
        command.run("replay", "--help")
    assert "examples:\n  penstock replay " in command.out


def test_interrupt_prints_no_result(tmp_path: Path, log: str) -> None:
    page = tmp_path / "out.html"
    with subprocess.Popen(
        [*PROGRAM, "replay", "-", "--limit", "30/minute", "--report", str(page)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        # More than a pipe holds, so that the command is reading when the writes return. Then it
        # waits for more input.
        process.stdin.write(Path(log).read_bytes() * 3)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.communicate() == (b"", b"")
    assert not page.exists()


def test_a_recommendation_that_fails_does_not_discard_the_result(
    command: Command, write: Write
) -> None:
    log = write(
        "a.jsonl", json_lines("ts,ip,bytes\n" + f"2026-11-20T00:00:00Z,192.0.2.1,{2**61}\n" * 3)
    )
    options = ("--limit", f"60000000000/minute, burst {2**61}", "--cost", "bytes", "--recommend")
    assert command.run("replay", log, *options) == 1
    assert facts(command)["allowed"] == "1"
    # Three events at one instant show no period.
    assert "recommended" in command.err


def test_overrides_are_those_of_both_sides(short: str, command: Command, write: Write) -> None:
    limits, other = (
        write(name, "P: {burst: 2, count: 1, period: 1m}\n") for name in ("one.yaml", "two.yaml")
    )
    own = write("own.yaml", "- P: {burst: 99, count: 99, period: 1m, ids: [192.0.2.1]}\n")
    replayed = ("replay", short, "--limits", limits)
    assert denied(command, *replayed, "--overrides", own, "--compare", other) == [0, 0]
    assert denied(command, *replayed, "--compare", f"{limits}+{own}") == [2, 0]
    assert command.run(*replayed, "--compare", limits) == 2
    assert "is compared already" in command.err


def test_texts_and_files_are_compared_side_by_side(
    short: str, command: Command, write: Write
) -> None:
    limits = write("one.yaml", "P: {burst: 2, count: 1, period: 1m}\n")
    compared = ("--limit", "1/minute", "--compare", limits, "--compare", "3/minute")
    assert denied(command, "replay", short, *compared) == [3, 2, 1]
    assert command.run("replay", short, *compared) == 0
    (row,) = (line for line in command.out.splitlines() if line.startswith("limit "))
    assert re.split("  +", row) == [
        "limit",
        "1 per minute",
        "P: 1 per minute, 2 at once",
        "3 per minute",
    ]


def test_an_invalid_id_is_counted_and_does_not_end_the_replay(
    command: Command, write: Write
) -> None:
    limits = write("ids.yaml", "P: {burst: 2, count: 1, period: 1m, id: ipAddress}\n")
    rows = "1795000000,192.0.2.1\n" * 4 + "1795000009,localhost\n"
    log = write("a.jsonl", json_lines(f"ts,who\n{rows}"))
    assert command.run("replay", log, "--limits", limits, "--id", "who") == 0
    assert facts(command)["events"] == "4"
    assert "1 event left out" in command.err
    assert "localhost" in command.err


def test_the_field_of_the_client_is_shown(short: str, command: Command) -> None:
    assert command.run("replay", short, "--limit", "1/minute") == 0
    assert re.search(r"^client +ip$", command.out, re.MULTILINE)


def test_long_facts_are_whole_in_a_pipe(short: str, command: Command) -> None:
    text = "123456789 per 47 hours, burst 987654321"
    assert command.run("replay", short, "--limit", text) == 0
    assert "…" not in command.out


def test_the_examples_of_the_help_work(command: Command, write: Write) -> None:
    log = write("timed.log", '203.0.113.7 [18/Oct/2026:10:34:49 +0000] "GET / HTTP/1.1" 512\n')
    example = re.search(r"--format '([^']+)'", replay.EXAMPLES)
    assert example is not None
    assert command.run("replay", log, "--limit", "5/s", "--format", example[1]) == 0


def test_an_event_that_costs_more_than_the_limit_is_denied_and_counted(
    command: Command, write: Write
) -> None:
    rows = "".join(f"{1_792_319_689 + second},ada,{1 + second % 4}\n" for second in range(600))
    log = write("app.jsonl", json_lines(f"time,ip,cost\n{rows}"))
    options = ("--limit", "3/minute", "--cost", "cost", "--recommend")
    (found,) = command.json_of("replay", log, *options)["limits"]
    assert found["summary"]["denied"] > 150
    assert "150 events denied because they cost more than the limit ever admits" in command.err
    assert sum(found["waits"].values()) == found["summary"]["denied"] - 150


OUT_OF_ORDER = "time,ip,x\n" + "1795000600,192.0.2.1,1\n1795000000,192.0.2.1,1\n" * 2
SIMPLE = "time,ip,x\n1795000600,192.0.2.1,1\n"


@pytest.mark.parametrize(
    ("rows", "options", "named"),
    [
        (OUT_OF_ORDER, (), ("sort the log", "--max-bad")),
        (SIMPLE, ("--duration", "x"), ("--duration-unit",)),
        (SIMPLE, ("--limit", "5 in flight"), ("--duration",)),
        (SIMPLE, ("--ended",), ("--ended", "--duration")),
        (SIMPLE, ("--hops", "1", "--id", "x"), ("--hops", "--id")),
        ("time,who\n1795000600,ada\n", (), ("--id",)),
        ("at what,ip\nnoon,ada\n", (), ("--time",)),
        ("time,ip\n1795000600,-\n", (), ("--id",)),
        ("time,ip\n1795000600,192.0.2.1\n" + "1795000601,-\n" * 2, (), ("--id", "--where")),
        (SIMPLE, ("--limit", "5 in flight", "--duration", "x", "--duration-unit", "s",
                  "--recommend", "--period", "1m"), ("--period",)),
    ],
)  # fmt: skip
def test_errors_name_the_options_of_the_command(
    command: Command, write: Write, rows: str, options: tuple[str, ...], named: tuple[str, ...]
) -> None:
    log = write("a.jsonl", json_lines(rows))
    limit = () if "--limit" in options else ("--limit", "5/minute")
    assert command.run("replay", log, *limit, *options) != 0
    assert not re.search(r"\b[a-z_]+=(?=['.,; ]|$)", command.err)
    for option in named:
        assert option in command.err


def test_a_log_of_another_format_is_explained_by_the_options_of_the_command(
    command: Command, write: Write
) -> None:
    log = write("a.log", "noon GET /?format=1 id= and more\n" * 9)
    assert command.run("replay", log, "--limit", "5/minute") == 1
    assert "pass --format '$remote_addr" in command.err
    # A line is shown as it is.
    assert "/?format=1 id= and more" in command.err
    log = write("b.jsonl", '{"time": "2026-11-20T10:00:00Z", "ip": "192.0.2.1, 10.0.0.1"}\n')
    assert command.run("replay", log, "--limit", "5/minute") != 0
    assert "pass --trusted-proxies or --hops, as in production, and --id 'address'" in command.err
