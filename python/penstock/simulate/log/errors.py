"""What goes wrong with a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.simulate.log.report import SkippedLine

__all__ = ["LogError"]


class LogError(Error, ValueError):
    """A log that cannot be read: of another format, damaged, or with too many bad lines.

    Attributes:
        file: The file, or `None` where the fault lies in an option.
        examples: The first lines that did not parse.
    """

    def __init__(
        self, message: str, *, file: str | None = None, examples: tuple[SkippedLine, ...] = ()
    ) -> None:
        shown = "".join(f"\n  {example}" for example in examples)
        super().__init__(f"{message}{':' if shown else ''}{shown}")
        self.file = file
        self.examples = examples
