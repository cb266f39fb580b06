"""The colours: eyes that see no red or no green tell them apart, and so do light and dark pages."""

from __future__ import annotations

from typing import Final

__all__ = ["ALLOWED", "DENIED", "FULL", "LEVEL", "SEVERAL"]

# Source: Okabe and Ito, Color Universal Design (2008); the darkest and the lightest left out.
ALLOWED: Final = "#0072b2"
DENIED: Final = "#d55e00"
LEVEL: Final = "#009e73"
FULL: Final = "#7f7f7f"
SEVERAL: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""For several limits side by side; after the last it begins anew, with another dash."""
