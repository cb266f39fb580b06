"""Findings of the checks of a running set-up.

Each has a code, which the page of codes explains, and is logged once.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import DOCUMENTATION

_log: Final = logging.getLogger("penstock")

OBSERVED: Final = 1000
"""How many requests of an application are looked at."""


def report(code: str, sentence: str, fix: str) -> None:
    """Log the finding of a check."""
    _log.warning("%s: %s; %s (%s/codes/#%s)", code, sentence, fix, DOCUMENTATION, code.lower())
