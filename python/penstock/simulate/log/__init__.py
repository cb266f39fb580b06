"""Recorded traffic: access logs of nginx and Apache, JSON lines, CSV and Parquet.

`Trace.from_log` reads a whole log; `read_log` reads one of any length chunk by chunk;
`write_access_log` writes a synthetic one.
"""

from penstock.simulate.log.errors import LogError
from penstock.simulate.log.formats import FORMATS
from penstock.simulate.log.reader import Chunk, LogReader, read_log
from penstock.simulate.log.report import LogReport, SkippedLine
from penstock.simulate.log.writer import write_access_log

__all__ = [
    "FORMATS",
    "Chunk",
    "LogError",
    "LogReader",
    "LogReport",
    "SkippedLine",
    "read_log",
    "write_access_log",
]
