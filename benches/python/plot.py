"""The picture of a full run for the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

PICTURE = Path(__file__).parents[2] / "docs" / "decision-times.svg"
# Readable on a light and on a dark page.
OURS, THEIRS, TEXT = "#4c8dd6", "#a7adb5", "#8a8f98"
STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": TEXT,
    "axes.titlecolor": TEXT,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "text.color": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def decisions(times: Mapping[str, Mapping[str, float]]) -> None:
    """Draw nanoseconds per decision, one panel for each number of buckets."""
    # Text stays text, and the same figures give the same file.
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.9 * len(times) + 0.6), layout="constrained")
        for axes, (size, panel) in zip(figure.subplots(len(times), 1), times.items(), strict=True):
            names = sorted(panel, key=lambda name: panel[name], reverse=True)
            colors = [OURS if name == "penstock" else THEIRS for name in names]
            bars = axes.barh(names, [panel[name] for name in names], color=colors)
            axes.bar_label(bars, labels=[f"{panel[name]:,.0f}" for name in names], padding=4)
            axes.set_title(f"Nanoseconds per decision, {size}", loc="left", fontsize="medium")
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            axes.xaxis.set_visible(False)
            axes.margins(x=0.12)
        figure.savefig(PICTURE, metadata={"Date": None, "Creator": None}, transparent=True)
