"""The options of the core's parser, and time zones."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

from penstock._core import IPV6_PREFIX, LogParser
from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""The units of times and durations, in nanoseconds."""
_ZULU: Final = ("UTC", "Z", "GMT")


class Options(NamedTuple):
    """The options of the core's parser.

    Attributes:
        has_cost: Whether a field holds the cost.
        duration_unit: The unit of durations that do not state one, in nanoseconds; None if
            durations are not read.
        id_fields: The number of fields of an id.
        client: The field of the id with the client, by index; a line without it has no id.
        is_address: Whether the client must be an address.
        zone: The zone of times without one.
        window: How late a line may be, in nanoseconds; None for any time.
        ipv6_prefix: Leading bits of an IPv6 address that identify a client.
        is_json_wrapped: Whether a line is the field `log` of a JSON object.
        prefix_words: The number of words before a line.
        directive: The directive that names the fields of a W3C log; None for other logs.
        parts: The slots of requests of which only a part is used, each with the part.
        conditions: For each condition the index of its field after those of the id, whether no
            pattern may match, and the patterns.
    """

    has_cost: bool = False
    duration_unit: int | None = None
    id_fields: int = 0
    client: int | None = None
    is_address: bool = False
    zone: str = "UTC"
    window: int | None = None
    ipv6_prefix: int = IPV6_PREFIX
    is_json_wrapped: bool = False
    prefix_words: int = 0
    directive: bytes | None = None
    parts: Sequence[tuple[int, str]] = ()
    conditions: Sequence[tuple[int, bool, Sequence[str]]] = ()


def parse_zone(value: str | datetime.tzinfo) -> str:
    """Return the name of a zone: `UTC`, `Europe/Berlin`, or an offset such as `+05:30`.

    Args:
        value: Such a name, a `zoneinfo.ZoneInfo`, or a `tzinfo` with a fixed offset.

    Raises:
        LogError: There is no such zone.
    """
    # A fixed offset is written as UTC+05:30.
    name = value if isinstance(value, str) else str(value).removeprefix("UTC") or "UTC"
    if name.upper() in _ZULU:
        name = "UTC"
    try:
        LogParser.of_objects([], Options(zone=name))
    except ValueError as error:
        raise LogError(
            f"tz must be 'UTC', an offset such as '+05:30' or a zone such as 'Europe/Berlin', "
            f"found {value!r}: {error}"
        ) from error
    return name


def zone_info(name: str) -> datetime.tzinfo:
    """Return the zone with a name that `parse_zone` returned."""
    if name == "UTC":
        return datetime.UTC
    if name[0] in "+-":
        return datetime.datetime.strptime(name, "%z").tzinfo or datetime.UTC
    return ZoneInfo(name)
