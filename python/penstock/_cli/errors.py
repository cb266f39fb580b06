"""The error that ends a command, and exit statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.errors import ConfigProblem

FAULT: Final = 1
"""The exit status if the input has faults."""
WRONG_USE: Final = 2
"""The exit status if the command was used incorrectly."""


class CommandError(Exception):
    """A command cannot continue.

    Attributes:
        status: The exit status.
        problems: The faults of a limits file, if that is the cause.
    """

    def __init__(self, message: str, status: int, problems: tuple[ConfigProblem, ...] = ()) -> None:
        super().__init__(message)
        self.status: Final = status
        self.problems: Final = problems
