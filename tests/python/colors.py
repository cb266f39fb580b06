"""The contrast of colors, as in WCAG 2."""

from __future__ import annotations


def luminance(red: int, green: int, blue: int) -> float:
    """Return the relative luminance of a color, of which each part is from 0 to 255."""
    parts = [part / 255 for part in (red, green, blue)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    """Return the contrast ratio of two luminances."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
