"""The progress of reading a log."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.simulate.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.simulate.log.source import Source


Progress: TypeAlias = "bool | Callable[[int, int | None], None] | None"

_DELAY: Final = 1
"""After how many seconds a notebook shows a bar by default."""


@contextmanager
def progress_bar(progress: Progress, sources: list[Source]) -> Iterator[Callable[[], None]]:
    """Show progress; the context's value is a function that updates it.

    A function is called with the bytes read so far and the total, which is None if it is not known;
    otherwise as for `make_bar`.
    """
    sizes = [source.size for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)

    def done() -> int:
        return sum(source.done for source in sources)

    if callable(progress):
        report = progress
        yield lambda: report(done(), total)
        return
    bar = make_bar(progress, total=total, unit="B", unit_scale=True, desc="reading", leave=False)
    if bar is None:
        yield lambda: None
        return
    with bar:

        def update() -> None:
            bar.update(done() - bar.n)

        yield update


def make_bar(progress: bool | None, **options: Any) -> Any:
    """Return a bar of tqdm; None if there is to be none.

    Args:
        progress: Whether to show a bar. None: on a terminal or in a notebook, if tqdm is installed.
        **options: The options of tqdm.

    Raises:
        ImportError: `progress` is True and tqdm is not installed.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or (progress is None and not (is_terminal or _is_notebook())):
        return None
    # A notebook keeps the bars of its last run, and one of an instant is not worth it.
    delay = 0 if progress or is_terminal else _DELAY
    try:
        # Without ipywidgets, `tqdm.auto` warns in notebooks.
        module = "tqdm.auto" if find_spec("ipywidgets") else "tqdm"
        return import_optional(module, "progress=True", "tqdm").tqdm(**options, delay=delay)
    except ImportError:
        if progress:
            raise
        return None


def _is_notebook() -> bool:
    # An imported IPython kernel is not enough: programs that execute notebooks import it too.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
