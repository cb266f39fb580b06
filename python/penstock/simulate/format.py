"""Numbers and times in a readable form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._display import format_span, printable
from penstock.simulate.times import FIRST_DATE_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAMED: Final = 10
"""The most clients that a sentence names."""
_MAX_ID: Final = 60

_SECOND: Final = 1_000_000_000
_LABELS: Final = {
    "id": "client",
    "most_in_second": "most in a second",
    "most_in_minute": "most in a minute",
}
# From this number on, seconds are shown without decimals.
_WHOLE_SECONDS: Final = 1000


def format_value(column: str, value: Any) -> str:
    """Format a value of a table's column: shares as percentages, waits as times.

    >>> format_value("denied_share", 0.0123), format_value("longest_wait", 90.0)
    ('1.23 %', '1.5 min')
    >>> format_value("events", 12345)
    '12,345'
    """
    if isinstance(value, bool) or value is None:
        return "" if value is None else ("yes" if value else "no")
    if column.endswith("_share"):
        text = f"{100 * value:.3g}"
        # Not all is not 100 %.
        return f"{99.9 if text == '100' and value < 1 else text} %"
    if column.endswith("_wait"):
        return format_span(round(value * 1e9))
    if isinstance(value, int):
        return f"{value:,}"
    # Tabs separate the parts of an id.
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\t", " ")


def column_label(column: str) -> str:
    """Return the heading of a column on a page or a terminal.

    >>> column_label("clients_denied"), column_label("most_in_second")
    ('clients denied', 'most in a second')
    """
    return _LABELS.get(column, column.replace("_", " "))


def list_clients(clients: Iterable[tuple[str, str]]) -> str:
    """List clients, each with a note; only the first few of many.

    >>> list_clients([("192.0.2.1", "3 of 9"), ("ada", "1 of 2")])
    '192.0.2.1 (3 of 9), ada (1 of 2)'
    """
    listed = list(clients)
    names = [
        f"{printable(format_value('id', id), _MAX_ID)}{f' ({note})' if note else ''}"
        for id, note in listed[:MAX_NAMED]
    ]
    more = len(listed) - MAX_NAMED
    return f"{', '.join(names)} and {more:,} more" if more > 0 else ", ".join(names)


def format_instant(nanoseconds: int) -> str:
    """Format a time as a date, or as seconds if it is too early to be one.

    >>> format_instant(1_500_000_000)
    '1.5 s'
    >>> format_instant(1_700_000_000_250_000_000)
    '2023-11-14T22:13:20.25'
    """
    if nanoseconds < FIRST_DATE_NS:
        seconds = nanoseconds / _SECOND
        return f"{seconds:.4g} s" if seconds < _WHOLE_SECONDS else f"{seconds:,.0f} s"
    text = str(np.datetime64(nanoseconds, "ns"))
    return text.rstrip("0").rstrip(".")


def format_date(nanoseconds: int) -> str:
    """Format a time like `format_instant`, but dates to the second and with their zone.

    >>> format_date(1_700_000_000_250_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    date, separator, time = format_instant(nanoseconds).partition("T")
    return f"{date} {time[:8]} UTC" if separator else date
