"""Every format that is read, compared with what its lines say.

The lines have the shape that the servers' documentation describes. Each is written here from an
event, so that what is read can be compared with what was meant: client, time, method, path, bytes
and duration.
"""

from __future__ import annotations

import datetime
import json
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pytest

from penstock._web.address import client_address
from penstock.simulate import Trace
from penstock.simulate.log import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Write

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ADDRESSES: Final = ("192.0.2.7", "198.51.100.250", "2001:db8:1:2::9", "2001:DB8::1", "::1")
PATHS: Final = ("/", "/a", "/a/b.css", "/caf%C3%A9", "/search")
AGENTS: Final = ("curl/8.5.0", "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101", "-")


class Event(NamedTuple):
    """A request, with its duration in milliseconds."""

    client: str
    time: datetime.datetime
    method: str
    path: str
    query: str
    status: int
    size: int
    millis: int
    agent: str

    @property
    def request(self) -> str:
        return f"{self.method} {self.target} HTTP/1.1"

    @property
    def target(self) -> str:
        return self.path + self.query

    @property
    def server_time(self) -> str:
        time = self.time
        return f"{time:%d}/{MONTHS[time.month - 1]}/{time:%Y:%H:%M:%S %z}"

    @property
    def iso(self) -> str:
        return self.time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @property
    def seconds(self) -> str:
        return f"{self.millis / 1000:.3f}"

    @property
    def port(self) -> str:
        return f"[{self.client}]:4711" if ":" in self.client else f"{self.client}:4711"


def events(seed: int) -> list[Event]:
    """Return events in order, each in a zone of its own."""
    chosen = Random(seed)  # noqa: S311  no secret
    start = datetime.datetime(2026, 2, 27, 22, 58, tzinfo=datetime.UTC)
    found = []
    for index in range(60):
        zone = datetime.timezone(datetime.timedelta(minutes=chosen.choice([0, 210, -420, 345])))
        found.append(
            Event(
                chosen.choice(ADDRESSES),
                (start + datetime.timedelta(minutes=40 * index)).astimezone(zone),
                chosen.choice(["GET", "POST", "DELETE"]),
                chosen.choice(PATHS),
                chosen.choice(["", "?q=1", "?a=b&c"]),
                chosen.choice([200, 304, 404, 502]),
                chosen.randrange(10**7),
                chosen.choice([0, 1, 42, 250, 61_250]),
                chosen.choice(AGENTS),
            )
        )
    return found


def common(event: Event) -> str:
    client, user = event.client, "ada" if event.size % 2 else "-"
    return f'{client} - {user} [{event.server_time}] "{event.request}" {event.status} {event.size}'


def combined(event: Event) -> str:
    return f'{common(event)} "https://shop.example/?a" "{event.agent}"'


def traefik(event: Event) -> str:
    return f'{combined(event)} 12 "web@docker" "http://10.1.0.5:80" {event.millis}ms'


def ingress(event: Event) -> str:
    rest = f"[default-web-80] [] 10.1.0.5:80 {event.size} {event.seconds} {event.status} 5f3a"
    return f"{combined(event)} 512 {event.seconds} {rest}"


def elb(event: Event) -> str:
    # The first part of a duration is almost always 0; -1 is written if there was no answer.
    parts = f"0.000 {event.seconds} 0.000" if event.status != 502 else "-1 -1 -1"
    request = f"{event.method} https://shop.example:443{event.target} HTTP/1.1"
    return (
        f"{event.iso} web-lb {event.port} 10.0.0.1:80 {parts} {event.status} 200 34 {event.size} "
        f'"{request}" "{event.agent}" ECDHE-RSA TLSv1.2'
    )


def alb(event: Event) -> str:
    return f'https {elb(event)} arn:aws:x "Root=1-58" "-" "-" 1 {event.iso} "forward" "-" "-"'


def s3(event: Event) -> str:
    return (
        f"79a59df900b949e5 bucket [{event.server_time}] {event.client} - 3E57 REST.GET.OBJECT key "
        f'"{event.request}" {event.status} - {event.size} 4096 {event.millis} 3 "-" '
        f'"{event.agent}" -'
    )


def haproxy(event: Event) -> str:
    time = event.time.astimezone(datetime.UTC)
    day = f"{time:%d}/{MONTHS[time.month - 1]}/{time:%Y:%H:%M:%S}"
    client = f"{event.client}:4711" if "." in event.client else f"[{event.client}]:4711"
    return (
        f"Feb  6 12:14:14 lb1 haproxy[14389]: {client} [{day}.000] web~ app/srv1 "
        f"10/0/30/69/{event.millis} {event.status} {event.size} - - ---- 1/1/1/1/0 0/0 "
        f'{{shop.example}} {{}} "{event.request}"'
    )


def iis(event: Event) -> str:
    when = event.time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    query, agent = event.query.lstrip("?") or "-", event.agent.replace(" ", "+")
    return (
        f"{when} 10.0.0.1 {event.method} {event.path} {query} 443 - {event.client} {agent} - "
        f"{event.status} 0 0 {event.size} {event.millis}"
    )


def cloudfront(event: Event) -> str:
    when = event.time.astimezone(datetime.UTC).strftime("%Y-%m-%d\t%H:%M:%S")
    cells = (
        when, "FRA2-C1", event.size, event.client, event.method, "d1.cloudfront.net", event.path,
        event.status, event.agent.replace(" ", "%20"), event.query.lstrip("?") or "-", "Hit",
        event.seconds,
    )  # fmt: skip
    return "\t".join(map(str, cells))


def of_json(make: Callable[[Event], dict[str, Any]]) -> Callable[[Event], str]:
    return lambda event: json.dumps(make(event))


def caddy(event: Event) -> dict[str, Any]:
    request = {"remote_ip": event.client, "method": event.method, "uri": event.target}
    return {
        "level": "info", "ts": event.time.timestamp(), "logger": "http.log.access",
        "request": request, "duration": event.millis / 1000, "size": event.size,
        "status": event.status,
    }  # fmt: skip


def traefik_json(event: Event) -> dict[str, Any]:
    return {
        "ClientAddr": event.port, "ClientHost": event.client, "Duration": event.millis * 10**6,
        "RequestMethod": event.method, "RequestPath": event.target, "StartUTC": event.iso,
        "DownstreamContentSize": event.size,
    }  # fmt: skip


def envoy(event: Event) -> dict[str, Any]:
    return {
        "start_time": event.iso, "method": event.method, "path": event.target,
        "response_code": event.status, "response_flags": "-", "bytes_sent": event.size,
        "duration": event.millis, "downstream_remote_address": event.port,
    }  # fmt: skip


def google(event: Event) -> dict[str, Any]:
    return {
        "timestamp": event.iso,
        "httpRequest": {
            "requestMethod": event.method, "requestUrl": f"https://shop.example{event.target}",
            "remoteIp": event.client, "latency": f"{event.millis / 1000}s",
        },
        "size": event.size,
    }  # fmt: skip


def elastic(event: Event) -> dict[str, Any]:
    return {
        "@timestamp": event.iso, "source": {"ip": event.client}, "url": {"path": event.path},
        "http": {"request": {"method": event.method}, "response": {"status_code": event.status}},
        "event": {"duration": event.millis * 10**6}, "bytes": event.size,
    }  # fmt: skip


def nginx_json(event: Event) -> dict[str, Any]:
    return {
        "time_iso8601": event.time.isoformat(), "remote_addr": event.client,
        "request": event.request, "status": str(event.status), "request_time": event.seconds,
        "body_bytes_sent": str(event.size),
    }  # fmt: skip


def own_json(event: Event) -> dict[str, Any]:
    return {
        "time": event.iso, "client_ip": event.client, "method": event.method, "path": event.path,
        "elapsedMs": event.millis, "size": event.size,
    }  # fmt: skip


def docker(event: Event) -> dict[str, Any]:
    return {"log": f"{ingress(event)}\n", "stream": "stdout", "time": event.iso}


def syslog(event: Event) -> str:
    return f"Nov  1 06:25:17 web1 nginx: {combined(event)}"


def kubernetes(event: Event) -> str:
    return f"{event.iso} stdout F {ingress(event)}"


IIS = (
    "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time s-ip cs-method "
    "cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status "
    "sc-substatus sc-win32-status sc-bytes time-taken\n"
)
CLOUDFRONT = (
    "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) "
    "cs-uri-stem sc-status cs(User-Agent) cs-uri-query x-edge-result-type time-taken\n"
)
# The name of the format, a line, and what is before the first line.
FORMATS: Final[dict[str, tuple[str, Callable[[Event], str], str]]] = {
    "combined": ("combined", combined, ""),
    "common": ("common", common, ""),
    "vhost": ("vhost_combined", lambda event: f"shop.example:443 {combined(event)}", ""),
    "main": ("main", lambda event: f'{combined(event)} "-"', ""),
    "traefik": ("traefik", traefik, ""),
    "ingress": ("ingress", ingress, ""),
    "alb": ("alb", alb, ""),
    "elb": ("elb", elb, ""),
    "s3": ("s3", s3, ""),
    "haproxy": ("haproxy, after 5 words", haproxy, ""),
    "iis": ("w3c", iis, IIS),
    "cloudfront": ("w3c", cloudfront, CLOUDFRONT),
    "caddy": ("jsonl", of_json(caddy), ""),
    "traefik_json": ("jsonl", of_json(traefik_json), ""),
    "envoy": ("jsonl", of_json(envoy), ""),
    "google": ("jsonl", of_json(google), ""),
    "elastic": ("jsonl", of_json(elastic), ""),
    "nginx_json": ("jsonl", of_json(nginx_json), ""),
    "own_json": ("jsonl", of_json(own_json), ""),
    "docker": ("ingress, in json-file", of_json(docker), ""),
    "syslog": ("combined, after 5 words", syslog, ""),
    "kubernetes": ("ingress, after 3 words", kubernetes, ""),
    "compose": ("combined, after 2 words", lambda event: f"web-1  | {combined(event)}", ""),
}  # fmt: skip
WITHOUT_DURATION = {"combined", "common", "vhost", "main", "syslog", "compose"}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_is_what_the_lines_say(write: Write, name: str) -> None:
    found, line, head = FORMATS[name]
    expected = sorted(events(7), key=lambda event: event.time)
    log = write("a.log", head + "".join(f"{line(event)}\n" for event in expected))
    trace = Trace.from_log(log, cost="bytes")
    assert (trace.skipped.format, trace.skipped.skipped) == (found, 0)
    assert trace.ids is not None
    assert trace.ids.tolist() == [client_address(event.client) for event in expected]
    seconds = [int(event.time.timestamp()) for event in expected]
    assert (trace.times // 10**9).tolist() == seconds
    assert trace.costs is not None
    assert trace.costs.tolist() == [event.size for event in expected]
    parts = Trace.from_log(log, id=("method", "path"))
    assert parts.ids is not None
    assert parts.ids.tolist() == [f"{event.method}\t{event.path}" for event in expected]
    if name in WITHOUT_DURATION:
        with pytest.raises(LogError, match="duration"):
            Trace.from_log(log, duration="duration")
        return
    durations = Trace.from_log(log, duration="duration").durations
    assert durations is not None
    # A load balancer has no duration for a request without an answer.
    without = 502 if name in {"alb", "elb"} else None
    millis = [0 if event.status == without else event.millis for event in expected]
    assert (durations // np.timedelta64(1, "ms")).tolist() == millis


@pytest.mark.parametrize(
    ("field", "value", "nanos"),
    [
        ("duration_ms", 250, 250_000_000),
        ("durationMs", 250.5, 250_500_000),
        ("elapsed_s", 0.25, 250_000_000),
        ("took_us", 17, 17_000),
        ("latency_nanos", 17, 17),
        ("latency-seconds", "2", 2 * 10**9),
        ("time(ms)", 2, 2_000_000),
        ("Duration", 250_000_000, 250_000_000),
        ("request_time", "0.004", 4_000_000),
        ("took", "42ms", 42_000_000),
        ("took", "0.250s", 250_000_000),
        ("took", "1m2.5s", 62_500_000_000),
        ("took", "17µs", 17_000),
        # A unit in the value comes before that of the name.
        ("duration_ms", "2s", 2 * 10**9),
        ("took_s", "-", 0),
        ("took_s", None, 0),
        ("took_s", -1, 0),
        ("took_s", "", 0),
    ],
)
def test_a_duration_is_read_in_the_unit_that_is_stated(
    write: Write, field: str, value: object, nanos: int
) -> None:
    row = {"time": "2026-11-21T06:25:17Z", "ip": "192.0.2.1", field: value}
    log = write("a.log", f"{json.dumps(row)}\n")
    durations = Trace.from_log(log, duration=field).durations
    assert durations is not None
    assert durations.astype(np.int64).tolist() == [nanos]


def test_an_absent_duration_is_no_error(write: Write) -> None:
    row = {"time": "2026-11-21T06:25:17Z", "ip": "192.0.2.1"}
    lines = [json.dumps(row), json.dumps({**row, "took_ms": 3})]
    durations = Trace.from_log(write("a.log", "\n".join(lines)), duration="took_ms").durations
    assert durations is not None
    assert durations.astype(np.int64).tolist() == [0, 3_000_000]


@pytest.mark.parametrize("value", [17, "17", 0.25, "fast"])
def test_a_duration_without_a_unit_is_asked_about(write: Write, value: object) -> None:
    row = {"time": "2026-11-21T06:25:17Z", "ip": "192.0.2.1", "took": value}
    log = write("a.log", f"{json.dumps(row)}\n")
    with pytest.raises(LogError, match="duration_unit="):
        Trace.from_log(log, duration="took")
    if value != "fast":
        durations = Trace.from_log(log, duration="took", duration_unit="ms").durations
        assert durations is not None
        assert durations.astype(np.int64).tolist() == [float(str(value)) * 1_000_000]


@pytest.mark.parametrize("value", ["250000000", "fast", "nan", "inf", "1x", "1.2.3s", "1e300s"])
def test_text_that_is_no_duration_is_refused(write: Write, value: str) -> None:
    row = {"time": "2026-11-21T06:25:17Z", "ip": "192.0.2.1", "took": value}
    log = write("a.log", f"{json.dumps(row)}\n")
    with pytest.raises(LogError, match="duration must be"):
        Trace.from_log(log, duration="took", duration_unit="s")
