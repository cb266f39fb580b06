"""Colors that work for color-blind readers, and on light and dark pages."""

from __future__ import annotations

from typing import Final

# Source: Okabe and Ito, Color Universal Design (2008), without the darkest and the lightest.
ALLOWED: Final = "#0072b2"
DENIED: Final = "#d55e00"
LEVEL: Final = "#009e73"
FULL: Final = "#7f7f7f"
SEVERAL: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Colors of several limits; they repeat with another dash."""
