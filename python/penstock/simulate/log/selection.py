"""Which fields of a log say when, who and how much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.simulate.log.errors import LogError
from penstock.validation import did_you_mean, is_whole

__all__ = ["Wanted", "chosen"]

_MOST_ID_FIELDS: Final = 6
# What a word of ours is called in logs of objects and of columns; the first that is there counts.
_ALSO: Final = {
    "time": (
        "@timestamp", "timestamp", "ts", "time_iso8601", "msec", "time_local", "datetime", "date",
        "StartUTC", "EdgeStartTimestamp", "eventTime", "request_time_start", "event_time",
        "created_at", "at", "times", "t",
    ),
    "address": (
        "remote_addr", "remote_ip", "client_ip", "clientip", "client_addr", "client.ip",
        "client.address", "source.ip", "source.address", "request.client_ip", "request.remote_ip",
        "httpRequest.remoteIp", "ClientHost", "ClientIP", "sourceIPAddress", "remote_address", "ip",
        "ip_address", "host", "client",
    ),
    "user": ("remote_user", "user_id", "userid", "username", "user.name", "user.id", "account"),
    "path": ("uri", "request_uri", "url.path", "request.uri", "RequestPath", "url", "target"),
    "method": ("request_method", "http_method", "request.method", "RequestMethod", "verb"),
    "user_agent": (
        "http_user_agent", "agent", "useragent", "user_agent.original", "httpRequest.userAgent",
    ),
    "bytes": ("body_bytes_sent", "bytes_sent", "size", "response_size", "DownstreamContentSize"),
    "status": ("status_code", "code", "http_status", "response.status_code", "DownstreamStatus"),
}  # fmt: skip


class Wanted(NamedTuple):
    """What a reading wants of a log.

    Attributes:
        time: The field that says when; `None` to find it.
        ids: The fields that an id is made of; empty if all events are one client's.
        cost: The field that says how much; `None` where all cost the same.
        constant: What each costs, where no field says it; `None` is 1.
    """

    time: str | None
    ids: tuple[str, ...]
    cost: str | None
    constant: int | None

    @classmethod
    def of(
        cls,
        time: str | int | None,
        id: str | int | Iterable[str | int] | None,
        cost: str | int | None,
    ) -> Wanted:
        """Check what a caller wants.

        Raises:
            LogError: A name that is none, more fields than an id may have, a negative cost.
        """
        if id is None:
            named: list[object] = []
        elif isinstance(id, Iterable) and not isinstance(id, str):
            named = list(id)
        else:
            named = [id]
        ids = tuple(_name("id", field) for field in named)
        if len(ids) > _MOST_ID_FIELDS or (id is not None and not ids):
            raise LogError(f"id must be made of 1 to {_MOST_ID_FIELDS} fields, found {len(ids)}")
        if isinstance(cost, int):
            if not is_whole(cost, 0, 2**63 - 1):
                raise LogError(f"cost must be at least 0, or the name of a field, found {cost!r}")
            return cls(None if time is None else _name("time", time), ids, None, cost)
        field = None if cost is None else _name("cost", cost)
        return cls(None if time is None else _name("time", time), ids, field, None)


def _name(what: str, given: object) -> str:
    if is_whole(given, 0, 4095):
        return str(given)
    if isinstance(given, str) and given:
        return given
    raise LogError(f"{what} must be the name of a field, found {given!r}")


def chosen(what: str, wanted: str, known: Iterable[str], where: str) -> str:
    """Choose the field that a name means: itself, or what logs like to call it.

    Raises:
        LogError: There is none.

    >>> chosen("id", "address", ["ts", "client_ip"], "access.json")
    'client_ip'
    """
    names = list(known)
    for name in (wanted, *_ALSO.get(wanted, ())):
        if name in names:
            return name
    known_are = did_you_mean(wanted, names)
    if wanted in _ALSO:
        # Perhaps nobody asked for it by this name, which is what is looked for unless told.
        raise LogError(
            f"no field of {where} is called {wanted!r}, or as logs like to call that; {what}= says "
            f"which one it is; {known_are}"
        )
    raise LogError(f"{what} must be a field of {where}, found {wanted!r}; {known_are}")
