"""Detection of a log's format from its first lines, and the parser for it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._core import LogParser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.formats import FORMATS, RECIPES, LineFormat, line_format
from penstock.simulate.log.options import Options
from penstock.simulate.log.report import SkippedLine
from penstock.simulate.log.selection import (
    FORWARDED_FOR,
    FieldSelection,
    is_address,
    resolve_client,
    resolve_field,
)
from penstock.simulate.log.source import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# The core's numbers for the parts of an event.
_TIME: Final = 0
_COST: Final = 1
_ID: Final = 2
_DURATION: Final = 8
_OPTIONS: Final = {_TIME: "time", _COST: "cost", _DURATION: "duration"}
# The number of lines that are looked at.
_LINES: Final = 50
_EXAMPLES: Final = 3
_MAX_HEAD: Final = 64
_SERVER_TIME: Final = re.compile(rb"\[\d\d?/[^\]/]+/\d{4}:\d\d:\d\d:\d\d")
_DELIMITERS: Final = ",;\t|"

_MAX_PREFIX: Final = 8
# A pair of logfmt.
_PAIR: Final = re.compile(r'(?:^|\s)([^\s="]+)=("(?:[^"\\]|\\.)*"|[^\s"]\S*|)')
_MIN_PAIRS: Final = 3
# The fields of Docker's json-file.
_DOCKER: Final = {"attrs", "log", "stream", "time"}
_W3C: Final = b"#Fields:"
# Pairs of columns of the W3C format that hold the time.
_DATE_AND_TIME: Final = (("date", "time"), ("date-local", "time-local"))
# The prefix of `logging.basicConfig()`: the level and the name of the logger.
_LOGGER: Final = re.compile(rb"[A-Z]+:[\w.]+:")
# A host name, of which the brackets and colons of a prefix are no part.
_HOST: Final = re.compile(r"[^\s\[\]:]+")
_WEB_SERVERS: Final = ("vhost_combined", "main", "combined", "common")


class _Fields(NamedTuple):
    """The selected fields, each with its slot in the core, and the parts of requests."""

    slots: list[tuple[str, int]]
    parts: list[tuple[int, str]]
    wanted: FieldSelection

    def table(
        self,
        columns: Sequence[str],
        width: int,
        options: Options,
        *,
        delimiter: str = ",",
        has_header: bool = False,
    ) -> LogParser:
        """Make the parser of a table of this width, whose columns may have several names each."""
        indices = [(columns.index(field) % width, slot) for field, slot in self.slots]
        options = options._replace(parts=self.parts)
        return LogParser.of_table(ord(delimiter), width, has_header, indices, options)

    @property
    def used(self) -> dict[str, str]:
        """The field that is used for each option."""
        options = dict(enumerate((option for option, _ in self.wanted.texts), _ID)) | _OPTIONS
        used: dict[str, str] = {}
        for field, slot in self.slots:
            option = options[slot]
            used[option] = f"{used[option]}, {field}" if option in used else field
        return used


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


class _Head(NamedTuple):
    """The beginning of a log, and what to read from it.

    Attributes:
        lines: The first lines.
        name: The name of the log for messages.
        wanted: The fields to read.
        options: The other options of the core's parser.
    """

    lines: list[bytes]
    name: str
    wanted: FieldSelection
    options: Options

    def fields(self, known: list[str], rows: Sequence[Mapping[str, str]] = ()) -> _Fields:
        """Return the selected fields of those that are known; `rows` are the first lines.

        Raises:
            LogError: There is no such field, or it is doubtful which one is the client.
        """
        name, wanted = self.name, self.wanted
        slots = [(field, _TIME) for field in _time_fields(wanted.time, known, name, rows)]
        parts = []
        for option, slot, id in _texts(wanted):
            if id == "address":
                # The address of a proxy, if the forwarded address is read, too.
                compared = [] if FORWARDED_FOR in wanted.names else rows
                field = resolve_client(known, compared, name)
            else:
                field = resolve_field(option, id, known, name)
            # A field for the method has nothing else, but one for the path may have the query.
            if id in {"path", "target"} or (id == "method" and field == "request"):
                parts.append((slot, id))
            slots.append((field, slot))
        for option, slot, field in _numbers(wanted):
            slots.append((resolve_field(option, field, known, name), slot))
        return _Fields(slots, parts, wanted)

    def as_error(self, message: str) -> LogError:
        """Return an error that shows the first lines."""
        texts = [line[:200].decode(errors="replace") for line in self.lines[:_EXAMPLES]]
        examples = (
            SkippedLine(self.name, number, "does not parse", text)
            for number, text in enumerate(texts, 1)
        )
        return LogError(message, file=self.name, examples=tuple(examples))


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
    log = _Head(_lines(head), name, wanted, options)
    if format_name == "auto":
        return _auto(log, head)
    if format_name == "w3c":
        return _w3c(log)
    if format_name == "logfmt":
        return _logfmt(log)
    if format_name == "jsonl":
        return _json(log)
    if format_name == "csv":
        found = _csv(log)
        if found is None:
            first = repr(log.lines[0][:80]) if log.lines else "it is empty"
            raise LogError(f"{name} is not a table with a time column: {first}", file=name)
        return found
    return _layout(line_format(format_name), wanted, options)


def table_parser(known: list[str], name: str, wanted: FieldSelection, options: Options) -> Detected:
    """Make the parser for CSV rows of the selected columns and an empty column at the end.

    Raises:
        LogError: There is no such column.
    """
    fields = _Head([], name, wanted, options).fields(known)
    columns = tuple(dict.fromkeys(field for field, _ in fields.slots))
    # Each row ends in an empty column.
    return Detected(
        "parquet", fields.table(columns, len(columns) + 1, options), fields.used, columns
    )


def _auto(log: _Head, head: bytes) -> Detected:
    if not log.lines:
        raise LogError(f"{log.name} is empty", file=log.name)
    _check_text(log, head)
    if any(line.startswith(_W3C) for line in log.lines):
        return _w3c(log)
    inner = _unwrapped(log.lines)
    if inner is not None:
        log = log._replace(lines=inner, options=log.options._replace(is_json_wrapped=True))
    if (found := _behind_logger(log)) is not None:
        return found
    for words in range(_MAX_PREFIX + 1):
        rest = log._replace(
            lines=[_without_words(line, words) for line in log.lines],
            options=log.options._replace(prefix_words=words),
        )
        is_json = sum(line.lstrip().startswith(b"{") for line in rest.lines) * 2 > len(rest.lines)
        if is_json and any(_objects(rest.lines)):
            return _json(rest)
        layout = _best_format(rest.lines, log.options, has_prefix=words > 0)
        if layout is not None:
            _check_clients(layout, rest._replace(options=log.options))
            return _layout(layout, log.wanted, rest.options)
    if sum(
        len(_PAIR.findall(line.decode(errors="replace"))) >= _MIN_PAIRS for line in log.lines
    ) * 2 > len(log.lines):
        return _logfmt(log)
    found = _csv(log, is_guess=True)
    if found is not None:
        return found
    raise _unknown_format(log)


def _unknown_format(log: _Head) -> LogError:
    """Return the error for a log whose format is not known."""
    if any(_SERVER_TIME.search(line) for line in log.lines):
        return log.as_error(
            f"{log.name} is similar to a log of nginx or Apache, but its fields are in another "
            "order, or its times are not valid (they need English month names, such as "
            f"21/Nov/2026:06:25:17 +0100); pass format=. {RECIPES} It begins with"
        )
    return log.as_error(
        f"{log.name} has no known format; tried {', '.join(FORMATS)}, W3C, JSON lines, logfmt and "
        f"CSV; for another format pass format='$remote_addr … [$time_local] …', with "
        f"$time_iso8601 or $msec for other times. {RECIPES} It begins with"
    )


def _behind_logger(log: _Head) -> Detected | None:
    """Make the parser of lines that a logger of Python wrote; None if they are others."""
    prefixes = Counter(match[0] for line in log.lines if (match := _LOGGER.match(line)))
    for prefix, count in prefixes.most_common(1):
        rest = [line.removeprefix(prefix) for line in log.lines if line.startswith(prefix)]
        layout = _best_format(rest, log.options, has_prefix=True)
        if count * 2 > len(log.lines) and layout is not None:
            _check_clients(layout, log._replace(lines=rest))
            return _layout(layout.after(prefix.decode()), log.wanted, log.options)
    return None


def _check_text(log: _Head, head: bytes) -> None:
    """Raise LogError if a log is no text with one event per line."""
    name, first = log.name, log.lines[0]
    if not _is_text(head):
        raise LogError(
            f"{name} is not text (compressed or encrypted?); its first bytes are {head[:16]!r}",
            file=name,
        )
    if first.strip() in (b"[", b"[]") or first.lstrip().startswith(b"[{"):
        raise LogError(
            f"{name} is a JSON array; convert it to one object per line with `jq -c '.[]' {name}`",
            file=name,
        )


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def _unwrapped(lines: list[bytes]) -> list[bytes] | None:
    """Return the lines inside of Docker's json-file; None if it is another log."""
    inner = [
        found["log"].rstrip("\r\n").encode(errors="replace")
        for found in _objects(lines)
        if isinstance(found.get("log"), str) and found.keys() <= _DOCKER
    ]
    return inner if len(inner) * 2 > len(lines) else None


def _without_words(line: bytes, words: int) -> bytes:
    """Return a line without its first words, as the core does."""
    for _ in range(words):
        line = line.partition(b" ")[2].lstrip(b" ")
    return line


def _best_format(lines: list[bytes], options: Options, *, has_prefix: bool) -> LineFormat | None:
    """Return the format that most lines have; None if fewer than half have a known one.

    The address may have been taken for a prefix, so lines without one are not a format then.
    """
    text = b"\n".join(lines)
    # Only the address is selected here: a format may lack the selected fields.
    plain = FieldSelection(ids=("address",))
    best: tuple[int, LineFormat] | None = None
    for layout in FORMATS.values():
        detected = _layout(
            layout, plain, Options(id_fields=1, zone=options.zone, time_unit=options.time_unit)
        )
        detected.parser.feed(text)
        detected.parser.finish()
        times, *_, counts = detected.parser.take()
        parsed = len(memoryview(times)) + counts[2]
        ids = detected.parser.ids(0)
        # Web servers may log host names; text with blanks is more than an address.
        may_be_name = layout.name in _WEB_SERVERS
        clients = [id for id in ids if is_address(id) or (may_be_name and _HOST.fullmatch(id))]
        if has_prefix and not ids:
            continue
        is_client = len(clients) * 2 >= len(ids) if may_be_name else len(clients) == len(ids)
        if parsed * 2 > len(lines) and is_client and (best is None or parsed > best[0]):
            best = parsed, layout
    if best is None or _has_prefix(lines, best[1]):
        return None
    return best[1]


def _check_clients(layout: LineFormat, log: _Head) -> None:
    """Raise LogError if it is doubtful which field is the client."""
    if "address" not in log.wanted.names:
        return
    fields = ["address", *(field for field in ("ident", "forwarded_for") if field in layout.known)]
    plain = FieldSelection(ids=tuple(fields))
    plain_options = log.options._replace(
        has_cost=False, duration_unit=None, id_fields=len(fields), classes=(), conditions=()
    )
    parser = _layout(layout, plain, plain_options).parser
    parser.feed(b"\n".join(log.lines))
    parser.finish()
    parser.take()
    rows = [dict(zip(fields, id.split("\t"), strict=False)) for id in parser.ids(0)]
    if any(is_address(row.get("ident", "")) and not is_address(row["address"]) for row in rows):
        raise log.as_error(
            f"some lines of {log.name} have a host name before the address; pass format=, or split "
            "the file. It begins with"
        )
    if FORWARDED_FOR not in log.wanted.names:
        resolve_client(fields, rows, log.name)


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
        # A list of addresses is no prefix.
        and not parts[0].endswith(b",")
        and (parts[ident] != b"-" or any(is_address(part.decode("latin-1")) for part in parts[1:]))
        for parts in before
    )
    return odd * 2 > len(lines)


def _w3c(log: _Head) -> Detected:
    """Make the parser of the W3C extended format, whose directives begin with `#`."""
    directive = next((line for line in log.lines if line.startswith(_W3C)), None)
    if directive is None:
        raise log.as_error(
            f"{log.name} has no line that begins with #Fields: among its first ones. It begins with"
        )
    columns = directive.decode(errors="replace").split()[1:]
    texts = [line.decode(errors="replace") for line in log.lines if not line.startswith(b"#")]
    delimiter = "\t" if any("\t" in text for text in texts) else " "
    # Blanks may come in runs.
    rows = ([cell for cell in row if cell] for row in csv.reader(texts, delimiter=delimiter))
    samples = [dict(zip(columns, row, strict=False)) for row in rows]
    fields = log.fields(columns, samples)
    cells = [
        (
            delimiter if index else "",
            "cell",
            [slot for field, slot in fields.slots if field == column],
        )
        for index, column in enumerate(columns)
    ]
    options = log.options._replace(directive=directive.strip(), parts=fields.parts)
    return Detected("w3c", LogParser.of_lines(cells, "", False, options), fields.used)


def _pairs(line: bytes) -> dict[str, str]:
    """Return the names and values of logfmt in a line."""
    found = _PAIR.findall(line.decode(errors="replace"))
    return {name: value.strip('"') for name, value in found}


def _logfmt(log: _Head) -> Detected:
    """Make the parser of pairs `name=value`; the time may be the first word of a line instead."""
    rows = [_pairs(line) for line in log.lines]
    first = log.lines[0].partition(b" ")[0].decode(errors="replace") if log.lines else ""
    if has_time := _is_time(first):
        rows[0]["time"] = first
    fields = log.fields(list(dict.fromkeys(key for row in rows for key in row)), rows)
    # The core knows a first word that is not part of a pair by an empty name.
    slots = [("" if has_time and field == "time" else field, slot) for field, slot in fields.slots]
    parser = LogParser.of_pairs(slots, log.options._replace(parts=fields.parts))
    return Detected(f"logfmt{log.options.suffix}", parser, fields.used)


def _layout(layout: LineFormat, wanted: FieldSelection, options: Options) -> Detected:
    time = layout.time_field(wanted.time)
    # For each slot the name of its field, the field, and the part of the request.
    found = {_TIME: (time.name, time, "")}
    for option, slot, name in [*_texts(wanted), *_numbers(wanted)]:
        found[slot] = (name, *layout.find(option, name))
    lines = [
        (
            field.before,
            "number" if field.is_number else "text",
            [slot for slot, (_, own, _) in found.items() if own is field],
        )
        for field in layout.fields
    ]
    parts = [(slot, part) for slot, (_, _, part) in found.items() if part]
    options = options._replace(parts=parts)
    parser = LogParser.of_lines(lines, layout.tail, layout.is_open, options)
    fields = _Fields([(name, slot) for slot, (name, *_) in found.items()], parts, wanted)
    return Detected(f"{layout.name}{options.suffix}", parser, fields.used)


def _json(log: _Head) -> Detected:
    rows = [dict(_dotted(found)) for found in _objects(log.lines)]
    known = dict.fromkeys(key for row in rows for key in row)
    if not known:
        raise log.as_error(f"{log.name} has no JSON object in its first lines. It begins with")
    fields = log.fields(list(known), rows)
    parser = LogParser.of_objects(fields.slots, log.options._replace(parts=fields.parts))
    return Detected(f"jsonl{log.options.suffix}", parser, fields.used)


def _dotted(found: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the names and values of all fields but objects; names in objects have dots."""
    for key, value in found.items():
        if not isinstance(value, dict):
            yield before + key, "" if value is None else str(value)
        elif depth < 8:  # noqa: PLR2004  deep enough
            yield from _dotted(value, f"{before}{key}.", depth + 1)


def _csv(log: _Head, *, is_guess: bool = False) -> Detected | None:
    texts = [line.decode(errors="replace") for line in log.lines]
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
        if not has_header and log.wanted.time is None and _is_by_number(log.wanted):
            time = next(
                column for column, cell in zip(numbered, rows[0], strict=True) if _is_time(cell)
            )
            log = log._replace(wanted=log.wanted._replace(time=time))
        names = [*columns, *numbered] if has_header else columns
        try:
            samples = [dict(zip(names, row + row, strict=False)) for row in rows[has_header:]]
            fields = log.fields(names, samples)
        except LogError:
            if width == 1 or (is_guess and any(map(_is_not_head, rows[0]))):
                return None
            raise
        parser = fields.table(names, width, log.options, delimiter=delimiter, has_header=has_header)
        return Detected("csv", parser, fields.used)
    return None


def _is_not_head(cell: str) -> bool:
    """Whether a cell is probably not a column name, but part of a line with commas."""
    return '"' in cell or len(cell) > _MAX_HEAD


def _is_by_number(wanted: FieldSelection) -> bool:
    """Whether columns can be selected without a header, by their numbers."""
    return all(name.isdecimal() for name in wanted.names) and (wanted.cost or "0").isdecimal()


def _is_time(cell: str) -> bool:
    parser = LogParser.of_table(ord(","), 1, False, [(0, _TIME)], Options())
    parser.feed(f'"{cell}"\n'.encode())
    parser.finish()
    return len(memoryview(parser.take()[0])) > 0


def _texts(wanted: FieldSelection) -> list[tuple[str, int, str]]:
    """Return the option, the slot and the name of each field with a text."""
    # The header is needed for the id.
    named = {"forwarded_for": "id"}
    texts = enumerate(wanted.texts, _ID)
    return [(named.get(option, option), slot, name) for slot, (option, name) in texts]


def _numbers(wanted: FieldSelection) -> list[tuple[str, int, str]]:
    """Return the option, the slot and the name of each field with a number."""
    found = [("cost", _COST, wanted.cost), ("duration", _DURATION, wanted.duration)]
    return [(option, slot, name) for option, slot, name in found if name is not None]


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
