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
    """The ids of all files, each once."""

    def __init__(self, fields: FieldSelection, find_client: ClientAddress | None) -> None:
        self._fields = fields
        self._find_client = find_client
        self._codes: dict[str, int] = {}
        self.clients: Final[list[str]] = [] if fields.ids else [EVERYONE]

    def codes(self, ids: list[str]) -> NDArray[np.int32]:
        """Add ids of a file; return the code of each, or that it has none."""
        found: list[str | None] = [*ids]
        if self._find_client is None:
            _refuse_lists(ids)
        else:
            found = [_with_client(id, self._fields, self._find_client) for id in ids]
        known = self._codes
        codes = [_WITHOUT_ID if id is None else known.setdefault(id, len(known)) for id in found]
        self.clients.extend(islice(known, len(self.clients), None))
        return np.array(codes, np.int32)


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
    """One file of a log.

    Attributes:
        source: The file.
        detected: Its format.
        reached: No later line is earlier than this time by more than the window.
        chunks: Its events, in the order of the lines.
    """

    def __init__(self, source: Source, detected: Detected, reader: LogReader) -> None:
        self.source: Final = source
        self.detected: Final = detected
        self.reached = 0
        self.chunks: Final = self._read()
        self._parser: Final = detected.make()
        self._reader: Final = reader
        self._codes: NDArray[np.int32] = np.empty(0, np.int32)
        self._lines = 0

    def _read(self) -> Generator[Chunk]:
        for block in self.source.blocks():
            parsed = self._parser.feed(block)
            if parsed >= self._reader.chunk_events:
                yield self._taken()
        self._parser.finish()
        yield self._taken()

    def _taken(self) -> Chunk:
        """Take the parsed events that have an id, and update the report."""
        reader, report = self._reader, self._reader.report
        times, codes, costs, durations, counts = self._parser.take()
        lines, skipped, without_id, late, filtered, examples, directive = counts
        if directive is not None:
            raise LogError(
                f"the fields of {self.source.name} change at {printable(directive, 200)!r}; "
                "split the file there",
                file=self.source.name,
            )
        chunk = Chunk(
            np.asarray(times),
            np.asarray(codes),
            np.asarray(costs) if reader.fields.cost is not None else None,
            reader.clients,
            np.asarray(durations).view("m8[ns]") if reader.fields.duration is not None else None,
        )
        if reader.fields.ids:
            added = reader.table.codes(self._parser.ids(len(self._codes)))
            self._codes = np.concatenate([self._codes, added])
            own = self._codes[chunk.codes]
            has_id = own != _WITHOUT_ID
            chunk = chunk._replace(codes=own.view(np.uint32))
            if not has_id.all():
                chunk = chunk.take(has_id)
                without_id += len(own) - len(chunk.times)
        report.events += len(chunk.times)
        report.lines += lines - self._lines
        self._lines = lines
        report.skipped += skipped
        report.without_id += without_id
        report.late += late
        report.filtered += filtered
        more = (SkippedLine(self.source.name, *example) for example in examples)
        report.examples = (*report.examples, *more)[:MAX_EXAMPLES]
        return chunk


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
            sources = [source for source in sources if source.head()] or sources[:1]
        self.table: Final = _Table(fields, find_client)
        self.clients: Final = self.table.clients
        streams: list[_Stream] = []
        for source in sources:
            head = source.head()
            detected = detect_format(format, head, source.name, fields, options)
            streams.append(_Stream(source, detected, self))
            if len(sources) > 1:
                streams[-1].reached = _first_time(detected.make(), head)
        # The names of rotated logs are in reverse order.
        streams.sort(key=lambda stream: stream.reached)
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
        for stream in self._streams:
            stream.chunks.close()

    def _read(self) -> Generator[Chunk]:
        """Yield the events of all files, sorted by time."""
        streams = list(self._streams)
        pending: list[Chunk] = []
        while streams:
            # A file is opened when the others have reached its first event.
            stream = min(streams, key=lambda stream: stream.reached)
            chunk = next(stream.chunks, None)
            if chunk is None:
                streams.remove(stream)
            else:
                pending.append(chunk)
                if self.window is not None and len(chunk.times):
                    stream.reached = max(stream.reached, int(chunk.times.max()))
            whole = concat_chunks(pending)
            cut = len(whole.times)
            if self.window is not None:
                if np.any(whole.times[1:] < whole.times[:-1]):
                    whole = whole.take(np.argsort(whole.times, kind="stable"))
                if streams:
                    # No later line is before this time.
                    bound = min(stream.reached for stream in streams) - self.window
                    cut = int(np.searchsorted(whole.times, bound, side="right"))
            pending = [whole.take(slice(cut, None))]
            for first in range(0, cut, self.chunk_events):
                yield whole.take(slice(first, min(first + self.chunk_events, cut)))
        self._check()

    def _check(self) -> None:
        """Raise LogError if too many lines were left out."""
        report, file = self.report, self.report.files[0]
        without = report.without_id
        is_most = report.events == 0 or (CLIENT in self.fields.ids and without > report.events)
        if without and is_most:
            name = report.fields["id"].partition(", ")[0]
            raise LogError(
                f"{without:,} of {without + report.events:,} lines of {file} have no {name}, which "
                f"is the id; pass id=, or where='{name}!=-' to leave them out",
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
    cost: str | None = None,
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
        cost: The field of the cost. None: 1 each.
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


def concat_chunks(chunks: list[Chunk]) -> Chunk:
    """Concatenate chunks of one reader."""
    chunks = [chunk for chunk in chunks if len(chunk.times)] or chunks[:1]
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
