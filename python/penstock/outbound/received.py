"""When a service accepts the next request, read from the header fields of its response.

Nothing else reads these fields. All numbers are bounded here, so that no response can stop a
program for longer than a day. A field that cannot be read counts as absent.

Source: RFC 9110, sections 5.6.7 and 10.2.3, for dates and `Retry-After`; RFC 9651 for structured
fields, of which this reads lists of items; draft-ietf-httpapi-ratelimit-headers, revisions 03
to 11.
"""

from __future__ import annotations

import datetime
import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SECOND_NS: Final = 1_000_000_000
_DAY_NS: Final = 24 * 60 * 60 * _SECOND_NS
_YEAR_NS: Final = 366 * _DAY_NS
_MAX_LENGTH: Final = 8192
_FIRST_ERROR: Final = 400
# Larger than any meaningful number, and small enough for exact arithmetic.
_MAX_NUMBER: Final = 1e15
# A time of this many seconds is not a wait but an instant: it is in 1973, or three years away.
_UNIX_TIME: Final = 100_000_000
# An instant of this number is in milliseconds: it is in 1973, or three thousand years away.
_UNIX_MS: Final = 100_000_000_000

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# The comma after the day of the week is part of a date.
_BETWEEN_TIMES: Final = re.compile(r",(?![ \t]*[0-9]+[ -][A-Za-z])")
# Possessive quantifiers: the time grows with the length of a field, not with its square.
_BARE: Final = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*+"|-?[0-9]{1,15}(?:\.[0-9]{1,3})?|:[A-Za-z0-9+/=]*+:|\?[01]'
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+"
)
_KEY: Final = r"[a-z*][a-z0-9_.*-]*+"
_ITEM: Final = re.compile(rf"(?:{_BARE})((?: *+; *+{_KEY}(?:=(?:{_BARE}))?)*+)[ \t]*+(?:,|\Z)")
_PARAMETER: Final = re.compile(rf" *; *({_KEY})(?:=({_BARE}))?")
_PAIR: Final = re.compile(r"(?:^|,)[ \t]*+([a-z]++)=([0-9]{1,15})(?=[ \t]*+(?:,|\Z))")


def wait_ns(status: int, headers: Iterable[tuple[str, str]], now_ns: int) -> int:
    """Return how long a response asks not to send requests; 0 if it does not, at most a day.

    `Retry-After` of a status from 400 takes precedence. Otherwise, fields that say that nothing
    remains give the time of their reset, unless the response was cached. Instants are relative to
    the response's own `Date`, or else to `now_ns`, so that two machines need not agree on the time.

    Args:
        status: The status.
        headers: The header fields, whose names are in any case. Fields with the same name may be
            joined by commas.
        now_ns: The current time in Unix nanoseconds.

    Examples:
        >>> from penstock.outbound.received import wait_ns
        >>> wait_ns(429, [("Retry-After", "30")], 0)
        30000000000
        >>> wait_ns(200, [("RateLimit", '"default";r=0;t=30')], 0)
        30000000000
        >>> wait_ns(200, [("RateLimit", '"default";r=1;t=30')], 0)
        0
    """
    fields: dict[str, str] = {}
    for name, value in headers:
        if isinstance(value, str):
            key = name.lower()
            fields[key] = f"{fields[key]}, {value}" if key in fields else value.strip()
    fields = {key: value for key, value in fields.items() if len(value) <= _MAX_LENGTH}
    sent_ns = _date_ns(fields.get("date", ""))
    if sent_ns is not None:
        now_ns = sent_ns
    wait = 0
    if status >= _FIRST_ERROR:
        times = _BETWEEN_TIMES.split(fields.get("retry-after", ""))
        wait = max(_retry_after_ns(time.strip(), now_ns) for time in times)
    if not wait and not _number(fields.get("age", "")):
        wait = max(_resets_ns(fields, now_ns), default=0)
    return min(max(wait, 0), _DAY_NS)


def _retry_after_ns(text: str, now_ns: int) -> int:
    """Return the wait of one `Retry-After`; 0 if it is malformed, negative if it has passed."""
    seconds = _number(text)
    if seconds is not None:
        return math.ceil(seconds) * _SECOND_NS
    until_ns = _date_ns(text)
    return 0 if until_ns is None else until_ns - now_ns


def _resets_ns(fields: Mapping[str, str], now_ns: int) -> Iterator[int]:
    """Yield the wait of each limit of which nothing remains."""
    listed = fields.get("ratelimit", "")
    # Revisions 08 to 11 have a list of items, revision 07 has pairs.
    items = _items(listed)
    for item in items:
        yield _reset_ns(item.get("r", ""), item.get("t", ""), now_ns)
    if not items:
        pairs = dict(_PAIR.findall(listed))
        yield _reset_ns(pairs.get("remaining", ""), pairs.get("reset", ""), now_ns)
    # Earlier revisions and most services have one number in each field.
    for prefix in ("ratelimit-", "x-ratelimit-", "x-rate-limit-"):
        remaining = fields.get(f"{prefix}remaining", "")
        for name in ("reset-after", "reset", "clear"):
            reset = fields.get(prefix + name, "")
            if _number(reset) is not None:
                yield _reset_ns(remaining, reset, now_ns)
                break


def _items(text: str) -> list[dict[str, str]]:
    """Return the parameters of the items of a list; nothing if it is malformed."""
    items = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        # A comma at the end makes the list malformed.
        if item is None or (item.end() == len(text) and text.endswith(",")):
            return []
        items.append(dict(_PARAMETER.findall(item[1])))
        at = len(text) - len(text[item.end() :].lstrip(" \t"))
    return items


def _reset_ns(remaining: str, reset: str, now_ns: int) -> int:
    """Return the wait until a reset, in seconds or as an instant, if nothing remains; else 0."""
    left, seconds = _number(remaining), _number(reset)
    if left is None or left >= 1 or seconds is None:
        return 0
    if seconds >= _UNIX_MS:
        seconds /= 1000
    wait = math.ceil(seconds) * _SECOND_NS
    if seconds < _UNIX_TIME:
        return wait
    # No quota lasts for a year: the number is something else.
    return wait - now_ns if wait - now_ns <= _YEAR_NS else 0


def _number(text: str) -> float | None:
    return min(float(text), _MAX_NUMBER) if _NUMBER.fullmatch(text) else None


def _date_ns(text: str) -> int | None:
    try:
        date = parsedate_to_datetime(text)
        # RFC 9110, section 5.6.7: a form without a zone is in UTC too.
        date = date if date.tzinfo is not None else date.replace(tzinfo=datetime.UTC)
        return int(date.timestamp()) * _SECOND_NS
    except (ValueError, OverflowError, TypeError):
        return None
