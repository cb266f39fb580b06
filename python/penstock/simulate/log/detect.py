"""Detection of a log's format from its first lines, and the parser for it."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock._core import LogParser
from penstock._display import pluralize
from penstock.simulate.log.formats import FORMATS, RECIPES, Field, LineFormat, line_format
from penstock.simulate.log.options import Options
from penstock.simulate.log.report import LogError, SkippedLine
from penstock.simulate.log.selection import FORWARDED, REST, Head
from penstock.simulate.log.source import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.simulate.log.selection import FieldSelection


# The number of lines that are looked at.
_LINES: Final = 500
_EXAMPLES: Final = 3
# What a logger, syslog or a container writes before a line.
_MAX_PREFIX: Final = 8
_SERVER_TIME: Final = re.compile(r"\[\d\d?/[^\]/]+/\d{4}:\d\d:\d\d:\d\d")
# Digits and dots alone are a damaged address.
_HOST: Final = re.compile(r"(?![\d.]+$)[\w.-]+|unix:")
_WITH_PORT: Final = re.compile(r"\d\.\d+:\d")
# The fields of Docker's json-file.
_DOCKER: Final = {"attrs", "log", "stream", "time"}
_W3C: Final = "#Fields:"
# Characters that text does not have.
_CONTROL: Final = bytes({*range(32)} - {*b"\t\n\r\x1b"})


class Detected(NamedTuple):
    """A format and how to parse it.

    Attributes:
        name: The name of the format, with what is before its lines.
        fields: The field that is used for each option.
        make: Makes a new parser.
    """

    name: str
    fields: dict[str, str]
    make: Callable[[], LogParser]


def detect_format(
    format_name: str, head: bytes, name: str, wanted: FieldSelection, options: Options
) -> Detected:
    """Find out how to parse a log; `"auto"` detects the format from its beginning.

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
    inner = None
    if format_name == "auto":
        _check_text(lines, head, name)
        inner = _unwrapped(lines)
        found = _auto(inner or lines, name)
    else:
        detect = _DETECTORS.get(format_name) or partial(_server, line_format(format_name))
        given = detect(lines)
        if given is None or not (given.rows or given.directive):
            raise _error(f"{name} does not begin as a log in the format {format_name}", lines, name)
        found = given
    words = Counter(found.words)
    if len(words) > 1:
        raise _error(
            f"some lines of {name} have other words before the address than others; pass format=, "
            "or split the file",
            lines,
            name,
        )
    prefix = max(words, default=0)
    for line in inner or lines:
        if prefix and LogParser.address(last := line.split()[:prefix][-1]):
            raise _error(
                f"{name} has an address before the client, {last}, which may be the client itself; "
                "pass format= with the names of both fields, and id= or trusted_proxies=",
                lines,
                name,
            )
    where = name if format_name in {"auto", *_DETECTORS} else f"the format {found.format}"
    options = options._replace(
        prefix_words=prefix, is_json_wrapped=inner is not None, directive=found.directive
    )
    options, used = found._replace(name=where).select(wanted, options)
    after = f", after {pluralize(prefix, 'word')}" if prefix else ""
    return Detected(
        f"{found.format}{after}{', in json-file' if inner is not None else ''}",
        used,
        lambda: found.parser(options),
    )


def _auto(lines: list[str], name: str) -> Head:
    if (found := _w3c(lines)) is not None:
        return found
    best = _json(lines)
    for layout in FORMATS.values():
        if len(best.rows) < len(lines):
            best = max(best, _server(layout, lines), key=lambda found: len(found.rows))
    if len(best.rows) * 2 > len(lines):
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
    parser = LogParser.of_objects(Options())
    rows = [parser.fields(line) or {} for line in lines]
    inner = [
        row["log"].rstrip("\r\n")
        for row in rows
        if "log" in row and {name.partition(".")[0] for name in row} <= _DOCKER
    ]
    return inner if len(inner) * 2 > len(lines) else None


def _server(layout: LineFormat, lines: list[str]) -> Head:
    """Return the beginning of the lines that have a format of a server."""
    parser = layout.parser(Options())
    split = _after_prefix if layout.name in FORMATS else _whole
    has_rest = layout.is_open and not {*layout.known} & {*FORWARDED}
    rows, words = [], []
    for line in lines:
        if (both := split(parser, line)) is not None:
            before, row = both
            if has_rest:
                row[REST] = _address_after(layout, line, row)
            rows.append(row)
            words.append(before)
    return Head(layout.name, layout.known, rows, layout.parser, words)


def _address_after(layout: LineFormat, line: str, row: dict[str, str]) -> str:
    """Return the first address without a port, which a server has, in what follows a format."""
    last = layout.fields[-1]
    rest = line.partition(f"{last.before}{row[last.names[0]]}{layout.tail}")[2]
    clients = (part for part in rest.split() if not _WITH_PORT.search(part))
    found = next(filter(LogParser.address, clients), "")
    return found.rpartition("=")[2].strip("\"',;()")


def _whole(parser: LogParser, line: str) -> tuple[int, dict[str, str]] | None:
    row = parser.fields(line)
    return None if row is None else (0, row)


def _after_prefix(parser: LogParser, line: str) -> tuple[int, dict[str, str]] | None:
    """Return the number of words before the address, and the values of the fields.

    A host name is no address, so that lines with one have no prefix. With blanks in the name of the
    user, the words before it may be a prefix.
    """
    words = line.split(maxsplit=_MAX_PREFIX + 1)[: _MAX_PREFIX + 1]
    starts = [
        start
        for start in range(1, len(words))
        if LogParser.address(words[start]) and not words[start - 1].endswith(",")
    ]
    for start in (*reversed(starts), 0):
        row = parser.fields(line.split(maxsplit=start)[-1])
        if row is None:
            continue
        client = row.get("address") or row.get("remote_addr", "")
        user = row.get("user") or row.get("remote_user", "")
        if LogParser.address(client) or (not start and " " not in user and _HOST.fullmatch(client)):
            return start, row
    return None


def _w3c(lines: list[str]) -> Head | None:
    """Return the beginning of the W3C extended format, whose directives begin with `#`."""
    directive = next((line for line in lines if line.startswith(_W3C)), None)
    if directive is None:
        return None
    events = [line for line in lines if not line.startswith("#")]
    delimiter = "\t" if any("\t" in line for line in events) else " "
    cells = [
        Field(delimiter if index else "", (column,), "cell")
        for index, column in enumerate(directive.split()[1:])
    ]
    layout = LineFormat("w3c", tuple(cells))
    return _server(layout, events)._replace(directive=directive.strip().encode())


def _json(lines: list[str]) -> Head:
    """Return the beginning of JSON objects, which may have words before them."""
    parser = LogParser.of_objects(Options())
    rows = [row for line in lines if (row := parser.fields(line))]
    known = list(dict.fromkeys(key for row in rows for key in row))
    return Head("jsonl", known, rows, LogParser.of_objects)


_DETECTORS: Final[dict[str, Callable[[list[str]], Head | None]]] = {"w3c": _w3c, "jsonl": _json}


def _lines(head: bytes) -> list[str]:
    """Return the first lines that are not empty, without one that may be cut off."""
    lines = head.split(b"\n")
    whole = lines[:-1] if len(lines) > 1 and len(head) >= HEAD else lines
    stripped = (line.strip(b"\0\r") for line in whole[: 4 * _LINES])
    return [line.decode("utf-8-sig", "replace") for line in stripped if line.strip()][:_LINES]
