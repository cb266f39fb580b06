"""The files of logs: compressed, damaged, several, out of order, and long ones in chunks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from sample_log import write_access_log

from penstock.simulate import Trace
from penstock.simulate.log import LogError, LogReader, read_log
from penstock.simulate.log.source import Source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Write

NOISE: Final = Random(7).randbytes(100_000)  # noqa: S311  no secret


def line(second: int, who: str = "a") -> str:
    """Return a line in the combined format, `second` seconds after ten o'clock."""
    hour, rest = 10 + second // 3600, second % 3600
    return (
        f"{who} - - [18/Oct/2026:{hour:02}:{rest // 60:02}:{rest % 60:02} +0000] "
        f'"GET / HTTP/1.1" 200 5 "-" "-"\n'
    )


def seconds(times: Any) -> list[int]:
    """Return times as seconds after ten o'clock."""
    return [int(time) // 10**9 - 1_792_317_600 for time in times]


def read_seconds(reader: LogReader) -> list[int]:
    """Return the seconds of all chunks of a reader."""
    return [second for chunk in reader for second in seconds(chunk.times)]


TEXT = "".join(line(second, f"h{second % 7}") for second in range(300)).encode()


def of_members(pack: Callable[[bytes], bytes]) -> bytes:
    """Return two concatenated compressed files."""
    return pack(TEXT[:5001]) + pack(TEXT[5001:])


READABLE = {
    "plain": TEXT,
    "with a mark": b"\xef\xbb\xbf" + TEXT,
    "no end": TEXT.rstrip(b"\n"),
    "CRLF": TEXT.replace(b"\n", b"\r\n"),
    "zeros first": b"\0" * 5000 + TEXT,
    "gzip": gzip.compress(TEXT),
    "gzip with a mark": gzip.compress(b"\xef\xbb\xbf" + TEXT),
    "gzip of two members": of_members(gzip.compress),
    "gzip with zeros behind": gzip.compress(TEXT) + bytes(512),
    "bzip2": bz2.compress(TEXT),
    "bzip2 of two": of_members(bz2.compress),
    "xz": lzma.compress(TEXT),
    "xz of two": of_members(lzma.compress),
    "zstd": zstd.compress(TEXT),
    "zstd of two": of_members(zstd.compress),
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_kind_of_a_file_is_detected_from_its_content(write: Write, content: bytes) -> None:
    trace = Trace.from_log(write("access.parquet", content))
    assert seconds(trace.times) == list(range(300))
    assert list(trace.clients) == [f"h{number}" for number in range(7)]
    assert trace.skipped.lines == 300


PACKERS = [gzip.compress, bz2.compress, lzma.compress, zstd.compress]


@pytest.mark.parametrize("pack", PACKERS)
def test_truncated_file_is_refused(write: Write, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(NOISE.hex().encode())
    path = write("a.log", whole[: len(whole) // 2])
    with pytest.raises(LogError, match=r"a\.log ends too early") as e:
        b"".join(Source(path).blocks())
    assert e.value.file == path


# A frame of zstd has no checksum unless it is asked for.
@pytest.mark.parametrize("pack", PACKERS[:3])
def test_damaged_file_is_refused(write: Write, pack: Callable[[bytes], bytes]) -> None:
    damaged = bytearray(pack(TEXT))
    damaged[len(damaged) // 2] ^= 0xFF
    with pytest.raises(LogError, match=r"is damaged|ends too early"):
        Trace.from_log(write("a.log", bytes(damaged)))


@pytest.mark.parametrize("size", [1 << 10, 4 << 20, (4 << 20) + 1, 9 << 20])
def test_text_does_not_depend_on_block_borders(write: Write, size: int) -> None:
    text = (TEXT * (size // len(TEXT) + 1))[:size]
    blocks = list(Source(write("a.log.gz", gzip.compress(text, 1))).blocks())
    assert b"".join(blocks) == text
    assert max(map(len, blocks)) <= 4 << 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(TEXT) + b"and more", "is damaged"),
        (b"", "a.log is empty"),
        (b"\n\n", "a.log is empty"),
        (b"PK\x03\x04" + bytes(99), "zip archive"),
        ("a - - [18/Oct".encode("utf-16"), "iconv "),
        (NOISE[:5000], "is not text"),
        (b"\x7fELF" + bytes(5000), "is not text"),
        (b'[{"time": 1}, {"time": 2}]', "is a JSON array"),
        (b"[\n{}\n]", "is a JSON array"),
        (b"PAR1" + bytes(50), "a Parquet file"),
        (b"time,who\n1,a\n", "a library for tables"),
        (b"1\n2\n3\n", "no known format"),
        (b"x" * 200_000, "no known format"),
    ],
)
def test_other_kinds_of_files_are_refused(write: Write, content: bytes, message: str) -> None:
    path = write("a.log", content)
    with pytest.raises(LogError) as caught:
        Trace.from_log(path)
    assert message in str(caught.value)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path / "none.log*", tmp_path):
        with pytest.raises(LogError, match=r"cannot read .*|no file matches .*"):
            read_log(str(path))
    with pytest.raises(LogError, match="at least one file"):
        read_log([])
    with pytest.raises(LogError, match="found 2 paths"):
        read_log(["-", "a.log"])


@pytest.mark.parametrize("content", [TEXT, gzip.compress(TEXT)])
def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    trace = Trace.from_log("-")
    assert seconds(trace.times) == list(range(300))
    assert trace.skipped.files == ("<stdin>",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_bytes, gzip.compress(TEXT))
        assert seconds(Trace.from_log(pipe).times) == list(range(300))
        assert written.result(10) > 0


def test_rotated_logs_are_read_in_the_order_of_their_first_events(
    write: Write, tmp_path: Path
) -> None:
    lines = TEXT.splitlines(keepends=True)
    latest = write("access.log", b"".join(lines[200:]))
    oldest = write("access.log.2.gz", gzip.compress(b"".join(lines[:100])))
    middle = write("access.log.1", b"".join(lines[100:200]).rstrip(b"\n"))
    reader = read_log(f"{tmp_path}/access.log*", window=0)
    assert read_seconds(reader) == list(range(300))
    assert reader.report.files == (oldest, middle, latest)
    assert (reader.report.lines, reader.report.late) == (300, 0)
    assert seconds(Trace.from_log([latest, oldest, middle]).times) == list(range(300))


def test_empty_file_among_several_is_ignored(write: Write) -> None:
    empty = [write("access.log", b""), write("access.log.2.gz", gzip.compress(b""))]
    trace = Trace.from_log([*empty, write("access.log.1", TEXT)])
    assert seconds(trace.times) == list(range(300))
    assert len(trace.skipped.files) == 1
    with pytest.raises(LogError, match="is empty"):
        Trace.from_log(empty)


def test_examples_name_their_file(write: Write) -> None:
    good = "".join(line(second) for second in range(50))
    one, two = write("one", f"{good}bad\n{good}"), write("two", f"bad\n{good}")
    examples = Trace.from_log([one, two], max_bad=0.1).skipped.examples
    assert [(example.file, example.line) for example in examples] == [(one, 51), (two, 1)]


@pytest.mark.parametrize("chunk_events", [1, 7, 100, 1_000_000])
def test_chunks_are_sorted_and_late_lines_counted(write: Write, chunk_events: int) -> None:
    chance = Random(11)  # noqa: S311  no secret
    order = sorted(range(2_000), key=lambda second: second + chance.uniform(0, 59))
    path = write("a.log", "".join(line(second, f"h{second % 9}") for second in order))
    reader = read_log(path, chunk_events=chunk_events)
    chunks = list(reader)
    assert max(len(chunk.times) for chunk in chunks) <= chunk_events
    times = np.concatenate([chunk.times for chunk in chunks])
    codes = np.concatenate([chunk.codes for chunk in chunks])
    assert seconds(times) == list(range(2_000))
    assert [reader.clients[code] for code in codes] == [f"h{second % 9}" for second in range(2_000)]
    # With a narrow window, late lines are left out and counted.
    narrow = read_log(path, chunk_events=chunk_events, window=5, max_bad=1)
    kept = read_seconds(narrow)
    assert kept == sorted(kept)
    assert narrow.report.late + len(kept) == 2_000
    assert narrow.report.late > 100
    with pytest.raises(LogError, match=r"1\.0%.*late"):
        list(read_log(path, window=5))
    # A whole log is always sorted.
    assert seconds(Trace.from_log(path).times) == list(range(2_000))


def test_costs_and_ids_stay_with_their_events_when_sorted(write: Write) -> None:
    order = [3, 1, 2, 0, 5, 4]
    rows = (f'{{"t": {at}, "who": "h{at}", "n": {at * 10}}}\n' for at in order)
    path = write("a.log", "".join(rows))
    choices: list[dict[str, Any]] = [{}, {"time": "t"}]
    for options in choices:
        trace = Trace.from_log(path, id="who", cost="n", **options)
        assert trace.ids is not None
        assert trace.ids.tolist() == [f"h{second}" for second in range(6)]
        assert trace.costs is not None
        assert trace.costs.tolist() == [second * 10 for second in range(6)]
    chunks = list(read_log(path, id="who", cost="n", chunk_events=2))
    costs = [None if chunk.costs is None else chunk.costs.tolist() for chunk in chunks]
    assert costs == [[0, 10], [20, 30], [40, 50]]


def test_reader_may_be_closed_early(tmp_path: Path) -> None:
    path = write_access_log(tmp_path / "a.log", events=60_000, hours=100)
    reader = read_log(path, chunk_events=1_000)
    assert len(next(iter(reader)).times) == 1_000
    reader.close()
    assert list(reader) == []
    assert "events of" in repr(reader)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for events in (40_000, 160_000):
        path = write_access_log(tmp_path / "a.log", events=events, clients=50, hours=1_000)
        reader = read_log(path, chunk_events=5_000)
        tracemalloc.start()
        assert sum(len(chunk.times) for chunk in reader) == events
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The memory of Python objects: a log four times as long needs less than 50 % more.
    assert peaks[1] < 1.5 * peaks[0] + (8 << 20)
