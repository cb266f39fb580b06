"""Drawings as text that stands within a page and takes the page's colours and letters."""

from __future__ import annotations

import io
import math
import re
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Final

from penstock.simulate.report import palette
from penstock.simulate.report.markup import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.figure import Figure

    from penstock.simulate.result import Bins

__all__ = ["bars", "inline", "page_colors", "sparkline"]

# Matplotlib knows no variables of a page: these stand for them until the drawing is text.
_INK: Final = "#010203"
_FAINT: Final = "#040506"
_VARIABLES: Final = {
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
    palette.ALLOWED: "var(--allowed)",
    palette.DENIED: "var(--denied)",
    palette.LEVEL: "var(--level)",
}
_FAMILY: Final = re.compile(r"font: ([\d.]+px) [^;\"]+")
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_IDS: Final = re.compile(r'(\bid="|xlink:href="#|url\(#)')


@contextmanager
def page_colors() -> Iterator[None]:
    """Have what is drawn meanwhile take the colours of the page that it will stand in."""
    from matplotlib import rc_context  # noqa: PLC0415  an extra

    settings: dict[Any, Any] = {
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.titlecolor": _INK,
        "font.size": 10,
        "svg.fonttype": "none",
        # The same page for the same answers.
        "svg.hashsalt": "penstock",
        "text.color": _INK,
        "xtick.color": _FAINT,
        "xtick.labelcolor": _INK,
        "ytick.color": _FAINT,
        "ytick.labelcolor": _INK,
    }
    with rc_context(settings):
        yield


def inline(figure: Figure, name: str, label: str) -> str:
    """Give a figure as an element of a page.

    Args:
        figure: What was drawn in the colours of a page.
        name: Begins the names of its parts, of which a page must have no two alike.
        label: What it says, for those who do not see it.
    """
    drawn = io.StringIO()
    empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(drawn, format="svg", transparent=True, metadata=empty)
    text = _METADATA.sub("", drawn.getvalue())
    text = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    # The page's own letters: a family that is not there would be looked for in vain.
    text = _FAMILY.sub(r"font: \1 var(--letters)", text)
    text = _IDS.sub(rf"\g<1>{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{visible(label)}"', 1)


def sparkline(bins: Bins, width: int = 360, height: int = 44) -> str:
    """Give a small drawing of allowed and denied events over time, which needs no library.

    Its colours are for light and dark notebooks alike.
    """
    most = int(bins.arrivals.max(initial=0))
    if most == 0:
        return ""
    step, scale = width / len(bins.arrivals), (height - 2) / most
    tops = (
        (palette.DENIED, bins.arrivals.tolist()),
        (palette.ALLOWED, bins.allowed.tolist()),
    )
    paths = "".join(
        f'<path fill="{color}" d="{_stairs(counts, step, scale, height)}"/>'
        for color, counts in tops
    )
    label = f"{int(bins.allowed.sum()):,} events allowed and {int(bins.denied.sum()):,} denied"
    return (
        f'<svg role="img" aria-label="{label}, over time" xmlns="http://www.w3.org/2000/svg" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{label}, over time</title>{paths}</svg>"
    )


def bars(shares: Sequence[float], label: str, height: int = 44) -> str:
    """Give a small drawing of shares in the order of their rows, which needs no library."""
    most = max(shares, default=0.0)
    if most <= 0:
        return ""
    step = min(12.0, 360 / len(shares))
    width = math.ceil(step * len(shares))
    counts = [share / most for share in shares]
    told = escape(label)
    return (
        f'<svg role="img" aria-label="{told}" xmlns="http://www.w3.org/2000/svg" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"><title>{told}</title>'
        f'<path fill="{palette.DENIED}" d="{_stairs(counts, step, height - 2, height)}"/></svg>'
    )


def _stairs(counts: Sequence[float], step: float, scale: float, height: int) -> str:
    parts = [f"M0 {height}"]
    for place, count in enumerate(counts):
        parts.append(f"V{height - count * scale:.4g}H{(place + 1) * step:.5g}")
    return "".join([*parts, f"V{height}Z"])
