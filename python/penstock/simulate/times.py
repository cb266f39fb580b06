"""Conversion of times to nanoseconds, the scale of all clocks."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import parse_duration
from penstock.simulate.arrow import as_numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


_NS: Final = 1_000_000_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Just below 2**63 ns, as a float.
_LAST_SECOND: Final = 9.2e9
FIRST_DATE_NS: Final = 31_536_000_000_000_000
"""Times before this one are shown as seconds, later ones as dates."""
_DOUBLE: Final = 8
_EXPECTED: Final = "whole nanoseconds, float seconds, datetime64 or datetimes"


def parse_times(value: Any) -> NDArray[np.int64]:
    """Convert times to nanoseconds since the clock's origin, in the order given.

    Integers are nanoseconds, floats seconds. A datetime without a zone is UTC, as in NumPy.

    Raises:
        TypeError: The argument is not a column of times.
        ValueError: A time is missing (NaN, NaT), negative or beyond 2**63 ns; the message says
            which one, and where.
    """
    if type(value) is np.ndarray and value.dtype == np.int64 and value.ndim == 1:
        times: NDArray[np.int64] = value
    else:
        array = _array(value)
        times = _READERS.get(array.dtype.kind, _refuse)(array)
    _refuse_first(times < 0, times, "times must be at least 0, the clock's origin")
    return times


def parse_instant(value: Any, what: str) -> int:
    """Convert one time to nanoseconds: numbers are seconds, a text is a date and time in UTC.

    >>> parse_instant(1.5, "start"), parse_instant(2, "start")
    (1500000000, 2000000000)
    """
    if isinstance(value, str):
        try:
            value = np.datetime64(value, "ns")
        except ValueError as error:
            raise ValueError(
                f"{what} must be a date such as 2026-11-21T12:00, found {value!r}"
            ) from error
    if isinstance(value, bool):
        raise TypeError(f"{what} must be seconds or a datetime, found bool {value}")
    if isinstance(value, (int, np.integer)):
        value = float(value)
    try:
        return int(parse_times([value])[0])
    except (TypeError, ValueError) as error:
        error.add_note(f"this is {what}")
        raise


def parse_span(value: Any, what: str) -> int:
    """Convert a length of time to nanoseconds: a text with units, seconds, or a `timedelta`.

    Raises:
        ValueError: It is not a positive length of time, or is too long.

    >>> parse_span("1h30m", "width")
    5400000000000
    """
    found = parse_duration(value, what)
    if found == 0:
        raise ValueError(f"{what} must be longer than 0s, found {value!r}")
    return found


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        value = _as_list(value)
    if getattr(getattr(value, "dtype", None), "tz", None) is not None:
        # A pandas column with a time zone; without the dtype it would become objects.
        array = np.asarray(value, dtype="datetime64[ns]")
    else:
        array = as_numpy(value, "times")
    if array.ndim != 1:
        raise TypeError(f"times must be a column of {_EXPECTED}, found {array.ndim} dimensions")
    return array


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
            return list(as_numpy(value, "times"))
        raise TypeError(
            f"times must be a column of {_EXPECTED}, found {type(value).__name__} {value!r}"
        )
    return list(value)


def _refuse(array: NDArray[Any]) -> NDArray[np.int64]:
    found = f"an array of {array.dtype}"
    if array.dtype.kind == "b":
        found += "; check that it is the right column"
    raise TypeError(f"times must be {_EXPECTED}, found {found}")


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
    # Rounded to the nearest nanosecond. Whole seconds are converted separately, to keep the
    # precision of the rest.
    seconds = np.floor(array)
    rest = np.rint((array.astype(np.float64) - seconds) * _NS).astype(np.int64)
    nanoseconds: NDArray[np.int64] = seconds.astype(np.int64) * _NS + rest
    return nanoseconds


def _dates(array: NDArray[Any]) -> NDArray[np.int64]:
    _refuse_first(np.isnat(array), array, "times must not be missing")
    unit, step = np.datetime_data(array.dtype)
    if unit == "generic":
        return _refuse(array)
    nanoseconds: NDArray[np.int64] = array.astype(f"{array.dtype.kind}8[ns]", copy=False).view(
        np.int64
    )
    if unit != "ns" or step != 1:
        # NumPy wraps around for dates that do not fit into nanoseconds.
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
            if value != value:  # noqa: PLR0124  pandas' NaT is a datetime that is not equal to itself
                raise ValueError("times must not be missing, found NaT")
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return (aware - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
        case np.datetime64() | np.timedelta64():
            return int(_dates(np.array([value]))[0])
        case _:
            pass
    raise TypeError(f"times must be {_EXPECTED}, found {type(value).__name__} {value!r}")


_READERS: Final[dict[str, Callable[[NDArray[Any]], NDArray[np.int64]]]] = {
    "i": _whole,
    "u": _whole,
    "f": _floats,
    "M": _dates,
    "m": _dates,
    "O": _objects,
}
