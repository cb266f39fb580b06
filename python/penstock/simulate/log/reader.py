"""Reading a log chunk by chunk."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock._core import IPV6_PREFIX, LogParser
from penstock._display import pluralize, printable
from penstock._validation import is_whole
from penstock._web.address import ClientAddress
from penstock._web.request import MissingId
from penstock.errors import ConfigError
from penstock.simulate.format import format_instant
from penstock.simulate.ids import EVERYONE
from penstock.simulate.log.detect import Detected, detect_format
from penstock.simulate.log.options import Options
from penstock.simulate.log.report import MAX_EXAMPLES, LogError, LogReport, SkippedLine
from penstock.simulate.log.selection import (
    CLIENT,
    MAX_ID_FIELDS,
    UNITS,
    FieldSelection,
    is_list,
)
from penstock.simulate.log.source import LogPath, Source, find_sources
from penstock.simulate.log.where import parse_where

if TYPE_CHECKING:
    import datetime
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


# The code of an id that is missing.
_WITHOUT_ID: Final = -1
# A log with no event in this many lines has the wrong format, and the rest is not read.
_MAX_LINES_WITHOUT_EVENT: Final = 10_000


class Chunk(NamedTuple):
    """Some events of a log, sorted by time.

    Attributes:
        times: Event times, in nanoseconds since 1970.
        codes: The index of each event's id in `clients`.
        costs: The cost of each event in tokens; None if it is 1 each.
        clients: The ids, each once. All chunks of a reader share this list, which grows.
        durations: How long each request took; None if it was not read.
    """

    times: NDArray[np.int64]
    codes: NDArray[np.uint32]
    costs: NDArray[np.int64] | None
    clients: list[str]
    durations: NDArray[np.timedelta64] | None = None

    def take(self, indices: Any) -> Chunk:
        """Return some of the events, in their order."""
        costs = None if self.costs is None else self.costs[indices]
        durations = None if self.durations is None else self.durations[indices]
        return self._replace(
            times=self.times[indices], codes=self.codes[indices], costs=costs, durations=durations
        )

    def __repr__(self) -> str:
        events = pluralize(len(self.times), "event")
        if len(self.times) == 0:
            return f"<Chunk: {events}>"
        first, last = (format_instant(int(self.times[index])) for index in (0, -1))
        return f"<Chunk: {events}, {first} to {last}>"


class _Table:
    """The ids of all files, each once, and which events of a file have which."""

    def __init__(
        self, fields: FieldSelection, find_client: ClientAddress | None, *, is_shared: bool
    ) -> None:
        self._fields = fields
        self._find_client = find_client
        self.clients: Final[list[str]] = [] if fields.ids else [EVERYONE]
        # Otherwise the core's numbers are used as they are.
        self._is_mapped = bool(fields.ids) and (is_shared or find_client is not None)
        self._codes: dict[str, int] = {}

    def extend(self, codes: NDArray[np.int64], parser: LogParser) -> NDArray[np.int64]:
        """Add the new ids of a file; return the code of each of its ids, or why it has none.

        Args:
            codes: What the previous call for this file returned.
            parser: The parser of the file.
        """
        if not self._fields.ids:
            return codes
        added = parser.ids(len(codes) if self._is_mapped else len(self.clients))
        if self._find_client is None:
            _refuse_lists(added)
        ids: list[str | None] = [*added]
        if self._find_client is not None:
            ids = [_with_client(id, self._fields, self._find_client) for id in added]
        if not self._is_mapped:
            self.clients.extend(added)
            return codes
        known = self._codes
        new = [_WITHOUT_ID if id is None else known.setdefault(id, len(known)) for id in ids]
        self.clients.extend(islice(known, len(self.clients), None))
        return np.concatenate([codes, np.array(new, np.int64)])


def _with_client(id: str, fields: FieldSelection, find_client: ClientAddress) -> str | None:
    """Return an id with the client in place of the address of a proxy; None if there is none."""
    *parts, forwarded = id.split("\t")
    index = fields.ids.index(CLIENT)
    # The last of a list is the peer of the proxy that wrote it.
    peer = parts[index].rpartition(",")[2].strip()
    # IIS writes a blank as a plus sign, and CloudFront as %20.
    header = forwarded.replace("\\t", "\t").replace("+", " ").replace("%20", " ")
    try:
        parts[index] = find_client.of(peer, None if header in {"", "-"} else header)
    except MissingId:
        return None
    return "\t".join(parts)


def _refuse_lists(ids: list[str]) -> None:
    """Raise LogError if an id is a list of addresses, each of which may be the client."""
    for part in (part for id in ids if "," in id for part in id.split("\t")):
        if is_list(part):
            raise LogError(
                f"the log has lists of addresses such as {printable(part, 60)!r}; pass "
                "trusted_proxies= or hops=, as in production, and id='address'"
            )


class _Stream:
    """One file of a log, as an iterator over its chunks, whose events are sorted by time."""

    def __init__(self, source: Source, detected: Detected, reader: LogReader) -> None:
        self.source = source
        self.detected = detected
        self._parser = detected.make()
        # The time of its first event, where there are several files.
        self.first_ns = 0
        self._reader = reader
        self._codes: NDArray[np.int64] = np.empty(0, np.int64)
        self._pending: list[Chunk] = []
        self._lines = 0

    def chunks(self) -> Iterator[Chunk]:
        """Read the file."""
        parser, reader = self._parser, self._reader
        min_pending = reader.chunk_events
        for block in self.source.blocks():
            parsed = parser.feed(block)
            if parsed == 0 and reader.report.events == 0:
                self._take_parsed()
                reader.stop_early()
            if parsed >= min_pending:
                self._take_parsed()
                yield from self._sorted_chunks(is_last=False)
                # Pending events are sorted again with the next ones; to keep that cheap, at least
                # as many must come.
                pending = sum(len(chunk.times) for chunk in self._pending)
                min_pending = max(reader.chunk_events, pending)
        parser.finish()
        self._take_parsed()
        yield from self._sorted_chunks(is_last=True)

    def _take_parsed(self) -> None:
        """Take the parsed events, and update the report."""
        reader, report = self._reader, self._reader.report
        times, codes, costs, durations, counts = self._parser.take()
        lines, skipped, without_id, late, filtered, examples, directive = counts
        if directive is not None:
            raise LogError(
                f"the fields of {self.source.name} change at {printable(directive, 200)!r}; "
                "split the file there",
                file=self.source.name,
            )
        self._codes = reader.table.extend(self._codes, self._parser)
        chunk = Chunk(
            np.asarray(times),
            np.asarray(codes),
            np.asarray(costs) if reader.fields.cost is not None else None,
            reader.clients,
            np.asarray(durations).view("m8[ns]") if reader.fields.duration is not None else None,
        )
        if len(chunk.times):
            self._pending.append(reader.selected(chunk, self._codes))
        report.lines += lines - self._lines
        self._lines = lines
        report.skipped += skipped
        report.without_id += without_id
        report.late += late
        report.filtered += filtered
        more = (SkippedLine(self.source.name, *example) for example in examples)
        report.examples = (*report.examples, *more)[:MAX_EXAMPLES]

    def _sorted_chunks(self, *, is_last: bool) -> Iterator[Chunk]:
        """Yield the events that no later line can precede, sorted by time."""
        if not self._pending:
            return
        window, size = self._reader.window, self._reader.chunk_events
        chunk = concat_chunks(self._pending)
        self._pending = []
        cut = len(chunk.times)
        if window is not None and cut:
            if np.any(chunk.times[1:] < chunk.times[:-1]):
                chunk = chunk.take(np.argsort(chunk.times, kind="stable"))
            if not is_last:
                cut = int(np.searchsorted(chunk.times, chunk.times[-1] - window, side="right"))
                self._pending = [chunk.take(slice(cut, None))]
        for first in range(0, cut, size):
            yield chunk.take(slice(first, min(first + size, cut)))


class LogReader:
    """An iterator over the chunks of a log, in bounded memory; `read_log` returns one.

    Attributes:
        clients: The ids, each once, in order of appearance; the list grows with each chunk.
        report: The counts of lines that were read and left out so far.
    """

    def __init__(
        self,
        sources: list[Source],
        format: str,  # noqa: A002  as in read_log
        fields: FieldSelection,
        options: Options,
        *,
        max_bad: float,
        chunk_events: int,
        find_client: ClientAddress | None,
    ) -> None:
        self.fields: Final = fields
        self.window: Final = options.window
        self.chunk_events: Final = chunk_events
        self._max_bad: Final = max_bad
        if len(sources) > 1:
            # The newest of rotated logs may still be empty.
            filled = [source for source in sources if source.head()]
            sources = filled or sources[:1]
        self._is_shared = len(sources) > 1
        self.table: Final = _Table(fields, find_client, is_shared=self._is_shared)
        self.clients: Final = self.table.clients
        streams: list[_Stream] = []
        for source in sources:
            head = source.head()
            detected = detect_format(format, head, source.name, fields, options)
            streams.append(_Stream(source, detected, self))
            if self._is_shared:
                streams[-1].first_ns = _first_time(detected.make(), head)
        if self._is_shared:
            # The names of rotated logs are in reverse order.
            streams.sort(key=lambda stream: stream.first_ns)
        self._streams: Final = streams
        self.report: Final = LogReport(
            files=tuple(stream.source.name for stream in streams),
            format=streams[0].detected.name,
            fields=streams[0].detected.fields,
        )
        self._chunks: Final = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __repr__(self) -> str:
        return f"<LogReader of {', '.join(self.report.files)}: {self.report}>"

    def close(self) -> None:
        """Close the files, if the log was not read to its end."""
        self._chunks.close()

    def selected(self, chunk: Chunk, codes: NDArray[np.int64]) -> Chunk:
        """Return the events with an id, with the codes of `clients`, and count the others."""
        if len(codes):
            mapped = codes[chunk.codes]
            has_id = mapped != _WITHOUT_ID
            chunk = chunk._replace(codes=mapped.astype(np.uint32))
            if not has_id.all():
                self.report.without_id += int(np.count_nonzero(~has_id))
                chunk = chunk.take(has_id)
        self.report.events += len(chunk.times)
        constant = self.fields.constant
        if constant is not None:
            chunk = chunk._replace(costs=np.full(len(chunk.times), constant, np.int64))
        return chunk

    def _read(self) -> Generator[Chunk]:
        parts = [(stream.first_ns, stream.chunks()) for stream in self._streams]
        if self.window is None or not self._is_shared:
            for _, chunks in parts:
                yield from chunks
        else:
            yield from merge_chunks(parts, self.window)
        self._check()

    def stop_early(self) -> None:
        """Raise LogError if many lines were read, and all of them have another format."""
        report = self.report
        has_event = report.without_id or report.filtered
        if report.skipped > _MAX_LINES_WITHOUT_EVENT and not has_event:
            self._check()

    def _check(self) -> None:
        """Raise LogError if too many lines were left out."""
        report, file = self.report, self.report.files[0]
        if report.events == 0 and report.without_id:
            raise LogError(
                f"no line of {file} has an id: {report.fields.get('id', 'id')} is missing or '-' "
                f"in all {report.without_id:,}; pass id=",
                file=file,
                examples=report.examples,
            )
        without = report.without_id
        if CLIENT in self.fields.ids and without > report.events:
            name = report.fields["id"].partition(", ")[0]
            raise LogError(
                f"{without:,} of {without + report.events:,} lines of {file} have no {name}, which "
                f"is taken as the client; pass id=, or where='{name}!=-' to leave them out",
                file=file,
            )
        if report.events == 0 and report.filtered:
            raise LogError(
                f"no event of {file} meets the conditions of where, of {report.filtered:,}",
                file=file,
            )
        if report.events == 0:
            raise LogError(
                f"no line of {file} could be read as {report.format}, "
                f"{report.skipped:,} did not parse",
                file=file,
                examples=report.examples,
            )
        if report.share_left_out > self._max_bad:
            late = f" and {report.late:,} were late" if report.late else ""
            wider = "sort the log by time, or " if report.late else ""
            raise LogError(
                f"{report.share_left_out:.1%} of the lines of {', '.join(report.files)} were left "
                f"out, the maximum is {self._max_bad:.1%}: {report.skipped:,} did not parse as "
                f"{report.format}{late}; {wider}raise max_bad=",
                file=file,
                examples=report.examples,
            )


def read_log(
    path: LogPath,
    *,
    format: str = "auto",  # noqa: A002  a word of the public surface
    id: str | Iterable[str] | None = "address",
    cost: str | int | None = None,
    duration: str | None = None,
    duration_unit: str | None = None,
    ended: bool = False,
    time: str | None = None,
    tz: str | datetime.tzinfo = "UTC",
    ipv6_prefix: int = IPV6_PREFIX,
    where: str | Iterable[str] = (),
    max_bad: float = 0.01,
    window: float | None = 60.0,
    chunk_events: int = 1_000_000,
    trusted_proxies: str | Sequence[str] = (),
    hops: int = 0,
) -> LogReader:
    r"""Read a log chunk by chunk, in little memory however long it is.

    The format and the fields are detected by this call; the rest is read during iteration.

    Args:
        path: A file, several files, a pattern such as `access.log*`, or `-` for standard input.
            Several files are merged by time, whether they are rotated or of several servers. Files
            may be compressed by gzip, bzip2, xz or zstd; this is detected from their content.
        format: `"auto"`, a name in `FORMATS`, `"jsonl"`, `"w3c"`, or a format string of nginx
            (`$remote_addr …`) or Apache (`%h …`), also as the whole directive.
        id: The field of the client id, or several fields. None: all events are one client's.
        cost: The field of the cost, or one integer for all events. None: 1 each.
        duration: The field of the time that a request took, such as `"duration"`; if it is absent
            in a line, the request took no time. None: not read.
        duration_unit: Its unit: `"s"`, `"ms"`, `"us"` or `"ns"`. None: the unit that the format,
            the name of the field (`elapsed_ms`) or the value (`42ms`) states.
        ended: Whether the time of a line is the end of its request, as in the logs of nginx, and
            not its start, as in those of Apache. With a duration, events are then at the start.
        time: The field of the time; the unit of numbers is detected from their size. None:
            detected.
        tz: The time zone of times without one.
        where: Conditions on the events to read, all of which must hold: `"path=/api/*,/v2/*"`,
            `"status!=4xx"`, `"client=192.0.2.*"`, `"time>=2026-11-20T10:00"`, or of another field.
        ipv6_prefix: IPv6 addresses that share this many leading bits are one client.
        max_bad: The largest share of lines, 0 to 1, that may be left out because they do not parse
            or are late.
        window: How many seconds a line may be out of order; servers write a line when a request
            ends. None: return the events in the order of the lines, unsorted.
        chunk_events: The largest number of events in a chunk.
        trusted_proxies: As in production: the networks of your proxies. The client is then found
            from the address and the field with `X-Forwarded-For`. IPv6 networks of at most
            `ipv6_prefix` bits.
        hops: Instead: the number of proxies in front of the application.

    Raises:
        LogError: A file, format or field does not exist, a file is damaged, or more than `max_bad`
            of the lines were left out, which is known only after the last chunk.

    >>> from pathlib import Path
    >>> from penstock.simulate import Simulator
    >>> line = '192.0.2.1 - - [21/Nov/2026:06:25:17 +0000] "GET / HTTP/1.1" 200 5\n'
    >>> count = Path("access.log").write_text(1_000 * line)
    >>> simulator = Simulator("60/minute")
    >>> for chunk in read_log("access.log", chunk_events=400):
    ...     allowed = simulator.feed(chunk)
    >>> simulator.summary().denied
    940
    """
    if not is_whole(ipv6_prefix, 1, 128):
        raise LogError(f"ipv6_prefix must be an integer from 1 to 128, found {ipv6_prefix!r}")
    if not is_whole(chunk_events, 1, 2**32):
        raise LogError(f"chunk_events must be an integer of at least 1, found {chunk_events!r}")
    if not 0 <= max_bad <= 1:
        raise LogError(f"max_bad must be a share from 0 to 1, found {max_bad!r}")
    if window is not None and not 0 <= window <= 1e9:  # noqa: PLR2004  some thirty years
        raise LogError(f"window must be seconds from 0 to 1e9, or None, found {window!r}")
    if duration_unit is not None and duration_unit not in UNITS:
        raise LogError(f"duration_unit must be one of {', '.join(UNITS)}, found {duration_unit!r}")
    if ended and duration is None:
        raise LogError("ended= needs duration=, the field of the time that a request took")
    options = Options(
        zone=_zone(tz),
        window=None if window is None else round(window * 1e9),
        ended=ended,
        ipv6_prefix=ipv6_prefix,
    )
    conditions, options = parse_where(where, options)
    fields = FieldSelection.of(time, id, cost, duration, duration_unit)
    if len(fields.ids) + len({condition.field for condition in conditions}) > MAX_ID_FIELDS:
        raise LogError(f"id and where must have at most {MAX_ID_FIELDS} fields together")
    find_client = _client_address(fields, trusted_proxies, hops, ipv6_prefix)
    fields = fields._replace(conditions=conditions, has_forwarded=find_client is not None)
    sources = find_sources(path)
    return LogReader(
        sources,
        format,
        fields,
        options,
        max_bad=max_bad,
        chunk_events=chunk_events,
        find_client=find_client,
    )


def _zone(tz: str | datetime.tzinfo) -> str:
    """Return the name of a zone, which the core knows; a fixed offset is written as UTC+05:30."""
    name = str(tz).removeprefix("UTC") or "UTC"
    try:
        LogParser.timestamp("0", name)
    except ValueError as error:
        raise LogError(
            f"tz must be 'UTC', an offset such as '+05:30' or a zone such as 'Europe/Berlin', "
            f"found {tz!r}: {error}"
        ) from error
    return name


def _client_address(
    fields: FieldSelection, trusted_proxies: str | Sequence[str], hops: int, ipv6_prefix: int
) -> ClientAddress | None:
    """Return how the client is found behind proxies; None if there are none.

    Raises:
        LogError: The id has no address, or the proxies are not valid.
    """
    if not trusted_proxies and not hops:
        return None
    if CLIENT not in fields.ids:
        raise LogError(
            "trusted_proxies= and hops= need the address in id=, found "
            f"{', '.join(fields.ids) or 'none'}"
        )
    try:
        return ClientAddress(trusted_proxies=trusted_proxies, hops=hops, ipv6_prefix=ipv6_prefix)
    except ConfigError as error:
        raise LogError(str(error)) from error


def _first_time(parser: LogParser, head: bytes) -> int:
    """Return the time of the first event of a log; 0 if there is no event."""
    parser.feed(head)
    times = np.asarray(parser.take()[0])
    return int(times[0]) if len(times) else 0


def merge_chunks(parts: list[tuple[int, Iterator[Chunk]]], window: int) -> Iterator[Chunk]:
    """Merge files by time; a file is opened when the others reach its first event.

    Args:
        parts: For each file its first time and its chunks, which are sorted; in order of the times.
        window: How much earlier than its first event a file's events may be, in nanoseconds.
    """
    waiting = list(parts)
    # For each open file: its chunks, and the events that were not yielded yet.
    opened: list[tuple[Iterator[Chunk], Chunk]] = []
    while waiting or opened:
        if not opened or (waiting and waiting[0][0] - window <= min(_lasts(opened))):
            _, chunks = waiting.pop(0)
            opened += [(chunks, chunk) for chunk in [next(chunks, None)] if chunk is not None]
            continue
        end = min(_lasts(opened))
        early, late = [], []
        for chunks, chunk in opened:
            cut = int(np.searchsorted(chunk.times, end, side="right"))
            early.append(chunk.take(slice(0, cut)))
            rest: Chunk | None = chunk.take(slice(cut, None))
            if rest is not None and len(rest.times) == 0:
                rest = next(chunks, None)
            late += [(chunks, rest)] if rest is not None else []
        opened = late
        merged = concat_chunks(early)
        if len(early) > 1:
            merged = merged.take(np.argsort(merged.times, kind="stable"))
        yield merged


def _lasts(opened: list[tuple[Iterator[Chunk], Chunk]]) -> list[int]:
    return [int(chunk.times[-1]) for _, chunk in opened]


def concat_chunks(chunks: list[Chunk]) -> Chunk:
    """Concatenate chunks of one reader."""
    if len(chunks) == 1:
        return chunks[0]
    costs = [chunk.costs for chunk in chunks if chunk.costs is not None]
    durations = [chunk.durations for chunk in chunks if chunk.durations is not None]
    return chunks[0]._replace(
        times=np.concatenate([chunk.times for chunk in chunks]),
        codes=np.concatenate([chunk.codes for chunk in chunks]),
        costs=np.concatenate(costs) if costs else None,
        durations=np.concatenate(durations) if durations else None,
    )
