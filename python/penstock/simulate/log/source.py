"""The bytes of a log: from files, plain or compressed, or from standard input.

The kind of a file is detected from its first bytes, not from its name.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import importlib
import lzma
import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator


LogPath: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

HEAD: Final = 1 << 20
"""Bytes of the first block, from which the format of a log is detected."""
_BLOCK: Final = 4 << 20
_STDIN: Final = "<stdin>"
# The first bytes of files that are not text, and how to convert them.
_UNSUPPORTED: Final = (
    (b"\x04\x22\x4d\x18", "compressed by lz4; use `lz4 -dc {} | …` and the path '-'"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"PAR1", "a Parquet file; write it as JSON lines, or pass its columns to Trace"),
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


# The first bytes of compressed files, and the program that decompresses as much as can be read.
_COMPRESSED: Final[tuple[tuple[bytes, Callable[[Any], Any], str], ...]] = (
    (b"\x1f\x8b", gzip.open, "zcat"),
    (b"BZh", bz2.open, "bzip2recover"),
    (b"\xfd7zXZ\x00", lzma.open, "xzcat"),
    (b"\x28\xb5\x2f\xfd", _open_zstd, "zstdcat"),
)


class Source:
    """The bytes of one log, decompressed.

    Args:
        path: A file, or `-` for standard input.

    Attributes:
        name: The name for messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name: Final = _STDIN if path == "-" else os.fspath(path)
        # A pipe cannot be rewound.
        is_pipe = path == "-" or Path(self.name).is_fifo()
        self._pipe: Final = self._read() if is_pipe else None
        self._held: bytes | None = None

    def head(self) -> bytes:
        """Return the beginning of the text: 1 MiB, or all of it.

        Raises:
            LogError: The file is not text.
        """
        if self._pipe is None:
            with closing(self._read()) as blocks:
                return next(blocks, b"")
        if self._held is None:
            self._held = next(self._pipe, b"")
        return self._held

    def blocks(self) -> Iterator[bytes]:
        """Yield the text block by block.

        Raises:
            LogError: The file cannot be read, or its compressed data is damaged or cut off.
        """
        if self._pipe is None:
            yield from _read_ahead(self._read())
        else:
            yield self.head()
            yield from self._pipe

    def _read(self) -> Generator[bytes]:
        try:
            # A name may be no path, such as one of a Windows device.
            is_stdin = self.name == _STDIN
            with nullcontext(sys.stdin.buffer) if is_stdin else open(self.name, "rb") as file:  # noqa: PTH123
                stream, program = self._decompressed(file)
                size = HEAD
                while block := self._block(stream, size, program):
                    yield block
                    size = _BLOCK
        except OSError as error:
            raise LogError(f"cannot read {self.name}: {error.strerror}", file=self.name) from error

    def _decompressed(self, file: Any) -> tuple[IO[bytes], str | None]:
        """Return the stream of the text, and the program that decompresses it as well."""
        first = file.peek(_LONGEST_MAGIC)
        for magic, what in _UNSUPPORTED:
            if first.startswith(magic):
                raise LogError(
                    f"{self.name} is {what.format(self.name)}; its first bytes are {first[:8]!r}",
                    file=self.name,
                )
        for magic, opener, program in _COMPRESSED:
            if first.startswith(magic):
                return opener(file), program
        return file, None

    def _block(self, stream: Any, size: int, program: str | None) -> bytes:
        try:
            if self._pipe is None:
                whole: bytes = stream.read(size)
                return whole
            # Part by part, so that an interrupt is noticed between them.
            block = bytearray()
            while part := stream.read1(size - len(block)):
                block += part
            return bytes(block)
        except Exception as error:  # each library has its own errors
            if program is None:
                raise
            problem = "ends too early" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise LogError(
                f"{self.name} {problem}; copy the file again, or recover the readable part with "
                f"`{program} {self.name} | …` and the path '-'",
                file=self.name,
            ) from error


def find_sources(path: LogPath) -> list[Source]:
    """Find the files of a path: one, several, a pattern such as `access.log*`, or `-`.

    Raises:
        LogError: There is no file.
    """
    names: list[str | os.PathLike[str]] = []
    for name in [path] if isinstance(path, (str, os.PathLike)) else path:
        found: list[str | os.PathLike[str]] = [name]
        is_pattern = isinstance(name, str) and any(sign in name for sign in "*?[")
        if is_pattern and not Path(name).exists():
            # `glob` itself, because `Path.glob` takes no absolute pattern.
            found = [*sorted(glob.glob(os.fspath(name), recursive=True))]  # noqa: PTH207
            if not found:
                raise LogError(f"no file matches {name!r}")
        names += found
    if not names:
        raise LogError("path must name at least one file, found none")
    if "-" in names and len(names) > 1:
        raise LogError(f"'-' must be the only path, found {len(names)} paths")
    return [Source(name) for name in names]


def _read_ahead(blocks: Generator[bytes]) -> Iterator[bytes]:
    """Yield blocks while another thread reads and decompresses the next ones."""
    with closing(blocks), ThreadPoolExecutor(1, "penstock-log") as pool:
        ahead = deque(pool.submit(next, blocks, b"") for _ in range(2))
        while block := ahead.popleft().result():
            ahead.append(pool.submit(next, blocks, b""))
            yield block
