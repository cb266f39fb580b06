"""Rows of a table made overrides: what is wrong with a row costs that row and no other."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from penstock._core import Limit, Limits
from penstock.errors import ConfigError

__all__ = ["Skipped", "limits_of_rows"]

_FIELDS: Final = ("name", "id", "limit", "comment", "enabled")
_LEAST_FIELDS: Final = 3
_COLUMNS: Final = ("burst", "count", "period")
_MISSING: Final = object()
_LONGEST_SHOWN: Final = 200
# The parser tells of a hundred faults at a time, and reads everything again for the next hundred.
_MOST_PASSES: Final = 10
# Line and fault; a second override for an id also says where the first one stands.
_FAULT: Final = re.compile(r"<overrides>:(\d+): (.*?)(?:, from <overrides>:(\d+))?", re.DOTALL)
# Written as escapes, so that no character ends a line or is refused before its row is known.
_NOT_PLAIN: Final = re.compile(r"[^ -~]")

_Group: TypeAlias = tuple[str, str]
_Get: TypeAlias = Callable[[str], Any]


class Skipped(NamedTuple):
    """A row that is left out.

    Attributes:
        number: Which row, from 1.
        shown: Its fields.
        why: What is wrong with it, and what would do.
    """

    number: int
    shown: str
    why: str


class _Read(NamedTuple):
    group: _Group
    item: str
    source: tuple[object, _Get]


def limits_of_rows(rows: Iterable[object], defaults: str) -> tuple[Limits, tuple[Skipped, ...]]:
    """Put rows on top of defaults; give the limits, and the rows that are left out.

    Args:
        rows: Mappings, objects, or tuples in the order name, id, limit, comment, enabled.
        defaults: The defaults, as a limits file.

    Raises:
        ConfigError: No row can be used, or too many cannot for it to be the fault of rows.
    """
    known = Limits.parse(defaults)
    reader = _Reader(known)
    kept: dict[int, _Read] = {}
    skipped: list[Skipped] = []
    number = 0
    for number, row in enumerate(rows, 1):
        get = _getter(row)
        try:
            read = reader.read(row, get)
        except (TypeError, ValueError) as error:
            # A text's fault has a caret under it, on lines of its own.
            why = str(error).partition("\n")[0]
            skipped.append(Skipped(number, _shown(row, get), why))
        else:
            if read is not None:
                kept[number] = read
    limits = _parsed(defaults, kept, skipped)
    skipped.sort()
    if skipped and len(skipped) == number:
        raise ConfigError(
            f"none of {number} rows can be used; the first, {skipped[0].shown}: {skipped[0].why}"
        )
    return limits, tuple(skipped)


def _parsed(defaults: str, kept: dict[int, _Read], skipped: list[Skipped]) -> Limits:
    """Load what is kept; rows that the loader refuses go over to those that are skipped."""
    for _ in range(_MOST_PASSES):
        text, lines = _written(kept)
        try:
            return Limits.parse(defaults, text)
        except ConfigError as error:
            found = _faults(error, lines)
        for number, why in found.items():
            skipped.append(Skipped(number, _shown(*kept.pop(number).source), why))
    raise ConfigError(
        f"{len(skipped)} rows and more cannot be used, which is no longer a fault of rows; "
        f"the first, {skipped[0].shown}: {skipped[0].why}"
    )


def _written(kept: dict[int, _Read]) -> tuple[str, list[list[int]]]:
    """Write an overrides file; give it with the rows that stand on each of its lines."""
    groups: dict[_Group, list[int]] = {}
    for number, read in kept.items():
        groups.setdefault(read.group, []).append(number)
    text: list[str] = []
    lines: list[list[int]] = []
    for (name, fields), numbers in groups.items():
        text.append(f"- {{{name}: {{{fields}, ids: [")
        # What is wrong with the limit is wrong for all of them.
        lines.append(numbers)
        for number in numbers:
            text.append(f"{kept[number].item},")
            lines.append([number])
        text.append("]}}")
        lines.append(numbers)
    return "\n".join(text) or "[]", lines


def _faults(error: ConfigError, lines: list[list[int]]) -> dict[int, str]:
    """Give the rows that an error is about, each with what is wrong with it.

    Raises:
        ConfigError: The error itself, where it is about no row.
    """
    faults: dict[int, str] = {}
    for problem in error.problems:
        fault = _FAULT.fullmatch(problem)
        if fault is None:
            raise error
        line, why, first_line = fault.groups()
        numbers = lines[int(line) - 1]
        if first_line is not None:
            # The earlier row of the two stays, wherever its limit has put it in the text.
            (other,) = lines[int(first_line) - 1]
            first, *numbers = sorted((other, *numbers))
            why = f"{why}, from row {first}"
        faults.update(dict.fromkeys(numbers, why))
    return faults


class _Reader:
    """Reads rows one by one; what many of them say is worked out once."""

    def __init__(self, known: Limits) -> None:
        self._names: Final = {name: _quoted(name) for name in known}
        self._limits: Final[dict[Any, str]] = {}

    def read(self, row: object, get: _Get) -> _Read | None:
        """Read a row; `None` where it is switched off.

        Raises:
            TypeError, ValueError: What is wrong with it.
        """
        if _is_nameless(row) and not _LEAST_FIELDS <= len(row) <= len(_FIELDS):
            raise ValueError(
                f"a row without names has 3 to 5 fields, {', '.join(_FIELDS)}; found {len(row)}"
            )
        enabled = get("enabled")
        if enabled is not _MISSING and not (isinstance(enabled, int) and enabled in (0, 1)):
            raise ValueError(f"enabled must be true or false, found {enabled!r}")
        if not enabled:
            return None
        name = get("name")
        quoted = self._names.get(name) if isinstance(name, str) else None
        if quoted is None:
            listed = ", ".join(self._names) or "none"
            raise ValueError(f"name must be a limit that has a default, which are {listed}")
        item = _quoted(_id(get("id")))
        comment = get("comment")
        if comment is not _MISSING and comment is not None:
            if not isinstance(comment, str):
                raise TypeError(f"comment must be a text, found {comment!r}")
            item = f'{{"id": {item}, "comment": {_quoted(comment)}}}'
        fields = self._fields(get("limit"), get)
        return _Read((quoted, fields), item, (row, get))

    def _fields(self, given: object, get: _Get) -> str:
        key: Any = given
        if given is _MISSING:
            key = tuple(get(column) for column in _COLUMNS)
            if _MISSING in key:
                raise ValueError(
                    "a row has a limit, such as '100/minute', or burst, count and period; "
                    "found neither"
                )
        elif isinstance(given, Mapping):
            return _flow(given)
        elif not isinstance(given, str | Limit):
            raise TypeError(
                f"limit must be a text such as '100/minute', a Limit or a mapping of its fields, "
                f"found {given!r}"
            )
        # With their types, for 1 and True are one key, and only one of them is a burst.
        known = (key, *map(type, key)) if isinstance(key, tuple) else key
        found = self._limits.get(known)
        if found is None:
            found = self._limits[known] = _flow(_fields_of(_limit(key)))
        return found


def _limit(given: Limit | str | tuple[Any, Any, Any]) -> Limit:
    if isinstance(given, tuple):
        burst, count, period = given
        return Limit.token_bucket(burst=burst, count=count, period=period)
    return Limit.parse(given) if isinstance(given, str) else given


def _fields_of(limit: Limit) -> dict[str, object]:
    """Give the fields that say a limit in an overrides file, whatever its default is."""
    return {"algorithm": limit.algorithm, **limit.fields()}


def _flow(fields: Mapping[Any, Any]) -> str:
    """Write fields on one line, without the braces around them."""
    written = ", ".join(f"{_quoted(str(key))}: {_value(value)}" for key, value in fields.items())
    if not written:
        raise ValueError("limit must have fields such as burst, count and period, found none")
    return written


def _value(value: object) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return json.dumps(value)
    raise TypeError(f"a field of a limit must be a text or a number, found {value!r}")


def _quoted(text: str) -> str:
    """Write a text as YAML has it between double quotes, on one line and in ASCII."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"a text must be writable in UTF-8, found {text!r}")
    return _NOT_PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", quoted)


_NETWORKS: Final = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
)


def _id(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, bytes):
        return given.decode()
    if isinstance(given, _NETWORKS) or (isinstance(given, int) and not isinstance(given, bool)):
        return str(given)
    found = "none" if given is _MISSING else repr(given)
    raise TypeError(f"id must be a text, a whole number or an address, found {found}")


def _is_nameless(row: object) -> TypeGuard[tuple[object, ...] | list[object]]:
    return isinstance(row, tuple | list) and not hasattr(row, "_fields")


def _getter(row: object) -> _Get:
    """Give what reads a row's fields by name."""
    if isinstance(row, Mapping):
        return lambda field: row.get(field, _MISSING)
    if _is_nameless(row):
        # As a cursor gives them that knows no names.
        fields = dict(zip(_FIELDS, row, strict=False))
        return lambda field: fields.get(field, _MISSING)
    if hasattr(row, "keys") and hasattr(row, "__getitem__"):
        # sqlite3.Row is no Mapping.
        named = {key: row[key] for key in row.keys()}  # noqa: SIM118  its iteration gives values
        return lambda field: named.get(field, _MISSING)
    return lambda field: getattr(row, field, _MISSING)


def _shown(row: object, get: _Get) -> str:
    found = {field: get(field) for field in (*_FIELDS, *_COLUMNS)}
    shown = {field: value for field, value in found.items() if value is not _MISSING}
    text = repr(shown or row)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
