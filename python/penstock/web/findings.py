"""Findings of the checks of a running set-up.

Each has a code, which `docs/codes.md` explains, and is logged once.
"""

from __future__ import annotations

import logging
from typing import Final

_log: Final = logging.getLogger("penstock")

OBSERVED: Final = 1000
"""How many requests of an application are looked at."""


def report(code: str, sentence: str, fix: str) -> None:
    """Log the finding of a check."""
    _log.warning("%s: %s; %s (docs/codes.md#%s)", code, sentence, fix, code.lower())
