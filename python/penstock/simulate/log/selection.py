"""The fields of a log that hold the time, the id and the cost of an event."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.display import printable
from penstock.simulate.log.errors import LogError
from penstock.validation import did_you_mean, is_whole
from penstock.web.address import client_address
from penstock.web.request import MissingId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ID_FIELDS: Final = 6
CLIENT: Final = "address"
"""The field of the client's address, or of the proxy's before it."""
FORWARDED_FOR: Final = "forwarded_for"
"""The field of the header `X-Forwarded-For`."""
# Common names of our fields in JSON and CSV logs; the first one that exists is used.
_ALIASES: Final = {
    "time": (
        "@timestamp", "timestamp", "ts", "time_iso8601", "msec", "time_local", "datetime", "date",
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
        "httpRequest.uri", "requestUri", "request",
    ),
    "target": (
        "request_uri", "uri", "request.uri", "RequestPath", "url", "httpRequest.requestUrl",
        "ClientRequestURI", "httpRequest.uri", "requestUri", "request", "path",
    ),
    "method": (
        "request_method", "http_method", "request.method", "RequestMethod", "verb", "cs-method",
        "httpRequest.requestMethod", "http.request.method", "ClientRequestMethod",
        "httpRequest.httpMethod", "httpMethod", "req.method", "request",
    ),
    "user_agent": (
        "http_user_agent", "agent", "useragent", "user_agent.original", "httpRequest.userAgent",
        "cs(User-Agent)", "request_User-Agent",
    ),
    "bytes": (
        "body_bytes_sent", "bytes_sent", "size", "response_size", "DownstreamContentSize",
        "sc-bytes",
    ),
    "status": (
        "status_code", "code", "http_status", "response.status_code", "DownstreamStatus",
        "sc-status", "httpRequest.status",
    ),
    "forwarded_for": (
        "x_forwarded_for", "http_x_forwarded_for", "xff", "x-forwarded-for", "X-Forwarded-For",
        "headers.x-forwarded-for", "request.headers.X-Forwarded-For",
    ),
    "duration": (
        "request_time", "response_time", "duration_ms", "elapsed", "latency", "Duration",
        "time-taken", "event.duration", "httpRequest.latency", "rt",
    ),
}  # fmt: skip
# Fields with the client that a proxy names. They are never chosen, but make a choice doubtful.
_FORWARDED: Final = (
    "x_forwarded_for", "http_x_forwarded_for", "xff", "forwarded_for", "x_real_ip",
    "http_x_real_ip", "true_client_ip", "x-forwarded-for", "X-Forwarded-For", "cf_connecting_ip",
    "http_cf_connecting_ip",
)  # fmt: skip
_MAX_SHOWN: Final = 60


class FieldSelection(NamedTuple):
    """The fields to read from a log.

    Attributes:
        time: The field of the time; None to detect it.
        ids: The fields that an id consists of; empty if all events are one client's.
        cost: The field of the cost; None if all events cost the same.
        constant: The cost of each event if no field holds it; None is 1.
        duration: The field of the duration; None if it is not read.
        conditions: The fields of the conditions.
        has_forwarded: Whether the header with the clients of proxies is read.
    """

    time: str | None = None
    ids: tuple[str, ...] = ()
    cost: str | None = None
    constant: int | None = None
    duration: str | None = None
    conditions: tuple[str, ...] = ()
    has_forwarded: bool = False

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The fields with texts, each after its option: first those that the core makes ids of."""
        forwarded = [("forwarded_for", FORWARDED_FOR)] if self.has_forwarded else []
        return [
            *(("id", field) for field in self.ids),
            *forwarded,
            *(("where", field) for field in self.conditions),
        ]

    @property
    def names(self) -> list[str]:
        """The names of these fields."""
        return [field for _, field in self.texts]

    @classmethod
    def of(
        cls,
        time: str | int | None,
        id: str | int | Iterable[str | int] | None,
        cost: str | int | None,
        duration: str | int | None = None,
    ) -> FieldSelection:
        """Check the fields that the caller passed.

        Raises:
            LogError: A name is not valid, an id has too many fields, or the cost is negative.
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
        constant = cost if isinstance(cost, int) else None
        if constant is not None and not is_whole(constant, 0, 2**63 - 1):
            raise LogError(
                f"cost must be an integer of at least 0 or the name of a field, found {cost!r}"
            )
        return cls(
            time=None if time is None else _name("time", time),
            ids=ids,
            cost=None if cost is None or constant is not None else _name("cost", cost),
            constant=constant,
            duration=None if duration is None else _name("duration", duration),
        )


def _name(option: str, given: object) -> str:
    if is_whole(given, 0, 4095):
        return str(given)
    if isinstance(given, str) and given:
        return given
    raise LogError(f"{option} must be the name of a field, found {given!r}")


def resolve_client(known: Iterable[str], rows: Sequence[Mapping[str, str]], where: str) -> str:
    """Return the field of the client's address.

    Args:
        known: The fields of the log.
        rows: The values of the first lines by field.
        where: The log, for messages.

    Raises:
        LogError: There is no such field, or several with different values.

    >>> resolve_client(["ts", "client_ip"], [{"client_ip": "192.0.2.1"}], "access.json")
    'client_ip'
    """
    names = list(known)
    found = [name for name in ("address", *_ALIASES["address"]) if name in names]
    if not found:
        likely = [name for name in names if any(is_address(row.get(name, "")) for row in rows)]
        listed = f"fields with addresses are {', '.join(likely)}" if likely else ""
        raise LogError(
            f"{where} has no field 'address' (or a known alias); pass id=; "
            f"{listed or did_you_mean('address', names)}"
        )
    first, *others = found
    if first == "address" and "forwarded_for" not in names:
        return first
    doubtful = [name for name in others if _differ(rows, first, name)]
    for name in _FORWARDED:
        differing = sum(_differ([row], first, name) for row in rows)
        if name in names and differing * 2 > len(rows):
            doubtful.append(name)
    if doubtful:
        row = next(row for row in rows if any(_differ([row], first, name) for name in doubtful))
        values = {name: printable(row.get(name, ""), _MAX_SHOWN) for name in (first, *doubtful)}
        shown = ", ".join(f"{name} ({value})" for name, value in values.items())
        raise LogError(
            f"{where} has several fields that may be the client: {shown}; pass id=, or "
            "trusted_proxies= or hops= as in production"
        )
    return first


def _differ(rows: Sequence[Mapping[str, str]], first: str, second: str) -> bool:
    """Whether a row has two different clients, not counting empty values."""
    pairs = ((row.get(first, ""), row.get(second, "")) for row in rows)
    return any(b not in {"", "-"} and _client(a) != _client(b) for a, b in pairs)


def _client(text: str) -> str:
    """Return an address without its port, and another text as it is."""
    try:
        return client_address(text)
    except MissingId:
        return text


def is_address(text: str) -> bool:
    """Whether a text is an address, or a list of which the first is one."""
    try:
        ipaddress.ip_address(text.partition(",")[0].strip())
    except ValueError:
        return False
    return True


def resolve_field(option: str, name: str, known: Iterable[str], where: str) -> str:
    """Return the field with a name or one of its aliases.

    Raises:
        LogError: There is no such field.

    >>> resolve_field("id", "address", ["ts", "client_ip"], "access.json")
    'client_ip'
    """
    names = list(known)
    for alias in (name, *_ALIASES.get(name, ())):
        if alias in names:
            return alias
    suggestion = did_you_mean(name, names)
    if name in _ALIASES:
        # The name may be a default that the caller did not pass.
        raise LogError(
            f"{where} has no field {name!r} (or a known alias); pass {option}=; {suggestion}"
        )
    raise LogError(f"{option} must be a field of {where}, found {name!r}; {suggestion}")
