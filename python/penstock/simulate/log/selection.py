"""The fields of a log that hold the time, the id, the cost and the duration of an event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._core import LogParser
from penstock._display import printable
from penstock._validation import did_you_mean
from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.simulate.log.options import Options
    from penstock.simulate.log.where import Condition

MAX_ID_FIELDS: Final = 6
CLIENT: Final = "address"
"""The field of the client's address, or of the proxy's before it."""
UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""The units of durations, in nanoseconds."""
_FORWARDED_FOR: Final = "forwarded_for"
# The core's numbers for the parts of an event.
_TIME: Final = 0
_COST: Final = 1
_ID: Final = 2
_DURATION: Final = 8
# Common names of our fields; the first one that exists is used.
_ALIASES: Final = {
    "time": (
        "@timestamp", "timestamp", "ts", "msec", "time_iso8601", "time_local", "datetime", "date",
        "StartUTC", "EdgeStartTimestamp", "eventTime", "request_time_start", "event_time",
        "created_at", "start_time", "at", "times", "t", "requestTime", "timeStamp", "started_at",
        "timestamp(ms)", "Time",
    ),
    "address": (
        "remote_addr", "remote_ip", "client_ip", "clientip", "client_addr", "client.ip",
        "client.address", "source.ip", "source.address", "request.client_ip", "request.remote_ip",
        "httpRequest.remoteIp", "httpRequest.clientIp", "ClientHost", "ClientIP",
        "sourceIPAddress", "remote_address", "downstream_remote_address", "ip", "ip_address",
        "client", "c-ip", "fwd", "remoteAddr", "req.remoteAddress", "properties.clientIP",
        "proxy.clientIp", "cliIP", "RemoteAddr",
    ),
    "user": (
        "remote_user", "user_id", "userid", "username", "user.name", "user.id", "account",
        "cs-username",
    ),
    "path": (
        "uri", "request_uri", "url.path", "request.uri", "RequestPath", "url", "target",
        "cs-uri-stem", "httpRequest.requestUrl", "ClientRequestPath", "ClientRequestURI",
        "httpRequest.uri", "requestUri", "properties.requestUri", "resourcePath", "request",
    ),
    "target": (
        "request_uri", "uri", "request.uri", "RequestPath", "url", "httpRequest.requestUrl",
        "ClientRequestURI", "httpRequest.uri", "requestUri", "properties.requestUri",
        "resourcePath", "request", "path",
    ),
    "method": (
        "request_method", "http_method", "request.method", "RequestMethod", "verb", "cs-method",
        "httpRequest.requestMethod", "http.request.method", "ClientRequestMethod",
        "httpRequest.httpMethod", "httpMethod", "properties.httpMethod", "req.method", "request",
    ),
    "user_agent": (
        "http_user_agent", "agent", "useragent", "user_agent.original", "httpRequest.userAgent",
        "cs(User-Agent)", "request_User-Agent",
    ),
    "referer": ("http_referer", "cs(Referer)"),
    "bytes": (
        "bytes_sent", "body_bytes_sent", "size", "response_size", "DownstreamContentSize",
        "sc-bytes",
    ),
    "status": (
        "status_code", "code", "http_status", "response.status_code", "http.response.status_code",
        "DownstreamStatus", "sc-status", "httpRequest.status",
    ),
    "forwarded_for": (
        "x_forwarded_for", "http_x_forwarded_for", "xff", "x-forwarded-for", "X-Forwarded-For",
        "headers.x-forwarded-for", "request.headers.X-Forwarded-For",
    ),
    "duration": (
        "request_time", "duration_s", "duration_ms", "duration_us", "duration_ns", "total_time_ms",
        "durationMs", "request_processing_time", "response_time", "response_time_ms", "elapsed",
        "elapsed_ms", "elapsedMs", "latency", "latency_ms", "Duration", "time-taken",
        "event.duration", "httpRequest.latency", "responseLatency", "rt", "service",
    ),
}  # fmt: skip
# Fields with the client that a proxy names. They are never chosen, but make a choice doubtful.
FORWARDED: Final = (
    *_ALIASES[_FORWARDED_FOR], _FORWARDED_FOR, "x_real_ip", "http_x_real_ip", "true_client_ip",
    "cf_connecting_ip", "http_cf_connecting_ip",
)  # fmt: skip
REST: Final = "the rest of the line"
"""What follows the fields of a format; it may have the client that a proxy names."""
# Fields that a line with a request has.
_OF_REQUEST: Final = frozenset({"path", "method", *_ALIASES["path"], *_ALIASES["method"]})
_MAX_SHOWN: Final = 60
# The columns of the W3C format that hold the time.
_DATE_AND_TIME: Final = ("date", "time")
# Load balancers of AWS state a duration in three parts.
_PROCESSING_TIMES: Final = tuple(
    f"{part}_processing_time" for part in ("request", "target", "response")
)
# The units of durations whose names do not say them.
_UNITS_OF: Final = {
    "request_time": "s",  # nginx
    "upstream_response_time": "s",
    **dict.fromkeys(_PROCESSING_TIMES, "s"),
    "Duration": "ns",  # Traefik
    "event.duration": "ns",  # Elastic Common Schema
    "responseLatency": "ms",  # Amazon API Gateway
}
_UNIT_IN_NAME: Final = re.compile(r"[._(-](n|u|m|nano|micro|milli|)s(?:ecs?|econds?)?\)?$")
_STATED: Final = re.compile(r"\d(?:ns|us|µs|μs|ms|s|m|h)$")
# Fields besides `duration` that tell the server, and its unit.
_SERVERS: Final = {
    "request.remote_ip": "s",  # Caddy
    "response_flags": "ms",  # Envoy
    "upstream_service_time": "ms",
}


class FieldSelection(NamedTuple):
    """The fields to read from a log.

    Attributes:
        time: The field of the time; None to detect it.
        ids: The fields that an id consists of; empty if all events are one client's.
        cost: The field of the cost; None if each event costs 1.
        duration: The field of the duration; None if it is not read.
        duration_unit: The unit of durations; None to detect it.
        conditions: The conditions of which all must hold.
        has_forwarded: Whether the header with the clients of proxies is read.
    """

    time: str | None = None
    ids: tuple[str, ...] = ()
    cost: str | None = None
    duration: str | None = None
    duration_unit: str | None = None
    conditions: tuple[Condition, ...] = ()
    has_forwarded: bool = False

    @classmethod
    def of(
        cls,
        time: str | None,
        id: Any,
        cost: str | None,
        duration: str | None,
        duration_unit: str | None,
    ) -> FieldSelection:
        """Check the fields that the caller passed.

        Raises:
            LogError: A name is not valid, or an id has too many fields.
        """
        if id is None:
            named: list[object] = []
        elif isinstance(id, Iterable) and not isinstance(id, str):
            named = list(id)
        else:
            named = [id]
        ids = tuple(_name("id", field) for field in named)
        if len(ids) > MAX_ID_FIELDS or (id is not None and not ids):
            raise LogError(f"id must have 1 to {MAX_ID_FIELDS} fields, found {len(ids)}")
        return cls(
            time=None if time is None else _name("time", time),
            ids=ids,
            cost=None if cost is None else _name("cost", cost),
            duration=None if duration is None else _name("duration", duration),
            duration_unit=duration_unit,
        )


def _name(option: str, name: object) -> str:
    if isinstance(name, str) and name:
        return name
    raise LogError(f"{option} must be the name of a field, found {name!r}")


class Head(NamedTuple):
    """The beginning of a log.

    Attributes:
        format: The format of its lines.
        known: Its fields.
        rows: The values of the first lines that have the format, by field.
        parser: Makes a parser.
        words: The number of words before each of these lines.
        directive: The directive that names the fields of a W3C log.
        name: The name of the log, for messages.
    """

    format: str
    known: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    parser: Callable[[Options], LogParser]
    words: Sequence[int] = ()
    directive: bytes | None = None
    name: str = ""

    def select(self, wanted: FieldSelection, options: Options) -> tuple[Options, dict[str, str]]:
        """Return the options of the parser, and the field that is used for each option.

        Args:
            wanted: What the caller passed.
            options: The options of the parser.

        Raises:
            LogError: There is no such field, or it is doubtful which one is the client.
        """
        tested = list(dict.fromkeys(condition.field for condition in wanted.conditions))
        client = self._client_field(wanted) if CLIENT in (*wanted.ids, *tested) else ""
        named = [*(("id", name) for name in wanted.ids)]
        named += [(_FORWARDED_FOR, _FORWARDED_FOR)] * wanted.has_forwarded
        named += [("where", name) for name in tested]
        # For each field its option, its slot and the name to show.
        chosen = [("time", field, _TIME, field) for field in self._time_fields(wanted.time)]
        parts: list[tuple[int, str]] = []
        for slot, (option, name) in enumerate(named, _ID):
            field = self._text_field(option, name, client)
            # A field for the method has nothing else, but one for the path may have the query.
            if name in {"path", "target"} or (name == "method" and field == "request"):
                parts.append((slot, name))
            chosen.append((option, field, slot, name if field == "request" else field))
        first = _ID + len(named) - len(tested)
        options = options._replace(
            id_fields=first - _ID,
            parts=parts,
            conditions=[
                (first + tested.index(field), is_negated, patterns)
                for field, is_negated, patterns in wanted.conditions
            ],
        )
        if wanted.cost is not None:
            field = self._resolve("cost", wanted.cost)
            chosen.append(("cost", field, _COST, field))
            options = options._replace(has_cost=True)
        if wanted.duration is not None:
            fields = self._duration_fields(wanted.duration)
            chosen += [("duration", field, _DURATION, field) for field in fields]
            unit = wanted.duration_unit or self._duration_unit(fields[0])
            options = options._replace(duration_unit=UNITS[unit] if unit else 0)
        if CLIENT in wanted.ids:
            values = self._values(client)
            others = len(values) - sum(map(is_address, values))
            # Apache's %h may be the name of a host, but not if all first lines have addresses.
            most = 0 if "h" in self.known else len(values) // 2
            client_index = wanted.ids.index(CLIENT)
            options = options._replace(client=client_index, is_address=others <= most)
        used: dict[str, str] = {}
        for option, _, _, shown in chosen:
            used[option] = f"{used[option]}, {shown}" if option in used else shown
        return options._replace(slots=[(field, slot) for _, field, slot, _ in chosen]), used

    def _values(self, field: str) -> list[str]:
        return _present(field, self.rows)

    def _time_fields(self, wanted: str | None) -> Sequence[str]:
        """Return the field of the time, or those of the date and the time of day."""
        dates = self._values("date") if wanted is None and "time" in self.known else []
        if dates and all("-" in text and ":" not in text for text in dates):
            return _DATE_AND_TIME
        return (self._resolve("time", wanted or "time"),)

    def _text_field(self, option: str, name: str, client: str) -> str:
        is_listed = option == _FORWARDED_FOR and any(map(is_list, self._values(client)))
        if name == CLIENT or is_listed:
            return client
        return self._resolve(option, name)

    def _client_field(self, wanted: FieldSelection) -> str:
        """Return the field of the client's address: the one that most lines with a request have.

        Raises:
            LogError: There is no such field, or several with different values.
        """
        candidates = [name for name in (CLIENT, *_ALIASES[CLIENT]) if name in self.known]
        if not candidates:
            likely = [name for name in self.known if any(map(is_address, self._values(name)))]
            listed = f"fields with addresses are {', '.join(likely)}" if likely else ""
            raise LogError(
                f"{self.name} has no field 'address' (or a known alias); pass id=; "
                f"{listed or did_you_mean('address', self.known)}"
            )
        requests = [row for row in self.rows if any(map(row.get, _OF_REQUEST))] or self.rows

        def score(name: str) -> tuple[int, int]:
            values = _present(name, requests)
            return sum(map(is_address, values)), len(values)

        first = max(candidates, key=score)
        if wanted.has_forwarded:
            # The address of a proxy.
            return first
        doubtful = [
            name for name in candidates if any(_differ(row, first, name) for row in requests)
        ]
        doubtful += [
            name
            for name in (*FORWARDED, REST)
            if sum(_differ(row, first, name) for row in requests) * 2 > len(requests)
        ]
        for row in requests:
            if any(_differ(row, first, name) for name in doubtful):
                # A name that chooses this field, and is no default.
                own = "h" if first == CLIENT and "h" in self.known else first
                named = ((name, row.get(name, "")) for name in (own, *doubtful))
                shown = ", ".join(f"{name} ({_shown(value)})" for name, value in named)
                raise LogError(
                    f"{self.name} has several fields that may be the client: {shown}; pass id=, "
                    "trusted_proxies= or hops= as in production, or format= with all fields"
                )
        return first

    def _duration_fields(self, name: str) -> tuple[str, ...]:
        """Return the field of the duration, or those of its parts."""
        field = self._resolve("duration", name)
        return _PROCESSING_TIMES if field == _PROCESSING_TIMES[0] else (field,)

    def _duration_unit(self, field: str) -> str:
        """Return the unit of a duration that its name or other fields tell; "" if each value does.

        Raises:
            LogError: Nothing tells it.
        """
        if field in _UNITS_OF:
            return _UNITS_OF[field]
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field).lower()
        if match := _UNIT_IN_NAME.search(words):
            return "us" if match[1] == "micro" else f"{match[1][:1]}s"
        values = self._values(field)
        if words.replace("-", "_") == "time_taken" and values:
            # The format and CloudFront have seconds with a fraction, IIS whole milliseconds.
            return "s" if any("." in value for value in values) else "ms"
        for other, unit in _SERVERS.items() if field == "duration" else ():
            if other in self.known:
                return unit
        if values and all(map(_STATED.search, values)):
            return ""
        shown = f" ({_shown(values[0])})" if values else ""
        raise LogError(
            f"the unit of {field}{shown} in {self.name} is not known; pass duration_unit="
        )

    def _resolve(self, option: str, name: str) -> str:
        """Return the field with a name or one of its aliases.

        Raises:
            LogError: There is no such field.
        """
        for alias in (name, *_ALIASES.get(name, ())):
            if alias in self.known:
                return alias
        suggestion = did_you_mean(name, self.known)
        if name in _ALIASES:
            # The name may be a default that the caller did not pass.
            cure = f"pass {option}="
            if option == _FORWARDED_FOR:
                cure = "trusted_proxies= and hops= need it"
            raise LogError(
                f"{self.name} has no field {name!r} (or a known alias); {cure}; {suggestion}"
            )
        raise LogError(f"{option} must be a field of {self.name}, found {name!r}; {suggestion}")


def _present(field: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [value for row in rows if (value := row.get(field, "")) not in {"", "-"}]


def _shown(value: str) -> str:
    return printable(value, _MAX_SHOWN)


def _differ(row: Mapping[str, str], first: str, second: str) -> bool:
    """Return whether a line has two different clients."""
    one, other = row.get(first, ""), row.get(second, "")
    one, other = (LogParser.address(value) or value for value in (one, other))
    return not {one, other} & {"", "-"} and one != other


def is_address(value: str) -> bool:
    """Return whether a value is an address, or a list that begins with one."""
    return LogParser.address(value) is not None


def is_list(value: str) -> bool:
    """Return whether a value is a list of addresses, which proxies send."""
    items = [item.strip() for item in value.split(",")]
    return len(items) > 1 and not any(" " in item for item in items) and any(map(is_address, items))
