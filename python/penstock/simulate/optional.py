"""Libraries that simulations need for one method only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType


PLOTTING: Final = '"penstock[notebook]"'
"""The extra with the packages for plots and report pages."""


def import_optional(name: str, caller: str, install: str | None = None) -> ModuleType:
    """Import a library that penstock does not depend on.

    Args:
        name: The module to import.
        caller: What needs it, for the error message.
        install: What pip has to install. None: `name`.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{caller} needs {name}, which is not installed; run `pip install {install or name}`"
        ) from error
