"""Logs that could be read wrongly: they are read right, or refused."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.simulate import Trace
from penstock.simulate.log import LogError, read_log

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Command

CLIENTS = [f"192.0.2.{number}" for number in range(1, 6)]
COMBINED = '{} - - [20/Nov/2026:10:00:01 +0000] "GET /x HTTP/1.1" 200 12 "-" "curl"'
PROXIED = "10.0.0.9" + COMBINED[2:]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """Return a function that writes a log with a line for each client, eight times."""

    def write(line: str, *more: str) -> Path:
        path = tmp_path / "a.log"
        lines = [line.format(client) for client in CLIENTS] * 8
        path.write_text("\n".join([*lines, *more, ""]), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    "prefix",
    [
        "[2026-11-20 10:00:01 +0000] [77] [INFO] ",
        "[2026-11-20 10:00:01 +0000] [77] [WARNING] ",
        "INFO ",
        "web-1 hypercorn[77]: ",
    ],
)
def test_a_prefix_of_a_logger_is_no_client(log: Any, prefix: str) -> None:
    for address in ("{}:5001", "{}"):
        line = COMBINED.replace("{}", address, 1).replace("HTTP/1.1", "1.1")
        trace = Trace.from_log(log(prefix + line), id=("address", "path"))
        assert trace.clients == [f"{client}\t/x" for client in CLIENTS]


def test_a_log_of_a_server_behind_a_proxy_needs_a_choice(log: Any) -> None:
    path = log(PROXIED + ' "{}"')
    with pytest.raises(LogError, match=r"forwarded_for .192\.0\.2\.1"):
        Trace.from_log(path)
    assert Trace.from_log(path, id="forwarded_for").clients == CLIENTS
    assert Trace.from_log(path, id="remote_addr").clients == ["10.0.0.9"]
    choices: list[dict[str, Any]] = [{"hops": 1}, {"trusted_proxies": ["10.0.0.0/8"]}]
    for options in choices:
        trace = Trace.from_log(path, **options)
        assert trace.clients == CLIENTS
        assert trace.skipped.fields["forwarded_for"] == "http_x_forwarded_for"
    # A client may forge what is further to the left, as in production.
    path = log(PROXIED + ' "6.6.6.6, {}, 10.0.0.7"')
    assert Trace.from_log(path, trusted_proxies="10.0.0.0/8").clients == CLIENTS
    assert Trace.from_log(path, hops=2).clients == CLIENTS
    by_path = Trace.from_log(path, id=("address", "path"), hops=2, where="path=/x")
    assert by_path.clients == [f"{client}\t/x" for client in CLIENTS]


def test_trusted_proxies_are_found_in_json(log: Any) -> None:
    line = {"time": "2026-11-20T10:00:00Z", "remote_addr": "10.0.0.9", "x_forwarded_for": "CLIENT"}
    text = json.dumps(line).replace("{", "{{").replace("}", "}}").replace("CLIENT", "{}, 10.1.1.1")
    path = log(text)
    with pytest.raises(LogError, match="trusted_proxies"):
        Trace.from_log(path)
    assert Trace.from_log(path, hops=2).clients == CLIENTS


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("INFO:web/1:" + COMBINED, {}, "pass format="),
        (COMBINED, {"format": "w3c"}, "in the format w3c"),
        (PROXIED + ' "{}, 10.0.0.7"', {"id": "forwarded_for"}, "lists of addresses"),
        (COMBINED, {"hops": -1}, "hops"),
        (COMBINED, {"trusted_proxies": "x"}, "trusted_proxies"),
        (COMBINED, {"hops": 1, "id": "user"}, "hops"),
        (COMBINED, {"where": "path=/nope"}, "no event of .* meets"),
    ],
)
def test_logs_that_options_do_not_fit_are_refused(
    log: Any, line: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LogError, match=message):
        Trace.from_log(log(line), **options)


def test_a_host_name_before_the_address_of_some_lines_is_refused(log: Any) -> None:
    path = log(COMBINED, *["www.example.org " + COMBINED.format(client) for client in CLIENTS])
    with pytest.raises(LogError, match="words before the address"):
        Trace.from_log(path)


@pytest.mark.parametrize("count", [3, 100])
def test_a_w3c_log_whose_fields_change_is_refused(tmp_path: Path, count: int) -> None:
    path = tmp_path / "u.log"
    first = "#Fields: date time c-ip cs-method cs-uri-stem\n"
    lines = [f"2026-11-20 10:00:0{index % 10} 192.0.2.1 GET /a\n" for index in range(count)]
    other = "#Fields: date time cs-method cs-uri-stem c-ip\n2026-11-20 11:00:01 GET /a 192.0.2.1\n"
    path.write_text("".join([first, *lines, first, *lines]), encoding="utf-8")
    assert Trace.from_log(path).clients == ["192.0.2.1"]
    path.write_text("".join([first, *lines, other]), encoding="utf-8")
    with pytest.raises(LogError, match=r"fields of .* change"):
        Trace.from_log(path)


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (
            {"@timestamp": "T", "client": {"ip": "C"}, "http": {"request": {"method": "GET"}},
             "url": {"path": "/x"}},
            ("address", "method", "path"),
        ),
        ({"EdgeStartTimestamp": "T", "ClientIP": "C", "ClientRequestMethod": "GET",
          "ClientRequestURI": "/x"}, ("address", "method", "path")),
        ({"timestamp": "T", "httpRequest": {"clientIp": "C", "httpMethod": "GET", "uri": "/x"}},
         ("address", "method", "path")),
        ({"time": "T", "remoteAddr": "C"}, ("address",)),
        ({"time": "T", "req": {"remoteAddress": "C"}}, ("address",)),
        ({"timeStamp": "T", "properties": {"clientIP": "C"}}, ("address",)),
        ({"timestamp": "T", "proxy": {"clientIp": "C"}}, ("address",)),
        ({"requestTime": "T", "ip": "C"}, ("address",)),
        ({"started_at": "T", "client_ip": "C"}, ("address",)),
        ({"Time": "T", "RemoteAddr": "C"}, ("address",)),
        ({"time": "T", "cliIP": "C"}, ("address",)),
    ],
)  # fmt: skip
def test_fields_of_more_services_are_known(
    log: Any, row: dict[str, Any], fields: tuple[str, ...]
) -> None:
    text = json.dumps(row).replace("{", "{{").replace("}", "}}")
    path = log(text.replace('"T"', '"2026-11-20T10:00:00Z"').replace('"C"', '"{}"'))
    rest = ("GET", "/x")[: len(fields) - 1]
    assert Trace.from_log(path, id=fields).clients == ["\t".join((c, *rest)) for c in CLIENTS]


def test_durations_of_requests_are_a_field(log: Any) -> None:
    for given in ("$remote_addr [$time_local] $request_time", "%h %t %D"):
        path = log("{} [20/Nov/2026:10:00:01 +0000] 17")
        trace = Trace.from_log(path, format=given, cost="duration")
        assert trace.costs is not None
        assert set(trace.costs.tolist()) == {17}
    path = log('{{"time": "2026-11-20T10:00:00Z", "ip": "{}", "request_time": 9}}')
    assert Trace.from_log(path, id=("address", "duration")).clients[0] == "192.0.2.1\t9"


def test_a_replay_of_no_events_is_an_error(log: Any, command: Command) -> None:
    options = ("--limit", "1/s", "--where", "path=/nope")
    assert command.run("replay", str(log(COMBINED)), *options) == 1
    assert "meets the conditions" in command.err


def test_times_of_conditions_are_in_the_zone_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    row = '{{"time": "2026-10-20 {:02}:00:00", "address": "192.0.2.1"}}\n'
    path.write_text("".join(row.format(hour) for hour in range(24)), encoding="utf-8")
    for zone, text in (("Europe/Berlin", "06:00"), ("+05:30", "06:00"), ("UTC", "06:00Z")):
        trace = Trace.from_log(path, tz=zone, where=f"time>=2026-10-20T{text}")
        assert len(trace) == 18


def test_conditions_name_a_client_by_any_of_its_addresses(log: Any) -> None:
    path = log(COMBINED, COMBINED.format("2001:db8:1:2:aaaa::5"))
    assert "2001:db8:1:2::" in Trace.from_log(path).clients
    assert Trace.from_log(path, where="client!=2001:db8:1:2:aaaa::5").clients == CLIENTS


def test_a_number_without_a_unit_is_no_duration_where_others_state_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = ['{"time": 1795168800, "ip": "192.0.2.1", "took": "250ms"}'] * 900
    path.write_text("\n".join([*rows, rows[0].replace('"250ms"', "250"), ""]))
    trace = Trace.from_log(path, duration="took")
    assert (len(trace), trace.skipped.skipped) == (900, 1)


def test_a_long_line_may_come_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = '{"time": 1795168800, "ip": "192.0.2.1", "body": "%s"}'
    path.write_text("\n".join([row % ("x" * 70_000), *[row % "x"] * 9, ""]))
    assert len(Trace.from_log(path)) == 10


def test_brackets_of_a_pattern_stand_for_themselves(log: Any) -> None:
    path = log(COMBINED.replace("/x", "/a[0]"))
    assert len(Trace.from_log(path, where="path=/a[0]")) == 40
    with pytest.raises(LogError):
        Trace.from_log(path, where="path=/a0")


def test_paths_that_only_conditions_need_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lines = [COMBINED.format(CLIENTS[n % 5]).replace("/x", f"/order/{n}") for n in range(5_000)]
    lines += [COMBINED.format(CLIENTS[n % 5]).replace("/x", f"/item/{n}") for n in range(5_000)]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    for chosen in ((), ("address",)):
        reader = read_log(path, id=chosen or None, where="path=/order/*")
        assert sum(len(chunk.times) for chunk in reader) == 5_000
        assert sum(len(stream._parser.ids(0)) for stream in reader._streams) <= 10


def objects(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    """Write a log of JSON objects, all at one time."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"ts": 1_795_242_317, **row}) for row in rows]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


ADMIN = {"msg": "admin endpoint started", "address": "localhost:2019"}
REQUEST = {"msg": "handled", "request": {"remote_ip": "192.0.2.1", "method": "GET", "uri": "/"}}


def test_the_client_is_the_field_that_most_requests_have(tmp_path: Path) -> None:
    path = objects(tmp_path, ADMIN, *[REQUEST] * 3)
    trace = Trace.from_log(path)
    assert (trace.clients, trace.skipped.without_id) == (["192.0.2.1"], 1)
    assert trace.skipped.fields["id"] == "request.remote_ip"
    listening = {"msg": "listening", "address": "0.0.0.0:8000"}
    path = objects(tmp_path, *[listening] * 5, *[{"remote_addr": "192.0.2.1"}] * 50)
    assert Trace.from_log(path).clients == ["192.0.2.1"]
    # Only a few of the first lines are requests.
    path = objects(tmp_path, *[ADMIN] * 40, *[REQUEST] * 100)
    assert Trace.from_log(path).clients == ["192.0.2.1"]


def test_more_than_half_of_the_lines_without_a_client_are_an_error(tmp_path: Path) -> None:
    path = objects(tmp_path, *[ADMIN] * 36, *[REQUEST] * 4)
    with pytest.raises(LogError, match=r"36 of 40 lines .* request\.remote_ip"):
        Trace.from_log(path)
    assert len(Trace.from_log(path, id="request.remote_ip")) == 4
    assert len(Trace.from_log(path, where="request.remote_ip!=-")) == 4
    # With a path, too, a line without a client has no id.
    rows = [{"remote_addr": "192.0.2.1", "path": "/"}, {"path": "/"}, {"path": "/"}]
    path = objects(tmp_path, *rows)
    with pytest.raises(LogError, match="2 of 3 lines"):
        Trace.from_log(path, id=("address", "path"))


def test_a_value_that_is_no_address_where_others_are_is_not_a_client(tmp_path: Path) -> None:
    rows = [{"address": f"192.0.2.{number}", "path": "/"} for number in range(1, 10)]
    path = objects(tmp_path, *rows, {"address": "localhost:2019", "path": "/"})
    with pytest.raises(LogError, match="must be an address, found 'localhost:2019'"):
        Trace.from_log(path)
    trace = Trace.from_log(path, max_bad=0.1)
    assert (len(trace), trace.skipped.skipped, len(trace.clients)) == (9, 1, 9)
    # The names of hosts are clients where all are.
    path = objects(tmp_path, *[{"address": "web1.example"}] * 3)
    assert Trace.from_log(path).clients == ["web1.example"]


@pytest.mark.parametrize(
    "marked",
    [
        '"{}', "'{}'", "({})", "<{}>", "client={}", 'client="{}"', "<134>{}", "{};", "[{}]",
        "[{}]:4711",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_marks_around_an_address_are_no_part_of_it(log: Any, marked: str, address: str) -> None:
    plain = COMBINED.format(address)
    path = log(COMBINED.replace("{}", marked.format(address), 1), plain)
    trace = Trace.from_log(path)
    assert trace.clients == [address if "." in address else "2001:db8::"]
    assert len(Trace.from_log(path, where=f"client={trace.clients[0]}")) == len(trace)
    proxied = log(PROXIED.replace("10.0.0.9", marked.format("10.0.0.9")) + ' "{}"')
    assert Trace.from_log(proxied, trusted_proxies="10.0.0.0/8").clients == CLIENTS


def test_a_whole_line_may_be_in_quotes(log: Any) -> None:
    assert Trace.from_log(log('"' + COMBINED + '"')).clients == CLIENTS


@pytest.mark.parametrize(
    "line",
    [
        COMBINED.replace("{}", "{}, 10.0.0.1", 1),
        COMBINED.replace("{}", "{},10.0.0.1", 1),
        '{{"StartUTC": "2026-11-20T10:00:00Z", "ClientHost": "{},10.0.0.1"}}',
        '{{"time": "2026-11-20T10:00:00Z", "x_forwarded_for": "{}, 10.0.0.1", "ip": "10.0.0.1"}}',
    ],
)
def test_lists_of_addresses_are_asked_about(log: Any, line: str) -> None:
    path = log(line)
    with pytest.raises(LogError, match="trusted_proxies="):
        Trace.from_log(path)
    assert Trace.from_log(path, trusted_proxies=["10.0.0.0/8"]).clients == CLIENTS
    assert Trace.from_log(path, hops=2).clients == CLIENTS
    assert Trace.from_log(path, hops=1).clients == ["10.0.0.1"]


def test_a_list_of_addresses_is_asked_about_in_any_field(log: Any) -> None:
    line = '{{"time": "2026-11-20T10:00:00Z", "ip": "10.0.0.1", "via": "{}, 10.0.0.1"}}'
    with pytest.raises(LogError, match="lists of addresses"):
        Trace.from_log(log(line), id="via")


@pytest.mark.parametrize("text", ['"', "1.2.3.4 ", "a,", '" "', "a=", "(", "- "])
def test_a_hostile_line_does_not_delay_the_detection(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{text * 800}\n" * 50, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(LogError):
        read_log(path)
    # It took 50 s when the pattern of an address gave back what it had matched.
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "before", ["www.example.com:443 ", "lb1 ", "2026-11-20T10:00:00Z stdout F "]
)
def test_a_word_before_later_clients_is_no_client(tmp_path: Path, before: str) -> None:
    path = tmp_path / "a.log"
    # More than the lines from which the format is detected.
    lines = [COMBINED.format("192.0.2.1")] * 3_000
    path.write_text("\n".join([*lines, *(before + line for line in lines[:300]), ""]))
    with pytest.raises(LogError, match="300 did not parse"):
        Trace.from_log(path)


def test_a_damaged_address_is_no_host(log: Any) -> None:
    path = log(COMBINED, COMBINED.format("203.0.113.203.0.113.5"))
    assert Trace.from_log(path, max_bad=0.1).clients == CLIENTS


def test_an_address_before_the_client_is_asked_about(log: Any) -> None:
    line = "{} " + PROXIED
    with pytest.raises(LogError, match="may be the client"):
        Trace.from_log(log(line, *["- " + PROXIED] * 90))
    own = '%{X-Forwarded-For}i %h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"'
    assert Trace.from_log(log(line), format=own, hops=1).clients == CLIENTS


@pytest.mark.parametrize("rest", ['0.012 "{}"', '0.012 "{}, 10.0.0.5"', 'rt=0.012 xff="{}"'])
def test_an_address_after_the_fields_of_a_format_is_asked_about(log: Any, rest: str) -> None:
    line = f"{PROXIED} {rest}"
    with pytest.raises(LogError, match=r"h .10\.0\.0\.9., the rest of the line .192\.0\.2\.1"):
        Trace.from_log(log(line))
    assert Trace.from_log(log(line), id="h").clients == ["10.0.0.9"]
    # A server behind the proxy is no client.
    assert Trace.from_log(log(COMBINED + " 0.012 10.0.0.5:8080")).clients == CLIENTS


def test_lists_of_texts_are_lists_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "caddy.log"
    rows = []
    for value in [[client] for client in CLIENTS] + [["198.51.100.7", "192.0.2.1"]]:
        headers = {"X-Forwarded-For": value}
        request = {"client_ip": "10.0.0.9", "uri": "/a", "headers": headers}
        rows.append(json.dumps({"ts": 1795168800.5, "request": request}))
    path.write_text("\n".join([*rows * 4, ""]))
    assert Trace.from_log(path, hops=1).clients == CLIENTS
    assert Trace.from_log(path, trusted_proxies=["10.0.0.0/8"]).clients == CLIENTS
    with pytest.raises(LogError, match="lists of addresses such as '198"):
        Trace.from_log(path, id="request.headers.X-Forwarded-For")


@pytest.mark.parametrize("blank", ["+", "%20"])
def test_blanks_of_the_w3c_format_are_blanks(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "iis.log"
    row = f"2026-11-20 10:00:01 10.0.0.1 /a 192.0.2.1,{blank}10.0.0.7\n"
    path.write_text("#Fields: date time c-ip cs-uri-stem X-Forwarded-For\n" + row * 5)
    assert Trace.from_log(path, trusted_proxies=["10.0.0.0/8"]).clients == ["192.0.2.1"]
