"""Reading a log chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock._core import IPV6_PREFIX
from penstock.simulate.ids import EVERYONE
from penstock.simulate.log.detect import Detected, Options, detect_format, table_parser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.parquet import parquet_blocks, parquet_columns
from penstock.simulate.log.progress import Progress, progress_bar
from penstock.simulate.log.report import MAX_EXAMPLES, LogReport, SkippedLine, unit_names
from penstock.simulate.log.selection import FieldSelection
from penstock.simulate.log.source import LogPath, Source, find_sources, read_ahead
from penstock.simulate.log.zone import parse_zone
from penstock.validation import is_whole

if TYPE_CHECKING:
    import datetime
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray


_UNITS: Final = ("s", "ms", "us", "ns")
# A log with no event in this many lines has the wrong format, and the rest is not read.
_MAX_LINES_WITHOUT_EVENT: Final = 10_000


class Chunk(NamedTuple):
    """Some events of a log, sorted by time.

    Attributes:
        times: Event times, in nanoseconds since 1970.
        codes: The index of each event's id in `clients`.
        costs: The cost of each event in tokens; None if it is 1 each.
        clients: The ids, each once. All chunks of a reader share this list, which grows.
    """

    times: NDArray[np.int64]
    codes: NDArray[np.uint32]
    costs: NDArray[np.int64] | None
    clients: list[str]


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
        progress: Progress,
    ) -> None:
        self.clients: Final[list[str]] = [] if fields.ids else [EVERYONE]
        self._fields: Final = fields
        self._window: Final = options[4]
        self._max_bad: Final = max_bad
        self._max_events: Final = chunk_events
        self._progress: Final = progress
        if len(sources) > 1:
            # The newest of rotated logs may still be empty.
            sources = [one for one in sources if one.is_parquet or one.head()] or sources[:1]
        self._detected: Final = _detect(sources[0], format, fields, options)
        if len(sources) > 1:
            # The names of rotated logs are in reverse order.
            sources = sorted(
                sources, key=lambda source: _first_time(source, format, fields, options)
            )
        self._sources: Final = sources
        self.report: Final = LogReport(
            files=tuple(source.name for source in sources),
            format=self._detected.name,
            fields=self._detected.fields,
        )
        self._units = 0
        self._pending: list[Chunk] = []
        self._chunks: Final = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __repr__(self) -> str:
        return f"<LogReader of {', '.join(self.report.files)}: {self.report}>"

    def close(self) -> None:
        """Close the files, if the log was not read to its end."""
        self._chunks.close()

    def _read(self) -> Generator[Chunk]:
        parser = self._detected.parser
        min_pending = self._max_events
        with progress_bar(self._progress, self._sources) as advance:
            for source in self._sources:
                lines = self.report.lines
                for block in read_ahead(self._blocks(source), is_pipe=source.size is None):
                    parsed = parser.feed(block)
                    advance()
                    if parsed == 0 and self.report.events == 0:
                        self._take_parsed(source, lines)
                        self._stop_early()
                    if parsed >= min_pending:
                        self._take_parsed(source, lines)
                        yield from self._sorted_chunks(is_last=False)
                        # Pending events are sorted again with the next ones; to keep that cheap,
                        # at least as many must come.
                        pending = sum(len(chunk.times) for chunk in self._pending)
                        min_pending = max(self._max_events, pending)
                parser.finish()
                self._take_parsed(source, lines)
        self._check()
        yield from self._sorted_chunks(is_last=True)

    def _blocks(self, source: Source) -> Iterator[bytes]:
        if self._detected.columns:
            return parquet_blocks(source.name, self._detected.columns)
        return source.blocks()

    def _take_parsed(self, source: Source, lines_before: int) -> None:
        """Take the parsed events, and update the report."""
        times, codes, costs, counts = self._detected.parser.take()
        lines, skipped, without_id, late, units, examples = counts
        if times:
            self._pending.append(
                Chunk(
                    np.frombuffer(times, np.int64),
                    np.frombuffer(codes, np.uint32),
                    None if self._fields.cost is None else np.frombuffer(costs, np.int64),
                    self.clients,
                )
            )
        if self._fields.ids:
            self.clients.extend(self._detected.parser.ids(len(self.clients)))
        report = self.report
        report.events += len(times) // 8
        report.lines = lines_before + lines
        report.skipped += skipped
        report.without_id += without_id
        report.late += late
        self._units |= units
        report.units = unit_names(self._units)
        more = (SkippedLine(source.name, *example) for example in examples)
        report.examples = (*report.examples, *more)[:MAX_EXAMPLES]

    def _sorted_chunks(self, *, is_last: bool) -> Iterator[Chunk]:
        """Yield the events that no later line can precede, sorted by time."""
        if not self._pending:
            return
        times, codes, costs, clients = concat_chunks(self._pending)
        self._pending = []
        cut = len(times)
        if self._window is not None:
            if np.any(times[1:] < times[:-1]):
                order = np.argsort(times, kind="stable")
                times, codes = times[order], codes[order]
                costs = None if costs is None else costs[order]
            if not is_last:
                cut = int(np.searchsorted(times, times[-1] - self._window, side="right"))
                rest = None if costs is None else costs[cut:]
                self._pending = [Chunk(times[cut:], codes[cut:], rest, clients)]
        for first in range(0, cut, self._max_events):
            last = min(first + self._max_events, cut)
            part = costs[first:last] if costs is not None else self._constant(last - first)
            yield Chunk(times[first:last], codes[first:last], part, clients)

    def _constant(self, events: int) -> NDArray[np.int64] | None:
        constant = self._fields.constant
        return None if constant is None else np.full(events, constant, np.int64)

    def _stop_early(self) -> None:
        report = self.report
        if report.skipped > _MAX_LINES_WITHOUT_EVENT and not report.without_id:
            self._check()

    def _check(self) -> None:
        """Raise LogError if the units are ambiguous or too many lines were left out."""
        report, file = self.report, self.report.files[0]
        if len(report.units) > 1:
            raise LogError(
                f"timestamps in {file} look like both {' and '.join(report.units)}; "
                "pass time_unit='s', 'ms', 'us' or 'ns'",
                file=file,
            )
        if report.events == 0 and report.without_id:
            raise LogError(
                f"no line of {file} has an id: {report.fields.get('id', 'id')} is missing or '-' "
                f"in all {report.without_id:,}; pass id=",
                file=file,
                examples=report.examples,
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
            wider = "raise window= for late lines, or " if report.late else ""
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
    id: str | int | Iterable[str | int] | None = "address",
    cost: str | int | None = None,
    time: str | int | None = None,
    time_unit: str | None = None,
    tz: str | datetime.tzinfo = "UTC",
    ipv6_prefix: int = IPV6_PREFIX,
    max_bad: float = 0.01,
    window: float | None = 60.0,
    chunk_events: int = 1_000_000,
    progress: Progress = None,
) -> LogReader:
    """Read a log chunk by chunk, in little memory however long it is.

    The format and the fields are detected by this call; the rest is read during iteration.

    Args:
        path: A file, several files, a pattern such as `access.log*`, or `-` for standard input.
            Several files are read in the order of their first events. Files may be compressed by
            gzip, bzip2 or xz; this is detected from their content.
        format: `"auto"`, a name in `FORMATS`, `"jsonl"`, `"csv"`, `"parquet"`, or a format string
            of nginx (`$remote_addr …`) or Apache (`%h …`), also as the whole directive.
        id: The field of the client id, or several fields. None: all events are one client's. A
            column may be given by its name or its number, from 0.
        cost: The field of the cost, or one integer for all events. None: 1 each.
        time: The field of the time. None: detected.
        time_unit: The unit of epoch timestamps: `"s"`, `"ms"`, `"us"` or `"ns"`. None: detected
            from their size.
        tz: The time zone of times without one.
        ipv6_prefix: IPv6 addresses that share this many leading bits are one client.
        max_bad: The largest share of lines, 0 to 1, that may be left out because they do not parse
            or are late.
        window: How many seconds a line may be out of order; servers write a line when a request
            ends. None: return the events in the order of the lines, unsorted.
        chunk_events: The largest number of events in a chunk.
        progress: None shows a progress bar on a terminal, False does not; a function is called
            with the bytes read so far and the total.

    Raises:
        LogError: A file, format or field does not exist, a file is damaged, or more than `max_bad`
            of the lines were left out, which is known only after the last chunk.

    >>> from penstock.simulate import Simulator
    >>> from penstock.simulate.log import write_access_log
    >>> simulator = Simulator("60/minute")
    >>> for chunk in read_log(write_access_log("access.log", events=1_000), chunk_events=400):
    ...     part = simulator.feed(chunk, columns=["allowed"])
    >>> simulator.events
    1000
    """
    if not is_whole(ipv6_prefix, 1, 128):
        raise LogError(f"ipv6_prefix must be an integer from 1 to 128, found {ipv6_prefix!r}")
    if not is_whole(chunk_events, 1, 2**32):
        raise LogError(f"chunk_events must be an integer of at least 1, found {chunk_events!r}")
    if not 0 <= max_bad <= 1:
        raise LogError(f"max_bad must be a share from 0 to 1, found {max_bad!r}")
    if window is not None and not 0 <= window <= 1e9:  # noqa: PLR2004  some thirty years
        raise LogError(f"window must be seconds from 0 to 1e9, or None, found {window!r}")
    if time_unit is not None and time_unit not in _UNITS:
        raise LogError(f"time_unit must be one of {', '.join(_UNITS)}, found {time_unit!r}")
    fields = FieldSelection.of(time, id, cost)
    window_ns = None if window is None else round(window * 1e9)
    options = (
        fields.cost is not None,
        len(fields.ids),
        parse_zone(tz),
        time_unit,
        window_ns,
        ipv6_prefix,
    )
    sources = find_sources(path)
    return LogReader(
        sources,
        format,
        fields,
        options,
        max_bad=max_bad,
        chunk_events=chunk_events,
        progress=progress,
    )


def _detect(source: Source, format_name: str, fields: FieldSelection, options: Options) -> Detected:
    if format_name == "parquet" or (format_name == "auto" and source.is_parquet):
        return table_parser(parquet_columns(source.name), source.name, fields, options)
    return detect_format(format_name, source.head(), source.name, fields, options)


def _first_time(source: Source, format_name: str, fields: FieldSelection, options: Options) -> int:
    """Return the time of the first event of a log; 0 if there is no event."""
    parser = (found := _detect(source, format_name, fields, options)).parser
    if found.columns:
        parser.feed(next(iter(parquet_blocks(source.name, found.columns)), b""))
    else:
        parser.feed(source.head())
    parser.finish()
    times = np.frombuffer(parser.take()[0], np.int64)
    return int(times[0]) if len(times) else 0


def concat_chunks(chunks: list[Chunk]) -> Chunk:
    """Concatenate chunks of one reader."""
    if len(chunks) == 1:
        return chunks[0]
    costs = [chunk.costs for chunk in chunks if chunk.costs is not None]
    return Chunk(
        np.concatenate([chunk.times for chunk in chunks]),
        np.concatenate([chunk.codes for chunk in chunks]),
        np.concatenate(costs) if costs else None,
        chunks[0].clients,
    )
