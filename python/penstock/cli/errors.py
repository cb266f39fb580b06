"""A command that cannot do what it was told."""

from __future__ import annotations

from typing import Final

__all__ = ["FAULT", "WRONG_USE", "Refused"]

FAULT: Final = 1
"""The exit status for a fault that was looked for and found."""
WRONG_USE: Final = 2
"""The exit status for wrong use."""


class Refused(Exception):
    """What standard error is told, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status: Final = status
