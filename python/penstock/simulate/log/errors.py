"""The error that a log cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.simulate.log.report import SkippedLine


class LogError(Error, ValueError):
    """A log cannot be read: another format, a damaged file, or too many bad lines.

    Attributes:
        file: The file; None if an option is wrong.
        examples: The first lines that did not parse.
    """

    def __init__(
        self, message: str, *, file: str | None = None, examples: tuple[SkippedLine, ...] = ()
    ) -> None:
        shown = "".join(f"\n  {example}" for example in examples)
        super().__init__(f"{message}{':' if shown else ''}{shown}")
        self.file = file
        self.examples = examples
