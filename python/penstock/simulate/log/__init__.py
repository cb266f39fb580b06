"""Recorded traffic: access logs of web servers, proxies and load balancers, and JSON lines.

`Trace.from_log` reads a whole log; `read_log` reads one of any length chunk by chunk.
"""

from penstock.simulate.log.formats import FORMATS
from penstock.simulate.log.reader import Chunk, LogReader, read_log
from penstock.simulate.log.report import LogError, LogReport, SkippedLine

__all__ = [
    "FORMATS",
    "Chunk",
    "LogError",
    "LogReader",
    "LogReport",
    "SkippedLine",
    "read_log",
]
