"""Axes and labels of plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.display import printable
from penstock.messages import format_duration
from penstock.simulate.format import format_date, format_value
from penstock.simulate.ids import EVERYONE
from penstock.simulate.times import FIRST_DATE_NS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.simulate.limit_result import Bucket


_UNITS: Final = (
    (86_400_000_000_000, "days"),
    (3_600_000_000_000, "hours"),
    (60_000_000_000, "minutes"),
    (1_000_000_000, "seconds"),
    (1_000_000, "milliseconds"),
)
_MAX_ID: Final = 60


class TimeAxis(NamedTuple):
    """The scale of a time axis.

    Attributes:
        is_date: Whether times are shown as dates, rather than in a unit since the origin.
        unit_ns: The unit, in nanoseconds.
        label: The label of the axis.
    """

    is_date: bool
    unit_ns: int
    label: str

    def positions(self, times: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.datetime64]:
        """Return the positions of times on the axis."""
        if self.is_date:
            return times.astype("datetime64[ns]")
        return times / self.unit_ns


def time_axis(first_ns: int, last_ns: int) -> TimeAxis:
    """Choose the axis for times in a range.

    >>> time_axis(0, 7_200 * 10**9).label
    'time (minutes)'
    """
    if first_ns >= FIRST_DATE_NS:
        # The days are those of the events; Matplotlib would show that of the last tick.
        first, last = (format_date(each)[:10] for each in (first_ns, last_ns))
        days = first if first == last else f"{first} to {last}"
        return TimeAxis(is_date=True, unit_ns=1_000_000_000, label=f"time (UTC), {days}")
    unit, name = next(
        ((unit, name) for unit, name in _UNITS if last_ns - first_ns >= 3 * unit), _UNITS[-1]
    )
    return TimeAxis(is_date=False, unit_ns=unit, label=f"time ({name})")


def events_per(width_ns: int) -> str:
    """Return the label of an axis that counts events per bin.

    >>> events_per(10_000_000_000)
    'events per 10 seconds'
    """
    return f"events per {format_duration(width_ns)}"


def bucket_title(bucket: Bucket) -> str:
    """Return the title of a bucket's plot."""
    title = "Requests in flight" if bucket.is_in_flight else "Bucket"
    if bucket.id == EVERYONE:
        return title
    return f"{title} of {printable(format_value('id', bucket.id), _MAX_ID)}"
