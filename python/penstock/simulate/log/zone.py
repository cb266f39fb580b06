"""Names of time zones, as the core's zone database has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._core import LogParser
from penstock.simulate.log.errors import LogError

if TYPE_CHECKING:
    import datetime

_ZULU: Final = ("UTC", "Z", "GMT")


def parse_zone(value: str | datetime.tzinfo) -> str:
    """Return the name of a zone: `UTC`, `Europe/Berlin`, or an offset such as `+05:30`.

    Args:
        value: Such a name, a `zoneinfo.ZoneInfo`, or a `tzinfo` with a fixed offset.

    Raises:
        LogError: There is no such zone.
    """
    name = value if isinstance(value, str) else _name_of(value)
    if name.upper() in _ZULU:
        name = "UTC"
    try:
        LogParser.of_objects([], (False, 0, name, None, None, 64, False, 0))
    except ValueError as error:
        raise LogError(
            f"tz must be 'UTC', an offset such as '+05:30' or a zone such as 'Europe/Berlin', "
            f"found {value!r}: {error}"
        ) from error
    return name


def _name_of(zone: datetime.tzinfo) -> str:
    key = getattr(zone, "key", None)
    if isinstance(key, str):
        return key
    offset = zone.utcoffset(None)
    if offset is None:
        raise LogError(f"tz must be a ZoneInfo or have a fixed offset, found {zone!r}")
    east = abs(round(offset.total_seconds() / 60))
    sign = "-" if offset.days < 0 else "+"
    return f"{sign}{east // 60:02}:{east % 60:02}"
