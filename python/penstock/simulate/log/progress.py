"""The progress of reading a log."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.simulate.log.source import Source


Progress: TypeAlias = "bool | Callable[[int, int | None], None] | None"


@contextmanager
def progress_bar(progress: Progress, sources: list[Source]) -> Iterator[Callable[[], None]]:
    """Show progress; the context's value is a function that updates it.

    None shows a bar on a terminal if tqdm is installed; True always shows one, False never. A
    function is called with the bytes read so far and the total, which is None if it is not known.
    """
    sizes = [source.size for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)

    def done() -> int:
        return sum(source.done for source in sources)

    if callable(progress):
        report = progress
        yield lambda: report(done(), total)
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

        def update() -> None:
            bar.update(done() - bar.n)

        yield update
