"""Conversion of times to nanoseconds, the scale of all clocks."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock._core import parse_duration
from penstock._validation import name_value

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
_UNITS: Final = {"s": _NS, "ms": 1_000_000, "us": 1_000, "ns": 1}
# From 2001 to 2128, in nanoseconds of the unit.
_DATES: Final = (10**18, 5 * 10**18)
_EXPECTED: Final = "whole nanoseconds, float seconds, datetime64 or datetimes"
_STRINGS: Final = "; convert strings, for example with pandas.to_datetime"


def as_numpy(value: Any, what: str) -> NDArray[Any]:
    """Return a column as an array, without a copy if possible.

    Raises:
        TypeError: The argument is not a column.
        ValueError: A masked array has masked values.
    """
    if np.ma.is_masked(value):
        # NumPy would return the values below the mask.
        position = int(np.ma.getmaskarray(value).argmax())
        raise ValueError(f"{what} must not be missing, found a masked value at position {position}")
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a column of one type: {error}") from error


def parse_times(value: Any, unit: str | None = None) -> NDArray[np.int64]:
    """Convert times to nanoseconds since the clock's origin, in the order given.

    Numbers are in `unit`; without a unit, integers are nanoseconds and floats seconds. A datetime
    without a zone is UTC, as in NumPy.

    Raises:
        TypeError: The argument is not a column of times.
        ValueError: A time is missing (NaN, NaT), negative or beyond 2**63 ns; the message says
            which one, and where. Or the unit does not exist, or integers without a unit look like
            seconds, milliseconds or microseconds since 1970.
    """
    if unit is not None and unit not in _UNITS:
        raise ValueError(f"unit must be one of {', '.join(_UNITS)}, found {unit!r}")
    if type(value) is np.ndarray and value.dtype == np.int64 and value.ndim == 1:
        array: NDArray[Any] = value
    else:
        array = _array(value)
    kind = array.dtype.kind
    if kind in "iu" and unit not in {None, "ns"}:
        times = _scaled(_whole(array), _UNITS[unit or "ns"])
    elif kind == "f" and unit not in {None, "s"}:
        times = _floats(array, _UNITS[unit or "s"])
    else:
        times = _READERS.get(kind, _refuse)(array)
    refuse_first(times < 0, times, "times must be at least 0, the clock's origin")
    if kind in "iuO" and unit is None:
        _refuse_epochs(times)
    return times


def _refuse_epochs(times: NDArray[np.int64]) -> None:
    """Raise ValueError for integers that are dates in another unit than nanoseconds."""
    if len(times) == 0:
        return
    first, last = int(times.min()), int(times.max())
    for unit, nanoseconds in list(_UNITS.items())[:-1]:
        if _DATES[0] <= first * nanoseconds and last * nanoseconds < _DATES[1]:
            # Whole milliseconds are more likely what they are, a few seconds after the origin.
            if (times % 1_000_000 == 0).all():
                return
            raise ValueError(
                f"times look like {unit} since 1970, but integers are nanoseconds: "
                f"found {first} to {last}; pass unit={unit!r}, or unit='ns' if they are nanoseconds"
            )


def _scaled(times: NDArray[np.int64], nanoseconds: int) -> NDArray[np.int64]:
    refuse_first(times > (2**63 - 1) // nanoseconds, times, "times must be below 2**63 ns")
    scaled: NDArray[np.int64] = times * nanoseconds
    return scaled


def parse_instant(value: Any, what: str) -> int:
    """Convert one time to nanoseconds: numbers are seconds, a string is a date and time in UTC.

    >>> parse_instant(1.5, "start"), parse_instant(2, "start")
    (1500000000, 2000000000)
    """
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
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
    """Convert a length of time to nanoseconds: a string with units, seconds, or a `timedelta`.

    Raises:
        ValueError: It is not a positive length of time, or is too long.

    >>> parse_span("1h30m", "width")
    5400000000000
    """
    span = parse_duration(value, what)
    if span == 0:
        raise ValueError(f"{what} must be longer than 0s, found {value!r}")
    return span


def _array(value: Any) -> NDArray[Any]:
    is_table = hasattr(value, "columns")
    if is_table or isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        example = "a table; pass its columns, such as Trace(table['time'], table['user'])"
        found = example if is_table else name_value(value)
        raise TypeError(f"times must be a column of {_EXPECTED}, found {found}")
    if not hasattr(value, "__len__"):
        value = list(value)
    if getattr(getattr(value, "dtype", None), "tz", None) is not None:
        # A pandas column with a time zone; without the dtype it would become objects.
        array = np.asarray(value, dtype=f"datetime64[{value.dtype.unit}]")
    else:
        array = as_numpy(value, "times")
    if array.ndim != 1:
        found = f"{array.ndim} dimensions"
        raise TypeError(f"times must be a column of {_EXPECTED}, found {found}")
    return array


def _refuse(array: NDArray[Any]) -> NDArray[np.int64]:
    found = f"an array of {array.dtype}"
    if array.dtype.kind == "b":
        found += "; check that it is the right column"
    if array.dtype.kind in "UST":
        found += _STRINGS
    raise TypeError(f"times must be {_EXPECTED}, found {found}")


def refuse_first(faults: NDArray[np.bool_], values: NDArray[Any], message: str) -> None:
    """Raise ValueError for the first value that has a fault, with its position."""
    if faults.any():
        position = int(faults.argmax())
        raise ValueError(f"{message}, found {values[position]!s} at position {position}")


def _whole(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind == "u":
        refuse_first(array > np.uint64(2**63 - 1), array, "times must be below 2**63 ns")
    return array.astype(np.int64, copy=False)


def _floats(array: NDArray[Any], nanoseconds: int = _NS) -> NDArray[np.int64]:
    refuse_first(~np.isfinite(array), array, "times must be numbers of seconds")
    if array.dtype.itemsize < _DOUBLE:
        is_coarse = np.abs(array) > np.ldexp(1.0, np.finfo(array.dtype).nmant + 1)
        refuse_first(is_coarse, array, f"times of {array.dtype} have no whole seconds; use float64")
        array = array.astype(np.float64)
    if nanoseconds != _NS:
        array = array / (_NS // nanoseconds)
    refuse_first(np.abs(array) > _LAST_SECOND, array, "times must be below 2**63 ns, in seconds")
    # Rounded to the nearest nanosecond. Whole seconds are converted separately, to keep the
    # precision of the rest.
    seconds = np.floor(array)
    rest = np.rint((array.astype(np.float64) - seconds) * _NS).astype(np.int64)
    times: NDArray[np.int64] = seconds.astype(np.int64) * _NS + rest
    return times


def _dates(array: NDArray[Any]) -> NDArray[np.int64]:
    refuse_first(np.isnat(array), array, "times must not be missing")
    unit, step = np.datetime_data(array.dtype)
    if unit == "generic":
        return _refuse(array)
    nanoseconds: NDArray[np.int64] = array.astype(f"{array.dtype.kind}8[ns]", copy=False).view(
        np.int64
    )
    if unit != "ns" or step != 1:
        # NumPy wraps around for dates that do not fit into nanoseconds.
        back = nanoseconds.view(f"{array.dtype.kind}8[ns]").astype(array.dtype)
        refuse_first(back != array, array, "times must be between 1970 and 2262")
    return nanoseconds


def _objects(array: NDArray[Any]) -> NDArray[np.int64]:
    times = np.empty(len(array), np.int64)
    for position, value in enumerate(array.tolist()):
        try:
            times[position] = _one(value)
        except OverflowError:
            raise ValueError(
                f"times must be between 1970 and 2262, found {value} at position {position}"
            ) from None
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}; this is the time at position {position}") from error
    return times


def _one(value: Any) -> int:
    match value:
        case bool():
            pass
        case int() | np.integer():
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"times must be below 2**63 ns, found {value}")
            return int(value)
        case float() | np.floating():
            return int(_floats(np.array([value]))[0])
        case datetime.datetime():
            if value != value:  # noqa: PLR0124  pandas' NaT is a datetime that is not equal to itself
                raise ValueError("times must not be missing, found NaT")
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            # pandas' Timestamp has nanoseconds below the microseconds of a datetime.
            rest: int = getattr(value, "nanosecond", 0)
            return (aware - _EPOCH) // datetime.timedelta(microseconds=1) * 1000 + rest
        case datetime.timedelta():
            rest = getattr(value, "nanoseconds", 0)
            return value // datetime.timedelta(microseconds=1) * 1000 + rest
        case np.datetime64() | np.timedelta64():
            return int(_dates(np.array([value]))[0])
        case _:
            pass
    hint = _STRINGS if isinstance(value, str) else ""
    raise TypeError(f"times must be {_EXPECTED}, found {name_value(value)}{hint}")


_READERS: Final[dict[str, Callable[[NDArray[Any]], NDArray[np.int64]]]] = {
    "i": _whole,
    "u": _whole,
    "f": _floats,
    "M": _dates,
    "m": _dates,
    "O": _objects,
}


def as_dates(times: NDArray[np.int64]) -> NDArray[Any]:
    """Return times as dates, or as lengths of time if they are too early to be dates.

    >>> as_dates(np.array([1_500_000_000])).dtype, as_dates(np.array([1_700_000_000 * 10**9])).dtype
    (dtype('<m8[ns]'), dtype('<M8[ns]'))
    """
    is_date = len(times) == 0 or int(times[0]) >= FIRST_DATE_NS
    return times.astype("datetime64[ns]" if is_date else "timedelta64[ns]")
