"""What is drawn, in words: limits, stretches of time, and the numbers of an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock._core import Limit, Limits
from penstock.simulate.times import FIRST_DATE_NS, show_instant
from penstock.web.messages import describe_limit, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock.simulate.result import Simulation

__all__ = ["Axis", "asked_of", "events_per", "limits_in_words", "moment", "name_of", "time_axis"]

_UNITS: Final = (
    (86_400_000_000_000, "days"),
    (3_600_000_000_000, "hours"),
    (60_000_000_000, "minutes"),
    (1_000_000_000, "seconds"),
    (1_000_000, "milliseconds"),
)


class Axis(NamedTuple):
    """How times are shown.

    Attributes:
        is_date: Whether they are dates, or else time since the first event's origin.
        unit_ns: What a number on the axis counts, of times that are no dates.
        label: What the axis says.
    """

    is_date: bool
    unit_ns: int
    label: str

    def at(self, times: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.datetime64]:
        """Give times as they stand on the axis."""
        if self.is_date:
            return times.astype("datetime64[ns]")
        return times / self.unit_ns


def time_axis(first_ns: int, last_ns: int) -> Axis:
    """Choose how times from one to another are shown.

    >>> time_axis(0, 7_200 * 10**9).label
    'time (minutes)'
    """
    if first_ns >= FIRST_DATE_NS:
        return Axis(is_date=True, unit_ns=1_000_000_000, label="time (UTC)")
    unit, name = next(
        ((unit, name) for unit, name in _UNITS if last_ns - first_ns >= 3 * unit), _UNITS[-1]
    )
    return Axis(is_date=False, unit_ns=unit, label=f"time ({name})")


def events_per(width_ns: int) -> str:
    """Say what counts are counts of.

    >>> events_per(10_000_000_000)
    'events per 10 seconds'
    """
    return f"events per {format_duration(width_ns)}"


def moment(nanoseconds: int) -> str:
    """Say when, to the second where it is a date.

    >>> moment(1_700_000_000_250_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    date, at, rest = show_instant(nanoseconds).partition("T")
    return f"{date} {rest[:8]} UTC" if at else date


def limits_in_words(limits: Limit | Limits | Mapping[str, Limit | str], name: str | None) -> str:
    """Say which limit was asked about.

    >>> limits_in_words({"Orders": "100/minute"}, None)
    'Orders: 100 per minute'
    """
    if isinstance(limits, Limit):
        words = _said(limits)
        return words if name in {None, "Limit"} else f"{name}: {words}"
    every = limits if isinstance(limits, Limits) else Limits(dict(limits))
    chosen = next(iter(every)) if name is None else name
    default = every.default(chosen)
    return f"{chosen}: {'no default' if default is None else _said(default)}"


def name_of(simulation: Simulation) -> str:
    """Give what the limit is called, or a name that a limits file can have in its place."""
    evaluator = simulation._judge  # noqa: SLF001  our own
    if evaluator is None or isinstance(evaluator.limits, Limit):
        return "Requests"
    return next(iter(evaluator.limits)) if evaluator.name is None else evaluator.name


def _said(limit: Limit) -> str:
    """Say a limit, and by which algorithm, as two of them may have the same words."""
    words = describe_limit(limit)
    if limit.algorithm in {"token-bucket", "unlimited"}:
        return words
    return (
        f"{words} ({limit.algorithm.replace('-bucket', ' bucket').replace('-window', ' window')})"
    )


def asked_of(simulation: Simulation) -> str:
    """Say which limit a simulation asked about; nothing of a part that was fed to a simulator."""
    evaluator = simulation._judge  # noqa: SLF001  our own
    return "" if evaluator is None else limits_in_words(evaluator.limits, evaluator.name)
