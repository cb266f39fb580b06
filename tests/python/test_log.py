"""Recorded traffic: detection of formats, and the fields of time, id and cost."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from sample_log import write_access_log

import penstock
from penstock._web.address import client_address
from penstock.simulate import Trace
from penstock.simulate.log import LogError, read_log

if TYPE_CHECKING:
    from pathlib import Path

TIME = 1_792_319_689
"""2026-10-18T10:34:49Z"""

COMMON = '{} - {} [18/Oct/2026:10:34:49 +0000] "GET /a?b=1 HTTP/1.1" 200 512'
COMBINED = COMMON + ' "https://shop.example/" "Mozilla/5.0 (X11)"'
MAIN = COMBINED + ' "-"'
FORWARDED = COMBINED + ' "203.0.113.9"'


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """A function that writes logs, all with the same file name."""

    def write(*lines: str | bytes, name: str = "a.log") -> Path:
        texts = [line if isinstance(line, bytes) else line.encode() for line in lines]
        path = tmp_path / name
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        return path

    return write


def ids(trace: Trace) -> list[str]:
    """Return the ids of a trace as a list."""
    assert trace.ids is not None
    return [str(id) for id in trace.ids]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (COMMON.format("203.0.113.7", "-"), "common"),
        (COMBINED.format("203.0.113.7", "-"), "combined"),
        (MAIN.format("203.0.113.7", "-"), "main"),
        ("shop.example:443 " + COMBINED.format("203.0.113.7", "ada"), "vhost_combined"),
        (COMBINED.format("203.0.113.7", "-") + " 0.004 https", "combined"),
        (COMBINED.format("203.0.113.7", "ada lovelace"), "combined"),
        (COMMON.format("203.0.113.7", "-") + " extra", "common"),
        ('{"time": "2026-10-18T10:34:49Z", "remote_addr": "203.0.113.7"}', "jsonl"),
        ('{"ts": 1792319689.0, "request": {"remote_ip": "203.0.113.7"}}', "jsonl"),
    ],
)
def test_format_is_detected_from_the_lines(log: Any, line: str, name: str) -> None:
    trace = Trace.from_log(log(line, name="access.gz"))
    assert trace.skipped.format == name
    assert trace.times.tolist() == [TIME * 10**9]
    assert ids(trace) == ["203.0.113.7"]
    assert trace.name is not None
    assert trace.name.endswith("access.gz")


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("address", "2001:db8::"),
        ("user", "ada"),
        ("method", "GET"),
        ("path", "/a"),
        ("target", "/a?b=1"),
        ("request", "GET /a?b=1 HTTP/1.1"),
        ("status", "200"),
        ("referer", "https://shop.example/"),
        ("user_agent", "Mozilla/5.0 (X11)"),
        (("address", "path"), "2001:db8::\t/a"),
        (["method", "status", "user"], "GET\t200\tada"),
    ],
)
def test_any_field_or_several_may_be_the_id(log: Any, id: Any, found: str) -> None:
    assert ids(Trace.from_log(log(MAIN.format("2001:DB8::1", "ada")), id=id)) == [found]


@pytest.mark.parametrize("id", ["forwarded_for", "http_x_forwarded_for"])
def test_the_forwarded_address_may_be_the_id(log: Any, id: str) -> None:
    assert ids(Trace.from_log(log(FORWARDED.format("10.0.0.1", "-")), id=id)) == ["203.0.113.9"]


def test_without_an_id_all_events_have_one_client(log: Any) -> None:
    trace = Trace.from_log(log(COMMON.format("a", "-"), COMMON.format("b", "-")), id=None)
    assert (len(trace), trace.codes, list(trace.clients)) == (2, None, ["*"])
    reader = read_log(log(COMMON.format("a", "-")), id=None)
    assert [chunk.codes.tolist() for chunk in reader] == [[0]]
    assert reader.clients == ["*"]


def test_cost_is_a_field(log: Any) -> None:
    path = log(COMBINED.format("a", "-"), COMBINED.format("b", "-").replace(" 512", " -"))
    for cost, expected in (("bytes", [512, 0]), (None, None), ("status", [200, 200])):
        costs = Trace.from_log(path, cost=cost).costs
        assert (None if costs is None else costs.tolist()) == expected


@pytest.mark.parametrize(
    "address",
    [
        "203.0.113.7", "2001:DB8:0:0:1:2:3:4", "::ffff:203.0.113.7", "[2001:db8::1]:443",
        "203.0.113.7:5123", "fe80::1%eth0", "::1", "2001:db8::203.0.113.7", "[2001:db8:1:2::9]",
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", [48, 56, 64, 128])
def test_addresses_are_spelled_as_the_web_layer_spells_them(
    log: Any, address: str, prefix: int
) -> None:
    path = log(COMBINED.format(address, "-"))
    expected = client_address(address, ipv6_prefix=prefix)
    assert ids(Trace.from_log(path, ipv6_prefix=prefix)) == [expected]


@pytest.mark.parametrize(
    ("given", "line", "id", "found"),
    [
        (
            '$remote_addr [$time_iso8601] "$request"', 'a [2026-10-18T10:34:49+00:00] "GET /x"',
            "path", "/x",
        ),
        ("$msec $remote_addr $request_time", "1792319689.000 a 0.001", "request_time", "0.001"),
        ("${msec}|$http_x_api_key", "1792319689.000|k1", "http_x_api_key", "k1"),
        (
            "log_format timed '$remote_addr [$time_local] '\n  '\"$request\" $status';",
            'a [18/Oct/2026:10:34:49 +0000] "PUT /x HTTP/1.1" 200', "method", "PUT",
        ),
        ('%h %t "%r" %>s', 'a [18/Oct/2026:10:34:49 +0000] "GET / HTTP/1.1" 200', "address", "a"),
        ('%a %{usec}t "%{X-Api-Key}i" %D', 'a 1792319689000000 "k1" 17', "X-Api-Key", "k1"),
        (
            '%h %t "%!200,304{Referer}i" %b%%', 'a [18/Oct/2026:10:34:49 +0000] "-r" 5%',
            "referer", "-r",
        ),
        (
            'LogFormat "%h %t \\"%{User-Agent}i\\"" agents',
            'a [18/Oct/2026:10:34:49 +0000] "x \\"y\\""', "user_agent", 'x \\"y\\"',
        ),
        # Columns of equal width, and a delimiter that is no blank.
        ("$msec $ms $remote_addr $code/$status", "1792319689.000    1 a MISS/200", "address", "a"),
    ],
)  # fmt: skip
def test_format_strings_are_those_of_the_servers(
    log: Any, given: str, line: str, id: str, found: str
) -> None:
    trace = Trace.from_log(log(line), format=given, id=id)
    assert (trace.times.tolist(), ids(trace)) == ([TIME * 10**9], [found])


def test_a_format_string_takes_the_whole_line(log: Any) -> None:
    with pytest.raises(LogError, match="did not parse"):
        Trace.from_log(log("a 1792319689.000 more"), format="$remote_addr $msec")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("combind", "did you mean 'combined'"),
        ("$remote_addr$msec", "remote_addr and msec"),
        ("no fields", "format must be"),
        ("$remote_addr $status", "no field 'time'"),
        ("100%", "time field"),
    ],
)
def test_invalid_formats_are_refused(log: Any, given: str, message: str) -> None:
    with pytest.raises(LogError, match="f") as caught:
        read_log(log("x 1"), format=given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "adress"}, "did you mean 'address'"),
        ({"id": ()}, "found 0"),
        ({"id": ("a",) * 7}, "found 7"),
        ({"id": ""}, "id must be"),
        ({"id": 1.5}, "id must be"),
        ({"cost": "byts"}, "did you mean 'bytes'"),
        ({"cost": -1}, "cost must be"),
        ({"cost": True}, "cost must be"),
        ({"time": "tme"}, "did you mean 'time'"),
        ({"tz": "Mars/Olympus"}, "tz must be"),
        ({"max_bad": 2}, "max_bad"),
        ({"ipv6_prefix": 0}, "ipv6_prefix"),
        ({"chunk_events": 0}, "chunk_events"),
        ({"window": -1}, "window"),
    ],
)
def test_invalid_options_are_refused_before_reading(
    log: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LogError) as caught:
        read_log(log(COMBINED.format("a", "-")), **options)
    assert isinstance(caught.value, penstock.Error)
    assert isinstance(caught.value, ValueError)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        TIME, f"{TIME}", TIME * 1000, TIME * 10**6, TIME * 10**9, "2026-10-18T16:04:49+05:30",
        "18/Oct/2026:07:04:49 -0330",
    ],
)  # fmt: skip
def test_unit_of_epochs_is_detected(log: Any, value: object) -> None:
    trace = Trace.from_log(log(json.dumps({"@timestamp": value, "client": {"ip": "a"}})))
    assert trace.times.tolist() == [TIME * 10**9]
    assert trace.skipped.fields == {"time": "@timestamp", "id": "client.ip"}


def test_epochs_of_two_units_are_read_each_in_its_own(log: Any) -> None:
    path = log(f'{{"t": {TIME}, "ip": "a"}}', f'{{"t": {TIME + 1}000, "ip": "a"}}')
    assert Trace.from_log(path).times.tolist() == [TIME * 10**9, (TIME + 1) * 10**9]


@pytest.mark.parametrize(
    ("tz", "east"),
    [("UTC", 0), ("+05:30", 330), ("-0330", -210), ("Europe/Berlin", 120),
     (ZoneInfo("Asia/Tokyo"), 540), (datetime.timezone(datetime.timedelta(hours=-8)), -480)],
)  # fmt: skip
def test_times_without_a_zone_use_the_given_one(log: Any, tz: Any, east: int) -> None:
    path = log('{"time": "2026-10-18 10:34:49", "ip": "a", "zoned": "2026-10-18T10:34:49Z"}')
    assert Trace.from_log(path, tz=tz).times.tolist() == [(TIME - east * 60) * 10**9]
    assert Trace.from_log(path, tz=tz, time="zoned").times.tolist() == [TIME * 10**9]


def test_offset_of_a_zone_changes_with_daylight_saving_time(log: Any) -> None:
    # Every half an hour of three days in which the clocks change, on each side of the summer.
    zone, step = ZoneInfo("Europe/Berlin"), datetime.timedelta(minutes=30)
    starts = [datetime.datetime(2026, *day) for day in ((3, 28), (10, 24))]  # noqa: DTZ001  in the zone
    walls = [start + number * step for start in starts for number in range(144)]
    path = log(*(json.dumps({"time": wall.isoformat(), "ip": "a"}) for wall in walls))
    expected = sorted(round(wall.replace(tzinfo=zone).timestamp()) for wall in walls)
    times = Trace.from_log(path, tz="Europe/Berlin").times
    assert (times // 10**9).tolist() == expected


def test_a_line_that_does_not_parse_is_counted_and_shown(log: Any) -> None:
    good = [COMBINED.format("a", "-")] * 300
    path = log(*good, "bad \x1b[31mline", *good, b"\xff\xfe", COMBINED.format("b", "-"))
    trace = Trace.from_log(path)
    report = trace.skipped
    assert (len(trace), report.events, report.lines, report.skipped) == (601, 601, 603, 2)
    assert [example.line for example in report.examples] == [301, 602]
    assert str(report.examples[0]) == (
        f"{path}:301: does not have the format: bad \N{REPLACEMENT CHARACTER}[31mline"
    )
    assert str(report) == "601 events of 603 lines (combined), 2 did not parse"


def test_too_many_bad_lines_are_an_error_that_shows_them(log: Any) -> None:
    path = log(*[COMBINED.format("a", "-")] * 9, "bad line")
    with pytest.raises(LogError) as caught:
        Trace.from_log(path)
    assert all(part in str(caught.value) for part in ("10.0%", "1.0%", "max_bad=", "bad line"))
    assert (caught.value.file, caught.value.examples[0].line) == (str(path), 10)
    assert len(Trace.from_log(path, max_bad=0.1)) == 9


def test_unknown_format_reports_the_formats_tried_and_the_first_lines(log: Any) -> None:
    path = log("Oct 18 10:34:49 host sshd[7]: Failed password", "Oct 18 10:34:50 host sshd[7]: bye")
    with pytest.raises(LogError) as caught:
        Trace.from_log(path)
    assert "main, combined, common" in str(caught.value)
    assert caught.value.examples[0].text.startswith("Oct 18 10:34:49 host sshd[7]: Failed password")
    with pytest.raises(LogError, match="in the format combined"):
        Trace.from_log(path, format="combined")
    with pytest.raises(LogError, match="in the format jsonl"):
        Trace.from_log(path, format="jsonl")


ONE = ["192.0.2.1"]


@pytest.mark.parametrize(
    ("name", "found", "clients", "paths"),
    [
        # Columns of equal width, and a quote that a client sent.
        ("w3c.log", "w3c", ["192.0.2.1", "192.0.2.20", "192.0.2.1"], ["/a", "/b", "/c"]),
        ("traefik.log", "traefik", ONE, ["/a"]),
        ("werkzeug.log", "common", ONE, ["/a"]),
        ("haproxy.log", "haproxy", ONE, ["/a"]),
        ("envoy.jsonl", "jsonl", ONE, ["/a"]),
    ],
)
def test_logs_of_other_servers(
    root: Path, name: str, found: str, clients: list[str], paths: list[str]
) -> None:
    path = root / "tests/data/logs" / name
    trace = Trace.from_log(path)
    assert (trace.skipped.format, trace.skipped.skipped, ids(trace)) == (found, 0, clients)
    assert int(trace.times[0]) // 10**9 == 1_795_242_317
    assert ids(Trace.from_log(path, format=found, id="path")) == paths


def test_user_agent_in_a_log_of_traefik_ends_at_its_quote(root: Path) -> None:
    trace = Trace.from_log(root / "tests/data/logs/traefik.log", id="user_agent")
    assert ids(trace) == ["agent"]


@pytest.mark.parametrize(
    "prefix",
    [
        "Nov 21 06:25:17 web1 nginx:",
        "Nov  1 06:25:17 web1 nginx:",
        "2026-11-21T06:25:17.123Z",
        "2026-11-21T06:25:17.123456789Z stdout F",
        "<134>1 2026-11-21T06:25:17Z web1 nginx 12 - -",
        "web-1  |",
    ],
)
@pytest.mark.parametrize("agent", ["", ' "-" "-"', ' "-" "-" "-" 0.004 -'])
def test_a_prefix_is_left_out(log: Any, prefix: str, agent: str) -> None:
    line = f'203.0.113.7 - - [21/Nov/2026:06:25:17 +0000] "GET / HTTP/1.1" 200 5{agent}'
    trace = Trace.from_log(log(*[f"{prefix} {line}"] * 3))
    assert ids(trace) == ["203.0.113.7"] * 3
    assert f"after {len(prefix.split())} word" in trace.skipped.format


@pytest.mark.parametrize(
    ("name", "prefix", "found"),
    [
        ("haproxy.log", "Feb  6 12:14:14 localhost haproxy[14389]:", "haproxy, after 5 words"),
        ("envoy.jsonl", "2026-11-21T06:25:17.49303+01:00 stdout F", "jsonl"),
        ("envoy.jsonl", "envoy |", "jsonl"),
    ],
)
def test_a_prefix_is_left_out_before_other_formats(
    log: Any, root: Path, name: str, prefix: str, found: str
) -> None:
    line = (root / "tests/data/logs" / name).read_text(encoding="utf-8").strip()
    trace = Trace.from_log(log(f"{prefix} {line}", f"{prefix} {line}"))
    assert (ids(trace), trace.skipped.format) == (["192.0.2.1"] * 2, found)


@pytest.mark.parametrize("inner", [COMBINED, '{{"ts": 1792319689, "ip": "{}", "user": "{}"}}'])
def test_lines_in_json_files_of_docker_are_read(log: Any, inner: str) -> None:
    line = inner.format("203.0.113.7", "-")
    row = json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-10-18T10:34:49.1Z"})
    trace = Trace.from_log(log(row, row))
    assert ids(trace) == ["203.0.113.7"] * 2
    assert trace.times.tolist() == [TIME * 10**9] * 2
    assert trace.skipped.format.endswith("in json-file")


def test_a_date_and_a_time_may_be_two_columns_of_a_short_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    # The only row has no line end.
    path.write_text("#Fields: c-ip date time sc-status\n203.0.113.7 2026-10-18 10:34:49 200")
    trace = Trace.from_log(path)
    assert (ids(trace), trace.times.tolist()) == (["203.0.113.7"], [TIME * 10**9])


LINE = COMBINED.format("203.0.113.7", "-")
OTHER = 'ada [18/Oct/2026:10:34:49 +0000] (0 s) "GET / HTTP/1.1" 301 368 "-" "curl/8.5.0"'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"www.example.com 203.0.113.7 - {OTHER}"] * 2, "another order"),
        ([LINE, LINE.replace(" - -", ""), LINE], "combined"),
        ([LINE.replace("Oct", "Okt")], "is not a time"),
        # A comma does not make the head of a table.
        (['lb 2026-11-21T06:25:17Z 203.0.113.7:28 "GET /" "waf,forward" "-"'] * 2, "known format"),
    ],
)
def test_lines_that_nearly_have_a_format_are_refused(
    log: Any, lines: list[str], message: str
) -> None:
    with pytest.raises(LogError, match=message) as caught:
        Trace.from_log(log(*lines))
    assert caught.value.examples


def test_logs_of_several_servers_are_merged(tmp_path: Path) -> None:
    whole = write_access_log(tmp_path / "whole.log", events=6_000, seed=3, hours=3.0)
    lines = whole.read_bytes().splitlines(keepends=True)
    early, late = lines[:3000], lines[3000:]
    # The third server starts in the middle.
    parts = (early[0::2] + late[0::3], early[1::2] + late[1::3], late[2::3])
    paths = [tmp_path / f"web{server}.log" for server in range(3)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(b"".join(part))
    merged = [
        (time, chunk.clients[code])
        for chunk in read_log(paths, chunk_events=500)
        for time, code in zip(chunk.times.tolist(), chunk.codes.tolist(), strict=True)
    ]
    assert [time for time, _ in merged] == sorted(time for time, _ in merged)
    trace = Trace.from_log(whole)
    assert sorted(merged) == sorted(zip(trace.times.tolist(), ids(trace), strict=True))
    assert len(Trace.from_log(paths)) == 6_000


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("path=/api/*", [1, 2]),
        ("path!=/api/*", [0]),
        ("method=POST", [2]),
        ("status=4xx,500", [2]),
        ("client=203.0.113.*", [0, 1]),
        (["path=/api/*", "method=GET"], [1]),
        ("time>=2026-10-18T10:34:50", [1, 2]),
        (["time>=2026-10-18T10:34:50", "time<2026-10-18T10:34:51"], [1]),
    ],
)
def test_conditions_select_events(log: Any, where: Any, kept: list[int]) -> None:
    lines = [
        '203.0.113.7 - - [18/Oct/2026:10:34:49 +0000] "GET /a?b=/api/ HTTP/1.1" 200 5',
        '203.0.113.8 - - [18/Oct/2026:10:34:50 +0000] "GET /api/b?c HTTP/1.1" 304 5',
        '192.0.2.1 - - [18/Oct/2026:10:34:51 +0000] "POST /api/ HTTP/1.1" 404 5',
    ]
    clients = ["203.0.113.7", "203.0.113.8", "192.0.2.1"]
    trace = Trace.from_log(log(*lines), where=where)
    assert ids(trace) == [clients[index] for index in kept]
    assert trace.skipped.filtered == 3 - len(kept)
    assert trace.skipped.events == len(kept)
    alone = Trace.from_log(log(*lines), where=where, id=None)
    assert alone.times.tolist() == trace.times.tolist()
    assert alone.codes is None


@pytest.mark.parametrize("where", ["path", "path>=3", "time=3", "time>=soon", "nothing=1"])
def test_invalid_conditions_are_refused(log: Any, where: str) -> None:
    path = log(COMBINED.format("203.0.113.7", "-"))
    with pytest.raises(LogError):
        Trace.from_log(path, where=where)


def test_spaces_in_user_names_are_not_a_prefix(log: Any) -> None:
    named = '203.0.113.7 - ada b [21/Nov/2026:06:25:17 +0000] "GET / HTTP/1.1" 200 5'
    trace = Trace.from_log(log(named.replace("ada b", "ada"), named), id="user")
    assert ids(trace) == ["ada", "ada b"]


def test_lines_without_an_id_are_left_out_and_counted(log: Any) -> None:
    lines = [COMBINED.format("a", user) for user in ("-", "ada", "-")]
    trace = Trace.from_log(log(*lines), id="user")
    assert (ids(trace), trace.skipped.without_id, trace.skipped.skipped) == (["ada"], 2, 0)
    assert str(trace.skipped) in repr(trace.skipped)
    with pytest.raises(LogError, match=r"2 of 2 lines .* user"):
        Trace.from_log(log(lines[0], lines[2]), id="user")


ROW = {"time_iso8601": "2026-10-18T10:34:49Z", "host": "shop.example"}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({**ROW, "client": "203.0.113.1"}, "client"),
        ({**ROW, "httpRequest": {"clientIp": "203.0.113.1"}}, "httpRequest.clientIp"),
        ({**ROW, "remote_addr": "203.0.113.1", "client_ip": "203.0.113.1"}, "remote_addr"),
        ({**ROW, "remote_addr": "203.0.113.1", "x_forwarded_for": "-"}, "remote_addr"),
        ({**ROW, "remote_addr": "203.0.113.1", "client": "", "ip": "-"}, "remote_addr"),
        (
            {**ROW, "remote_addr": "203.0.113.1:443", "x_forwarded_for": "203.0.113.1"},
            "remote_addr",
        ),
    ],
)
def test_the_client_is_taken_if_there_is_one_choice(
    log: Any, row: dict[str, Any], field: str
) -> None:
    trace = Trace.from_log(log(json.dumps(row)))
    assert trace.skipped.fields["id"] == field
    assert ids(trace) == ["203.0.113.1"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (ROW, "pass id="),
        ({**ROW, "x_forwarded_for": "203.0.113.1"}, "x_forwarded_for"),
        ({**ROW, "remote": "203.0.113.1"}, "remote"),
        ({**ROW, "host": {"id": [1]}}, "pass id="),
        ({**ROW, "remote_addr": "10.0.0.1", "client_ip": "203.0.113.1"}, "client_ip"),
        ({**ROW, "remote_addr": "10.0.0.1", "client": "phone"}, "client"),
        ({**ROW, "remote_addr": "10.0.0.1", "x_forwarded_for": "203.0.113.1"}, "x_forwarded_for"),
    ],
)
def test_the_client_is_never_guessed(log: Any, row: dict[str, Any], named: str) -> None:
    path = log(json.dumps(row))
    with pytest.raises(LogError, match=named) as caught:
        Trace.from_log(path)
    assert "id=" in str(caught.value)
    with pytest.raises(LogError):
        Trace.from_log(path, id="nothing")


def test_an_object_is_not_an_id(log: Any) -> None:
    path = log(json.dumps({**ROW, "host": {"name": "a"}}))
    with pytest.raises(LogError, match=r"host\.name"):
        Trace.from_log(path, id="host")
    assert ids(Trace.from_log(path, id="host.name")) == ["a"]
