"""What was read of a log, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["LogReport", "SkippedLine"]

MOST_EXAMPLES: Final = 5
_UNITS: Final = ("seconds", "milliseconds", "microseconds", "nanoseconds")


class SkippedLine(NamedTuple):
    """A line that was left out.

    Attributes:
        file: The file it stands in.
        line: Its number, from 1.
        reason: Why it was left out.
        text: How it begins; empty of a line that is late.
    """

    file: str
    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        shown = "".join(
            sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in self.text
        )
        where = f"{self.file}:{self.line:,}: {self.reason}"
        return f"{where}: {shown}" if shown else where


@dataclass(kw_only=True, slots=True)
class LogReport:
    """What was read of a log, and what was left out. It grows while a log is read.

    Attributes:
        files: The files, in the order in which they were read.
        format: Their format.
        fields: Which field was taken for what, such as `{"time": "@timestamp"}`.
        events: Events read.
        lines: Lines read; rows of a Parquet file.
        skipped: Lines that do not parse.
        late: Lines that are earlier than one before them by more than the window.
        without_id: Lines that parse and do not say who: their id is missing or `-`.
        examples: The first lines that do not parse or are late.
        units: What epochs were taken to count, such as `("milliseconds",)`; empty where times are
            written out.
    """

    files: tuple[str, ...]
    format: str
    fields: dict[str, str] = field(default_factory=dict)
    events: int = 0
    lines: int = 0
    skipped: int = 0
    late: int = 0
    without_id: int = 0
    examples: tuple[SkippedLine, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def share_left_out(self) -> float:
        """The share of lines that do not parse or are late, 0 to 1."""
        left_out = self.skipped + self.late
        return left_out / (self.events + left_out) if left_out else 0.0

    def __str__(self) -> str:
        events, lines = _counted(self.events, "event"), _counted(self.lines, "line")
        words = [f"{events} of {lines} ({self.format})"]
        for count, what in (
            (self.skipped, "did not parse"),
            (self.late, "were late"),
            (self.without_id, "did not say who"),
        ):
            if count:
                words.append(f"{count:,} {what}")
        if self.units:
            words.append(f"times in {' and '.join(self.units)}")
        return ", ".join(words)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def unit_names(bits: int) -> tuple[str, ...]:
    """Name the units of a set of bits, as the core gives it."""
    return tuple(name for place, name in enumerate(_UNITS) if bits >> place & 1)
