"""Detection of a log's format from its first lines, and the parser for it."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock._core import IPV6_PREFIX, LogParser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.formats import FORMATS, LineFormat, line_format
from penstock.simulate.log.report import SkippedLine
from penstock.simulate.log.selection import FieldSelection, resolve_client, resolve_field

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

Options: TypeAlias = "tuple[bool, int, str, str | None, int | None, int]"


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
    parser = LogParser.of_table(ord(","), len(columns) + 1, False, indices, options)
    return Detected("parquet", parser, _used_fields(fields), columns)


def _auto(
    lines: list[bytes], head: bytes, name: str, wanted: FieldSelection, options: Options
) -> Detected:
    if not lines:
        raise LogError(f"{name} is empty", file=name)
    if not _is_text(head):
        raise LogError(
            f"{name} is not text (compressed or encrypted?); its first bytes are {head[:16]!r}",
            file=name,
        )
    if lines[0].lstrip().startswith(b"{"):
        return _json(lines, name, wanted, options)
    if lines[0].strip() in (b"[", b"[]") or lines[0].lstrip().startswith(b"[{"):
        raise LogError(
            f"{name} is a JSON array; convert it to one object per line with `jq -c '.[]' {name}`",
            file=name,
        )
    text = b"\n".join(lines)
    # Only the address is selected here: a format may lack the selected fields.
    plain = FieldSelection(None, ("address",), None, None)
    best: tuple[int, LineFormat] | None = None
    for layout in FORMATS.values():
        parser = _layout(layout, plain, (False, 1, *options[2:4], None, options[5])).parser
        parser.feed(text)
        parser.finish()
        counts = parser.take()
        parsed = len(counts[0]) // 8 + counts[3][2]
        if parsed * 2 > len(lines) and (best is None or parsed > best[0]):
            best = parsed, layout
    if best is not None:
        _check_prefix(lines, name, best[1])
        return _layout(best[1], wanted, options)
    found = _csv(lines, name, wanted, options, is_guess=True)
    if found is not None:
        return found
    if _SERVER_TIME.search(text):
        raise LogError(
            f"{name} has the format of nginx or Apache, but its times are not valid; they need "
            "English month names, such as 21/Nov/2026:06:25:17 +0100. It begins with",
            file=name,
            examples=_examples(lines, name),
        )
    raise LogError(
        f"{name} has no known format; tried {', '.join(FORMATS)} (nginx, Apache), JSON lines and "
        f"CSV; for another format pass format='$remote_addr … [$time_local] …'. It begins with",
        file=name,
        examples=_examples(lines, name),
    )


def _check_prefix(lines: list[bytes], name: str, layout: LineFormat) -> None:
    """Raise LogError if most lines have a prefix, whose first word would be read as the address.

    Two words, ident and user, are between the address and the time. A user may contain spaces, but
    then ident is `-`, as it almost always is.
    """
    texts = [line.decode(errors="replace") for line in lines]
    before = [text.partition(" [")[0].split(" ") for text in texts]
    ident = 2 if layout.name == "vhost_combined" else 1
    odd = [
        index
        for index, words in enumerate(before)
        if len(words) > ident + 2 and words[ident] != "-"
    ]
    if len(odd) * 2 <= len(lines):
        return
    more = min(len(before[index]) for index in odd) - 3
    rest = "" if layout.name == "common" else ' "$http_referer" "$http_user_agent"'
    skipped = " ".join(f"$skip{number}" for number in range(1, more + 1))
    raise LogError(
        f"most lines of {name} have a prefix before the address, such as that of syslog or a "
        f"container; pass the format, such as format='{skipped} $remote_addr - $remote_user "
        f'[$time_local] "$request" $status $body_bytes_sent{rest}\'. It begins with',
        file=name,
        examples=_examples(lines, name, "has a prefix"),
    )


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
    return Detected(layout.name, parser, fields)


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
    return Detected("jsonl", LogParser.of_objects(fields, options), _used_fields(fields))


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
        parser = LogParser.of_table(ord(delimiter), width, has_header, indices, options)
        return Detected("csv", parser, _used_fields(fields))
    return None


def _is_not_head(cell: str) -> bool:
    """Whether a cell is probably not a column name, but part of a line with commas."""
    return '"' in cell or len(cell) > _MAX_HEAD


def _is_by_number(wanted: FieldSelection) -> bool:
    """Whether columns can be selected without a header, by their numbers."""
    return all(id.isdecimal() for id in wanted.ids) and (wanted.cost or "0").isdecimal()


def _is_time(cell: str) -> bool:
    parser = LogParser.of_table(
        ord(","), 1, False, [(0, _TIME)], (False, 0, "UTC", None, None, IPV6_PREFIX)
    )
    parser.feed(f'"{cell}"\n'.encode())
    parser.finish()
    return len(parser.take()[0]) > 0


def _fields(
    wanted: FieldSelection, known: list[str], name: str, rows: Sequence[Mapping[str, str]] = ()
) -> list[tuple[str, int]]:
    """Return each selected field with its number for the core; `rows` are the first lines."""
    fields = [(resolve_field("time", wanted.time or "time", known, name), _TIME)]
    for index, id in enumerate(wanted.ids):
        is_client = id == "address"
        field = (
            resolve_client(known, rows, name) if is_client else resolve_field("id", id, known, name)
        )
        fields.append((field, _ID + index))
    if wanted.cost is not None:
        fields.append((resolve_field("cost", wanted.cost, known, name), _COST))
    return fields


def _used_fields(fields: list[tuple[str, int]]) -> dict[str, str]:
    used: dict[str, str] = {}
    for field, slot in fields:
        option = "time" if slot == _TIME else "cost" if slot == _COST else "id"
        used[option] = f"{used[option]}, {field}" if option in used else field
    return used


def _lines(head: bytes) -> list[bytes]:
    """Return the first lines that are not empty, without the last one, which may be cut off."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(lines) > 1 else lines
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
