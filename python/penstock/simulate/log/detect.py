"""Detection of a log's format from its first lines, and the parser for it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._core import LogParser
from penstock._display import pluralize
from penstock.simulate.log.formats import FORMATS, RECIPES, Field, LineFormat, line_format
from penstock.simulate.log.report import LogError, SkippedLine
from penstock.simulate.log.selection import Head, is_address
from penstock.simulate.log.source import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.simulate.log.options import Options
    from penstock.simulate.log.selection import FieldSelection


# The number of lines that are looked at, and of characters in each.
_LINES: Final = 500
_MAX_LINE: Final = 8192
_EXAMPLES: Final = 3
_MAX_PREFIX: Final = 8
_SERVER_TIME: Final = re.compile(r"\[\d\d?/[^\]/]+/\d{4}:\d\d:\d\d:\d\d")
# The fields of Docker's json-file.
_DOCKER: Final = {"attrs", "log", "stream", "time"}
_W3C: Final = "#Fields:"
# Characters that text does not have.
_CONTROL: Final = bytes({*range(32)} - {*b"\t\n\r\x1b"})


class Detected(NamedTuple):
    """A format and how to parse it.

    Attributes:
        name: The name of the format, with what is before its lines.
        format: The name of the format alone.
        fields: The field that is used for each option.
        make: Makes a new parser.
    """

    name: str
    format: str
    fields: dict[str, str]
    make: Callable[[], LogParser]


class _Shape(NamedTuple):
    """What the lines of a log look like.

    Attributes:
        name: The name of the format.
        known: The fields.
        rows: The values of the first lines that have the format, by field.
        parser: Makes a parser of some fields, each with its slot.
        words: The number of words before each of these lines.
        directive: The directive that names the fields of a W3C log.
    """

    name: str
    known: list[str]
    rows: list[dict[str, str]]
    parser: Callable[[list[tuple[str, int]], Options], LogParser]
    words: Sequence[int] = ()
    directive: str | None = None


def detect_format(
    format_name: str,
    head: bytes,
    name: str,
    wanted: FieldSelection,
    options: Options,
    *,
    likely: str = "",
) -> Detected:
    """Find out how to parse a log; `"auto"` detects the format from its beginning.

    Args:
        format_name: The format that the caller passed.
        head: The beginning of the log.
        name: The name of the log for messages.
        wanted: The fields to read.
        options: The other options of the core's parser.
        likely: A format that is tried first, such as that of another file.

    Raises:
        LogError: The format or a field does not exist, or the format is not known.
    """
    lines = _lines(head)
    inner = None
    if format_name == "auto":
        _check_text(lines, head, name)
        inner = _unwrapped(lines)
        shape = _auto(inner or lines, name, likely)
    elif format_name in _SHAPES:
        detected = _SHAPES[format_name](lines)
        if detected is None:
            raise _error(f"{name} does not begin as a log in the format {format_name}", lines, name)
        shape = detected
    else:
        shape = _lines_of(line_format(format_name), lines)
    words = Counter(shape.words)
    if len(words) > 1:
        raise _error(
            f"some lines of {name} have other words before the address than others; pass format=, "
            "or split the file",
            lines,
            name,
        )
    prefix = max(words, default=0)
    for line in inner or lines:
        if prefix and is_address(last := line.split()[:prefix][-1]):
            raise _error(
                f"{name} has an address before the client, {last}, which may be the client itself; "
                "pass format= with the names of both fields, and id= or trusted_proxies=",
                lines,
                name,
            )
    known = list(dict.fromkeys(shape.known))
    where = name if format_name == "auto" or format_name in _SHAPES else f"the format {shape.name}"
    options = options._replace(
        prefix_words=prefix,
        is_json_wrapped=inner is not None,
        directive=None if shape.directive is None else shape.directive.encode(),
    )
    slots, used, options = Head(where, known, shape.rows).select(wanted, options)
    after = f", after {pluralize(prefix, 'word')}" if prefix else ""
    return Detected(
        f"{shape.name}{after}{', in json-file' if inner is not None else ''}",
        shape.name,
        used,
        lambda: shape.parser(slots, options),
    )


def _auto(lines: list[str], name: str, likely: str) -> _Shape:
    if (shape := _w3c(lines)) is not None:
        return shape
    if (shape := _json(lines)) is not None and _size(shape) * 2 > len(lines):
        return shape
    best: _Shape | None = None
    for layout in sorted(FORMATS.values(), key=lambda layout: layout.name != likely):
        shape = _lines_of(layout, lines)
        if _size(shape) * 2 > len(lines) and (best is None or _size(shape) > _size(best)):
            best = shape
        if _size(shape) == len(lines):
            break
    if best is not None:
        return best
    if any(map(_SERVER_TIME.search, lines)):
        raise _error(
            f"{name} is similar to a log of nginx or Apache, but its fields are in another order; "
            f"pass format=. {RECIPES}",
            lines,
            name,
        )
    raise _error(
        f"{name} has no known format; tried {', '.join(FORMATS)}, W3C and JSON lines; for "
        f"another format pass format='$remote_addr … [$time_local] …', with $time_iso8601 or $msec "
        f"for other times; a table is read with a library for tables. {RECIPES}",
        lines,
        name,
    )


def _size(shape: _Shape) -> int:
    return len(shape.rows)


def _error(message: str, lines: Sequence[str], name: str) -> LogError:
    """Return an error that shows the first lines."""
    examples = (
        SkippedLine(name, number, "does not parse", line[:200])
        for number, line in enumerate(lines[:_EXAMPLES], 1)
    )
    return LogError(f"{message}; it begins with", file=name, examples=tuple(examples))


def _check_text(lines: list[str], head: bytes, name: str) -> None:
    """Raise LogError if a log is no text with one event per line."""
    if not lines:
        raise LogError(f"{name} is empty", file=name)
    sample = head.lstrip(b"\0")[:4096]
    odd = len(sample) - len(sample.translate(None, _CONTROL))
    broken = sample.decode(errors="replace").count("\N{REPLACEMENT CHARACTER}")
    if (odd + broken) * 5 > len(sample):
        raise LogError(
            f"{name} is not text (compressed or encrypted?); its first bytes are {head[:16]!r}",
            file=name,
        )
    if lines[0].strip() in {"[", "[]"} or lines[0].lstrip().startswith("[{"):
        raise LogError(
            f"{name} is a JSON array; convert it to one object per line with `jq -c '.[]' {name}`",
            file=name,
        )


def _unwrapped(lines: list[str]) -> list[str] | None:
    """Return the lines inside of Docker's json-file; None if it is another log."""
    rows = [_object(line) for line in lines]
    inner = [
        row["log"].rstrip("\r\n")
        for row in rows
        if isinstance(row.get("log"), str) and row.keys() <= _DOCKER
    ]
    return inner if len(inner) * 2 > len(lines) else None


def _object(line: str) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one if there is none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    return {}


def _lines_of(layout: LineFormat, lines: list[str]) -> _Shape:
    """Return the shape of the lines that have a format of a server."""
    matches = layout.match(lines)
    rows, words = [row for _, row in matches], [words for words, _ in matches]
    return _Shape(layout.name, layout.known, rows, layout.parser, words)


def _w3c(lines: list[str]) -> _Shape | None:
    """Return the shape of the W3C extended format, whose directives begin with `#`."""
    directive = next((line for line in lines if line.startswith(_W3C)), None)
    if directive is None:
        return None
    columns = directive.split()[1:]
    events = [line for line in lines if not line.startswith("#")]
    delimiter = "\t" if any("\t" in line for line in events) else " "
    split = (row for line in events for row in csv.reader([line], delimiter=delimiter))
    # Blanks may come in runs.
    rows = ([cell for cell in row if cell] for row in split)
    cells = [
        Field(delimiter if index else "", (column,), "cell") for index, column in enumerate(columns)
    ]
    layout = LineFormat("w3c", tuple(cells))
    named = [dict(zip(columns, row, strict=False)) for row in rows]
    return _Shape("w3c", columns, named, layout.parser, directive=directive.strip())


def _json(lines: list[str]) -> _Shape | None:
    """Return the shape of JSON objects, which may have words before them."""
    rows, words = [], []
    for line in lines:
        before, brace, after = line.partition("{")
        if (value := _object(brace + after)) and len(before.split()) <= _MAX_PREFIX:
            rows.append(dict(_dotted(value)))
            words.append(len(before.split()))
    known = [key for row in rows for key in row]
    return _Shape("jsonl", known, rows, LogParser.of_objects, words) if known else None


def _dotted(row: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the names and values of all fields but objects; names in objects have dots."""
    for key, value in row.items():
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            yield before + key, ", ".join(value)
        elif not isinstance(value, dict):
            yield before + key, "" if value is None else str(value)
        elif depth < 8:  # noqa: PLR2004  deep enough
            yield from _dotted(value, f"{before}{key}.", depth + 1)


_SHAPES: Final = {"w3c": _w3c, "jsonl": _json}


def _lines(head: bytes) -> list[str]:
    """Return the first lines that are not empty, without one that may be cut off."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(lines) > 1 and len(head) >= HEAD else lines
    stripped = (line.strip(b"\0\r")[:_MAX_LINE] for line in whole[: 4 * _LINES])
    return [line.decode("utf-8-sig", "replace") for line in stripped if line.strip()][:_LINES]
