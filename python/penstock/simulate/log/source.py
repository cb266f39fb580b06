"""Where the bytes of a log come from: files, plain or compressed, or standard input.

What a file is, is told by how it begins, never by how its name ends.
"""

from __future__ import annotations

import bz2
import glob
import lzma
import os
import stat
import sys
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from penstock.simulate.log.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["LogPath", "Source", "ahead", "sources_of"]

LogPath: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

_BLOCK: Final = 4 << 20
_HEAD: Final = 64 << 10
_UTF8_MARK: Final = b"\xef\xbb\xbf"
# How files begin that are no text, and what would make them one.
_OTHERS: Final = (
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; `zstd -dc {} | …` and the path '-' would do"),
    (b"\x04\x22\x4d\x18", "compressed by lz4; `lz4 -dc {} | …` and the path '-' would do"),
    (b"\x1f\x9d", "compressed by compress; `zcat {} | …` and the path '-' would do"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"),
    (b"Salted__", "encrypted by OpenSSL; decrypt it first"),
    (b"-----BEGIN PGP", "encrypted by PGP; decrypt it first"),
    (b"age-encryption.org", "encrypted by age; decrypt it first"),
    (b"SQLite format 3", "an SQLite database; export a table as CSV"),
    (b"LPKSHHRH", "a journal of systemd; `journalctl --file {} -o json | …` would do"),
    (b"\xff\xfe", "text in UTF-16; `iconv -f utf-16 -t utf-8 {} | …` and the path '-' would do"),
    (b"\xfe\xff", "text in UTF-16; `iconv -f utf-16 -t utf-8 {} | …` and the path '-' would do"),
)
_LONGEST_MAGIC: Final = max(len(magic) for magic, _ in _OTHERS)
_PARQUET: Final = b"PAR1"


class _Gzip:
    """One member of a gzip file, with the face that the other decompressors have."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(31)
        self._is_full = False

    def decompress(self, data: bytes, most: int) -> bytes:
        text = self._inflate.decompress(self._inflate.unconsumed_tail + data, most)
        # More may wait inside, with all input consumed.
        self._is_full = len(text) == most
        return text

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._is_full and not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data


_COMPRESSED: Final[tuple[tuple[bytes, str, Callable[[], Any]], ...]] = (
    (b"\x1f\x8b", "gzip", _Gzip),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMADecompressor),
)


class Source:
    """The bytes of one log, decompressed.

    Args:
        path: A file, or `-` for standard input.

    Attributes:
        name: What messages call it.
        size: Bytes of the file as it is stored, `None` where nobody knows.
        done: Bytes of it that were read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._is_stdin: Final = path == "-"
        self.name: Final = "<stdin>" if self._is_stdin else os.fspath(path)
        self.size: Final = None if self._is_stdin else self._size()
        self.done = 0
        # A pipe has no beginning to come back to.
        self._stream = self._bytes() if self.size is None else None
        self._held: list[bytes] = []

    def _size(self) -> int | None:
        try:
            found = Path(self.name).stat()
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}", file=self.name) from error
        return None if stat.S_ISFIFO(found.st_mode) else found.st_size

    def head(self) -> bytes:
        """Give how the text begins: at least 64 KiB of it, or all.

        Raises:
            LogError: It is no text.
        """
        if self._held:
            return b"".join(self._held)[:_BLOCK]
        stream = self._stream if self._stream is not None else self._bytes()
        head: list[bytes] = []
        while sum(map(len, head)) < _HEAD and (block := next(stream, b"")):
            head.append(block)
        if self._stream is not None:
            self._held = head
        else:
            self.done = 0
        return b"".join(head)[:_BLOCK]

    def blocks(self) -> Iterator[bytes]:
        """Give the text, block by block.

        Raises:
            LogError: The file cannot be read, or what is compressed in it is damaged or cut.
        """
        yield from self._held
        self._held = []
        yield from self._stream if self._stream is not None else self._bytes()

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file."""
        if self._stream is not None:
            return False
        with self._opened() as file:
            return file.read(4) == _PARQUET

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        try:
            if self._is_stdin:
                # Unbuffered: a thread that waits in a buffer would hold its lock when all ends.
                yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
                return
            with open(self.name, "rb", buffering=0) as file:  # noqa: PTH123  a name may be no path
                yield file
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}", file=self.name) from error

    def _raw(self) -> Iterator[bytes]:
        with self._opened() as file:
            while block := file.read(_BLOCK):
                self.done += len(block)
                yield block

    def _bytes(self) -> Iterator[bytes]:
        raw = self._raw()
        first = next(raw, b"")
        while len(first) < _LONGEST_MAGIC and (more := next(raw, b"")):
            first += more
        for magic, what in _OTHERS:
            if first.startswith(magic):
                raise LogError(
                    f"{self.name} is {what.format(self.name)}; found how it begins, {first[:8]!r}",
                    file=self.name,
                )
        for magic, what, make in _COMPRESSED:
            if first.startswith(magic):
                yield from self._decompressed(first, raw, what, make)
                return
        if first:
            yield first.removeprefix(_UTF8_MARK)
        yield from raw

    def _decompressed(
        self, data: bytes, raw: Iterator[bytes], what: str, make: Callable[[], Any]
    ) -> Iterator[bytes]:
        """Decompress the members of a file, one after another."""
        member = make()
        given = members = 0
        while True:
            try:
                text = member.decompress(data, _BLOCK)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                raise self._damaged(f"is damaged ({error})", what, given) from error
            if text:
                yield text.removeprefix(_UTF8_MARK) if given == 0 else text
                given += len(text)
            if member.eof:
                # Some writers fill the last block with zeros.
                data = member.unused_data.lstrip(b"\0")
                while not data and (more := next(raw, b"")):
                    data = more.lstrip(b"\0")
                if not data:
                    return
                member, members = make(), members + 1
            elif member.needs_input:
                data = next(raw, b"")
                if not data:
                    raise self._damaged("ends in the middle", what, given)
            else:
                data = b""

    def _damaged(self, how: str, what: str, given: int) -> LogError:
        return LogError(
            f"{self.name} {how}: {self.done:,} bytes of {what} gave {given:,} bytes of text, and "
            "the rest is missing; copy it again, or recover what there is: "
            f"`zcat {self.name} | …` and the path '-'",
            file=self.name,
        )


def sources_of(path: LogPath) -> list[Source]:
    """Find the files that a path names: one, several, a pattern such as `access.log*`, or `-`.

    Raises:
        LogError: There is none, or one cannot be read.
    """
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    found: list[str | os.PathLike[str]] = []
    for one in given:
        if isinstance(one, str) and any(sign in one for sign in "*?[") and not Path(one).exists():
            matches = sorted(glob.glob(one, recursive=True))  # noqa: PTH207  a pattern may be absolute
            if not matches:
                raise LogError(f"no file is named like {one!r}")
            found.extend(matches)
        else:
            found.append(one)
    if not found:
        raise LogError("path must name at least one file, found none")
    if "-" in found and len(found) > 1:
        raise LogError(f"'-' is read alone, found {len(found)} paths")
    return [Source(one) for one in found]


def ahead(blocks: Iterator[bytes], *, is_pipe: bool = False) -> Iterator[bytes]:
    """Give blocks while the next one is read, and decompressed, by another thread.

    Who stops early waits for the thread, so that the file is closed; but not for a pipe, which may
    have nothing to give for ever.
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
        except BaseException as error:  # noqa: BLE001  raised where the blocks are wanted
            ready.put(error)

    # A daemon, as a program that is interrupted must end though the pipe does not.
    thread = Thread(target=read, name="penstock-log", daemon=True)
    thread.start()
    try:
        while block := ready.get():
            if isinstance(block, BaseException):
                raise block
            yield block
    finally:
        stopped.set()
        # The thread may be waiting for room.
        with suppress(Empty):
            ready.get_nowait()
        if not is_pipe:
            thread.join()
