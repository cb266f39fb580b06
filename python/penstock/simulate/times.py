"""Times as people have them, as nanoseconds: the scale of every clock of penstock."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import Limit
from penstock.errors import LimitError
from penstock.simulate.arrow import as_numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["FIRST_DATE_NS", "instant", "show_instant", "show_span", "span_ns", "times_of"]

_NS: Final = 1_000_000_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# As a float: the last whole number below 2**63 that one can tell.
_LAST_SECOND: Final = 9.2e9
FIRST_DATE_NS: Final = 31_536_000_000_000_000
"""Times before this are seconds since a trace began, and dates from there on."""
_DOUBLE: Final = 8
# Seconds from which on nobody reads what stands behind the point.
_WHOLE_FROM: Final = 1000
_WANTED: Final = "whole nanoseconds, float seconds, datetime64 or datetimes"


def times_of(given: Any) -> NDArray[np.int64]:
    """Give times in nanoseconds since the clock's origin, in the order given.

    Whole numbers are nanoseconds, floats seconds. A datetime without a zone is taken as UTC, as
    NumPy does.

    Raises:
        TypeError: No array of times.
        ValueError: A time that is none (NaN, NaT), is before the origin or beyond 2**63 ns; the
            message says which, and where.
    """
    if type(given) is np.ndarray and given.dtype == np.int64 and given.ndim == 1:
        times: NDArray[np.int64] = given
    else:
        array = _array(given)
        times = _READERS.get(array.dtype.kind, _refuse)(array)
    _refuse_first(times < 0, times, "a clock cannot be before its origin: times must be at least 0")
    return times


def instant(given: Any, what: str) -> int:
    """Give one time in nanoseconds: numbers are seconds, a text is a date and a time in UTC.

    >>> instant(1.5, "start"), instant(2, "start")
    (1500000000, 2000000000)
    """
    if isinstance(given, str):
        try:
            given = np.datetime64(given, "ns")
        except ValueError as error:
            raise ValueError(
                f"{what} must be a date such as 2026-11-21T12:00, found {given!r}"
            ) from error
    if isinstance(given, bool):
        raise TypeError(f"{what} must be seconds or a datetime, found bool {given}")
    if isinstance(given, (int, np.integer)):
        given = float(given)
    try:
        return int(times_of([given])[0])
    except (TypeError, ValueError) as error:
        error.add_note(f"this is {what}")
        raise


def span_ns(given: Any, what: str) -> int:
    """Give a length of time in nanoseconds: a text with units, seconds, or a `timedelta`.

    Raises:
        ValueError: No time, or too long to count.

    >>> span_ns("1h30m", "width")
    5400000000000
    """
    try:
        return Limit.token_bucket(burst=1, count=1, period=given).period_ns
    except (LimitError, TypeError) as error:
        message = str(error).replace("period", what, 1)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(message) from error


def show_instant(nanoseconds: int) -> str:
    """Say when: a date where it can be one, else seconds.

    >>> show_instant(1_500_000_000)
    '1.5 s'
    >>> show_instant(1_700_000_000_250_000_000)
    '2023-11-14T22:13:20.25'
    """
    if nanoseconds < FIRST_DATE_NS:
        seconds = nanoseconds / _NS
        return f"{seconds:.4g} s" if seconds < _WHOLE_FROM else f"{seconds:,.0f} s"
    text = str(np.datetime64(nanoseconds, "ns"))
    return text.rstrip("0").rstrip(".")


def show_span(nanoseconds: int) -> str:
    """Say how long, to three figures or so.

    >>> [show_span(n) for n in (0, 250_000_000, 90 * 10**9, 7_200 * 10**9, 200_000 * 10**9)]
    ['0 s', '0.25 s', '1.5 min', '2 h', '2.31 days']
    """
    for unit, name in ((86_400 * _NS, "days"), (3600 * _NS, "h"), (60 * _NS, "min")):
        if nanoseconds >= unit:
            return f"{nanoseconds / unit:.3g} {name}"
    return f"{nanoseconds / _NS:.3g} s"


def _array(given: Any) -> NDArray[Any]:
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        given = _walked(given)
    if getattr(getattr(given, "dtype", None), "tz", None) is not None:
        # A pandas column with a time zone; without the type it would come as objects.
        array = np.asarray(given, dtype="datetime64[ns]")
    else:
        array = as_numpy(given, "times")
    if array.ndim != 1:
        raise TypeError(f"times must be a column of {_WANTED}, found {array.ndim} dimensions")
    return array


def _walked(given: Any) -> list[Any]:
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            return list(as_numpy(given, "times"))
        raise TypeError(
            f"times must be a column of {_WANTED}, found {type(given).__name__} {given!r}"
        )
    return list(given)


def _refuse(array: NDArray[Any]) -> NDArray[np.int64]:
    found = f"an array of {array.dtype}"
    if array.dtype.kind == "b":
        found += "; is it the column of something else?"
    raise TypeError(f"times must be {_WANTED}, found {found}")


def _refuse_first(faults: NDArray[np.bool_], values: NDArray[Any], message: str) -> None:
    if faults.any():
        position = int(faults.argmax())
        raise ValueError(f"{message}, found {values[position]!s} at position {position}")


def _whole(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind == "u":
        _refuse_first(array > np.uint64(2**63 - 1), array, "times must be below 2**63 ns")
    return array.astype(np.int64, copy=False)


def _floats(array: NDArray[Any]) -> NDArray[np.int64]:
    _refuse_first(~np.isfinite(array), array, "times must be numbers of seconds")
    if array.dtype.itemsize < _DOUBLE:
        array = array.astype(np.float64)
    _refuse_first(np.abs(array) > _LAST_SECOND, array, "times must be below 2**63 ns, in seconds")
    # To the nearest nanosecond: a float tells no more of what was meant. The whole seconds apart,
    # so that what a double holds of the rest is kept.
    seconds = np.floor(array)
    rest = np.rint((array.astype(np.float64) - seconds) * _NS).astype(np.int64)
    nanoseconds: NDArray[np.int64] = seconds.astype(np.int64) * _NS + rest
    return nanoseconds


def _dates(array: NDArray[Any]) -> NDArray[np.int64]:
    _refuse_first(np.isnat(array), array, "times must be times")
    unit, step = np.datetime_data(array.dtype)
    if unit == "generic":
        return _refuse(array)
    nanoseconds: NDArray[np.int64] = array.astype(f"{array.dtype.kind}8[ns]", copy=False).view(
        np.int64
    )
    if unit != "ns" or step != 1:
        # NumPy lets a date that nanoseconds cannot tell come round at the other end.
        back = nanoseconds.view(f"{array.dtype.kind}8[ns]").astype(array.dtype)
        _refuse_first(back != array, array, "times must be between 1970 and 2262")
    return nanoseconds


def _objects(array: NDArray[Any]) -> NDArray[np.int64]:
    times = np.empty(len(array), np.int64)
    for position, value in enumerate(array.tolist()):
        try:
            times[position] = _one(value)
        except (OverflowError, TypeError, ValueError) as error:
            raise type(error)(f"{error}; this is the time at position {position}") from error
    return times


def _one(value: Any) -> int:
    match value:
        case bool():
            pass
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"times must be below 2**63 ns, found {value}")
            return value
        case float():
            return int(_floats(np.array([value]))[0])
        case datetime.datetime():
            if value != value:  # noqa: PLR0124  as pandas' NaT is a datetime that equals nothing
                raise ValueError("times must be times, found NaT")
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return (aware - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
        case np.datetime64() | np.timedelta64():
            return int(_dates(np.array([value]))[0])
        case _:
            pass
    raise TypeError(f"times must be {_WANTED}, found {type(value).__name__} {value!r}")


_READERS: Final[dict[str, Callable[[NDArray[Any]], NDArray[np.int64]]]] = {
    "i": _whole,
    "u": _whole,
    "f": _floats,
    "M": _dates,
    "m": _dates,
    "O": _objects,
}
