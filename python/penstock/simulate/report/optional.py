"""Libraries that draw, which simulating does without."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["drawing_library"]


def drawing_library(name: str, what: str) -> ModuleType:
    """Import a library that draws.

    Raises:
        ImportError: It is not installed; the message says what would do.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {name}, which is not installed; "
            '`pip install "penstock[notebook]"` would do'
        ) from error
