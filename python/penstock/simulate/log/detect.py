"""Which format a log has, told by its first lines, and the parser for it."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock._core import _LogParser as LogParser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.formats import FORMATS, LineFormat, line_format
from penstock.simulate.log.report import SkippedLine
from penstock.simulate.log.selection import Wanted, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.simulate.log.zone import Zone

__all__ = ["Detected", "Options", "detected", "table_parser"]

# The core's numbers of what is wanted of a line.
_TIME: Final = 0
_COST: Final = 1
_ID: Final = 2
# How many lines tell a format.
_LINES: Final = 50
_SHOWN: Final = 3
_LONGEST_HEAD: Final = 64
# How the core ends what it says of a field that is no time.
_NO_TIME: Final = " is no time"
_DELIMITERS: Final = ",;\t|"
_JSON: Final = ("jsonl", "ndjson", "json")

Options: TypeAlias = "tuple[bool, int, Zone, str | None, int | None, int]"


class Detected(NamedTuple):
    """A format, and a parser for it.

    Attributes:
        name: What people call the format.
        parser: The parser, which has read nothing yet.
        fields: Which field was taken for what.
        columns: The columns that a table is to have.
    """

    name: str
    parser: LogParser
    fields: dict[str, str]
    columns: tuple[str, ...] = ()


def detected(asked: str, head: bytes, name: str, wanted: Wanted, options: Options) -> Detected:
    """Make the parser for a format; `"auto"` finds the format by how a log begins.

    Args:
        asked: The format that was asked for.
        head: How the log begins.
        name: What messages call the log.
        wanted: What is to be read of it.
        options: What the core needs to know beside that.

    Raises:
        LogError: No such format or field, or a log of no format that is known.
    """
    lines = _lines(head)
    if asked == "auto":
        return _auto(lines, head, name, wanted, options)
    if asked in _JSON:
        return _json(lines, name, wanted, options)
    if asked in ("csv", "tsv"):
        found = _csv(lines, name, wanted, options)
        if found is None:
            raise LogError(f"{name} is no table with a time: {_shown(lines)}", file=name)
        return found
    if asked in ("apache", "nginx"):
        asked = "combined"
    return _layout(line_format(asked), wanted, options)


def table_parser(known: list[str], name: str, wanted: Wanted, options: Options) -> Detected:
    """Make the parser for rows of text that have the wanted columns, and an empty one behind them.

    Raises:
        LogError: There is no such column.
    """
    fields = _fields(wanted, known, name)
    columns = tuple(dict.fromkeys(field for field, _ in fields))
    places = [(columns.index(field), slot) for field, slot in fields]
    parser = LogParser.of_table(ord(","), len(columns) + 1, False, places, options)
    return Detected("parquet", parser, _told(fields), columns)


def _auto(lines: list[bytes], head: bytes, name: str, wanted: Wanted, options: Options) -> Detected:
    if not lines:
        raise LogError(f"{name} is empty", file=name)
    if not _is_text(head):
        raise LogError(
            f"{name} is no text: it begins with {head[:16]!r}; is it compressed or encrypted?",
            file=name,
        )
    if lines[0].lstrip().startswith(b"{"):
        return _json(lines, name, wanted, options)
    if lines[0].strip() in (b"[", b"[]") or lines[0].lstrip().startswith(b"[{"):
        raise LogError(
            f"{name} is one JSON array; lines of one object each are read: "
            f"`jq -c '.[]' {name}` writes them",
            file=name,
        )
    text = b"\n".join(lines)
    # What is asked for may be a field that a format has not; which format it is, the lines say.
    plain = Wanted(None, ("address",), None, None)
    best: tuple[int, LineFormat] | None = None
    odd_times: list[tuple[int, str, str]] = []
    for layout in FORMATS.values():
        parser = _layout(layout, plain, (False, 1, *options[2:4], None, options[5])).parser
        parser.feed(text)
        parser.finish()
        counts = parser.take()
        parsed = len(counts[0]) // 8 + counts[3][2]
        if parsed * 2 > len(lines) and (best is None or parsed > best[0]):
            best = parsed, layout
        odd_times = odd_times or [each for each in counts[3][5] if each[1].endswith(_NO_TIME)]
    if best is not None:
        _refuse_prefix(lines, name, best[1])
        return _layout(best[1], wanted, options)
    found = _csv(lines, name, wanted, options, is_guess=True)
    if found is not None:
        return found
    if odd_times:
        raise LogError(
            f"{name} is as nginx and Apache write logs, but for its times; they need English "
            "names of months, as in 21/Nov/2026:06:25:17 +0100",
            file=name,
            examples=tuple(SkippedLine(name, *each) for each in odd_times[:_SHOWN]),
        )
    raise LogError(
        f"{name} is of no known format; tried {', '.join(FORMATS)} (nginx, Apache), JSON lines and "
        f"CSV; if it is of your own format, say it: format='$remote_addr … [$time_local] …'. "
        f"It begins with",
        file=name,
        examples=_examples(lines, name),
    )


def _refuse_prefix(lines: list[bytes], name: str, layout: LineFormat) -> None:
    """Refuse lines before which something else has written: its first word is nobody's address.

    Between the address and the time stand two words, ident and user. A user may have spaces, but
    then the ident before is `-`, as everywhere: nobody asks for it.
    """
    texts = [line.decode(errors="replace") for line in lines]
    before = [text.partition(" [")[0].split(" ") for text in texts]
    ident = 2 if layout.name == "vhost_combined" else 1
    odd = [
        place
        for place, found in enumerate(before)
        if len(found) > ident + 2 and found[ident] != "-"
    ]
    if len(odd) * 2 <= len(lines):
        return
    more = min(len(before[place]) for place in odd) - 3
    rest = "" if layout.name == "common" else ' "$http_referer" "$http_user_agent"'
    skipped = " ".join(f"$skip{number}" for number in range(1, more + 1))
    raise LogError(
        f"something stands before the address on most lines of {name}, as syslog and containers "
        f"write it; say the format, such as format='{skipped} $remote_addr - $remote_user "
        f'[$time_local] "$request" $status $body_bytes_sent{rest}\'. It begins with',
        file=name,
        examples=_examples(lines, name, "begins with something else"),
    )


def _layout(layout: LineFormat, wanted: Wanted, options: Options) -> Detected:
    time = layout.time(wanted.time)
    slots: dict[int, list[tuple[int, str]]] = {time: [(_TIME, "whole")]}
    fields = {"time": layout.fields[time].name}
    named = [("id", _ID + place, id) for place, id in enumerate(wanted.ids)]
    if wanted.cost is not None:
        named.append(("cost", _COST, wanted.cost))
    for what, slot, field in named:
        place, part = layout.place(what, field)
        slots.setdefault(place, []).append((slot, part))
        fields[what] = f"{fields[what]}, {field}" if what in fields else field
    pieces = [
        (field.before.encode(), field.name, field.is_number, slots.get(place, []))
        for place, field in enumerate(layout.fields)
    ]
    parser = LogParser.of_lines(pieces, layout.tail.encode(), layout.is_open, options)
    return Detected(layout.name, parser, fields)


def _json(lines: list[bytes], name: str, wanted: Wanted, options: Options) -> Detected:
    known: dict[str, None] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            known.update(dict.fromkeys(_dotted(found)))
    if not known:
        raise LogError(
            f"{name} has no JSON object on its first lines. It begins with",
            file=name,
            examples=_examples(lines, name),
        )
    fields = _fields(wanted, list(known), name)
    return Detected("jsonl", LogParser.of_objects(fields, options), _told(fields))


def _dotted(found: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[str]:
    """Give the names of all fields, with a dot where one lies inside another."""
    for key, value in found.items():
        yield before + key
        if isinstance(value, dict) and depth < 8:  # noqa: PLR2004  deeper than people look
            yield from _dotted(value, f"{before}{key}.", depth + 1)


def _csv(
    lines: list[bytes], name: str, wanted: Wanted, options: Options, *, is_guess: bool = False
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
        numbered = [str(place) for place in range(width)]
        has_header = not any(map(_is_time, rows[0]))
        columns = [column.strip() for column in rows[0]] if has_header else numbered
        if not has_header and wanted.time is None and _is_by_place(wanted):
            time = next(
                place for place, cell in zip(numbered, rows[0], strict=True) if _is_time(cell)
            )
            wanted = wanted._replace(time=time)
        names = [*columns, *numbered] if has_header else columns
        try:
            fields = _fields(wanted, names, name)
        except LogError:
            if width == 1 or (is_guess and any(map(_is_no_head, rows[0]))):
                return None
            raise
        places = [(names.index(field) % width, slot) for field, slot in fields]
        parser = LogParser.of_table(ord(delimiter), width, has_header, places, options)
        return Detected("csv", parser, _told(fields))
    return None


def _is_no_head(cell: str) -> bool:
    """Whether a cell is hardly the name of a column, but a part of a line with commas in it."""
    return '"' in cell or len(cell) > _LONGEST_HEAD


def _is_by_place(wanted: Wanted) -> bool:
    """Whether columns without a header can be found: by their numbers."""
    return all(id.isdecimal() for id in wanted.ids) and (wanted.cost or "0").isdecimal()


def _is_time(cell: str) -> bool:
    parser = LogParser.of_table(
        ord(","), 1, False, [(0, _TIME)], (False, 0, (0, []), None, None, 64)
    )
    parser.feed(f'"{cell}"\n'.encode())
    parser.finish()
    return len(parser.take()[0]) > 0


def _fields(wanted: Wanted, known: list[str], name: str) -> list[tuple[str, int]]:
    """Give each wanted field with its number for the core."""
    fields = [(chosen("time", wanted.time or "time", known, name), _TIME)]
    for place, id in enumerate(wanted.ids):
        fields.append((chosen("id", id, known, name), _ID + place))
    if wanted.cost is not None:
        fields.append((chosen("cost", wanted.cost, known, name), _COST))
    return fields


def _told(fields: list[tuple[str, int]]) -> dict[str, str]:
    told: dict[str, str] = {}
    for field, slot in fields:
        what = "time" if slot == _TIME else "cost" if slot == _COST else "id"
        told[what] = f"{told[what]}, {field}" if what in told else field
    return told


def _lines(head: bytes) -> list[bytes]:
    """Give the first lines that are not empty; the last of the head may be cut."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(lines) > 1 else lines
    stripped = (line.strip(b"\0\r") for line in whole[: 4 * _LINES])
    return [line for line in stripped if line.strip()][:_LINES]


def _is_text(head: bytes) -> bool:
    """Whether bytes may be text; zeros at the begin are what a cut log begins with."""
    sample = head.lstrip(b"\0")[:4096]
    odd = sum(byte < 32 and byte not in b"\t\n\r\x1b" for byte in sample)  # noqa: PLR2004  ASCII's
    broken = sample.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}")
    return (odd + broken) * 5 <= len(sample)


def _examples(
    lines: list[bytes], name: str, reason: str = "does not parse"
) -> tuple[SkippedLine, ...]:
    texts = [line[:200].decode(errors="replace") for line in lines[:_SHOWN]]
    return tuple(SkippedLine(name, number, reason, text) for number, text in enumerate(texts, 1))


def _shown(lines: list[bytes]) -> str:
    return repr(lines[0][:80]) if lines else "it is empty"
