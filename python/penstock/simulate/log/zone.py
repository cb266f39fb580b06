"""Time zones in the core's form: UTC offsets, each with its first local second."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.simulate.log.errors import LogError

Zone: TypeAlias = tuple[int, list[tuple[int, int]]]

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  a local time
_LAST_DAY: Final = 130 * 366
_FIXED: Final = re.compile(r"([+-])(\d\d):?(\d\d)")


def parse_zone(value: str | datetime.tzinfo) -> Zone:
    """Parse a zone: `UTC`, a name such as `Europe/Berlin`, an offset such as `+05:30`, a tzinfo.

    An ambiguous time at the end of daylight saving time is the first of the two.

    Raises:
        LogError: There is no such zone.
    """
    if isinstance(value, str):
        if match := _FIXED.fullmatch(value):
            sign, hours, minutes = match.groups()
            return int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60), []
        if value.upper() in ("UTC", "Z", "GMT"):
            return 0, []
        try:
            value = ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise LogError(
                f"tz must be 'UTC', an offset such as '+05:30' or a zone such as 'Europe/Berlin', "
                f"found {value!r}: {error}"
            ) from error
    return _changes(value)


@lru_cache(16)
def _changes(zone: datetime.tzinfo) -> Zone:
    def offset(second: int) -> int:
        local = _EPOCH + datetime.timedelta(seconds=second)
        east = local.replace(tzinfo=zone).utcoffset()
        return 0 if east is None else int(east.total_seconds())

    first = last = offset(0)
    changes = []
    for day in range(_LAST_DAY):
        if offset((day + 1) * 86_400) == last:
            continue
        # Offsets change at whole minutes; bisect the day.
        low, high = day * 1440, (day + 1) * 1440
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if offset(middle * 60) != last else (middle, high)
        last = offset(high * 60)
        changes.append((high * 60, last))
    return first, changes
