"""A log, read chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.simulate.log.detect import Detected, Options, detected, table_parser
from penstock.simulate.log.errors import LogError
from penstock.simulate.log.parquet import parquet_blocks, parquet_columns
from penstock.simulate.log.progress import Progress, watched
from penstock.simulate.log.report import MOST_EXAMPLES, LogReport, SkippedLine, unit_names
from penstock.simulate.log.selection import Wanted
from penstock.simulate.log.source import LogPath, Source, ahead, sources_of
from penstock.simulate.log.zone import zone_of
from penstock.simulate.trace import EVERYONE, Trace
from penstock.validation import is_whole

if TYPE_CHECKING:
    import datetime
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["Chunk", "LogReader", "read_log"]

_UNITS: Final = ("s", "ms", "us", "ns")
# So many lines and not one event: nobody waits for the rest of a log of the wrong format.
_ENOUGH: Final = 10_000


class Chunk(NamedTuple):
    """Some events, by time.

    Attributes:
        times: When, in nanoseconds since 1970, ascending.
        codes: For each event the place of its id in the reader's `clients`.
        costs: Tokens; `None` where it is 1 each.
    """

    times: NDArray[np.int64]
    codes: NDArray[np.uint32]
    costs: NDArray[np.int64] | None


class LogReader:
    """The events of a log, chunk by chunk, in bounded memory; made by `read_log`.

    It can be walked through once.

    Attributes:
        clients: The ids, each once, in order of appearance; the list grows with each chunk.
        report: What was read so far, and what was left out.
    """

    def __init__(
        self,
        sources: list[Source],
        asked: str,
        wanted: Wanted,
        options: Options,
        *,
        max_bad: float,
        chunk_events: int,
        progress: Progress,
    ) -> None:
        self.clients: Final[list[str]] = [] if wanted.ids else [EVERYONE]
        self._wanted: Final = wanted
        self._window: Final = options[4]
        self._max_bad: Final = max_bad
        self._most: Final = chunk_events
        self._progress: Final = progress
        if len(sources) > 1:
            # The newest of rotated logs may have been made just now.
            sources = [one for one in sources if one.is_parquet or one.head()] or sources[:1]
        self._found: Final = _found(sources[0], asked, wanted, options)
        if len(sources) > 1:
            # Rotated logs are named backwards.
            sources = sorted(sources, key=lambda source: _first(source, asked, wanted, options))
        self._sources: Final = sources
        self.report: Final = LogReport(
            files=tuple(source.name for source in sources),
            format=self._found.name,
            fields=self._found.fields,
        )
        self._units = 0
        self.wait_queue: list[Chunk] = []
        self._chunks: Final = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def traces(self) -> Iterator[Trace]:
        """Give the chunks as traces, which share the growing table of ids.

        >>> from penstock.simulate import Simulator
        >>> from penstock.simulate.log import write_access_log
        >>> simulator = Simulator("60/minute")
        >>> for part in read_log(write_access_log("access.log", events=1_000)).traces():
        ...     denied = simulator.feed(part, columns=["allowed"])
        >>> simulator.events
        1000
        """
        for chunk in self._chunks:
            yield Trace.from_codes(chunk.times, chunk.codes, self.clients, chunk.costs)

    def __repr__(self) -> str:
        return f"<LogReader of {', '.join(self.report.files)}: {self.report}>"

    def close(self) -> None:
        """Close the files of a log that was not read to its end."""
        self._chunks.close()

    def _read(self) -> Generator[Chunk]:
        parser = self._found.parser
        enough = self._most
        with watched(self._progress, self._sources) as advance:
            for source in self._sources:
                lines = self.report.lines
                for block in ahead(self._blocks(source), is_pipe=source.size is None):
                    waiting = parser.feed(block)
                    advance()
                    if waiting == 0 and self.report.events == 0:
                        self._take(source, lines)
                        self._stop_early()
                    if waiting >= enough:
                        self._take(source, lines)
                        yield from self._emitted(is_last=False)
                        # What waits for the window is sorted again with what comes, so as much
                        # must come.
                        enough = max(self._most, sum(len(chunk.times) for chunk in self.wait_queue))
                parser.finish()
                self._take(source, lines)
        self._judge()
        yield from self._emitted(is_last=True)

    def _blocks(self, source: Source) -> Iterator[bytes]:
        if self._found.columns:
            return parquet_blocks(source.name, self._found.columns)
        return source.blocks()

    def _take(self, source: Source, lines_before: int) -> None:
        """Take what the parser has, and count it."""
        times, codes, costs, counts = self._found.parser.take()
        lines, skipped, without_id, late, units, examples = counts
        if times:
            self.wait_queue.append(
                Chunk(
                    np.frombuffer(times, np.int64),
                    np.frombuffer(codes, np.uint32),
                    None if self._wanted.cost is None else np.frombuffer(costs, np.int64),
                )
            )
        if self._wanted.ids:
            self.clients.extend(self._found.parser.ids(len(self.clients)))
        report = self.report
        report.events += len(times) // 8
        report.lines = lines_before + lines
        report.skipped += skipped
        report.without_id += without_id
        report.late += late
        self._units |= units
        report.units = unit_names(self._units)
        more = (SkippedLine(source.name, *example) for example in examples)
        report.examples = (*report.examples, *more)[:MOST_EXAMPLES]

    def _emitted(self, *, is_last: bool) -> Iterator[Chunk]:
        """Give the events that no later line can come before, by time."""
        if not self.wait_queue:
            return
        times, codes, costs = joined(self.wait_queue)
        self.wait_queue = []
        cut = len(times)
        if self._window is not None:
            if np.any(times[1:] < times[:-1]):
                order = np.argsort(times, kind="stable")
                times, codes = times[order], codes[order]
                costs = None if costs is None else costs[order]
            if not is_last:
                cut = int(np.searchsorted(times, times[-1] - self._window, side="right"))
                self.wait_queue = [Chunk(times[cut:], codes[cut:], _part(costs, cut, None))]
        for first in range(0, cut, self._most):
            last = min(first + self._most, cut)
            part = costs[first:last] if costs is not None else self._constant(last - first)
            yield Chunk(times[first:last], codes[first:last], part)

    def _constant(self, events: int) -> NDArray[np.int64] | None:
        constant = self._wanted.constant
        return None if constant is None else np.full(events, constant, np.int64)

    def _stop_early(self) -> None:
        report = self.report
        if report.skipped > _ENOUGH and not report.without_id:
            self._judge()

    def _judge(self) -> None:
        """Refuse a log of which too much was left out."""
        report, file = self.report, self.report.files[0]
        if len(report.units) > 1:
            raise LogError(
                f"times of {file} count {' and '.join(report.units)}, told by how large they are; "
                "time_unit='s', 'ms', 'us' or 'ns' says which",
                file=file,
            )
        if report.events == 0 and report.without_id:
            raise LogError(
                f"no line of {file} says who: {report.fields.get('id', 'id')} is missing or '-' in "
                f"all {report.without_id:,}; id= takes another field",
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
            wider = "window= waits for late lines, and " if report.late else ""
            raise LogError(
                f"{report.share_left_out:.1%} of the lines of {', '.join(report.files)} were left "
                f"out, at most {self._max_bad:.1%} may be: {report.skipped:,} did not parse as "
                f"{report.format}{late}; {wider}max_bad= takes more",
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
    ipv6_prefix: int = 64,
    max_bad: float = 0.01,
    window: float | None = 60.0,
    chunk_events: int = 1_000_000,
    progress: Progress = None,
) -> LogReader:
    """Read a log chunk by chunk, so that one of any length needs little memory.

    The format and the fields are looked for when this is called, the rest is read while the reader
    is walked through.

    Args:
        path: A file, several, a pattern such as `access.log*`, or `-` for standard input. Several
            are read in the order of their first events. Compressed by gzip, bzip2 or xz, or not;
            what a file is, its content says, not its name.
        format: `"auto"`, a name in `FORMATS`, `"jsonl"`, `"csv"`, `"parquet"`, or a format string
            of nginx (`$remote_addr …`) or Apache (`%h …`), also as the whole directive.
        id: The field that says who, or several; `None` takes all events as one client's. A column
            by its name or, from 0, its number.
        cost: The field that says how much, or one whole number for all. `None` is 1 each.
        time: The field that says when; `None` looks for it.
        time_unit: What epochs count: `"s"`, `"ms"`, `"us"` or `"ns"`. `None` tells it by how large
            they are.
        tz: The zone of times that name none.
        ipv6_prefix: IPv6 addresses that share this many leading bits are one client.
        max_bad: The share of lines, 0 to 1, that may be left out because they do not parse or are
            late.
        window: How many seconds a line may be earlier than one before it; `None` gives the events
            as the lines stand, unsorted. Servers write a line when a request ends.
        chunk_events: The most events in a chunk.
        progress: `None` shows a bar on a terminal, False none; a function is called with the bytes
            that were read and all there are.

    Raises:
        LogError: No such file, format or field, a damaged file, or more than `max_bad` left out;
            the last is known only after the last chunk.

    >>> from penstock.simulate.log import write_access_log
    >>> file = write_access_log("access.log", events=1_000)
    >>> reader = read_log(file, id=("address", "path"), chunk_events=400)
    >>> sum(len(chunk.times) for chunk in reader)
    1000
    """
    if not is_whole(ipv6_prefix, 1, 128):
        raise LogError(f"ipv6_prefix must be a whole number from 1 to 128, found {ipv6_prefix!r}")
    if not is_whole(chunk_events, 1, 2**32):
        raise LogError(f"chunk_events must be a whole number of at least 1, found {chunk_events!r}")
    if not 0 <= max_bad <= 1:
        raise LogError(f"max_bad must be a share from 0 to 1, found {max_bad!r}")
    if window is not None and not 0 <= window <= 1e9:  # noqa: PLR2004  some thirty years
        raise LogError(f"window must be seconds from 0 to 1e9, or None, found {window!r}")
    if time_unit is not None and time_unit not in _UNITS:
        raise LogError(f"time_unit must be one of {', '.join(_UNITS)}, found {time_unit!r}")
    wanted = Wanted.of(time, id, cost)
    window_ns = None if window is None else round(window * 1e9)
    options = (
        wanted.cost is not None,
        len(wanted.ids),
        zone_of(tz),
        time_unit,
        window_ns,
        ipv6_prefix,
    )
    sources = sources_of(path)
    return LogReader(
        sources,
        format,
        wanted,
        options,
        max_bad=max_bad,
        chunk_events=chunk_events,
        progress=progress,
    )


def _found(source: Source, asked: str, wanted: Wanted, options: Options) -> Detected:
    if asked == "parquet" or (asked == "auto" and source.is_parquet):
        return table_parser(parquet_columns(source.name), source.name, wanted, options)
    return detected(asked, source.head(), source.name, wanted, options)


def _first(source: Source, asked: str, wanted: Wanted, options: Options) -> int:
    """Give the time of the first event of a log; 0 where none is found."""
    parser = (found := _found(source, asked, wanted, options)).parser
    if found.columns:
        parser.feed(next(iter(parquet_blocks(source.name, found.columns)), b""))
    else:
        parser.feed(source.head())
    parser.finish()
    times = np.frombuffer(parser.take()[0], np.int64)
    return int(times[0]) if len(times) else 0


def joined(chunks: list[Chunk]) -> Chunk:
    """Put chunks behind one another."""
    if len(chunks) == 1:
        return chunks[0]
    costs = [chunk.costs for chunk in chunks if chunk.costs is not None]
    return Chunk(
        np.concatenate([chunk.times for chunk in chunks]),
        np.concatenate([chunk.codes for chunk in chunks]),
        np.concatenate(costs) if costs else None,
    )


def _part(
    costs: NDArray[np.int64] | None, first: int, last: int | None
) -> NDArray[np.int64] | None:
    return None if costs is None else costs[first:last]
