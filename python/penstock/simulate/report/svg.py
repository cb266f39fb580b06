"""Drawings as inline SVG that takes the colors and the font of its page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Final

from penstock._display import escape_text
from penstock.simulate.report.plot import ALLOWED, DENIED, LEVEL

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure


# Matplotlib cannot use CSS variables: these colors are replaced in the SVG text.
_INK: Final = "#010203"
_FAINT: Final = "#040506"
_VARIABLES: Final = {
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
    ALLOWED: "var(--allowed)",
    DENIED: "var(--denied)",
    LEVEL: "var(--level)",
}
_FAMILY: Final = re.compile(r"font: ([\d.]+px) [^;\"]+")
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_IDS: Final = re.compile(r'(\bid="|xlink:href="#|url\(#)')


def page_colors() -> AbstractContextManager[None]:
    """Return a context to draw with the placeholder colors that `inline` replaces."""
    from matplotlib import rc_context  # noqa: PLC0415  an extra

    settings: dict[Any, Any] = {
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.titlecolor": _INK,
        "font.size": 10,
        "svg.fonttype": "none",
        # The same results give the same page.
        "svg.hashsalt": "penstock",
        "text.color": _INK,
        "xtick.color": _FAINT,
        "xtick.labelcolor": _INK,
        "ytick.color": _FAINT,
        "ytick.labelcolor": _INK,
    }
    return rc_context(settings)


def inline(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an SVG element.

    Args:
        figure: A figure drawn with `page_colors`.
        name: A prefix for its element ids, which must be unique on a page.
        label: A description for screen readers.
    """
    drawn = io.StringIO()
    empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(drawn, format="svg", transparent=True, metadata=empty)
    text = _METADATA.sub("", drawn.getvalue())
    text = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    # Use the font of the page, not the one that Matplotlib chose.
    text = _FAMILY.sub(r"font: \1 var(--letters)", text)
    text = _IDS.sub(rf"\g<1>{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape_text(label)}"', 1)
