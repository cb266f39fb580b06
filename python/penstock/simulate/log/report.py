"""What was read of a log: counts of its lines, and the error that it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock._display import pluralize, printable
from penstock.errors import Error

MAX_EXAMPLES: Final = 5
# Characters of the names of files in a representation.
_MAX_FILES: Final = 80


class SkippedLine(NamedTuple):
    """A line that was left out.

    Attributes:
        file: The file.
        line: The number of the line, from 1.
        reason: Why it was left out.
        text: The beginning of the line.
    """

    file: str
    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.file}:{self.line:,}: {self.reason}: {self.text}")


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


@dataclass(kw_only=True, repr=False, slots=True)
class LogReport:
    """Counts of the lines of a log that were read and left out, updated while it is read.

    Attributes:
        files: The files, in the order in which they are read.
        format: Their format.
        fields: The field that is used for each option, such as `{"time": "@timestamp"}`.
        events: Events read.
        lines: Lines read.
        skipped: Lines that do not parse.
        late: Lines that are out of order by more than the window.
        without_id: Lines that parse, but whose id is missing or `-`.
        filtered: Events that do not meet the conditions of `where`.
        examples: The first lines that do not parse.
    """

    files: tuple[str, ...]
    format: str
    fields: dict[str, str] = field(default_factory=dict)
    events: int = 0
    lines: int = 0
    skipped: int = 0
    late: int = 0
    without_id: int = 0
    filtered: int = 0
    examples: tuple[SkippedLine, ...] = ()

    @property
    def share_left_out(self) -> float:
        """Share of lines that do not parse or are late, 0 to 1."""
        left_out = self.skipped + self.late
        return left_out / (self.events + left_out) if left_out else 0.0

    def __str__(self) -> str:
        events, lines = pluralize(self.events, "event"), pluralize(self.lines, "line")
        parts = [f"{events} of {lines} ({self.format})"]
        parts += [f"{count:,} {reason}" for reason, count in self.left_out().items() if count]
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"<LogReport of {printable(', '.join(self.files), _MAX_FILES)}: {self}>"

    def left_out(self) -> dict[str, int]:
        """Return the number of lines that were left out, by the reason."""
        return {
            "did not parse": self.skipped,
            "were late": self.late,
            "had no id": self.without_id,
            "do not meet the conditions": self.filtered,
        }
