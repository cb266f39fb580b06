"""The bytes of a log: from files, plain or compressed, or from standard input.

The kind of a file is detected from its first bytes, not from its name.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import importlib
import io
import lzma
import os
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


LogPath: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

_BLOCK: Final = 4 << 20
HEAD: Final = 64 << 10
"""Bytes from which the format of a log is detected."""
_UTF8_MARK: Final = b"\xef\xbb\xbf"
# The first bytes of files that are not text, and how to convert them.
_UNSUPPORTED: Final = (
    (b"\x04\x22\x4d\x18", "compressed by lz4; use `lz4 -dc {} | …` and the path '-'"),
    (b"\x1f\x9d", "compressed by compress; use `zcat {} | …` and the path '-'"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"),
    (b"Salted__", "encrypted by OpenSSL; decrypt it first"),
    (b"-----BEGIN PGP", "encrypted by PGP; decrypt it first"),
    (b"age-encryption.org", "encrypted by age; decrypt it first"),
    (b"PAR1", "a Parquet file; write it as JSON lines, or pass its columns to Trace"),
    (b"SQLite format 3", "an SQLite database; pass the columns of a table to Trace"),
    (b"LPKSHHRH", "a systemd journal; use `journalctl --file {} -o json | …`"),
    (b"\xff\xfe", "text in UTF-16; use `iconv -f utf-16 -t utf-8 {} | …` and the path '-'"),
    (b"\xfe\xff", "text in UTF-16; use `iconv -f utf-16 -t utf-8 {} | …` and the path '-'"),
)
_LONGEST_MAGIC: Final = max(len(magic) for magic, _ in _UNSUPPORTED)


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    # In the standard library from Python 3.14 on.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            opened: IO[bytes] = importlib.import_module(name).open(file)
            return opened
    raise LogError(
        "the log is compressed by zstd, which needs backports.zstd; "
        "run `pip install backports.zstd`"
    )


_COMPRESSED: Final[tuple[tuple[bytes, str, Callable[[Any], Any]], ...]] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bzip2", bz2.open),
    (b"\xfd7zXZ\x00", "xz", lzma.open),
    (b"\x28\xb5\x2f\xfd", "zstd", _open_zstd),
)


# The programs that decompress as much as can be read.
_TOOLS: Final = {"gzip": "zcat", "bzip2": "bzip2recover", "xz": "xzcat", "zstd": "zstdcat"}


class _Counted(io.RawIOBase):
    """A file that adds the bytes read from it to those of its log."""

    def __init__(self, file: Any, source: Source) -> None:
        self._file = file
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self._source.done += count
        return count


class Source:
    """The bytes of one log, decompressed.

    Args:
        path: A file, or `-` for standard input.

    Attributes:
        name: The name for messages.
        size: The size of the stored file in bytes; None if it is not known.
        done: The bytes of it that were read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._is_stdin: Final = path == "-"
        self.name: Final = "<stdin>" if self._is_stdin else os.fspath(path)
        self.size: Final = None if self._is_stdin else self._size()
        self.done = 0
        # A pipe cannot be rewound.
        self._stream = self._bytes() if self.size is None else None
        self._held: list[bytes] = []

    def _size(self) -> int | None:
        try:
            status = Path(self.name).stat()
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}", file=self.name) from error
        return None if stat.S_ISFIFO(status.st_mode) else status.st_size

    def head(self) -> bytes:
        """Return the beginning of the text: 64 KiB, or all of it.

        Raises:
            LogError: The file is not text.
        """
        if self._held:
            return b"".join(self._held)[:HEAD]
        stream = self._stream if self._stream is not None else self._bytes()
        head: list[bytes] = []
        while sum(map(len, head)) < HEAD and (block := next(stream, b"")):
            head.append(block)
        if self._stream is not None:
            self._held = head
        else:
            self.done = 0
        return b"".join(head)[:HEAD]

    def blocks(self) -> Iterator[bytes]:
        """Yield the text block by block.

        Raises:
            LogError: The file cannot be read, or its compressed data is damaged or cut off.
        """
        yield from self._held
        self._held = []
        yield from self._stream if self._stream is not None else self._bytes()

    @contextmanager
    def _opened(self) -> Iterator[io.BufferedReader]:
        try:
            with ExitStack() as files:
                if self._is_stdin:
                    # A thread that waits in Python's own buffer would hold its lock at exit.
                    file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
                else:
                    # A name may be no path, such as one of a Windows device.
                    file = files.enter_context(open(self.name, "rb", buffering=0))  # noqa: PTH123
                yield io.BufferedReader(_Counted(file, self), _BLOCK)
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}", file=self.name) from error

    def _bytes(self) -> Iterator[bytes]:
        with self._opened() as file:
            first = file.peek(_LONGEST_MAGIC)
            for magic, what in _UNSUPPORTED:
                if first.startswith(magic):
                    raise LogError(
                        f"{self.name} is {what.format(self.name)}; its first bytes are "
                        f"{first[:8]!r}",
                        file=self.name,
                    )
            kind = next((kind for kind in _COMPRESSED if first.startswith(kind[0])), None)
            blocks = iter(partial(file.read1, _BLOCK), b"")
            if kind is not None:
                blocks = self._decompressed(file, *kind[1:])
            if begin := next(blocks, b"").removeprefix(_UTF8_MARK):
                yield begin
            yield from blocks

    def _decompressed(
        self, file: IO[bytes], what: str, opener: Callable[[Any], Any]
    ) -> Iterator[bytes]:
        size, parts, length = 0, list[bytes](), 0
        try:
            with opener(file) as stream:
                # `read` would lose what precedes the end of a file that is cut off.
                while part := stream.read1(_BLOCK - length):
                    size += len(part)
                    length += len(part)
                    parts.append(part)
                    if length == _BLOCK:
                        yield b"".join(parts)
                        parts, length = [], 0
            yield from parts and [b"".join(parts)]
        except LogError:
            raise
        except Exception as error:  # each library has its own errors
            problem = "ends too early" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise LogError(
                f"{self.name} {problem}: {self.done:,} bytes of {what} contain {size:,} bytes of "
                "text, and the rest is missing; copy the file again, or recover the readable part "
                f"with `{_TOOLS[what]} {self.name} | …` and the path '-'",
                file=self.name,
            ) from error


def find_sources(path: LogPath) -> list[Source]:
    """Find the files of a path: one, several, a pattern such as `access.log*`, or `-`.

    Raises:
        LogError: There is no file, or one cannot be read.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    names: list[str | os.PathLike[str]] = []
    for name in paths:
        pattern = name if isinstance(name, str) and any(sign in name for sign in "*?[") else None
        if pattern is not None and not Path(pattern).exists():
            # `glob` itself, because `Path.glob` takes no absolute pattern.
            matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
            if not matches:
                raise LogError(f"no file matches {pattern!r}")
            names.extend(matches)
        else:
            names.append(name)
    if not names:
        raise LogError("path must name at least one file, found none")
    if "-" in names and len(names) > 1:
        raise LogError(f"'-' must be the only path, found {len(names)} paths")
    return [Source(name) for name in names]


def read_ahead(blocks: Iterator[bytes], *, is_pipe: bool = False) -> Iterator[bytes]:
    """Yield blocks while another thread reads and decompresses the next one.

    Closing the iterator early waits for the thread, so that the file is closed; but not for a
    pipe, which may block forever.
    """
    ready: Queue[bytes | BaseException] = Queue(1)
    stopped = Event()

    def read() -> None:
        try:
            for block in blocks:
                ready.put(block)
                if stopped.is_set():
                    return
            ready.put(b"")
        except BaseException as error:  # noqa: BLE001  raised again in the consumer
            ready.put(error)

    # A daemon: an interrupted program must exit although the pipe is still open.
    thread = Thread(target=read, name="penstock-log", daemon=True)
    thread.start()
    try:
        while block := ready.get():
            if isinstance(block, BaseException):
                raise block
            yield block
    finally:
        stopped.set()
        # The thread may be waiting to put a block.
        with suppress(Empty):
            ready.get_nowait()
        if not is_pipe:
            thread.join()
