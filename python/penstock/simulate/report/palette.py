"""Colors that work for color-blind readers, in black and white, and on light and dark pages.

Each has a contrast of at least 3 to white and to black, and allowed to denied one of 2.
"""

from __future__ import annotations

from typing import Final

# Source: the hues of Okabe and Ito, Color Universal Design (2008).
ALLOWED: Final = "#00659e"
DENIED: Final = "#e07800"
LEVEL: Final = "#009e73"
FULL: Final = "#7f7f7f"
