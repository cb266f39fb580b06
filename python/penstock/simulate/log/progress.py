"""How far a long reading has come."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.simulate.log.source import Source

__all__ = ["Progress", "watched"]

Progress: TypeAlias = "bool | Callable[[int, int | None], None] | None"


@contextmanager
def watched(progress: Progress, sources: list[Source]) -> Iterator[Callable[[], None]]:
    """Give what tells, when it is called, how many bytes of the files were read.

    `None` shows a bar on a terminal, if tqdm is installed; True asks for one, False for none; a
    function is called with the bytes that were read and with all there are, or `None` where nobody
    knows.
    """
    sizes = [source.size for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)

    def done() -> int:
        return sum(source.done for source in sources)

    if callable(progress):
        told = progress
        yield lambda: told(done(), total)
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda: None
        return
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415  an extra
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=total, unit="B", unit_scale=True, desc="reading", leave=False) as bar:

        def moved() -> None:
            bar.update(done() - bar.n)

        yield moved
