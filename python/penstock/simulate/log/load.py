"""A log, read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np

from penstock.simulate.ids import Codes
from penstock.simulate.log.reader import joined, read_log
from penstock.simulate.trace import Trace

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable
    from typing import Unpack

    from penstock.simulate.log.progress import Progress
    from penstock.simulate.log.report import LogReport
    from penstock.simulate.log.source import LogPath

__all__ = ["LogOptions", "LogTrace", "load_log"]

# More files than these do not fit into a name.
_NAMED: Final = 3


class LogOptions(TypedDict, total=False):
    """The options of `read_log` that mean something for a whole log; that says what each does."""

    format: str
    id: str | int | Iterable[str | int] | None
    cost: str | int | None
    time: str | int | None
    time_unit: str | None
    tz: str | datetime.tzinfo
    ipv6_prefix: int
    max_bad: float
    progress: Progress


class LogTrace(Trace):
    """The events of a log, by time.

    Attributes:
        skipped: What was read of the log and what was left out, with the first lines that did not
            parse.
    """

    __slots__ = ("skipped",)

    skipped: LogReport


def load_log(path: LogPath, **options: Unpack[LogOptions]) -> LogTrace:
    """Read a log whole and sort it; the options are those of `read_log`, but for the window.

    Raises:
        LogError: As `read_log`.

    >>> from penstock.simulate.log import write_access_log
    >>> file = write_access_log("access.log", events=1_000)
    >>> trace = load_log(file)
    >>> len(trace), trace.skipped.format
    (1000, 'combined')
    """
    reader = read_log(path, window=None, **options)
    times, codes, costs = joined(list(reader))
    if np.any(times[1:] < times[:-1]):
        order = np.argsort(times, kind="stable")
        times, codes = times[order], codes[order]
        costs = None if costs is None else costs[order]
    files = reader.report.files
    name = ", ".join(files[:_NAMED]) + (", …" if len(files) > _NAMED else "")
    ids = Codes(codes, reader.clients) if "id" in reader.report.fields else None
    trace = LogTrace(times, ids, costs, name)
    trace.skipped = reader.report
    return trace
