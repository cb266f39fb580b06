"""The picture of the documentation, drawn from the measurements in `benches/README.md`.

Run as `python benches/python/plot.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
DETAILS = ROOT / "benches/README.md"
PICTURE = ROOT / "docs/decision-times.svg"
# A row such as "| penstock (0.1.0), 1,000 buckets | 100 ns, 10,022,902 hits per second |".
MEASURED = re.compile(
    r"^\| (?P<name>[\w, -]+) \([\d.]+\), (?P<size>[\d,]+ buckets)(?: \(uneven.*?\))?"
    r" \| (?P<ns>\d+) ns, ",
    re.MULTILINE,
)
# Readable on a light and on a dark page.
OURS, THEIRS, TEXT = "#4c8dd6", "#a7adb5", "#7c828c"
STYLE: Final[dict[Any, Any]] = {
    "axes.titlecolor": TEXT,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "text.color": TEXT,
}


def figures() -> dict[str, dict[str, int]]:
    """Return nanoseconds per decision by number of buckets and package."""
    times: dict[str, dict[str, int]] = {}
    for row in MEASURED.finditer(DETAILS.read_text(encoding="utf-8")):
        times.setdefault(row["size"], {})[row["name"]] = int(row["ns"])
    return times


def draw(times: Mapping[str, Mapping[str, float]], picture: Path = PICTURE) -> None:
    """Draw nanoseconds per decision, one panel for each number of buckets."""
    # Text stays text, and the same figures give the same file.
    with mpl.rc_context(STYLE):
        rows = sum(len(panel) for panel in times.values())
        # As narrow as a phone, so that a browser hardly shrinks the text there.
        figure = Figure(figsize=(5, 0.42 * rows + 0.4 * len(times)), layout="constrained")
        for axes, (size, panel) in zip(figure.subplots(len(times), 1), times.items(), strict=True):
            names = sorted(panel, key=lambda name: panel[name], reverse=True)
            colors = [OURS if name == "penstock" else THEIRS for name in names]
            # A bar is below its name, which leaves it the whole width. An axis would touch names.
            bars = axes.barh(range(len(names)), [panel[name] for name in names], 0.4, color=colors)
            axes.bar_label(bars, labels=[f"{panel[name]:,.0f}" for name in names], padding=4)
            for place, name in enumerate(names):
                axes.text(0, place + 0.26, name, va="bottom")
            axes.set_title(f"Nanoseconds per decision, {size}", loc="left", weight="bold", pad=10)
            axes.set_ylim(-0.4, len(names) - 0.2)
            axes.spines[:].set_visible(False)
            axes.xaxis.set_visible(False)
            axes.yaxis.set_visible(False)
            axes.margins(x=0.16)
        figure.savefig(picture, metadata={"Date": None, "Creator": None}, transparent=True)


if __name__ == "__main__":
    draw(figures())
