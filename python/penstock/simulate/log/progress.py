"""The progress of reading a log."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from penstock._extras import Extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.simulate.log.source import Source


_DELAY: Final = 1
"""After how many seconds a notebook shows a bar by default."""


@contextmanager
def progress_bar(progress: bool | None, sources: list[Source]) -> Iterator[Callable[[], None]]:
    """Show a bar of tqdm; the context's value is a function that updates it.

    Args:
        progress: Whether to show a bar. None: on a terminal or in a notebook, if tqdm is installed.
        sources: The files that are read.

    Raises:
        ImportError: `progress` is True and tqdm is not installed.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_shown = is_terminal or _is_notebook() if progress is None else progress
    # Without ipywidgets, `tqdm.auto` warns in notebooks.
    module = "tqdm.auto" if find_spec("ipywidgets") else "tqdm"
    if not is_shown or (progress is None and find_spec("tqdm") is None):
        yield lambda: None
        return
    sizes = [source.size for source in sources]
    with Extra("cli"):
        tqdm: Any = import_module(module)
    # A notebook keeps the bars of its last run, and one of an instant is not worth it.
    bar = tqdm.tqdm(
        total=None if None in sizes else sum(size or 0 for size in sizes),
        desc="reading",
        unit="B",
        unit_scale=True,
        leave=False,
        delay=0 if progress or is_terminal else _DELAY,
    )
    with bar:
        yield lambda: bar.update(sum(source.done for source in sources) - bar.n)


def _is_notebook() -> bool:
    # An imported IPython kernel is not enough: programs that execute notebooks import it too.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
