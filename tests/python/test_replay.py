"""`penstock simulate`, `penstock replay` and `penstock store`, as they are typed."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

import penstock
from penstock.cli import main as cli
from penstock.cli import replay
from penstock.simulate import Trace, simulate, traffic
from penstock.simulate.log import read_log, write_access_log

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = """
Pages: {burst: 60, count: 30, period: 1m}
Searches: {burst: 5, count: 5, period: 1m}
"""
STRICTER = """
Pages: {burst: 20, count: 10, period: 1m}
"""
PROGRAM = [sys.executable, "-m", "penstock"]
EVENTS = 5_000
SECONDS = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An access log of one hour."""
    return write_access_log(
        tmp_path_factory.mktemp("log") / "access.log", events=EVENTS, seed=1, hours=1.0
    )


@pytest.fixture
def limits(tmp_path: Path) -> str:
    file = tmp_path / "limits.yaml"
    file.write_text(LIMITS, encoding="utf-8")
    return str(file)


@pytest.fixture
def stricter(tmp_path: Path) -> str:
    file = tmp_path / "stricter.yaml"
    file.write_text(STRICTER, encoding="utf-8")
    return str(file)


class Told:
    """What a command printed, and its exit status."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def by(self, *arguments: str) -> int:
        status = cli.main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return status

    @property
    def lines(self) -> dict[str, str]:
        """The lines of facts: what each begins with, and the rest."""
        pairs = (line.split("  ", 1) for line in self.out.splitlines() if "  " in line)
        return {head.strip(): rest.strip() for head, rest in pairs}


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(capsys)


def test_simulate_tells_what_the_same_simulation_comes_to(told: Told, limits: str) -> None:
    arguments = ["--name", "Pages", "--traffic", "poisson", "--rate", "2", "--clients", "2"]
    assert told.by("simulate", limits, *arguments, "--duration", "10m", "--seed", "3") == 0
    trace = traffic.poisson(2, "10m", clients=2, seed=3)
    summary = simulate(penstock.Limits.parse(LIMITS), trace, name="Pages").summary()
    assert summary.denied > 0
    assert told.lines["limit"] == "Pages: 30 per minute, 60 at once"
    assert told.lines["allowed"] == f"{summary.allowed:,}"
    assert told.lines["denied"].startswith(f"{summary.denied:,} (")
    assert told.err == ""


@pytest.mark.parametrize("kind", ["poisson", "bursts", "diurnal", "attack"])
def test_each_kind_of_traffic_is_the_same_for_the_same_seed(told: Told, kind: str) -> None:
    arguments = ["simulate", "--limit", "2/minute", "--traffic", kind, "--duration", "20m"]
    assert told.by(*arguments, "--json") == 0
    first = told.out
    assert told.by(*arguments, "--json") == 0
    assert told.out == first
    assert told.by(*arguments, "--json", "--seed", "1") == 0
    assert told.out != first
    assert json.loads(first)["limits"][0]["summary"]["denied"] > 0


def test_replay_part_by_part_decides_as_the_whole_trace(
    told: Told, limits: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay, "read_log", lambda path, **options: read_log(path, **options, chunk_events=700)
    )
    arguments = ["--limits", limits, "--name", "Searches"]
    assert told.by("replay", str(log), *arguments, "--json") == 0
    whole = simulate(penstock.Limits.parse(LIMITS), Trace.from_log(log), name="Searches")
    (found,) = json.loads(told.out)["limits"]
    assert found["summary"] == whole.summary().to_dict()
    assert found["summary"]["denied"] > 0
    clients = whole.by_client().rows()
    assert found["clients"] == [next(clients) for _ in found["clients"]]
    assert sum(found["waits"].values()) == found["summary"]["denied"]


def test_answer_for_a_program_has_the_same_names_always(
    told: Told, limits: str, stricter: str, log: Path
) -> None:
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--json"]
    assert told.by(*arguments, "--compare", stricter, "--recommend") == 0
    answer = json.loads(told.out)
    assert sorted(answer) == ["first_ns", "last_ns", "limits", "log", "recommendation", "source"]
    assert [each["title"] for each in answer["limits"]] == [limits, stricter]
    for each in answer["limits"]:
        assert sorted(each) == ["admits", "clients", "limit", "summary", "title", "waits"]
        assert each["summary"]["events"] == EVENTS
    assert answer["limits"][0]["summary"]["denied"] < answer["limits"][1]["summary"]["denied"]
    assert answer["log"]["lines"] == EVENTS
    found = answer["recommendation"]
    assert sorted(found) == ["burst", "count", "denied_share", "is_smallest", "period_ns", "yaml"]
    assert list(penstock.Limits.parse(found["yaml"])) == ["Pages"]
    assert found["denied_share"] <= 0.001
    assert told.by(*arguments) == 0
    assert sorted(json.loads(told.out)) == ["first_ns", "last_ns", "limits", "log", "source"]


def test_several_limits_stand_side_by_side(
    told: Told, limits: str, stricter: str, log: Path
) -> None:
    arguments = ["--limits", limits, "--name", "Pages", "--compare", stricter]
    assert told.by("replay", str(log), *arguments) == 0
    (row,) = (line for line in told.out.splitlines() if line.startswith("limit "))
    assert "Pages: 30 per minute, 60 at once" in row
    assert "Pages: 10 per minute, 20 at once" in row


def test_overrides_and_fields_are_those_of_the_options(
    told: Told, limits: str, tmp_path: Path
) -> None:
    overrides = tmp_path / "overrides.yaml"
    overrides.write_text("- Pages: {burst: 1, count: 1, period: 1h, ids: [ada]}\n", "utf-8")
    log = tmp_path / "app.jsonl"
    rows = [{"ts": 1_795_000_000 + second, "user": "ada", "cost": 1} for second in range(5)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--json"]
    assert told.by(*arguments, "--overrides", str(overrides), "--id", "user") == 0
    assert json.loads(told.out)["limits"][0]["summary"]["denied"] == 4
    assert told.by(*arguments, "--id", "user", "--cost", "20") == 0
    assert json.loads(told.out)["limits"][0]["summary"]["denied"] == 2
    assert told.by(*arguments, "--id", "none") == 0
    assert [each["id"] for each in json.loads(told.out)["limits"][0]["clients"]] == ["*"]


def test_bad_lines_are_counted_and_shown(told: Told, log: Path, tmp_path: Path) -> None:
    worse = tmp_path / "worse.log"
    worse.write_text("what is this\x1b[2J\n" + log.read_text("utf-8"), "utf-8")
    assert told.by("replay", str(worse), "--limit", "30/minute") == 0
    assert told.lines["read"].endswith("1 did not parse")
    assert told.err.startswith(f"left out: {worse}:1: ")
    assert "what is this\ufffd" in told.err
    assert "\x1b" not in told.out + told.err
    assert told.by("replay", str(worse), "--limit", "30/minute", "--json") == 0
    found = json.loads(told.out)["log"]
    assert found["skipped"] == 1
    assert found["examples"][0]["line"] == 1


def test_log_with_too_many_bad_lines_is_refused(told: Told, tmp_path: Path) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text("nothing\nof this\nis a log\n", "utf-8")
    assert told.by("replay", str(bad), "--limit", "30/minute") == 1
    assert told.out == ""
    assert str(bad) in told.err


def test_id_that_moves_the_cursor_is_shown_and_does_nothing(told: Told, tmp_path: Path) -> None:
    log = tmp_path / "app.jsonl"
    rows = [{"ts": 1_795_000_000 + second, "user": "\x1b[2Jada"} for second in range(3)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert told.by("replay", str(log), "--limit", "1/hour", "--id", "user") == 0
    assert "\ufffd[2Jada" in told.out
    assert "\x1b" not in told.out


def test_pages_say_what_was_found(
    told: Told, limits: str, stricter: str, log: Path, tmp_path: Path
) -> None:
    page = tmp_path / "out.html"
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--recommend"]
    assert told.by(*arguments, "--report", str(page)) == 0
    html = page.read_text("utf-8")
    assert "<h1>Pages: 30 per minute, 60 at once</h1>" in html
    assert f"{EVENTS:,} events" in html
    assert "Recommended limit: " in html
    assert told.by(*arguments, "--compare", stricter, "--report", str(page)) == 0
    assert "Comparison" in page.read_text("utf-8")


WRONG_USES = [
    (["simulate"], "--limit"),
    (["simulate", "{limits}", "--limit", "1/second"], "--limit"),
    (["simulate", "--limit", "1/fortnight"], "--limit: "),
    (["simulate", "{limits}"], "--name to select a limit; found Pages, Searches"),
    (["simulate", "--limit", "1/second", "--overrides", "x.yaml"], "--overrides"),
    (["simulate", "--limit", "1/second", "--clients", "0"], "clients"),
    (["simulate", "--limit", "1/second", "--duration", "soon"], "duration"),
    (["simulate", "--limit", "1/second", "--rate", "-1"], "rate"),
    (["simulate", "--limit", "1/second", "--seed", "-1"], "seed must be at least 0, found -1"),
    (["simulate", "--limit", "1/second", "--clients", "99999999999999"], "allocate"),
    (["simulate", "--limit", "1/second", "--report", "."], ". is a folder"),
    (["replay", "no*.log", "--limit", "1/second"], "no*.log"),
    (["replay", "{log}", "--limit", "1/second", "--tz", "Nowhere"], "tz must be"),
    (["replay", "absent.log", "--limit", "1/second"], "absent.log"),
    (["replay", "{log}", "--limit", "1/second", "--report", "absent/out.html"], "absent"),
    (["store", "inspect", "memory://"], "memory://"),
    (["store", "clear", "redis://localhost"], "redis://localhost"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USES)
def test_wrong_use_is_told_before_anything_is_done(
    told: Told, limits: str, log: Path, arguments: list[str], message: str
) -> None:
    given = [argument.format(limits=limits, log=log) for argument in arguments]
    assert told.by(*given) == 2
    assert told.out == ""
    assert message in told.err
    assert "Traceback" not in told.err


def test_faults_of_limits_and_of_ids_have_the_status_of_faults(
    told: Told, limits: str, log: Path, tmp_path: Path
) -> None:
    busted = tmp_path / "busted.yaml"
    busted.write_text("Pages: {burst: 0, count: 1, period: 1m}\n", "utf-8")
    assert told.by("replay", str(log), "--limits", str(busted)) == 1
    assert told.err.startswith(f"{busted}:1: Pages: ")
    assert told.by("simulate", limits, "--name", "Page") == 1
    assert "did you mean 'Pages'?" in told.err
    assert told.by("simulate", "absent.yaml") == 1
    assert "absent.yaml" in told.err
    numbers = tmp_path / "numbers.yaml"
    numbers.write_text("Orders: {burst: 1, count: 1, period: 1m, id: ipAddress}\n", "utf-8")
    assert told.by("simulate", str(numbers)) == 1
    assert "client-" in told.err
    assert told.out == ""


@pytest.mark.parametrize(("library", "option"), [("matplotlib", "--report=out.html")])
def test_library_that_is_not_there_is_named_before_the_log_is_read(
    told: Told, log: Path, monkeypatch: pytest.MonkeyPatch, library: str, option: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert told.by("replay", str(log), "--limit", "1/second", option) == 2
    assert 'pip install "penstock[notebook]"' in told.err
    assert told.out == ""


def test_without_numpy_it_is_told_what_to_install() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None; from penstock.cli.main import main; "
        "sys.exit(main(['simulate', '--limit', '1/second']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install "penstock[numpy]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_standard_input_is_read(log: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "replay", "-", "--limit", "30/minute"],
        input=log.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"{EVENTS:,} events of {EVENTS:,} lines".encode() in done.stdout


def test_in_a_pipe_there_is_no_bar_and_no_color(log: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "replay", str(log), "--limit", "30/minute"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout


def test_on_a_terminal_a_bar_is_shown_and_cleared(log: Path) -> None:
    with io.StringIO() as seen:
        child = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "replay", str(log), "--limit", "30/minute"],
            encoding="utf-8",
            dimensions=(40, 100),
            timeout=SECONDS,
        )
        child.logfile_read = seen
        child.expect(pexpect.EOF)
        child.close()
        text = seen.getvalue()
    assert child.exitstatus == 0
    assert "reading: " in text
    assert "\x1b" in text
    assert f"{EVENTS:,} events of {EVENTS:,} lines" in text


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (100, ["client", "events", "allowed", "denied", "denied share", "longest wait"]),
        (60, ["client", "events", "denied", "denied share"]),
        (40, ["client", "events", "denied"]),
    ],
)
def test_narrow_terminal_breaks_no_ids(tmp_path: Path, columns: int, heads: list[str]) -> None:
    file = tmp_path / "a.csv"
    file.write_text("time,ip\n" + "0,203.0.113.100\n" * 9, encoding="utf-8")
    child = pexpect.spawn(
        # readline, where pytest has it, hands down a width of its own.
        "env",
        ["-u", "COLUMNS", "-u", "LINES", *PROGRAM, "replay", str(file), "--limit", "3/minute"],
        encoding="utf-8",
        dimensions=(40, columns),
        timeout=60,
    )
    child.expect(pexpect.EOF)
    child.close()
    told = re.sub(r"\x1b\[[\d;]*m", "", str(child.before))
    lines = [re.split(r"  +", line.strip()) for line in told.splitlines()]
    assert heads in lines, told
    assert any(line[0] == "203.0.113.100" for line in lines)


def test_help_of_what_has_many_options_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("replay", "simulate"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert f"examples:\n  penstock {command} " in capsys.readouterr().out


def test_reader_that_has_seen_enough_is_no_fault(log: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "replay", str(log), "--limit", "30/minute"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_interrupted_it_claims_nothing(tmp_path: Path, log: Path) -> None:
    page = tmp_path / "out.html"
    arguments = ["replay", "-", "--limit", "30/minute", "--report", str(page)]
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # More than a pipe holds, so that it is at work on it when this is written. It waits for
        # more, which never comes.
        for _ in range(3):
            process.stdin.write(log.read_bytes())
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    assert not page.exists()


def test_unit_of_epochs_and_the_window_are_those_of_the_options(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "app.csv"
    file.write_text("time,ip\n100000000000,ada\n99999900000,ada\n", encoding="utf-8")
    replay = ("replay", str(file), "--limit", "1/minute")
    assert told.by(*replay, "--time-unit", "ms") == 1
    assert "window=" in told.err
    assert told.by(*replay, "--time-unit", "ms", "--window", "100") == 0
    assert "1973-03-03 09:45:00 UTC" in told.out


def test_cost_that_can_never_be_allowed_says_whose_it_is(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "app.csv"
    file.write_text("time,ip,cost\n0,ada,1\n1792319689,grace,3\n", encoding="utf-8")
    status = told.by(
        "replay", str(file), "--limit", "2/minute", "--cost", "cost", "--time-unit", "s"
    )
    assert status == 1
    assert (
        "found 3; the first event of that cost is from 'grace' at 2026-10-18 10:34:49" in told.err
    )
