"""Detection of a log's format from its first lines, and the parser for it."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._core import IPV6_PREFIX, LogParser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.formats import FORMATS, LineFormat, line_format
from penstock.simulate.log.report import SkippedLine
from penstock.simulate.log.selection import (
    FieldSelection,
    is_address,
    resolve_client,
    resolve_field,
)
from penstock.simulate.log.source import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# The core's numbers for the parts of an event.
_TIME: Final = 0
_COST: Final = 1
_ID: Final = 2
# The number of lines that are looked at.
_LINES: Final = 50
_EXAMPLES: Final = 3
_MAX_HEAD: Final = 64
_SERVER_TIME: Final = re.compile(rb"\[\d\d?/[^\]/]+/\d{4}:\d\d:\d\d:\d\d")
_DELIMITERS: Final = ",;\t|"
_JSON: Final = ("jsonl", "ndjson", "json")

_MAX_PREFIX: Final = 8
# The fields of Docker's json-file.
_DOCKER: Final = {"attrs", "log", "stream", "time"}
_W3C: Final = b"#Fields:"
# Pairs of columns of the W3C format that hold the time.
_DATE_AND_TIME: Final = (("date", "time"), ("date-local", "time-local"))
_WEB_SERVERS: Final = ("vhost_combined", "main", "combined", "common")


class Options(NamedTuple):
    """The options of the core's parser that do not depend on the format.

    Attributes:
        has_cost: Whether a field holds the cost.
        id_fields: The number of fields of an id.
        zone: The zone of times without one.
        time_unit: The unit of epochs; None to detect it.
        window: How late a line may be, in nanoseconds; None for any time.
        ipv6_prefix: Leading bits of an IPv6 address that identify a client.
        is_json_wrapped: Whether a line is the field `log` of a JSON object.
        prefix_words: The number of words before a line.
    """

    has_cost: bool = False
    id_fields: int = 0
    zone: str = "UTC"
    time_unit: str | None = None
    window: int | None = None
    ipv6_prefix: int = IPV6_PREFIX
    is_json_wrapped: bool = False
    prefix_words: int = 0

    @property
    def suffix(self) -> str:
        """What the name of a format says of lines in an envelope."""
        words = f", after {self.prefix_words} words" if self.prefix_words else ""
        return f"{words}{', in json-file' if self.is_json_wrapped else ''}"


class Detected(NamedTuple):
    """A format and a parser for it.

    Attributes:
        name: The name of the format.
        parser: A new parser.
        fields: The field that is used for each option.
        columns: The columns to read from a Parquet file.
    """

    name: str
    parser: LogParser
    fields: dict[str, str]
    columns: tuple[str, ...] = ()


def detect_format(
    format_name: str, head: bytes, name: str, wanted: FieldSelection, options: Options
) -> Detected:
    """Make the parser for a format; `"auto"` detects the format from the beginning of the log.

    Args:
        format_name: The format that the caller passed.
        head: The beginning of the log.
        name: The name of the log for messages.
        wanted: The fields to read.
        options: The other options of the core's parser.

    Raises:
        LogError: The format or a field does not exist, or the format is not known.
    """
    lines = _lines(head)
    if format_name == "auto":
        return _auto(lines, head, name, wanted, options)
    if format_name == "w3c":
        return _w3c(lines, name, wanted, options)
    if format_name in _JSON:
        return _json(lines, name, wanted, options)
    if format_name in ("csv", "tsv"):
        found = _csv(lines, name, wanted, options)
        if found is None:
            raise LogError(
                f"{name} is not a table with a time column: {_first_line(lines)}", file=name
            )
        return found
    if format_name in ("apache", "nginx"):
        format_name = "combined"
    return _layout(line_format(format_name), wanted, options)


def table_parser(known: list[str], name: str, wanted: FieldSelection, options: Options) -> Detected:
    """Make the parser for CSV rows of the selected columns and an empty column at the end.

    Raises:
        LogError: There is no such column.
    """
    fields = _fields(wanted, known, name)
    columns = tuple(dict.fromkeys(field for field, _ in fields))
    indices = [(columns.index(field), slot) for field, slot in fields]
    parser = LogParser.of_table(ord(","), len(columns) + 1, False, False, indices, options)
    return Detected("parquet", parser, _used_fields(fields), columns)


def _auto(
    lines: list[bytes], head: bytes, name: str, wanted: FieldSelection, options: Options
) -> Detected:
    if not lines:
        raise LogError(f"{name} is empty", file=name)
    _check_text(lines, head, name)
    if any(line.startswith(_W3C) for line in lines):
        return _w3c(lines, name, wanted, options)
    inner = _unwrapped(lines)
    if inner is not None:
        lines, options = inner, options._replace(is_json_wrapped=True)
    for words in range(_MAX_PREFIX + 1):
        rest = [_without_words(line, words) for line in lines]
        inside = options._replace(prefix_words=words)
        if sum(line.lstrip().startswith(b"{") for line in rest) * 2 > len(rest):
            return _json(rest, name, wanted, inside)
        layout = _best_format(rest, options)
        if layout is not None:
            return _layout(layout, wanted, inside)
    found = _csv(lines, name, wanted, options, is_guess=True)
    if found is not None:
        return found
    if any(_SERVER_TIME.search(line) for line in lines):
        raise LogError(
            f"{name} is similar to a log of nginx or Apache, but its times are not valid (they "
            "need English month names, such as 21/Nov/2026:06:25:17 +0100), or its fields are in "
            "another order (pass format=). It begins with",
            file=name,
            examples=_examples(lines, name),
        )
    raise LogError(
        f"{name} has no known format; tried {', '.join(FORMATS)}, W3C, JSON lines and "
        f"CSV; for another format pass format='$remote_addr … [$time_local] …'. It begins with",
        file=name,
        examples=_examples(lines, name),
    )


def _check_text(lines: list[bytes], head: bytes, name: str) -> None:
    """Raise LogError if a log is no text with one event per line."""
    if not _is_text(head):
        raise LogError(
            f"{name} is not text (compressed or encrypted?); its first bytes are {head[:16]!r}",
            file=name,
        )
    if lines[0].strip() in (b"[", b"[]") or lines[0].lstrip().startswith(b"[{"):
        raise LogError(
            f"{name} is a JSON array; convert it to one object per line with `jq -c '.[]' {name}`",
            file=name,
        )


def _unwrapped(lines: list[bytes]) -> list[bytes] | None:
    """Return the lines inside of Docker's json-file; None if it is another log."""
    inner = []
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(found, dict)
            and isinstance(found.get("log"), str)
            and found.keys() <= _DOCKER
        ):
            inner.append(found["log"].rstrip("\r\n").encode(errors="replace"))
    return inner if inner and len(inner) * 2 > len(lines) else None


def _without_words(line: bytes, words: int) -> bytes:
    """Return a line without its first words, as the core does."""
    for _ in range(words):
        line = line.partition(b" ")[2].lstrip(b" ")
    return line


def _best_format(lines: list[bytes], options: Options) -> LineFormat | None:
    """Return the format that most lines have; None if fewer than half have a known one."""
    text = b"\n".join(lines)
    # Only the address is selected here: a format may lack the selected fields.
    plain = FieldSelection(None, ("address",), None, None)
    best: tuple[int, LineFormat] | None = None
    for layout in FORMATS.values():
        detected = _layout(
            layout, plain, Options(id_fields=1, zone=options.zone, time_unit=options.time_unit)
        )
        detected.parser.feed(text)
        detected.parser.finish()
        counts = detected.parser.take()
        parsed = len(counts[0]) // 8 + counts[3][2]
        ids = detected.parser.ids(0)
        # Web servers may log host names; text with blanks is more than an address.
        may_be_name = layout.name in _WEB_SERVERS
        clients = [id for id in ids if (may_be_name and " " not in id) or is_address(id)]
        is_client = len(clients) * 2 >= len(ids) if may_be_name else len(clients) == len(ids)
        if parsed * 2 > len(lines) and is_client and (best is None or parsed > best[0]):
            best = parsed, layout
    if best is None or _has_prefix(lines, best[1]):
        return None
    return best[1]


def _has_prefix(lines: list[bytes], layout: LineFormat) -> bool:
    """Return whether most lines have a prefix, whose first word would be read as the address.

    Two words, ident and user, are between the address and the time. A user may contain spaces, but
    then ident is `-`, as it almost always is.
    """
    if layout.name not in _WEB_SERVERS:
        return False
    before = [line.partition(b" [")[0].split(b" ") for line in lines]
    ident = 2 if layout.name == "vhost_combined" else 1
    odd = sum(
        len(parts) > ident + 2
        and (parts[ident] != b"-" or any(is_address(part.decode("latin-1")) for part in parts[1:]))
        for parts in before
    )
    return odd * 2 > len(lines)


def _w3c(lines: list[bytes], name: str, wanted: FieldSelection, options: Options) -> Detected:
    """Make the parser of the W3C extended format, whose directives begin with `#`."""
    directives = [line for line in lines if line.startswith(_W3C)]
    columns = directives[0].decode(errors="replace").split()[1:]
    texts = [line.decode(errors="replace") for line in lines if not line.startswith(b"#")]
    delimiter = "\t" if any("\t" in text for text in texts) else " "
    rows = list(csv.reader(texts, delimiter=delimiter))
    samples = [dict(zip(columns, row, strict=False)) for row in rows]
    fields = _fields(wanted, columns, name, samples)
    indices = [(columns.index(field), slot) for field, slot in fields]
    parser = LogParser.of_table(ord(delimiter), len(columns), False, True, indices, options)
    return Detected("w3c", parser, _used_fields(fields))


def _layout(layout: LineFormat, wanted: FieldSelection, options: Options) -> Detected:
    time = layout.time_index(wanted.time)
    slots: dict[int, list[tuple[int, str]]] = {time: [(_TIME, "whole")]}
    fields = {"time": layout.fields[time].name}
    named = [("id", _ID + index, id) for index, id in enumerate(wanted.ids)]
    if wanted.cost is not None:
        named.append(("cost", _COST, wanted.cost))
    for option, slot, field in named:
        index, part = layout.field_index(option, field)
        slots.setdefault(index, []).append((slot, part))
        fields[option] = f"{fields[option]}, {field}" if option in fields else field
    pieces = [
        (field.before.encode(), field.name, field.is_number, slots.get(index, []))
        for index, field in enumerate(layout.fields)
    ]
    parser = LogParser.of_lines(pieces, layout.tail.encode(), layout.is_open, options)
    return Detected(f"{layout.name}{options.suffix}", parser, fields)


def _json(lines: list[bytes], name: str, wanted: FieldSelection, options: Options) -> Detected:
    known: dict[str, None] = {}
    rows = []
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            row = dict(_dotted(found))
            known.update(dict.fromkeys(row))
            rows.append(row)
    if not known:
        raise LogError(
            f"{name} has no JSON object in its first lines. It begins with",
            file=name,
            examples=_examples(lines, name),
        )
    fields = _fields(wanted, list(known), name, rows)
    parser = LogParser.of_objects(fields, options)
    return Detected(f"jsonl{options.suffix}", parser, _used_fields(fields))


def _dotted(found: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the names and values of all fields but objects; names in objects have dots."""
    for key, value in found.items():
        if not isinstance(value, dict):
            yield before + key, "" if value is None else str(value)
        elif depth < 8:  # noqa: PLR2004  deep enough
            yield from _dotted(value, f"{before}{key}.", depth + 1)


def _csv(
    lines: list[bytes],
    name: str,
    wanted: FieldSelection,
    options: Options,
    *,
    is_guess: bool = False,
) -> Detected | None:
    texts = [line.decode(errors="replace") for line in lines]
    if not texts:
        return None
    for delimiter in sorted(_DELIMITERS, key=texts[0].count, reverse=True):
        try:
            rows = [row for row in csv.reader(texts, delimiter=delimiter) if row]
        except csv.Error:
            return None
        if not rows:
            return None
        width = len(rows[0])
        if sum(len(row) == width for row in rows) * 2 <= len(rows):
            continue
        numbered = [str(index) for index in range(width)]
        has_header = not any(map(_is_time, rows[0]))
        columns = [column.strip() for column in rows[0]] if has_header else numbered
        if not has_header and wanted.time is None and _is_by_number(wanted):
            time = next(
                column for column, cell in zip(numbered, rows[0], strict=True) if _is_time(cell)
            )
            wanted = wanted._replace(time=time)
        names = [*columns, *numbered] if has_header else columns
        try:
            samples = [dict(zip(names, row + row, strict=False)) for row in rows[has_header:]]
            fields = _fields(wanted, names, name, samples)
        except LogError:
            if width == 1 or (is_guess and any(map(_is_not_head, rows[0]))):
                return None
            raise
        indices = [(names.index(field) % width, slot) for field, slot in fields]
        parser = LogParser.of_table(ord(delimiter), width, has_header, False, indices, options)
        return Detected("csv", parser, _used_fields(fields))
    return None


def _is_not_head(cell: str) -> bool:
    """Whether a cell is probably not a column name, but part of a line with commas."""
    return '"' in cell or len(cell) > _MAX_HEAD


def _is_by_number(wanted: FieldSelection) -> bool:
    """Whether columns can be selected without a header, by their numbers."""
    return all(id.isdecimal() for id in wanted.ids) and (wanted.cost or "0").isdecimal()


def _is_time(cell: str) -> bool:
    parser = LogParser.of_table(ord(","), 1, False, False, [(0, _TIME)], Options())
    parser.feed(f'"{cell}"\n'.encode())
    parser.finish()
    return len(parser.take()[0]) > 0


def _fields(
    wanted: FieldSelection, known: list[str], name: str, rows: Sequence[Mapping[str, str]] = ()
) -> list[tuple[str, int]]:
    """Return each selected field with its number for the core; `rows` are the first lines."""
    fields = [(field, _TIME) for field in _time_fields(wanted.time, known, name, rows)]
    for index, id in enumerate(wanted.ids):
        is_client = id == "address"
        field = (
            resolve_client(known, rows, name) if is_client else resolve_field("id", id, known, name)
        )
        fields.append((field, _ID + index))
    if wanted.cost is not None:
        fields.append((resolve_field("cost", wanted.cost, known, name), _COST))
    return fields


def _time_fields(
    wanted: str | None, known: list[str], name: str, rows: Sequence[Mapping[str, str]]
) -> list[str]:
    """Return the field of the time, or those of the date and the time of day."""
    for date, time in _DATE_AND_TIME if wanted is None else ():
        dates = [row.get(date, "") for row in rows]
        are_dates = bool(dates) and all("-" in text and ":" not in text for text in dates)
        if are_dates and {date, time} <= {*known}:
            return [date, time]
    return [resolve_field("time", wanted or "time", known, name)]


def _used_fields(fields: list[tuple[str, int]]) -> dict[str, str]:
    used: dict[str, str] = {}
    for field, slot in fields:
        option = "time" if slot == _TIME else "cost" if slot == _COST else "id"
        used[option] = f"{used[option]}, {field}" if option in used else field
    return used


def _lines(head: bytes) -> list[bytes]:
    """Return the first lines that are not empty, without one that may be cut off."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(lines) > 1 and len(head) >= HEAD else lines
    stripped = (line.strip(b"\0\r") for line in whole[: 4 * _LINES])
    return [line for line in stripped if line.strip()][:_LINES]


def _is_text(head: bytes) -> bool:
    """Whether bytes may be text; a truncated log begins with zeros."""
    sample = head.lstrip(b"\0")[:4096]
    odd = sum(byte < 32 and byte not in b"\t\n\r\x1b" for byte in sample)  # noqa: PLR2004  ASCII's
    broken = sample.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}")
    return (odd + broken) * 5 <= len(sample)


def _examples(
    lines: list[bytes], name: str, reason: str = "does not parse"
) -> tuple[SkippedLine, ...]:
    texts = [line[:200].decode(errors="replace") for line in lines[:_EXAMPLES]]
    return tuple(SkippedLine(name, number, reason, text) for number, text in enumerate(texts, 1))


def _first_line(lines: list[bytes]) -> str:
    return repr(lines[0][:80]) if lines else "it is empty"
