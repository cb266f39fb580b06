"""The commands `penstock simulate`, `penstock replay` and `penstock store`."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pexpect
import pytest

import penstock
from penstock.cli import replay
from penstock.simulate import Trace, recommend, simulate, traffic
from penstock.simulate.log import read_log, write_access_log

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command, Write

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
def limits(write: Write) -> str:
    return write("limits.yaml", LIMITS)


@pytest.fixture
def stricter(write: Write) -> str:
    return write("stricter.yaml", STRICTER)


def facts(command: Command) -> dict[str, str]:
    """Return the lines of facts that a command printed: what each begins with, and the rest."""
    pairs = (line.split("  ", 1) for line in command.out.splitlines() if "  " in line)
    return {head.strip(): rest.strip() for head, rest in pairs}


def test_simulate_prints_the_result_of_the_same_simulation(command: Command, limits: str) -> None:
    arguments = ["--name", "Pages", "--traffic", "poisson", "--rate", "2", "--clients", "2"]
    assert (
        command.run("simulate", "--limits", limits, *arguments, "--duration", "10m", "--seed", "3")
        == 0
    )
    trace = traffic.poisson(2, "10m", clients=2, seed=3)
    summary = simulate(penstock.Limits.parse(LIMITS), trace, name="Pages").summary()
    assert summary.denied > 0
    assert facts(command)["limit"] == "Pages: 30 per minute, 60 at once"
    assert facts(command)["allowed"] == f"{summary.allowed:,}"
    assert facts(command)["denied"].startswith(f"{summary.denied:,} (")
    assert command.err == ""


@pytest.mark.parametrize("kind", ["poisson", "bursts", "diurnal", "attack"])
def test_each_kind_of_traffic_is_the_same_for_the_same_seed(command: Command, kind: str) -> None:
    arguments = ["simulate", "--limit", "2/minute", "--traffic", kind, "--duration", "20m"]
    assert command.run(*arguments, "--json") == 0
    first = command.out
    assert command.run(*arguments, "--json") == 0
    assert command.out == first
    assert command.run(*arguments, "--json", "--seed", "1") == 0
    assert command.out != first
    assert json.loads(first)["limits"][0]["summary"]["denied"] > 0


def test_replay_in_parts_equals_the_whole_trace(
    command: Command, limits: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replay, "read_log", lambda path, **options: read_log(path, **options, chunk_events=700)
    )
    arguments = ["--limits", limits, "--name", "Searches"]
    assert command.run("replay", str(log), *arguments, "--json") == 0
    whole = simulate(penstock.Limits.parse(LIMITS), Trace.from_log(log), name="Searches")
    (found,) = command.json()["limits"]
    assert found["summary"] == whole.summary().to_dict()
    assert found["summary"]["denied"] > 0
    clients = whole.by_client().rows()
    assert found["clients"] == [next(clients) for _ in found["clients"]]
    assert sum(found["waits"].values()) == found["summary"]["denied"]


def test_json_has_stable_keys(command: Command, limits: str, stricter: str, log: Path) -> None:
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--json"]
    assert command.run(*arguments, "--compare", stricter, "--recommend") == 0
    answer = command.json()
    keys = ["changes", "first_ns", "last_ns", "limits", "log", "recommendations", "source"]
    assert sorted(answer) == keys
    assert [each["title"] for each in answer["limits"]] == [limits, stricter]
    for each in answer["limits"]:
        assert sorted(each) == ["admits", "clients", "limit", "summary", "title", "waits"]
        assert each["summary"]["events"] == EVENTS
    assert answer["limits"][0]["summary"]["denied"] < answer["limits"][1]["summary"]["denied"]
    assert answer["log"]["lines"] == EVENTS
    found = answer["recommendations"]["Pages"]
    assert sorted(found) == [
        "burst", "count", "denied_clients", "denied_share", "is_smallest", "not_found", "period_ns",
        "smallest", "unusual_clients", "yaml",
    ]  # fmt: skip
    assert list(penstock.Limits.parse(found["yaml"])) == ["Pages"]
    assert found["denied_share"] <= 0.001
    assert command.run(*arguments) == 0
    assert sorted(command.json()) == ["first_ns", "last_ns", "limits", "log", "source"]


def test_limits_are_compared_side_by_side(
    command: Command, limits: str, stricter: str, log: Path
) -> None:
    arguments = ["--limits", limits, "--name", "Pages", "--compare", stricter]
    assert command.run("replay", str(log), *arguments) == 0
    (row,) = (line for line in command.out.splitlines() if line.startswith("limit "))
    assert "Pages: 30 per minute, 60 at once" in row
    assert "Pages: 10 per minute, 20 at once" in row


def test_overrides_and_field_options_apply(command: Command, limits: str, tmp_path: Path) -> None:
    overrides = tmp_path / "overrides.yaml"
    overrides.write_text("- Pages: {burst: 1, count: 1, period: 1h, ids: [ada]}\n", "utf-8")
    log = tmp_path / "app.jsonl"
    rows = [{"ts": 1_795_000_000 + second, "user": "ada", "cost": 1} for second in range(5)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--json"]
    assert command.run(*arguments, "--overrides", str(overrides), "--id", "user") == 0
    assert command.json()["limits"][0]["summary"]["denied"] == 4
    assert command.run(*arguments, "--id", "user", "--cost", "20") == 0
    assert command.json()["limits"][0]["summary"]["denied"] == 2
    assert command.run(*arguments, "--id", "none") == 0
    assert [each["id"] for each in command.json()["limits"][0]["clients"]] == ["*"]


def test_bad_lines_are_counted_and_shown(command: Command, log: Path, tmp_path: Path) -> None:
    worse = tmp_path / "worse.log"
    worse.write_text("what is this\x1b[2J\n" + log.read_text("utf-8"), "utf-8")
    assert command.run("replay", str(worse), "--limit", "30/minute") == 0
    assert facts(command)["read"].endswith("1 did not parse")
    assert command.err.startswith(f"left out: {worse}:1: ")
    assert "what is this\ufffd" in command.err
    assert "\x1b" not in command.out + command.err
    assert command.run("replay", str(worse), "--limit", "30/minute", "--json") == 0
    found = command.json()["log"]
    assert found["skipped"] == 1
    assert found["examples"][0]["line"] == 1


def test_log_with_too_many_bad_lines_is_refused(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text("nothing\nof this\nis a log\n", "utf-8")
    assert command.run("replay", str(bad), "--limit", "30/minute") == 1
    assert command.out == ""
    assert str(bad) in command.err


def test_control_characters_in_ids_are_replaced(command: Command, tmp_path: Path) -> None:
    log = tmp_path / "app.jsonl"
    rows = [{"ts": 1_795_000_000 + second, "user": "\x1b[2Jada"} for second in range(3)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert command.run("replay", str(log), "--limit", "1/hour", "--id", "user") == 0
    assert "\ufffd[2Jada" in command.out
    assert "\x1b" not in command.out


def test_report_pages_show_the_results(
    command: Command, limits: str, stricter: str, log: Path, tmp_path: Path
) -> None:
    page = tmp_path / "out.html"
    arguments = ["replay", str(log), "--limits", limits, "--name", "Pages", "--recommend"]
    assert command.run(*arguments, "--report", str(page)) == 0
    html = page.read_text("utf-8")
    assert "<h1>Pages: 30 per minute, 60 at once</h1>" in html
    assert f"{EVENTS:,} events" in html
    assert "Recommended for Pages: " in html
    assert command.run(*arguments, "--compare", stricter, "--report", str(page)) == 0
    assert "Comparison" in page.read_text("utf-8")


WRONG_USES = [
    (["simulate"], "--limit"),
    (["simulate", "--limits", "{limits}", "--limit", "1/second"], "--limit"),
    (["simulate", "--limit", "1/fortnight"], "--limit: "),
    (["simulate", "--limits", "{limits}"], "--name to select a limit; found Pages, Searches"),
    (["simulate", "--limit", "1/second", "--overrides", "x.yaml"], "--overrides"),
    (["simulate", "--limit", "1/second", "--clients", "0"], "clients"),
    (["simulate", "--limit", "1/second", "--duration", "soon"], "duration"),
    (["simulate", "--limit", "1/second", "--rate", "-1"], "rate"),
    (["simulate", "--limit", "1/second", "--seed", "-1"], "seed must be at least 0, found -1"),
    (["simulate", "--limit", "1/second", "--clients", "99999999999999"], "allocate"),
    (["simulate", "--limit", "1/second", "--report", "."], ". is a folder"),
    (["simulate", "--limit", "1/second", "--size", "3"], "--size is for --traffic bursts"),
    (["simulate", "--limit", "1/second", "--traffic", "bursts", "--rate", "3"], "--rate is for"),
    (["simulate", "--limit", "5 in flight"], "durations"),
    (["replay", "{log}", "--limit", "5 in flight"], "--duration"),
    (["replay", "no*.log", "--limit", "1/second"], "no*.log"),
    (["replay", "{log}", "--limit", "1/second", "--tz", "Nowhere"], "tz must be"),
    (["replay", "absent.log", "--limit", "1/second"], "absent.log"),
    (["replay", "{log}", "--limit", "1/second", "--report", "absent/out.html"], "absent"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USES)
def test_wrong_use_is_refused_first(
    command: Command, limits: str, log: Path, arguments: list[str], message: str
) -> None:
    given = [argument.format(limits=limits, log=log) for argument in arguments]
    assert command.run(*given) == 2
    assert command.out == ""
    assert message in command.err
    assert "Traceback" not in command.err


def test_faults_of_limits_and_ids_exit_with_1(
    command: Command, limits: str, log: Path, tmp_path: Path
) -> None:
    busted = tmp_path / "busted.yaml"
    busted.write_text("Pages: {burst: 0, count: 1, period: 1m}\n", "utf-8")
    assert command.run("replay", str(log), "--limits", str(busted)) == 1
    assert command.err.startswith(f"{busted}:1: Pages: ")
    assert command.run("simulate", "--limits", limits, "--name", "Page") == 1
    assert "did you mean 'Pages'?" in command.err
    assert command.run("simulate", "--limits", "absent.yaml") == 2
    assert "absent.yaml" in command.err
    numbers = tmp_path / "numbers.yaml"
    numbers.write_text("Orders: {burst: 1, count: 1, period: 1m, id: ipAddress}\n", "utf-8")
    assert command.run("simulate", "--limits", str(numbers)) == 1
    assert "client-" in command.err
    assert command.out == ""


@pytest.mark.parametrize(("library", "option"), [("matplotlib", "--report=out.html")])
def test_missing_library_is_named_before_reading_the_log(
    command: Command, log: Path, monkeypatch: pytest.MonkeyPatch, library: str, option: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert command.run("replay", str(log), "--limit", "1/second", option) == 2
    assert 'pip install "penstock[notebook]"' in command.err
    assert command.out == ""


def test_without_numpy_the_error_names_the_extra() -> None:
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


def test_standard_input_is_read_and_a_pipe_gets_no_progress_bar_and_no_color(log: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "replay", "-", "--limit", "30/minute"],
        input=log.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"{EVENTS:,} events of {EVENTS:,} lines".encode() in done.stdout
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout


def test_terminal_gets_a_progress_bar(log: Path) -> None:
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
def test_narrow_terminal_keeps_ids_whole(tmp_path: Path, columns: int, heads: list[str]) -> None:
    file = tmp_path / "a.csv"
    file.write_text("time,ip\n" + "0,203.0.113.100\n" * 9, encoding="utf-8")
    child = pexpect.spawn(
        # readline in the pytest process may set COLUMNS and LINES.
        "env",
        ["-u", "COLUMNS", "-u", "LINES", *PROGRAM, "replay", str(file), "--limit", "3/minute"],
        encoding="utf-8",
        dimensions=(40, columns),
        timeout=60,
    )
    child.expect(pexpect.EOF)
    child.close()
    text = re.sub(r"\x1b\[[\d;]*m", "", str(child.before))
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    assert heads in lines, text
    assert any(line[0] == "203.0.113.100" for line in lines)


def test_help_has_examples(command: Command) -> None:
    for name in ("replay", "simulate"):
        with pytest.raises(SystemExit):
            command.run(name, "--help")
        assert f"examples:\n  penstock {name} " in command.out


def test_interrupt_prints_no_result(tmp_path: Path, log: Path) -> None:
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
        # More than a pipe holds, so that the command is reading when the writes return. Then it
        # waits for more input.
        for _ in range(3):
            process.stdin.write(log.read_bytes())
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    assert not page.exists()


def test_time_unit_and_window_options_apply(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "app.csv"
    file.write_text("time,ip\n100000000000,ada\n99999900000,ada\n", encoding="utf-8")
    replay = ("replay", str(file), "--limit", "1/minute")
    assert command.run(*replay, "--time-unit", "ms") == 1
    assert "window=" in command.err
    assert command.run(*replay, "--time-unit", "ms", "--window", "100") == 0
    assert "1973-03-03 09:45:00 UTC" in command.out


def test_impossible_cost_names_its_client(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "app.csv"
    file.write_text("time,ip,cost\n0,ada,1\n1792319689,grace,3\n", encoding="utf-8")
    status = command.run(
        "replay", str(file), "--limit", "2/minute", "--cost", "cost", "--time-unit", "s"
    )
    assert status == 1
    assert (
        "found 3; the first event of that cost is from 'grace' at 2026-10-18 10:34:49"
        in command.err
    )


def test_a_recommendation_that_fails_does_not_discard_the_result(
    tmp_path: Path, command: Command
) -> None:
    log = tmp_path / "a.jsonl"
    lines = [{"ts": f"2026-11-20T00:00:0{second}Z", "ip": "192.0.2.1"} for second in range(3)]
    big = [{**line, "bytes": 2**61} for line in lines]
    log.write_text("\n".join(map(json.dumps, big)), encoding="utf-8")
    status = command.run(
        "replay",
        str(log),
        "--limit",
        f"60000000000/minute, burst {2**61}",
        "--cost",
        "bytes",
        "--recommend",
    )
    assert status == 1
    assert facts(command)["allowed"] == "1"
    assert "recommended" in command.err


ONE_LIMIT = "P: {burst: 2, count: 1, period: 1m}\n"
OVERRIDES = "- P: {burst: 99, count: 99, period: 1m, ids: [192.0.2.1]}\n"


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A folder with a log of one client, a limits file and overrides."""
    (tmp_path / "a.csv").write_text(
        "ts,ip\n" + "".join(f"2026-11-20T00:00:0{second},192.0.2.1\n" for second in range(4)),
        encoding="utf-8",
    )
    (tmp_path / "limits.yaml").write_text(ONE_LIMIT, encoding="utf-8")
    (tmp_path / "overrides.yaml").write_text(OVERRIDES, encoding="utf-8")
    return tmp_path


def test_overrides_are_those_of_both_sides(short: Path, command: Command) -> None:
    log, limits, overrides = (
        str(short / name) for name in ("a.csv", "limits.yaml", "overrides.yaml")
    )
    first = ("replay", log, "--limits", limits, "--json")
    assert command.run(*first, "--overrides", overrides, "--compare", limits) == 0
    found = command.json()["limits"]
    assert [each["summary"]["denied"] for each in found] == [0, 0]
    assert len({each["title"] for each in found}) == 2
    assert command.run(*first, "--compare", f"{limits}+{overrides}") == 0
    found = command.json()["limits"]
    assert [each["summary"]["denied"] for each in found] == [2, 0]


def test_texts_and_files_are_compared(short: Path, command: Command) -> None:
    log, limits = str(short / "a.csv"), str(short / "limits.yaml")
    compared = ("--compare", limits, "--compare", "3/minute", "--json")
    assert command.run("replay", log, "--limit", "1/minute", *compared) == 0
    found = command.json()["limits"]
    assert [each["summary"]["denied"] for each in found] == [3, 2, 1]
    assert command.run("replay", log, "--limit", "1/minute", "--compare", "often") == 2


ROUTES = """
- {path: /login, method: POST, limits: {Login: , Client: {cost: 2}}}
- {path: /static/*, limits: []}
- limits: {Client: , Everyone: {id: none}}
"""
APP = "Client: 6/minute\nLogin: 3/minute\nEveryone: {burst: 2, count: 30, period: 1m}\n"


@pytest.fixture
def app(tmp_path: Path) -> tuple[str, str]:
    """A limits file, and a file of routes."""
    limits, routes = tmp_path / "app.yaml", tmp_path / "routes.yaml"
    limits.write_text(APP, encoding="utf-8")
    routes.write_text(ROUTES, encoding="utf-8")
    return str(limits), str(routes)


def test_routes_are_decided_as_in_a_simulation(
    log: Path, app: tuple[str, str], command: Command
) -> None:
    limits, routes = app
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes)
    assert command.run(*replayed, "--json") == 0
    found = command.json()["limits"][0]
    trace = Trace.from_log(log, id=("address", "method", "path"))
    whole = simulate(penstock.Limits.load(limits), trace, routes=routes)
    assert found["routes"] == list(whole.by_route().rows())
    assert found["limits"] == list(whole.by_limit().rows())
    assert found["summary"] == whole.summary().to_dict()
    assert all(each["denied"] for each in found["limits"])
    assert sum(found["summary"][name] for name in ("allowed", "denied")) == EVENTS
    assert command.run(*replayed) == 0
    shown = {"client  address", "routes  path, method", "Limits", "Routes"}
    assert shown <= set(command.out.splitlines())


def test_other_limits_are_compared_under_the_same_routes(
    log: Path, app: tuple[str, str], command: Command, tmp_path: Path
) -> None:
    limits, routes = app
    wider = tmp_path / "wider.yaml"
    wider.write_text(APP.replace("3/minute", "99/minute"), encoding="utf-8")
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes, "--json")
    assert command.run(*replayed, "--compare", str(wider)) == 0
    first, second = command.json()["limits"]
    by_login = [each["limits"][0] for each in (first, second)]
    assert [each["limit"] for each in by_login] == ["Login", "Login"]
    assert by_login[0]["denied"] > by_login[1]["denied"] == 0


def test_routes_are_compared_with_one_limit_for_every_request(
    log: Path, app: tuple[str, str], command: Command
) -> None:
    limits, routes = app
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes, "--json")
    assert command.run(*replayed, "--compare", "6/minute") == 0
    plain = command.json()["limits"][1]
    whole = simulate("6/minute", Trace.from_log(log))
    assert plain["summary"] == whole.summary().to_dict()
    assert plain["summary"]["denied"] > 0
    assert plain["limit"] == "Limit: 6 per minute"


def test_each_limit_of_the_routes_is_recommended_for_the_events_that_spend_it(
    log: Path, app: tuple[str, str], command: Command, tmp_path: Path
) -> None:
    limits, routes = app
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes)
    page = tmp_path / "out.html"
    options = ("--recommend", "--fit-all", "--max-denied", "0")
    command.run(*replayed, *options, "--json", "--report", str(page))
    found = command.json()["recommendations"]
    assert list(found) == ["Login", "Client", "Everyone"]
    assert page.read_text(encoding="utf-8").count("Recommended for") == len(found)
    trace = Trace.from_log(log, id=("address", "method", "path"))
    address, method, path = np.array([id.split("\t") for id in np.asarray(trace.ids)]).T
    one = np.ones(len(trace), np.int64)
    is_static = np.char.startswith(path, "/static/")
    is_login = (path == "/login") & (method == "POST")
    spent = {
        "Login": (is_login, address, one),
        "Client": (~is_static, address, np.where(is_login, 2, 1)),
        "Everyone": (~is_static & ~is_login, np.full(len(trace), "*"), one),
    }
    for name, (mask, ids, costs) in spent.items():
        expected = recommend(
            Trace(trace.times[mask], ids[mask], costs[mask]), 0, fit_all=True, round_up=True
        )
        assert (found[name]["burst"], found[name]["count"]) == (expected.burst, expected.count)


def test_a_limit_of_the_routes_that_a_file_lacks_is_named_with_the_file(
    log: Path, app: tuple[str, str], command: Command, tmp_path: Path
) -> None:
    limits, routes = app
    other = tmp_path / "other.yaml"
    other.write_text("Client: 6/minute\n", encoding="utf-8")
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes)
    assert command.run(*replayed, "--compare", str(other)) == 1
    assert str(other) in command.err


@pytest.mark.parametrize("wrong", [("--name", "Login"), ("--id", "none"), ("--id", "address,user")])
def test_options_without_effect_on_routes_are_refused(
    log: Path, app: tuple[str, str], command: Command, wrong: tuple[str, ...]
) -> None:
    limits, routes = app
    assert command.run("replay", str(log), "--limits", limits, "--routes", routes, *wrong) == 2


def test_workers_and_warm_up_of_a_replay(short: Path, command: Command) -> None:
    log = short / "busy.csv"
    rows = [f"2026-11-20T00:00:{second:02},192.0.2.1" for second in range(60)]
    log.write_text("\n".join(["time,ip", *rows, ""]), encoding="utf-8")
    base = ("replay", str(log), "--limit", "5/hour", "--json")
    assert command.run(*base) == 0
    assert command.json()["limits"][0]["summary"]["allowed"] == 5
    assert command.run(*base, "--workers", "4") == 0
    (limit,) = command.json()["limits"]
    assert limit["summary"]["allowed"] == 20
    assert "4 workers" in limit["limit"]
    assert command.run(*base, "--warm-up", "50s") == 0
    assert command.json()["limits"][0]["summary"]["events"] == 10
    assert "50 events of the warm-up" in command.err
    for wrong in (("--workers", "0"), ("--warm-up", "soon")):
        assert command.run(*base, *wrong) == 2, wrong
    synthetic = ("simulate", "--limit", "5/hour", "--clients", "1", "--json", "--workers")
    assert command.run(*synthetic, "4") == 0
    assert command.json()["limits"][0]["summary"]["most_in_minute"] == 20
    assert command.run(*synthetic, "0") == 2


def test_faults_of_a_routes_file_end_the_replay(
    log: Path, app: tuple[str, str], command: Command
) -> None:
    limits, routes = app
    replayed = ("replay", str(log), "--limits", limits, "--routes", routes)
    for text, status in (("- limits: [Orders]\n", 1), ("- limit: []\n", 1)):
        with open(routes, "w", encoding="utf-8") as file:  # noqa: PTH123  a text
            file.write(text)
        assert command.run(*replayed) == status
        assert not command.out
    assert f"{routes}:1" in command.err
    assert command.run(*replayed[:-1], "absent.yaml") == 2


def test_an_invalid_id_is_counted_and_does_not_end_the_replay(
    short: Path, command: Command
) -> None:
    log = short / "a.csv"
    with log.open("a", encoding="utf-8") as file:
        file.write("2026-11-20T00:00:09,localhost\n")
    (short / "limits.yaml").write_text(
        "P: {burst: 2, count: 1, period: 1m, id: ipAddress}\n", encoding="utf-8"
    )
    assert command.run("replay", str(log), "--limits", str(short / "limits.yaml")) == 0
    assert facts(command)["events"] == "4"
    assert "1 event left out" in command.err
    assert "localhost" in command.err


def test_the_field_of_the_client_is_shown(short: Path, command: Command) -> None:
    assert command.run("replay", str(short / "a.csv"), "--limit", "1/minute") == 0
    assert re.search(r"^client +ip$", command.out, re.MULTILINE)


def test_long_facts_are_whole_in_a_pipe(short: Path, command: Command) -> None:
    text = "123456789 per 47 hours, burst 987654321"
    assert command.run("replay", str(short / "a.csv"), "--limit", text) == 0
    assert "…" not in command.out


def test_the_examples_of_the_help_work(log: Path, command: Command) -> None:
    line = '203.0.113.7 [18/Oct/2026:10:34:49 +0000] "GET / HTTP/1.1" 512\n'
    timed = log.parent / "timed.log"
    timed.write_text(line, encoding="utf-8")
    example = re.search(r"--format '([^']+)'", replay.EXAMPLES)
    assert example is not None
    assert command.run("replay", str(timed), "--limit", "5/s", "--format", example[1]) == 0


def test_the_recommendation_has_options(short: Path, command: Command) -> None:
    log = str(short / "a.csv")
    base = ("replay", log, "--limit", "1/minute", "--json", "--recommend", "--period", "1h")
    assert command.run(*base, "--max-denied", "0.5") == 0
    found = command.json()["recommendations"]["Limit"]
    assert found["period_ns"] == 3600 * 10**9
    assert (found["burst"], found["denied_share"]) == (2, 0.5)
    assert command.run(*base[:-2]) == 0
    assert command.json()["recommendations"]["Limit"]["period_ns"] == 60 * 10**9
    assert command.run(*base, "--objective", "clients", "--max-denied", "0.5") == 0
    assert command.json()["recommendations"]["Limit"]["denied_share"] == 0
    assert command.run(*base, "--exclude", "192.0.2.9") == 2
